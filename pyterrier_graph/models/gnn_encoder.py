"""GNN-encoders: passage vectors that have listened to queries, and whatever else a passage is linked to.

J. Liu, J. Liu, Y. Yang, J. Wang, W. Wu, D. Zhao, R. Yan: GNN-encoder: Learning a dual-encoder architecture via graph
neural networks for passage retrieval. Findings of EMNLP 2022 ("001"), and its first version, arXiv 2204.08241 ("000").
"Eq. n" below are those of 001; Eq. 3-10 have the same numbers in 000, where they have no edge features.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from pyterrier_graph.models.bipartite_attention import (
    CSR,
    BipartiteAttention,
    Sources,
    in_chunks,
    mean_of_sources,
)

RETRIEVED = "retrieved"
RELEVANT = "relevant"


@dataclass(frozen=True)
class PaperGNNEncoderConfig:
    """Shape of a :class:`PaperGNNEncoderNetwork`. The defaults are 001's, without edge features.

    Attributes:
        dimension: d, length of a vector.
        heads: Attention heads, which divide d. (001 has several, and does not say how many.)
        layers: 2, or 1: passages hear the queries' own vectors, neither aggregated nor fused (Table 3, "w/ one layer").
        gate: ``'filter'`` (Eq. 9-10), or a constant alpha in its place: h' = alpha * aggregated + h.
        edge_features: d_e, length of an edge's features, or None for none.
        shared_weights: One W per GAT layer (000) instead of W_t, W_s and W_e (001).
        gnn: Whether there is a network at all; if not, passages are what they were ("w/o GNN").
        average: beta of h + beta * mean of the queries' own vectors, in the place of the whole network (000, Sect. 5.4,
            "GNN or average?"); None for the network.

    Raises:
        ValueError: If an option is out of range, or two of them contradict each other.
    """

    dimension: int
    heads: int = 4
    layers: Literal[1, 2] = 2
    gate: Literal["filter"] | float = "filter"
    edge_features: int | None = None
    shared_weights: bool = False
    gnn: bool = True
    average: float | None = None

    def __post_init__(self) -> None:
        _check_shape(self.dimension, self.heads)
        if self.layers not in (1, 2):
            raise ValueError(f"layers must be 1 or 2, got {self.layers}")
        if isinstance(self.gate, str) and self.gate != "filter":
            raise ValueError(f"gate must be 'filter' or a number, got {self.gate!r}")
        if self.edge_features is not None and self.edge_features < 1:
            raise ValueError(f"edge_features must be positive, or None for none, got {self.edge_features}")
        if self.shared_weights and self.edge_features:
            raise ValueError("shared_weights leaves no W_e for edge features")
        if not self.gnn and self.average is not None:
            raise ValueError("gnn=False leaves passages as they are, so there is no average either")

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class GNNEncoderConfig:
    """Shape of a :class:`GNNEncoderNetwork`.

    Attributes:
        dimension: d, length of a vector.
        channels: Types of edges, each with the weight that it starts with: ``{'relevant': beta, 'retrieved': 0.0}`` is the
            rule ``x + beta * mean of the known queries``, for a beta tuned beforehand.
        heads: Attention heads, which divide d.
        isolated_norm: Length of a passage's vector that hears no known query, where others hear some.

    Raises:
        ValueError: If there is no channel, the heads do not divide the dimensions, or the length is not positive.
    """

    dimension: int
    channels: Mapping[str, float]
    heads: int = 4
    isolated_norm: float = 1.0

    def __post_init__(self) -> None:
        _check_shape(self.dimension, self.heads)
        if not 0 < self.isolated_norm < math.inf:
            raise ValueError(f"isolated_norm must be positive, got {self.isolated_norm}")
        object.__setattr__(self, "channels", dict(self.channels))
        if not self.channels:
            raise ValueError("channels must name at least one type of edges, with its first weight")

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Neighborhood:
    """Some passages, and what they hear.

    Attributes:
        passages: h_p, shape (passages, d).
        sources: Per channel what passages hear, shape (sources, d): h_q of queries, not yet h'_q.
        edges: Per channel, for each passage its sources.
        heard: h_p of what queries hear, shape (other passages, d); None where :attr:`PassageNetwork.two_hops` is False.
        to_queries: For each query its passages among ``heard``.
    """

    passages: Tensor
    sources: Mapping[str, Tensor]
    edges: Mapping[str, CSR]
    heard: Tensor | None = None
    to_queries: CSR | None = None

    def to(self, device: torch.device | str) -> Neighborhood:
        """Moves the tensors."""
        heard, to_queries = self.heard, self.to_queries
        return Neighborhood(
            self.passages.to(device),
            {name: vectors.to(device) for name, vectors in self.sources.items()},
            {name: edges.to(device) for name, edges in self.edges.items()},
            None if heard is None else heard.to(device),
            None if to_queries is None else to_queries.to(device),
        )


class Attended(NamedTuple):
    """How much passages hear through a channel.

    Attributes:
        edges: Attention to each source, the mean over heads, in the order of the channel's edges, shape (edges,).
        gate: By what the sum over the sources is multiplied, the mean over dimensions, shape (passages,).
    """

    edges: Tensor
    gate: Tensor


class PassageNetwork(nn.Module, ABC):
    """What both networks have in common, so that whoever fuses a corpus or trains need not know which it is.

    A corpus is fused layer by layer: :meth:`query_states` of all queries once, :meth:`prepare` once, then
    :meth:`passage_states` of as many passages at a time as one likes. Training calls the network with some passages and
    all that they hear.

    Attributes:
        channels: Names of the types of edges, which are the keys of ``sources`` and ``edges``.
        two_hops: Whether queries hear passages, before passages hear queries.
        normalizes: Whether what comes out has unit length, or nearly.
    """

    channels: tuple[str, ...]
    two_hops = False
    normalizes = False

    def forward(self, neighborhood: Neighborhood) -> Tensor:
        """h'_p, shape (passages, d)."""
        sources, heard, to_queries = neighborhood.sources, neighborhood.heard, neighborhood.to_queries
        if heard is not None and to_queries is not None:
            sources = {**sources, RETRIEVED: self.query_states(sources[RETRIEVED], heard, to_queries)}
        return self.passage_states(neighborhood.passages, sources, neighborhood.edges)

    @abstractmethod
    def attended(self, neighborhood: Neighborhood) -> dict[str, Attended]:
        """How much passages hear of each source, by channel; channels without edges are left out."""

    def query_states(
        self, queries: Tensor, passages: Tensor, edges: CSR, *, targets_at_once: int | None = None
    ) -> Tensor:
        """What queries are after they have heard passages: here, what they were.

        Args:
            queries: h_q, shape (queries, d).
            passages: h_p, shape (passages, d).
            edges: For each query its passages.
            targets_at_once: Queries at a time, for inference; see
                :func:`~pyterrier_graph.models.bipartite_attention.in_chunks`.

        Returns:
            h'_q, shape (queries, d).
        """
        return queries

    @abstractmethod
    def prepare(self, sources: Mapping[str, Tensor | Sources]) -> dict[str, Tensor | Sources]:
        """Makes sources ready for many calls of :meth:`passage_states`, each of which otherwise does it.

        Args:
            sources: Per channel what passages hear, shape (sources, d).

        Raises:
            KeyError: If a channel is unknown.
        """

    @abstractmethod
    def passage_states(
        self,
        passages: Tensor,
        sources: Mapping[str, Tensor | Sources],
        edges: Mapping[str, CSR],
        *,
        targets_at_once: int | None = None,
    ) -> Tensor:
        """What passages are after they have heard their sources.

        Args:
            passages: h_p, shape (passages, d).
            sources: Per channel, the output of :meth:`query_states` or other vectors, or what :meth:`prepare` made of
                them.
            edges: Per channel, for each passage its sources. A channel that is left out has no edges.
            targets_at_once: As for :meth:`query_states`.

        Returns:
            h'_p, shape (passages, d).

        Raises:
            KeyError: If a channel is unknown, or has edges but no sources.
            ValueError: If shapes do not fit.
        """

    def scalars(self) -> list[nn.Parameter]:
        """Single numbers, which have a long way to go and may need a learning rate of their own."""
        return []

    def _check_channels(self, by_channel: Mapping[str, Any]) -> None:
        if by_channel.keys() - set(self.channels):
            raise KeyError(f"channels must be among {', '.join(self.channels)}, got {', '.join(by_channel)}")

    def _check_edges(self, passages: Tensor, sources: Mapping[str, Any], edges: Mapping[str, CSR]) -> None:
        self._check_channels(edges)
        for channel, lists in edges.items():
            if channel not in sources:
                raise KeyError(f"channel {channel} has edges, but no sources; there are sources of {list(sources)}")
            _check_rows("passages", passages, lists)


class PaperGNNEncoderNetwork(PassageNetwork):
    """The papers' network: passages to queries (Eq. 6, 7), queries to passages (Eq. 8), then the gate (Eq. 9, 10).

    Its one channel is ``'retrieved'``. Without edges it still has all its parameters: a passage then hears itself only,
    which is the control that tells what the graph does from what a projection does.

    Readings: the two GAT layers have weights of their own; Eq. 5's optional activation is left out; heads are
    concatenated; similarities of what comes out are dot products, as Eq. 11 has them.
    """

    channels = (RETRIEVED,)

    def __init__(self, config: PaperGNNEncoderConfig) -> None:
        super().__init__()
        self.config = config
        size = config.dimension
        network = config.gnn and config.average is None
        layer = partial(
            BipartiteAttention, size, config.heads, edge_features=config.edge_features, shared=config.shared_weights
        )
        two = network and config.layers == 2
        self.query_layer = layer() if two else None
        self.fusion = nn.Linear(2 * size, size) if two else None  # W_pq, b_pq
        self.two_hops = two
        self.passage_layer = layer() if network else None
        self.gate = nn.Linear(2 * size, size) if network and config.gate == "filter" else None  # W_qp, b_qp

    def query_states(
        self, queries: Tensor, passages: Tensor, edges: CSR, *, targets_at_once: int | None = None
    ) -> Tensor:
        """Eq. 6 and 7; with one layer or none, the queries as they are. See :meth:`PassageNetwork.query_states`."""
        if self.query_layer is None or self.fusion is None:
            return queries
        _check_rows("queries", queries, edges)
        layer, fusion = self.query_layer, self.fusion
        sources = layer.prepare(passages, len(edges.indices))

        def fused(part: slice) -> Tensor:
            own = queries[part]
            return fusion(torch.cat([layer(own, sources, edges.rows(part)), own], 1))  # Eq. 6, 7

        return in_chunks(fused, queries, targets_at_once)

    def prepare(self, sources: Mapping[str, Tensor | Sources]) -> dict[str, Tensor | Sources]:
        """See :meth:`PassageNetwork.prepare`."""
        self._check_channels(sources)
        layer = self.passage_layer
        return dict(sources) if layer is None else {name: layer.prepare(given) for name, given in sources.items()}

    def passage_states(
        self,
        passages: Tensor,
        sources: Mapping[str, Tensor | Sources],
        edges: Mapping[str, CSR],
        *,
        targets_at_once: int | None = None,
    ) -> Tensor:
        """Eq. 8 to 10, or what the configuration has in their place. See :meth:`PassageNetwork.passage_states`."""
        self._check_edges(passages, sources, edges)
        nobody = passages.new_empty(0, self.config.dimension)
        queries = self.prepare({RETRIEVED: nobody, **sources})[RETRIEVED]
        lists = edges.get(RETRIEVED, CSR.empty(len(passages), passages.device))
        return in_chunks(
            lambda part: self._interactive(passages[part], queries, lists.rows(part)), passages, targets_at_once
        )

    def _interactive(self, passages: Tensor, queries: Tensor | Sources, edges: CSR) -> Tensor:
        if self.config.average is not None:
            return passages + self.config.average * mean_of_sources(cast(Tensor, queries), edges)
        if self.passage_layer is None:
            return passages
        heard = self.passage_layer(passages, queries, edges)  # Eq. 8
        if self.gate is None:
            return passages + cast(float, self.config.gate) * heard
        return passages + self.gate(torch.cat([heard, passages], 1)).sigmoid() * heard  # Eq. 9, 10

    def attended(self, neighborhood: Neighborhood) -> dict[str, Attended]:
        """See :meth:`PassageNetwork.attended`; what is missing to 1 is attention to the passage itself."""
        passages, heard, to_queries = neighborhood.passages, neighborhood.heard, neighborhood.to_queries
        if RETRIEVED not in neighborhood.edges:
            return {}
        lists, ones = neighborhood.edges[RETRIEVED], passages.new_ones(len(passages))
        if self.config.average is not None:
            share = 1 / lists.indptr.diff().clamp(min=1).to(passages.dtype)
            return {RETRIEVED: Attended(share[lists.owner], self.config.average * ones)}
        if self.passage_layer is None:
            return {}
        queries = neighborhood.sources[RETRIEVED]
        if heard is not None and to_queries is not None:
            queries = self.query_states(queries, heard, to_queries)
        weights = self.passage_layer.weights(passages, queries, lists)
        if self.gate is None:
            gate = cast(float, self.config.gate) * ones
        else:
            aggregated = self.passage_layer(passages, queries, lists)
            gate = self.gate(torch.cat([aggregated, passages], 1)).sigmoid().mean(1)  # Eq. 9
        return {RETRIEVED: Attended(weights.edges.mean(1), gate)}


class GNNEncoderNetwork(PassageNetwork):
    """A passage's own vector, and what it hears through each type of edges, on separate paths.

    ``normalize(x + g_0 * W_0 x + sum over channels c of s_c g_c * GAT_c)``. GAT_c is graph attention over the sources
    alone, so that a message never takes the place of the vector. The gates are vectors,
    ``g_c = 2 sigmoid(W [GAT_c || x] + b)`` and ``g_0 = 2 sigmoid(W x + b)``; s_c is a number.

    It starts at the simple rule ``normalize(x + sum of s_c * mean of c's sources)``, exactly: W_0 is 0, the W_s of
    attention the identity, its a 0, and all gates are 1. A channel that starts with s_c = 0 is silent, and can learn.
    Without edges it is the control: an adapter, ``normalize(x + g_0 * W_0 x)``, of the same parameters.

    Whoever hears a known query is found more easily, by near misses, too, and whoever hears none falls behind. So the
    vectors of those that hear none, where there are known queries at all, may be longer than 1 by the factor
    ``isolated_norm``: a number that is tuned, not learned, as most passages of a loss over known queries have some.

    Sources are any vectors of the same space: queries by ``'retrieved'`` and ``'relevant'`` (judged relevant), titles,
    neighboring passages, references.
    """

    normalizes = True
    isolated_norm: Tensor

    def __init__(self, config: GNNEncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.channels = tuple(config.channels)
        self.own = nn.Linear(config.dimension, config.dimension, bias=False)
        nn.init.zeros_(self.own.weight)
        self.own_gate = _Gate(config.dimension, config.dimension)
        modules = {name: _Channel(config.dimension, config.heads, weight) for name, weight in config.channels.items()}
        self.channel = cast(Mapping[str, _Channel], nn.ModuleDict(modules))
        self.register_buffer("isolated_norm", torch.tensor(float(config.isolated_norm)))

    def prepare(self, sources: Mapping[str, Tensor | Sources]) -> dict[str, Tensor | Sources]:
        """See :meth:`PassageNetwork.prepare`."""
        self._check_channels(sources)
        return {name: self.channel[name].attention.prepare(given) for name, given in sources.items()}

    def passage_states(
        self,
        passages: Tensor,
        sources: Mapping[str, Tensor | Sources],
        edges: Mapping[str, CSR],
        *,
        targets_at_once: int | None = None,
    ) -> Tensor:
        """Vectors of unit length, or ``isolated_norm``. See :meth:`PassageNetwork.passage_states`."""
        self._check_edges(passages, sources, edges)
        ready = self.prepare(sources)

        def interactive(part: slice) -> Tensor:
            lists = {name: every.rows(part) for name, every in edges.items()}
            return self.joined(self.paths(passages[part], ready, lists))

        return in_chunks(interactive, passages, targets_at_once)

    def paths(self, passages: Tensor, sources: Mapping[str, Tensor | Sources], edges: Mapping[str, CSR]) -> Paths:
        """What :meth:`joined` adds up: it stays the same while weights are tuned."""
        ready = self.prepare(sources)
        own = passages + self.own_gate(passages) * self.own(passages)
        heard = {
            name: channel(passages, ready[name], edges[name]) for name, channel in self.channel.items() if name in edges
        }
        return Paths(own, heard, edges[RELEVANT].indptr.diff() == 0 if RELEVANT in edges else None)

    def joined(self, paths: Paths) -> Tensor:
        """The passages, by the weights s_c."""
        states = paths.own
        for name, message in paths.heard.items():
            states = states + self.channel[name].weight * message
        states = functional.normalize(states, dim=1)
        return states if paths.alone is None else torch.where(paths.alone[:, None], self.isolated_norm * states, states)

    def attended(self, neighborhood: Neighborhood) -> dict[str, Attended]:
        """See :meth:`PassageNetwork.attended`; attention within a channel adds up to 1."""
        sources, edges = neighborhood.sources, neighborhood.edges
        return {
            name: channel.attended(neighborhood.passages, sources[name], edges[name])
            for name, channel in self.channel.items()
            if name in edges
        }

    @property
    def weights(self) -> dict[str, float]:
        """s_c, by channel."""
        return {name: round(float(channel.weight.detach()), 6) for name, channel in self.channel.items()}

    def scalars(self) -> list[nn.Parameter]:
        """The s_c."""
        return [channel.weight for channel in self.channel.values()]


class Paths(NamedTuple):
    """What a :class:`GNNEncoderNetwork` adds up.

    Attributes:
        own: ``x + g_0 * W_0 x``, shape (passages, d).
        heard: Per channel ``g_c * GAT_c``, of the same shape.
        alone: Which passages hear no known query, shape (passages,); None where there are no known queries.
    """

    own: Tensor
    heard: Mapping[str, Tensor]
    alone: Tensor | None


class _Channel(nn.Module):
    """``g * GAT`` of one type of edges, and its s."""

    def __init__(self, dimension: int, heads: int, weight: float) -> None:
        super().__init__()
        self.attention = BipartiteAttention(dimension, heads, shared=True, own=False, init="mean")
        self.gate = _Gate(2 * dimension, dimension)
        self.weight = nn.Parameter(torch.tensor(float(weight)))

    def forward(self, passages: Tensor, sources: Tensor | Sources, edges: CSR) -> Tensor:
        heard = self.attention(passages, sources, edges)
        return self.gate(torch.cat([heard, passages], 1)) * heard

    def attended(self, passages: Tensor, sources: Tensor, edges: CSR) -> Attended:
        weights = self.attention.weights(passages, sources, edges).edges.mean(1)
        heard = self.attention(passages, sources, edges)
        return Attended(weights, self.weight * self.gate(torch.cat([heard, passages], 1)).mean(1))


class _Gate(nn.Linear):
    """Between 0 and 2, and 1 at the start."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, vectors: Tensor) -> Tensor:
        return 2 * super().forward(vectors).sigmoid()


def in_batch_loss(queries: Tensor, passages: Tensor, positives: Tensor, *, scale: float = 1.0) -> Tensor:
    """Eq. 2 over a batch (Eq. 12; Eq. 11 of 000): each query ranks all passages of the batch, its positive being right.

    Unlike :func:`~pyterrier_graph.models.losses.pair_loss` with alpha = 0, several queries may have the same positive.

    Args:
        queries: E_Q(q), shape (queries, d).
        passages: h'_p of positives and negatives, each passage once, shape (passages, d).
        positives: Row of each query's positive, shape (queries,).
        scale: Factor of all similarities, the inverse of a temperature; the papers have none.

    Returns:
        The mean over queries (the papers: the sum), in 32 bits at least.
    """
    with torch.autocast(queries.device.type, enabled=False):
        dtype = torch.promote_types(torch.promote_types(queries.dtype, passages.dtype), torch.float32)
        return functional.cross_entropy(scale * queries.to(dtype) @ passages.to(dtype).T, positives)


def _check_shape(dimension: int, heads: int) -> None:
    if heads < 1 or dimension < 1 or dimension % heads:
        raise ValueError(f"heads must divide the dimensions, got {heads} heads and {dimension} dimensions")


def _check_rows(name: str, targets: Tensor, edges: CSR) -> None:
    if len(edges) != len(targets):
        raise ValueError(f"edges must have a row for each of the {len(targets)} {name}, got {len(edges)}")
