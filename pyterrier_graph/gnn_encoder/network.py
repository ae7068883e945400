r"""The project's own network of the GNN-encoder, which starts as a GraphMean.

It is the weighted sum of :mod:`~pyterrier_graph.graph_mean.equations` with

.. math::

    y_p = x_p + g_0 \odot W_0 x_p, \qquad
    m_{r,p} = g_r \odot \mathrm{GAT}_r(x_p, \{x_s : s \in N_r(p)\})

in the places of :math:`x_p` and of the means, and gates :math:`g_r = 2 \sigma(W [\mathrm{GAT}_r \,\|\, x_p] + b)`,
:math:`g_0 = 2 \sigma(W x_p + b)`. With layers of PyTorch Geometric, or a user's own,

.. math::

    m_{r,p} = \frac{1}{|N_r(p)|} \sum_{s \in N_r(p)} x_s + g_r \odot \mathrm{layer}_r(x_p, \{x_s : s \in N_r(p)\})

with gates :math:`g_r`, shape (d,), that start at 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pydantic
import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from pyterrier_graph.configuration import STRICT, RelationWeights
from pyterrier_graph.gnn_encoder.equations import BipartiteAttention, PaperGNNEncoderConfig
from pyterrier_graph.graph_mean.equations import (
    MeanMessage,
    Message,
    Pair,
    RelationNetwork,
    Terms,
    equal_shares,
    mean_of_sources,
    rows_of,
)
from pyterrier_graph.graph_mean.neighbors import PASSAGE, edge_type
from pyterrier_graph.training.layers import (
    Layers,
    accepts,
    is_heterogeneous,
    layer_meta,
    make_layer,
)


@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
class GNNEncoderConfig:
    """Shape of the project's own network, which starts as a GraphMean; :meth:`paper` is the papers' network.

    Attributes:
        weights: Weight by relation, such as ``{'titles': 0.75, 'relevant': 0.75}``. None takes the weights that
            :class:`~pyterrier_graph.GraphMean` has by default for the graphs.
        heads: Attention heads, which divide the dimensions. Layers that are given have their own.
        edges: Whether passages aggregate at all. The same network without edges has the same parameters. It is the
            control, which separates the effect of the graph from that of a projection.
        seed: Seed of the first weights.
    """

    weights: RelationWeights | None = None
    heads: PositiveInt = 4
    edges: bool = True
    seed: NonNegativeInt = 0

    @staticmethod
    def paper(**ablations: Any) -> PaperGNNEncoderConfig:
        """The papers' network (Liu et al. 2022), or an ablation of it: ``layers=1``, ``gate=0.2``.

        The fields are those of :class:`~pyterrier_graph.gnn_encoder.equations.PaperGNNEncoderConfig`.
        """
        return PaperGNNEncoderConfig(**ablations)


class GNNEncoderNetwork(RelationNetwork):
    """The passage's own vector with a projection, and a message along each relation.

    By default the message is gated attention over the sources alone, so that a message never takes the place of the
    vector. The untrained network is GraphMean, exactly: W_0 is 0, the W_s of attention the identity, its a 0, and all
    gates are 1. A relation with weight 0 adds nothing. Without edges the network is an adapter, ``x + g_0 * W_0 x``.

    With ``layers``, the message is :class:`LayerMessage`, or there is one :class:`HeterogeneousLayer`.
    """

    def __init__(
        self, config: GNNEncoderConfig, dimension: int, layers: Layers | None = None
    ) -> None:
        weights = config.weights or {}
        layer: Any = None if layers is None else make_layer(layers, dimension)
        over_all = layer is not None and is_heterogeneous(layer)

        def message() -> Message:
            if layers is None:
                return AttentionMessage(dimension, config.heads)
            if over_all:
                return MeanMessage()
            return LayerMessage(dimension, make_layer(layers, dimension))

        super().__init__({name: message() for name in weights}, weights)
        self.heads = config.heads
        self.joint = HeterogeneousLayer(layer, dimension, weights) if over_all else None
        # after lazy layers have got their parameters
        self.layer_meta = None if layer is None else layer_meta(layer, dimension)
        self.own = nn.Linear(dimension, dimension, bias=False)  # W_0
        nn.init.zeros_(self.own.weight)
        self.own_gate = Gate(dimension, dimension)

    def about(self) -> dict[str, Any]:
        """The weights, and the number of heads or the layer."""
        about = super().about()
        if self.layer_meta is None:
            about["heads"] = self.heads
        else:
            about["layer"] = self.layer_meta
        return about

    def own_states(self, passages: Tensor) -> Tensor:
        """``y``, shape (passages, d)."""
        return passages + self.own_gate(passages) * self.own(passages)

    def terms(self, batch: HeteroData) -> Terms:
        """The terms of the sum; what a layer over all relations adds belongs to the passage's own."""
        terms = super().terms(batch)
        if self.joint is None or not batch.edge_types:
            return terms
        return terms._replace(own=terms.own + self.joint(batch))


class AttentionMessage(Message):
    """``g * GAT``: attention to the sources of one relation, behind a gate."""

    def __init__(self, dimension: int, heads: int) -> None:
        super().__init__()
        self.attention = BipartiteAttention(dimension, heads, shared=True, own=False)
        nn.init.eye_(self.attention.source.weight)
        nn.init.zeros_(self.attention.attention)
        self.gate = Gate(2 * dimension, dimension)

    def forward(self, x: Pair, edge_index: Tensor) -> Tensor:
        """``m``, shape (targets, d)."""
        _, targets = x
        aggregated = self.attention(x, edge_index)
        return self.gate(aggregated, targets) * aggregated

    def terms(self, x: Pair, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        """Attention, the mean over heads, shape (edges,), and gated terms of one target, shape (edges, d)."""
        _, targets = x
        aggregated = self.attention(x, edge_index)
        gate = self.gate(aggregated, targets)  # (1, d)
        attention, terms, _ = self.attention.terms(x, edge_index)
        return attention, gate * terms


class LayerMessage(Message):
    """``mean + g * layer``: the output of a layer of PyTorch Geometric enters through a gate that starts at 0."""

    def __init__(self, dimension: int, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.gate = nn.Parameter(torch.zeros(dimension))

    def forward(self, x: Pair, edge_index: Tensor) -> Tensor:
        """``m``, shape (targets, d)."""
        _, targets = x
        gated = self.gate * self.layer(x, edge_index)
        added = gated * has_sources(edge_index, len(targets))
        return mean_of_sources(x, edge_index) + added

    def terms(self, x: Pair, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        """The attention of the layer, NaN where it returns none, and terms of one target, shape (edges, d).

        Each source gets its share of the output: its attention, or, without any, the same as all others.
        """
        shares = equal_shares(rows_of(edge_index, 1))
        attention = torch.full_like(shares, torch.nan)
        of_output = shares
        if accepts(self.layer, "return_attention_weights"):
            _, (_, weights) = self.layer(x, edge_index, return_attention_weights=True)
            attention = weights.flatten(1).mean(1)  # (edges, heads) to (edges,)
            of_output = attention
        added = of_output[:, None] * self.gate * self.layer(x, edge_index)  # (edges, d)
        sources, _ = x
        of_mean = shares[:, None] * sources[edge_index[0]]
        return attention, of_mean + added


class HeterogeneousLayer(nn.Module):
    """A layer over all relations, such as ``HeteroConv``, behind a gate that starts at 0.

    Its output for a passage without any sources counts as 0.
    """

    def __init__(self, layer: nn.Module, dimension: int, relations: Iterable[str]) -> None:
        super().__init__()
        self.layer = layer
        self.gate = nn.Parameter(torch.zeros(dimension))
        batch = HeteroData()
        batch[PASSAGE].x = torch.zeros(2, dimension)
        two_edges = torch.tensor([[0, 1], [0, 1]])
        for relation in relations:
            source_type, _, target_type = edge_type(relation)
            batch[source_type].x = batch[PASSAGE].x
            batch[source_type, relation, target_type].edge_index = two_edges
        with torch.no_grad():
            self.eval()(batch)  # lazy layers get their parameters

    def forward(self, batch: HeteroData) -> Tensor:
        """What is added to the vectors of passages, shape (passages, d)."""
        out = self.layer(batch.x_dict, batch.edge_index_dict)[PASSAGE]
        edge_indexes = list(batch.edge_index_dict.values())
        edges = torch.cat(edge_indexes, 1)  # (2, edges of all relations)
        return self.gate * out * has_sources(edges, len(out))


def has_sources(edge_index: Tensor, targets: int) -> Tensor:
    """Whether each target has a source, shape (targets, 1)."""
    sources = edge_index[1].bincount(minlength=targets)  # number of sources, (targets,)
    return sources[:, None] > 0


class Gate(nn.Linear):
    """A gate between 0 and 2, which starts at 1."""

    def reset_parameters(self) -> None:
        """Sets weights and biases to 0."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, *vectors: Tensor) -> Tensor:
        """``2 * sigmoid(W [v_1 || v_2 ...] + b)``."""
        logits = super().forward(torch.cat(vectors, 1))
        return 2 * logits.sigmoid()
