"""Heterogeneous graph attention over passages.

L. Albarede, P. Mulhem, L. Goeuriot, S. Marié, C. Le Pape-Gardeux, T. Chardin-Segui:
Heterogeneous graph attention networks for passage retrieval. Information Retrieval Journal 26, 2023.
"Eq. n" and "Sect. n" below are that paper's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn

from pyterrier_graph.encoders.token_states import TokenStates
from pyterrier_graph.models.attention import attend_along_edges
from pyterrier_graph.models.maxsim import maxsim, normalized
from pyterrier_graph.models.propagation import SELF, Hop, Propagation, plan_propagation

if TYPE_CHECKING:
    from pyterrier_graph.graphs import HeteroGraph

Variant = Literal["BASE", "NO", "LB", "NS", "NO_LB", "NO_NS", "LB_NS", "NO_LB_NS"]
Framework = Literal["standard", "late"]

POSITION_FOCUS = 10.0
Init = Literal["random", "identity"]
Aggregation = Literal["sum", "mean"]


@dataclass(frozen=True)
class HGATConfig:
    """Shape of an :class:`HGAT`; the defaults are the paper's (Sect. 5.2.1).

    Attributes:
        dimension: Length d of a token vector.
        relations: Relation types (or paths of them), without SELF, which every HGAT has.
        variant: One of Table 1: NO (No out), LB (Lambda) and NS (No self), joined by ``_``, or BASE.
        framework: ``'standard'`` (Eq. 4) or ``'late'`` (Eq. 5); None takes Table 2's for the variant.
        layers: Number of layers.
        heads: Attention heads; they divide ``dimension``.
        dropout: Dropout on attention weights.
        positions: Token positions that have a weight of their own per relation: the longest passage.
        init: ``'random'`` as in the paper, or ``'identity'``: see :class:`HGAT`.
        aggregation: ``'sum'`` over neighbors as Eq. 1 has it, or ``'mean'`` over the neighbors of each relation.
        slots: Empty rows added to the matrix of every node, where the neighbors' content does not have to be mixed
            with its own. (The paper's matrices always have 180 rows, of which a short passage leaves most empty;
            it does not say what they hold.) Each asks by a vector of its own, which is learned.
    """

    dimension: int
    relations: tuple[str, ...]
    variant: Variant = "NO_LB"
    framework: Framework | None = None
    layers: int = 3
    heads: int = 8
    dropout: float = 0.7
    positions: int = 180
    init: Init = "random"
    aggregation: Aggregation = "sum"
    slots: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "relations", tuple(self.relations))
        if self.variant not in get_args(Variant):
            raise ValueError(f"variant must be one of {', '.join(get_args(Variant))}, got {self.variant!r}")
        if self.framework is None:
            late = self.variant in ("NO_NS", "NO_LB_NS")
            object.__setattr__(self, "framework", "late" if late else "standard")
        if self.framework not in get_args(Framework):
            raise ValueError(f"framework must be 'standard' or 'late', got {self.framework!r}")
        if self.init not in get_args(Init):
            raise ValueError(f"init must be 'random' or 'identity', got {self.init!r}")
        if self.aggregation not in get_args(Aggregation):
            raise ValueError(f"aggregation must be 'sum' or 'mean', got {self.aggregation!r}")
        if self.slots < 0:
            raise ValueError(f"slots must not be negative, got {self.slots}")
        if self.layers < 1 or self.heads < 1 or self.dimension % self.heads:
            raise ValueError(f"{self.heads} heads do not divide {self.dimension} dimensions, or layers < 1")
        if SELF in self.relations or len(set(self.relations)) != len(self.relations):
            raise ValueError(f"relations must be distinct and not contain {SELF}, got {self.relations}")

    @property
    def no_out(self) -> bool:
        """Whether no node hears from the target (Eq. 2)."""
        return "NO" in self.variant.split("_")

    @property
    def lambda_(self) -> bool:
        """Whether content and context are weighted against each other (Eq. 3)."""
        return "LB" in self.variant.split("_")

    @property
    def no_self(self) -> bool:
        """Whether the target does not hear itself (Eq. 8)."""
        return "NS" in self.variant.split("_")

    @property
    def target_dependent(self) -> bool:
        """Whether the states of other nodes depend on the target, so that they cannot be shared by all targets."""
        return self.no_out or self.no_self

    @property
    def name(self) -> str:
        """The model's name in Table 2, such as ``std_NO_LB``."""
        return ("late_" if self.framework == "late" else "std_") + self.variant

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class HGATLayer(nn.Module):
    """One layer: Eq. 1, 2, 3, 7 or 8, by variant.

    Which neighbors a node hears (``j != tgt`` of Eq. 2, 7 and 8) is decided by the
    :class:`~pyterrier_graph.models.propagation.Hop`; what it makes of them, here.
    """

    def __init__(self, config: HGATConfig, *, first: bool = True) -> None:
        super().__init__()
        self.config = config
        relations = [SELF, *config.relations]
        # later layers find the slots in the states that they get
        vectors = nn.functional.normalize(torch.randn(config.slots, config.dimension), dim=1)
        self.slots = nn.Parameter(vectors) if first and config.slots else None
        modules = {r: nn.MultiheadAttention(config.dimension, config.heads, batch_first=True) for r in relations}
        self.attention = cast(Mapping[str, nn.MultiheadAttention], nn.ModuleDict(modules))
        # W_r: a weight per token position (Sect. 5.2.1: "a vector of size 180"). The paper does not say how it starts;
        # uniform in [0, 1], as it says of lambda and alpha.
        self.weight = nn.ParameterDict(
            {r: nn.Parameter(torch.rand(config.positions + config.slots)) for r in relations}
        )
        self.lambda_ = nn.Parameter(torch.rand(())) if config.lambda_ else None
        self.residual = config.init == "identity"
        if self.residual:
            self._start_as_identity()

    def _start_as_identity(self) -> None:
        gated = self.config.lambda_ or self.config.no_self
        for relation, attention in self.attention.items():
            nn.init.zeros_(attention.out_proj.weight)
            if relation == SELF:
                continue
            # Tokens are handed on as they are, to positions that ask for different ones. Asking for what is most like
            # a position's own token would bring what is there already.
            size = self.config.dimension
            with torch.no_grad():
                attention.in_proj_weight.copy_(torch.cat([torch.randn(2 * size, size), torch.eye(size)]))
                attention.out_proj.weight.copy_(torch.eye(size) if gated else torch.zeros(size, size))
        for weight in self.weight.values():
            # each position listens through one relation, instead of to the mean of all
            nn.init.normal_(weight, std=POSITION_FOCUS if gated else 0.0)
        if self.lambda_ is not None:
            nn.init.zeros_(self.lambda_)

    def relation_weights(self) -> dict[str, Tensor]:
        """Softmax of W over the relation types, at each position; shape (positions,) per relation.

        In the Lambda variants it covers the relations other than SELF, whose share is 1 - lambda
        (the columns of Table 6 add up to lambda without SELF). It is over all types of the model,
        not over those that a node happens to have: Eq. 1 gives ``softmax(W)`` no index i.
        """
        relations = [r for r in self.weight if r != SELF or self.lambda_ is None]
        stacked = torch.stack([self.weight[r] for r in relations]).softmax(0)
        return dict(zip(relations, stacked, strict=True))

    def forward(self, states: TokenStates, hop: Hop, *, linear: bool = False) -> TokenStates:
        """Computes new states.

        Args:
            states: h, the states of the layer before.
            hop: Who listens to whom.
            linear: Whether gradients take the attention weights for constants.

        Returns:
            h', one state per row of the hop.
        """
        itself = states.select(hop.itself)
        asking = listening = itself
        if self.slots is not None:
            asking, listening = itself.append(self.slots), itself.append(torch.zeros_like(self.slots))
        share = self.relation_weights()
        position, owner = self._position_of(listening), listening.row_index
        content = torch.zeros_like(listening.values)
        context = torch.zeros_like(listening.values)
        for relation, edges in hop.edges.items():
            message = self._messages(relation, states, asking, edges, linear)
            if relation == SELF:
                if self.residual:
                    message = message + listening.values * ~hop.without_self[owner, None]
                content = message if self.lambda_ is not None else share[SELF][position, None] * message
            else:
                context = context + share[relation][position, None] * message
        if self.lambda_ is None:
            return listening.with_values(content + context)  # Eq. 1, 2
        scaled = torch.where(hop.without_self[owner, None], context, self.lambda_ * context)  # Eq. 8 has no lambda
        return listening.with_values((1 - self.lambda_) * content + scaled)  # Eq. 3, 7

    def _position_of(self, states: TokenStates) -> Tensor:
        """Index into W of each row: its position, and for slots the numbers after all positions."""
        slots, position = self.config.slots, states.position
        before = states.lengths[states.row_index] - slots
        return torch.where(position < before, position, position - before + self.config.positions)

    def _messages(
        self, relation: str, states: TokenStates, listening: TokenStates, edges: Tensor, linear: bool
    ) -> Tensor:
        """Sum (or mean) over a listener's edges of ``MultiHead_r(h_i, h_j, h_j)``, shape (tokens of listeners, d).

        Keys and values are projected once per neighbor, queries once per listener, the output after summing.
        """
        attention = self.attention[relation]
        listeners, listener = edges[0].unique(return_inverse=True)
        neighbors, neighbor = edges[1].unique(return_inverse=True)
        weights, biases = attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3)
        heard = states.select(neighbors)
        asking = listening.select(listeners)
        asking_values, heard_values = asking.values, heard.values
        if linear:
            asking_values, heard_values = asking_values.detach(), heard_values.detach()
        queries = asking.with_values(nn.functional.linear(asking_values, weights[0], biases[0]))
        keys = heard.with_values(nn.functional.linear(heard_values, weights[1], biases[1]))
        values = heard.with_values(nn.functional.linear(heard.values, weights[2], biases[2]))
        attended = attend_along_edges(
            queries,
            keys,
            values,
            torch.stack([listener, neighbor]),
            heads=self.config.heads,
            dropout=self.config.dropout if self.training else 0.0,
        )
        speaking = heard.lengths[neighbor] > 0
        number = torch.bincount(listener[speaking], minlength=len(listeners))[asking.row_index, None].to(attended.dtype)
        projected = nn.functional.linear(attended, attention.out_proj.weight) + number * attention.out_proj.bias
        if self.config.aggregation == "mean":
            projected = projected / number.clamp(min=1)
        everyone = torch.arange(len(listening), device=edges.device)
        rows = torch.repeat_interleave(torch.isin(everyone, listeners), listening.lengths)
        message = projected.new_zeros(len(rows), projected.shape[1])
        return message.index_put((rows.nonzero()[:, 0],), projected)


class HGAT(nn.Module):
    """Contextualized passage representations and their scores.

    ``init='random'`` is the paper's: PyTorch's initialization of each MultiHead, lambda and alpha uniform in [0, 1].
    Nothing of the encoder's knowledge survives random projections, and a small training set cannot bring it back.
    ``init='identity'`` therefore starts at the encoder: SELF passes a state on unchanged (a residual connection, the
    one difference in form) with its attention switched off, and the other relations bring the neighbors' tokens
    through a gate that is closed: lambda = 0, alpha = 0, or an output projection of 0 where there is neither.
    The untrained network is then plain MaxSim of the encoder, as far as similarities are positive (empty slots have 0
    with everything). (NS and LB_NS in the standard framework have no such
    start, since their targets never hear themselves.)
    """

    def __init__(self, config: HGATConfig) -> None:
        super().__init__()
        self.config = config
        layers = nn.ModuleList(HGATLayer(config, first=number == 0) for number in range(config.layers))
        self.layers = cast(Iterable[HGATLayer], layers)
        self.alpha = nn.Parameter(torch.rand(())) if config.framework == "late" else None
        if self.alpha is not None and config.init == "identity":
            nn.init.zeros_(self.alpha)

    def scalars(self) -> list[nn.Parameter]:
        """What decides how much is listened to: W of every layer and relation, lambda and alpha."""
        gates = [weight for layer in self.layers for weight in layer.weight.values()]
        gates += [layer.lambda_ for layer in self.layers if layer.lambda_ is not None]
        return gates + ([self.alpha] if self.alpha is not None else [])

    def plan(self, graph: HeteroGraph, targets: np.ndarray) -> Propagation:
        """What has to be computed to represent some targets, node numbers of the graph."""
        config = self.config
        return plan_propagation(
            graph, targets, config.relations, layers=config.layers, no_out=config.no_out, no_self=config.no_self
        )

    def forward(self, inputs: TokenStates, propagation: Propagation, *, linear: bool = False) -> TokenStates:
        """Contextualizes the targets of a propagation.

        Args:
            inputs: Encoded texts of ``propagation.nodes``.
            propagation: Who listens to whom, layer by layer.
            linear: Whether gradients take attention weights and the lengths of vectors for constants. The outcome is
                then linear in the inputs, but for biases: gradient x input says what each has put in.

        Returns:
            The targets' token matrices after the last layer, of unit length, as Eq. 6 needs them.
        """
        states = inputs
        for layer, hop in zip(self.layers, propagation.hops, strict=True):
            states = layer(states, hop, linear=linear)
        return normalized(states.select(propagation.targets), linear=linear)

    def score(self, query: Tensor, content: TokenStates, in_context: TokenStates) -> Tensor:
        """Relevance of passages to one query.

        Args:
            query: Token vectors E_q of the query, shape (query tokens, d), of unit length.
            content: E_p of the passages, as encoded; used by the late framework.
            in_context: What :meth:`forward` made of them.

        Returns:
            Scores, shape (passages,).
        """
        if self.alpha is None:
            return maxsim(query, in_context)  # Eq. 4
        return (1 - self.alpha) * maxsim(query, content) + self.alpha * maxsim(query, in_context)  # Eq. 5

    def relation_weights(self) -> dict[str, list[float]]:
        """Importance of each relation per layer, as Table 6 has it: the W averaged over positions, then softmaxed.

        In the Lambda variants SELF gets 1 - lambda, and the other relations share lambda.
        """
        table: dict[str, list[float]] = {relation: [] for relation in [*self.config.relations, SELF]}
        for layer in self.layers:
            others = [r for r in table if r != SELF or layer.lambda_ is None]
            share = torch.stack([layer.weight[r].mean() for r in others]).softmax(0)
            if layer.lambda_ is not None:
                share = share * layer.lambda_
                table[SELF].append(1 - layer.lambda_.item())
            for relation, value in zip(others, share.tolist(), strict=True):
                table[relation].append(value)
        return table
