"""GraphMean: a passage's vector plus the weighted means of its neighbors' vectors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pandas as pd

from pyterrier_graph.checks import check_number, check_weights
from pyterrier_graph.encoders.checkpoints import DEFAULT
from pyterrier_graph.encoders.devices import DType
from pyterrier_graph.models.gnn_encoder import GNNEncoderConfig, GNNEncoderNetwork, shortest
from pyterrier_graph.retrieve.contextual_encoder import ContextualEncoder
from pyterrier_graph.retrieve.dense_validation import tune_weights
from pyterrier_graph.training.validation import tuning_set

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder, FlexIndex

    from pyterrier_graph.graphs import HeteroGraph
    from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph


class GraphMean(ContextualEncoder):
    """Adds to each passage's vector the means of the vectors of its neighbors, such as titles and relevant queries.

    ::

        index = ptg.GraphMean(graph).index("corpus.flex")
        pipeline = index.retriever() >> ptg.GraphMaxSim(graph)

    The vector is ``normalize(x + sum over relations of weight * mean of the neighbors)``: one number per relation, no
    network, and nothing to train. With retrieved queries it is what Liu et al. 2022 call "average". A
    :class:`~pyterrier_graph.GNNEncoder` starts as the mean with its weights.

    Args:
        graph: The document graph; None for passages without documents, which are given by ``vectors``.
        encoder: The name of a checkpoint, or a bi-encoder of pyterrier_dr, such as a
            :class:`~pyterrier_graph.DualEncoder`.
        weights: Weight per relation of the document graph, or path of relations (``'title'``, ``'order'``,
            ``'title/title'``), and per relation of the query graph (``'relevant'``, ``'retrieved'``). By default
            ``{'title': 1.0, 'relevant': 0.5}``, with 'retrieved' where no query has a relevant passage; relations that
            the graphs lack are left out.
        query_graph: The graph of training queries, for 'relevant' and 'retrieved'.
        isolated_norm: Length of the vector of a passage without a relevant query, where other passages have some: see
            :class:`~pyterrier_graph.models.gnn_encoder.GNNEncoderNetwork`. :meth:`fit` tunes it, too.
        vectors: The encoder's own vectors of the graph's passages. By default they are made from the graph's texts, and
            kept in ``folder``, so that the next model with the same encoder and graph finds them.
        folder: Where vectors of passages, queries and titles are kept. By default ``<graph path>.vectors``, and a
            temporary folder for a graph in memory.
        measure: What :meth:`fit` maximizes.
        num_candidates: Passages per validation query; each query ranks the candidates of all.
        device: A device as torch names it; by default a GPU where there is one.
        dtype: The precision of encoding, see :mod:`~pyterrier_graph.encoders.devices`.
        verbose: Whether to show progress.

    Raises:
        ValueError: If a relation is not in the graphs, or ``vectors`` are of other passages or of another encoder.

    Warns:
        UserWarning: If the graphs have none of the default relations: passages then keep their vectors.
    """

    schematic = {"label": "GraphMean", "help_url": "https://pypi.org/project/pyterrier-graph/"}
    ARTIFACT_TYPE = "graph_mean"
    ARTIFACT_FORMAT = "json"
    WRITTEN = ("measure",)
    KEEP_WEIGHTS = ContextualEncoder.KEEP_WEIGHTS | {"measure", "weights", "isolated_norm"}

    network: GNNEncoderNetwork

    def __init__(
        self,
        graph: HeteroGraph | None,
        encoder: str | os.PathLike[str] | BiEncoder = DEFAULT,
        weights: Mapping[str, float] | None = None,
        *,
        query_graph: QueryPassageGraph | None = None,
        isolated_norm: float = 1.0,
        vectors: FlexIndex | None = None,
        folder: str | os.PathLike[str] | None = None,
        measure: str = "nDCG@10",
        num_candidates: int = 100,
        device: str | None = None,
        dtype: DType = "float32",
        verbose: bool = True,
    ) -> None:
        options = {"query_graph": query_graph, "vectors": vectors, "folder": folder, "num_candidates": num_candidates}
        self._set_up(graph, encoder, device=device, dtype=dtype, verbose=verbose, **options)
        self.measure = measure
        weights = self._default_weights() if weights is None else check_weights(weights)
        self.network = GNNEncoderNetwork(GNNEncoderConfig(weights, 1, isolated_norm), self._dimension).eval()
        self._check_attributes()

    @property
    def weights(self) -> dict[str, float]:
        """Weight per relation."""
        return self.network.weights

    @weights.setter
    def weights(self, weights: Mapping[str, float]) -> None:
        config = GNNEncoderConfig(check_weights(weights), 1, self.isolated_norm)
        self.network = GNNEncoderNetwork(config, self.network.dimension).eval()
        self._check_attributes()

    @property
    def isolated_norm(self) -> float:
        """Length of the vector of a passage without a relevant query, where other passages have some."""
        return shortest(self.network.isolated_norm)

    @isolated_norm.setter
    def isolated_norm(self, value: float) -> None:
        check_number("isolated_norm", value, 1e-6)
        self.network.isolated_norm.fill_(value)

    @property
    def config(self) -> GNNEncoderConfig:
        """The ``config`` of a :class:`~pyterrier_graph.GNNEncoder` that starts as this mean."""
        return GNNEncoderConfig(self.weights, isolated_norm=self.isolated_norm)

    def __repr__(self) -> str:
        norm = "" if self.isolated_norm == 1 else f", isolated_norm={self.isolated_norm:g}"
        weights = {name: round(weight, 6) for name, weight in self.weights.items()}
        return f"GraphMean({self.graph!r}, {self.encoder!r}, {weights}{norm})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from pyterrier_graph.plots.model_html import reranker_html

        sizes = {"encoder": repr(self.encoder), "weights": self.weights, "isolated_norm": self.isolated_norm}
        calls = ["mean.fit(dev_topics, dev_qrels)", "mean.index(path).retriever()", "mean.explain(docno)"]
        return reranker_html(self, sizes, calls)

    def fit(
        self,
        topics_or_res_tr: pd.DataFrame,
        qrels_tr: pd.DataFrame,
        topics_or_res_va: pd.DataFrame | None = None,
        qrels_va: pd.DataFrame | None = None,
    ) -> Self:
        """Tunes the weights and ``isolated_norm`` by grid search; nothing else is learned.

        So few numbers need few queries: the validation set is used where there is one, else the training set. Its
        queries should not be in the query graph, where the passages aggregate from them. Topics have ``qid, query``;
        judgments have ``qid, docno, label``, of passages, or of documents for all their passages.
        """
        topics, qrels = tuning_set(topics_or_res_tr, qrels_tr, topics_or_res_va, qrels_va)
        tune_weights(self, topics, qrels, self.measure)
        return self

    @classmethod
    def _read(cls, folder: Path, about: dict[str, Any], options: dict[str, Any]) -> Self:
        options = cls._read_parts(folder, about, options)
        config = options.pop("config")
        return cls(**{"graph": None, "weights": config.weights, "isolated_norm": config.isolated_norm} | options)
