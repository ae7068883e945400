"""The results of ``GraphIndex.search``: titles, snippets, reasons, and the lines of files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.graphs.passages import Step
from pyterrier_graph.search.bm25 import query_terms
from pyterrier_graph.search.snippets import snippet

CANDIDATES = 100  # results that are compared to show a section or a text only once
MATCHED = 100  # results whose snippets show the words of the question
SHOWN = 0.005  # smallest part of a score that a reason names
COLUMNS = ["title", "file", "line", "snippet", "why", "score", "docno", "text"]
LABELS = {"lexical": "words", "dense": "meaning"}


class Lines(Step):
    """Adds the file of each passage, which is its document's docno, and the line where the passage begins.

    Columns in: ``docno`` (of passages), and any others. Columns out: those, ``file`` and ``line``.
    """

    def __init__(self, graph: DocumentGraph, lines: np.ndarray) -> None:
        self.graph, self.lines = graph, lines

    def __repr__(self) -> str:
        return f"Lines({self.graph!r})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Adds the columns."""
        pt.validate.columns(inp, includes=["docno"], context=self)
        nodes = self.graph.nodes_of(inp["docno"].tolist())
        files = self.graph.docnos_of(self.graph.document[nodes])
        passages = np.searchsorted(self.graph.passage_nodes, nodes)
        lines = self.lines[passages].astype(np.int64)
        return inp.assign(file=pd.array(files, dtype="str"), line=lines)


def distinct_results(run: pd.DataFrame, num_results: int) -> pd.DataFrame:
    """Keeps the best result of each section of a file, and the best result with each text."""
    run = run.drop_duplicates(["file", "title"]).drop_duplicates("text")
    return run.head(num_results)


def with_reasons(run: pd.DataFrame, parts: Sequence[str], question: str) -> pd.DataFrame:
    """Adds a snippet to each result, and the parts of its score as ``why``; returns the columns of a search."""
    terms = frozenset(query_terms(question))
    texts = run["text"].tolist()
    snippets = [snippet(text, terms) for text in texts[:MATCHED]]
    snippets += [snippet(text, frozenset()) for text in texts[MATCHED:]]
    scores = run[list(parts)].to_numpy()  # (results, parts)
    reasons = [_reason(parts, row) for row in scores.tolist()]
    run = run.assign(snippet=snippets, why=reasons)
    columns = [name for name in COLUMNS if name in run]
    return run[columns].reset_index(drop=True)


def _reason(parts: Sequence[str], scores: Sequence[float]) -> str:
    """The parts of a score: words and meaning, and evidence unless it is about 0."""
    reasons = []
    for name, score in zip(parts, scores, strict=True):
        if name in LABELS or score >= SHOWN:
            label = LABELS.get(name, name)
            reasons.append(f"{label} {score:.2f}")
    return " + ".join(reasons)
