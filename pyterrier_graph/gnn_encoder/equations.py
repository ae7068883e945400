r"""The GNN-encoder's equations: graph attention, and the papers' network.

J. Liu, J. Liu, Y. Yang, J. Wang, W. Wu, D. Zhao, R. Yan: GNN-encoder: Learning a dual-encoder architecture via graph
neural networks for passage retrieval. Findings of EMNLP 2022 ("001"), and its first version, arXiv 2204.08241 ("000").
"Eq. n" refers to 001; Eq. 3-10 have the same numbers in 000, where they have no edge features.

:class:`BipartiteAttention`, GAT in the equations below, is graph attention from the nodes of one side of a bipartite
graph to the nodes of the other. For target i, its sources :math:`N_i`, edge features :math:`h_{ij}`, and one head:

.. math::

    e_{ij} &= a^\top [W_t h_i \,\|\, W_s h_j \,\|\, W_e h_{ij}] \qquad &(3) \\
    \alpha_{ij} &= \frac{\exp(\mathrm{LeakyReLU}(e_{ij}))}{\sum_{k \in N_i} \exp(\mathrm{LeakyReLU}(e_{ik}))} &(4) \\
    \tilde h_i &= \sum_{j \in N_i} \alpha_{ij} W_s h_j &(5)

:class:`PaperGNNEncoderNetwork`, with queries q, passages p, and vectors of d dimensions:

.. math::

    \tilde h_q &= \mathrm{GAT}(h_q, \{h_p : p \in N_q\}) \qquad &(6) \\
    h'_q &= W_{pq} [\tilde h_q \,\|\, h_q] + b_{pq} &(7) \\
    \tilde h_p &= \mathrm{GAT}(h_p, \{h'_q : q \in N_p\}) &(8) \\
    f_p &= \sigma(W_{qp} [\tilde h_p \,\|\, h_p] + b_{qp}) &(9) \\
    h'_p &= f_p \odot \tilde h_p + h_p &(10)

The papers write the union of the sources with the target itself in Eq. 6 and 8 (self-loops). Here the target is the
first argument of GAT, and one more source, with :math:`W_s h_i`, unless ``own=False``. The loss (Eq. 11, 12) is
:func:`~pyterrier_graph.pair.losses.in_batch_loss`.

As in PyTorch Geometric, ``edge_index``, shape (2, edges), has the row of each edge's source and of its target, and
``edge_attr``, shape (edges, d_e), the features of the edges. A target's edge to itself has the features 0.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pydantic
import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.utils import sort_edge_index

from pyterrier_graph.configuration import STRICT
from pyterrier_graph.encoders.checkpoints import full_precision
from pyterrier_graph.graph_mean.equations import (
    Pair,
    Parts,
    PassageNetwork,
    mean_of_sources,
    rows_of,
    weighted_sum,
)
from pyterrier_graph.graph_mean.neighbors import (
    CANDIDATE,
    PASSAGE,
    QUERY,
    SECOND_HOP,
    edge_type,
)
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.relations import RETRIEVED

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData

SLOPE = 0.2  # of LeakyReLU, as in GAT; the papers do not state it
TARGET, SOURCE, EDGE = 0, 1, 2  # the roles of vectors in Eq. 3, each with its own part of a


class Weights(NamedTuple):
    """Alpha of Eq. 4: how much targets attend to sources. The weights of a target add up to 1 per head."""

    edges: Tensor  # to the sources, shape (edges, heads)
    own: Tensor  # to the target's own vector, shape (targets, heads); 0 in a layer without it


class BipartiteAttention(nn.Module):
    """One GAT layer of paper 001 (separate W_t, W_s, W_e) or 000 (one W), without the optional activation of Eq. 5.

    It is called as PyTorch Geometric's ``GATConv``, and equals it, but is 4.5 times as fast between 50,000 passages and
    25,000 queries (``python -m experiments.costs attention --nodes 50000``): the numbers of a node in the logits are
    computed once, and the weighted sum is one product of a sparse and a dense matrix per head.

    Args:
        dimension: d.
        heads: Attention heads. Each has its own part of W_s h, of d / heads dimensions.
        edge_features: d_e, length of the features of edges; None for none.
        shared: Whether W_t is W_s.
        own: Whether a target is one more source for itself.

    Weights are drawn as in ``GATConv`` (Glorot).
    """

    def __init__(
        self,
        dimension: int,
        heads: int = 1,
        *,
        edge_features: int | None = None,
        shared: bool = False,
        own: bool = True,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.own = own
        linear = partial(nn.Linear, out_features=dimension, bias=False)
        self.source = linear(dimension)  # W_s
        self.target = None if shared else linear(dimension)  # W_t
        self.edge: Any = linear(edge_features) if edge_features else None  # W_e
        num_roles = 3 if edge_features else 2
        self.attention = nn.Parameter(torch.zeros(num_roles, heads, dimension // heads))  # a
        for layer in (self.source, self.target, self.edge):
            if layer is not None:
                nn.init.xavier_uniform_(layer.weight)
        for vectors in self.attention:
            nn.init.xavier_uniform_(vectors)

    def weights(self, x: Pair, edges: CSR, edge_attr: Tensor | None = None) -> Weights:
        """Eq. 3 and 4 of the edges of each target (:func:`~pyterrier_graph.graph_mean.equations.rows_of`)."""
        sources, targets = x
        of_targets = self._logits(targets, TARGET, self.target or self.source)  # (targets, heads)
        of_sources = self._logits(sources, SOURCE, self.source)  # (sources, heads)
        logits = of_targets.index_select(0, edges.row_index)
        logits = logits + of_sources.index_select(0, edges.indices)  # Eq. 3: (edges, heads)
        if edge_attr is not None:
            edge_attr = edge_attr.to(logits.dtype)
            logits = logits + self._logits(edge_attr, EDGE, self.edge)
        own = None
        if self.own:
            own = of_targets + self._logits(targets, SOURCE, self.source)  # (targets, heads)
        return _softmax(logits, own, edges)

    def forward(self, x: Pair, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        """Eq. 3-5 of ``x``: h_s, shape (sources, d), and h_t, shape (targets, d).

        The output has shape (targets, d); it is 0 for a target without sources in a layer without ``own``.
        """
        # attention over many sources needs full precision
        dtype = self.source.weight.dtype
        sources, targets = (vectors.to(dtype) for vectors in x)
        steps = edge_index[1].diff()
        if (steps < 0).any():
            edge_index, edge_attr = sort_edge_index(edge_index, edge_attr, sort_by_row=False)
        edges = rows_of(edge_index, len(targets))
        with full_precision(targets):
            weights = self.weights((sources, targets), edges, edge_attr)
            heads = []
            projections = self.source.weight.chunk(self.heads)  # W_s of each head, (d / heads, d)
            for head, projection in enumerate(projections):
                projected = sources @ projection.T  # (sources, d / heads)
                total = weighted_sum(weights.edges[:, head], projected, edges)
                if self.own:
                    own = weights.own[:, head, None]  # (targets, 1)
                    total = torch.addcmul(total, own, targets @ projection.T)
                heads.append(total)  # (targets, d / heads)
            return torch.cat(heads, 1)  # Eq. 5

    def terms(
        self, x: Pair, edge_index: Tensor, edge_attr: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The terms of Eq. 5, for edges that are sorted by target.

        Returns the attention to each source, the mean over heads, shape (edges,), and the terms of each source, shape
        (edges, d), and of each target itself, shape (targets, d).
        """
        sources, targets = x
        edges = rows_of(edge_index, len(targets))
        weights = self.weights(x, edges, edge_attr)
        attention = weights.edges.mean(1)  # (edges,)
        by_head = self.heads, -1  # shape (heads, d / heads)
        sources = self.source(sources).unflatten(1, by_head)  # (sources, heads, d / heads)
        targets = self.source(targets).unflatten(1, by_head)  # (targets, heads, d / heads)
        from_sources = weights.edges[:, :, None] * sources[edge_index[0]]
        to_itself = weights.own[:, :, None] * targets
        return attention, from_sources.flatten(1), to_itself.flatten(1)

    def _logits(self, vectors: Tensor, role: int, linear: nn.Linear) -> Tensor:
        """``a W h``, with a and W multiplied first, shape (rows, heads)."""
        weight = linear.weight.unflatten(0, (self.heads, -1))  # (heads, d / heads, d)
        combined = torch.einsum("hc,hcd->dh", self.attention[role], weight)  # (d, heads)
        return vectors @ combined


def _softmax(logits: Tensor, own: Tensor | None, edges: CSR) -> Weights:
    """LeakyReLU, then Eq. 4 over each target's edges, and over its own logits where given.

    ``logits`` have shape (edges, heads), and ``own`` has shape (targets, heads).
    """
    logits = functional.leaky_relu(logits, SLOPE)
    largest = torch.segment_reduce(logits.detach(), "max", offsets=edges.indptr, axis=0)
    if own is not None:
        own = functional.leaky_relu(own, SLOPE)
        largest = torch.maximum(largest, own.detach())
    largest_by_edge = largest.index_select(0, edges.row_index)
    exponentials = (logits - largest_by_edge).exp()  # (edges, heads)
    total = torch.segment_reduce(exponentials, "sum", offsets=edges.indptr, axis=0)
    own_share = torch.zeros_like(total)  # (targets, heads)
    if own is not None:
        own_exponential = (own - largest).exp()
        total = total + own_exponential
        own_share = own_exponential / total
    total_by_edge = total.index_select(0, edges.row_index)  # (edges, heads)
    return Weights(exponentials / total_by_edge, own_share)


@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
class PaperGNNEncoderConfig:
    """Shape of the papers' network; by default as in 001, without edge features.

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
        self.config: Any = config
        attends = config.average is None
        self.two_hops = attends and config.layers == 2
        self.edge_features = bool(config.edge_features)
        linear = partial(nn.Linear, 2 * dimension, dimension)
        layer = partial(
            BipartiteAttention,
            dimension,
            config.heads,
            edge_features=config.edge_features,
            shared=config.shared_weights,
        )
        has_filter = attends and config.gate == "filter"
        self.query_layer: Any = layer() if self.two_hops else None
        self.fusion: Any = linear() if self.two_hops else None  # W_pq, b_pq
        self.passage_layer: Any = layer() if attends else None
        self.gate: Any = linear() if has_filter else None  # W_qp, b_qp

    def query_states(self, batch: HeteroData) -> Tensor:
        """Eq. 6 and 7; with one layer, or if these are states already, the queries are unchanged."""
        queries = batch[QUERY].x
        if not self.two_hops or CANDIDATE not in batch.node_types:
            return queries
        edges = batch[SECOND_HOP]
        x = batch[CANDIDATE].x, queries
        aggregated = self.query_layer(x, edges.edge_index, edges.get("edge_attr"))  # Eq. 6
        return self.fusion(torch.cat([aggregated, queries], 1))  # Eq. 7

    def about(self) -> dict[str, Any]:
        """The configuration."""
        return asdict(self.config)

    def inputs(self, batch: HeteroData) -> tuple[Pair, Tensor, Tensor | None]:
        """The input of Eq. 8: queries, after they have aggregated, and passages; edges and their features."""
        passages = batch[PASSAGE].x
        if QUERY not in batch.node_types:
            no_edges = torch.empty(2, 0, dtype=torch.long, device=passages.device)
            return (passages[:0], passages), no_edges, None
        edges = batch[edge_type(RETRIEVED)]
        x = self.query_states(batch), passages
        return x, edges.edge_index, edges.get("edge_attr")

    def forward(self, batch: HeteroData) -> Tensor:
        """Eq. 8 to 10, or what the configuration has in their place, shape (passages, d)."""
        x, edge_index, edge_attr = self.inputs(batch)
        _, passages = x
        if self.passage_layer is None:
            return passages + self.config.average * mean_of_sources(x, edge_index)
        aggregated = self.passage_layer(x, edge_index, edge_attr)  # Eq. 8
        gate = self._gate(aggregated, passages)  # Eq. 9
        return passages + gate * aggregated  # Eq. 10

    def _gate(self, aggregated: Tensor, passages: Tensor) -> Tensor | float:
        """Eq. 9, or alpha."""
        if self.gate is None:
            return self.config.gate
        logits = self.gate(torch.cat([aggregated, passages], 1))
        return logits.sigmoid()

    def parts(self, batch: HeteroData) -> Parts:
        """The terms of Eq. 8 behind the gate; the passage's attention to itself counts as its own.

        The average in place of the network has none.
        """
        x, edge_index, edge_attr = self.inputs(batch)
        _, passages = x
        aggregated = self.passage_layer(x, edge_index, edge_attr)
        gate = self._gate(aggregated, passages)
        attention, terms, to_itself = self.passage_layer.terms(x, edge_index, edge_attr)
        own = passages + gate * to_itself  # (1, d)
        return Parts(own[0], {RETRIEVED: gate * terms}, {RETRIEVED: attention})
