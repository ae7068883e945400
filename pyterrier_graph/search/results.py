"""The results of ``GraphIndex.search``: files and lines, snippets, reasons, and whether the question is answered."""

from __future__ import annotations

from functools import partial
from typing import Literal, get_args

import numpy as np
import pandas as pd
import pyterrier as pt
from pyterrier.transformer import IdentityTransformer

from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.graphs.passages import Step
from pyterrier_graph.graphs.relations import DOCUMENT, STRUCTURAL
from pyterrier_graph.search.bm25 import query_terms
from pyterrier_graph.search.document_evidence import DocumentEvidence
from pyterrier_graph.search.snippets import Matcher, distinct, snippet

Per = Literal["passage", "section", "document"]
FOLDS = {"section": STRUCTURAL, "document": DOCUMENT}
CANDIDATES = 100  # passages that are folded to sections or documents, or freed of copies
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
    graph: DocumentGraph,
    lines: np.ndarray | None,
    question: str,
    ranking: pd.DataFrame,
    evidence: DocumentEvidence | None,
    num_results: int,
    per: Per,
) -> pd.DataFrame:
    """The results of :meth:`GraphIndex.search <pyterrier_graph.GraphIndex.search>`, given the hybrid's ranking."""
    parts, nodes = [*LABELS], graph.nodes_of(ranking["docno"].tolist())
    if evidence is not None:
        added = evidence.evidence(ranking, nodes) * pd.Series(evidence.weights)
        score = ranking["score"] + added.sum(axis=1)
        ranking, parts = ranking.assign(score=score, **added), parts + [*added]
    order = np.argsort(-ranking["score"].to_numpy(), kind="stable")
    order = order[: max(num_results, 0 if per == "passage" and lines is None else CANDIDATES)]
    texts = {"title": graph.titles(nodes[order]), "text": graph.texts(nodes[order])}
    columns = {name: pd.array(values, dtype="str") for name, values in texts.items()}
    run = ranking.iloc[order].assign(**columns, rank=np.arange(len(order)))
    run = fold_results(graph, lines, IdentityTransformer(), per).transform(run)
    if "passage" in run.columns:
        run["docno"] = run["passage"]
    names = ["title", "snippet", "why", "score", "docno", "text"]
    if lines is None:
        run = run.head(num_results)
    else:
        around = _around(graph, run["docno"].tolist())
        texts, files = run["text"].tolist(), run["file"].tolist()
        run = run.iloc[distinct(texts, around, files, num_results)]
        names[1:1] = ["file", "line"]
    matcher = Matcher(query_terms(question))
    matchers = [matcher] * MATCHED + [Matcher([])] * max(0, len(run) - MATCHED)
    scores = run[parts].to_numpy().tolist()
    run = run.reset_index(drop=True).assign(
        snippet=[*map(snippet, run["text"].tolist(), matchers)],
        why=[*map(partial(_reason, parts), run["title"].tolist(), scores, matchers)],
    )
    return run[names]


def has_all_words(results: pd.DataFrame, question: str) -> bool:
    """Whether a single result has all words of the question in its title and text."""
    matcher = Matcher(query_terms(question))
    texts = results["title"] + " " + results["text"]
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


def _reason(names: list[str], title: str, scores: list[float], matcher: Matcher) -> str:
    """The parts that add up to a score, and the words of the question that the titles have."""
    shown = [
        f"{LABELS.get(name, name)} {score:.2f}"
        for name, score in zip(names, scores, strict=True)
        if name in LABELS or score >= SHOWN
    ]
    words = dict.fromkeys(title.split() if matcher.wanted else ())
    shared = [word.strip(".,:;()") for word in words if matcher[word]]
    return " + ".join(shown) + (f"; title has {', '.join(shared)}" if shared else "")
