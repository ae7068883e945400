"""Explains the score of a passage by its own text and its neighbors."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.graph_mean.contextual_index import ContextualRetriever
from pyterrier_graph.graphs.hetero_graph import PASSAGE_TYPE, HeteroGraph
from pyterrier_graph.graphs.relations import OWN
from pyterrier_graph.html import bar, in_words, pipeline_name, relation, styled
from pyterrier_graph.search.snippets import check_question

SHOWN = 3  # sources of each relation
LENGTH = 400  # characters of a neighbor's text; the passage itself is shown in full
NOTHING = 0.0005  # is printed as +0.000
COLUMNS = ["relation", "source", "text", "weight", "score"]
EXPLAINED = "GraphMean, GNNEncoder, their index or its retriever, GraphMaxSim, or HGATReranker"


def explain(
    pipeline: pt.Transformer, query: str, docno: str, *, graph: HeteroGraph | None = None
) -> Explanation:
    """Shows what a passage's own text and each of its neighbors contribute to its score.

    ::

        ptg.explain(bm25 >> graph.passages() >> hgat, "how are ties broken", "numpy.argsort%p2")

    Args:
        pipeline: GraphMean, GNNEncoder, their index or its retriever, GraphMaxSim, HGATReranker, or a pipeline.
            The last of several models in a pipeline is explained.
        query: The query.
        docno: A passage, or a document: its best passage is explained.
        graph: The graph of a reranker that has none, as behind ``CandidateGraph``.

    Returns:
        An :class:`~pyterrier_graph.show.explain.Explanation`, which notebooks show and ``print`` writes as text,
        with ``frame``, ``score`` and ``html``.

    Raises:
        KeyError: If the passage is not in the graph.
        ValueError: If nothing in the pipeline can be explained, or the query is empty.
    """
    check_question(query)
    return _explanation(_last_model(pipeline), query, docno, graph)


@dataclass(frozen=True, repr=False, eq=False)
class Explanation:
    """The contributions to a passage's score, which :func:`~pyterrier_graph.explain` returns; a notebook shows it.

    Attributes:
        query: The query.
        docno: The passage.
        model: Name of the model or pipeline.
        frame: A row per source, grouped by relation: ``relation`` (``'own'`` for the passage itself), ``source`` (id
            of the node or query), ``text``, ``weight``, and ``score``, the contribution of the source. An index that
            was opened without its model has a single row.
        titles: The titles above the passage.
    """

    query: str
    docno: str
    model: str
    frame: pd.DataFrame
    titles: str = ""

    @property
    def score(self) -> float:
        """The sum of the contributions."""
        return float(self.frame["score"].sum())

    @property
    def html(self) -> str:
        """The explanation as HTML, which needs no network and no script."""
        return styled(self._html())

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        lines = [f"{self.query} → {self.docno}: {self.score:.3f} ({self.model})"]
        for name, rows in self._relations():
            lines.append(f"  {rows['score'].sum():+.3f}  {in_words(name)}")
            texts = (textwrap.shorten(text, 100, placeholder="…") for text in rows["text"][:SHOWN])
            lines += [f"          {text}" for text in texts if text]
        return "\n".join(lines)

    def _relations(self) -> list[tuple[str, pd.DataFrame]]:
        """The sources of each relation, without relations that contribute nothing."""
        return [
            (str(name), rows)
            for name, rows in self.frame.groupby("relation", sort=False)
            if name == OWN or rows["score"].abs().sum() >= NOTHING
        ]

    def _html(self) -> str:
        relations = self._relations()
        largest = max((abs(rows["score"].sum()) for _, rows in relations), default=0.0)
        blocks = [_block(name, rows, largest) for name, rows in relations]
        return (
            f'<div class="title">{escape(self.query)} → {escape(self.docno)}</div>'
            f"<div>{escape(self.model)}: {self.score:.3f}</div>"
            f'<div class="quiet">{escape(self.titles)}</div>{"".join(blocks)}'
        )


def _block(name: str, rows: pd.DataFrame, largest: float) -> str:
    """A relation's contribution as a bar, and the texts of its first sources."""
    lines = [f"<div>{bar(rows['score'].sum(), largest)} {relation(name)}</div>"]
    for row in rows[:SHOWN].itertuples():
        text = row.text
        if name != OWN and len(text) > LENGTH:
            text = f"{text[:LENGTH]}…"
        lines.append(f'<div title="{escape(row.source)}">{escape(text)}</div>')
    if len(rows) > SHOWN:
        lines.append(f'<div class="quiet">and {len(rows) - SHOWN} more</div>')
    return f'<div class="block">{"".join(lines)}</div>'


def _last_model(pipeline: Any) -> Any:
    """The last model of a pipeline that can be explained; ValueError if there is none."""
    models = [*_models(pipeline)]
    if not models:
        raise ValueError(
            f"{pipeline_name(pipeline)} cannot be explained: give {EXPLAINED}, or a pipeline with "
            "one of them"
        )
    return models[-1]


def _models(pipeline: Any) -> Iterator[Any]:
    """Models in a pipeline that can be explained, in their order; a retriever stands for its index."""
    if isinstance(pipeline, ContextualRetriever):
        yield pipeline.index
    elif hasattr(pipeline, "explain"):
        yield pipeline
    elif isinstance(pipeline, pt.Transformer):
        for inner in pt.inspect.subtransformers(pipeline).values():
            for stage in inner if isinstance(inner, list) else [inner]:
                yield from _models(stage)


def _explanation(model: Any, query: str, docno: str, graph: HeteroGraph | None) -> Explanation:
    if graph is None:
        graph = model.graph
    if graph is None:
        raise ValueError(
            f"{pipeline_name(model)} has no graph, which has the texts: explain(..., graph=graph)"
        )
    frames = {
        passage: model.explain(query, passage, graph=graph) for passage in _passages(docno, graph)
    }
    best, frame = max(frames.items(), key=lambda item: item[1]["score"].sum())
    titles = graph.titles(graph.nodes_of([best]))[0]
    return Explanation(query, best, pipeline_name(model), _ordered(frame), titles)


def _passages(docno: str, graph: HeteroGraph) -> Sequence[str]:
    """The passage, or the passages of the document."""
    node = graph.find([docno])[0]
    if node >= 0 and graph.node_type[node] == PASSAGE_TYPE:
        return [docno]
    document = graph.find_documents([docno])
    if document[0] < 0:
        raise KeyError(f"{docno!r} is neither a passage nor a document of {graph!r}")
    _, nodes = graph.document_passages.select(document)
    if not len(nodes):
        raise KeyError(f"the document {docno!r} has no passage")
    return graph.ids_of(nodes)


def _ordered(frame: pd.DataFrame) -> pd.DataFrame:
    """The passage itself comes first, then the relations and sources with the largest contributions."""
    total = frame.groupby("relation")["score"].transform("sum").abs()
    total = total.mask(frame["relation"] == OWN, np.inf)
    frame = frame.assign(total=total, size=frame["score"].abs())
    keys = ["total", "relation", "size"]
    frame = frame.sort_values(keys, ascending=[False, True, False], kind="stable")
    return frame[COLUMNS].reset_index(drop=True)
