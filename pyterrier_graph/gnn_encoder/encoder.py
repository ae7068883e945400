"""GNNEncoder: passage vectors from a graph neural network, at the cost of a dual-encoder's retrieval."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

import pandas as pd
import torch
from pyterrier_dr import BiEncoder, FlexIndex
from safetensors.torch import load_model, save_model

from pyterrier_graph.checks import View, check_type
from pyterrier_graph.encoders.checkpoints import DType
from pyterrier_graph.encoders.names import DEFAULT
from pyterrier_graph.gnn_encoder.equations import (
    GNNEncoderConfig,
    GNNEncoderNetwork,
    GNNEncoderSideBySide,
    PaperGNNEncoderConfig,
    PaperGNNEncoderNetwork,
)
from pyterrier_graph.gnn_encoder.training import (
    GNNEncoderTraining,
    MaskedGraph,
    MaskedGraphModel,
    joint_measure,
    loss_queries,
)
from pyterrier_graph.graph_mean.equations import PassageNetwork
from pyterrier_graph.graph_mean.graph_mean import (
    ContextualEncoder,
    default_weights,
    largest_weights,
)
from pyterrier_graph.graph_mean.tuning import (
    PassageValidation,
    tuned_largest_weights,
    tuned_weights,
)
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.pair.dual_encoder import DualEncoder
from pyterrier_graph.training.trainer import train

WEIGHTS = "network.safetensors"
CONFIGS = {kind.__name__: kind for kind in (GNNEncoderConfig, PaperGNNEncoderConfig)}


class GNNEncoder(ContextualEncoder):
    """Passages aggregate from queries, titles and neighbors before they are indexed; queries are encoded as before.

    .. cite:: liu2022gnnencoder
        :citation: Liu et al. GNN-encoder: Learning a dual-encoder architecture via graph neural networks for passage
            retrieval. Findings of EMNLP 2022.
        :link: https://doi.org/10.18653/v1/2022.findings-emnlp.44

    ::

        queries = ptg.QueryPassageGraph("train.graph").build(train_topics, graph, retriever, qrels=train_qrels)
        gnn = ptg.GNNEncoder(graph, query_graph=queries).fit(train_topics, train_qrels, dev_topics, dev_qrels)
        retriever = gnn.index("corpus.flex").retriever()

    The untrained network is a :class:`~pyterrier_graph.GraphMean`, with weights per query by default;
    ``config=GNNEncoderConfig.starting_at(mean)`` starts at a mean that was tuned.

    A trained network serves other collections, too: ``gnn.apply_attributes(graph=other, query_graph=queries)``, with
    ``vectors=None`` where ``gnn`` was given vectors, or ``GNNEncoder.load(path, graph=other, query_graph=queries)``.

    Args:
        graph: The document graph; None for passages without documents, which are given by ``vectors``, and for a model
            that only encodes queries.
        encoder: The name of a checkpoint, or a bi-encoder, such as a :class:`~pyterrier_graph.DualEncoder`.
        query_graph: The graph of training queries.
        config: A :class:`~pyterrier_graph.GNNEncoderConfig`, or ``GNNEncoderConfig.paper()`` for the papers' network.
        training: Options of training.

    The other arguments are those of :class:`~pyterrier_graph.GraphMean`.

    Attributes:
        network: The network.
    """

    schematic = {"label": "GNNEncoder", "help_url": "https://pypi.org/project/pyterrier-graph/"}
    ARTIFACT_TYPE = "gnn_encoder"
    ARTIFACT_FORMAT = "safetensors"
    WRITTEN = ()
    TRAINING = GNNEncoderTraining

    def __init__(
        self,
        graph: HeteroGraph | None = None,
        encoder: str | os.PathLike[str] | BiEncoder = DEFAULT,
        *,
        query_graph: QueryPassageGraph | None = None,
        config: GNNEncoderConfig | PaperGNNEncoderConfig | None = None,
        vectors: FlexIndex | None = None,
        folder: str | os.PathLike[str] | None = None,
        training: GNNEncoderTraining | None = None,
        device: str | None = None,
        dtype: DType = "auto",
        verbose: bool = True,
    ) -> None:
        super().__init__(graph, encoder, query_graph, vectors, folder, device, dtype, verbose)
        self.training = GNNEncoderTraining() if training is None else training
        config = GNNEncoderConfig() if config is None else config
        check_type(
            "config", config, (GNNEncoderConfig, PaperGNNEncoderConfig), "a GNNEncoderConfig"
        )
        kind: Any = PaperGNNEncoderNetwork
        if isinstance(config, GNNEncoderConfig):
            kind = GNNEncoderSideBySide if config.per_query and config.edges else GNNEncoderNetwork
            if config.weights is None:
                default = largest_weights if kind is GNNEncoderSideBySide else default_weights
                config = dataclasses.replace(config, weights=default(graph, query_graph))
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            self.network = cast(
                PassageNetwork, kind(config, self._dimension).to(self._device).eval()
            )
        self.random_start = bool([*self.network.parameters()]) and kind is PaperGNNEncoderNetwork
        self._check()

    @property
    def config(self) -> GNNEncoderConfig | PaperGNNEncoderConfig:
        """The configuration of the network, with the weights that it started with."""
        return self.network.config

    @property
    def weights(self) -> dict[str, float]:
        """The present weight per relation; empty for the papers' network, which has no such weights."""
        return self.network.weights if isinstance(self.network, GNNEncoderNetwork) else {}

    @property
    def largest_weights(self) -> Mapping[str, float]:  # type: ignore[override]
        """The present largest weight per relation; empty unless each query has weights of its own."""
        return self.weights if isinstance(self.network, GNNEncoderSideBySide) else {}

    @property
    def _relations(self) -> Sequence[str]:
        return self.network.relations if self.config.edges else ()

    def _check(self) -> None:
        if isinstance(self.network, GNNEncoderSideBySide):
            self.network.isolated = self._isolated  # by the present query graph
        super()._check()

    def __repr__(self) -> str:
        relations = ", ".join(self._relations) if self.config.edges else "without edges"
        return f"GNNEncoder({self.graph!r}, {self.encoder!r}, {relations})"

    def _view(self) -> View:
        facts: dict[str, Any] = {
            "encoder": repr(self.encoder),
            "aggregates from": tuple(self._relations) or "nothing",
        }
        if isinstance(self.network, GNNEncoderSideBySide):
            facts["largest weights"] = self.largest_weights
        elif isinstance(self.network, GNNEncoderNetwork):
            facts["weights"] = self.weights
            facts["norm where no query is relevant"] = f"{float(self.network.isolated_norm):g}"
        return View(facts | self._training_facts())

    def fit(
        self,
        topics_or_res_tr: pd.DataFrame,
        qrels_tr: pd.DataFrame,
        topics_or_res_va: pd.DataFrame | None = None,
        qrels_va: pd.DataFrame | None = None,
    ) -> Self:
        """Masked graph training (Algorithm 1).

        Training queries that are in the query graph are taken out of it, some in each epoch, when they give the loss;
        others always give it. Negatives are the other passages of the batch, and passages that were retrieved for a
        query and are not relevant to it. The network learns from the encoder's own vectors (000). With
        ``encoder_learning_rate`` the encoder, which has to be a :class:`~pyterrier_graph.DualEncoder`, learns as well
        (001): a copy of it becomes ``gnn.encoder``. Vectors that were given are then of the encoder before, so they are
        dropped: the passages of the graph are encoded again, or new vectors are set by ``gnn.vectors = index``.

        Args:
            topics_or_res_tr: Training queries: ``qid, query``.
            qrels_tr: Judgments for them: ``qid, docno, label``, of passages, or of documents for all their passages.
            topics_or_res_va: Validation queries, which decide how far the weights leave their start: see
                :class:`~pyterrier_graph.training.trainer.StartOptions`.
            qrels_va: Judgments for them.

        Raises:
            KeyError: If no relevant passage is in the index of vectors.
            ValueError: If there is nothing to learn, or to learn from, ``output_dir`` holds another training, or
                training diverges.

        Warns:
            UserWarning: If relevant passages are unknown, validation queries are in the query graph, or the model is
                trained already.
        """
        self._start_fit()
        options, sampler = self.training, self._sampler()
        queries = loss_queries(self, topics_or_res_tr, qrels_tr, options)
        rates, encoder = self._rates(), None
        if options.encoder_learning_rate is not None:
            if not isinstance(self.encoder, DualEncoder):
                raise ValueError(f"only a DualEncoder learns, this encoder is {self.encoder!r}")
            encoder = self.encoder.apply_attributes()  # a copy with weights of its own
            rates.append(([*encoder.network.parameters()], options.encoder_learning_rate))
        if not rates:
            raise ValueError(
                f"{self!r} has nothing to learn: its network has no weights, and the encoder is frozen"
            )
        l2_sp = 0.0 if self.random_start else options.l2_sp
        model = MaskedGraphModel(
            self.network, options.scale, encoder and encoder.network, l2_sp=l2_sp
        )
        masked_graph = MaskedGraph(queries, sampler, options)
        validate: Any = None
        if topics_or_res_va is not None and len(topics_or_res_va):
            validate = PassageValidation(self, topics_or_res_va, qrels_va, options.measure)
            if encoder is not None:
                validate = partial(joint_measure, validate, self.network, encoder, sampler)
        identity = self._identity(sampler)
        identity |= {
            "weights at the start": identity.pop("network"),
            "training queries": queries.fingerprint(),
        }
        with self._recorded():
            self.training_log = train(
                model,
                masked_graph,
                masked_graph,
                options,
                identity=identity,
                device=self._device,
                dtype=self.dtype,
                rates=rates,
                validate=validate,
                verbose=self.verbose,
                interpolate_to_start=not self.random_start,
                train_without_penalty=model.penalty
                if l2_sp is None and encoder is None
                else None,
            )
        if encoder is not None:
            self.encoder, self.vectors, self._checkpoint = encoder, None, None
        return self

    def tune(self, topics: pd.DataFrame, qrels: pd.DataFrame) -> Self:
        """Sets the weights of relations, and ``isolated_norm``, by grid search; all else that was learned stays.

        Args:
            topics: Validation queries; see :meth:`fit`.
            qrels: Judgments for them.

        Raises:
            ValueError: If this is the papers' network, which has nothing to tune.
        """
        network = self.network
        if not isinstance(network, GNNEncoderNetwork):
            raise ValueError(
                f"{self!r} has no weights of relations: the papers' network cannot be tuned"
            )
        if isinstance(network, GNNEncoderSideBySide):
            weights, norm = tuned_largest_weights(self, topics, qrels, self.training.measure), 1.0
        else:
            weights, norm = tuned_weights(self, topics, qrels, self.training.measure)
        with torch.no_grad():
            network.isolated_norm.fill_(norm)
            for name, weight in weights.items():
                network.relation[name].weight.fill_(weight)
        return self

    def _rates(self) -> list[tuple[list[torch.nn.Parameter], float]]:
        """The parameters of the network with their learning rates: matrices; the weights of relations stay."""
        scalars = self.network.scalars()
        matrices = [
            value
            for value in self.network.parameters()
            if not any(value is scalar for scalar in scalars)
        ]
        rates = [(matrices, self.training.learning_rate), (scalars, 0.0)]
        return [(parameters, rate) for parameters, rate in rates if parameters]

    def _write(self, folder: Path) -> dict[str, Any]:
        save_model(self.network, str(folder / WEIGHTS))
        about = {"kind": type(self.config).__name__, "config": dataclasses.asdict(self.config)}
        return super()._write(folder) | about

    @classmethod
    def _read(cls, folder: Path, about: dict[str, Any], options: dict[str, Any]) -> Self:
        encoder = cls._read_encoder(folder, about, options)
        model = cls(
            **{"config": CONFIGS[about["kind"]](**about["config"])} | options | {"encoder": encoder}
        )
        load_model(model.network, folder / WEIGHTS)
        return model
