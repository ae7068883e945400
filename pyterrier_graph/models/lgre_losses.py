"""The losses of LGRe: a pairwise ranking loss and the triangle distance; for the source see ``models/lgre.py``."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from pyterrier_graph.checks import check_fields
from pyterrier_graph.encoders.devices import at_least_float32, full_precision
from pyterrier_graph.models.lgre import LGReOutput

Ranking = Literal["hinge", "softmax"]
Distance = Literal["none", "point", "pair", "triangle"]


@dataclass(frozen=True)
class LGReLoss:
    """Ranking loss plus lambda times a distance, for a batch of documents of several queries.

    The paper's relevance is binary. With graded labels, the ranking loss compares documents with different grades, but
    the distance only distinguishes relevant documents from others.

    Attributes:
        ranking: ``'hinge'``: max(0, 1 - f+ + f-) (Eq. 15). ``'softmax'``: 1 - p+ + p-, where p is the softmax of both
            scores (the code).
        distance: ``'none'``; ``'point'`` (Eq. 13), between a query and a document; ``'pair'`` (Eq. 12), between two
            documents; ``'triangle'``, both (Eq. 14).
        weight: lambda.
        rescaled: Whether each distance is scaled to the value of the ranking loss, so that lambda is its share (the
            code), or taken as it is (the paper).
        similarity: cos(E^q, E^d) of Eq. 13, where the paper leaves open which vectors these are. ``'pairs'``: mean over
            all pairs of a query word and a document word (the code). ``'means'``: cosine of the mean word states.
        pair_layers: ``'last'``: Eq. 12, with the cosines of [CLS] of the encoder's last layer and of the deepest graph.
            ``'all'``: 1 plus the cosine of the concatenated representations of all layers (the code).

    Raises:
        ValueError: If an option has a value that is not allowed.
    """

    ranking: Ranking = "hinge"
    distance: Distance = "triangle"
    weight: float = 0.01
    rescaled: bool = False
    similarity: Literal["pairs", "means"] = "pairs"
    pair_layers: Literal["last", "all"] = "last"

    def __post_init__(self) -> None:
        check_fields(self, weight=0)

    def __call__(
        self, output: LGReOutput, segments: Tensor, positive: Tensor, queries: Tensor, relevant: Tensor | None = None
    ) -> Tensor:
        """The loss, a scalar: per query over its documents or pairs of documents, then the mean over queries.

        A query without both kinds of documents has no pairs, and is only in Eq. 13.

        Args:
            output: Output of the model.
            segments: Those of the model's arguments, shape (batch, tokens).
            positive: Whether a document belongs above the other documents of its query, shape (batch,).
            queries: Number of each document's query, shape (batch,).
            relevant: y, whether a document is relevant, shape (batch,); by default ``positive``.
        """
        positive = positive.bool()
        relevant = positive if relevant is None else relevant.bool()
        same = queries[:, None] == queries
        difference = output.scores - output.scores[:, None]  # f- minus f+, for d+ in rows and d- in columns
        loss = rank = _mean(pairwise_loss(difference, self.ranking), _shares(same, positive))  # Eq. 15
        distances = []
        if self.distance in ("point", "triangle"):
            sign = 1 - 2 * relevant.float()
            distances.append(_mean(1 + sign * self._similarity(output.states, segments), 1 / same.sum(1)))  # Eq. 13
        if self.distance in ("pair", "triangle"):
            distances.append(_mean(self._pair_cosines(output), _shares(same, relevant)))  # Eq. 12
        for distance in distances:  # Eq. 14
            if self.rescaled:
                distance = distance * (rank / distance.clamp(min=torch.finfo(distance.dtype).eps)).detach()
            loss = loss + self.weight * distance
        return loss

    def _similarity(self, states: Tensor, segments: Tensor) -> Tensor:
        """cos(E^q, E^d) of each pair, shape (batch,)."""
        pairs, states = self.similarity == "pairs", at_least_float32(states)
        states = functional.normalize(states, dim=-1) if pairs else states
        query, document = (_mean(states, (segments == number)[..., None], 1) for number in (0, 1))
        # the mean of the products is the product of the means
        return (query * document).sum(-1) if pairs else functional.cosine_similarity(query, document, dim=-1)

    def _pair_cosines(self, output: LGReOutput) -> Tensor:
        """The terms of Eq. 12 for all pairs of documents, shape (batch, batch)."""
        if self.pair_layers == "all":
            return 1 + _cosines(output.representations.flatten(1))
        return (2 + _cosines(output.states[:, 0]) + _cosines(output.representations[:, -1])) / 2


def pairwise_loss(difference: Tensor, ranking: Ranking) -> Tensor:
    """Eq. 15, or the loss of the authors' code, of f- minus f+; of the same shape."""
    return (1 + difference).relu() if ranking == "hinge" else 2 * difference.sigmoid()


def _shares(same: Tensor, positive: Tensor) -> Tensor:
    """The weight of each pair (d+, d-) in the mean over the pairs of its query, shape (batch, batch)."""
    pairs = same & positive[:, None] & ~positive
    of_query = same.float() @ pairs.sum(1).float()  # n+ n-
    return pairs / of_query.clamp(min=1)


def _cosines(vectors: Tensor) -> Tensor:
    unit = functional.normalize(at_least_float32(vectors), dim=-1)
    with full_precision(unit):
        return unit @ unit.mT


def _mean(values: Tensor, weights: Tensor, dim: int | None = None) -> Tensor:
    """Weighted mean; 0 if all weights are 0."""
    return (values * weights).sum(dim) / weights.sum(dim).clamp(min=torch.finfo(values.dtype).eps)
