r"""The losses of LGRe: a pairwise ranking loss and the triangle distance (Dong and Niu 2021, Eq. 12 to 15).

Of a query with documents :math:`d^+` and :math:`d^-`, their scores f, relevance :math:`y \in \{0, 1\}`, the mean
states :math:`E^q` and :math:`E^d` of the words of query and document, and representations :math:`h` of pairs:

.. math::

    L_{pair} &= 1 + \tfrac{1}{2} (\cos(E^+_{[CLS]}, E^-_{[CLS]}) + \cos(h^+, h^-)) \quad \text{(Eq. 12)}

    L_{point} &= 1 + (1 - 2 y) \cos(E^q, E^d) \quad \text{(Eq. 13)}

    L &= L_{rank} + \lambda (L_{point} + L_{pair}) \quad \text{(Eq. 14)}

    L_{rank} &= \max(0, 1 - f^+ + f^-) \quad \text{(Eq. 15)}
"""

from typing import Literal

import pydantic
import torch
from pydantic import NonNegativeFloat
from torch import Tensor
from torch.nn import functional

from pyterrier_graph.configuration import STRICT
from pyterrier_graph.encoders.checkpoints import at_least_float32
from pyterrier_graph.lgre.equations import LGReOutput

Ranking = Literal["hinge", "softmax"]
Distance = Literal["none", "point", "pair", "triangle"]


@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
class LGReLoss:
    """Ranking loss plus lambda times a distance, for a batch of pairs (d+, d-) of documents of a query.

    The paper's relevance is binary. With graded labels, the ranking loss compares documents with different grades, but
    the distance only distinguishes relevant documents from others.

    Attributes:
        ranking: ``'hinge'``: max(0, 1 - f+ + f-) (Eq. 15). ``'softmax'``: 1 - p+ + p-, where p is the softmax of both
            scores (the code).
        distance: ``'none'``; ``'point'`` (Eq. 13), between a query and a document; ``'pair'`` (Eq. 12), between two
            documents; ``'triangle'``, both (Eq. 14).
        weight: lambda.
    """

    ranking: Ranking = "hinge"
    distance: Distance = "triangle"
    weight: NonNegativeFloat = 0.01

    def __call__(self, output: LGReOutput, segments: Tensor, relevant: Tensor) -> Tensor:
        """The loss, a scalar: the mean over pairs (d+, d-).

        ``relevant`` is y, whether a document is relevant, shape (pairs, 2); the output of the model, and its argument
        ``segments``, are for the documents of all pairs, one after another.
        """
        scores = output.scores.view(relevant.shape)  # (pairs, 2)
        loss = pairwise_loss(scores, self.ranking)  # Eq. 15
        if self.distance in ("point", "triangle"):  # Eq. 13, 14
            y = relevant.flatten().float()  # (2 pairs,)
            sign = 1 - 2 * y
            cosines = similarity(output.states, segments)
            point = 1 + sign * cosines
            loss = loss + self.weight * point.mean()
        if self.distance in ("pair", "triangle"):  # Eq. 12, by the deepest graph, and 14
            by_states = _cosines(output.states[:, 0])  # (pairs,)
            by_graphs = _cosines(output.representations[:, -1])
            pair = 1 + (by_states + by_graphs) / 2
            first, second = relevant.bool().unbind(1)  # (pairs,) each
            differ = first & ~second
            loss = loss + self.weight * _mean(pair, differ)
        return loss


def similarity(states: Tensor, segments: Tensor) -> Tensor:
    """cos(E^q, E^d) of each pair, shape (batch,): the mean over pairs of a query and a document word (the code)."""
    query, document = mean_words(states, segments)
    products = query * document  # of means, which are the means of products
    return products.sum(-1)


def mean_words(states: Tensor, segments: Tensor) -> tuple[Tensor, Tensor]:
    """Means of the unit-length states of query words and of document words, both of shape (batch, d)."""
    states = at_least_float32(states)
    states = functional.normalize(states, dim=-1)
    segments = segments[..., None]  # (batch, tokens, 1)
    query = _mean(states, segments == 0, 1)
    document = _mean(states, segments == 1, 1)
    return query, document


def pairwise_loss(scores: Tensor, ranking: Ranking) -> Tensor:
    """Eq. 15, or the loss of the authors' code, of f+ and f-, shape (pairs, 2); the mean over pairs."""
    difference = scores[:, 1] - scores[:, 0]  # (pairs,)
    if ranking == "softmax":
        return 2 * difference.sigmoid().mean()
    hinge = (1 + difference).relu()
    return hinge.mean()


def _cosines(vectors: Tensor) -> Tensor:
    """The cosine of both vectors of each pair, of shape (2 pairs, d); shape (pairs,)."""
    vectors = at_least_float32(vectors)
    unit = functional.normalize(vectors, dim=-1)
    products = unit[::2] * unit[1::2]  # (pairs, d)
    return products.sum(-1)


def _mean(values: Tensor, weights: Tensor, dim: int | None = None) -> Tensor:
    """Weighted mean; 0 if all weights are 0."""
    epsilon = torch.finfo(values.dtype).eps  # instead of a division by 0
    weighted = values * weights
    total_weight = weights.sum(dim).clamp(min=epsilon)
    return weighted.sum(dim) / total_weight
