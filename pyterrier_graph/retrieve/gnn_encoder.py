"""GNNEncoder: passage vectors that have listened to training queries, for a dual-encoder's price."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import pandas as pd
import pyterrier as pt
import torch
from accelerate import PartialState
from safetensors.torch import load_model, save_model

from pyterrier_graph.encoders.queries import query_texts
from pyterrier_graph.encoders.vector_files import VectorsOf
from pyterrier_graph.graphs.edge_features import texts_of_passages
from pyterrier_graph.graphs.relations import RELEVANT, RETRIEVED
from pyterrier_graph.models.gnn_encoder import (
    GNNEncoderConfig,
    GNNEncoderNetwork,
    PaperGNNEncoderConfig,
    PaperGNNEncoderNetwork,
    PassageNetwork,
)
from pyterrier_graph.plots.model_html import parameters, reranker_html
from pyterrier_graph.retrieve.contextual_encoder import FusedEncoder, passages_of
from pyterrier_graph.retrieve.dual_encoder import DualEncoder
from pyterrier_graph.retrieve.index_writer import fused_identity
from pyterrier_graph.retrieve.neighbor_sampler import NeighborSampler, name_of
from pyterrier_graph.training.dual import is_normalized, scale_of
from pyterrier_graph.training.learned_model import LearnedModel
from pyterrier_graph.training.masked_graph import (
    BatchCollator,
    FusedCollator,
    GNNEncoderTraining,
    LossQueries,
    MaskedGraphModel,
    PassageTexts,
    QueryEncoderModel,
    renewed,
    texts_of,
)
from pyterrier_graph.training.options import TrainerOptions
from pyterrier_graph.training.trainer import train

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder, FlexIndex

    from pyterrier_graph.graphs import HeteroGraph
    from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph

WEIGHTS, CONFIG, ENCODER, QUERY_ENCODER = "network.safetensors", "config.json", "encoder", "query-encoder"
RELEVANT_AT_FIRST = 0.5

Config = PaperGNNEncoderConfig | GNNEncoderConfig


class GNNEncoder(FusedEncoder, LearnedModel):
    """Passages listen to training queries before they are indexed; queries are encoded as ever.

    .. cite:: liu2022gnnencoder
        :citation: Liu et al. GNN-encoder: Learning a dual-encoder architecture via graph neural networks for passage
            retrieval. Findings of EMNLP 2022.
        :link: https://doi.org/10.18653/v1/2022.findings-emnlp.44

    ::

        graph = ptg.QueryPassageGraph("train.graph").build(topics, index, encoder.query_encoder() >> index.retriever())
        gnn = ptg.GNNEncoder(encoder, index, graph).fit(topics, qrels, dev_topics, dev_qrels)
        fused = gnn.fuse(index, FlexIndex("fused.flex"))
        retriever = gnn.query_encoder() >> fused.retriever()

    Args:
        encoder: A bi-encoder of pyterrier_dr, such as :class:`DualEncoder`.
        index: Its vectors of the passages; None to do no more than encode queries.
        queries: The graph of training queries.
        network: A ``PaperGNNEncoderConfig`` for the papers' network; for the typed one a ``GNNEncoderConfig``, or just
            its channels with the weights that they start at, such as ``GraphMean(...).fit(...).beta``. Channels are
            ``'relevant'``, ``'retrieved'``, and relations, or paths, of the document graph. By default the typed one with
            ``{'relevant': 0.5, 'retrieved': 0}`` where the graph knows relevant passages, else the papers' one.
        documents: The document graph, where relations are heard.
        control: Whether nothing is heard: the same network with as many parameters and no edges, which tells what the
            graph does from what a projection does.
        training: Options of training.
        candidates: Passages per validation query; each is ranked among the candidates of all.
        folder: Where vectors of queries and titles are kept, so that they are encoded once; by default temporary.
        seed: Seed of the network's first weights.
        device: As torch names it; by default a GPU where there is one.
        verbose: Whether to show progress.

    Attributes:
        network: The network.
        training_log: Losses, and the measure under its own name, of the last training.
        query_model: The query encoder after :meth:`fit_query_encoder`; None before.

    Raises:
        FileNotFoundError: If there is no index.
        ValueError: If a channel lacks its graph, the graph is of other passages, or the network of other dimensions.
    """

    schematic = {"label": "GNNEncoder", "help_url": "https://pypi.org/project/pyterrier-graph/"}
    ARTIFACT_TYPE = "gnn_encoder"
    ARTIFACT_FORMAT = "safetensors"
    WRITTEN = ("control", "seed")
    GIVEN = ("index", "queries")
    STAGES = {"training": GNNEncoderTraining}
    KEEP_WEIGHTS = frozenset(
        {"control", "training", "candidates", "folder", "device", "verbose", "index", "queries", "documents"}
    )

    def __init__(
        self,
        encoder: BiEncoder,
        index: FlexIndex | None = None,
        queries: QueryPassageGraph | None = None,
        network: Config | Mapping[str, float] | None = None,
        *,
        documents: HeteroGraph | None = None,
        control: bool = False,
        training: GNNEncoderTraining | None = None,
        candidates: int = 100,
        folder: str | os.PathLike[str] | None = None,
        seed: int = 0,
        device: str | None = None,
        verbose: bool = False,
    ) -> None:
        pt.Artifact.__init__(self, pt.Artifact.NO_PATH)
        self.encoder, self.index, self.queries, self.documents = encoder, index, queries, documents
        self.control, self.candidates, self.folder, self.seed = control, candidates, folder, seed
        self.training = training or GNNEncoderTraining()
        self.device, self.verbose = device, verbose
        self.model = str(getattr(encoder, "model", getattr(encoder, "model_name", encoder)))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.network = _network(self._config(network)).to(self._device).eval()
        self.training_log: list[dict[str, float]] = []
        self.query_model: DualEncoder | None = None
        if index is not None:
            self._sampler(index)

    def __repr__(self) -> str:
        heard = "control" if self.control else ", ".join(self.network.channels)
        return f"GNNEncoder({self.encoder!r}, {heard})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        sizes = {
            "encoder": repr(self.encoder),
            "listens to": "nothing (control)" if self.control else ", ".join(self.network.channels),
            "parameters": parameters(self.network),
        }
        if isinstance(self.network, GNNEncoderNetwork):
            weights = (f"{name}: {weight:.2f}" for name, weight in self.network.weights.items())
            sizes["weights"] = ", ".join(weights)
            sizes["length where no query is known"] = f"{float(self.network.isolated_norm):g}"
        calls = [
            "gnn.fit(topics, qrels, dev_topics, dev_qrels)",
            "fused = gnn.fuse(index, FlexIndex(path))",
            "gnn.query_encoder() >> fused.retriever()",
            "plots.passage_queries(gnn.explain(docno))",
        ]
        return reranker_html(self, sizes, calls)

    def query_encoder(self) -> pt.Transformer:
        """Encodes queries, for the retrievers of a fused index: ``query`` to ``query_vec``."""
        return (self.query_model or self.encoder).query_encoder()

    def fit(
        self,
        topics_or_res_tr: pd.DataFrame,
        qrels_tr: pd.DataFrame,
        topics_or_res_va: pd.DataFrame | None = None,
        qrels_va: pd.DataFrame | None = None,
        *,
        texts: pt.Transformer | None = None,
    ) -> Self:
        """Masked graph training (Algorithm 1).

        Training queries that are in the graph are taken out of it, some in each epoch, when they give the loss; others
        always give it. Negatives are the other passages of the batch, and such as were retrieved for a query and are
        not relevant to it. What is learned from are the index's vectors (000). With ``encoder_learning_rate`` the
        dual-encoder, which has to be a :class:`DualEncoder`, learns as well (001): a copy of it becomes
        ``gnn.encoder``. The index then is of the encoder that was, so ``gnn.index`` is None: make one anew, fuse that,
        and set ``gnn.index`` to it for :meth:`vectors` and :meth:`explain`.

        A call that was killed goes on where it was, with ``output_dir``, and ends with the same weights. One that is
        interrupted leaves the model as it was.

        Args:
            topics_or_res_tr: Training queries: ``qid, query``.
            qrels_tr: Judgments for them: ``qid, docno, label``, of passages, or of documents for all their passages.
            topics_or_res_va: Validation queries: the weights that rank best are kept, the untrained ones included.
            qrels_va: Judgments for them.
            texts: Adds ``text`` to a frame with ``docno``, as ``pt.text.get_text(dataset)`` does; for training the
                dual-encoder, too.

        Raises:
            pt.validate.InputValidationError: If a column is missing.
            KeyError: If no relevant passage is in the index.
            ValueError: If there is nothing to learn, or to learn from, ``texts`` or a DualEncoder is missing where the
                encoder learns, ``output_dir`` holds another training, or training diverges.
        """
        options = self.training
        queries = self._loss_queries(topics_or_res_tr, qrels_tr, options)
        sampler = queries.sampler
        rates = [(self._matrices(), options.learning_rate)]
        if gates := self.network.scalars():
            rates.append((gates, options.scalar_learning_rate or options.learning_rate))
        encoder = passage_texts = compute = None
        if options.encoder_learning_rate is not None:
            passage_texts, encoder = _loader(texts), _own_copy(self.encoder)
            compute = partial(self._jointly, encoder, sampler, passage_texts)
            rates.append(([*encoder.network.parameters()], options.encoder_learning_rate))
        model = MaskedGraphModel(self.network, options.scale, None if encoder is None else encoder.network)
        quality = None
        if topics_or_res_va is not None and len(topics_or_res_va):
            encode = None if encoder is None else encoder.encode_queries
            quality = self._quality(sampler, topics_or_res_va, qrels_va, options.measure, compute, encode)
        before = {name: value.clone() for name, value in self.network.state_dict().items()}
        try:
            self.training_log = self._train(
                model, queries, BatchCollator(queries, passage_texts), options, rates=rates, quality=quality
            )
        except BaseException:
            self.network.load_state_dict(before)
            raise
        if encoder is not None:
            encoder._fingerprint = None
            self.encoder, self.index = encoder, None
        return self

    def fit_query_encoder(
        self,
        fused_index: FlexIndex,
        topics_or_res_tr: pd.DataFrame,
        qrels_tr: pd.DataFrame,
        topics_or_res_va: pd.DataFrame | None = None,
        qrels_va: pd.DataFrame | None = None,
        *,
        training: GNNEncoderTraining | None = None,
    ) -> Self:
        """Trains the query encoder anew, for what passages have become (000, Sect. 4.3).

        The encoder, which has to be a :class:`DualEncoder`, stays; a copy of it learns, and becomes
        ``gnn.query_model``. All training queries give the loss in every epoch.

        Args:
            fused_index: What :meth:`fuse` has made. It does not change.
            topics_or_res_tr: See :meth:`fit`, as for all below.
            qrels_tr: Likewise.
            topics_or_res_va: Likewise.
            qrels_va: Likewise.
            training: Options; ``encoder_learning_rate`` is the rate, by default 2e-5.

        Raises:
            Exception: As :meth:`fit`.
        """
        options = training or GNNEncoderTraining(epochs=3, batch_size=32, encoder_learning_rate=2e-5)
        every = dataclasses.replace(options, masked=None, skip_unanswerable=False)
        queries = self._loss_queries(topics_or_res_tr, qrels_tr, every)
        sampler = queries.sampler
        encoder = _own_copy(self.query_model or self.encoder)
        vectors = fused_index.payload(return_docnos=False)[0]
        if vectors.shape != sampler.vectors.shape:
            raise ValueError(
                f"{fused_index!r} has vectors of shape {vectors.shape}, {self.index!r} of {sampler.vectors.shape}"
            )
        quality = None
        if topics_or_res_va is not None and len(topics_or_res_va):
            quality = self._quality(
                sampler,
                topics_or_res_va,
                qrels_va,
                options.measure,
                compute=lambda: lambda passages: np.asarray(vectors[passages]),
                encode=encoder.encode_queries,
            )
        rate = options.encoder_learning_rate or 2e-5
        self.query_training_log = self._train(
            QueryEncoderModel(encoder.network, scale_of(options.scale, is_normalized(encoder.network))),
            queries,
            FusedCollator(queries, vectors),
            options,
            rates=[([*encoder.network.parameters()], rate)],
            quality=quality,
            fused=fused_identity(fused_index),
        )
        encoder._fingerprint = None
        self.query_model = encoder
        return self

    def quality(self, topics: pd.DataFrame, qrels: pd.DataFrame) -> Callable[[], float]:
        """What measures the model as it then is, on validation queries, by ``training.measure``.

        Args:
            topics: ``qid, query``.
            qrels: ``qid, docno, label``.
        """
        return self._quality(self._sampler(self.index), topics, qrels, self.training.measure)

    def _jointly(self, encoder: DualEncoder, sampler: NeighborSampler, passage_texts: PassageTexts) -> VectorsOf:
        """Computes passages by the network and an encoder as they are."""
        encoder.network.eval()
        network, device = self.network.eval(), encoder.network.device

        @torch.inference_mode()
        def vectors_of(passages: np.ndarray) -> np.ndarray:
            around = sampler.sample(passages)
            texts = texts_of(sampler, passage_texts, passages, around.queries)
            own = torch.from_numpy(encoder.encode_docs(texts.passages)).to(device)
            heard = torch.from_numpy(encoder.encode_queries(texts.heard)).to(device) if texts.heard else None
            return network(renewed(around.neighborhood.to(device), own, heard)).cpu().numpy()

        return vectors_of

    def _train(
        self,
        model: torch.nn.Module,
        queries: LossQueries,
        collate: Callable[[Sequence[int]], Any],
        options: TrainerOptions,
        *,
        rates: list[tuple[list[torch.nn.Parameter], float]],
        quality: Callable[[], float] | None,
        **identity: Any,
    ) -> list[dict[str, float]]:
        if not any(parameters for parameters, _ in rates):
            raise ValueError(
                f"{self!r} has nothing to learn: its network has no weights, and the encoder stays as it is"
            )
        identity |= {"start": self._digest(), "training_queries": queries.fingerprint()} | self._heard()
        return train(
            model,
            queries,
            cast(Any, collate),
            options,
            rates=[(parameters, rate) for parameters, rate in rates if parameters],
            validate=quality,
            identity=identity,
            device=self._device,
            verbose=self.verbose,
        )

    def _loss_queries(self, topics: pd.DataFrame, qrels: pd.DataFrame, options: GNNEncoderTraining) -> LossQueries:
        pt.validate.columns(topics, includes=["qid", "query"], context=self)
        pt.validate.columns(qrels, includes=["qid", "docno", "label"], context=self)
        topics = query_texts(topics.astype({"qid": str})).rename_axis("qid").reset_index()
        qrels = qrels.astype({"qid": str, "docno": str})
        sampler = self._sampler(self.index)
        with PartialState(cpu=self._device.type == "cpu").main_process_first():
            sampler.encode()
        relevant, by_document = passages_of(sampler, qrels[qrels["qid"].isin(topics["qid"])])
        return LossQueries(topics, relevant, by_document, sampler, options)

    def _matrices(self) -> list[torch.nn.Parameter]:
        gates = {id(gate) for gate in self.network.scalars()}
        return [parameter for parameter in self.network.parameters() if id(parameter) not in gates]

    def apply_attributes(self, **attributes: Any) -> Self:
        """See :meth:`LearnedModel.apply_attributes`."""
        if attributes.keys() <= self.KEEP_WEIGHTS:
            return super().apply_attributes(**attributes)
        return super().apply_attributes(**{"network": self.network.config} | attributes)

    @property
    def _channels(self) -> Sequence[str]:
        without_gnn = isinstance(self.network.config, PaperGNNEncoderConfig) and not self.network.config.gnn
        return () if self.control or without_gnn else self.network.channels

    def _config(self, network: Config | Mapping[str, float] | None) -> Config:
        if isinstance(network, (PaperGNNEncoderConfig, GNNEncoderConfig)):
            return network
        if self.index is None:
            raise ValueError(
                "the passages' vectors are needed: give index=FlexIndex(...), or a network's configuration"
            )
        dimension = self.index.payload(return_docnos=False)[0].shape[1]
        if network is None:
            if self.queries is None or RELEVANT not in self.queries.edge_types:
                return PaperGNNEncoderConfig(dimension)
            network = {RELEVANT: RELEVANT_AT_FIRST, RETRIEVED: 0.0}
        return GNNEncoderConfig(dimension, network)

    def _write(self, folder: Path) -> dict[str, Any]:
        save_model(self.network, str(folder / WEIGHTS))
        config: Any = self.network.config
        typed = isinstance(config, GNNEncoderConfig)
        text = json.dumps({"typed": typed, **config.to_dict()}, indent=1)
        (folder / CONFIG).write_text(text, encoding="utf-8")
        for name, encoder in ((ENCODER, self.encoder), (QUERY_ENCODER, self.query_model)):
            if isinstance(encoder, DualEncoder):
                copy.copy(encoder).save(folder / name)  # a copy, whose path may change
        return {"heard": self._heard()}

    @classmethod
    def _read(cls, folder: Path, about: dict[str, Any], options: dict[str, Any]) -> Self:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        kind = GNNEncoderConfig if config.pop("typed") else PaperGNNEncoderConfig
        own = {
            name: DualEncoder.load(folder / name, device=options.get("device"))
            for name in (ENCODER, QUERY_ENCODER)
            if (folder / name).exists()
        }
        encoder = options.setdefault("encoder", own.get(ENCODER))
        if encoder is None:
            raise ValueError(f"{about['heard']['encoder']} is not part of the artifact: give encoder=")
        if name_of(encoder) != about["heard"]["encoder"]:
            raise ValueError(f"the encoder must be {about['heard']['encoder']}, got {name_of(encoder)}")
        model = cls(network=kind(**config), **options)
        load_model(model.network, folder / WEIGHTS)
        model.query_model = own.get(QUERY_ENCODER)
        return model


def _network(config: Config) -> PassageNetwork:
    return GNNEncoderNetwork(config) if isinstance(config, GNNEncoderConfig) else PaperGNNEncoderNetwork(config)


def _own_copy(encoder: BiEncoder) -> DualEncoder:
    """A copy, which learns.

    Raises:
        ValueError: If the encoder cannot learn.
    """
    if not isinstance(encoder, DualEncoder):
        raise ValueError(f"only a DualEncoder learns, this encoder is {encoder!r}")
    return encoder.apply_attributes(batch_size=encoder.batch_size)


def _loader(texts: pt.Transformer | None) -> PassageTexts:
    """Texts of passages by docno.

    Raises:
        ValueError: If there is nothing that has them.
    """
    if texts is None:
        raise ValueError("training the encoder needs the passages' texts: give texts=pt.text.get_text(dataset)")

    return partial(texts_of_passages, texts)
