"""DualEncoder: a bi-encoder of pyterrier_dr that learns."""

from __future__ import annotations

import copy
import dataclasses
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast, get_args

import numpy as np
import pandas as pd
import pyterrier as pt
import torch
from accelerate import PartialState
from datasets import Dataset, concatenate_datasets
from pyterrier_dr import BiEncoder
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Router, Transformer
from sentence_transformers.util import batch_to_device
from torch import Tensor

from pyterrier_graph.artifacts import weights_sha256
from pyterrier_graph.encoders.checkpoints import checkpoint_name
from pyterrier_graph.encoders.devices import device_of
from pyterrier_graph.encoders.queries import query_texts
from pyterrier_graph.plots.model_html import parameters, reranker_html, training_calls, training_sizes
from pyterrier_graph.training.dual import (
    DualEncoderTraining,
    check_examples,
    is_normalized,
    prompts_of,
    train_dual_encoder,
)
from pyterrier_graph.training.learned_model import LearnedModel
from pyterrier_graph.training.validation import RunEvaluator, judged, judged_ids

if TYPE_CHECKING:
    from pyterrier_graph.training.mining import HardNegativeMiner, TrainingExamples

logger = logging.getLogger(__name__)
Similarity = Literal["dot", "cosine"]
NETWORK = "sentence-transformer"


class DualEncoder(LearnedModel, BiEncoder):
    """Encodes queries and passages by a SentenceTransformer that can be trained: a bi-encoder of pyterrier_dr.

    .. cite:: ren2021pair
        :citation: Ren et al. PAIR: Leveraging passage-centric similarity relation for improving dense passage
            retrieval. Findings of ACL-IJCNLP 2021.
        :link: https://doi.org/10.18653/v1/2021.findings-acl.191

    It stands wherever a ``pyterrier_dr.BiEncoder`` does::

        dual_encoder.fit(topics, qrels)
        index = pyterrier_dr.FlexIndex("passages.flex")
        (dual_encoder.doc_encoder() >> index).index(dataset.get_corpus_iter())
        retriever = dual_encoder.query_encoder() >> index.retriever()

    Similarity is the dot product in training, in the index and between texts (:attr:`sim_fn`). With
    ``similarity='cosine'`` vectors have length 1, so that it is the cosine.

    ``save(path)`` makes an ordinary ``SentenceTransformer`` of ``path/sentence-transformer``.

    Args:
        model: Hugging Face id or folder of a SentenceTransformer, or of any encoder (whose states are then averaged).
        miner: Makes training examples, for :meth:`fit`.
        training: Options of training, or of its second stage.
        pretraining: Options of the first stage, where there are two; by default those of ``DualEncoderTraining`` with
            ``alpha=0.1``.
        separate_encoders: Whether queries and passages have an encoder each, both starting as ``model`` is. One that
            has two anyway keeps them.
        similarity: ``'dot'`` or ``'cosine'``; by default cosine where ``model`` normalizes its vectors.
        max_query_length: Tokens of a query, special ones included; longer ones are cut.
        max_passage_length: Likewise, of a passage.
        batch_size: Texts encoded at once.
        text_field: Column of the passage's text.
        seed: Seed of weights that a checkpoint lacks.
        device: As torch names it; by default a GPU where there is one.
        verbose: Whether to show progress.

    Attributes:
        network: The SentenceTransformer.
        training_log: Losses, and the measure under its own name, of the last training.
        pretraining_log: Likewise, of its first stage, if there were two.

    Raises:
        ValueError: If an option is unknown, or ``model`` does not read so many tokens.
    """

    schematic = {"label": "DualEncoder", "help_url": "https://pypi.org/project/pyterrier-graph/"}
    ARTIFACT_TYPE = "dual_encoder"
    ARTIFACT_FORMAT = "sbert"
    WRITTEN = ("similarity", "max_query_length", "max_passage_length", "text_field", "seed")
    STAGES = {"training": DualEncoderTraining, "pretraining": DualEncoderTraining}
    KEEP_WEIGHTS = LearnedModel.KEEP_WEIGHTS | {"miner"}

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        miner: HardNegativeMiner | None = None,
        training: DualEncoderTraining | None = None,
        pretraining: DualEncoderTraining | None = None,
        separate_encoders: bool = False,
        similarity: Similarity | None = None,
        max_query_length: int = 32,
        max_passage_length: int = 128,
        batch_size: int = 32,
        text_field: str = "text",
        seed: int = 0,
        device: str | None = None,
        verbose: bool = False,
    ) -> None:
        pt.Artifact.__init__(self, pt.Artifact.NO_PATH)
        BiEncoder.__init__(self, batch_size=batch_size, text_field=text_field, verbose=verbose)
        if batch_size < 1:
            raise ValueError(f"batch_size must be positive, got {batch_size}")
        if similarity not in (None, *get_args(Similarity)):
            raise ValueError(f"similarity must be one of {get_args(Similarity)} or None, got {similarity!r}")
        self.model = str(model)
        self.miner = miner
        self.training = training or DualEncoderTraining()
        self.pretraining = pretraining or DualEncoderTraining(alpha=0.1)
        self.max_query_length = max_query_length
        self.max_passage_length = max_passage_length
        self.seed = seed
        self.device = device
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            network = SentenceTransformer(
                self.model, device=str(device_of(device)), model_kwargs={"dtype": torch.float32}
            )
        self.similarity = similarity or ("cosine" if is_normalized(network) else "dot")
        self.network = _shaped(network, separate_encoders, self.similarity).eval()
        self.separate_encoders = any(isinstance(module, Router) for module in self.network.modules())
        _limit_lengths(self.network, max_query_length, max_passage_length)
        self.training_log: list[dict[str, float]] = []
        self.pretraining_log: list[dict[str, float]] = []
        self._fingerprint: str | None = None

    def __repr__(self) -> str:
        return f"DualEncoder({checkpoint_name(self.model)!r})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        sizes = {
            "checkpoint": checkpoint_name(self.model),
            "parameters": parameters(self.network),
            "vectors": f"{self._dimensions} dimensions, {self.similarity}",
            "reads": f"{self.max_query_length} tokens of a query, {self.max_passage_length} of a passage",
        }
        return reranker_html(self, sizes | training_sizes(self), training_calls(self))

    @property
    def model_name(self) -> str:
        """Name and weights, by which pyterrier_dr tells models apart, so that none is taken for another."""
        if self._fingerprint is None:
            lengths = f"{self.max_query_length} {self.max_passage_length}"
            self._fingerprint = weights_sha256(self.network, before=f"{lengths} {self.similarity}")
        return f"{checkpoint_name(self.model)}@{self._fingerprint[:16]}"

    def encode_queries(self, texts: Sequence[str], batch_size: int | None = None) -> np.ndarray:
        """Vectors of queries, float32 of shape (queries, dimensions)."""
        return self._encode(self.network.encode_query, texts, batch_size)

    def encode_docs(self, texts: Sequence[str], batch_size: int | None = None) -> np.ndarray:
        """Vectors of passages, float32 of shape (passages, dimensions)."""
        return self._encode(self.network.encode_document, texts, batch_size)

    def encode_queries_torch(self, texts: Sequence[str], batch_size: int | None = None) -> Tensor:
        """Vectors of queries, of shape (queries, dimensions), which gradients go through."""
        size = batch_size or self.batch_size
        prompt = prompts_of(self.network)[0] or None
        vectors = [torch.empty(0, self._dimensions, device=self.network.device)]
        for start in range(0, len(texts), size):
            features = self.network.preprocess(list(texts[start : start + size]), prompt=prompt, task="query")
            features = batch_to_device(features, self.network.device)
            vectors.append(self.network(features, task="query")["sentence_embedding"])
        return torch.cat(vectors)

    @property
    def _dimensions(self) -> int:
        return cast(int, self.network.get_embedding_dimension())

    def _encode(self, encode: Callable[..., Any], texts: Any, batch_size: int | None) -> np.ndarray:
        progress = isinstance(texts, pt.tqdm)  # encoders of pyterrier_dr come with one if they are to show any
        if progress:
            texts.disable = True
        texts = list(texts)
        if not texts:
            return np.empty((0, self._dimensions), dtype=np.float32)
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise ValueError(f"text {number} of {len(texts)} is not a text: {text!r}")
        vectors = encode(texts, batch_size=batch_size or self.batch_size, show_progress_bar=progress)
        return np.asarray(vectors, dtype=np.float32)

    def fit(
        self,
        topics_or_res_tr: pd.DataFrame,
        qrels_tr: pd.DataFrame,
        topics_or_res_va: pd.DataFrame | None = None,
        qrels_va: pd.DataFrame | None = None,
        *,
        unlabeled: pd.DataFrame | None = None,
    ) -> Self:
        """Trains on what the miner makes of queries and judgments.

        With unlabeled queries there are two stages, as in PAIR (Sect. 3.4): first on their pseudo labels with
        ``pretraining``, then on the labels and on pseudo labels of the labeled queries with ``training``.

        With several processes the first one mines before the others do. Where that takes longer than they wait for each
        other, let the miner make its examples, in a folder, before.

        Args:
            topics_or_res_tr: Training queries: ``qid, query``. Documents, if there are any, are not looked at.
            qrels_tr: Judgments for them: ``qid, docno, label``.
            topics_or_res_va: Validation queries: the weights that rank best are kept, the untrained ones included. What
                is ranked are the documents that come with them (``docno`` and the column with the text), or without
                any the miner's candidates.
            qrels_va: Judgments for them. Those of documents hold for their passages (``docno%pN``), unless passages are
                judged.
            unlabeled: Queries without judgments: ``qid, query``.

        Raises:
            pt.validate.InputValidationError: If a column is missing.
            ValueError: If there is no miner, nothing to learn from, ``output_dir`` holds another training, or training
                diverges.
        """
        miner = self._miner(
            "training examples are made by a miner: give miner=HardNegativeMiner(...), or call fit_examples"
        )
        pt.validate.columns(topics_or_res_tr, includes=["qid", "query"], context=self)
        pt.validate.columns(qrels_tr, includes=["qid", "docno", "label"], context=self)
        run = self._validation_run(topics_or_res_va)
        topics = query_texts(topics_or_res_tr.astype({"qid": str})).rename_axis("qid").reset_index()
        qrels = qrels_tr.astype({"qid": str, "docno": str})
        with PartialState(cpu=device_of(self.device).type == "cpu").main_process_first():
            pretraining_examples = None if unlabeled is None else miner.pseudo_labeled(unlabeled)
            examples = miner.labeled(topics, qrels).dataset
            if unlabeled is not None:
                try:
                    pseudo = miner.pseudo_labeled(topics, qrels).dataset
                except ValueError as error:  # all else that could be wrong would have been before
                    logger.warning("labeled queries have no pseudo labels: %s", error)
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
        """Trains on examples that are there already.

        Each stage has a folder of its own in ``output_dir``, ``pretraining`` or ``training``. A call that was killed
        goes on from the last checkpoint there when it is repeated, and ends with the same weights.

        Args:
            examples: Columns ``query, positive, negative_1 .. negative_n``, in this order; n may be 0.
            topics_or_res_va: See :meth:`fit`.
            qrels_va: Likewise.
            pretraining_examples: What is learned from before, with ``pretraining``.

        Raises:
            pt.validate.InputValidationError: If a column is missing.
            ValueError: See :meth:`fit`; or if a column of the examples is missing, not in its place, or lacks a text.
        """
        run = self._validation_run(topics_or_res_va)
        stages = [("training", examples, self.training)]
        if pretraining_examples is not None:
            stages.insert(0, ("pretraining", pretraining_examples, self.pretraining))
        datasets = [data if isinstance(data, Dataset) else data.dataset for _, data, _ in stages]
        digests = [check_examples(data) for data in datasets]
        place = self.training.output_dir or self.pretraining.output_dir
        identity = {
            "model": self.model,
            "similarity": self.similarity,
            "separate_encoders": self.separate_encoders,
            "max_query_length": self.max_query_length,
            "max_passage_length": self.max_passage_length,
            "seed": self.seed,
        }
        self.pretraining_log = []
        for (stage, _, options), data, digest in zip(stages, datasets, digests, strict=True):
            self._fingerprint = None
            folder = options.output_dir or place
            log = train_dual_encoder(
                self.network,
                data,
                dataclasses.replace(options, output_dir=None if folder is None else os.path.join(folder, stage)),
                validate=None if run is None else self._quality(run, qrels_va, options.measure),
                identity=identity | {"examples": digest},
                device=device_of(self.device),
                verbose=self.verbose,
            )
            setattr(self, f"{stage}_log", log)
            identity["after"] = weights_sha256(self.network)
        return self

    def _miner(self, otherwise: str) -> HardNegativeMiner:
        if self.miner is None:
            raise ValueError(f"{type(self).__name__}: {otherwise}")
        return self.miner

    def _validation_run(self, topics: pd.DataFrame | None) -> pd.DataFrame | None:
        """Validation queries with documents and their texts."""
        if topics is None or not len(topics):
            return None
        if "docno" not in topics.columns:
            pt.validate.query_frame(topics, extra_columns=["query"], context=self)
            miner = self._miner("validation queries have no documents, nor is there a miner that would find candidates")
            found = cast(pd.DataFrame, (miner.candidates >> miner.texts)(topics.astype({"qid": str})))
            topics = found.rename(columns={"text": self.text_field})
        pt.validate.result_frame(topics, extra_columns=["query", self.text_field], context=self)
        return topics[["qid", "query", "docno", self.text_field]]

    def _quality(self, run: pd.DataFrame, qrels: pd.DataFrame | None, measure: str) -> Callable[[], float]:
        """Measures the model as it is on validation queries; each text is encoded once."""
        run, qrels = judged(run, qrels, self)
        evaluate = RunEvaluator(measure, qrels)
        ids = judged_ids(run["docno"], qrels)
        queries = query_texts(run)
        rows_of = run.groupby("qid", sort=False).indices
        text, texts = pd.factorize(run[self.text_field], use_na_sentinel=False)

        def quality() -> float:
            query_vectors = self.encode_queries(queries.tolist())
            vectors = self.encode_docs(texts.tolist())
            scores = np.empty(len(run))
            for query_vector, rows in zip(query_vectors, rows_of.values(), strict=True):
                scores[rows] = vectors[text[rows]] @ query_vector
            scored = run[["qid"]].assign(docno=ids, score=scores)
            return evaluate(scored.groupby(["qid", "docno"], sort=False, as_index=False)["score"].max())

        return quality

    def _write(self, folder: Path) -> dict[str, Any]:
        self.network.save_pretrained(str(folder / NETWORK), create_model_card=False)
        return {}

    @classmethod
    def _read(cls, folder: Path, about: dict[str, Any], options: dict[str, Any]) -> DualEncoder:
        return cls(folder / NETWORK, **options)


def _shaped(network: SentenceTransformer, separate_encoders: bool, similarity: Similarity) -> SentenceTransformer:
    """The network with one encoder or two, and with or without normalized vectors."""
    modules: list[Any] = [module for module in network.children() if not isinstance(module, Normalize)]
    if separate_encoders and not any(isinstance(module, Router) for module in modules):
        modules = [Router.for_query_document(copy.deepcopy(modules), modules)]
    if similarity == "cosine":
        modules.append(Normalize())
    shaped = SentenceTransformer(
        modules=modules,
        device=str(network.device),
        prompts=cast(dict[str, str], network.prompts),
        default_prompt_name=network.default_prompt_name,
        similarity_fn_name=similarity,
        truncate_dim=network.truncate_dim,
    )
    if is_normalized(shaped) != (similarity == "cosine"):
        raise ValueError(f"the encoders within the model normalize their vectors: similarity={similarity!r} cannot be")
    return shaped


def _limit_lengths(network: SentenceTransformer, query: int, passage: int) -> None:
    """Sets how many tokens are read.

    Raises:
        ValueError: If the network does not read so many.
    """
    for module in network.modules():
        if isinstance(module, Transformer):
            for name, length in {"max_query_length": query, "max_passage_length": passage}.items():
                if not 2 < length <= (module.max_seq_length or length):
                    raise ValueError(f"the model reads 3 to {module.max_seq_length} tokens, {name} is {length}")
            module.query_length, module.document_length = query, passage
