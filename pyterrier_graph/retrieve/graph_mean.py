"""GraphMean: a passage's vector, and what its neighbors' vectors add to it, with a weight per relation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import pandas as pd
import pyterrier as pt
from safetensors.numpy import save

from pyterrier_graph.checks import check_choice, check_number, check_weights
from pyterrier_graph.encoders.checkpoints import DEFAULT
from pyterrier_graph.encoders.devices import DType
from pyterrier_graph.graphs.relations import TITLE, TITLES
from pyterrier_graph.models.gnn_encoder import GNNEncoderConfig, GNNEncoderNetwork, shortest
from pyterrier_graph.models.side_by_side import SideBySideConfig, SideBySideNetwork
from pyterrier_graph.retrieve.contextual_encoder import ContextualEncoder
from pyterrier_graph.retrieve.dense_validation import tune_largest_weights, tune_weights
from pyterrier_graph.retrieve.neighbor_sampler import NeighborSampler
from pyterrier_graph.retrieve.query_weights import SAMPLE, QueryWeights, Sample, draw_sample
from pyterrier_graph.training.validation import tuning_set

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder, FlexIndex

    from pyterrier_graph.graphs import HeteroGraph
    from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph

AUTO: Literal["auto"] = "auto"
Weights = Mapping[str, float] | Literal["auto"]


class GraphMean(ContextualEncoder):
    """Adds to each passage's vector what its neighbors say: its title, relevant queries. No training is needed.

    ::

        index = ptg.GraphMean(graph).index("corpus.flex")
        pipeline = index.retriever() >> ptg.GraphMaxSim(graph)

    By default, each query decides how much each relation counts, from what it finds. The index has the vector of a
    passage, and beside it what each relation adds to it, so that one search has a weight per query and relation: see
    :class:`~pyterrier_graph.models.side_by_side.SideBySideNetwork` for the vectors, and
    :class:`~pyterrier_graph.retrieve.query_weights.QueryWeights` for the weights. The index is larger: with titles it
    has two vectors per passage, with relevant queries as well it has three.

    With fixed weights the vector of a passage is as large as the encoder's:
    ``normalize(x + sum over relations of weight * mean of the neighbors)``. With retrieved queries this is what Liu et
    al. 2022 call "average". A :class:`~pyterrier_graph.GNNEncoder` starts as the mean with its weights.

    Args:
        graph: The document graph; None for passages without documents, which are given by ``vectors``.
        encoder: The name of a checkpoint, or a bi-encoder of pyterrier_dr, such as a
            :class:`~pyterrier_graph.DualEncoder`.
        weights: ``'auto'``, or fixed weights: the weight per relation of the document graph, or path of relations
            (``'title'``, ``'order'``, ``'title/title'``), and per relation of the query graph (``'relevant'``,
            ``'retrieved'``). With ``'auto'`` the relations are 'titles', all titles above a passage, and 'relevant' (or
            'retrieved' where no query has a relevant passage); relations that the graphs lack are left out.
        query_graph: The graph of training queries, for 'relevant' and 'retrieved'.
        isolated_norm: Length of the vector of a passage without a relevant query, where other passages have some: see
            :class:`~pyterrier_graph.models.gnn_encoder.GNNEncoderNetwork`. For fixed weights only.
        vectors: The encoder's own vectors of the graph's passages. By default they are made from the graph's texts, and
            kept in ``folder``, so that the next model with the same encoder and graph finds them.
        folder: Where vectors of passages, queries and titles are kept. By default ``<graph path>.vectors``, and a
            temporary folder for a graph in memory. Graphs that share a folder share the vectors of equal passages.
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

    network: GNNEncoderNetwork | SideBySideNetwork
    _drawn: tuple[NeighborSampler, Sample] | None = None

    def __init__(
        self,
        graph: HeteroGraph | None,
        encoder: str | os.PathLike[str] | BiEncoder = DEFAULT,
        weights: Weights = AUTO,
        *,
        query_graph: QueryPassageGraph | None = None,
        isolated_norm: float = 1.0,
        vectors: FlexIndex | None = None,
        folder: str | os.PathLike[str] | None = None,
        measure: str = "nDCG@10",
        num_candidates: int = 100,
        device: str | None = None,
        dtype: DType = "auto",
        verbose: bool = True,
    ) -> None:
        options = {"query_graph": query_graph, "vectors": vectors, "folder": folder, "num_candidates": num_candidates}
        self._set_up(graph, encoder, device=device, dtype=dtype, verbose=verbose, **options)
        self.measure = measure
        self._set_weights(weights, isolated_norm)

    def _set_weights(self, weights: Weights, isolated_norm: float) -> None:
        dimension = self._dimension
        if isinstance(weights, str):
            check_choice("weights, unless they are numbers,", weights, [AUTO])
            if isolated_norm != 1:
                raise ValueError("isolated_norm is for fixed weights: give weights={'relevant': 0.5}, or leave it out")
            self.network = SideBySideNetwork(SideBySideConfig({}), dimension).eval()  # gets the graphs' relations
        else:
            fixed = GNNEncoderConfig(check_weights(weights), 1, isolated_norm)
            self.network = GNNEncoderNetwork(fixed, dimension).eval()
        self._check_attributes()

    @property
    def weights(self) -> Weights:
        """Weight per relation, or ``'auto'``."""
        return AUTO if isinstance(self.network, SideBySideNetwork) else self.network.weights

    @weights.setter
    def weights(self, weights: Weights) -> None:
        self._set_weights(weights, 1.0 if isinstance(weights, str) else self.isolated_norm)

    @property
    def largest_weights(self) -> dict[str, float]:
        """Of ``weights='auto'``: the weight of each relation for a query that matches its sources well."""
        return dict(self.network.config.weights or {}) if isinstance(self.network, SideBySideNetwork) else {}

    @largest_weights.setter
    def largest_weights(self, weights: Mapping[str, float]) -> None:
        if not isinstance(self.network, SideBySideNetwork):
            raise ValueError("largest_weights are those of weights='auto'; this model has fixed weights")
        if (names := [*check_weights(weights)]) != [*self.network.relations]:
            raise ValueError(f"largest_weights must be of {', '.join(self.network.relations)}, got {', '.join(names)}")
        self.network.config = replace(self.network.config, weights=check_weights(weights))

    @property
    def isolated_norm(self) -> float:
        """Length of the vector of a passage without a relevant query, where other passages have some."""
        return 1.0 if isinstance(self.network, SideBySideNetwork) else shortest(self.network.isolated_norm)

    @isolated_norm.setter
    def isolated_norm(self, value: float) -> None:
        check_number("isolated_norm", value, 1e-6)
        if isinstance(self.network, SideBySideNetwork):
            raise ValueError("isolated_norm is for fixed weights; this model has weights='auto'")
        self.network.isolated_norm.fill_(value)

    @property
    def config(self) -> GNNEncoderConfig:
        """The ``config`` of a :class:`~pyterrier_graph.GNNEncoder` that starts as this mean.

        A network has fixed weights: those that it has by default take the place of ``'auto'``.
        """
        weights = self._default_weights() if isinstance(self.network, SideBySideNetwork) else self.network.weights
        return GNNEncoderConfig(weights, isolated_norm=self.isolated_norm)

    @property
    def _sample(self) -> Sample:
        """What the weights of queries are computed from."""
        sampler = self._sampler()
        if self._drawn is None or self._drawn[0] is not sampler:
            self._drawn = sampler, draw_sample(sampler, cast(SideBySideNetwork, self.network))
        return self._drawn[1]

    @property
    def _query_weights(self) -> QueryWeights | None:
        """Widens the vectors of queries, for vectors side by side."""
        return QueryWeights(self._sample, self.largest_weights) if self.weights == AUTO else None

    def query_encoder(self) -> pt.Transformer:
        """Encodes queries, for retrievers of a contextual index: ``query`` to ``query_vec``."""
        weights = self._query_weights
        return super().query_encoder() if weights is None else super().query_encoder() >> weights

    def _query_options(self) -> dict[str, Any]:
        return {"weights": self.largest_weights} if self.weights == AUTO else {}

    def _query_files(self) -> dict[str, bytes]:
        return {SAMPLE: save(self._sample)} if self.weights == AUTO else {}

    def _check_attributes(self) -> None:
        if isinstance(self.network, SideBySideNetwork) and (self.graph is not None or self.query_graph is not None):
            # another graph may have other relations
            present = self.largest_weights
            names = [TITLES if name == TITLE else name for name in self._default_weights()]
            weights = {name: present.get(name, 1.0) for name in names}
            if weights != present:
                config = replace(self.network.config, weights=weights)
                self.network = SideBySideNetwork(config, self.network.dimension).eval()
        super()._check_attributes()

    def __repr__(self) -> str:
        norm = "" if self.isolated_norm == 1 else f", isolated_norm={self.isolated_norm:g}"
        weights = self.weights if isinstance(self.weights, str) else {n: round(w, 6) for n, w in self.weights.items()}
        return f"GraphMean({self.graph!r}, {self.encoder!r}, {weights!r}{norm})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from pyterrier_graph.plots.model_html import contextual_calls, reranker_html

        sizes: dict[str, Any] = {"encoder": repr(self.encoder), "weights": self.weights}
        if self.weights == AUTO:
            sizes["largest weights"] = self.largest_weights
        else:
            sizes["isolated_norm"] = self.isolated_norm
        return reranker_html(self, sizes, contextual_calls(self, "mean", "mean.fit(dev_topics, dev_qrels)"))

    def fit(
        self,
        topics_or_res_tr: pd.DataFrame,
        qrels_tr: pd.DataFrame,
        topics_or_res_va: pd.DataFrame | None = None,
        qrels_va: pd.DataFrame | None = None,
    ) -> Self:
        """Tunes the weights; nothing else is learned.

        A weight moves from its present value only as far as the queries support it: see
        :func:`~pyterrier_graph.training.grid_search.coordinate_search`. With ``weights='auto'`` the
        :attr:`largest_weights` move; they are no part of the vectors, so an index that was written before stays valid:
        ``ContextualIndex(path, graph, mean)`` opens it with the new weights. Fixed weights move together with
        ``isolated_norm``.

        So few numbers need few queries: the validation set is used where there is one, else the training set. Its
        queries should not be in the query graph, where the passages aggregate from them. Topics have ``qid, query``;
        judgments have ``qid, docno, label``, of passages, or of documents for all their passages.
        """
        topics, qrels = tuning_set(topics_or_res_tr, qrels_tr, topics_or_res_va, qrels_va)
        tune = tune_largest_weights if self.weights == AUTO else tune_weights
        tune(self, topics, qrels, self.measure)
        return self

    @classmethod
    def _read(cls, folder: Path, about: dict[str, Any], options: dict[str, Any]) -> Self:
        options = cls._read_parts(folder, about, options)
        config = options.pop("config")
        if isinstance(config, SideBySideConfig):
            model = cls(**{"graph": None} | options)
            model.network = SideBySideNetwork(config, model.network.dimension).eval()
            model._check_attributes()
            return model
        return cls(**{"graph": None, "weights": config.weights, "isolated_norm": config.isolated_norm} | options)
