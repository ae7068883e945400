r"""GNN-encoders: passage vectors that aggregate from queries, and from other neighbors of a passage.

J. Liu, J. Liu, Y. Yang, J. Wang, W. Wu, D. Zhao, R. Yan: GNN-encoder: Learning a dual-encoder architecture via graph
neural networks for passage retrieval. Findings of EMNLP 2022 ("001"), and its first version, arXiv 2204.08241 ("000").
"Eq. n" below are those of 001; Eq. 3-10 have the same numbers in 000, where they have no edge features.

:class:`BipartiteAttention`, GAT in the equations below, is graph attention from the nodes of one side of a bipartite
graph to those of the other. For target i, its sources :math:`N_i`, edge features :math:`h_{ij}`, and one head:

.. math::

    e_{ij} &= a^\top [W_t h_i \,\|\, W_s h_j \,\|\, W_e h_{ij}] \qquad &(3) \\
    \alpha_{ij} &= \frac{\exp(\mathrm{LeakyReLU}(e_{ij}))}{\sum_{k \in N_i} \exp(\mathrm{LeakyReLU}(e_{ik}))} &(4) \\
    \tilde h_i &= \sum_{j \in N_i} \alpha_{ij} W_s h_j &(5)

The numbers of a node in the logits are computed once. The weighted sum over the sources is one product of a sparse and
a dense matrix per head. Tests compare it with PyG's GATConv. Softmax and sums over many sources need full precision.

Edges are a :class:`~pyterrier_graph.graphs.csr.CSR` of tensors with a row per target and the rows of its sources as
elements, in any order. ``data["features"]`` are the features of the edges, shape (edges, d_e); those of a target's edge
to itself are 0.

:class:`PaperGNNEncoderNetwork`, with queries q, passages p, and vectors of d dimensions:

.. math::

    \tilde h_q &= \mathrm{GAT}(h_q, \{h_p : p \in N_q\}) \qquad &(6) \\
    h'_q &= W_{pq} [\tilde h_q \,\|\, h_q] + b_{pq} &(7) \\
    \tilde h_p &= \mathrm{GAT}(h_p, \{h'_q : q \in N_p\}) &(8) \\
    f_p &= \sigma(W_{qp} [\tilde h_p \,\|\, h_p] + b_{qp}) &(9) \\
    h'_p &= f_p \odot \tilde h_p + h_p &(10)

:class:`GNNEncoderNetwork`, the project's own, which starts as :class:`~pyterrier_graph.graph_mean.equations.FixedMean`:

.. math::

    h'_p = \frac{z_p}{|z_p|}, \qquad
    z_p = x_p + g_0 \odot W_0 x_p + \sum_r s_r\, g_r \odot \mathrm{GAT}_r(x_p, \{x_s : s \in N_r(p)\})

with gates :math:`g_r = 2 \sigma(W [\mathrm{GAT}_r \,\|\, x_p] + b)` and :math:`g_0 = 2 \sigma(W x_p + b)`.

:class:`GNNEncoderSideBySide` has the terms of this sum in the places of the passage and the means of
:class:`~pyterrier_graph.graph_mean.equations.SideBySide`, so that each query has weights of its own:

.. math::

    h'_p = [y_p; a_{1,p}; a_{2,p}; \dots], \qquad
    y_p = x_p + g_0 \odot W_0 x_p, \qquad
    a_{r,p} = \left(|y_p| - y_p \cdot \hat m_{r,p}\right) \hat m_{r,p}, \qquad
    m_{r,p} = g_r \odot \mathrm{GAT}_r

All learn by the in-batch loss :func:`in_batch_loss` (Eq. 2 and 12).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import pydantic
import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from pyterrier_graph.configuration import STRICT, RelationWeights
from pyterrier_graph.encoders.checkpoints import full_precision
from pyterrier_graph.graph_mean.equations import (
    FixedMean,
    Parts,
    PassageNetwork,
    SideBySide,
    Terms,
    equal_shares,
    mean_of_sources,
    weighted_sum,
)
from pyterrier_graph.graph_mean.neighbors import FEATURES, NeighborBatch
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.relations import RELEVANT, RETRIEVED

if TYPE_CHECKING:
    from pyterrier_graph.graph_mean.graph_mean import GraphMean

# fields of a configuration that the network has as parameters, and those that its parameters depend on
NUMBERS, SEED = ("weights", "isolated_norm"), "seed"
SLOPE = 0.2
Init = Literal["random", "mean"]


@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
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
        average: beta of h + beta * mean of the queries' own vectors, in place of the whole network (000, Sect. 5.4,
            "GNN or average?"); 0, with ``edges=False``, is "w/o GNN"; None is the network.
        edges: Whether passages aggregate at all: see :class:`GNNEncoderConfig`.
        seed: Seed of the first weights.
    """

    heads: PositiveInt = 4
    layers: Literal[1, 2] = 2
    gate: Literal["filter"] | float = "filter"
    edge_features: PositiveInt | None = None
    shared_weights: bool = False
    average: float | None = None
    edges: bool = True
    seed: NonNegativeInt = 0

    def __post_init__(self) -> None:
        if self.shared_weights and self.edge_features:
            raise ValueError("shared_weights leaves no W_e for edge features")


@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
class GNNEncoderConfig:
    """Shape of the project's own network, which starts as a GraphMean; :meth:`paper` is the papers' network.

    Attributes:
        weights: Fixed weights to start with, by relation: ``{'title': 1.0, 'relevant': 0.5}``. None gives each query
            weights of its own, and takes the relations of :class:`~pyterrier_graph.GraphMean` for the graphs.
        heads: Attention heads, which divide the dimensions.
        isolated_norm: Length of the vector of a passage without a relevant query, where other passages have some.
        edges: Whether passages aggregate at all. The same network without edges has as many parameters: comparing the
            two separates the effect of the graph from that of a projection.
        seed: Seed of the first weights.
        per_query: Whether each query has weights of its own, as with GraphMean's ``weights='auto'``: a
            :class:`GNNEncoderSideBySide`, for which ``weights`` are the largest ones. Else weights are fixed: a
            :class:`GNNEncoderNetwork`, and so without edges. None: where no ``weights`` are given.
    """

    weights: RelationWeights | None = None
    heads: PositiveInt = 4
    isolated_norm: PositiveFloat = 1.0
    edges: bool = True
    seed: NonNegativeInt = 0
    per_query: bool | None = None

    def __post_init__(self) -> None:
        if self.per_query is None:
            object.__setattr__(self, "per_query", self.weights is None)

    @classmethod
    def starting_at(cls, mean: GraphMean, **options: Any) -> GNNEncoderConfig:
        """The configuration of a network that starts as a GraphMean, with the numbers that its ``fit`` has found."""
        per_query = bool(mean.largest_weights)
        weights = mean.largest_weights if per_query else mean.fixed_weights
        return cls(weights, isolated_norm=mean.isolated_norm, per_query=per_query, **options)

    @staticmethod
    def paper(**ablations: Any) -> PaperGNNEncoderConfig:
        """The papers' network (Liu et al. 2022), or an ablation of it: ``layers=1``, ``gate=0.2``.

        The fields are those of :class:`PaperGNNEncoderConfig`.
        """
        return PaperGNNEncoderConfig(**ablations)


class Weights(NamedTuple):
    """alpha of Eq. 4: how much each target attends to each source. The weights of a target add up to 1 per head."""

    edges: Tensor  # to the sources, in the order of CSR.indices, shape (edges, heads)
    own: Tensor  # to the target's own vector, shape (targets, heads); 0 in a layer without it


class BipartiteAttention(nn.Module):
    """One GAT layer, of paper 001 (separate W_t, W_s, W_e) or 000 (one W); without the optional activation of Eq. 5.

    With several heads, W_s h is cut into parts of d / heads dimensions, each with attention of its own.
    ``edge_features`` is d_e. With ``shared``, W_t is W_s; with ``own``, a target is one more source for itself.
    ``init='random'`` is Glorot, as in PyG's GATConv; with ``'mean'``, W_s is the identity and a is 0, so that the
    untrained layer is the plain mean of the sources.
    """

    def __init__(
        self,
        dimension: int,
        heads: int = 1,
        *,
        edge_features: int | None = None,
        shared: bool = False,
        own: bool = True,
        init: Init = "random",
    ) -> None:
        super().__init__()
        if heads < 1 or dimension < 1 or dimension % heads:
            raise ValueError(
                f"heads must divide the dimensions, got {heads} heads and {dimension} dimensions"
            )
        self.dimension, self.heads, self.own = dimension, heads, own
        self.source = nn.Linear(dimension, dimension, bias=False)  # W_s
        self.target = None if shared else nn.Linear(dimension, dimension, bias=False)  # W_t
        self.edge = (
            nn.Linear(edge_features, dimension, bias=False) if edge_features else None
        )  # W_e
        # a, in the parts of Eq. 3: target, source and, with edge features, edge
        self.attention = nn.Parameter(
            torch.zeros(3 if edge_features else 2, heads, dimension // heads)
        )
        for linear in (self.source, self.target, self.edge):
            if linear is not None:
                nn.init.xavier_uniform_(linear.weight)
        if init == "mean":
            nn.init.eye_(self.source.weight)
        else:
            for part in self.attention:
                nn.init.xavier_uniform_(part)

    def weights(self, targets: Tensor, sources: Tensor, edges: CSR) -> Weights:
        """Eq. 3 and 4: attention to each source and to the target's own vector; arguments as for :meth:`forward`."""
        with full_precision(targets):
            targets, sources = (
                vectors.to(self.source.weight.dtype) for vectors in (targets, sources)
            )
            by_target, by_source = (
                self._logits(targets, 0, self.target or self.source),
                self._logits(sources, 1),
            )
            logits = by_target.index_select(0, edges.row_index) + by_source.index_select(
                0, edges.indices
            )  # Eq. 3
            own = by_target + self._logits(targets, 1) if self.own else None
            if self.edge is not None and FEATURES in edges.data:
                logits = logits + self._logits(edges.data[FEATURES].to(logits.dtype), 2, self.edge)
            return _softmax(logits, own, edges)

    def forward(self, targets: Tensor, sources: Tensor, edges: CSR) -> Tensor:
        """Eq. 3-5, of h_t, shape (targets, d), and h_s, shape (sources, d).

        The output has shape (targets, d); it is 0 for a target without sources in a layer without ``own``.
        """
        weights = self.weights(targets, sources, edges)
        with full_precision(targets):
            targets, sources = (
                vectors.to(self.source.weight.dtype) for vectors in (targets, sources)
            )
            parts = []
            for head, projection in enumerate(self.source.weight.chunk(self.heads)):
                total = weighted_sum(weights.edges[:, head], sources @ projection.T, edges)
                if self.own:
                    total = torch.addcmul(total, weights.own[:, head, None], targets @ projection.T)
                parts.append(total)
            return torch.cat(parts, 1)  # Eq. 5

    def terms(self, targets: Tensor, sources: Tensor, edges: CSR) -> tuple[Tensor, Tensor]:
        """The terms of Eq. 5: from each source, shape (edges, d), and from the target's own vector, (targets, d)."""
        weights = self.weights(targets, sources, edges)
        from_sources, own = (
            self.source(part).unflatten(1, (self.heads, -1)) for part in (sources, targets)
        )
        from_sources = (
            weights.edges[:, :, None] * from_sources[edges.indices]
        )  # (edges, heads, d / heads)
        return from_sources.flatten(1), (weights.own[:, :, None] * own).flatten(1)

    def _logits(self, vectors: Tensor, part: int, linear: nn.Linear | None = None) -> Tensor:
        """``a W h``, with a and W multiplied first; shape (rows, heads)."""
        weight = (linear or self.source).weight.unflatten(0, (self.heads, -1))
        return vectors @ torch.einsum("hc,hcd->dh", self.attention[part], weight)


def _softmax(logits: Tensor, own: Tensor | None, edges: CSR) -> Weights:
    """LeakyReLU, then Eq. 4 over each target's edges, and over its own logits where given."""
    logits = functional.leaky_relu(logits, SLOPE)
    largest = torch.segment_reduce(logits.detach(), "max", offsets=edges.indptr, axis=0)
    if own is not None:
        own = functional.leaky_relu(own, SLOPE)
        largest = torch.maximum(largest, own.detach())
    logits = (logits - largest.index_select(0, edges.row_index)).exp()
    total = torch.segment_reduce(logits, "sum", offsets=edges.indptr, axis=0)
    if own is None:
        return Weights(logits / total.index_select(0, edges.row_index), torch.zeros_like(total))
    own = (own - largest).exp()
    total = total + own
    return Weights(logits / total.index_select(0, edges.row_index), own / total)


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
        network = config.average is None
        options: dict[str, Any] = {
            "edge_features": config.edge_features,
            "shared": config.shared_weights,
        }
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
        aggregated = self.query_layer(queries, passages, edges)  # Eq. 6
        return self.fusion(torch.cat([aggregated, queries], 1))  # Eq. 7

    def about(self) -> dict[str, Any]:
        """The shape of the network."""
        return _shape(self.config)

    def passage_states(
        self, passages: Tensor, sources: Mapping[str, Tensor], edges: Mapping[str, CSR]
    ) -> Tensor:
        """Eq. 8 to 10, or what the configuration has in their place."""
        queries = sources[RETRIEVED] if RETRIEVED in edges else passages[:0]
        rows = edges.get(RETRIEVED, CSR.empty(len(passages), passages.device))
        if self.passage_layer is None:
            return passages + cast(float, self.config.average) * mean_of_sources(queries, rows)
        aggregated = self.passage_layer(passages, queries, rows)  # Eq. 8
        return passages + self._gate(aggregated, passages) * aggregated  # Eq. 10

    def _gate(self, aggregated: Tensor, passages: Tensor) -> Tensor:
        """Eq. 9, or alpha."""
        if self.gate is None:
            return passages.new_full((1, 1), cast(float, self.config.gate))
        return self.gate(torch.cat([aggregated, passages], 1)).sigmoid()

    def parts(self, batch: NeighborBatch) -> Parts:
        """The terms of Eq. 8 behind the gate; the passage's own attention to itself counts as its own."""
        passages, rows = batch.passages, batch.edges.get(RETRIEVED)
        if rows is None:
            return Parts(self(batch)[0], {}, {})
        queries = self.sources(batch)[RETRIEVED]
        if self.passage_layer is None:
            share = equal_shares(rows)
            each = (
                cast(float, self.config.average) * share[:, None] * queries[rows.indices]
            )  # (edges, d)
            return Parts(passages[0], {RETRIEVED: each}, {RETRIEVED: share})
        gate = self._gate(
            self.passage_layer(passages, queries, rows), passages
        )  # (1, d), or (1, 1)
        from_queries, own = self.passage_layer.terms(passages, queries, rows)  # (edges, d), (1, d)
        weights = self.passage_layer.weights(passages, queries, rows).edges.mean(1)
        return Parts(
            (passages + gate * own)[0], {RETRIEVED: gate * from_queries}, {RETRIEVED: weights}
        )


class GNNEncoderNetwork(FixedMean):
    """A passage's own vector, and a message along each relation, on separate paths.

    GAT_r is graph attention over the sources alone, so that a message never takes the place of the vector. The gates
    are vectors, the weight s_r is a number. Sources are any vectors of the same space: queries ('retrieved' and
    'relevant'), titles, passages.

    The untrained network is mean aggregation, ``normalize(x + sum of s_r * mean of the sources of r)``, exactly: W_0 is
    0, the W_s of attention the identity, its a 0, and all gates are 1. A relation that starts with s_r = 0 adds
    nothing, and can learn. Without edges the network is an adapter, ``normalize(x + g_0 * W_0 x)``.

    ``isolated_norm`` (see :class:`~pyterrier_graph.graph_mean.equations.FixedMean`) is tuned, not learned, since most
    passages in the loss have relevant queries.
    """

    def __init__(self, config: GNNEncoderConfig, dimension: int) -> None:
        nn.Module.__init__(self)
        weights = config.weights or {}
        self.config, self.dimension, self.relations = config, dimension, tuple(weights)
        self.own = nn.Linear(dimension, dimension, bias=False)
        nn.init.zeros_(self.own.weight)
        self.own_gate = _Gate(dimension, dimension)
        modules = {
            name: _Relation(dimension, config.heads, weight) for name, weight in weights.items()
        }
        self.relation = cast(Mapping[str, _Relation], nn.ModuleDict(modules))
        self.register_buffer("isolated_norm", torch.tensor(float(config.isolated_norm)))

    def about(self) -> dict[str, Any]:
        """The shape of the network; weights and ``isolated_norm`` are among its numbers."""
        return _shape(self.config)

    def terms(
        self, passages: Tensor, sources: Mapping[str, Tensor], edges: Mapping[str, CSR]
    ) -> Terms:
        """``x + g_0 * W_0 x`` and ``g_r * GAT_r``, which the weights s_r are applied to."""
        own = passages + self.own_gate(passages) * self.own(passages)
        messages = {
            name: self.relation[name](passages, sources[name], rows) for name, rows in edges.items()
        }
        return Terms(own, messages, edges[RELEVANT].lengths == 0 if RELEVANT in edges else None)

    def shares(
        self, name: str, passages: Tensor, sources: Tensor, edges: CSR
    ) -> tuple[Tensor, Tensor]:
        """Attention to each source, shape (edges,), and ``g_r`` times its term of GAT_r, shape (edges, d)."""
        relation = self.relation[name]
        gate = relation.gate(relation.attention(passages, sources, edges), passages)  # (1, d)
        weights = relation.attention.weights(passages, sources, edges).edges.mean(1)
        return weights, gate * relation.attention.terms(passages, sources, edges)[0]

    @property
    def factors(self) -> dict[str, Tensor]:  # type: ignore[override]
        """s_r, by relation, as parameters."""
        return {name: relation.weight for name, relation in self.relation.items()}

    @property
    def weights(self) -> dict[str, float]:
        """s_r, by relation."""
        return {name: shortest(relation.weight) for name, relation in self.relation.items()}

    def scalars(self) -> list[nn.Parameter]:
        """The weights s_r."""
        return [relation.weight for relation in self.relation.values()]


class GNNEncoderSideBySide(GNNEncoderNetwork, SideBySide):
    """A block for the passage and one for each relation, whose weights s_r are the largest ones of a query.

    The weights of a query are GraphMean's: they depend on the sources, and not on what the network has learned.
    """

    def __init__(self, config: GNNEncoderConfig, dimension: int) -> None:
        super().__init__(config, dimension)
        for scalar in self.scalars():
            scalar.requires_grad_(False)  # they are not part of the vectors


class _Relation(nn.Module):
    """``g * GAT`` of one relation, and its s."""

    def __init__(self, dimension: int, heads: int, weight: float) -> None:
        super().__init__()
        self.attention = BipartiteAttention(dimension, heads, shared=True, own=False, init="mean")
        self.gate = _Gate(2 * dimension, dimension)
        self.weight = nn.Parameter(torch.tensor(float(weight)))

    def forward(self, passages: Tensor, sources: Tensor, edges: CSR) -> Tensor:
        aggregated = self.attention(passages, sources, edges)
        return self.gate(aggregated, passages) * aggregated


class _Gate(nn.Linear):
    """Between 0 and 2, and 1 at the start."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, *vectors: Tensor) -> Tensor:
        return 2 * super().forward(torch.cat(vectors, 1)).sigmoid()


def _shape(config: Any) -> dict[str, Any]:
    """A configuration without the numbers that are parameters."""
    return {name: value for name, value in asdict(config).items() if name not in (*NUMBERS, SEED)}


def shortest(number: Tensor) -> float:
    """A 32-bit number with as few decimals as tell it from others: 0.7, not 0.699999988."""
    return float(str(number.detach().cpu().numpy()))


def in_batch_loss(
    queries: Tensor, passages: Tensor, positives: Tensor, *, scale: float = 1.0
) -> Tensor:
    r"""Eq. 2 over a batch (Eq. 12; Eq. 11 of 000): the cross-entropy of each query's positive among all passages.

    .. math::

        L = -\frac{1}{n} \sum_{i=1}^{n} \log
            \frac{\exp(t\, E_Q(q_i) \cdot h'_{p_i^+})}{\sum_p \exp(t\, E_Q(q_i) \cdot h'_p)}

    It needs one relevant passage per query; all other passages of the batch are negatives. The papers have the sum over
    queries, and no factor t. Queries :math:`E_Q(q)` have the shape (queries, d), and passages :math:`h'_p`, each once,
    (passages, d). ``positives`` are the rows of the positives, several of which may be the same. ``scale`` is t, the
    inverse of a temperature: 1 for dot products, 20 for vectors of length 1.
    """
    with full_precision(queries):
        dtype = torch.promote_types(
            torch.promote_types(queries.dtype, passages.dtype), torch.float32
        )
        scores = scale * queries.to(dtype) @ passages.to(dtype).T  # (queries, passages)
        return functional.cross_entropy(scores, positives)
