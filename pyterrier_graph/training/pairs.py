"""Pairs to train with: a relevant and a less relevant document of the same query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset
from transformers import PreTrainedModel

from pyterrier_graph.encoders.pair_tokenizer import PairTokenizer
from pyterrier_graph.models.lgre import LGRe
from pyterrier_graph.models.lgre_losses import LGReLoss, Ranking, pairwise_loss
from pyterrier_graph.training.options import HeadOptions

PairRanking = Literal[Ranking, "pointwise"]


@dataclass(frozen=True, kw_only=True)
class PairTraining(HeadOptions):
    """Options of a training with pairs of documents.

    The defaults are those of Dong and Niu 2021, Sect. 4.1: 20 epochs, batches of 32 pairs, rates of 1e-5 for the
    encoder and 5e-5 for the rest. The paper has no early stopping: ``patience=None``.

    Attributes:
        pairs_per_epoch: Number of pairs, drawn anew for each epoch (the authors' code: 512).

    For the other attributes see :class:`~pyterrier_graph.training.options.HeadOptions`.
    """

    epochs: int = 20
    learning_rate: float = 5e-5
    encoder_learning_rate: float | None = 1e-5
    measure: str = "nDCG@20"
    pairs_per_epoch: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pairs_per_epoch < 1:
            raise ValueError("pairs_per_epoch must be positive")

    def grades(self, label: np.ndarray) -> np.ndarray:
        """The labels between which pairs tell documents apart."""
        return label


@dataclass(frozen=True, kw_only=True)
class LGReTraining(PairTraining):
    """Options of ``LGReReranker.fit()``.

    Attributes:
        loss: Ranking loss, distance, and lambda.

    For the other attributes see :class:`~pyterrier_graph.training.pairs.PairTraining`.
    """

    loss: LGReLoss = field(default_factory=LGReLoss)


@dataclass(frozen=True, kw_only=True)
class CrossEncoderTraining(PairTraining):
    """Options of ``CrossEncoderReranker.fit()``.

    Attributes:
        ranking: ``'hinge'`` or ``'softmax'``: see :class:`~pyterrier_graph.models.lgre_losses.LGReLoss`.
            ``'pointwise'``: binary cross-entropy of each document by itself, so that the sigmoid of a score is the
            probability that the document is relevant, where half of them are; whatever is judged above 0 is relevant.

    For the other attributes see :class:`~pyterrier_graph.training.pairs.PairTraining`;
    ``learning_rate`` is that of the classification head.
    """

    ranking: PairRanking = "hinge"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ranking not in get_args(PairRanking):
            raise ValueError(f"ranking must be one of {get_args(PairRanking)}, got {self.ranking!r}")

    def grades(self, label: np.ndarray) -> np.ndarray:
        """The labels, or whether they are above 0 where a document is learned to be relevant or not."""
        return label > 0 if self.ranking == "pointwise" else label


class QueryPairs(Dataset):
    """Pairs (d+, d-) of the same query, drawn anew in each epoch.

    As in the authors' code, queries take turns in random order, each giving one pair, so that one with many relevant
    documents counts no more than another (Eq. 15 is a mean over the pairs of each query). d+ is drawn evenly from the
    query's relevant documents (label > 0), then d- from those that are judged lower, an unjudged one being 0.

    Args:
        query: Number of each document's query, shape (documents,).
        label: Its relevance for the query, likewise.
        pairs: Pairs per epoch.
        seed: The same seed gives the same pairs in the same epoch.

    Raises:
        ValueError: If no query has both a relevant document and one that is judged lower.
    """

    def __init__(self, query: np.ndarray, label: np.ndarray, pairs: int, seed: int = 0) -> None:
        self.pairs = pairs
        self.seed = seed
        self._order = np.lexsort((label, query))  # by query, least relevant documents first
        query, label = query[self._order], label[self._order]
        _, first, size = np.unique(query, return_index=True, return_counts=True)
        start, end = np.repeat(first, size), np.repeat(first + size, size)
        changes = np.flatnonzero(np.diff(label, prepend=np.nan) != 0)  # where documents of another relevance begin
        lower = np.maximum(changes[np.searchsorted(changes, np.arange(len(label)), "right") - 1], start)
        positive = np.flatnonzero((label > 0) & (lower > start))
        if not len(positive):
            raise ValueError("no training query has both a relevant document among its own and one judged lower")
        # d+ of a query are its last documents, d- those from its first one to those as relevant as d+
        self._positives = np.unique(end[positive], return_counts=True)
        self._lower, self._start = lower, start
        self.draw(0)

    def __len__(self) -> int:
        return self.pairs

    def __getitem__(self, position: int) -> tuple[int, int]:
        """Positions of d+ and d- among the documents."""
        positive, negative = self._drawn[position]
        return int(positive), int(negative)

    def draw(self, epoch: int) -> None:
        """Draws the pairs of an epoch; queries go on taking turns where the epoch before ended."""
        queries = len(self._positives[0])
        turn, offset = divmod(epoch * self.pairs, queries)
        turns = range(turn, turn + -(-(offset + self.pairs) // queries))
        self._drawn = np.concatenate([self._turn(number) for number in turns])[offset : offset + self.pairs]

    def _turn(self, number: int) -> np.ndarray:
        """A pair of each query, shape (queries, 2)."""
        random = np.random.default_rng([self.seed, number])
        end, count = self._positives
        turn = random.permutation(len(end))
        positive = random.integers((end - count)[turn], end[turn])
        negative = random.integers(self._start[positive], self._lower[positive])
        return self._order[np.column_stack([positive, negative])]


class PairCollator:
    """Makes batches of pairs.

    Args:
        tokenizer: Of the encoder.
        queries: Text of each document's query.
        documents: Texts.
    """

    def __init__(self, tokenizer: PairTokenizer, queries: Sequence[str], documents: Sequence[str]) -> None:
        self.tokenize = tokenizer  # Trainer writes what is called a tokenizer into each checkpoint
        self.queries = queries
        self.documents = documents

    def __call__(self, pairs: Sequence[tuple[int, int]]) -> dict[str, Tensor]:
        """What :class:`PairModel` takes: tensors of shape (pairs, 2, tokens)."""
        rows = [row for pair in pairs for row in pair]
        batch = self.tokenize([self.queries[row] for row in rows], [self.documents[row] for row in rows])
        return {name: tensor.unflatten(0, (-1, 2)) for name, tensor in batch.items()}


class PairModel(nn.Module):
    """An LGRe with the loss on pairs; a query that has several in a batch counts once for each.

    Args:
        lgre: The model.
        loss: The loss.
    """

    def __init__(self, lgre: LGRe, loss: LGReLoss) -> None:
        super().__init__()
        self.lgre = lgre
        self.loss = loss

    # named one by one: with **arguments, Trainer would leave the division by accumulated steps to this method
    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, segments: Tensor, token_type_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The loss of pairs (d+, d-); arguments as for :meth:`LGRe.forward`, of shape (pairs, 2, tokens)."""
        types = None if token_type_ids is None else token_type_ids.flatten(0, 1)
        segments = segments.flatten(0, 1)
        output = self.lgre(input_ids.flatten(0, 1), attention_mask.flatten(0, 1), segments, types)
        document = torch.arange(len(segments), device=segments.device)
        return {"loss": self.loss(output, segments, document % 2 == 0, document // 2)}

    def gradient_checkpointing_enable(self, **arguments: Any) -> None:
        """As ``Trainer`` asks for it with ``TrainingArguments(gradient_checkpointing=True)``."""
        self.lgre.gradient_checkpointing_enable(**arguments)


class CrossEncoderPairs(nn.Module):
    """A cross-encoder with the loss on pairs.

    Args:
        model: For sequence classification, with one label.
        ranking: The loss.
    """

    def __init__(self, model: PreTrainedModel, ranking: PairRanking) -> None:
        super().__init__()
        self.model = model
        self.ranking = ranking

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, segments: Tensor, token_type_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The mean loss of pairs (d+, d-); as for :class:`PairModel`, whose segments it has no use for."""
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids.flatten(0, 1)}
        output = self.model(input_ids=input_ids.flatten(0, 1), attention_mask=attention_mask.flatten(0, 1), **types)
        scores = output.logits[:, 0].view(-1, 2)
        if self.ranking == "pointwise":
            relevant = torch.tensor([1, 0], dtype=scores.dtype, device=scores.device).expand_as(scores)
            return {"loss": functional.binary_cross_entropy_with_logits(scores, relevant)}
        positive, negative = scores.unbind(1)
        return {"loss": pairwise_loss(negative - positive, self.ranking).mean()}

    def gradient_checkpointing_enable(self, **arguments: Any) -> None:
        """As ``Trainer`` asks for it with ``TrainingArguments(gradient_checkpointing=True)``."""
        self.model.gradient_checkpointing_enable(**arguments)
