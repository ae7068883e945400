"""GraphMean with a weight per query: a passage's vector, and beside it what each relation adds to the passage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.relations import RELEVANT
from pyterrier_graph.models.bipartite_attention import mean_of_sources
from pyterrier_graph.models.neighbor_batch import NeighborBatch
from pyterrier_graph.models.passage_network import Attended, PassageNetwork


@dataclass(frozen=True)
class SideBySideConfig:
    """Shape of a :class:`SideBySideNetwork`.

    Attributes:
        weights: The relations, each with its largest weight. The weights are part of the queries, not of the vectors.
        overlap: How much less a relation adds to a passage whose own vector says the same.
        isolated: How much of its own vector a passage without a relevant query gets in place of such queries.
    """

    weights: Mapping[str, float]
    overlap: float = 0.8
    isolated: float = 0.6


class SideBySideNetwork(PassageNetwork):
    """Vectors side by side, ``[x; a_1; a_2; ...]``: the passage's own vector x, and what each relation r adds to it.

    With m_r the mean of the passage's sources of r, scaled to length 1, ``a_r = (|x| - 0.8 x.m_r) m_r``. So a relation
    adds what the passage lacks: a passage that says something else than its title gets the title in full, a passage
    that repeats its title gets a fifth. Passages below the same title are then about equally similar to that title, and
    what tells them apart is what they say beyond it.

    The inner product with a query ``[q; w_1 q; w_2 q; ...]`` is ``q.(x + sum of w_r a_r)``: one search has a weight per
    query and relation. :class:`~pyterrier_graph.retrieve.query_weights.QueryWeights` computes these weights.

    Where there are relevant queries, passages that have one are more similar to all queries. In their place, a passage
    without a relevant query gets ``0.6 x``.

    Nothing is learned. ``experiments/results/collections_left_out.md`` says how both numbers were chosen.
    """

    def __init__(self, config: SideBySideConfig, dimension: int) -> None:
        super().__init__()
        self.config, self.dimension, self.relations = config, dimension, tuple(config.weights)

    @property
    def width(self) -> int:
        """Length of the vectors: the dimension times one more than there are relations."""
        return self.dimension * (1 + len(self.relations))

    def _attention(self, relation: str) -> None:
        return None

    def _states(self, passages: Tensor, sources: Mapping[str, Any], edges: Mapping[str, CSR]) -> Tensor:
        blocks = [passages]
        for relation in self.relations:
            rows = edges.get(relation, CSR.empty(len(passages), passages.device))
            direction = functional.normalize(mean_of_sources(sources.get(relation, passages[:0]), rows), dim=1)
            lacking = passages.norm(dim=1, keepdim=True) - self.config.overlap * (passages * direction).sum(
                1, keepdim=True
            )
            added = lacking * direction
            if relation == RELEVANT:
                added = torch.where(rows.lengths[:, None] == 0, self.config.isolated * passages, added)
            blocks.append(added)
        return torch.cat(blocks, 1)

    def directions(self, batch: NeighborBatch) -> dict[str, Tensor]:
        """m_r of the passages that have sources of r, by relation."""
        means = {name: mean_of_sources(cast(Tensor, batch.sources[name]), rows) for name, rows in batch.edges.items()}
        return {name: functional.normalize(mean[batch.edges[name].lengths > 0], dim=1) for name, mean in means.items()}

    def _attended(self, relation: str, passages: Tensor, sources: Any, edges: CSR) -> Attended:
        """Sources count equally. The gate is the length of what the relation adds, for a passage of length 1."""
        added = self._states(passages, {relation: sources}, {relation: edges}).split(self.dimension, 1)
        lengths = added[1 + self.relations.index(relation)].norm(dim=1) / passages.norm(dim=1).clamp(min=1e-12)
        return Attended((1 / edges.lengths.clamp(min=1).to(passages.dtype))[edges.row_index], lengths)
