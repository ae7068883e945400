"""GraphMean: contextual vectors without a trained network."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Self

import pandas as pd
from pyterrier_dr import BiEncoder

from pyterrier_graph.checks import QualityWarning
from pyterrier_graph.configuration import checked_weights
from pyterrier_graph.encoders.checkpoints import DType
from pyterrier_graph.encoders.names import DEFAULT
from pyterrier_graph.graph_mean.contextual_encoder import ContextualEncoder
from pyterrier_graph.graph_mean.equations import MeanMessage, RelationNetwork
from pyterrier_graph.graph_mean.tuning import tuned_weights
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.graphs.relations import RELEVANT, RETRIEVED, TITLE, TITLES
from pyterrier_graph.html import HtmlCard
from pyterrier_graph.training.grid_search import Tuning
from pyterrier_graph.training.validation import tuning_set

WEIGHT = 0.75  # of titles, and of queries


def default_weights(
    graph: HeteroGraph | None, query_graph: QueryPassageGraph | None
) -> dict[str, float]:
    """The default weights of the relations that the graphs have: titles, and relevant (else retrieved) queries."""
    weights = {}
    if graph is not None and TITLE in graph.relations:
        _, titles = graph.neighbors(graph.passage_nodes, TITLE)
        if len(titles):
            weights[TITLES] = WEIGHT
    if query_graph is not None:
        relation = RELEVANT if RELEVANT in query_graph.edge_types else RETRIEVED
        weights[relation] = WEIGHT
    if graph is not None and not weights:
        warnings.warn(
            f"{graph!r} has no titles: passages aggregate from nothing; give weights=",
            QualityWarning,
            stacklevel=4,
        )
    return weights


class GraphMean(ContextualEncoder):
    """Adds the vectors of its neighbors, titles and answered queries, to each passage's vector. Needs no training.

    ::

        index = ptg.GraphMean(graph).index("corpus.flex")
        pipeline = index.retriever() >> ptg.GraphMaxSim(graph)

    See :mod:`~pyterrier_graph.graph_mean.equations` for the vectors. A :class:`~pyterrier_graph.GNNEncoder` starts as
    the GraphMean with its weights.

    Args:
        graph: The document graph; None for a model that only encodes queries.
        encoder: The name of a checkpoint, or a bi-encoder of pyterrier_dr, such as a
            :class:`~pyterrier_graph.DualEncoder`.
        weights: The weight per relation of the document graph, or path of relations (``'title'``, ``'order'``,
            ``'title/title'``, ``'titles'`` for all titles above a passage), and per relation of the query graph
            (``'relevant'``, ``'retrieved'``). By default 0.75 for 'titles' and for 'relevant', or for
            'retrieved' where no query has a relevant passage; relations that the graphs lack are left out.
        query_graph: The graph of training queries.
        folder: Where vectors of passages (encoded with their titles in front), queries and titles are stored for the
            next model with the same encoder. By default ``<graph path>.vectors``, and a temporary folder for a graph in
            memory. Graphs that share a folder share the vectors of equal passages.
        training: Options of :meth:`fit`.
        device: A device as torch names it; by default a GPU where there is one.
        dtype: The precision of encoding, see :mod:`~pyterrier_graph.encoders.checkpoints`.
        verbose: Whether to show progress.

    Raises:
        ValueError: If a relation is not in the graphs.
    """

    schematic = {"label": "GraphMean", "help_url": "https://pypi.org/project/pyterrier-graph/"}
    ARTIFACT_TYPE = "graph_mean"
    ARTIFACT_FORMAT = "json"
    TRAINING = Tuning
    WRITTEN = ("weights",)
    KEEP_WEIGHTS = ContextualEncoder.KEEP_WEIGHTS | {"weights"}

    def __init__(
        self,
        graph: HeteroGraph | None = None,
        encoder: str | os.PathLike[str] | BiEncoder = DEFAULT,
        weights: Mapping[str, float] | None = None,
        *,
        query_graph: QueryPassageGraph | None = None,
        folder: str | os.PathLike[str] | None = None,
        training: Tuning | None = None,
        device: str | None = None,
        dtype: DType = "auto",
        verbose: bool = True,
    ) -> None:
        super().__init__(graph, encoder, query_graph, folder, device, dtype, verbose)
        self.training = Tuning() if training is None else training
        self.weights = default_weights(graph, query_graph) if weights is None else weights

    @property
    def weights(self) -> dict[str, float]:
        """The weight per relation."""
        return self._weights

    @weights.setter
    def weights(self, weights: Mapping[str, float]) -> None:
        self._weights = checked_weights(weights)
        self._check()

    @property
    def network(self) -> RelationNetwork:
        """The function that computes the vectors, with the present weights; it has no parameters."""
        messages = {name: MeanMessage() for name in self.weights}
        return RelationNetwork(messages, self.weights)

    def __repr__(self) -> str:
        weights = {name: round(weight, 6) for name, weight in self.weights.items()}
        return f"GraphMean({self.graph!r}, {self.encoder!r}, {weights})"

    def _view(self) -> HtmlCard:
        return HtmlCard({"encoder": repr(self.encoder), "weights": self.weights})

    def fit(
        self,
        topics_or_res_tr: pd.DataFrame,
        qrels_tr: pd.DataFrame,
        topics_or_res_va: pd.DataFrame | None = None,
        qrels_va: pd.DataFrame | None = None,
    ) -> Self:
        """Tunes the weights; nothing else is learned.

        Uses the one-standard-error rule, so small query sets are safe: see
        :func:`~pyterrier_graph.training.grid_search.coordinate_search`. A few weights need few queries, so the
        validation set is used if there is one, else the training set. Its queries should not be in the query graph,
        where the passages aggregate from them.

        Args:
            topics_or_res_tr: Training queries: ``qid, query``.
            qrels_tr: Judgments for them: ``qid, docno, label``, of passages, or of documents for all their passages.
            topics_or_res_va: Validation queries.
            qrels_va: Judgments for them.
        """
        topics, qrels = tuning_set(topics_or_res_tr, qrels_tr, topics_or_res_va, qrels_va)
        self.weights = tuned_weights(self, topics, qrels, self.training.measure)
        return self
