"""The retrievers of a GraphIndex."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyterrier as pt
from npids.lookup import Lookup

from pyterrier_graph.checks import check_frame
from pyterrier_graph.graph_mean.contextual_index import Hits, Retriever, ranking
from pyterrier_graph.graphs.memory_graph import Ids
from pyterrier_graph.graphs.passages import Step
from pyterrier_graph.search.bm25 import BM25Index, words
from pyterrier_graph.storage.arrays import ids_of


class QueriesWithWords(Step):
    """Drops queries without a word, such as ``"?!"``. Columns: ``qid, query``."""

    def __repr__(self) -> str:
        return "QueriesWithWords()"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Drops the queries."""
        inp = check_frame(inp, self, texts=("query",))
        pt.validate.query_frame(inp, extra_columns=["query"], context=self)
        has_words = [bool(words(query)) for query in inp["query"]]
        return inp[np.array(has_words, dtype=bool)]


class BM25Retriever(Retriever):
    """Finds passages by BM25: ``qid, query`` to ``qid, query, docno, score, rank``.

    Args:
        index: The index.
        docnos: The ids of its passages, in their order.
        num_results: Passages per query.
    """

    schematic = {"label": "BM25", "help_url": "https://pypi.org/project/pyterrier-graph/"}

    def __init__(self, index: BM25Index, docnos: Lookup | Ids, num_results: int = 1000) -> None:
        self.index = index
        self.docnos = docnos
        self.num_results = num_results

    def __repr__(self) -> str:
        return f"BM25({str(self.index.path)!r}, {self.num_results})"

    def __str__(self) -> str:
        return "BM25"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Finds passages."""
        topics = check_frame(inp, self, texts=("query",))
        pt.validate.query_frame(topics, extra_columns=["query"], context=self)
        hits = self.hits(topics)
        ids = ids_of(self.docnos, hits.passage)
        docnos = pd.array(ids, dtype="str")
        columns = {"docno": docnos, "score": hits.score}
        return ranking(topics, hits.query, columns)

    def hits(self, topics: pd.DataFrame) -> Hits:
        """Finds passages by number."""
        # begin with an empty array, since there may be no topics
        scores = [np.empty(0)]
        passages = [np.empty(0, np.int64)]
        counts = []
        for text in topics["query"]:
            query_scores, query_passages = self.index.search(text, self.num_results)
            scores.append(query_scores)
            passages.append(query_passages)
            counts.append(len(query_passages))
        query = np.repeat(np.arange(len(topics)), counts)
        return Hits(query, np.concatenate(passages), np.concatenate(scores))
