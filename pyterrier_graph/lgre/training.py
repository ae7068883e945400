"""Training on pairs: a relevant document and a less relevant document of the same query."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
import pydantic
import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pyterrier_graph.configuration import STRICT
from pyterrier_graph.encoders.checkpoints import tokenized
from pyterrier_graph.lgre.equations import LGRe
from pyterrier_graph.lgre.losses import LGReLoss, Ranking, pairwise_loss
from pyterrier_graph.training.trainer import HeadOptions

PairRanking = Literal[Ranking, "pointwise"]
Batch = dict[str, Tensor]


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=STRICT)
class PairTraining(HeadOptions, ABC):
    """Options of a training on pairs of documents; see also :class:`~pyterrier_graph.training.trainer.HeadOptions`.

    With the defaults training takes minutes on two cores: there are few pairs, and learning rates are higher than in
    the paper.

    Attributes:
        pairs_per_epoch: Number of pairs, drawn again for each epoch. Few documents give fewer pairs: at most twice as
            many as there are distinct ones.
        validation_candidates: Documents per validation query that are scored at each evaluation: the first ones of the
            run. None scores all of them.
    """

    epochs: PositiveInt = 2
    batch_size: PositiveInt = 8
    learning_rate: NonNegativeFloat = 5e-4
    encoder_learning_rate: NonNegativeFloat | None = 5e-5
    patience: PositiveInt | None = 2
    attention_dropout: bool = False
    pairs_per_epoch: PositiveInt = 64
    validation_candidates: PositiveInt | None = 10

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The options of Dong and Niu 2021, Sect. 4.1, and of the authors' code; ``changes`` replace some of them.

        A batch of 32 documents is 16 pairs, and an epoch has 32 batches, as in the authors' code.
        """
        published: dict[str, Any] = {
            "epochs": 20,
            "batch_size": 16,
            "learning_rate": 5e-5,
            "encoder_learning_rate": 1e-5,
            "measure": "P@20+nDCG@20",
            "patience": None,
            "pairs_per_epoch": 512,
            "validation_candidates": None,
            "attention_dropout": True,
        }
        return cls(**published | changes)

    def grades(self, label: np.ndarray) -> np.ndarray:
        """The grades of documents with these labels; the documents of a pair have different grades."""
        return label

    @abstractmethod
    def pair_loss(self, network: Any, inputs: Batch, relevant: Tensor) -> Tensor:
        """The mean loss of a network over pairs, whose documents d+, d- are one after another in ``inputs``.

        ``relevant`` is whether a document is relevant, shape (pairs, 2).
        """


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=STRICT)
class LGReTraining(PairTraining):
    """Options of ``LGReReranker.fit()``; see also :class:`~pyterrier_graph.lgre.training.PairTraining`."""

    loss: LGReLoss = field(default_factory=LGReLoss)

    def pair_loss(self, network: LGRe, inputs: Batch, relevant: Tensor) -> Tensor:
        """See :meth:`PairTraining.pair_loss`."""
        output = network(**inputs)
        return self.loss(output, inputs["segments"], relevant)


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=STRICT)
class CrossEncoderTraining(PairTraining):
    """Options of ``CrossEncoderReranker.fit()``; see also :class:`~pyterrier_graph.lgre.training.PairTraining`.

    Attributes:
        ranking: ``'hinge'`` or ``'softmax'``: see :class:`~pyterrier_graph.lgre.losses.LGReLoss`.
            ``'pointwise'``: binary cross-entropy of each document. The sigmoid of a score is then the probability that
            the document is relevant, in a collection where every second document is; labels above 0 are relevant.
    """

    ranking: PairRanking = "hinge"

    def grades(self, label: np.ndarray) -> np.ndarray:
        """The labels; for ``'pointwise'`` whether a document is relevant."""
        return label > 0 if self.ranking == "pointwise" else label

    def pair_loss(self, network: PreTrainedModel, inputs: Batch, relevant: Tensor) -> Tensor:
        """See :meth:`PairTraining.pair_loss`."""
        scores = pair_logits(network, inputs).view(relevant.shape)  # (pairs, 2)
        if self.ranking == "pointwise":
            return functional.binary_cross_entropy_with_logits(scores, relevant.to(scores.dtype))
        return pairwise_loss(scores, self.ranking)


class QueryPairs(Dataset):
    """Pairs (d+, d-) of the same query, drawn again in each epoch.

    As in the authors' code, the queries are visited in random order, and each visit gives one pair. A query with many
    relevant documents therefore counts no more than another query (Eq. 15). d+ is drawn uniformly from the relevant
    documents of the query (label > 0), and d- from the documents of the query that have a lower label than d+.

    ``query`` and ``label`` have one entry per document. An epoch has at most twice as many ``pairs`` as there are
    distinct ones.
    """

    def __init__(self, query: np.ndarray, label: np.ndarray, pairs: int, seed: int = 0) -> None:
        self.seed = seed
        self._order = np.lexsort((label, query))  # by query, the least relevant documents first
        query = query[self._order]
        label = label[self._order].astype(int)
        grades = np.ptp(label) + 1
        grade = query * grades + label  # ascends
        start = np.searchsorted(query, query)  # the first document of the same query, (documents,)
        end = np.searchsorted(query, query, side="right")
        lower = np.searchsorted(grade, grade)  # the first document with the same label
        has_lower = lower > start
        positive = np.flatnonzero((label > 0) & has_lower)
        if not len(positive):
            raise ValueError(
                "no training query has both a relevant document among its own and one judged lower"
            )
        lower_documents = (lower - start)[positive]  # number of each positive's
        self.pairs = min(pairs, 2 * int(lower_documents.sum()))
        # d+ is among the last documents of a query, d- between its first document and the first with the label of d+
        # the end of each query's documents, and how many of them may be d+; (queries,) each
        self._end, self._relevant = np.unique(end[positive], return_counts=True)
        self._lower = lower
        self._start = start
        self.draw(0)

    def __len__(self) -> int:
        return self.pairs

    def __getitem__(self, position: int) -> tuple[int, ...]:
        """Positions of d+ and d- among the documents."""
        return tuple(self._drawn[position].tolist())

    def draw(self, epoch: int) -> None:
        """Draws the pairs of an epoch; the round over the queries continues where the previous epoch ended."""
        queries = len(self._end)
        first, offset = divmod(epoch * self.pairs, queries)
        turns = math.ceil((offset + self.pairs) / queries)
        drawn = [self._turn(first + number) for number in range(turns)]
        pairs = np.concatenate(drawn)  # (pairs, 2)
        self._drawn = pairs[offset : offset + self.pairs]

    def _turn(self, number: int) -> np.ndarray:
        """A pair of each query, shape (queries, 2)."""
        random = np.random.default_rng([self.seed, number])
        turn = random.permutation(len(self._end))
        first = self._end - self._relevant
        positive = random.integers(first[turn], self._end[turn])
        negative = random.integers(self._start[positive], self._lower[positive])
        pairs = np.column_stack([positive, negative])
        return self._order[pairs]


def tokenize_pairs(
    tokenizer: PreTrainedTokenizerBase,
    max_tokens: int,
    queries: list[str],
    documents: list[str],
) -> Batch:
    """Arguments of :meth:`LGRe.forward` for each query with its document; the longer of the two is cut."""
    encoding = tokenized(
        tokenizer,
        queries,
        documents,
        padding=True,
        truncation="longest_first",
        max_length=max_tokens,
        return_tensors="pt",
    )
    segments = []
    for pair in encoding.encodings:
        sides = pair.sequence_ids  # None for special tokens
        segments.append([-1 if side is None else side for side in sides])
    return {**encoding, "segments": torch.tensor(segments)}


@dataclass
class PairCollator:
    """Makes batches of pairs."""

    tokenizer: PreTrainedTokenizerBase
    max_tokens: int
    documents: pd.DataFrame  # with the columns query, document, label

    def __call__(self, pairs: Sequence[tuple[int, ...]]) -> Batch:
        """The arguments of :class:`PairModel`."""
        rows = self.documents.iloc[np.ravel(pairs)]
        queries = rows["query"].tolist()
        documents = rows["document"].tolist()
        batch = tokenize_pairs(self.tokenizer, self.max_tokens, queries, documents)
        relevant = rows["label"].to_numpy() > 0
        batch["relevant"] = torch.from_numpy(relevant)
        shape = (len(pairs), 2)
        return {name: tensor.unflatten(0, shape) for name, tensor in batch.items()}


class PairModel(nn.Module):
    """A network with its loss."""

    accepts_loss_kwargs = False  # so that Trainer divides the loss by accumulated steps

    def __init__(self, network: nn.Module, options: PairTraining) -> None:
        super().__init__()
        self.network: Any = network
        self.options = options

    def forward(self, relevant: Tensor, **inputs: Tensor) -> Batch:
        """The mean loss of pairs (d+, d-): tensors of shape (pairs, 2), (pairs, 2, tokens)."""
        inputs = {name: tensor.flatten(0, 1) for name, tensor in inputs.items()}
        loss = self.options.pair_loss(self.network, inputs, relevant)
        return {"loss": loss}


def pair_logits(model: PreTrainedModel, inputs: Batch) -> Tensor:
    """Scores by a model for sequence classification with one label, which does not use ``segments``."""
    inputs = {name: tensor for name, tensor in inputs.items() if name != "segments"}
    output = model(**inputs)
    return output.logits[:, 0]
