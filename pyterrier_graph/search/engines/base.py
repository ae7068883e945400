"""The base class of engines that serve a GraphIndex, and the transformer that queries them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.graph_mean.contextual_index import ranking
from pyterrier_graph.search.hybrid import ALPHA, Frozen, Hybrid
from pyterrier_graph.search.retrievers import QueriesWithWords

if TYPE_CHECKING:
    from pyterrier_graph.search.graph_index import GraphIndex

EngineHits = list[tuple[str, float, str]]  # docno, score and text; best first


class EngineRetriever(pt.Transformer):
    """Asks an engine one query at a time: ``qid, query`` to ``qid, query, docno, score, rank, text``.

    Args:
        find: Returns the hits of a query, given the query and the number of results.
        num_results: Passages per query.
        encode: Turns topics into the queries that ``find`` reads; by default their texts.
    """

    def __init__(
        self,
        find: Callable[[Any, int], EngineHits],
        num_results: int,
        encode: Callable[[pd.DataFrame], np.ndarray] | None = None,
    ) -> None:
        self.find = find
        self.num_results = num_results
        self.encode = encode

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Finds passages."""
        topics = QueriesWithWords().transform(inp)
        queries: Any = topics["query"]
        if self.encode is not None and len(topics):
            queries = self.encode(topics)
        hits: EngineHits = []
        counts = []
        for query in queries:
            query_hits = self.find(query, self.num_results)
            hits += query_hits
            counts.append(len(query_hits))
        types = {"docno": "str", "score": float, "text": "str"}
        columns = pd.DataFrame(hits, columns=[*types]).astype(types)
        topic = np.repeat(np.arange(len(topics)), counts)  # (results,)
        return ranking(topics, topic, dict(columns))


class Engine(ABC):
    """Serves the passages of a GraphIndex from an engine, and provides transformers that search there.

    Args:
        index: The index, which encodes queries. If its passages have been uploaded before, it only has to be opened.
    """

    def __init__(self, index: GraphIndex) -> None:
        self.index = index

    @abstractmethod
    def upload(self, since: int | None = None) -> Self:
        """Uploads all passages, in place of what is there, or only what has changed since a version of the index."""

    @abstractmethod
    def find_vector(self, vector: np.ndarray, num_results: int) -> EngineHits:
        """The passages with the highest inner products."""

    @abstractmethod
    def find_words(self, query: str, num_results: int) -> EngineHits:
        """The passages with the highest BM25 scores, by the engine."""

    def dense(self, num_results: int = 1000) -> pt.Transformer:
        """Finds passages by their vectors."""
        return EngineRetriever(self.find_vector, num_results, self.index.query_vectors)

    def lexical(self, num_results: int = 1000) -> pt.Transformer:
        """Finds passages by their words."""
        return EngineRetriever(self.find_words, num_results)

    def hybrid(self, num_results: int = 1000, *, alpha: float = ALPHA) -> pt.Transformer:
        """Finds passages by both, as a :class:`~pyterrier_graph.Hybrid` that is not trained."""
        lexical = self.lexical()
        dense = self.dense()
        hybrid = Hybrid(lexical, dense, alpha=alpha, num_results=num_results)
        return Frozen(QueriesWithWords() >> hybrid)
