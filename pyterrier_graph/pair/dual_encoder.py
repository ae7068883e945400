"""DualEncoder: a bi-encoder of pyterrier_dr that can be trained."""

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
import pyterrier as pt
from accelerate import PartialState
from datasets import Dataset
from pyterrier_dr import FlexIndex
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import Pooling

from pyterrier_graph.checks import check_frame
from pyterrier_graph.encoders.checkpoints import DType
from pyterrier_graph.encoders.names import DEFAULT
from pyterrier_graph.encoders.sentence_encoder import SentenceEncoder
from pyterrier_graph.encoders.stored_vectors import VECTORS
from pyterrier_graph.pair.mining import HardNegativeMiner
from pyterrier_graph.pair.query_encoder import IndexedExamples, train_query_encoder
from pyterrier_graph.pair.training import (
    DualEncoderTraining,
    Stage,
    dataset_sha256,
    text_columns,
    train_dual_encoder,
)
from pyterrier_graph.storage.artifact import file_sha256
from pyterrier_graph.training.model import LearnedModel, Log
from pyterrier_graph.training.trainer import restored_on_error
from pyterrier_graph.training.validation import JudgedRun, Validation, checked_topics

NETWORK = "sentence-transformer"
VALIDATED = 100  # passages of an index that are ranked per validation query


class DualEncoder(LearnedModel, SentenceEncoder):
    """A :class:`~pyterrier_graph.encoders.sentence_encoder.SentenceEncoder` that can be trained.

    .. cite:: ren2021pair
        :citation: Ren et al. PAIR: Leveraging passage-centric similarity relation for improving dense passage
            retrieval. Findings of ACL-IJCNLP 2021.
        :link: https://doi.org/10.18653/v1/2021.findings-acl.191

    ::

        dual_encoder = ptg.DualEncoder(miner=ptg.HardNegativeMiner(bm25 % 200, texts))
        dual_encoder.fit(topics, qrels)
        index = pyterrier_dr.FlexIndex("passages.flex")
        (dual_encoder.doc_encoder() >> index).index(dataset.get_corpus_iter())
        retriever = dual_encoder.query_encoder() >> index.retriever()

    The similarity of a query and a passage is the dot product of their vectors, in training and in retrieval, and the
    cosine if the checkpoint normalizes its vectors. ``save(path)`` writes an ordinary ``SentenceTransformer`` into
    ``path/sentence-transformer``.

    The papers that train dual-encoders take the state of ``[CLS]`` as the vector of a text: ``pooling="cls"``.

    Args:
        encoder: Name or folder of a SentenceTransformer, or of any Hugging Face encoder. A checkpoint with separate
            encoders for queries and passages keeps both.
        pooling: How token states become a vector: ``'cls'`` or ``'mean'``. The default is the checkpoint's own, which
            is the mean for a plain Hugging Face encoder.
        separate_encoders: Whether queries get an encoder of their own, which starts as a copy of the passage encoder.
            (PAIR's "w/o SP"; PAIR itself shares the parameters.)
        miner: Makes training examples for :meth:`fit`.
        training: Options of training.

    For the other arguments see :class:`~pyterrier_graph.encoders.sentence_encoder.SentenceEncoder`.

    Attributes:
        network: The SentenceTransformer.

    Raises:
        ValueError: If an option is out of range, or the checkpoint cannot read so many tokens.
    """

    schematic = {"label": "DualEncoder", "help_url": "https://pypi.org/project/pyterrier-graph/"}
    ARTIFACT_TYPE = "dual_encoder"
    ARTIFACT_FORMAT = "sbert"
    WRITTEN = ("pooling", "separate_encoders", "max_query_tokens", "max_passage_tokens")
    TRAINING = DualEncoderTraining
    KEEP_WEIGHTS = LearnedModel.KEEP_WEIGHTS | {"miner", "max_query_tokens", "max_passage_tokens"}

    def __init__(
        self,
        encoder: str | os.PathLike[str] = DEFAULT,
        *,
        pooling: Literal["cls", "mean"] | None = None,
        separate_encoders: bool = False,
        miner: HardNegativeMiner | None = None,
        training: DualEncoderTraining | None = None,
        max_query_tokens: int | None = None,
        max_passage_tokens: int | None = None,
        batch_size: int = 32,
        device: str | None = None,
        dtype: DType = "auto",
        verbose: bool = True,
    ) -> None:
        pt.Artifact.__init__(self, pt.Artifact.NO_PATH)
        SentenceEncoder.__init__(
            self,
            encoder,
            max_query_tokens=max_query_tokens,
            max_passage_tokens=max_passage_tokens,
            batch_size=batch_size,
            device=device,
            dtype=dtype,
            verbose=verbose,
        )
        self.pooling = pooling
        self.separate_encoders = separate_encoders
        if pooling is not None:
            set_pooling(self.network, pooling)
        if separate_encoders:
            self.network = with_separate_encoders(self.network)
        self.miner = miner
        self.training = training or DualEncoderTraining()
        self._check()

    def _check(self) -> None:
        super()._check()
        self._limit()

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
        with the options ``training.pretraining``, and the second from labels and pseudo-labels of the labeled queries.

        Args:
            topics_or_res_tr: Training queries: ``qid, query``. Other columns are ignored.
            qrels_tr: Judgments for them: ``qid, docno, label``.
            topics_or_res_va: Validation queries. ``fit`` keeps the weights with the best validation measure, or the
                weights from before training if they are as good. The model ranks the documents in this frame, or the
                miner's candidates if it has none.
            qrels_va: Judgments for them, of passages or, for all their passages, of documents.
            unlabeled: Queries without judgments: ``qid, query``.

        Raises:
            ValueError: If there is no miner or no training example, ``output_dir`` holds another training, or training
                diverges.
        """
        miner = self.miner
        if miner is None:
            raise ValueError(
                f"{self!r} has no miner: give DualEncoder(miner=HardNegativeMiner(...)), or fit_examples"
            )
        run = self._validation_run(topics_or_res_va)
        # with several processes, the first one mines while the rest wait
        with PartialState(cpu=self._device.type == "cpu").main_process_first():
            if unlabeled is None:
                pseudo_labeled = None
                examples = miner.labeled(topics_or_res_tr, qrels_tr)
            else:
                pseudo_labeled = miner.pseudo_labeled(unlabeled)
                examples = miner.denoised(topics_or_res_tr, qrels_tr)
        return self.fit_examples(examples, run, qrels_va, pretraining_examples=pseudo_labeled)

    def fit_examples(
        self,
        examples: Dataset,
        topics_or_res_va: pd.DataFrame | None = None,
        qrels_va: pd.DataFrame | None = None,
        *,
        pretraining_examples: Dataset | None = None,
    ) -> Self:
        """Trains on examples, such as a :class:`~pyterrier_graph.HardNegativeMiner` makes.

        Each stage has a folder of its own in ``output_dir``, ``pretraining`` or ``training``. If a call was killed, the
        same call continues from the last checkpoint there, and ends with the same weights.

        Args:
            examples: Columns ``query, positive, negative_1 .. negative_n``; n may be 0. Ids are ignored.
            topics_or_res_va: Validation queries, as in :meth:`fit`.
            qrels_va: Judgments for them.
            pretraining_examples: Examples of the first stage, which has the options ``training.pretraining``.
        """
        examples = text_columns(examples)
        if pretraining_examples is not None:
            pretraining_examples = text_columns(pretraining_examples)
        run = self._validation_run(topics_or_res_va)
        judged = None if run is None else JudgedRun(run, qrels_va, self)
        self._start_fit()
        with restored_on_error(self.network):
            if pretraining_examples is not None:
                self._train("pretraining", pretraining_examples, judged)
            self.training_log = self._train("training", examples, judged)
        return self

    def _train(self, stage: Stage, examples: Dataset, judged: JudgedRun | None) -> Log:
        """Trains the network in one stage, and returns the log."""
        options = self.training.of_stage(stage)
        validate = None
        if judged is not None:
            validate = self._validate(Validation(judged, options.measure))
        identity = {"training examples": dataset_sha256(examples), "encoder": self.model_name}
        run = self._run(validate, identity)
        return train_dual_encoder(self.network, examples, options, run)

    def fit_query_encoder(
        self,
        index: FlexIndex,
        examples: Dataset,
        topics_or_res_va: pd.DataFrame | None = None,
        qrels_va: pd.DataFrame | None = None,
    ) -> Self:
        """Trains the encoder of queries for the passages of an index, whose vectors stay as they are.

        This is the last stage of GNN-encoder's preprint (arXiv 2204.08241, Sect. 4.3), with the examples of the first
        stage; :meth:`~pyterrier_graph.DualEncoderTraining.paper` has its settings::

            index = gnn.index("corpus.flex").flex
            training = ptg.DualEncoderTraining.paper("query-encoder")
            queries = dual_encoder.apply_attributes(training=training)  # a copy
            queries.fit_query_encoder(index, examples, dev_topics, dev_qrels)
            retriever = queries.query_encoder() >> index.np_retriever()

        Afterwards only queries should be encoded with this model, unless it has separate encoders.

        Args:
            index: The index.
            examples: What a :class:`~pyterrier_graph.HardNegativeMiner` has made.
            topics_or_res_va: Validation queries, ``qid, query``, which rank all passages of the index.
            qrels_va: Judgments for them.

        Raises:
            KeyError: If the index lacks a passage of the examples.
        """
        self._start_fit()
        options = self.training
        validate = None
        if topics_or_res_va is not None:
            topics = checked_topics(topics_or_res_va, self)
            judged = JudgedRun(topics, qrels_va, self)
            measure = Validation(judged, options.measure).per_query_of
            retriever = self.query_encoder() >> index.np_retriever(num_results=VALIDATED)
            validate = lambda: measure(retriever(judged.rows))  # noqa: E731
        batches = IndexedExamples(examples, index, options.seed)
        identity = {
            "training examples": dataset_sha256(examples),
            "vectors": file_sha256(index.index_path / VECTORS),
        }
        run = self._run(validate, identity)
        self.training_log = train_query_encoder(self.network, batches, options, run)
        return self

    def _validation_run(self, topics: pd.DataFrame | None) -> pd.DataFrame | None:
        """Validation queries with documents and their texts."""
        if topics is None:
            return None
        if "docno" not in topics.columns and self.miner is not None:
            first_stage = self.miner.candidates >> self.miner.texts
            topics = checked_topics(topics, self)
            topics = first_stage(topics)
        topics = check_frame(topics, self, texts=("text",))
        pt.validate.result_frame(topics, extra_columns=["query", "text"], context=self)
        return topics

    def _validate(self, validation: Validation) -> Callable[[], np.ndarray]:
        """A function that measures the model in its present state; it encodes each text once."""
        query, queries = pd.factorize(validation.run["query"])  # (rows,)
        text, texts = pd.factorize(validation.run["text"])

        def validate() -> np.ndarray:
            query_vectors = self.encode_queries(queries.tolist())  # (queries, d)
            text_vectors = self.encode_docs(texts.tolist())  # (texts, d)
            products = query_vectors[query] * text_vectors[text]  # (rows, d)
            return validation.per_query(products.sum(1))

        return validate

    def _write(self, folder: Path) -> dict[str, Any]:
        self.network.save_pretrained(str(folder / NETWORK), create_model_card=False)
        return {}

    @classmethod
    def _read(cls, folder: Path, about: dict[str, Any], options: dict[str, Any]) -> Self:
        return cls(folder / NETWORK, **options)


def set_pooling(network: SentenceTransformer, mode: Literal["cls", "mean"]) -> None:
    """Changes how the token states of a text become its vector."""
    for module in network.modules():
        if isinstance(module, Pooling):
            module.pooling_mode = mode
            module.pooling_output_dimension = module.embedding_dimension


def with_separate_encoders(network: SentenceTransformer) -> SentenceTransformer:
    """A network whose queries pass a copy of its modules. A network that has two encoders stays as it is."""
    modules: list[Any] = list(network.children())
    if any(isinstance(module, Router) for module in modules):
        return network
    query_modules = copy.deepcopy(modules)
    router = Router.for_query_document(query_modules, modules)
    prompts = {name: prompt or "" for name, prompt in network.prompts.items()}
    separate = SentenceTransformer(
        modules=[router],
        device=str(network.device),
        prompts=prompts,
        similarity_fn_name=network.similarity_fn_name,
    )
    return separate.eval()
