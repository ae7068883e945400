"""GNN-encoders: passage vectors that aggregate from queries, and from other neighbors of a passage.

J. Liu, J. Liu, Y. Yang, J. Wang, W. Wu, D. Zhao, R. Yan: GNN-encoder: Learning a dual-encoder architecture via graph
neural networks for passage retrieval. Findings of EMNLP 2022 ("001"), and its first version, arXiv 2204.08241 ("000").
"Eq. n" below are those of 001; Eq. 3-10 have the same numbers in 000, where they have no edge features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from pyterrier_graph.checks import check_choice, check_count, check_number, check_weights
from pyterrier_graph.encoders.devices import full_precision
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.relations import RELEVANT, RETRIEVED
from pyterrier_graph.models.bipartite_attention import BipartiteAttention, Sources, in_chunks, mean_of_sources
from pyterrier_graph.models.passage_network import Attended, PassageNetwork, check_rows


@dataclass(frozen=True)
class PaperGNNEncoderConfig:
    """Shape of the papers' network; the defaults are those of 001, without edge features.

    Attributes:
        heads: Attention heads, which divide d; 001 does not say how many.
        layers: 2, or 1: passages attend to the queries' own vectors, without Eq. 6 and 7 (Table 3, "w/ one layer").
        gate: ``'filter'`` (Eq. 9-10), or a constant alpha in its place: h' = alpha * aggregated + h.
        edge_features: d_e, length of the features of the graph's edges, or None for none. The edge of a node to itself
            has none: a cross-encoder would have to read every passage together with itself, and by Eq. 5 its features
            could only shift how much a passage attends to its own vector.
        shared_weights: One W per GAT layer (000) instead of W_t, W_s and W_e (001).
        gnn: Whether there is a network at all; if not, passages keep their vectors ("w/o GNN").
        average: beta of h + beta * mean of the queries' own vectors, in place of the whole network (000, Sect. 5.4,
            "GNN or average?"); None for the network.
    """

    heads: int = 4
    layers: Literal[1, 2] = 2
    gate: Literal["filter"] | float = "filter"
    edge_features: int | None = None
    shared_weights: bool = False
    gnn: bool = True
    average: float | None = None

    def __post_init__(self) -> None:
        check_count("heads", self.heads)
        check_choice("layers", self.layers, (1, 2))
        if self.gate != "filter":
            check_number("gate, unless it is 'filter',", self.gate)
        if self.edge_features is not None:
            check_count("edge_features", self.edge_features)
        if self.shared_weights and self.edge_features:
            raise ValueError("shared_weights leaves no W_e for edge features")
        if not self.gnn and self.average is not None:
            raise ValueError("gnn=False leaves passages as they are, so there is no average either")


@dataclass(frozen=True)
class GNNEncoderConfig:
    """Shape of a :class:`GNNEncoderNetwork`, the project's own network; :meth:`paper` is the papers' network.

    Attributes:
        weights: The relations, each with the weight that it starts with: ``{'title': 1.0, 'relevant': 0.5}``. None
            takes the defaults of :class:`~pyterrier_graph.GNNEncoder` for its graphs.
        heads: Attention heads, which divide the dimensions.
        isolated_norm: Length of the vector of a passage without a relevant query, where other passages have some.
    """

    weights: Mapping[str, float] | None = None
    heads: int = 4
    isolated_norm: float = 1.0

    def __post_init__(self) -> None:
        check_count("heads", self.heads)
        check_number("isolated_norm", self.isolated_norm, 1e-6)
        if self.weights is not None:
            object.__setattr__(self, "weights", check_weights(self.weights))

    @staticmethod
    def paper(**ablations: Any) -> PaperGNNEncoderConfig:
        """The papers' network (Liu et al. 2022), or an ablation of it: ``layers=1``, ``gate=0.2``.

        The fields are those of :class:`PaperGNNEncoderConfig`.
        """
        return PaperGNNEncoderConfig(**ablations)


class PaperGNNEncoderNetwork(PassageNetwork):
    """The papers' network: passages to queries (Eq. 6, 7), queries to passages (Eq. 8), then the gate (Eq. 9, 10).

    Its one relation is ``'retrieved'``. The network without edges has the same parameters: a passage then attends to
    its own vector only.

    Readings: the two GAT layers have weights of their own; Eq. 5's optional activation is left out; heads are
    concatenated; similarities of the states are dot products, as in Eq. 11.
    """

    relations = (RETRIEVED,)

    def __init__(self, config: PaperGNNEncoderConfig, dimension: int) -> None:
        super().__init__()
        self.config, self.dimension = config, dimension
        network = config.gnn and config.average is None
        options: dict[str, Any] = {"edge_features": config.edge_features, "shared": config.shared_weights}
        layer = partial(BipartiteAttention, dimension, config.heads, **options)
        two = network and config.layers == 2
        self.query_layer = layer() if two else None
        self.fusion = nn.Linear(2 * dimension, dimension) if two else None  # W_pq, b_pq
        self.two_hops, self.edge_features = two, bool(config.edge_features)
        self.passage_layer = layer() if network else None
        filters = network and config.gate == "filter"
        self.gate = nn.Linear(2 * dimension, dimension) if filters else None  # W_qp, b_qp

    def query_states(self, queries: Tensor, passages: Tensor, edges: CSR) -> Tensor:
        """Eq. 6 and 7; with one layer or none, the queries unchanged."""
        if self.query_layer is None or self.fusion is None:
            return queries
        check_rows("queries", queries, edges)
        layer, fusion = self.query_layer, self.fusion
        sources = layer.prepare(passages, len(edges.indices))

        def states(part: slice) -> Tensor:
            own = queries[part]
            return fusion(torch.cat([layer(own, sources, edges.rows(part)), own], 1))  # Eq. 6, 7

        return in_chunks(states, queries)

    def _attention(self, relation: str) -> BipartiteAttention | None:
        return self.passage_layer

    def _states(self, passages: Tensor, sources: Mapping[str, Any], edges: Mapping[str, CSR]) -> Tensor:
        """Eq. 8 to 10, or what the configuration has in their place."""
        queries = sources[RETRIEVED] if RETRIEVED in edges else passages[:0]
        rows = edges.get(RETRIEVED, CSR.empty(len(passages), passages.device))
        if self.config.average is not None:
            return passages + self.config.average * mean_of_sources(queries, rows)
        if self.passage_layer is None:
            return passages
        aggregated = self.passage_layer(passages, queries, rows)  # Eq. 8
        return passages + self._gate(aggregated, passages) * aggregated  # Eq. 10

    def _gate(self, aggregated: Tensor, passages: Tensor) -> Tensor:
        """Eq. 9, or alpha."""
        if self.gate is None:
            return passages.new_full((1, 1), cast(float, self.config.gate))
        return self.gate(torch.cat([aggregated, passages], 1)).sigmoid()

    def _attended(self, relation: str, passages: Tensor, sources: Any, edges: CSR) -> Attended:
        """The rest up to 1 is attention to the passage's own vector."""
        ones = passages.new_ones(len(passages))
        if self.passage_layer is None:
            share = 1 / edges.lengths.clamp(min=1).to(passages.dtype)
            return Attended(share[edges.row_index], (self.config.average or 0) * ones)
        gate = self._gate(self.passage_layer(passages, sources, edges), passages).mean(1) * ones
        return Attended(self.passage_layer.weights(passages, sources, edges).edges.mean(1), gate)


class GNNEncoderNetwork(PassageNetwork):
    """A passage's own vector, and a message along each relation, on separate paths.

    ``normalize(x + g_0 * W_0 x + sum over relations r of s_r g_r * GAT_r)``. GAT_r is graph attention over the sources
    alone, so that a message never takes the place of the vector. The gates are vectors,
    ``g_r = 2 sigmoid(W [GAT_r || x] + b)`` and ``g_0 = 2 sigmoid(W x + b)``; the weight s_r is a number.

    The untrained network is mean aggregation, ``normalize(x + sum of s_r * mean of the sources of r)``, exactly: W_0 is
    0, the W_s of attention the identity, its a 0, and all gates are 1. A relation that starts with s_r = 0 adds
    nothing, and can learn. Without edges the network is an adapter, ``normalize(x + g_0 * W_0 x)``.

    A passage that aggregates from relevant queries is more similar to all queries than a passage without any. So the
    vectors of passages without a relevant query, where there are relevant queries at all, may be longer than 1 by the
    factor ``isolated_norm``. This factor is tuned, not learned, since most passages in the loss have relevant queries.

    Sources are any vectors of the same space: queries ('retrieved' and 'relevant'), titles, passages.
    """

    normalizes = True
    isolated_norm: Tensor

    def __init__(self, config: GNNEncoderConfig, dimension: int) -> None:
        super().__init__()
        self.config, self.dimension = config, dimension
        weights = config.weights or {}
        self.relations = tuple(weights)
        self.own = nn.Linear(dimension, dimension, bias=False)
        nn.init.zeros_(self.own.weight)
        self.own_gate = _Gate(dimension, dimension)
        modules = {name: _Relation(dimension, config.heads, weight) for name, weight in weights.items()}
        self.relation = cast(Mapping[str, _Relation], nn.ModuleDict(modules))
        self.register_buffer("isolated_norm", torch.tensor(float(config.isolated_norm)))

    def _attention(self, relation: str) -> BipartiteAttention | None:
        of = self.relation[relation]
        return None if of.is_mean() else of.attention

    def _states(self, passages: Tensor, sources: Mapping[str, Any], edges: Mapping[str, CSR]) -> Tensor:
        return self.joined(self.paths(passages, sources, edges))

    def paths(self, passages: Tensor, sources: Mapping[str, Tensor | Sources], edges: Mapping[str, CSR]) -> Paths:
        """The terms that :meth:`joined` adds up: they stay the same while weights are tuned."""
        prepared = self.prepare(sources)
        own = passages if _unused(self.own.weight) else passages + self.own_gate(passages) * self.own(passages)
        messages = {
            name: self.relation[name](passages, prepared[name], edges[name]) for name in self.relations if name in edges
        }
        return Paths(own, messages, edges[RELEVANT].lengths == 0 if RELEVANT in edges else None)

    def joined(self, paths: Paths) -> Tensor:
        """The passages, with the weights s_r: vectors of unit length, or ``isolated_norm``."""
        states = paths.own
        for name, message in paths.messages.items():
            states = states + self.relation[name].weight * message
        states = functional.normalize(states, dim=1)
        isolated = paths.isolated
        return states if isolated is None else torch.where(isolated[:, None], self.isolated_norm * states, states)

    def _attended(self, relation: str, passages: Tensor, sources: Any, edges: CSR) -> Attended:
        """Attention within a relation adds up to 1."""
        of = self.relation[relation]
        gate = of.weight * of.gate(of.attention(passages, sources, edges), passages).mean(1)
        return Attended(of.attention.weights(passages, sources, edges).edges.mean(1), gate)

    @property
    def weights(self) -> dict[str, float]:
        """s_r, by relation."""
        return {name: shortest(relation.weight) for name, relation in self.relation.items()}

    def scalars(self) -> list[nn.Parameter]:
        """The weights s_r."""
        return [relation.weight for relation in self.relation.values()]


class Paths(NamedTuple):
    """The terms that a :class:`GNNEncoderNetwork` adds up, shape (passages, d) each."""

    own: Tensor  # x + g_0 * W_0 x
    messages: Mapping[str, Tensor]  # g_r * GAT_r, by relation
    isolated: Tensor | None  # which passages have no relevant query; None where there are no relevant queries


class _Relation(nn.Module):
    """``g * GAT`` of one relation, and its s."""

    def __init__(self, dimension: int, heads: int, weight: float) -> None:
        super().__init__()
        self.attention = BipartiteAttention(dimension, heads, shared=True, own=False, init="mean")
        self.gate = _Gate(2 * dimension, dimension)
        self.weight = nn.Parameter(torch.tensor(float(weight)))

    def forward(self, passages: Tensor, sources: Tensor | Sources, edges: CSR) -> Tensor:
        if isinstance(sources, Tensor) and self.is_mean():
            aggregated = mean_of_sources(sources, edges)
        else:
            aggregated = self.attention(passages, sources, edges)
        return aggregated if self.gate.is_one() else self.gate(aggregated, passages) * aggregated

    def is_mean(self) -> bool:
        """Whether attention is the plain mean, as at the start, and nothing is learned: the mean is then computed."""
        weight = self.attention.source.weight
        return _unused(self.attention.attention) and _unused(weight - torch.eye(len(weight), device=weight.device))


class _Gate(nn.Linear):
    """Between 0 and 2, and 1 at the start."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, *vectors: Tensor) -> Tensor:
        return 2 * super().forward(torch.cat(vectors, 1)).sigmoid()

    def is_one(self) -> bool:
        """Whether the gate is 1, as at the start, and nothing is learned."""
        return _unused(self.weight) and _unused(self.bias)


def _unused(weight: Tensor) -> bool:
    """Whether a weight is 0, and no gradient of it is wanted."""
    return not torch.is_grad_enabled() and not bool(weight.any())


def shortest(number: Tensor) -> float:
    """A 32-bit number with as few decimals as tell it from others: 0.7, not 0.699999988."""
    return float(str(number.detach().cpu().numpy()))


def in_batch_loss(queries: Tensor, passages: Tensor, positives: Tensor, *, scale: float = 1.0) -> Tensor:
    """Eq. 2 over a batch (Eq. 12; Eq. 11 of 000): the cross-entropy of each query's positive among all passages.

    The loss is the mean over queries (the papers: the sum) of E_Q(q), shape (queries, d), and of h'_p, each passage
    once, shape (passages, d). Several queries may have the row of the same positive; ``scale`` is the inverse of a
    temperature, which the papers do not have.
    """
    with full_precision(queries):
        dtype = torch.promote_types(torch.promote_types(queries.dtype, passages.dtype), torch.float32)
        return functional.cross_entropy(scale * queries.to(dtype) @ passages.to(dtype).T, positives)
