"""Computes contextual vectors of passages, given their numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pyterrier_graph.encoders.checkpoints import DType, precision
from pyterrier_graph.graph_mean.equations import PassageNetwork
from pyterrier_graph.graph_mean.neighbors import NeighborSampler
from pyterrier_graph.storage.arrays import blocks

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData

QUERIES_AT_ONCE = 4096


@dataclass
class ContextualVectorizer:
    """Computes contextual vectors of passages. Query states are computed once and cached."""

    network: PassageNetwork
    sampler: NeighborSampler
    device: torch.device
    dtype: DType

    @cached_property
    @torch.inference_mode()
    def query_states(self) -> np.ndarray | None:
        """States of all queries, shape (queries, d); None if queries do not aggregate."""
        sampler = self.sampler
        if not self.network.two_hops or not sampler.query_relations:
            return None
        states = sampler.query_vectors.copy()
        for queries in blocks(len(states), QUERIES_AT_ONCE):
            batch = sampler.sample_queries(np.arange(len(states))[queries]).to(self.device)
            states[queries] = self.network.query_states(batch).float().cpu().numpy()
        return states

    @torch.inference_mode()
    def apply(self, function: Callable[[HeteroData], Any], passages: np.ndarray) -> Any:
        """Calls a function of the network with the neighborhood of passages."""
        batch = self.sampler.sample(passages, states=self.query_states)
        with precision(self.dtype, self.device):
            return function(batch.to(self.device))

    def __call__(self, passages: np.ndarray) -> np.ndarray:
        """Contextual vectors, float32 of shape (passages, d)."""
        return self.apply(self.network.forward, passages).float().cpu().numpy()
