"""GraphMaxSim's matches in an HGAT: the tokens of neighbors are matched directly, beside what a passage aggregates.

``sum over query tokens t of max(max_j q_t . h'_j, w_1 max_n,j q_t . h_nj, w_2 ...)``

h' is the representation of the passage in its context (Albarede et al. 2023, Eq. 1 to 3), h_n the tokens of a neighbor
by relation r as encoded, w_r a learned weight. It is MaxSim of the query and one matrix: the rows of h', and those of
the neighbors times their weights. Where h' is the passage's own matrix, this is GraphMaxSim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from pyterrier_graph.encoders.token_states import TokenStates
from pyterrier_graph.graphs.csr import offsets
from pyterrier_graph.graphs.relations import follow
from pyterrier_graph.models.propagation import Propagation

if TYPE_CHECKING:
    from pyterrier_graph.graphs import HeteroGraph


class NeighborMatches(nn.Module):
    """Adds the rows of neighbors, each times the weight of its relation, to the representations of passages.

    Args:
        weights: Relations, or paths of them, and the weights that training starts at. A weight below 0 counts as 0.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        super().__init__()
        self.relations = (*weights,)
        self.weights = nn.Parameter(torch.tensor([*weights.values()], dtype=torch.float32))

    def plan(self, graph: HeteroGraph, targets: np.ndarray, propagation: Propagation) -> Propagation:
        """A propagation for these targets that has their neighbors among its nodes, too."""
        unique = np.unique(np.asarray(targets, dtype=np.int64))
        edges = [follow(graph, unique, relation) for relation in self.relations]
        nodes = propagation.nodes
        wanted = np.concatenate([np.zeros(0, dtype=np.int64), *(neighbor for _, neighbor in edges)])
        nodes = np.concatenate([nodes, np.setdiff1d(wanted, nodes)])  # the first ones stay where they are
        order = np.argsort(nodes, kind="stable")
        matches = []
        for row, neighbor in edges:
            place = order[np.searchsorted(nodes, neighbor, sorter=order)]
            matches.append((torch.from_numpy(row), torch.from_numpy(place)))
        return replace(propagation, nodes=nodes, matches=tuple(matches))

    def forward(self, in_context: TokenStates, inputs: TokenStates, propagation: Propagation) -> TokenStates:
        """Adds the rows.

        Args:
            in_context: The representations of the distinct targets, in ascending order.
            inputs: The texts of ``propagation.nodes``, as encoded.
            propagation: What :meth:`plan` returned.
        """
        # a passage without tokens matches with 0, as in GraphMaxSim
        empty = torch.nonzero(in_context.lengths == 0).flatten()
        rows = [in_context.row_index, empty]
        values = [in_context.values, in_context.values.new_zeros(len(empty), in_context.values.shape[1])]
        for weight, (target, place) in zip(self.weights.clamp(min=0), propagation.matches, strict=True):
            if weight.detach() > 0:
                neighbors = inputs.select(place)
                rows.append(target[neighbors.row_index])
                values.append(weight * neighbors.values)
        row, value = torch.cat(rows), torch.cat(values)
        order = row.argsort(stable=True)
        return TokenStates(value[order], offsets(torch.bincount(row, minlength=len(in_context))))

    def relation_weights(self) -> dict[str, float]:
        """The weight of each relation."""
        return dict(zip(self.relations, self.weights.clamp(min=0).tolist(), strict=True))


def check_matches(weights: Mapping[str, float], framework: str | None) -> None:
    """Raises ValueError if a network cannot match the tokens of neighbors."""
    if framework == "late":
        raise ValueError("matches= is for framework='standard': the late framework scores the passage's own tokens")
    if not weights:
        raise ValueError("matches must name at least one relation, such as {'title': 1.0}; None is for no matches")
