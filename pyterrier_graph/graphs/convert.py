"""Graphs for other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pyterrier_graph.graphs.extraction import NODE_TYPES
from pyterrier_graph.graphs.hetero_graph import HeteroGraph

if TYPE_CHECKING:
    import networkx
    from torch_geometric.data import HeteroData


def to_hetero_data(graph: HeteroGraph, documents: Sequence[str] | np.ndarray | None = None) -> HeteroData:
    """The graph for PyTorch Geometric.

    Node types are ``'passage'`` and ``'section'``; ``data[type].node`` has the graph's node numbers. Messages of
    PyTorch Geometric go from ``edge_index[0]`` to ``edge_index[1]``. Along an edge i -> j of this graph, node i
    aggregates from j. So the edge becomes a column (j, i) of the edge type ``(type of j, relation, type of i)``. Edge
    types without edges are left out.

    Args:
        graph: The graph.
        documents: Docnos, or document numbers, whose nodes and edges between them are taken; None for all.

    Raises:
        KeyError: If a document is not in the graph.
    """
    import torch
    from torch_geometric.data import HeteroData

    nodes = _nodes(graph, documents)
    types = graph.node_type[nodes]
    number = np.zeros(len(nodes), dtype=np.int64)  # of a node among those of its type
    data = HeteroData()
    for kind, name in enumerate(NODE_TYPES):
        of_kind = np.flatnonzero(types == kind)
        number[of_kind] = np.arange(len(of_kind))
        data[name].node = torch.from_numpy(nodes[of_kind])
        data[name].num_nodes = len(of_kind)
    for relation in graph.relations:
        i, j = _edges(graph, nodes, relation)
        for type_i, name_i in enumerate(NODE_TYPES):
            for type_j, name_j in enumerate(NODE_TYPES):
                chosen = (types[i] == type_i) & (types[j] == type_j)
                if chosen.any():
                    edges = np.stack([number[j[chosen]], number[i[chosen]]])
                    data[name_j, relation, name_i].edge_index = torch.from_numpy(edges)
    return data


def to_networkx(graph: HeteroGraph, documents: Sequence[str] | np.ndarray | None = None) -> networkx.MultiDiGraph:
    """The graph for networkx.

    Nodes are ids (``docno%pN``, ``docno%sN``) with the attributes ``type`` (``'passage'`` or ``'section'``), ``text``
    and ``document`` (its docno). Edges have the directions of :class:`~pyterrier_graph.graphs.HeteroGraph`; the key
    of an edge, and its attribute ``relation``, is the name of the relation. Inverse relations are left out.

    Args:
        graph: The graph.
        documents: Docnos, or document numbers, whose nodes and edges between them are taken; None for all.

    Raises:
        KeyError: If a document is not in the graph.
    """
    import networkx

    nodes = _nodes(graph, documents)
    names = graph.ids_of(nodes)
    types = [NODE_TYPES[kind] for kind in graph.node_type[nodes]]
    attributes = zip(names, types, graph.texts(nodes), graph.docnos_of(graph.document[nodes]), strict=True)
    converted = networkx.MultiDiGraph()
    converted.add_nodes_from(
        (name, {"type": kind, "text": text, "document": docno}) for name, kind, text, docno in attributes
    )
    for relation in graph.relations[::2]:
        i, j = _edges(graph, nodes, relation)
        converted.add_edges_from(
            ((names[a], names[b], relation) for a, b in zip(i.tolist(), j.tolist(), strict=True)), relation=relation
        )
    return converted


def _nodes(graph: HeteroGraph, documents: Sequence[str] | np.ndarray | None) -> np.ndarray:
    """Nodes of some documents, ascending."""
    if documents is None:
        return np.arange(graph.num_nodes)
    if not isinstance(documents, np.ndarray) or documents.dtype.kind not in "iu":
        documents = graph.document_of(list(documents))
    return graph.nodes_of_documents(np.unique(documents))[1]


def _edges(graph: HeteroGraph, nodes: np.ndarray, relation: str) -> tuple[np.ndarray, np.ndarray]:
    """Edges i -> j between nodes (ascending), as positions in them."""
    i, neighbor = graph.neighbors(nodes, relation)
    if not len(i):
        return i, neighbor
    j = np.minimum(np.searchsorted(nodes, neighbor), len(nodes) - 1)
    inside = nodes[j] == neighbor
    return i[inside], j[inside]
