r"""GraphMean: a passage aggregates the mean of its neighbors along each relation.

With the vector :math:`x_p` of passage p, its sources :math:`N_r(p)` along relation r, and weights :math:`w_r`,

.. math::

    h_p = x_p + \sum_r w_r a_{r,p}, \qquad
    a_{r,p} = \left(|x_p| - x_p \cdot \hat m_{r,p}\right) \hat m_{r,p}, \qquad
    \hat m_{r,p} = \frac{m_{r,p}}{|m_{r,p}|}, \qquad
    m_{r,p} = \frac{1}{|N_r(p)|} \sum_{s \in N_r(p)} x_s

A relation adds what the passage lacks: a passage that differs from its title gets the title in full, a passage that
repeats its title gets nothing. Without sources, :math:`a_{r,p} = 0`.

Passages that aggregate from relevant queries are more similar to all queries than passages without any. So the vector
of a passage without a relevant query, where other passages have some, is multiplied by
:math:`1 + \beta w_{relevant}`, with :math:`\beta` of :func:`~.neighbors.isolated_share`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from pyterrier_graph.graph_mean.neighbors import PASSAGE, edge_type, relations_of
from pyterrier_graph.graphs.csr import CSR, offsets
from pyterrier_graph.graphs.relations import RELEVANT

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData

Pair = tuple[Tensor, Tensor]  # x_source, shape (sources, d), and x_target, shape (targets, d)


class Parts(NamedTuple):
    """The terms whose sum is the vector of one passage."""

    own: Tensor  # from the passage's own vector, shape (d,)
    sources: Mapping[str, Tensor]  # from each source, by relation, shape (edges, d)
    weights: Mapping[str, Tensor]  # attention to each source, by relation, shape (edges,)


class PassageNetwork(nn.Module, ABC):
    """Base of all functions from passages and their neighbors to contextual vectors, with or without parameters."""

    relations: tuple[str, ...]  # along which passages aggregate
    two_hops = False  # whether queries aggregate from passages first
    edge_features = False  # whether attention depends on features of the query graph's edges
    layer_meta: dict[str, Any] | None = None  # class and arguments of given layers, as JSON

    @abstractmethod
    def forward(self, batch: HeteroData) -> Tensor:
        """Contextual vectors of the passages of a batch, shape (passages, d)."""

    @abstractmethod
    def parts(self, batch: HeteroData) -> Parts:
        """The terms that add up to the contextual vector of the one passage of a batch."""

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """Everything except parameters that the contextual vectors depend on, for JSON."""


class Message(nn.Module, ABC):
    """What targets receive along one relation; called as a bipartite layer of PyTorch Geometric."""

    @abstractmethod
    def forward(self, x: Pair, edge_index: Tensor) -> Tensor:
        """The message of each target, shape (targets, d); 0 for a target without sources."""

    @abstractmethod
    def terms(self, x: Pair, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        """The attention to each source, shape (edges,), and its term of the message, shape (edges, d)."""


class MeanMessage(Message):
    """The mean of the sources."""

    def forward(self, x: Pair, edge_index: Tensor) -> Tensor:
        """``m``, shape (targets, d)."""
        return mean_of_sources(x, edge_index)

    def terms(self, x: Pair, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        """Equal shares of each source."""
        sources, targets = x
        edges = rows_of(edge_index, len(targets))
        shares = equal_shares(edges)
        return shares, shares[:, None] * sources[edges.indices]


class Terms(NamedTuple):
    """The terms of a weighted sum, which stay the same while weights are tuned."""

    own: Tensor  # shape (passages, d)
    added: Mapping[str, Tensor]  # a_r, by relation, shape (passages, d)
    isolated: Tensor  # beta for passages without a relevant query, else 0; shape (passages, 1)

    def total(self, weights: Mapping[str, float]) -> Tensor:
        """``own + sum of w_r a_r``, scaled, shape (passages, d)."""
        total = self.own
        for name, term in self.added.items():
            total = total + weights[name] * term
        return self.scale(weights) * total

    def scale(self, weights: Mapping[str, float]) -> Tensor:
        """The factor of each passage, shape (passages, 1)."""
        return 1 + weights.get(RELEVANT, 0.0) * self.isolated


class RelationNetwork(PassageNetwork):
    """The weighted sum of a passage's own vector and of what the message of each relation adds to it.

    With a :class:`MeanMessage` per relation it is GraphMean; the GNN-encoder has attention in its place.

    Args:
        messages: What each relation brings.
        weights: The weight w of each relation.
    """

    def __init__(self, messages: Mapping[str, Message], weights: Mapping[str, float]) -> None:
        super().__init__()
        self.relations = tuple(messages)
        self.relation = cast(Mapping[str, Message], nn.ModuleDict(messages))
        self.weights = dict(weights)

    def about(self) -> dict[str, Any]:
        """The weights."""
        return {"weights": self.weights}

    def own_states(self, passages: Tensor) -> Tensor:
        """What the passages' own vectors contribute, shape (passages, d); unchanged by default."""
        return passages

    def forward(self, batch: HeteroData) -> Tensor:
        """``x + sum of w_r a_r``, scaled, shape (passages, d)."""
        return self.terms(batch).total(self.weights)

    def terms(self, batch: HeteroData) -> Terms:
        """The terms of the sum, to which weights are applied."""
        own = self.own_states(batch[PASSAGE].x)
        added = {}
        isolated = own.new_zeros(len(own), 1)
        for name in relations_of(batch):
            x, edge_index = inputs_of(batch, name)
            message = self.relation[name](x, edge_index)  # (passages, d)
            added[name] = lacking(own, message)
            if name == RELEVANT:
                queries = edge_index[1].bincount(minlength=len(own))  # per passage
                isolated[queries == 0] = batch.isolated_share
        return Terms(own, added, isolated)

    def parts(self, batch: HeteroData) -> Parts:
        """Each source has its share of the message, scaled as the message is in the sum."""
        terms = self.terms(batch)
        scale = terms.scale(self.weights)[0]  # (1,)
        sources = {}
        attention = {}
        for name, added in terms.added.items():
            message = self.relation[name]
            x, edge_index = inputs_of(batch, name)
            attention[name], contributions = message.terms(x, edge_index)  # (edges,), (edges, d)
            total = contributions.sum(0)  # (d,), the message, which has the direction of `added`
            squared_length = (total @ total).clamp(min=1e-12)
            factor = (added[0] @ total) / squared_length
            sources[name] = scale * self.weights[name] * factor * contributions
        return Parts(scale * terms.own[0], sources, attention)


def inputs_of(batch: HeteroData, relation: str) -> tuple[Pair, Tensor]:
    """The vectors of a relation's sources and of the passages, and the edges: the input of a bipartite layer."""
    kind = edge_type(relation)
    source_type, _, target_type = kind
    x = batch[source_type].x, batch[target_type].x
    return x, batch[kind].edge_index


def rows_of(edge_index: Tensor, targets: int) -> CSR:
    """Edges that are sorted by target, as a row per target with its sources."""
    source, target = edge_index
    lengths = target.bincount(minlength=targets)
    return CSR(offsets(lengths), source)


def lacking(own: Tensor, message: Tensor) -> Tensor:
    """``(|x| - x.m) m`` with m of length 1, shape (passages, d)."""
    direction = functional.normalize(message, dim=1)
    length = own.norm(dim=1, keepdim=True)
    similarity = (own * direction).sum(1, keepdim=True)
    return (length - similarity) * direction  # (passages, 1) * (passages, d)


def equal_shares(edges: CSR, dtype: torch.dtype = torch.float32) -> Tensor:
    """1 divided by the number of sources of the same target, by edge, shape (edges,)."""
    shares = 1 / edges.lengths.clamp(min=1).to(dtype)
    return shares[edges.row_index]


def mean_of_sources(x: Pair, edge_index: Tensor) -> Tensor:
    """Mean of the sources of each target, shape (targets, d); 0 for a target without sources."""
    sources, targets = x
    edges = rows_of(edge_index, len(targets))
    shares = equal_shares(edges, sources.dtype)
    return weighted_sum(shares, sources, edges)


def weighted_sum(weights: Tensor, vectors: Tensor, edges: CSR) -> Tensor:
    """Weighted sum over the sources of each target, shape (targets, d): a sparse matrix times a dense one.

    ``weights`` follow ``edges.indices``, shape (edges,). ``vectors`` of the sources have shape (sources, d).
    """
    return functional.embedding_bag(
        edges.indices,
        vectors,
        edges.indptr,
        mode="sum",
        per_sample_weights=weights.contiguous(),
        include_last_offset=True,
    )
