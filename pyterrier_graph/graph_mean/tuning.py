"""How GraphMean and GNNEncoder are measured on validation queries, and the grid search for weights of relations."""

from __future__ import annotations

import warnings
from typing import cast

import numpy as np
import pandas as pd

from pyterrier_graph.checks import QualityWarning, query_texts
from pyterrier_graph.graph_mean.contextual_encoder import ContextualEncoder
from pyterrier_graph.graph_mean.equations import RelationNetwork, Terms
from pyterrier_graph.graph_mean.nearest import nearest
from pyterrier_graph.graph_mean.neighbors import NeighborSampler
from pyterrier_graph.graphs.judgments import passage_qrels
from pyterrier_graph.storage.arrays import ids_of, numbers_of
from pyterrier_graph.training.grid_search import WEIGHTS, Numbers, coordinate_search
from pyterrier_graph.training.validation import JudgedRun, Validation, checked_topics

CANDIDATES = 100  # passages per validation query; each query ranks the candidates of all


class PassageValidation:
    """Measures a model on validation queries.

    Each query ranks the candidates of all queries: what the encoder finds for any of them, and all relevant passages.
    Among its own candidates alone, a passage that rises for all queries would not be noticed.

    Attributes:
        queries: Texts of the queries.
        query_vectors: The encoder's vectors of the queries, shape (queries, d).
        candidates: Numbers of the candidates.
    """

    def __init__(
        self,
        model: ContextualEncoder,
        topics: pd.DataFrame,
        qrels: pd.DataFrame | None,
        measure: str,
    ) -> None:
        self.model = model
        self.sampler = model.sampler()
        topics = checked_topics(topics, model)
        judged = JudgedRun(topics, qrels, model)
        self._validation = Validation(judged, measure)
        texts = query_texts(judged.rows)  # by qid
        _warn_of_known_queries(self.sampler, texts.index.tolist())
        self.queries = texts.tolist()
        vectors = model.encoder.encode_queries(self.queries)
        self.query_vectors = np.asarray(vectors, np.float32)
        _, retrieved = nearest(self.query_vectors, self.sampler.vectors, CANDIDATES)
        in_run = judged.qrels["qid"].isin(texts.index)
        relevant, _ = relevant_passages(self.sampler, judged.qrels[in_run])
        passages = numbers_of(self.sampler.docnos, relevant["docno"].tolist())
        self.candidates = np.union1d(retrieved, passages)
        docnos = ids_of(self.sampler.docnos, self.candidates)
        self._docnos = np.array(docnos, dtype=object)
        self._depth = min(CANDIDATES, len(self.candidates))
        self._qids = np.repeat(texts.index.to_numpy(), self._depth)

    def __call__(self) -> np.ndarray:
        """The measure of each query with the model in its present state, shape (queries,)."""
        vectorizer = self.model.vectorizer()
        return self.measured(vectorizer(self.candidates))

    def measured(self, passages: np.ndarray, queries: np.ndarray | None = None) -> np.ndarray:
        """The measure of each query, given vectors of the candidates, shape (candidates, d).

        Queries have the encoder's vectors unless others are given, shape (queries, d).
        """
        queries = self.query_vectors if queries is None else queries
        scores, rows = nearest(queries, passages, self._depth)  # (queries, depth)
        docnos = self._docnos[rows.ravel()]
        run = pd.DataFrame({"qid": self._qids, "docno": docnos, "score": scores.ravel()})
        return self._validation.per_query_of(run)


def _warn_of_known_queries(sampler: NeighborSampler, qids: list[str]) -> None:
    """Warns if passages aggregate from validation queries."""
    if sampler.query_graph is None or not sampler.query_relations:
        return
    numbers = numbers_of(sampler.query_graph.qids, qids)
    known = np.count_nonzero(numbers >= 0)
    if known:
        warnings.warn(
            f"{known} of {len(qids)} validation queries are in the graph: passages aggregate from them",
            QualityWarning,
            stacklevel=5,
        )


def relevant_passages(sampler: NeighborSampler, qrels: pd.DataFrame) -> tuple[pd.DataFrame, bool]:
    """The relevant passages of queries (``qid, docno``), and whether documents were judged."""
    is_relevant = qrels["label"] > 0
    relevant = qrels.loc[is_relevant, ["qid", "docno"]].drop_duplicates()
    passages = passage_qrels(relevant, sampler.graph)
    is_judged = passages["docno"].isin(relevant["docno"])
    by_document = not is_judged.any()
    return passages.reset_index(drop=True), by_document


def tuned_weights(
    model: ContextualEncoder, topics: pd.DataFrame, qrels: pd.DataFrame | None, measure: str
) -> Numbers:
    """The weights of relations, moved as far as the validation queries support it.

    See :func:`~pyterrier_graph.training.grid_search.coordinate_search`.
    """
    validation = PassageValidation(model, topics, qrels, measure)
    vectorizer = model.vectorizer()
    network = cast(RelationNetwork, vectorizer.network)
    terms: Terms = vectorizer.apply(network.terms, validation.candidates)

    def measured(weights: Numbers) -> np.ndarray:
        vectors = terms.total(weights)
        return validation.measured(vectors.float().cpu().numpy())

    grid = [{name: weight} for name in network.relations for weight in WEIGHTS]
    return coordinate_search(network.weights, grid, measured, verbose=model.verbose)
