"""The results of ``GraphIndex.search``: files and lines, snippets, reasons, and whether the question is answered."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.checks import check_choice, check_count
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.graphs.passages import Step
from pyterrier_graph.graphs.relations import DOCUMENT, STRUCTURAL
from pyterrier_graph.search.fitting import RESULTS
from pyterrier_graph.search.snippets import (
    check_question,
    content_stems,
    distinct,
    snippet,
    stems,
    warn_of_no_answer,
)
from pyterrier_graph.search.stored_index import StoredIndex
from pyterrier_graph.storage.arrays import numbers_of

Per = Literal["passage", "section", "document"]
FOLDS = {"section": STRUCTURAL, "document": DOCUMENT}
CANDIDATES = 100  # passages among which a search finds sections or documents
SHOWN = 0.005  # the smallest part of a score that a reason names


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


def folded(index: StoredIndex, found: pt.Transformer, per: Per) -> pt.Transformer:
    """Adds files and lines, where there are any, to found passages, and folds them."""
    check_choice("per", per, get_args(Per))
    if index._lines is not None:
        found = found >> Lines(index.graph, index._lines)
    return found if per == "passage" else found >> index.graph.fold(FOLDS[per])


def results(index: StoredIndex, question: str, num_results: int, per: Per | None) -> pd.DataFrame:
    """The results of :meth:`GraphIndex.search <pyterrier_graph.GraphIndex.search>`."""
    check_question(question)
    check_count("num_results", num_results)
    vector = np.asarray(index._contextual.encoder.encode_queries([question]), np.float32)
    topics = pd.DataFrame({"qid": ["1"], "query": [question], "query_vec": [*vector]})
    fusion = index._fusion(max(RESULTS, num_results))
    best, shares = fusion._ranked(topics)
    parts = {"words": shares[:, 0], "meaning": shares[:, 1]}
    if (evidence := index._evidence) is not None:
        ranking = fusion._frame(topics, best)
        for name, values in evidence.evidence(ranking).items():
            parts[str(name)] = evidence.weights[str(name)] * values.to_numpy()
        best = best._replace(score=evidence.transform(ranking)["score"].to_numpy())
    files = index._lines is not None
    per = per or ("section" if files else "passage")
    candidates = num_results if per == "passage" and not files else max(CANDIDATES, num_results)
    place: Any = np.argsort(-best.score, kind="stable")[: int(candidates)]
    best = best.at(place)
    texts = index.graph._columns(["text", "title"], best.docno.tolist())
    found = fusion._frame(topics, best._replace(others={"place": place} | texts))
    found = folded(index, pt.Transformer.identity(), per).transform(found)
    if "passage" in found.columns:
        found["docno"] = found["passage"]
    if files:
        around = _around(index.graph, found["docno"].tolist())
        found = found.iloc[
            distinct(found["text"].tolist(), around, found["file"].tolist(), num_results)
        ]
    else:
        found = found.head(num_results)
    wanted = content_stems(question)
    shares = np.stack([*parts.values()], axis=1)[found["place"]]
    new: dict[str, Any] = {"snippet": [snippet(text, wanted) for text in found["text"]]}
    new["why"] = _reasons(index, found, wanted, vector[0], [*parts], shares)
    names = [
        "title",
        *(["file", "line"] if files else []),
        "snippet",
        "why",
        "score",
        "docno",
        "text",
    ]
    found = pd.DataFrame({name: new[name] if name in new else found[name].array for name in names})
    if files and not any(
        wanted <= {*stems(text)} for text in (found["title"] + " " + found["text"]).tolist()
    ):
        nearby = index._similarities([question])[0]
        if nearby < index._unrelated:
            found.attrs["weak"] = warn_of_no_answer(question, nearby, index._unrelated)
    return found


def _around(graph: DocumentGraph, passages: list[str]) -> list[str]:
    """The text of each passage between those of the passages before and after it in its document."""
    numbers = np.searchsorted(graph.passage_nodes, graph.nodes_of(passages))[:, None] + [-1, 0, 1]
    nodes = graph.passage_nodes[numbers.clip(0, len(graph.passage_nodes) - 1)]  # (passages, 3)
    nodes = np.where(graph.document[nodes] == graph.document[nodes[:, [1]]], nodes, nodes[:, [1]])
    texts = graph.texts(nodes.ravel())
    return [" ".join(texts[start : start + 3]) for start in range(0, len(texts), 3)]


def _reasons(
    index: StoredIndex,
    found: pd.DataFrame,
    wanted: set[str],
    vector: np.ndarray,
    names: list[str],
    shares: np.ndarray,
) -> list[str]:
    """A text per result: the parts that add up to its score, and the words of the question that its titles have."""
    ids, vectors, _ = index._contextual.files.payload()
    similarities = vectors[numbers_of(ids, found["docno"].tolist())] @ vector
    reasons = []
    for title, share, similar in zip(
        found["title"], shares.tolist(), similarities.tolist(), strict=True
    ):
        parts = zip(names, share, strict=True)
        shown = [
            f"{name} {value:.2f}"
            for name, value in parts
            if value >= SHOWN or name in ("words", "meaning")
        ]
        reason = f"{' + '.join(shown)}; similarity {similar:.2f}"
        shared = [word for word in dict.fromkeys(title.split()) if wanted.intersection(stems(word))]
        if shared:
            reason += f"; title has {', '.join(word.strip('.,:;()') for word in shared)}"
        reasons.append(reason)
    return reasons
