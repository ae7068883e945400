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

    A trained network serves other collections, too: ``gnn.apply_attributes(graph=other, query_graph=queries)``, or
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
        made: Any
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            if isinstance(config, GNNEncoderConfig):
                made = GNNEncoderNetwork(config, self._dimension, network)
            elif network is None:
                made = PaperGNNEncoderNetwork(config, self._dimension)
                self.random_start = config.average is None
            else:
                raise ValueError("the papers' network has no place for network=")
        self.network = made.to(self._device).eval()
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

        Training queries that are in the query graph are taken out of it, some in each epoch, when they give the loss;
        others always give it. Negatives are the other passages of the batch, and passages that were retrieved for a
        query and are not relevant to it, or those of ``examples``.

        The network learns from the encoder's own vectors (000). With ``encoder_learning_rate`` the encoder, which has
        to be a :class:`~pyterrier_graph.DualEncoder`, learns as well (001): a copy of it becomes ``gnn.encoder``, and
        the passages of the graph are encoded again. Eq. 6 keeps the vectors of the encoder before,
        ``gnn.initial_encoder``, in training and in the index.

        Args:
            topics_or_res_tr: Training queries: ``qid, query``.
            qrels_tr: Judgments for them: ``qid, docno, label``, of passages, or of documents for all their passages.
            topics_or_res_va: Validation queries, which decide what weights are kept: see ``measure`` of
                :class:`~pyterrier_graph.training.trainer.TrainerOptions`.
            qrels_va: Judgments for them.
            examples: What a :class:`~pyterrier_graph.HardNegativeMiner` has made of the training queries, such as
                ``miner.denoised(topics, qrels)``. Its denoised positives and hard negatives (001, Sect. 3.4) take the
                place of relevant and retrieved passages.

        Raises:
            KeyError: If no relevant passage is in the graph.
            ValueError: If there is nothing to learn, or to learn from, ``output_dir`` holds another training, or
                training diverges.
        """
        self._start_fit()
        with PartialState(cpu=self._device.type == "cpu").main_process_first():
            sampler = self.sampler()
            sampler.encode()
        queries = loss_queries(self, topics_or_res_tr, qrels_tr, examples)
        rates = []  # groups of parameters, with their learning rates
        parameters = list(self.network.parameters())
        if parameters:
            rates.append((parameters, self.training.learning_rate))
        encoder: Any = None
        encoder_rate = self.training.encoder_learning_rate
        if encoder_rate is not None:
            encoder = self.encoder.apply_attributes()  # the copy that learns
            rates.append((list(encoder.network.parameters()), encoder_rate))
        validate: Any = None
        if topics_or_res_va is not None and len(topics_or_res_va):
            validate = PassageValidation(self, topics_or_res_va, qrels_va, self.training.measure)
            if encoder is not None:
                validate = partial(joint_measure, validate, self.network, encoder)
        digests = [frame_sha256(frame) for frame in (topics_or_res_tr, qrels_tr)]
        identity = self._identity() | {"training queries": digests}
        kind = MaskedPassages if self.training.batches == "passages" else MaskedGraph
        batches = kind(queries, sampler, self.training)
        learner = MaskedGraphModel(self.network, self.training.scale, encoder)
        run = self._run(validate, identity)
        self.training_log = train(learner, batches, batches, self.training, run, rates=rates)
        if encoder is not None:
            self.initial_encoder = self.initial_encoder or self.encoder
            self.encoder = encoder
            self._checkpoint = None
        return self

    def tune(self, topics: pd.DataFrame, qrels: pd.DataFrame) -> Self:
        """Sets the weights of relations by grid search; all that was learned stays. The papers' network has none.

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
        config = CONFIGS[about["kind"]]
        saved: dict[str, Any] = {"config": config(**about["config"])}
        if about["layer"] is not None and "network" not in options:
            saved["network"] = saved_layers(about["layer"], "network")
        model = super()._read(folder, about, saved | options)
        load_model(model.network, folder / WEIGHTS)
        return model
