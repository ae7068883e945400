"""GNNEncoder: passage vectors from a graph neural network, at the cost of a dual-encoder's retrieval."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import pandas as pd
import torch
from accelerate import PartialState
from datasets import Dataset
from pyterrier_dr import BiEncoder
from safetensors.torch import load_model, save_model
from torch import nn

from pyterrier_graph.encoders.checkpoints import DType
from pyterrier_graph.encoders.names import DEFAULT
from pyterrier_graph.gnn_encoder.equations import PaperGNNEncoderConfig, PaperGNNEncoderNetwork
from pyterrier_graph.gnn_encoder.network import GNNEncoderConfig, GNNEncoderNetwork
from pyterrier_graph.gnn_encoder.training import (
    GNNEncoderTraining,
    MaskedGraph,
    MaskedGraphModel,
    MaskedPassages,
    joint_measure,
    loss_queries,
)
from pyterrier_graph.graph_mean.contextual_encoder import ContextualEncoder
from pyterrier_graph.graph_mean.equations import PassageNetwork
from pyterrier_graph.graph_mean.graph_mean import default_weights
from pyterrier_graph.graph_mean.tuning import PassageValidation, tuned_weights
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.storage.artifact import frame_sha256
from pyterrier_graph.training.layers import Layers, saved_layers
from pyterrier_graph.training.trainer import train

WEIGHTS = "network.safetensors"
CONFIGS = {config.__name__: config for config in (GNNEncoderConfig, PaperGNNEncoderConfig)}


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

    The untrained network is a :class:`~pyterrier_graph.GraphMean`; ``config=GNNEncoderConfig(mean.weights)`` starts at
    one that was tuned.

    A trained network also serves other collections: ``gnn.apply_attributes(graph=other, query_graph=queries)``, or
    ``GNNEncoder.load(path, graph=other, query_graph=queries)``.

    Args:
        graph: The document graph; None for a model that only encodes queries.
        encoder: The name of a checkpoint, or a bi-encoder, such as a :class:`~pyterrier_graph.DualEncoder`.
        query_graph: The graph of training queries.
        config: A :class:`~pyterrier_graph.GNNEncoderConfig`, or ``GNNEncoderConfig.paper()`` for the papers' network.
        network: Makes a layer per relation, from d to a bipartite layer of PyTorch Geometric, such as
            ``lambda d: GATv2Conv((d, d), d // 4, heads=4, add_self_loops=False)``, or to any module with
            ``forward((x_source, x_target), edge_index)``. Or makes one layer over all relations with
            ``forward(x_dict, edge_index_dict)``, such as ``HeteroConv``: edge types are
            ``('query', 'relevant', 'passage')`` for queries, ``('node', 'titles', 'passage')`` for documents. None is
            the project's own attention. A ``HeteroConv`` and layers of a user's own class are given again to
            :meth:`load`.
        training: Options of training.

    The other arguments are those of :class:`~pyterrier_graph.GraphMean`.

    Attributes:
        config: The configuration of the network, with its present weights.
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
        network: Layers | None = None,
        folder: str | os.PathLike[str] | None = None,
        training: GNNEncoderTraining | None = None,
        device: str | None = None,
        dtype: DType = "auto",
        verbose: bool = True,
    ) -> None:
        super().__init__(graph, encoder, query_graph, folder, device, dtype, verbose)
        self.training = GNNEncoderTraining() if training is None else training
        if config is None:
            config = GNNEncoderConfig()
        if isinstance(config, GNNEncoderConfig) and config.weights is None:
            weights = default_weights(graph, query_graph)
            config = dataclasses.replace(config, weights=weights)
        self.config: Any = config
        self._network = network
        if isinstance(config, PaperGNNEncoderConfig):
            self.random_start = config.average is None
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            untrained = _network_of(config, self._dimension, network)
        self.network = untrained.to(self._device).eval()
        self._check()

    @property
    def weights(self) -> dict[str, float]:
        """The present weight per relation; the papers' network has none."""
        return self.config.weights

    @property
    def relations(self) -> Sequence[str]:
        """The relations that passages aggregate from; none in a network without edges."""
        return self.network.relations if self.config.edges else ()

    def __repr__(self) -> str:
        relations = ", ".join(self.relations) or "without edges"
        return f"GNNEncoder({self.graph!r}, {self.encoder!r}, {relations})"

    def fit(
        self,
        topics_or_res_tr: pd.DataFrame,
        qrels_tr: pd.DataFrame,
        topics_or_res_va: pd.DataFrame | None = None,
        qrels_va: pd.DataFrame | None = None,
        *,
        examples: Dataset | None = None,
    ) -> Self:
        """Masked graph training (Algorithm 1).

        In each epoch, some of the training queries in the query graph are taken out of it and contribute to the loss.
        Training queries outside of the graph always contribute. Negatives are the other passages of the batch, and
        passages that were retrieved for a query and are not relevant to it, or the negatives of ``examples``.

        The network learns from the encoder's own vectors (000). With ``encoder_learning_rate`` the encoder, which has
        to be a :class:`~pyterrier_graph.DualEncoder`, learns as well (001): a copy of it becomes ``gnn.encoder``, and
        the passages of the graph are encoded again. Eq. 6 keeps the vectors of the previous encoder,
        ``gnn.initial_encoder``, in training and in the index.

        Args:
            topics_or_res_tr: Training queries: ``qid, query``.
            qrels_tr: Judgments for them: ``qid, docno, label``, of passages, or of documents for all their passages.
            topics_or_res_va: Validation queries, which decide what weights are kept: see ``measure`` of
                :class:`~pyterrier_graph.training.trainer.TrainerOptions`.
            qrels_va: Judgments for them.
            examples: What a :class:`~pyterrier_graph.HardNegativeMiner` has made of the training queries, such as
                ``miner.denoised(topics, qrels)``. Its denoised positives and hard negatives (001, Sect. 3.4) replace
                relevant and retrieved passages.

        Raises:
            KeyError: If no relevant passage is in the graph.
            ValueError: If there is nothing to learn, or to learn from, ``output_dir`` holds another training, or
                training diverges.
        """
        self._start_fit()
        options = self.training
        with PartialState(cpu=self._device.type == "cpu").main_process_first():
            sampler = self.sampler()
            sampler.encode()
        queries = loss_queries(self, topics_or_res_tr, qrels_tr, examples)
        encoder = None
        if options.encoder_learning_rate is not None:
            encoder = self.encoder.apply_attributes()  # the copy that learns
        validate = self._validation(topics_or_res_va, qrels_va, encoder)
        digests = [frame_sha256(topics_or_res_tr), frame_sha256(qrels_tr)]
        identity = self._identity() | {"training queries": digests}
        run = self._run(validate, identity)
        dataset_class = MaskedPassages if options.batches == "passages" else MaskedGraph
        dataset = dataset_class(queries, sampler, options)
        learner = MaskedGraphModel(self.network, options.scale, encoder)
        rates = self._learning_rates(encoder)
        self.training_log = train(learner, dataset, dataset, options, run, rates=rates)
        if encoder is not None:
            self.initial_encoder = self.initial_encoder or self.encoder
            self.encoder = encoder
            self._checkpoint = None
        return self

    def _validation(
        self, topics: pd.DataFrame | None, qrels: pd.DataFrame | None, encoder: Any
    ) -> Any:
        """A function that measures each validation query, with the ``encoder`` if it learns; None without queries."""
        if topics is None or not len(topics):
            return None
        validation = PassageValidation(self, topics, qrels, self.training.measure)
        if encoder is None:
            return validation
        return partial(joint_measure, validation, self.network, encoder)

    def _learning_rates(self, encoder: Any) -> list[tuple[list[nn.Parameter], float]]:
        """The parameters of the network, and of the encoder that learns, with their learning rates."""
        rates = []
        parameters = list(self.network.parameters())
        if parameters:
            rates.append((parameters, self.training.learning_rate))
        encoder_rate = self.training.encoder_learning_rate
        if encoder_rate is not None:
            encoder_parameters = list(encoder.network.parameters())
            rates.append((encoder_parameters, encoder_rate))
        return rates

    def tune(self, topics: pd.DataFrame, qrels: pd.DataFrame) -> Self:
        """Sets the weights of relations by grid search, and leaves the network's parameters unchanged.

        The papers' network has no weights of relations.

        Args:
            topics: Validation queries; see :meth:`fit`.
            qrels: Judgments for them.
        """
        weights = tuned_weights(self, topics, qrels, self.training.measure)
        self.config = dataclasses.replace(self.config, weights=weights)
        self.network.weights = weights
        return self

    def _write(self, folder: Path) -> dict[str, Any]:
        save_model(self.network, str(folder / WEIGHTS))
        about = super()._write(folder)
        about["kind"] = type(self.config).__name__
        about["config"] = dataclasses.asdict(self.config)
        about["layer"] = self.network.layer_meta
        return about

    @classmethod
    def _read(cls, folder: Path, about: dict[str, Any], options: dict[str, Any]) -> Self:
        config_class = CONFIGS[about["kind"]]
        saved: dict[str, Any] = {"config": config_class(**about["config"])}
        if about["layer"] is not None and "network" not in options:
            saved["network"] = saved_layers(about["layer"], "network")
        model = super()._read(folder, about, saved | options)
        load_model(model.network, folder / WEIGHTS)
        return model


def _network_of(config: Any, dimension: int, layers: Layers | None) -> PassageNetwork:
    """The untrained network of a configuration; raises ValueError for layers that it has no place for."""
    if isinstance(config, GNNEncoderConfig):
        return GNNEncoderNetwork(config, dimension, layers)
    if layers is not None:
        raise ValueError("the papers' network has no place for network=")
    return PaperGNNEncoderNetwork(config, dimension)
