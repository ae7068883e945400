"""The input of the GNN-encoder's networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.models.bipartite_attention import Sources


@dataclass(frozen=True)
class NeighborBatch:
    """Some passages with their neighbors: the targets and the sources of attention."""

    passages: Tensor  # h_p of the targets, shape (passages, d)
    # per relation the vectors of the sources, shape (sources, d): h_q of queries, before Eq. 6 and 7, for example
    sources: Mapping[str, Tensor | Sources]
    edges: Mapping[str, CSR]  # per relation, for each target the rows of its sources
    # for networks with two hops: h_p of the neighbors of the queries, and for each query the rows of its neighbors
    second_hop: Tensor | None = None
    to_queries: CSR | None = None
    # numbers of the queries in their graph, and per relation of the nodes in theirs, by row of the sources
    queries: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    nodes: Mapping[str, np.ndarray] = field(default_factory=dict)

    def to(self, device: torch.device | str) -> NeighborBatch:
        """Moves the tensors to a device."""
        return replace(
            self,
            passages=self.passages.to(device),
            sources={name: vectors.to(device) for name, vectors in self.sources.items()},
            edges={name: edges.to(device) for name, edges in self.edges.items()},
            second_hop=None if self.second_hop is None else self.second_hop.to(device),
            to_queries=None if self.to_queries is None else self.to_queries.to(device),
        )
