"""The results of ``GraphIndex.search``: files and lines, snippets, reasons, and whether the question is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.graphs.passages import Step
from pyterrier_graph.graphs.relations import DOCUMENT, STRUCTURAL
from pyterrier_graph.search.bm25 import query_terms
from pyterrier_graph.search.document_evidence import DocumentEvidence
from pyterrier_graph.search.hybrid import ranked
from pyterrier_graph.search.snippets import Matcher, distinct, snippet, warn_of_no_answer

if TYPE_CHECKING:
    from pyterrier_graph.search.graph_index import GraphIndex

Per = Literal["passage", "section", "document"]
FOLDS = {"section": STRUCTURAL, "document": DOCUMENT}
CANDIDATES = 100  # passages among which a search finds sections, documents, or files without copies
MATCHED = 100  # results in which words of the question are looked for
SHOWN = 0.005  # smallest part of a score that a reason names
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
        files = pd.Series(
            self.graph.docnos_of(self.graph.document[nodes]), dtype="str", index=inp.index
        )
        lines = self.lines[np.searchsorted(self.graph.passage_nodes, nodes)].astype(np.int64)
        return inp.assign(file=files, line=lines)


def fold_results(
    graph: DocumentGraph, lines: np.ndarray | None, passages: pt.Transformer, per: Per
) -> pt.Transformer:
    """Adds files and lines, if there are any, to retrieved passages, and folds them."""
    if per not in get_args(Per):
        raise ValueError(f"per must be one of {get_args(Per)}, got {per!r}")
    if lines is not None:
        passages = passages >> Lines(graph, lines)
    return passages if per == "passage" else passages >> graph.fold(FOLDS[per])


def search_results(
    index: GraphIndex,
    question: str,
    ranking: pd.DataFrame,
    evidence: DocumentEvidence | None,
    num_results: int,
    per: Per,
) -> pd.DataFrame:
    """The results of :meth:`GraphIndex.search <pyterrier_graph.GraphIndex.search>`, given the hybrid's ranking."""
    parts = [*LABELS]
    if evidence is not None:
        added = evidence.evidence(ranking) * pd.Series(evidence.weights)
        ranking = ranking.assign(score=ranking["score"] + added.sum(axis=1), **added)
        ranking, parts = ranked(ranking), parts + [*added]
    lines = index.version.lines if index.version else None
    if per == "passage" and lines is None:
        ranking = ranking.head(num_results)
    else:
        ranking = ranking.head(max(CANDIDATES, num_results))
    fold = fold_results(index.graph, lines, index.graph.text_loader(), per)
    run = fold.transform(ranking)
    if "passage" in run.columns:
        run["docno"] = run["passage"]
    if lines is None:
        run = run.head(num_results)
    else:
        around = _around(index.graph, run["docno"].tolist())
        texts, files = run["text"].tolist(), run["file"].tolist()
        run = run.iloc[distinct(texts, around, files, num_results)]
    matcher = Matcher(query_terms(question))
    matchers = [matcher] * MATCHED + [Matcher([])] * max(0, len(run) - MATCHED)
    rows = [dict(zip(parts, row, strict=True)) for row in run[parts].to_numpy().tolist()]
    run = run.reset_index(drop=True).assign(
        snippet=[*map(snippet, run["text"], matchers)],
        why=[*map(_reason, run["title"], rows, matchers)],
    )
    files_columns = [] if lines is None else ["file", "line"]
    names = ["title", *files_columns, "snippet", "why", "score", "docno", "text"]
    run = run[names]
    if lines is not None and matcher.wanted and not _has_all(run, matcher):
        best = index.best_similarities([question])[0]
        if best < index.random_similarity:
            run.attrs["weak"] = warn_of_no_answer(question, best, index.random_similarity)
    return run


def _has_all(run: pd.DataFrame, matcher: Matcher) -> bool:
    """Whether a result has all words of the question."""
    texts = run["title"] + " " + run["text"]
    return any(
        matcher.wanted == frozenset().union(*(matcher[token] for token in text.split()))
        for text in texts
    )


def _around(graph: DocumentGraph, passages: list[str]) -> list[str]:
    """The text of each passage between the passages before and after it in its document."""
    numbers = np.searchsorted(graph.passage_nodes, graph.nodes_of(passages))[:, None] + [-1, 0, 1]
    nodes = graph.passage_nodes[numbers.clip(0, len(graph.passage_nodes) - 1)]  # (passages, 3)
    nodes = np.where(graph.document[nodes] == graph.document[nodes[:, [1]]], nodes, nodes[:, [1]])
    texts = graph.texts(nodes.ravel())
    return [" ".join(texts[start : start + 3]) for start in range(0, len(texts), 3)]


def _reason(title: str, parts: dict[str, float], matcher: Matcher) -> str:
    """The parts that add up to a score, and the words of the question that the titles have."""
    shown = [
        f"{LABELS.get(name, name)} {value:.2f}"
        for name, value in parts.items()
        if name in LABELS or value >= SHOWN
    ]
    named = dict.fromkeys(title.split() if matcher.wanted else ())
    shared = [word.strip(".,:;()") for word in named if matcher[word]]
    return " + ".join(shown) + (f"; title has {', '.join(shared)}" if shared else "")
