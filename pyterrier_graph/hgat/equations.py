r"""Heterogeneous graph attention over passages.

L. Albarede, P. Mulhem, L. Goeuriot, S. Marié, C. Le Pape-Gardeux, T. Chardin-Segui:
Heterogeneous graph attention networks for passage retrieval. Information Retrieval Journal 26, 2023.
"Eq. n" and "Sect. n" refer to this paper.

A node :math:`i` has a matrix of token vectors :math:`h_i`, shape (tokens of i, d). :math:`\mathcal N_i^r` are its
neighbors along relation :math:`r`, and :math:`W_r`, shape (positions,), weights the relation at each token position. A
layer computes, for the passage ``tgt`` that is represented and for every other node ``i``:

.. math::

    &h_i' = \sum_r \text{softmax}(W)_r * \sum_{j \in \mathcal N_i^r} \text{MultiHead}_r(h_i, h_j, h_j)
        && (1)\ \text{BASE; tgt of NO}

    &h_i' = (1),\ j \neq tgt && (2)\ \text{other nodes of NO}

    &h_i' = (1 - \lambda) * \text{MultiHead}_{SELF}(h_i, h_i, h_i) + \lambda * \sum_{r \neq SELF} \ldots
        && (3)\ \text{LB}

    &h_i' = (3),\ j \neq tgt && (7)\ \text{other nodes of NO_LB}

    &h_{tgt}' = \sum_{r \neq SELF} \ldots && (8)\ \text{tgt of all NS variants}

and the score of a passage p, encoded as :math:`E_p` and represented as :math:`h_p`, for a query :math:`E_q` is

.. math::

    &\text{maxsim}(E_q, h_p) && (4)\ \text{standard framework}

    &(1 - \alpha) * \text{maxsim}(E_q, E_p) + \alpha * \text{maxsim}(E_q, h_p) && (5)\ \text{late framework}

with Eq. 6, the sum of :func:`~pyterrier_graph.graph_maxsim.graph_reranker.token_maxima`. :class:`NeighborMatches` is
not in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import pydantic
import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from pyterrier_graph.configuration import STRICT, DropoutRate, RelationWeights
from pyterrier_graph.encoders.checkpoints import full_precision
from pyterrier_graph.encoders.token_encoder import TokenStates
from pyterrier_graph.graph_maxsim.graph_reranker import (
    graph_maxima,
    neighbor_maxima,
    normalized,
    token_maxima,
)
from pyterrier_graph.graph_maxsim.reranker import TITLES_AND_NEIGHBORS
from pyterrier_graph.graphs.csr import ranges
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.graphs.relations import SELF
from pyterrier_graph.hgat.attention import (
    Edges,
    Hop,
    Propagation,
    attend_along_edges,
    layer_along_edges,
    plan_propagation,
)
from pyterrier_graph.training.layers import make_layer

Variant = Literal["BASE", "NO", "LB", "NS", "NO_LB", "NO_NS", "LB_NS", "NO_LB_NS"]

POSITION_FOCUS = 10.0
MAX_LOG_IMPORTANCE = 3.0  # of a query token
# titles, the next and previous passage, and the passages under the same title and under the title above
NEIGHBORHOOD = ("title", "title/title", "order", "order_i", "title/title_i", "title/title/title_i")


@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
class HGATConfig:
    """Shape of an :class:`HGAT`. By default it starts at :class:`~pyterrier_graph.GraphMaxSim` with default weights.

    :meth:`paper` returns the publication's shape.

    Attributes:
        variant: ``BASE``, or the modifications NO (No out), LB (Lambda) and NS (No self) of Table 1, joined by ``_``.
        framework: ``'standard'`` (Eq. 4) or ``'late'`` (Eq. 5); by default the variant's in Table 2.
        layers: Number of layers.
        heads: Number of attention heads, which must divide the dimension.
        dropout: Dropout on attention weights in training.
        init: ``'identity'``, at which the network is plain MaxSim of the encoder, or ``'random'``, as in the paper; see
            :class:`HGAT`.
        aggregation: ``'sum'`` over all neighbors as in Eq. 1, or the ``'mean'`` over the neighbors of each relation.
        relations: Relations along which nodes aggregate, or paths of them (``'title/title'``: the title above the
            nearest title). None stands for all relations of the graph except ``title``.
        titles: Whether passages are encoded with the titles of their sections in front. Stored tokens override this.
        dimension: Maximum length of the query, key and value vectors of attention, all heads together; None is the
            length of token vectors. In the paper both are 128.
        matches: Weights of relations whose neighbors' tokens are also matched directly, as in GraphMaxSim: see
            :class:`NeighborMatches`. The untrained network equals :class:`~pyterrier_graph.GraphMaxSim` with these
            weights. ``{}``, as in the paper, has no such matches. The default is GraphMaxSim's default weights in the
            standard framework with ``init='identity'``, else ``{}``.
        attention: Makes what each relation has in place of MultiHead, from d to a bipartite layer of PyTorch Geometric,
            such as ``lambda d: GATv2Conv((d, d), d // 4, heads=4, add_self_loops=False)``, or to a module with
            ``forward((x_source, x_target), edge_index)``. Its nodes are tokens: all tokens of a neighbor are connected
            with all tokens of the node. ``heads``, ``dropout`` and ``dimension`` are then the layer's own.
        seed: Seed of the initial weights.

    Raises:
        ValueError: If an option is unknown or out of range.
    """

    variant: Variant = "NO_LB"
    framework: Literal["standard", "late"] | None = None
    layers: PositiveInt = 1
    heads: PositiveInt = 4
    dropout: DropoutRate = 0.0
    init: Literal["random", "identity"] = "identity"
    aggregation: Literal["sum", "mean"] = "sum"
    relations: tuple[str, ...] | None = NEIGHBORHOOD
    titles: bool = False
    dimension: PositiveInt | None = 128
    matches: RelationWeights | None = None
    attention: Callable[[int], nn.Module] | None = None
    seed: NonNegativeInt = 0

    def __post_init__(self) -> None:
        if self.framework is None:
            late = self.variant in ("NO_NS", "NO_LB_NS")
            framework = "late" if late else "standard"
            object.__setattr__(self, "framework", framework)
        late = self.framework == "late"
        if self.matches is None:
            no_matches = late or self.init == "random"
            matches = {} if no_matches else TITLES_AND_NEIGHBORS
            object.__setattr__(self, "matches", dict(matches))
        if late and self.matches:
            raise ValueError("matches= needs framework='standard'")

    @classmethod
    def paper(cls, variant: Variant = "NO_LB", **options: Any) -> HGATConfig:
        """The publication's shape (Sect. 5.2.1): three layers, eight heads, dropout 0.7, and a random start."""
        published: dict[str, Any] = {
            "layers": 3,
            "heads": 8,
            "dropout": 0.7,
            "init": "random",
            "relations": None,
        }
        return cls(variant, **published | options)

    @property
    def no_out(self) -> bool:
        """Whether no node aggregates from the target (Eq. 2)."""
        return "NO" in self.variant.split("_")

    @property
    def lambda_(self) -> bool:
        """Whether content and context are weighted against each other (Eq. 3)."""
        return "LB" in self.variant.split("_")

    @property
    def no_self(self) -> bool:
        """Whether the target does not attend to itself (Eq. 8)."""
        return "NS" in self.variant.split("_")

    @property
    def name(self) -> str:
        """The model's name in Table 2, such as ``std_NO_LB``."""
        framework = "late" if self.framework == "late" else "std"
        return f"{framework}_{self.variant}"


class NarrowAttention(nn.Module):
    """Parameters of nn.MultiheadAttention with fewer inner dimensions than token vectors have, which PyTorch lacks."""

    def __init__(self, dimension: int, inner: int) -> None:
        super().__init__()
        weight = torch.empty(3 * inner, dimension)
        nn.init.xavier_uniform_(weight)
        self.in_proj_weight = nn.Parameter(weight)
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * inner))
        self.out_proj = nn.Linear(inner, dimension)
        nn.init.zeros_(self.out_proj.bias)


class LayerAttention(nn.Module):
    """A layer of PyTorch Geometric as the attention of a relation, behind a gate, shape (d,)."""

    def __init__(self, layer: nn.Module, dimension: int) -> None:
        super().__init__()
        self.layer = layer
        self.gate = nn.Parameter(torch.ones(dimension))

    def forward(self, targets: TokenStates, sources: TokenStates, edges: Edges) -> Tensor:
        """The sum over the neighbors of each node, shape (tokens of all nodes, d)."""
        return self.gate * layer_along_edges(self.layer, targets, sources, edges)


class HGATLayer(nn.Module):
    """One layer: Eq. 1, 2, 3, 7 or 8, by variant.

    For the arguments see :class:`HGAT`. The :class:`~pyterrier_graph.hgat.attention.Hop` lists the neighbors that a
    node attends to (``j != tgt`` of Eq. 2, 7 and 8).
    """

    def __init__(self, config: HGATConfig, dimension: int, positions: int) -> None:
        super().__init__()
        self.config = config
        names = [SELF, *(config.relations or ())]
        attention = {relation: _attention(config, dimension) for relation in names}
        self.attention: Any = nn.ModuleDict(attention)
        # W_r: a weight per token position (Sect. 5.2.1: "a vector of size 180"). Its initial values are not in the
        # paper; here uniform in [0, 1], like lambda and alpha.
        weight = {relation: nn.Parameter(torch.rand(positions)) for relation in names}
        self.weight = nn.ParameterDict(weight)
        self.lambda_ = nn.Parameter(torch.rand(())) if config.lambda_ else None
        self.residual = config.init == "identity"
        if self.residual:
            self._start_as_identity()

    def _start_as_identity(self) -> None:
        """Makes the untrained layer the identity, or as close to it as the variant allows."""
        gated = self.config.lambda_ or self.config.no_self
        for relation, attention in self.attention.items():
            if isinstance(attention, LayerAttention):
                if relation == SELF or not gated:
                    nn.init.zeros_(attention.gate)
                continue
            nn.init.zeros_(attention.out_proj.weight)
            if relation != SELF:
                _pass_values_on(attention, gated)
        # each position aggregates along one relation, instead of the mean of all
        focus = POSITION_FOCUS if gated else 0.0
        for weight in self.weight.values():
            nn.init.normal_(weight, std=focus)
        if self.lambda_ is not None:
            nn.init.zeros_(self.lambda_)

    def unchanged(self) -> bool:
        """Whether the layer is the identity: lambda is 0, and SELF adds nothing. Untrained layers may be."""
        attention = self.attention[SELF]
        if self.lambda_ is None or self.lambda_ != 0:
            return False
        if isinstance(attention, LayerAttention):
            return not attention.gate.any()
        output = attention.out_proj
        return not (output.weight.any() or output.bias.any())

    def relation_weights(self, *, mean: bool = False) -> dict[str, Tensor]:
        """Softmax over the relations of W at each position, shape (positions,) per relation, or of its mean, shape ().

        The Lambda variants exclude SELF, whose share is 1 - lambda (without SELF, the columns of Table 6 add up to
        lambda). The softmax is over all relations of the model, not only a node's: ``softmax(W)`` has no index i.
        """
        relations = [r for r in self.weight if r != SELF or self.lambda_ is None]
        weights = torch.stack([self.weight[r] for r in relations])  # (relations, positions)
        if mean:
            weights = weights.mean(1)
        shares = weights.softmax(0)
        return dict(zip(relations, shares, strict=True))

    def importance(self) -> dict[str, float]:
        """Importance of each relation (Table 6): the softmax of the mean of W over positions.

        In the Lambda variants SELF has 1 - lambda, and the other relations share lambda.
        """
        shares = self.relation_weights(mean=True)
        if self.lambda_ is not None:
            shares = {relation: share * self.lambda_ for relation, share in shares.items()}
            shares[SELF] = 1 - self.lambda_
        return {relation: share.item() for relation, share in shares.items()}

    def forward(self, states: TokenStates, hop: Hop) -> TokenStates:
        """Computes h', one state per row of the hop, from the states h of the layer before."""
        own = states.select(hop.previous)  # h_i, values of shape (tokens of all states, d)
        weights = self.relation_weights()
        content, context = self._content_and_context(states, own, hop, weights)
        without_self = hop.without_self[own.row_index, None]  # (tokens, 1)
        if self.residual:
            content = content + own.values * ~without_self
        if self.lambda_ is None:  # Eq. 1, 2
            content_weight: Any = weights[SELF][own.position, None]  # (tokens, 1)
            context_weight: Any = 1.0
        else:  # Eq. 3, 7; Eq. 8 has no lambda, and no content
            content_weight = 1 - self.lambda_
            context_weight = torch.where(without_self, 1.0, self.lambda_)
        values = content_weight * content + context_weight * context
        return own.with_values(values)

    def _content_and_context(
        self, states: TokenStates, own: TokenStates, hop: Hop, weights: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """MultiHead of SELF, and the weighted sum of the other relations; shape (tokens of all states, d) each."""
        position = own.position  # (tokens,)
        content = torch.zeros_like(own.values)
        context = torch.zeros_like(own.values)
        for relation, edges in hop.edges.items():
            rows, message = self._messages(relation, states, own, edges)
            if relation == SELF:
                content.index_add_(0, rows, message)
            else:
                weight = weights[relation][position[rows]]  # (tokens of nodes with neighbors,)
                weighted = weight[:, None] * message
                context.index_add_(0, rows, weighted)
        return content, context

    def _messages(
        self, relation: str, states: TokenStates, own: TokenStates, edges: Edges
    ) -> tuple[Tensor, Tensor]:
        """Sum (or mean) over the neighbors j of ``MultiHead_r(h_i, h_j, h_j)``: rows of h', and their messages."""
        attention = self.attention[relation]
        sources = states.select(edges.neighbors)  # h_j
        targets = own.select(edges.nodes)  # h_i
        node, _ = edges.with_tokens(targets, sources)
        neighbors = node.bincount(minlength=len(targets))  # number of each node's, (nodes,)
        neighbors = neighbors[targets.row_index, None]  # (tokens, 1)
        if isinstance(attention, LayerAttention):
            message = attention(targets, sources, edges)
        else:
            message = self._multi_head(attention, targets, sources, edges)
            message.addcmul_(neighbors.float(), attention.out_proj.bias)
        if self.config.aggregation == "mean":
            message = message / neighbors.clamp(min=1)
        first_row = own.offsets[edges.nodes]
        lengths = own.lengths[edges.nodes]
        _, rows = ranges(first_row, lengths)  # (tokens of nodes with neighbors,)
        return rows, message

    def _multi_head(
        self, attention: Any, targets: TokenStates, sources: TokenStates, edges: Edges
    ) -> Tensor:
        """Sum over the neighbors of MultiHead, without the bias of the output, (tokens of all nodes, d).

        Keys and values are projected once per neighbor, queries once per node, and outputs after the sum.
        """
        query_weight, key_weight, value_weight = attention.in_proj_weight.chunk(3)
        query_bias, key_bias, value_bias = attention.in_proj_bias.chunk(3)
        queries = functional.linear(targets.values, query_weight, query_bias)
        keys = functional.linear(sources.values, key_weight, key_bias)
        values = functional.linear(sources.values, value_weight, value_bias)
        dropout = self.config.dropout if self.training else 0.0
        attended = attend_along_edges(
            targets.with_values(queries),
            sources.with_values(keys),
            sources.with_values(values),
            edges,
            heads=self.config.heads,
            dropout=dropout,
        )
        output = functional.linear(attended, attention.out_proj.weight)
        return output.float()


def _attention(config: HGATConfig, dimension: int) -> nn.Module:
    """The attention of one relation: MultiHead, or the layer that ``config.attention`` makes."""
    if config.attention is not None:
        layer = make_layer(config.attention, dimension)
        return LayerAttention(layer, dimension)
    inner = min(config.dimension or dimension, dimension)
    if inner < dimension:
        return NarrowAttention(dimension, inner)
    return nn.MultiheadAttention(dimension, config.heads, batch_first=True)


def _pass_values_on(attention: Any, gated: bool) -> None:
    """Makes the values of MultiHead the neighbors' token vectors, unchanged or on random directions.

    Queries and keys are random: with equal projections each position would attend to the tokens most like its own,
    which add nothing new.
    """
    rows, dimension = attention.in_proj_weight.shape
    inner = rows // 3  # length of query, key and value vectors
    values = torch.eye(dimension)
    if inner != dimension:
        values = torch.empty(inner, dimension)
        nn.init.orthogonal_(values)
    queries_and_keys = torch.randn(2 * inner, dimension)
    projections = torch.cat([queries_and_keys, values])  # (3 inner, d)
    with torch.no_grad():
        attention.in_proj_weight.copy_(projections)
        if gated:
            attention.out_proj.weight.copy_(values.T)


class NeighborMatches(nn.Module):
    r"""GraphMaxSim's matches in an HGAT: the tokens of neighbors are matched directly, with weights per query token.

    .. math::

        \sum_{t \in q} e^{a \cdot q_t} \max\Big(\max_j q_t \cdot h'_j,\
            w_1(q_t) \max_{n \in \mathcal N^1,\, j} q_t \cdot h_{nj},\ w_2(q_t) \ldots\Big),
            \qquad w_r(q_t) = \max(0, w_r + b_r \cdot q_t)

    h' is the representation of the passage in its context (Eq. 1 to 3), and h_n are the tokens of a neighbor along
    relation r, as encoded. The importance of each query token, and of each relation for this token, is learned; a and
    b_r start at 0. If h' is the passage's own matrix, this is then :class:`~pyterrier_graph.GraphMaxSim`.

    Args:
        weights: The initial weight w_r of each relation or path of relations.
        dimension: d, the length of token vectors.
    """

    def __init__(self, weights: Mapping[str, float], dimension: int) -> None:
        super().__init__()
        self.relations = tuple(weights)
        self.weights = nn.Parameter(torch.tensor(list(weights.values())))  # w_r
        self.by_token = nn.Parameter(torch.zeros(len(weights), dimension))  # b_r
        self.importance = nn.Parameter(torch.zeros(dimension))  # a

    def maxima(self, query: Tensor, inputs: TokenStates, propagation: Propagation) -> Tensor:
        """The best matches in the neighbors of each target, shape (targets, relations, query tokens).

        ``inputs`` are the texts of ``propagation.nodes``, as encoded.
        """
        maxima = token_maxima(query, inputs)  # (inputs, query tokens)
        targets = len(propagation.targets)
        return neighbor_maxima(maxima, inputs.lengths, propagation.matches, targets)

    def token_weights(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Weights w_r(q_t), shape (relations, query tokens), and the importance of each query token."""
        by_token = self.by_token @ query.T  # (relations, query tokens)
        weights = self.weights[:, None] + by_token
        log_importance = query @ self.importance  # (query tokens,)
        log_importance = log_importance.clamp(-MAX_LOG_IMPORTANCE, MAX_LOG_IMPORTANCE)
        return weights.clamp(min=0), log_importance.exp()

    def forward(self, query: Tensor, own: Tensor, context: Tensor) -> Tensor:
        """Scores of passages, shape (passages,).

        Args:
            query: Token vectors of the query, shape (query tokens, d).
            own: Best matches in h', shape (passages, query tokens).
            context: Best matches in neighbors, shape (passages, relations, query tokens); minus infinity if none.
        """
        with full_precision(query):
            weights, importance = self.token_weights(query)
            maxima = graph_maxima(own, context, weights)  # (passages, query tokens)
            return maxima @ importance


class HGAT(nn.Module):
    """Represents passages in the context of their graph, and scores them.

    ``init='random'`` is the paper's: PyTorch's initialization of each MultiHead; lambda and alpha are uniform in
    [0, 1]. Random projections lose what the encoder knows, and a small training set cannot bring it back.

    ``init='identity'`` starts at the encoder: without matches, the untrained network is plain MaxSim (of positive
    similarities). SELF passes a state on unchanged, through a residual connection, the one difference in form from the
    paper; its attention starts at 0. The other relations pass on the token vectors of the neighbors through a gate that
    starts at 0: lambda, alpha, or the output projection in variants without both. NS and LB_NS in the standard
    framework have no such start, because their targets never attend to themselves.

    Args:
        config: The shape, with its relations.
        dimension: Length of the encoder's token vectors.
        positions: Number of token positions with their own weights: the length of the longest passage.
    """

    def __init__(self, config: HGATConfig, dimension: int, positions: int) -> None:
        super().__init__()
        self.config = config
        self.relations = config.relations or ()
        layers = [HGATLayer(config, dimension, positions) for _ in range(config.layers)]
        self.layers: Any = nn.ModuleList(layers)
        self.alpha = nn.Parameter(torch.rand(())) if config.framework == "late" else None
        if self.alpha is not None and config.init == "identity":
            nn.init.zeros_(self.alpha)
        self.matches = NeighborMatches(config.matches, dimension) if config.matches else None

    def unchanged(self) -> bool:
        """Whether the layers change nothing but the lengths of vectors, as before training."""
        if self.config.init != "identity":
            return False
        return all(layer.unchanged() for layer in self.layers)

    def plan(self, graph: HeteroGraph, targets: np.ndarray) -> Propagation:
        """Plans the states that represent ``targets``, which are distinct and ascending nodes of the graph."""
        matched = () if self.matches is None else self.matches.relations
        return plan_propagation(
            graph,
            targets,
            self.relations,
            self.config.layers,
            no_out=self.config.no_out,
            no_self=self.config.no_self,
            matches=matched,
        )

    def forward(self, inputs: TokenStates, propagation: Propagation) -> TokenStates:
        """Represents the targets of a propagation in their context, as token vectors of unit length.

        ``inputs`` are the encoded texts of ``propagation.nodes``.
        """
        states = inputs
        for layer, hop in zip(self.layers, propagation.hops, strict=True):
            states = layer(states, hop)
        return normalized(states)

    def own_matches(self, query: Tensor, content: TokenStates, in_context: TokenStates) -> Tensor:
        """Best matches of the tokens of a query in passages, the terms of Eq. 6; shape (passages, query tokens).

        Args:
            query: Token vectors E_q of the query, shape (query tokens, d).
            content: Token vectors E_p of the passages, for the late framework.
            in_context: Token vectors h_p of the passages after the last layer.
        """
        context_matches = token_maxima(query, in_context)
        if self.alpha is None:
            return context_matches  # Eq. 4
        content_matches = token_maxima(query, content)
        return (1 - self.alpha) * content_matches + self.alpha * context_matches  # Eq. 5

    def score(self, query: Tensor, own: Tensor, context: Tensor | None = None) -> Tensor:
        """Scores of passages for one query from their matches, shape (passages,).

        ``own`` are the :meth:`own_matches`, ``context`` the best direct matches in neighbors, shape (passages,
        relations, query tokens).
        """
        if self.matches is None:
            return own.sum(1)
        return self.matches(query, own, context)
