"""The retrievers of a GraphIndex."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np
import pandas as pd
import pyterrier as pt
from npids.lookup import Lookup

from pyterrier_graph.checks import WithSignature, check_frame
from pyterrier_graph.graph_mean.contextual_index import ContextualIndex
from pyterrier_graph.graph_mean.nearest import nearest
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.html import pipeline_name
from pyterrier_graph.search.bm25 import BM25Index, words
from pyterrier_graph.search.hybrid import ranked
from pyterrier_graph.storage.arrays import ids_of

REPLACED = {"docno", "docid", "score", "rank", "query_vec"}
HELP = "https://pypi.org/project/pyterrier-graph/"


class PassageRetriever(WithSignature, pt.Transformer):
    """Base of retrievers of passages: queries without a word have no results.

    Columns in: ``qid, query``. Columns out: ``qid, query, docno, score, rank``.

    Args:
        num_results: Passages per query.
        allowed: Whether a passage may be found, shape (passages,); None for all.
    """

    def __init__(self, num_results: int = 1000, allowed: np.ndarray | None = None) -> None:
        self.num_results, self.allowed = num_results, allowed

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Finds passages."""
        if self.num_results < 1:
            raise ValueError(f"num_results must be 1 or more, got {self.num_results!r}")
        inp = check_frame(inp, self, texts=("query",))
        pt.validate.query_frame(inp, extra_columns=["query"], context=self)
        has_word = np.array([bool(words(query)) for query in inp["query"]], dtype=bool)
        return self.retrieve(inp[has_word])

    def retrieve(self, topics: pd.DataFrame) -> pd.DataFrame:
        """Finds passages for queries that have words."""
        raise NotImplementedError

    def fuse_rank_cutoff(self, k: int) -> Self:
        """Finds no more passages than are used."""
        other = object.__new__(type(self))
        vars(other).update(vars(self), num_results=min(k, self.num_results))
        return other


class BM25Retriever(PassageRetriever):
    """Finds passages by BM25; other arguments and columns are those of the base.

    Args:
        index: The index.
        docnos: The ids of its passages, in their order.
        label: The name in explanations.
    """

    schematic = {"label": "BM25", "help_url": HELP}

    def __init__(
        self,
        index: BM25Index,
        docnos: Lookup | Sequence[str],
        num_results: int = 1000,
        allowed: np.ndarray | None = None,
        *,
        label: str = "BM25",
    ) -> None:
        super().__init__(num_results, allowed)
        self.index, self.label = index, label
        self.docnos = docnos if isinstance(docnos, Lookup) else np.array(docnos, dtype=object)

    def __repr__(self) -> str:
        return f"BM25({str(self.index.path)!r}, {self.num_results})"

    def __str__(self) -> str:
        return self.label

    def retrieve(self, topics: pd.DataFrame) -> pd.DataFrame:
        """Finds passages for queries that have words."""
        numbers, scores = [np.empty(0, np.int64)], [np.empty(0, np.float32)]
        for query in topics["query"]:
            best, values = self.index.search(query, self.num_results, self.allowed)
            numbers.append(best)
            scores.append(values)
        counts = [len(ranking) for ranking in numbers[1:]]
        rows = topics[copied_columns(topics)].iloc[np.repeat(np.arange(len(topics)), counts)]
        best = np.concatenate(numbers)
        docnos = (
            self.docnos[best] if isinstance(self.docnos, np.ndarray) else ids_of(self.docnos, best)
        )
        return rows.reset_index(drop=True).assign(
            docno=pd.array(docnos, dtype="str"),
            score=np.concatenate(scores).astype(float),
            rank=np.concatenate([np.empty(0, np.int64), *map(np.arange, counts)]),
        )


class DenseRetriever(PassageRetriever):
    """Finds passages by their vectors; other arguments and columns are those of the base.

    A column ``query_vec`` takes the place of encoding the queries.

    Args:
        index: The index of the vectors.
        exact: Whether to compare all vectors of a large index, too.
    """

    def __init__(
        self,
        index: ContextualIndex,
        num_results: int = 1000,
        allowed: np.ndarray | None = None,
        *,
        exact: bool = False,
    ) -> None:
        super().__init__(num_results, allowed)
        self.index, self.exact = index, exact
        self.retriever = index.retriever(num_results, exact=exact)  # which explanations look for

    def __repr__(self) -> str:
        return f"DenseRetriever({self.index!r}, {self.num_results})"

    def __str__(self) -> str:
        return str(self.index)

    @property
    def schematic(self) -> dict[str, Any]:
        """How PyTerrier draws the transformer."""
        return {"label": str(self), "help_url": HELP}

    def retrieve(self, topics: pd.DataFrame) -> pd.DataFrame:
        """Finds passages for queries that have words."""
        docnos, vectors, _ = self.index.files.payload()
        if "query_vec" not in topics and len(topics):
            topics = self.index.query_encoder().transform(topics)
        queries = np.array([*topics.get("query_vec", ())], np.float32).reshape(-1, vectors.shape[1])
        if self.allowed is None:
            scores, passages = self.index.search(queries, self.num_results, exact=self.exact)
        else:
            numbers = np.flatnonzero(self.allowed)
            scores, passages = nearest(queries, vectors[numbers], self.num_results)
            passages = numbers[passages]
        rows = np.repeat(np.arange(len(topics)), scores.shape[1])
        return (
            topics[copied_columns(topics)]
            .iloc[rows]
            .reset_index(drop=True)
            .assign(
                docno=pd.array(ids_of(docnos, passages.ravel()), dtype="str"),
                score=scores.ravel().astype(float),
                rank=np.tile(np.arange(scores.shape[1]), len(topics)),
            )
        )


class FilteredRetriever(PassageRetriever):
    """Runs a retriever of passages, and keeps those that are allowed.

    Args:
        retriever: The retriever, ``qid, query`` to ``qid, docno, score``.
        graph: The graph of the passages.
        num_results: Passages per query.
        allowed: As for the base.
    """

    def __init__(
        self,
        retriever: pt.Transformer,
        graph: DocumentGraph,
        num_results: int = 1000,
        allowed: np.ndarray | None = None,
    ) -> None:
        super().__init__(num_results, allowed)
        self.retriever, self.graph = retriever, graph

    def __repr__(self) -> str:
        return repr(self.retriever)

    def __str__(self) -> str:
        return str(self.retriever)

    @property
    def schematic(self) -> dict[str, Any]:
        """How PyTerrier draws the transformer."""
        return {"label": pipeline_name(self.retriever), "help_url": HELP}

    def retrieve(self, topics: pd.DataFrame) -> pd.DataFrame:
        """Finds passages for queries that have words."""
        if not len(topics):
            return topics[copied_columns(topics)].assign(
                docno=pd.Series(dtype="str"),
                score=pd.Series(dtype=float),
                rank=pd.Series(dtype=int),
            )
        run = self.retriever.transform(topics)
        if self.allowed is not None:
            nodes = self.graph.nodes_of(run["docno"].tolist())
            run = run[self.allowed[np.searchsorted(self.graph.passage_nodes, nodes)]]
        run = ranked(run)
        return run[run["rank"] < self.num_results].reset_index(drop=True)


def copied_columns(topics: pd.DataFrame) -> list[str]:
    """The columns of topics that results have, too."""
    return [name for name in topics if name not in REPLACED]


def allowed_passages(graph: DocumentGraph, within: Iterable[str] | str | None) -> np.ndarray | None:
    """The passages of some documents, as booleans of shape (passages,); None for all.

    An entry is the docno of a document. If there is no such document, it is the beginning of docnos.

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
