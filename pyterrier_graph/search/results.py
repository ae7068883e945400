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
MATCHING_SNIPPETS = 100  # results whose snippets show the words of the question
MIN_EVIDENCE = 0.005  # smallest evidence that a reason names
COLUMNS = ["title", "file", "line", "snippet", "why", "score", "docno", "text"]
LABELS = {"lexical": "words", "dense": "meaning"}


class Lines(Step):
    """Adds the file of each passage, which is its document's docno, and the line where the passage begins.

    Columns in: ``docno`` (of passages), and any others. Columns out: the same, and ``file, line``.
    """

    def __init__(self, graph: DocumentGraph, lines: np.ndarray) -> None:
        self.graph = graph
        self.lines = lines

    def __repr__(self) -> str:
        return f"Lines({self.graph!r})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Adds the columns."""
        pt.validate.columns(inp, includes=["docno"], context=self)
        nodes = self.graph.nodes_of(inp["docno"].tolist())
        documents = self.graph.document[nodes]
        docnos = self.graph.docnos_of(documents)
        files = pd.array(docnos, dtype="str")
        passages = np.searchsorted(self.graph.passage_nodes, nodes)
        lines = self.lines[passages].astype(np.int64)
        return inp.assign(file=files, line=lines)


def distinct_results(run: pd.DataFrame, num_results: int) -> pd.DataFrame:
    """Keeps the best result of each section of a file, and the best result with each text."""
    run = run.drop_duplicates(["file", "title"]).drop_duplicates("text")
    return run.head(num_results)


def with_reasons(run: pd.DataFrame, components: Sequence[str], question: str) -> pd.DataFrame:
    """Adds a snippet to each result, and the components of its score as ``why``; returns the columns of a search."""
    terms = frozenset(query_terms(question))
    texts = run["text"].tolist()
    snippets = [snippet(text, terms) for text in texts[:MATCHING_SNIPPETS]]
    beginnings = [snippet(text) for text in texts[MATCHING_SNIPPETS:]]
    scores = run[list(components)].to_numpy()  # (results, components)
    reasons = [_reason(components, row) for row in scores.tolist()]
    run = run.assign(snippet=snippets + beginnings, why=reasons)
    columns = [name for name in COLUMNS if name in run]
    return run[columns].reset_index(drop=True)


def _reason(components: Sequence[str], scores: Sequence[float]) -> str:
    """The components of a score: words and meaning, and evidence unless it is about 0."""
    reasons = []
    for name, score in zip(components, scores, strict=True):
        if name in LABELS or score >= MIN_EVIDENCE:
            label = LABELS.get(name, name)
            reasons.append(f"{label} {score:.2f}")
    return " + ".join(reasons)
