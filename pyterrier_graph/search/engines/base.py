"""What engines that serve a GraphIndex have in common: transformers that ask them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.search.hybrid import ALPHA, Frozen, Hybrid, ranked
from pyterrier_graph.search.retrievers import PassageRetriever, copied_columns

if TYPE_CHECKING:
    from pyterrier_graph.search.graph_index import GraphIndex

Hits = list[tuple[str, float, str]]  # docno, score and text; best first


class EngineRetriever(PassageRetriever):
    """Asks an engine one query at a time: ``qid, query`` to ``qid, query, docno, score, rank, text``.

    Args:
        find: Returns the hits of a query, given the query and the number of results.
        num_results: Passages per query.
        encode: Turns topics into the queries that ``find`` reads; by default their texts.
    """

    def __init__(
        self,
        find: Callable[[Any, int], Hits],
        num_results: int = 1000,
        encode: Callable[[pd.DataFrame], np.ndarray] | None = None,
    ) -> None:
        super().__init__(num_results)
        self.find, self.encode = find, encode

    def __repr__(self) -> str:
        return f"EngineRetriever({self.find!r}, {self.num_results})"

    def retrieve(self, topics: pd.DataFrame) -> pd.DataFrame:
        """Finds passages for queries that have words."""
        queries: Any = topics["query"]
        if self.encode is not None and len(topics):
            queries = self.encode(topics)
        hits = [self.find(query, self.num_results) for query in queries]
        rows = np.repeat(np.arange(len(topics)), [*map(len, hits)])
        run = topics[copied_columns(topics)].iloc[rows].reset_index(drop=True)
        columns = pd.DataFrame(sum(hits, []), columns=["docno", "score", "text"])
        kinds = {"docno": "str", "score": float, "text": "str"}
        return ranked(pd.concat([run, columns.astype(kinds)], axis=1))


class Engine(ABC):
    """The passages of a GraphIndex in an engine: what is searched there, as transformers.

    Args:
        index: The index, which encodes queries. Opening it is enough where passages were uploaded elsewhere.
    """

    def __init__(self, index: GraphIndex) -> None:
        self.index = index

    @abstractmethod
    def upload(self, since: int | None = None) -> Self:
        """Hands over the passages: all, or those that have changed after a version of the index."""

    @abstractmethod
    def find_vector(self, vector: np.ndarray, num_results: int) -> Hits:
        """The passages with the highest inner products."""

    @abstractmethod
    def find_words(self, query: str, num_results: int) -> Hits:
        """The passages with the highest BM25 scores, by the engine."""

    def dense(self, num_results: int = 1000) -> pt.Transformer:
        """Finds passages by their vectors."""
        return EngineRetriever(self.find_vector, num_results, self.index.query_vectors)

    def lexical(self, num_results: int = 1000) -> pt.Transformer:
        """Finds passages by their words."""
        return EngineRetriever(self.find_words, num_results)

    def hybrid(self, num_results: int = 1000, *, alpha: float = ALPHA) -> pt.Transformer:
        """Finds passages by both, as a :class:`~pyterrier_graph.Hybrid` that is not trained."""
        return Frozen(Hybrid(self.lexical(), self.dense(), alpha=alpha, num_results=num_results))
