"""Graphs for PyTorch Geometric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch_geometric.data import HeteroData

from pyterrier_graph.graphs.hetero_graph import NODE_TYPES

if TYPE_CHECKING:
    from pyterrier_graph.graphs.hetero_graph import HeteroGraph


def to_hetero_data(graph: HeteroGraph, documents: Sequence[str] | None = None) -> HeteroData:
    """See :meth:`HeteroGraph.to_hetero_data <pyterrier_graph.graphs.hetero_graph.HeteroGraph.to_hetero_data>`."""
    nodes = np.arange(graph.num_nodes)
    if documents is not None:
        nodes = np.flatnonzero(np.isin(graph.document, graph.document_of(list(documents))))
    types = graph.node_type[nodes]
    number = np.zeros(len(nodes), dtype=np.int64)  # of a node among the nodes of its type
    data = HeteroData()
    for kind, name in enumerate(NODE_TYPES):
        of_kind = np.flatnonzero(types == kind)
        number[of_kind] = np.arange(len(of_kind))
        data[name].node = torch.from_numpy(nodes[of_kind])
        data[name].num_nodes = len(of_kind)
    for relation in graph.relations:
        i, neighbor = graph.neighbors(nodes, relation)  # edges i -> j; positions and nodes, shape (edges,) each
        j = np.minimum(np.searchsorted(nodes, neighbor), len(nodes) - 1)
        i, j = i[nodes[j] == neighbor], j[nodes[j] == neighbor]
        for type_i, name_i in enumerate(NODE_TYPES):
            for type_j, name_j in enumerate(NODE_TYPES):
                chosen = (types[i] == type_i) & (types[j] == type_j)
                if chosen.any():
                    edges = np.stack([number[j[chosen]], number[i[chosen]]])  # (2, edges)
                    data[name_j, relation, name_i].edge_index = torch.from_numpy(edges)
    return data
