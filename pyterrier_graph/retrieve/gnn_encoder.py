"""GNNEncoder: passage vectors from a graph neural network, for a dual-encoder's price of retrieval."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import pandas as pd
import pyterrier as pt
import torch
from pyterrier_dr import FlexIndex
from safetensors.torch import load_model, save_model

from pyterrier_graph.checks import check_type
from pyterrier_graph.encoders.checkpoints import DEFAULT
from pyterrier_graph.encoders.devices import DType
from pyterrier_graph.encoders.vector_files import VectorsOf
from pyterrier_graph.models.gnn_encoder import (
    GNNEncoderConfig,
    GNNEncoderNetwork,
    PaperGNNEncoderConfig,
    PaperGNNEncoderNetwork,
)
from pyterrier_graph.models.passage_network import PassageNetwork
from pyterrier_graph.retrieve.contextual_encoder import Config, ContextualEncoder
from pyterrier_graph.retrieve.contextual_index import ContextualIndex
from pyterrier_graph.retrieve.dense_validation import tune_weights, validation
from pyterrier_graph.retrieve.dual_encoder import DualEncoder
from pyterrier_graph.retrieve.gnn_training import joint_vectors, loss_queries, texts_by_docno, trainable
from pyterrier_graph.retrieve.index_identity import identity_of
from pyterrier_graph.training.dual import is_normalized, scale_of
from pyterrier_graph.training.masked_graph import GNNEncoderTraining, LossQueries
from pyterrier_graph.training.masked_graph_model import BatchCollator, MaskedGraphModel
from pyterrier_graph.training.options import TrainerOptions
from pyterrier_graph.training.query_encoder import QueryCollator, QueryEncoderModel
from pyterrier_graph.training.trainer import train

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder

    from pyterrier_graph.graphs import HeteroGraph
    from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
    from pyterrier_graph.training.mining import TrainingExamples

WEIGHTS, QUERY_ENCODER = "network.safetensors", "query-encoder"


class GNNEncoder(ContextualEncoder):
    """Passages aggregate from queries, titles and neighbors before they are indexed; queries are encoded as ever.

    .. cite:: liu2022gnnencoder
        :citation: Liu et al. GNN-encoder: Learning a dual-encoder architecture via graph neural networks for passage
            retrieval. Findings of EMNLP 2022.
        :link: https://doi.org/10.18653/v1/2022.findings-emnlp.44

    ::

        queries = ptg.QueryPassageGraph("train.graph").build(train_topics, graph, retriever, qrels=train_qrels)
        gnn = ptg.GNNEncoder(graph, query_graph=queries).fit(train_topics, train_qrels, dev_topics, dev_qrels)
        retriever = gnn.index("corpus.flex").retriever()

    The untrained network is a :class:`~pyterrier_graph.GraphMean`; ``config=mean.config`` starts with the weights, and
    the ``isolated_norm``, of a mean that was tuned.

    A trained network serves other collections, too: ``gnn.apply_attributes(graph=other, query_graph=queries)``, with
    ``vectors=None`` where ``gnn`` was given vectors, or ``GNNEncoder.load(path, graph=other, query_graph=queries)``.

    Args:
        graph: The document graph; None for passages without documents, which are given by ``vectors``, and to do no
            more than encode queries.
        encoder: See :class:`~pyterrier_graph.GraphMean`, as for all that is not described here.
        query_graph: The graph of training queries.
        weights: The relations, each with the weight that it starts with, in place of ``config.weights``. The default is
            that of GraphMean.
        config: A :class:`~pyterrier_graph.GNNEncoderConfig`, or ``GNNEncoderConfig.paper()`` for the papers' network.
        edges: Whether passages aggregate at all. The same network without edges has as many parameters: it tells the
            effect of the graph from that of a projection.
        vectors: See GraphMean, as for ``folder``, ``num_candidates``, ``device``, ``dtype``, ``verbose``.
        training: Options of training.
        seed: Seed of the network's first weights.

    Attributes:
        network: The network.
        training_log: Losses, and the validation measure under its own name, of the last training.
        query_model: The query encoder after :meth:`fit_query_encoder`; None before.
    """

    schematic = {"label": "GNNEncoder", "help_url": "https://pypi.org/project/pyterrier-graph/"}
    ARTIFACT_TYPE = "gnn_encoder"
    ARTIFACT_FORMAT = "safetensors"
    WRITTEN = ("edges", "seed")
    STAGES = {"training": GNNEncoderTraining}
    KEEP_WEIGHTS = ContextualEncoder.KEEP_WEIGHTS | {"edges", "training"}

    def __init__(
        self,
        graph: HeteroGraph | None = None,
        encoder: str | os.PathLike[str] | BiEncoder = DEFAULT,
        *,
        query_graph: QueryPassageGraph | None = None,
        weights: Mapping[str, float] | None = None,
        config: Config | None = None,
        edges: bool = True,
        vectors: FlexIndex | None = None,
        folder: str | os.PathLike[str] | None = None,
        training: GNNEncoderTraining | None = None,
        num_candidates: int = 100,
        seed: int = 0,
        device: str | None = None,
        dtype: DType = "auto",
        verbose: bool = True,
    ) -> None:
        options = {"query_graph": query_graph, "vectors": vectors, "folder": folder, "num_candidates": num_candidates}
        self._set_up(graph, encoder, device=device, dtype=dtype, verbose=verbose, **options)
        self.training = GNNEncoderTraining() if training is None else training
        self.edges, self.seed = edges, seed
        self._config, self._weights = config, weights
        resolved = self._resolved(config, weights)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            paper = isinstance(resolved, PaperGNNEncoderConfig)
            kind: Any = PaperGNNEncoderNetwork if paper else GNNEncoderNetwork
            self.network = cast(PassageNetwork, kind(resolved, self._dimension).to(self._device).eval())
        self.random_start = bool([*self.network.parameters()]) and paper
        self.query_training_log: list[dict[str, float]] = []
        self._check_attributes()

    def _resolved(self, config: Any, weights: Mapping[str, float] | None) -> Config:
        """The configuration, with weights."""
        if config is None:
            config = GNNEncoderConfig()
        check_type("config", config, (GNNEncoderConfig, PaperGNNEncoderConfig), "a GNNEncoderConfig")
        if isinstance(config, PaperGNNEncoderConfig):
            if weights is not None:
                raise ValueError("the papers' network has no weights of relations: leave out weights= or config=")
            return config
        if weights is None and (weights := config.weights) is None:
            weights = self._default_weights()
        return dataclasses.replace(config, weights=weights)

    @property
    def weights(self) -> dict[str, float]:
        """The present weight per relation; of the papers' network, which has no such weights, none."""
        return self.network.weights if isinstance(self.network, GNNEncoderNetwork) else {}

    @property
    def _relations(self) -> Sequence[str]:
        without_gnn = isinstance(self.network.config, PaperGNNEncoderConfig) and not self.network.config.gnn
        return () if not self.edges or without_gnn else self.network.relations

    def __repr__(self) -> str:
        relations = ", ".join(self._relations) if self.edges else "without edges"
        return f"GNNEncoder({self.graph!r}, {self.encoder!r}, {relations})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from pyterrier_graph.plots.model_html import contextual_calls, parameters, reranker_html, training_sizes

        sizes: dict[str, Any] = {"encoder": repr(self.encoder), "aggregates from": tuple(self._relations) or "nothing"}
        if isinstance(self.network, GNNEncoderNetwork):
            sizes["weights"] = self.weights
            sizes["norm where no query is relevant"] = f"{float(self.network.isolated_norm):g}"
        sizes |= {"parameters": parameters(self.network)} | training_sizes(self)
        fit = "gnn.fit(topics, qrels, dev_topics, dev_qrels)"
        return reranker_html(self, sizes, contextual_calls(self, "gnn", fit))

    def fit(
        self,
        topics_or_res_tr: pd.DataFrame,
        qrels_tr: pd.DataFrame | None,
        topics_or_res_va: pd.DataFrame | None = None,
        qrels_va: pd.DataFrame | None = None,
        *,
        examples: TrainingExamples | None = None,
        texts: pt.Transformer | None = None,
    ) -> Self:
        """Masked graph training (Algorithm 1).

        Training queries that are in the query graph are taken out of it, some in each epoch, when they give the loss;
        others always give it. Negatives are the other passages of the batch, and passages that were retrieved for a
        query and are not relevant to it. The network learns from the encoder's own vectors (000). With
        ``encoder_learning_rate`` the encoder, which has to be a :class:`~pyterrier_graph.DualEncoder`, learns as well
        (001): a copy of it becomes ``gnn.encoder``. Vectors that were given are then of the encoder before, so they are
        dropped: the passages of the graph are encoded anew, or new vectors are set by ``gnn.vectors = index``.

        A call that was killed continues, with ``output_dir``, and ends with the same weights. One that is interrupted
        leaves the model as it was.

        Args:
            topics_or_res_tr: Training queries: ``qid, query``.
            qrels_tr: Judgments for them: ``qid, docno, label``, of passages, or of documents for all their passages.
                None with ``examples``.
            topics_or_res_va: Validation queries: the weights that rank best are kept, the untrained ones included.
            qrels_va: Judgments for them.
            examples: What :class:`~pyterrier_graph.HardNegativeMiner` has made of the training queries: its denoised
                positives and negatives take the place of judgments and retrieved passages (Algorithm 1, line 7).
            texts: Adds ``text`` to a frame with ``docno``, for training the encoder without a document graph.

        Raises:
            KeyError: If no relevant passage is in the index of vectors.
            ValueError: If there is nothing to learn, or to learn from, ``output_dir`` holds another training, or
                training diverges.

        Warns:
            UserWarning: If relevant passages are unknown, validation queries are in the query graph, or the model is
                trained already.
        """
        self._start_fit()
        options = self.training
        queries = loss_queries(self, topics_or_res_tr, qrels_tr, options, examples)
        scalars = self.network.scalars()
        matrices = [value for value in self.network.parameters() if not any(value is scalar for scalar in scalars)]
        rate = options.learning_rate if options.scalar_learning_rate is None else options.scalar_learning_rate
        rates = [(matrices, options.learning_rate), (scalars, rate)]
        encoder = passage_texts = compute = None
        if options.encoder_learning_rate is not None:
            passage_texts, encoder = texts_by_docno(self.graph, texts), trainable(self.encoder)
            if encoder.late_chunking:
                raise ValueError("joint training reads each passage by itself: give an encoder without late_chunking")
            compute = partial(joint_vectors, self.network, encoder, queries.sampler, passage_texts)
            rates.append(([*encoder.network.parameters()], options.encoder_learning_rate))
        learning = None if encoder is None else encoder.network
        model = MaskedGraphModel(self.network, options.scale, learning, l2_sp=options.l2_sp)
        collate, measured = BatchCollator(queries, passage_texts), (topics_or_res_va, qrels_va, compute, encoder)
        self.training_log = self._train(model, queries, collate, options, rates, measured)
        if encoder is not None:
            self.encoder, self._vectors = encoder, None
        return self

    def tune(self, topics: pd.DataFrame, qrels: pd.DataFrame) -> Self:
        """Sets the weights of relations, and ``isolated_norm``, by grid search; all else that was learned stays.

        The queries are validation queries; see :meth:`fit`. The papers' network has nothing to tune: ValueError.
        """
        tune_weights(self, topics, qrels, self.training.measure)
        return self

    def fit_query_encoder(
        self,
        index: ContextualIndex,
        topics_or_res_tr: pd.DataFrame,
        qrels_tr: pd.DataFrame,
        topics_or_res_va: pd.DataFrame | None = None,
        qrels_va: pd.DataFrame | None = None,
        *,
        training: GNNEncoderTraining | None = None,
    ) -> Self:
        """Trains the query encoder anew, for the contextual vectors of passages (000, Sect. 4.3).

        The encoder, which has to be a :class:`~pyterrier_graph.DualEncoder`, stays. A copy of it learns, and becomes
        ``gnn.query_model`` and ``index.encoder``. All training queries give the loss in every epoch.

        The vectors of the index, which :meth:`index` has made, do not change. The other arguments are those of
        :meth:`fit`; of the options, ``encoder_learning_rate`` is the rate, by default 2e-5.
        """
        check_type("index", index, ContextualIndex, "a ContextualIndex, such as gnn.index(path)")
        options = training or GNNEncoderTraining(epochs=3, batch_size=32, encoder_learning_rate=2e-5)
        every = dataclasses.replace(options, masked=None, skip_unanswerable=False)
        queries = loss_queries(self, topics_or_res_tr, qrels_tr, every)
        encoder = trainable(self.query_model or self.encoder)
        vectors = index.flex.payload(return_docnos=False)[0]
        if vectors.shape != (shape := queries.sampler.vectors.shape):
            raise ValueError(f"{index!r} has vectors of shape {vectors.shape}, the passages' own are of {shape}")
        self.query_training_log = self._train(
            QueryEncoderModel(encoder.network, scale_of(options.scale, is_normalized(encoder.network))),
            queries,
            QueryCollator(queries, vectors),
            options,
            [([*encoder.network.parameters()], options.encoder_learning_rate or 2e-5)],
            (topics_or_res_va, qrels_va, lambda: lambda passages: np.asarray(vectors[passages]), encoder),
            index=identity_of(index.flex),
        )
        self.query_model = index.encoder = encoder
        return self

    def _train(
        self,
        model: torch.nn.Module,
        queries: LossQueries,
        collate: Any,
        options: TrainerOptions,
        rates: list[tuple[list[torch.nn.Parameter], float]],
        measured: tuple[pd.DataFrame | None, pd.DataFrame | None, Callable[[], VectorsOf] | None, DualEncoder | None],
        **identity: Any,
    ) -> list[dict[str, float]]:
        """Trains; ``measured`` are validation queries, their judgments, and what computes passages and queries."""
        rates = [(parameters, rate) for parameters, rate in rates if parameters]
        if not rates:
            raise ValueError(f"{self!r} has nothing to learn: its network has no weights, and the encoder is frozen")
        topics, qrels, compute, encoder = measured
        validate = None
        if topics is not None and len(topics):
            encode = None if encoder is None else encoder.encode_queries
            per_query = validation(self, topics, qrels, options.measure, compute, encode)
            validate = lambda: float(per_query().mean())  # noqa: E731
        identity |= {"weights at the start": self._digest(), "training queries": queries.fingerprint()}
        identity |= self._neighbors_identity() | {"vectors": queries.sampler.vectors_sha256}
        arguments: dict[str, Any] = {"identity": identity, "device": self._device, "dtype": self.dtype}
        arguments |= {"rates": rates, "validate": validate, "verbose": self.verbose}
        return train(model, queries, collate, options, **arguments)

    def _write(self, folder: Path) -> dict[str, Any]:
        save_model(self.network, str(folder / WEIGHTS))
        if self.query_model is not None:
            self.query_model.apply_attributes().save(folder / QUERY_ENCODER)
        return super()._write(folder)

    @classmethod
    def _read(cls, folder: Path, about: dict[str, Any], options: dict[str, Any]) -> Self:
        model = cls(**cls._read_parts(folder, about, options))
        load_model(model.network, folder / WEIGHTS)
        if (folder / QUERY_ENCODER).exists():
            model.query_model = DualEncoder.load(folder / QUERY_ENCODER, device=model.device, dtype=model.dtype)
        return model
