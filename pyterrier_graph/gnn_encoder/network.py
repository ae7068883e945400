r"""The project's own network of the GNN-encoder, which starts as a GraphMean.

It is the weighted sum of :mod:`~pyterrier_graph.graph_mean.equations` with

.. math::

    y_p = x_p + g_0 \odot W_0 x_p, \qquad
    m_{r,p} = g_r \odot \mathrm{GAT}_r(x_p, \{x_s : s \in N_r(p)\})

in the places of :math:`x_p` and of the means, and gates :math:`g_r = 2 \sigma(W [\mathrm{GAT}_r \,\|\, x_p] + b)`,
:math:`g_0 = 2 \sigma(W x_p + b)`.
"""

from __future__ import annotations

from typing import Any

import pydantic
import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from pyterrier_graph.configuration import STRICT, RelationWeights
from pyterrier_graph.gnn_encoder.equations import BipartiteAttention, PaperGNNEncoderConfig
from pyterrier_graph.graph_mean.equations import Message, Pair, RelationNetwork
from pyterrier_graph.graphs.csr import CSR


@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
class GNNEncoderConfig:
    """Shape of the project's own network, which starts as a GraphMean; :meth:`paper` is the papers' network.

    Attributes:
        weights: Weight by relation, such as ``{'titles': 0.75, 'relevant': 0.75}``. None takes the weights that
            :class:`~pyterrier_graph.GraphMean` has by default for the graphs.
        heads: Attention heads, which divide the dimensions.
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
    """The passage's own vector with a projection, and gated attention along each relation.

    Attention is over the sources alone, so that a message never takes the place of the vector. The untrained network is
    GraphMean, exactly: W_0 is 0, the W_s of attention the identity, its a 0, and all gates are 1. A relation with
    weight 0 adds nothing. Without edges the network is an adapter, ``x + g_0 * W_0 x``.
    """

    def __init__(self, config: GNNEncoderConfig, dimension: int) -> None:
        attention = {
            name: AttentionMessage(weight, dimension, config.heads)
            for name, weight in (config.weights or {}).items()
        }
        super().__init__(dimension, attention)
        self.heads = config.heads
        self.own = nn.Linear(dimension, dimension, bias=False)  # W_0
        nn.init.zeros_(self.own.weight)
        self.own_gate = Gate(dimension, dimension)

    def about(self) -> dict[str, Any]:
        """The weights, and the number of heads."""
        return super().about() | {"heads": self.heads}

    def own_states(self, passages: Tensor) -> Tensor:
        """``y``, shape (passages, d)."""
        return passages + self.own_gate(passages) * self.own(passages)


class AttentionMessage(Message):
    """``g * GAT``: attention to the sources of one relation, behind a gate."""

    def __init__(self, weight: float, dimension: int, heads: int) -> None:
        super().__init__(weight)
        self.attention = BipartiteAttention(dimension, heads, shared=True, own=False, identity=True)
        self.gate = Gate(2 * dimension, dimension)

    def forward(self, x: Pair, edges: CSR) -> Tensor:
        """``m``, shape (targets, d)."""
        aggregated = self.attention(x, edges)
        return self.gate(aggregated, x[1]) * aggregated

    def terms(self, x: Pair, edges: CSR) -> tuple[Tensor, Tensor]:
        """Attention, the mean over heads, shape (edges,), and gated terms of one target, shape (edges, d)."""
        gate = self.gate(self.attention(x, edges), x[1])  # (1, d)
        return self.attention.weights(x, edges).edges.mean(1), gate * self.attention.terms(
            x, edges
        )[0]


class Gate(nn.Linear):
    """A gate between 0 and 2, which starts at 1."""

    def reset_parameters(self) -> None:
        """Sets weights and biases to 0."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, *vectors: Tensor) -> Tensor:
        """``2 * sigmoid(W [v_1 || v_2 ...] + b)``."""
        return 2 * super().forward(torch.cat(vectors, 1)).sigmoid()
