"""The hybrid of a GraphIndex, in arrays: numbers of passages take the place of ids until the best are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
from npids.lookup import Lookup

from pyterrier_graph.checks import check_frame, positions
from pyterrier_graph.graph_mean.contextual_index import (
    ContextualRetriever,
    Hits,
    Retriever,
    ranking,
)
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.search.document_evidence import node_evidence
from pyterrier_graph.search.hybrid import SIDES, distinct_queries
from pyterrier_graph.search.retrievers import BM25Retriever, QueriesWithWords
from pyterrier_graph.search.scores import normalized_scores, weighted
from pyterrier_graph.storage.arrays import known_numbers_of


class IndexHybrid(Retriever):
    """Ranks the passages of an index as ``Hybrid(lexical, dense) >> DocumentEvidence`` does, in half the time.

    Columns in: ``qid, query``. Columns out: ``qid, query, docno, score, rank``.

    Args:
        lexical: Finds passages by their words.
        dense: Finds passages by their vectors.
        graph: The graph of the passages.
        settings: ``alpha``, the share of vectors, and ``evidence``, the weights of ``document`` and ``order``.
        num_results: Passages per query.
    """

    schematic = {"label": "Hybrid", "inner_pipelines_mode": "combine"}

    def __init__(
        self,
        lexical: pt.Transformer,
        dense: ContextualRetriever,
        graph: DocumentGraph,
        settings: Mapping[str, Any],
        num_results: int,
    ) -> None:
        self.lexical = lexical
        self.dense = dense
        self.graph = graph
        self.settings = settings
        self.num_results = num_results

    def __repr__(self) -> str:
        return f"IndexHybrid({self.lexical}, {self.dense}, {self.num_results})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Finds passages."""
        return self._ranked(inp, with_components=False)

    @property
    def components(self) -> list[str]:
        """What a score is the sum of: words, meaning, and each kind of evidence."""
        return [*SIDES, *self.settings["evidence"]]

    def with_components(self, topics: pd.DataFrame) -> pd.DataFrame:
        """Finds passages; a column for each component has what it adds to the score."""
        return self._ranked(topics, with_components=True)

    def _ranked(self, topics: pd.DataFrame, *, with_components: bool) -> pd.DataFrame:
        topics = QueriesWithWords().transform(topics)
        topics = distinct_queries(topics)
        query, passage, components = self._scored(topics)
        scores = components.sum(axis=1)
        best = best_of_each(query, scores, self.num_results)
        nodes = self.graph.passage_nodes[passage[best]]
        ids = self.graph.ids_of(nodes)
        docnos = pd.array(ids, dtype="str")
        columns = {"docno": docnos, "score": scores[best]}
        if with_components:
            best_components = components[best].T  # (components, results)
            columns.update(zip(self.components, best_components, strict=True))
        return ranking(topics, query[best], columns)

    def _scored(self, topics: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Query and passage of each result, shape (results,), and its score's components, (results, components)."""
        lexical = lexical_hits(self.lexical, self.graph.passage_ids, topics)
        dense = self.dense.hits(topics)
        passages = len(self.graph.passage_nodes)
        query, passage, normalized = united(lexical, dense, passages)
        sides = weighted(normalized, query, self.settings["alpha"])  # (results, 2)
        nodes = self.graph.passage_nodes[passage]
        scores = sides.sum(axis=1)
        evidence = node_evidence(self.graph, query, nodes, scores)
        components = [sides]
        for name, weight in self.settings["evidence"].items():
            components.append(weight * evidence[name])
        return query, passage, np.column_stack(components)


def lexical_hits(retriever: pt.Transformer, docnos: Lookup, topics: pd.DataFrame) -> Hits:
    """The passages that a retriever finds, by number; :class:`BM25Retriever` need not look them up."""
    if isinstance(retriever, BM25Retriever):
        return retriever.hits(topics)
    run = retriever.transform(topics)
    run = check_frame(run, retriever, numbers=("score",))
    pt.validate.result_frame(run, extra_columns=["score"], context=retriever)
    qids = run["qid"].astype("str")
    query = pd.Index(topics["qid"]).get_indexer(qids)
    passage = known_numbers_of(docnos, run["docno"].tolist())
    scores = run["score"].to_numpy(float)
    return Hits(query, passage, scores)


def united(lexical: Hits, dense: Hits, passages: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each result of two retrievers once: its query, its passage, and its normalized scores, shape (results, 2).

    A score is NaN where the retriever has not found the passage.
    """
    # a query and a passage as one number, for each result of each retriever
    lexical_keys = lexical.query * passages + lexical.passage
    dense_keys = dense.query * passages + dense.passage
    keys = np.union1d(lexical_keys, dense_keys)  # (results,)
    lexical_row = np.searchsorted(keys, lexical_keys)
    dense_row = np.searchsorted(keys, dense_keys)
    normalized = np.full((len(keys), 2), np.nan)
    normalized[lexical_row, 0] = normalized_scores(lexical.score, lexical.query)
    normalized[dense_row, 1] = normalized_scores(dense.score, dense.query)
    query, passage = np.divmod(keys, passages)
    return query, passage, normalized


def best_of_each(query: np.ndarray, scores: np.ndarray, count: int) -> np.ndarray:
    """Positions of the best results of each query, the best first; equal scores keep their order."""
    order = np.lexsort((-scores, query))
    rank = positions(query[order])
    return order[rank < count]
