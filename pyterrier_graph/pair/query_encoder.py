r"""A query encoder that learns for passage vectors that stay as they are: the last stage of GNN-encoder's preprint.

J. Liu et al.: GNN-encoder. arXiv 2204.08241, Sect. 4.3. The similarity in the loss is :math:`E_Q(q) \cdot h'_p`
(Eq. 12), where :math:`h'_p` is the vector of passage p in an index.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from datasets import Dataset as Examples
from pyterrier_dr import FlexIndex
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from torch.utils.data import Dataset

from pyterrier_graph.encoders.sentence_encoder import encoded, is_normalized, scale_of
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.pair.losses import in_batch_loss
from pyterrier_graph.pair.mining import example_ids
from pyterrier_graph.pair.training import DualEncoderTraining
from pyterrier_graph.storage.arrays import known_numbers_of
from pyterrier_graph.training.model import Log, Run
from pyterrier_graph.training.trainer import train


class IndexedExamples(Dataset):
    """Training queries with the vectors that an index has for their positives and hard negatives.

    In each epoch every query has one of its examples, so that none of its positives is a negative.

    Raises:
        KeyError: If the index lacks a passage.
    """

    def __init__(self, examples: Examples, index: FlexIndex, seed: int) -> None:
        lookup, self.vectors, _ = index.payload()
        qids, docnos = example_ids(examples)
        self.passages = known_numbers_of(lookup, docnos)  # (examples, 1 + negatives)
        self.queries = examples["query"]
        self.seed = seed
        queries, query = np.unique(qids, return_inverse=True)
        rows = np.arange(len(query))  # of the examples
        self._of_query = CSR.group(query, rows, len(queries))
        self.draw(0)

    def draw(self, epoch: int) -> None:
        """Draws an example of each query."""
        random = np.random.default_rng((self.seed, epoch))
        queries = np.arange(len(self))
        self._drawn = self._of_query.draw(queries, random)

    def __len__(self) -> int:
        return len(self._of_query)

    def __getitem__(self, position: int) -> int:
        return int(self._drawn[position])

    def __call__(self, rows: Sequence[int]) -> dict[str, Any]:
        """The batch of some examples, with each passage once."""
        passages, position = np.unique(self.passages[rows], return_inverse=True)
        vectors = np.array(self.vectors[passages], dtype=np.float32)  # (passages, d)
        position = position.reshape(len(rows), -1)  # (rows, 1 + negatives), in ``passages``
        return {
            "texts": [self.queries[row] for row in rows],
            "passages": torch.from_numpy(vectors),
            "positives": torch.from_numpy(position[:, 0]),
        }


class QueryEncoderModel(nn.Module):
    """An encoder of queries with its loss."""

    def __init__(self, encoder: SentenceTransformer, scale: float) -> None:
        super().__init__()
        self.encoder = encoder
        self.scale = scale

    def forward(self, texts: list[str], passages: Tensor, positives: Tensor) -> dict[str, Tensor]:
        """Eq. 2 with the similarity of Eq. 12: ``{'loss': ...}``; ``passages`` are h'_p, shape (passages, d)."""
        queries = encoded(self.encoder, texts, "query")  # (queries, d)
        passages = passages.to(queries.device)
        positives = positives.to(queries.device)
        loss = in_batch_loss(queries, passages, positives, scale=self.scale)
        return {"loss": loss}


def train_query_encoder(
    encoder: SentenceTransformer,
    examples: IndexedExamples,
    options: DualEncoderTraining,
    run: Run,
) -> Log:
    """Trains an encoder in place; returns the log of :func:`~pyterrier_graph.training.trainer.train`."""
    schedule = {"lr_scheduler_type": "linear", "warmup_steps": options.warmup}
    options = replace(options, arguments=schedule | options.arguments)
    scale = scale_of(options.scale, is_normalized(encoder))
    model = QueryEncoderModel(encoder, scale)
    weights = list(encoder.parameters())
    rates = [(weights, options.learning_rate)]
    collate = examples  # calling them makes a batch
    return train(model, examples, collate, options, run, rates=rates)
