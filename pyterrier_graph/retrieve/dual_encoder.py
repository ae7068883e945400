"""DualEncoder: a bi-encoder of pyterrier_dr that can be trained."""

import dataclasses
import hashlib
import os
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, Self, cast

import numpy as np
import pandas as pd
import pyterrier as pt
import torch
from accelerate import PartialState
from datasets import Dataset, concatenate_datasets
from pyterrier_dr import BiEncoder
from sentence_transformers.base.modules import Router
from sentence_transformers.util import batch_to_device
from torch import Tensor

from pyterrier_graph.artifacts import weights_sha256
from pyterrier_graph.checks import check_frame, check_type, is_unicode
from pyterrier_graph.encoders.checkpoints import DEFAULT, checkpoint_name, resolve
from pyterrier_graph.encoders.devices import DType, device_of, precision
from pyterrier_graph.encoders.late_chunking import LateChunking, passages_in_documents, single_passages
from pyterrier_graph.encoders.queries import query_texts, warn_of_rewritten
from pyterrier_graph.encoders.sentence_encoder import Similarity, checksums, limit_length, load_dual_encoder, prompts_of
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.training.dual import DualEncoderTraining, check_examples, train_dual_encoder
from pyterrier_graph.training.learned_model import LearnedModel
from pyterrier_graph.training.mining import HardNegativeMiner, TrainingExamples
from pyterrier_graph.training.trainer import restored_on_error
from pyterrier_graph.training.validation import Validation, checked_qrels, checked_topics
from pyterrier_graph.warning_categories import DataWarning

NETWORK = "sentence-transformer"
EXAMPLES = "what HardNegativeMiner(...).labeled(topics, qrels) returns, or a datasets.Dataset"


class DualEncoder(LearnedModel, BiEncoder):
    """Encodes queries and passages by a SentenceTransformer that can be trained: a bi-encoder of pyterrier_dr.

    .. cite:: ren2021pair
        :citation: Ren et al. PAIR: Leveraging passage-centric similarity relation for improving dense passage
            retrieval. Findings of ACL-IJCNLP 2021.
        :link: https://doi.org/10.18653/v1/2021.findings-acl.191

    It is used like any other ``pyterrier_dr.BiEncoder``::

        dual_encoder = ptg.DualEncoder(miner=ptg.HardNegativeMiner(bm25 % 200, texts))
        dual_encoder.fit(topics, qrels)
        index = pyterrier_dr.FlexIndex("passages.flex")
        (dual_encoder.doc_encoder() >> index).index(dataset.get_corpus_iter())
        retriever = dual_encoder.query_encoder() >> index.retriever()

    The similarity of a query and a passage is the dot product of their vectors, in training and in retrieval. With
    ``similarity='cosine'`` vectors have length 1, so that the dot product is the cosine.

    ``save(path)`` writes an ordinary ``SentenceTransformer`` into ``path/sentence-transformer``.

    Args:
        encoder: The name or folder of a SentenceTransformer, or of any Hugging Face encoder, whose token states are
            then averaged.
        miner: Makes training examples for :meth:`fit`.
        training: Options of training, or of its second stage.
        pretraining: Options of the first stage, if there are two; by default ``DualEncoderTraining(alpha=0.1)``.
        separate_encoders: Whether queries and passages have an encoder each, which both start as ``encoder``. A
            checkpoint with two encoders keeps both in any case.
        similarity: ``'dot'`` or ``'cosine'``; by default cosine if the checkpoint normalizes its vectors.
        late_chunking: Whether a passage of a document graph is the mean of its own tokens, which the encoder has read
            with the rest of the document (Guenther et al., `Late Chunking
            <https://arxiv.org/abs/2409.04701>`_, 2024); see :mod:`~pyterrier_graph.encoders.late_chunking`. It needs
            a checkpoint with mean pooling. Queries are encoded, and all weights trained, as without it.
        max_query_tokens: Queries are cut after this many tokens, special tokens included.
        max_passage_tokens: Passages are cut after this many tokens, special tokens included; with ``late_chunking``
            they are not cut.
        batch_size: Number of texts that are encoded at once.
        text_field: Column of the passages' texts.
        seed: Seed of weights that the checkpoint lacks.
        device: A device as torch names it; by default a GPU where there is one.
        dtype: The precision of encoding and training; see :mod:`~pyterrier_graph.encoders.devices`.
        verbose: Whether to show progress.

    Attributes:
        network: The SentenceTransformer.
        pretraining_log: As ``training_log``, of the first stage of the last training, if there were two.

    Raises:
        ValueError: If an option is unknown or out of range, the checkpoint cannot read so many tokens, or
            ``late_chunking`` is on and the checkpoint does not average the states of tokens.
    """

    schematic = {"label": "DualEncoder", "help_url": "https://pypi.org/project/pyterrier-graph/"}
    ARTIFACT_TYPE = "dual_encoder"
    ARTIFACT_FORMAT = "sbert"
    WRITTEN = ("similarity", "max_query_tokens", "max_passage_tokens", "text_field", "seed")
    STAGES = {"training": DualEncoderTraining, "pretraining": DualEncoderTraining}
    KEEP_WEIGHTS = LearnedModel.KEEP_WEIGHTS | {"miner", "max_query_tokens", "max_passage_tokens", "late_chunking"}

    def __init__(
        self,
        encoder: str | os.PathLike[str] = DEFAULT,
        *,
        miner: HardNegativeMiner | None = None,
        training: DualEncoderTraining | None = None,
        pretraining: DualEncoderTraining | None = None,
        separate_encoders: bool = False,
        similarity: Similarity | None = None,
        late_chunking: bool = False,
        max_query_tokens: int = 32,
        max_passage_tokens: int = 128,
        batch_size: int = 32,
        text_field: str = "text",
        seed: int = 0,
        device: str | None = None,
        dtype: DType = "auto",
        verbose: bool = True,
    ) -> None:
        check_type("encoder", encoder, (str, os.PathLike), "the name or folder of a SentenceTransformer")
        check_type("miner", miner, (HardNegativeMiner, NoneType), "a HardNegativeMiner(retriever, texts)")
        pt.Artifact.__init__(self, pt.Artifact.NO_PATH)
        BiEncoder.__init__(self, batch_size=batch_size, text_field=text_field, verbose=verbose)
        self.encoder = str(encoder)
        self.miner = miner
        self.training = DualEncoderTraining() if training is None else training
        self.pretraining = DualEncoderTraining(alpha=0.1) if pretraining is None else pretraining
        self.seed = seed
        self.device = device
        self.dtype: DType = dtype
        self.network = load_dual_encoder(resolve(encoder), separate_encoders, similarity, device, seed).eval()
        self.similarity = cast(Similarity, self.network.similarity_fn_name)
        self.separate_encoders = any(isinstance(module, Router) for module in self.network.modules())
        self.max_query_tokens = max_query_tokens
        self.max_passage_tokens = max_passage_tokens
        self.late_chunking = late_chunking
        self.pretraining_log: list[dict[str, float]] = []

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("max_query_tokens", "max_passage_tokens"):  # also when they are set later
            limit_length(self.network, name, value)
        elif name == "late_chunking":
            check_type(name, value, bool, "True or False")
            if value:
                LateChunking(self.network)
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"DualEncoder({checkpoint_name(self.encoder)!r})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from pyterrier_graph.plots.model_html import encoder_calls, parameters, reranker_html, training_sizes

        passage = "whole documents" if self.late_chunking else f"{self.max_passage_tokens} of a passage"
        sizes = {
            "checkpoint": checkpoint_name(self.encoder),
            "parameters": parameters(self.network),
            "vectors": f"{self._dimension} dimensions, {self.similarity}",
            "reads": f"{self.max_query_tokens} tokens of a query, {passage}",
        }
        return reranker_html(self, sizes | training_sizes(self), encoder_calls(self))

    @property
    def model_name(self) -> str:
        """The checkpoint's name, and a digest of all that vectors depend on but the precision, such as the weights.

        pyterrier_dr tells encoders apart by this name, and files of vectors are found by it.
        """
        # weights may have changed, and torch does not count all changes in place; checksums take 15 ms
        about: list[Any] = [self.max_query_tokens, self.max_passage_tokens, self.similarity, prompts_of(self.network)]
        about += [checksums(self.network), *["late chunking"] * self.late_chunking]
        return f"{checkpoint_name(self.encoder)}@{hashlib.sha256(repr(about).encode()).hexdigest()[:16]}"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Encodes queries or passages, or scores pairs of them, by the columns that there are."""
        vectors = {"query_vec": self._dimension, "doc_vec": self._dimension}
        return super().transform(check_frame(inp, self, texts=("query",), vectors=vectors))

    def query_encoder(self, verbose: bool | None = None, batch_size: int | None = None) -> pt.Transformer:
        """A transformer that adds the column ``query_vec`` to ``qid, query``."""
        return super().query_encoder(verbose or False, batch_size)  # encoding shows the progress

    def doc_encoder(self, verbose: bool | None = None, batch_size: int | None = None) -> pt.Transformer:
        """A transformer that adds the column ``doc_vec`` to ``docno`` and the column of texts."""
        if self.late_chunking:
            advice = "ptg.GraphMean(graph, encoder, weights={}).index(path) encodes the passages of a graph's documents"
            self._warn_once("late", f"late_chunking: each text is taken as a document of one passage; {advice}")
        return super().doc_encoder(verbose or False, batch_size)

    def text_scorer(
        self, verbose: bool | None = None, batch_size: int | None = None, sim_fn: Any = None
    ) -> pt.Transformer:
        """A transformer that scores pairs of a query and a passage, by their texts or vectors."""
        return super().text_scorer(verbose or False, batch_size, sim_fn)

    def encode_queries(self, texts: Sequence[str], batch_size: int | None = None) -> np.ndarray:
        """Vectors of queries, float32 of shape (queries, dimensions)."""
        return self._encode(self.network.encode_query, texts, batch_size, "queries")

    def encode_docs(self, texts: Sequence[str], batch_size: int | None = None) -> np.ndarray:
        """Vectors of passages, float32 of shape (passages, dimensions).

        With ``late_chunking`` each text is a document of one passage; :meth:`encode_passages` knows the documents.
        """
        encode = partial(self._encode_late, None) if self.late_chunking else self.network.encode_document
        return self._encode(encode, texts, batch_size, "passages")

    def encode_passages(self, graph: HeteroGraph, nodes: np.ndarray, batch_size: int | None = None) -> np.ndarray:
        """Vectors of some passages of a document graph, float32 of shape (nodes, dimensions).

        With ``late_chunking`` each passage is read with the rest of its document, else by itself. A ValueError says
        that a node is a section.
        """
        check_type("graph", graph, HeteroGraph, "a DocumentGraph, such as ptg.DocumentGraph(path)")
        if not self.late_chunking:
            return self.encode_docs(graph.texts(nodes), batch_size)
        encode = partial(self._encode_late, graph)
        return self._in_parts(encode, np.asarray(nodes, dtype=np.int64), batch_size, self._bar(len(nodes), "passages"))

    def encode_queries_torch(self, texts: Sequence[str], batch_size: int | None = None) -> Tensor:
        """Vectors of queries with gradients, of shape (queries, dimensions)."""
        size = batch_size or self.batch_size
        prompt = prompts_of(self.network)[0] or None
        vectors = [torch.empty(0, self._dimension, device=self.network.device)]
        with precision(self.dtype, self.network.device):
            for start in range(0, len(texts), size):
                features = self.network.preprocess(list(texts[start : start + size]), prompt=prompt, task="query")
                features = batch_to_device(features, self.network.device)
                vectors.append(self.network(features, task="query")["sentence_embedding"].float())
        return torch.cat(vectors)

    @property
    def _dimension(self) -> int:
        return cast(int, self.network.get_embedding_dimension())

    def _encode(self, encode: Callable[..., Any], texts: Any, batch_size: int | None, what: str) -> np.ndarray:
        bar = texts if isinstance(texts, pt.tqdm) else None  # pyterrier_dr's encoders pass one if they are verbose
        for number, text in enumerate(texts := list(texts if bar is None else bar.iterable)):
            if not isinstance(text, str) or not (text.isascii() or is_unicode(text)):
                raise ValueError(f"text {number} of {len(texts)} is not a text: {text!r:.60}")
        warn_of_rewritten(texts if what == "queries" else [])
        return self._in_parts(encode, texts, batch_size, self._bar(len(texts), what) if bar is None else bar)

    def _encode_late(self, graph: HeteroGraph | None, items: Any, batch_size: int) -> np.ndarray:
        """Passages of a graph by late chunking; without a graph, texts as documents of one passage."""
        documents = single_passages(items) if graph is None else passages_in_documents(graph, items)
        return LateChunking(self.network).encode(*documents, at_once=batch_size * self.max_passage_tokens)

    def _bar(self, total: int, what: str) -> pt.tqdm:
        return pt.tqdm(total=total, desc=f"encoding {what}", delay=1, leave=None, disable=not self.verbose)

    def _in_parts(self, encode: Callable[..., Any], items: Any, batch_size: int | None, bar: pt.tqdm) -> np.ndarray:
        size = batch_size or self.batch_size
        vectors = [np.empty((0, self._dimension), dtype=np.float32)]
        with bar, precision(self.dtype, self.network.device):
            for start in range(0, len(items), 64 * size):
                part = items[start : start + 64 * size]
                vectors.append(np.asarray(encode(part, batch_size=size), dtype=np.float32))
                bar.update(len(part))
        return np.concatenate(vectors)

    def fit(
        self,
        topics_or_res_tr: pd.DataFrame,
        qrels_tr: pd.DataFrame,
        topics_or_res_va: pd.DataFrame | None = None,
        qrels_va: pd.DataFrame | None = None,
        *,
        unlabeled: pd.DataFrame | None = None,
    ) -> Self:
        """Trains on the examples that the miner makes of queries and judgments.

        With unlabeled queries there are two stages, as in PAIR (Sect. 3.4): the first learns from their pseudo-labels,
        with the options ``pretraining``, and the second from labels and pseudo-labels of the labeled queries, with the
        options ``training``.

        Args:
            topics_or_res_tr: Training queries: ``qid, query``. Other columns are ignored.
            qrels_tr: Judgments for them: ``qid, docno, label``.
            topics_or_res_va: Validation queries. The weights with the best validation measure are kept; these can be
                those before training. Ranked are the documents in this frame (``docno`` and the column of texts), or,
                if it has only queries, the miner's candidates.
            qrels_va: Judgments for them, of passages or, for all their passages, of documents.
            unlabeled: Queries without judgments: ``qid, query``.

        Raises:
            ValueError: If there is no miner or no training example, ``output_dir`` holds another training, or training
                diverges.
        """
        miner = self._required_miner("training examples come from a miner", "or call fit_examples with examples")
        run, qrels_tr = self._validation_run(topics_or_res_va), checked_qrels(qrels_tr, self)
        topics = query_texts(checked_topics(topics_or_res_tr, self)).rename_axis("qid").reset_index()
        # with several processes, the first one mines while the others wait
        with PartialState(cpu=device_of(self.device).type == "cpu").main_process_first():
            pretraining_examples = None if unlabeled is None else miner.pseudo_labeled(unlabeled)
            examples = miner.labeled(topics, qrels_tr).dataset
            if unlabeled is not None:
                try:
                    pseudo = miner.pseudo_labeled(topics, qrels_tr).dataset
                except ValueError as error:  # any other problem would have shown in labeled()
                    warnings.warn(f"labeled queries have no pseudo-labels: {error}", DataWarning, stacklevel=3)
                else:
                    examples = concatenate_datasets([examples, pseudo])
        return self.fit_examples(examples, run, qrels_va, pretraining_examples=pretraining_examples)

    def fit_examples(
        self,
        examples: Dataset | TrainingExamples,
        topics_or_res_va: pd.DataFrame | None = None,
        qrels_va: pd.DataFrame | None = None,
        *,
        pretraining_examples: Dataset | TrainingExamples | None = None,
    ) -> Self:
        """Trains on given examples. For validation and errors see :meth:`fit`.

        Each stage has a folder of its own in ``output_dir``, ``pretraining`` or ``training``. If a call was killed, the
        same call continues from the last checkpoint there, and ends with the same weights.

        Args:
            examples: Columns ``query, positive, negative_1 .. negative_n``, in this order; n may be 0.
            topics_or_res_va: Validation queries.
            qrels_va: Judgments for them.
            pretraining_examples: Examples of the first stage, which has the options ``pretraining``.
        """
        run = self._validation_run(topics_or_res_va)
        by_stage = {"pretraining": pretraining_examples, "training": examples}
        check_type("examples", examples, (Dataset, TrainingExamples), EXAMPLES)
        check_type("pretraining_examples", pretraining_examples, (Dataset, TrainingExamples, NoneType), EXAMPLES)
        datasets = {stage: getattr(data, "dataset", data) for stage, data in by_stage.items() if data is not None}
        digests = {stage: check_examples(data) for stage, data in datasets.items()}
        self._start_fit()
        names = ("encoder", "similarity", "separate_encoders", "max_query_tokens", "max_passage_tokens", "seed")
        identity = {name: getattr(self, name) for name in names}
        logs: dict[str, list[dict[str, float]]] = {"pretraining": []}
        given: dict[str, Any] = {"device": device_of(self.device), "dtype": self.dtype, "verbose": self.verbose}
        with restored_on_error(self.network):  # also by the second stage
            for stage, data in datasets.items():
                options = getattr(self, stage)
                folder = options.output_dir or self.training.output_dir or self.pretraining.output_dir
                logs[stage] = train_dual_encoder(
                    self.network,
                    data,
                    dataclasses.replace(options, output_dir=None if folder is None else os.path.join(folder, stage)),
                    validate=None if run is None else self._validate(Validation(run, qrels_va, options.measure, self)),
                    identity=identity | {"training examples": digests[stage]},
                    **given,
                )
                identity["weights after pretraining"] = weights_sha256(self.network)
        self.__dict__.update({f"{stage}_log": log for stage, log in logs.items()})
        return self

    def _required_miner(self, problem: str, otherwise: str) -> HardNegativeMiner:
        if self.miner is None:
            advice = f"Give DualEncoder(miner=HardNegativeMiner(retriever, texts)), {otherwise}"
            raise ValueError(f"{type(self).__name__}.fit: {problem}. {advice}")
        return self.miner

    def _validation_run(self, topics: pd.DataFrame | None) -> pd.DataFrame | None:
        """Validation queries with documents and their texts."""
        if topics is None or not len(topics := check_frame(topics, self)):
            return None
        if "docno" not in topics.columns:
            topics = checked_topics(topics, self)
            advice = f"or documents, with docno and {self.text_field}"
            miner = self._required_miner("validation queries have no documents", advice)
            found = cast(pd.DataFrame, (miner.candidates >> miner.texts)(topics))
            topics = found.rename(columns={"text": self.text_field})
        topics = check_frame(topics, self, texts=(self.text_field,))
        pt.validate.result_frame(topics, extra_columns=["query", self.text_field], context=self)
        return topics[["qid", "query", "docno", self.text_field]]

    def _validate(self, validation: Validation) -> Callable[[], float]:
        """A function that measures the model in its present state; it encodes each text once."""
        run = validation.run
        queries = query_texts(run)
        rows_of = run.groupby("qid", sort=False).indices
        text, texts = pd.factorize(run[self.text_field], use_na_sentinel=False)

        def validate() -> float:
            query_vectors = self.encode_queries(queries.tolist())
            vectors = self.encode_docs(texts.tolist())
            scores = np.empty(len(run))
            for query_vector, rows in zip(query_vectors, rows_of.values(), strict=True):
                scores[rows] = vectors[text[rows]] @ query_vector
            return validation(scores)

        return validate

    def _write(self, folder: Path) -> dict[str, Any]:
        self.network.save_pretrained(str(folder / NETWORK), create_model_card=False)
        return {"late_chunking": self.late_chunking}

    @classmethod
    def _read(cls, folder: Path, about: dict[str, Any], options: dict[str, Any]) -> Self:
        return cls(folder / NETWORK, **{"late_chunking": about.get("late_chunking", False)} | options)
