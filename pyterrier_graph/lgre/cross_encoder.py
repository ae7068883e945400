"""CrossEncoderReranker: a cross-encoder in a pipeline, and the base of rerankers of query-document pairs."""

import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
import pyterrier as pt
import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from pyterrier_graph.checks import check_frame, progress, query_texts
from pyterrier_graph.encoders.checkpoints import (
    SAFE_WEIGHTS,
    DType,
    loading,
    positions_of,
    precision,
    score_in_full_precision,
)
from pyterrier_graph.encoders.names import checkpoint_name, resolve
from pyterrier_graph.lgre.training import (
    Batch,
    CrossEncoderTraining,
    PairCollator,
    PairModel,
    PairTraining,
    QueryPairs,
    pair_logits,
    tokenize_pairs,
)
from pyterrier_graph.storage.artifact import frame_sha256
from pyterrier_graph.training.model import Reranker
from pyterrier_graph.training.trainer import train
from pyterrier_graph.training.validation import JudgedRun, Validation

CHECKPOINT = "cross-encoder"


class TextReranker(Reranker):
    """Base of the rerankers that score pairs of texts, each query with one document."""

    TRAINING: ClassVar[type[PairTraining]]
    WRITTEN: tuple[str, ...] = ("max_tokens",)

    batch_size: int

    def __init__(
        self,
        encoder: str | os.PathLike[str],
        training: PairTraining | None,
        max_tokens: int,
        batch_size: int,
        device: str | None,
        dtype: DType,
        verbose: bool,
    ) -> None:
        pt.Artifact.__init__(self, pt.Artifact.NO_PATH)
        self.encoder = os.fspath(encoder)
        self.checkpoint = resolve(encoder)
        self.training = training or self.TRAINING()
        self.batch_size = batch_size
        self.device = device
        self.dtype = dtype
        self.verbose = verbose
        self._check()
        with loading(self.encoder):
            self.tokenizer = AutoTokenizer.from_pretrained(self.checkpoint, padding_side="right")
            config = AutoConfig.from_pretrained(self.checkpoint)
        positions = positions_of(config) or max_tokens
        self.max_tokens = min(max_tokens, self.tokenizer.model_max_length, positions)
        has_head = "ForSequenceClassification" in str(config.architectures)
        self._is_cross_encoder = has_head and config.num_labels == 1

    def __repr__(self) -> str:
        return f"{type(self).__name__}({checkpoint_name(self.encoder)!r})"

    @abstractmethod
    def _scores_of(self, batch: Batch) -> Tensor:
        """Scores of tokenized pairs, shape (pairs,)."""

    def _checked(self, run: pd.DataFrame) -> pd.DataFrame:
        run = check_frame(run, self, numbers=("rank",), texts=("text",))
        pt.validate.result_frame(run, extra_columns=["query", "text"], context=self)
        return run

    def _scores(self, run: pd.DataFrame) -> np.ndarray:
        queries, documents = self._texts(run)
        scores = self._compute(self._scores_of, queries, documents)
        return scores.astype(float)

    def _compute(
        self,
        function: Callable[[Batch], Tensor],
        queries: Sequence[str],
        documents: Sequence[str],
    ) -> np.ndarray:
        """The results of a function of tokenized pairs. Texts of similar length are in the same batch."""
        if not queries:
            return np.zeros(0)
        pairs = zip(queries, documents, strict=True)
        lengths = [len(query) + len(document) for query, document in pairs]
        order = np.argsort(-np.array(lengths), kind="stable")  # the longest pairs first
        starts = range(0, len(order), self.batch_size)
        batches = [order[start : start + self.batch_size] for start in starts]
        results = []
        for rows in progress(batches, len(set(queries)), "batch", verbose=self.verbose):
            batch_queries = [queries[row] for row in rows]
            batch_documents = [documents[row] for row in rows]
            batch = self._tokens(batch_queries, batch_documents)
            with torch.inference_mode(), precision(self.dtype, self._device):
                result = function(batch)
                results.append(result.cpu().numpy())
        by_length = np.concatenate(results)
        original_order = np.argsort(order)
        return by_length[original_order]

    def _tokens(self, queries: list[str], documents: list[str]) -> Batch:
        batch = tokenize_pairs(self.tokenizer, self.max_tokens, queries, documents)
        return send_to_device(batch, self._device)

    def _texts(self, run: pd.DataFrame) -> tuple[list[str], list[str]]:
        """Query and document of each row."""
        queries = query_texts(run).reindex(run["qid"]).tolist()
        return queries, run["text"].tolist()

    def _learn(self, training: JudgedRun, validation: JudgedRun | None) -> None:
        """Trains on pairs of documents of the same query: a relevant one and a less relevant one."""
        options: PairTraining = self.training
        validate = None
        if validation is not None:
            count = options.validation_candidates
            measure = Validation(validation, options.measure, candidates=count)
            validate = partial(self._measured, measure)
        run = training.rows.drop_duplicates(["qid", "docno"])
        query, _ = run["qid"].factorize()
        queries, texts = self._texts(run)
        label = training.labels[run.index]
        grades = options.grades(label)
        pairs = QueryPairs(query, grades, options.pairs_per_epoch, options.seed)
        documents = pd.DataFrame({"query": queries, "document": texts, "label": label})
        identity = {
            "config": repr(getattr(self, "config", None)),
            "max_tokens": self.max_tokens,
            "training examples": frame_sha256(documents),
        }
        self.training_log = train(
            PairModel(self.network, options),
            pairs,
            PairCollator(self.tokenizer, self.max_tokens, documents),
            options,
            self._run(validate, identity),
            rates=self._rates(),
        )

    def _measured(self, measure: Validation) -> np.ndarray:
        """The measure of each validation query with the present weights."""
        scores = self._scores(measure.run)
        return measure.per_query(scores)

    def _rates(self) -> list[tuple[list[nn.Parameter], float]]:
        """The learning rate of each group of parameters; an encoder without one is frozen."""
        rate = self.training.encoder_learning_rate
        encoder = self.network.base_model
        encoder.requires_grad_(rate is not None)
        encoder_weights = list(encoder.parameters())
        in_encoder = set(encoder_weights)
        head = [weights for weights in self.network.parameters() if weights not in in_encoder]
        return [(head, self.training.learning_rate), (encoder_weights, rate or 0.0)]


class CrossEncoderReranker(TextReranker):
    """Reranks documents by a cross-encoder: an encoder that reads query and document, and a score of its [CLS] state.

    It is the baseline of :class:`~pyterrier_graph.lgre.reranker.LGReReranker`, which explains how to rerank documents
    longer than ``max_tokens``; both are trained on the same pairs in the same way. ``save(path)`` writes an ordinary
    ``CrossEncoder`` of sentence-transformers to ``path/cross-encoder``, but ``max_tokens`` is not part of it.

    A teacher for :class:`~pyterrier_graph.pair.mining.HardNegativeMiner` returns probabilities::

        CrossEncoderReranker(encoder, training=CrossEncoderTraining(ranking="pointwise"), probabilities=True)

    Args:
        encoder: Name or folder of a checkpoint: a cross-encoder with one label, or any encoder, which gets a random
            head (drawn by ``training.seed``), so that scores are random before training.
        training: Options of :meth:`fit`.
        probabilities: Whether a score is the sigmoid of the logit instead of the logit. It is a probability if the
            model was trained by binary cross-entropy.

    For columns and the other arguments see :class:`~pyterrier_graph.LGReReranker`.
    """

    schematic = {"label": "cross-encoder", "help_url": "https://pypi.org/project/pyterrier-graph/"}
    ARTIFACT_FORMAT = "cross_encoder"
    TRAINING = CrossEncoderTraining
    WRITTEN = (*TextReranker.WRITTEN, "probabilities")
    KEEP_WEIGHTS = TextReranker.KEEP_WEIGHTS | {"probabilities"}

    def __init__(
        self,
        encoder: str | os.PathLike[str],
        *,
        training: CrossEncoderTraining | None = None,
        probabilities: bool = False,
        max_tokens: int = 512,
        batch_size: int = 32,
        device: str | None = None,
        dtype: DType = "auto",
        verbose: bool = True,
    ) -> None:
        super().__init__(encoder, training, max_tokens, batch_size, device, dtype, verbose)
        self.probabilities = probabilities
        self.random_start = not self._is_cross_encoder
        with torch.random.fork_rng(), loading(self.encoder):
            torch.manual_seed(self.training.seed)
            network = AutoModelForSequenceClassification.from_pretrained(
                self.checkpoint, num_labels=1, **SAFE_WEIGHTS
            )
        score_in_full_precision(network)
        self.network = network.eval().to(self._device)

    def _scores_of(self, batch: Batch) -> Tensor:
        logits = pair_logits(self.network, batch)
        if not self.probabilities:
            return logits
        # in 32 bits the sigmoid of 17 is 1, and scores would tie
        return logits.double().sigmoid()

    def encode_pairs(self, queries: Sequence[str], documents: Sequence[str]) -> np.ndarray:
        """[CLS] states of pairs, shape (pairs, d), for ``QueryPassageGraph.add_edge_features``."""

        def state(batch: Batch) -> Tensor:
            del batch["segments"]
            states = self.network.base_model(**batch).last_hidden_state  # (pairs, tokens, d)
            return states[:, 0].float()

        return self._compute(state, queries, documents)

    def _write(self, folder: Path) -> dict[str, Any]:
        activation = "torch.nn.Sigmoid" if self.probabilities else "torch.nn.Identity"
        self.network.config.sentence_transformers = {"activation_fn": activation}
        self.network.save_pretrained(folder / CHECKPOINT)
        self.tokenizer.save_pretrained(folder / CHECKPOINT)
        return {}

    @classmethod
    def _read(cls, folder: Path, about: dict[str, Any], options: dict[str, Any]) -> Self:
        return cls(folder / CHECKPOINT, **options)
