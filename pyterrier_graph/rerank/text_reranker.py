"""What the rerankers that read a query and a document together have in common: frames and training."""

from __future__ import annotations

import hashlib
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np
import pandas as pd
import pyterrier as pt
import torch
from torch import Tensor, nn

from pyterrier_graph.encoders.checkpoints import checkpoint_name
from pyterrier_graph.encoders.devices import device_of
from pyterrier_graph.encoders.pair_tokenizer import PairTokenizer
from pyterrier_graph.encoders.queries import query_texts
from pyterrier_graph.plots.model_html import parameters, reranker_html, training_calls, training_sizes
from pyterrier_graph.rerank.base import ranked
from pyterrier_graph.training.learned_model import LearnedModel
from pyterrier_graph.training.pairs import PairCollator, PairTraining, QueryPairs
from pyterrier_graph.training.trainer import train
from pyterrier_graph.training.validation import RunEvaluator, judged, judged_ids


class TextReranker(LearnedModel):
    """Base of the rerankers that score texts, each query and document by itself.

    Attributes:
        tokenizer: Makes the network's input.
    """

    ARTIFACT_TYPE = "reranker"
    WRITTEN = ("max_length", "text_field", "seed")

    training: PairTraining
    batch_size: int
    max_length: int
    text_field: str
    seed: int
    verbose: bool
    tokenizer: PairTokenizer

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        batch_size: int,
        max_length: int,
        text_field: str,
        seed: int,
        device: str | None,
        verbose: bool,
    ) -> None:
        pt.Artifact.__init__(self, pt.Artifact.NO_PATH)
        if batch_size < 1:
            raise ValueError(f"batch_size must be positive, got {batch_size}")
        self.model = str(model)
        self.batch_size = batch_size
        self.max_length = max_length
        self.text_field = text_field
        self.seed = seed
        self.device = device
        self.verbose = verbose

    @property
    @abstractmethod
    def encoder(self) -> nn.Module:
        """The part of the network that learns at ``training.encoder_learning_rate``."""

    @abstractmethod
    def _scores(self, batch: dict[str, Tensor]) -> Tensor:
        """Scores of pairs that were tokenized, shape (pairs,)."""

    @abstractmethod
    def _learner(self) -> nn.Module:
        """The network with its loss: takes what :class:`PairCollator` makes."""

    @abstractmethod
    def _shape(self) -> dict[str, Any]:
        """What tells this network from others of the same checkpoint."""

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        sizes = {
            "checkpoint": checkpoint_name(self.model),
            **self._sizes(),
            "parameters": parameters(self.network),
            "reads": f"{self.max_length} tokens of query and {self.text_field!r} together",
        }
        return reranker_html(self, sizes | training_sizes(self), [*training_calls(self), *self._explanations()])

    def _sizes(self) -> dict[str, Any]:
        """Further rows of what a notebook shows."""
        return {}

    def _explanations(self) -> list[str]:
        """Code that draws what a score came from."""
        return []

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Scores documents anew; a score does not depend on the other rows.

        Args:
            inp: ``qid, query, docno`` and the column with the text. An empty text is scored as such. The query's may
                stand in some of its rows only.

        Returns:
            The rows with new ``score`` and ``rank``.

        Raises:
            pt.validate.InputValidationError: If a column is missing.
            ValueError: If a query is empty, or it or a document's text is not a text.
        """
        pt.validate.result_frame(inp, extra_columns=["query", self.text_field], context=self)
        scores = np.zeros(len(inp))
        for rows, batch in self._batches(inp):
            with torch.inference_mode():
                scores[rows] = self._scores(batch).cpu().numpy()
        return ranked(inp, scores, self)

    def _batches(self, run: pd.DataFrame) -> Iterator[tuple[np.ndarray, dict[str, Tensor]]]:
        """Rows and their tokens, documents of similar length together."""
        queries, documents = self._texts(run)
        lengths = np.array([len(query) + len(document) for query, document in zip(queries, documents, strict=True)])
        order = np.argsort(-lengths, kind="stable")
        batches = [order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size)]
        for rows in pt.tqdm(batches, desc=type(self).__name__, unit="batch", disable=not self.verbose):
            yield rows, self._tokens([queries[row] for row in rows], [documents[row] for row in rows])

    def _tokens(self, queries: Sequence[str], documents: Sequence[str]) -> dict[str, Tensor]:
        device = device_of(self.device)
        return {name: tensor.to(device) for name, tensor in self.tokenizer(queries, documents).items()}

    def _texts(self, run: pd.DataFrame) -> tuple[list[str], list[str]]:
        """Query and document of each row."""
        queries = query_texts(run).reindex(run["qid"]).tolist() if len(run) else []
        documents = run[self.text_field].tolist()
        for docno, document in zip(run["docno"], documents, strict=True):
            if not isinstance(document, str):
                raise ValueError(f"document {docno!r} has no text in column {self.text_field!r}: {document!r}")
        return queries, documents

    def fit(
        self,
        topics_or_res_tr: pd.DataFrame,
        qrels_tr: pd.DataFrame,
        topics_or_res_va: pd.DataFrame | None = None,
        qrels_va: pd.DataFrame | None = None,
    ) -> Self:
        """Trains on pairs of a relevant and a less relevant document among those of a query.

        Of passages (``docno%pN``), judgments of documents hold for all of a document's passages, and on the validation
        queries documents are ranked by their best one; unless passages are judged.

        Args:
            topics_or_res_tr: Training queries with their documents, as for :meth:`transform`.
            qrels_tr: Judgments for them: ``qid, docno, label``.
            topics_or_res_va: Validation queries with their documents: the weights that are best on them are kept.
            qrels_va: Judgments for them.

        Raises:
            pt.validate.InputValidationError: If a column is missing.
            ValueError: If there is nothing to learn from, or ``training.output_dir`` holds another training.
        """
        options = self.training
        pt.validate.result_frame(topics_or_res_tr, extra_columns=["query", self.text_field], context=self)
        quality = None
        if topics_or_res_va is not None and len(topics_or_res_va):
            pt.validate.result_frame(topics_or_res_va, extra_columns=["query", self.text_field], context=self)
            quality = self._quality(*judged(topics_or_res_va, qrels_va, self))
        run, qrels = judged(topics_or_res_tr, qrels_tr, self)
        run = run.drop_duplicates(["qid", "docno"])
        queries, documents = self._texts(run)
        labels = qrels.drop_duplicates(["qid", "docno"]).set_index(["qid", "docno"])["label"]
        judgments = pd.MultiIndex.from_arrays([run["qid"], judged_ids(run["docno"], qrels)])
        label = labels.reindex(judgments, fill_value=0).to_numpy()
        pairs = QueryPairs(run["qid"].factorize()[0], options.grades(label), options.pairs_per_epoch, options.seed)
        examples = pd.DataFrame({"query": queries, "document": documents, "label": label})
        identity = {
            "config": self._shape(),
            "seed": self.seed,
            "model": self.model,
            "max_length": self.max_length,
            "examples": hashlib.sha256(pd.util.hash_pandas_object(examples).to_numpy().tobytes()).hexdigest(),
        }
        device = device_of(self.device)
        encoder = list(self.encoder.parameters())
        inside = {id(parameter) for parameter in encoder}
        others = [parameter for parameter in self.network.parameters() if id(parameter) not in inside]
        rates = [(others, options.learning_rate)]
        self.encoder.requires_grad_(options.encoder_learning_rate is not None)
        if options.encoder_learning_rate is not None:
            rates.append((encoder, options.encoder_learning_rate))
        self.training_log = train(
            self._learner(),
            pairs,
            PairCollator(self.tokenizer, queries, documents),
            options,
            rates=rates,
            validate=quality,
            identity=identity,
            device=device,
            verbose=self.verbose,
        )
        return self

    def _quality(self, run: pd.DataFrame, qrels: pd.DataFrame) -> Callable[[], float]:
        """Measures the model as it is on validation queries."""
        evaluate = RunEvaluator(self.training.measure, qrels)
        ids = judged_ids(run["docno"], qrels)

        def quality() -> float:
            scored = self.transform(run).assign(docno=ids)
            return evaluate(scored.groupby(["qid", "docno"], sort=False, as_index=False)["score"].max())

        return quality


def check_length(model: str, max_length: int, tokenizer: PairTokenizer, config: Any) -> None:
    """Raises ValueError if a checkpoint does not read so many tokens."""
    limit = min(tokenizer.limit, getattr(config, "max_position_embeddings", max_length))
    if max_length > limit:
        raise ValueError(f"{model!r} reads at most {limit} tokens: max_length={max_length} is more")
