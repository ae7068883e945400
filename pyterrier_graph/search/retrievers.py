"""The retrievers of a GraphIndex."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np
import pandas as pd
import pyterrier as pt
from npids.lookup import Lookup

from pyterrier_graph.checks import WithSignature, check_frame
from pyterrier_graph.graph_mean.contextual_index import ranking
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.graphs.passages import Step
from pyterrier_graph.search.bm25 import BM25Index, words
from pyterrier_graph.search.hybrid import ranked
from pyterrier_graph.storage.arrays import ids_of


class QueriesWithWords(Step):
    """Drops queries without a word, such as ``"?!"``. Columns: ``qid, query``."""

    def __repr__(self) -> str:
        return "QueriesWithWords()"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Drops the queries."""
        inp = check_frame(inp, self, texts=("query",))
        pt.validate.query_frame(inp, extra_columns=["query"], context=self)
        return inp[np.array([bool(words(query)) for query in inp["query"]], dtype=bool)]


class Within(Step):
    """Keeps the results that are passages of some documents.

    Args:
        graph: The graph of the passages.
        allowed: Whether a passage is kept, shape (passages,).
    """

    def __init__(self, graph: DocumentGraph, allowed: np.ndarray) -> None:
        self.graph, self.allowed = graph, allowed

    def __repr__(self) -> str:
        return f"Within({self.graph!r})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Drops the other results."""
        pt.validate.result_frame(inp, extra_columns=["score"], context=self)
        nodes = self.graph.nodes_of(inp["docno"].tolist())
        return ranked(inp[self.allowed[np.searchsorted(self.graph.passage_nodes, nodes)]])


class BM25Retriever(WithSignature, pt.Transformer):
    """Finds passages by BM25: ``qid, query`` to ``qid, query, docno, score, rank``.

    Args:
        index: The index.
        docnos: The ids of its passages, in their order.
        num_results: Passages per query.
        allowed: Whether a passage may be found, shape (passages,); None for all.
    """

    schematic = {"label": "BM25", "help_url": "https://pypi.org/project/pyterrier-graph/"}

    def __init__(
        self,
        index: BM25Index,
        docnos: Lookup | Sequence[str],
        num_results: int = 1000,
        allowed: np.ndarray | None = None,
    ) -> None:
        self.index, self.num_results, self.allowed = index, num_results, allowed
        self.docnos = docnos if isinstance(docnos, Lookup) else np.array(docnos, dtype=object)

    def __repr__(self) -> str:
        return f"BM25({str(self.index.path)!r}, {self.num_results})"

    def __str__(self) -> str:
        return "BM25"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Finds passages."""
        if self.num_results < 1:
            raise ValueError(f"num_results must be 1 or more, got {self.num_results!r}")
        topics = check_frame(inp, self, texts=("query",))
        pt.validate.query_frame(topics, extra_columns=["query"], context=self)
        hits = [
            self.index.search(query, self.num_results, self.allowed) for query in topics["query"]
        ]
        passages = np.concatenate([np.empty(0, np.int64), *(best for best, _ in hits)])
        scores = np.concatenate([np.empty(0), *(scores for _, scores in hits)])
        named = isinstance(self.docnos, Lookup)
        docnos = ids_of(self.docnos, passages) if named else self.docnos[passages]
        columns = {"docno": pd.array(docnos, dtype="str"), "score": scores}
        return ranking(topics, [len(best) for best, _ in hits], columns)

    def fuse_rank_cutoff(self, k: int) -> Self:
        """Finds no more passages than are used."""
        num_results = min(k, self.num_results)
        return type(self)(self.index, self.docnos, num_results, self.allowed)


def allowed_passages(graph: DocumentGraph, within: Iterable[str] | str | None) -> np.ndarray | None:
    """Mask of the passages of the documents ``within``, shape (passages,); None for all.

    An entry is the docno of a document, or else a prefix of docnos.

    Raises:
        KeyError: If an entry is neither.
    """
    if within is None:
        return None
    entries = [within] if isinstance(within, str) else [*within]
    docnos = graph.docnos_of(np.arange(len(graph)))
    known = {docno: number for number, docno in enumerate(docnos)}
    documents = np.zeros(len(docnos), dtype=bool)
    for entry in entries:
        if entry in known:
            documents[known[entry]] = True
            continue
        begins = [docno.startswith(entry) for docno in docnos]
        if not entry or not any(begins):
            raise KeyError(
                f"no document in {graph!r} has the docno {entry!r}, or one that begins so"
            )
        documents |= begins
    return documents[graph.document[graph.passage_nodes]]
