"""The top results of several pipelines side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import pandas as pd
import pyterrier as pt

from pyterrier_graph.documents.document import split_passage_id
from pyterrier_graph.html import COLORS, NEUTRAL, Page, marked, pipeline_name, shortened, styled
from pyterrier_graph.search.bm25 import query_terms
from pyterrier_graph.search.snippets import matching_words, snippet

WORDS = 40  # of a text
RELEVANT = "✓ relevant"


def compare(
    query: str | Mapping[str, Any] | pd.Series,
    pipelines: Sequence[pt.Transformer],
    *,
    names: Sequence[str] | None = None,
    qrels: pd.DataFrame | None = None,
    num_results: int = 5,
) -> Page:
    """Shows the best results of two or more pipelines for a query side by side; each has its ranks in the others.

    The words of the query are marked. Texts come from a column ``text``, which ``pt.text.get_text(graph)`` adds.

    Args:
        query: A text, or a row of topics: ``topics.iloc[0]``.
        pipelines: Retrievers, or pipelines that rerank: ``qid, query`` to ``qid, docno, score, rank``.
        names: A name per pipeline, as in ``pt.Experiment``.
        qrels: Judgments, ``docno, label`` and, for several queries, ``qid``. A result is marked if it, or the document
            of a passage, is judged.
        num_results: Results per pipeline.

    Returns:
        HTML for a notebook; as a text, the ranked ids.
    """
    given = {"qid": "1", "query": query} if isinstance(query, str) else query
    topic = {name: str(given[name]) for name in ("qid", "query")}
    names = (
        [str(name) for name in names]
        if names is not None
        else [pipeline_name(pipeline) for pipeline in pipelines]
    )
    if len(pipelines) < 2 or len(names) != len(pipelines):
        raise ValueError(
            f"compare needs two pipelines or more, and a name for each: got {len(pipelines)}, {names}"
        )
    labels = _labels(qrels, topic)
    found = [
        pipeline.transform(pd.DataFrame([topic])).astype({"docno": str}) for pipeline in pipelines
    ]
    runs = [
        run.sort_values("score", ascending=False, kind="stable").head(num_results) for run in found
    ]
    texts: dict[str, str] = {}
    for run in runs:
        if "text" in run.columns:
            texts = dict(zip(run["docno"], run["text"].fillna("").astype(str), strict=True)) | texts
    ranked = [run["docno"].tolist() for run in runs]
    places = {
        docno: [one.index(docno) if docno in one else None for one in ranked]
        for one in ranked
        for docno in one
    }
    terms = frozenset(query_terms(topic["query"]))
    columns = []
    for number, (name, docnos) in enumerate(zip(names, ranked, strict=True)):
        cells = []
        for place, docno in enumerate(docnos):
            ranks = zip(names, places[docno], strict=True)
            others = [
                f"{of} {rank + 1}"
                for at, (of, rank) in enumerate(ranks)
                if rank is not None and at != number
            ]
            cells.append(_cell(place, docno, texts.get(docno, ""), terms, labels, others))
        head = f'<div class="title one-line">{escape(shortened(name))}</div>'
        empty = "" if cells else "<div>no results</div>"
        columns.append(f'<div class="column">{head}{"".join(cells)}{empty}</div>')
    html = f'<div class="quiet">query: {escape(topic["query"])}</div>'
    html = styled(f'{html}<div class="wide"><div class="compared">{"".join(columns)}</div></div>')
    return Page(html, _as_text(topic, names, ranked, labels))


def _labels(qrels: pd.DataFrame | None, topic: dict[str, str]) -> dict[str, int]:
    """Judgments of the query."""
    if qrels is None:
        return {}
    if "qid" in qrels.columns:
        own = qrels[qrels["qid"].astype(str) == topic["qid"]]
        if not len(own) and qrels["qid"].nunique() > 1:
            raise ValueError(
                f"qrels have no query {topic['qid']!r}: give the query as a row of topics, with its qid"
            )
        qrels = own if len(own) else qrels
    return dict(zip(qrels["docno"].astype(str), qrels["label"].astype(int), strict=True))


def _label_of(docno: str, labels: Mapping[str, int]) -> int | None:
    """The judgment of a passage, or of its document."""
    return labels.get(docno, labels.get(split_passage_id(docno)[0]))


def _judged(label: int | None) -> str:
    return "" if label is None else f"{RELEVANT} ({label})" if label > 0 else "✗ not relevant"


def _cell(
    place: int,
    docno: str,
    text: str,
    terms: frozenset[str],
    labels: Mapping[str, int],
    others: Sequence[str],
) -> str:
    label = _label_of(docno, labels)
    color = COLORS[2] if label is not None and label > 0 else NEUTRAL
    kind, style = ("", "") if label is None else (" judged", f' style="border-left-color: {color}"')
    also = f"also {', '.join(others)}" if others else "only here"
    about = " · ".join(part for part in (_judged(label), also) if part)
    shown = snippet(text, terms, WORDS)
    spans = [(start, end, 1.0) for start, end in matching_words(shown, terms)]
    return (
        f'<div class="result{kind}"{style} title="{escape(about)}"><b>{place + 1}</b> {escape(shortened(docno, 30))} '
        f'<div class="quiet one-line">{escape(about)}</div>'
        f'<div class="text">{marked(shown, spans, 2.0, numbers=False)}</div></div>'
    )


def _as_text(
    topic: dict[str, str], names: Sequence[str], ranked: list[list[str]], labels: Mapping[str, int]
) -> str:
    lines = [f"query: {topic['query']}"]
    for name, docnos in zip(names, ranked, strict=True):
        judged = [f"{docno} {_judged(_label_of(docno, labels))}".strip() for docno in docnos]
        lines.append(
            f"{name}: "
            + ("; ".join(f"{place} {text}" for place, text in enumerate(judged, 1)) or "nothing")
        )
    return "\n".join(lines)
