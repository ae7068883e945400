"""Explains the score of a passage by its own text and its neighbors."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd
import pyterrier as pt

from pyterrier_graph.graph_mean.contextual_index import ContextualRetriever
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.html import MINUS, PLUS, in_words

SHOWN = 10  # sources
LENGTH = 300  # characters of a source's text
NOTHING = 0.0005  # is shown as +0.000


def explain(pipeline: pt.Transformer, query: str, docno: str) -> Explanation:
    """Shows what a passage's own text and each of its neighbors contribute to its score.

    ::

        ptg.explain(bm25 >> graph.passages() >> hgat, "how are ties broken", "numpy.argsort%p2")

    Args:
        pipeline: GraphMean, GNNEncoder, their index or its retriever, GraphMaxSim, HGATReranker, or a pipeline.
            The last of several models in a pipeline is explained.
        query: The query.
        docno: A passage, or a document: its best passage is explained.

    Returns:
        An :class:`~pyterrier_graph.show.explain.Explanation`, which notebooks show and ``print`` writes as text,
        with ``frame``, ``score`` and ``html``.

    Raises:
        KeyError: If the passage is not in the graph.
        ValueError: If nothing in the pipeline can be explained.
    """
    models = [*_models(pipeline)]
    if not models:
        raise ValueError(
            f"{pipeline!r:.80} cannot be explained: give GraphMean, GNNEncoder, their "
            "index or its retriever, GraphMaxSim, HGATReranker, or a pipeline with one of them"
        )
    model = models[-1]
    frames = {}
    scores = {}
    for passage in _passages(docno, model.graph):
        frame = model.explain(query, passage)
        frames[passage] = frame
        scores[passage] = frame["score"].sum()
    best = max(scores, key=scores.__getitem__)
    frame = frames[best].sort_values("score", key=abs, ascending=False, ignore_index=True)
    return Explanation(query, best, type(model).__name__, frame)


@dataclass(frozen=True, repr=False, eq=False)
class Explanation:
    """The contributions to a passage's score, which :func:`~pyterrier_graph.explain` returns; a notebook shows it.

    Attributes:
        query: The query.
        docno: The passage.
        model: Name of the model or pipeline.
        frame: A row per source, the largest contribution first: ``relation`` (``'own'`` for the passage itself),
            ``source`` (id of the node or query), ``text``, ``weight``, and ``score``, the contribution of the source.
            An index that was opened without its model has a single row.
    """

    query: str
    docno: str
    model: str
    frame: pd.DataFrame

    @property
    def score(self) -> float:
        """The sum of the contributions."""
        return float(self.frame["score"].sum())

    @property
    def html(self) -> str:
        """The explanation as HTML, which needs no network and no script."""
        table = self._largest().style
        table.hide(axis="index").format(escape="html").format("{:+.3f}", subset="score")
        table.bar("score", align="zero", color=[MINUS, PLUS])
        title = escape(self._title())
        return f"<p>{title}</p>{table.to_html()}"

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        rows = self._largest().itertuples()
        lines = [f"  {row.score:+.3f}  {row.relation}: {row.text}" for row in rows]
        return "\n".join([self._title(), *lines])

    def _title(self) -> str:
        return f"{self.query} → {self.docno}: {self.score:.3f} ({self.model})"

    def _largest(self) -> pd.DataFrame:
        """The largest contributions: ``score, relation, text``, with the relation in words."""
        is_visible = self.frame["score"].abs() >= NOTHING
        rows = self.frame[is_visible].head(SHOWN)
        relations = rows["relation"].map(in_words)
        texts = [textwrap.shorten(text, LENGTH, placeholder=" …") for text in rows["text"]]
        return pd.DataFrame({"score": rows["score"], "relation": relations, "text": texts})


def _models(pipeline: Any) -> Iterator[Any]:
    """Models in a pipeline that can be explained, in their order; a retriever stands for its index."""
    if isinstance(pipeline, ContextualRetriever):
        yield pipeline.index
    elif hasattr(pipeline, "explain"):
        yield pipeline
    elif isinstance(pipeline, pt.Transformer):
        for inner in pt.inspect.subtransformers(pipeline).values():
            stages = inner if isinstance(inner, list) else [inner]
            for stage in stages:
                yield from _models(stage)


def _passages(docno: str, graph: HeteroGraph | None) -> list[str]:
    """The passage, or the passages of the document."""
    if graph is None or graph.find([docno])[0] >= 0:
        return [docno]
    documents = graph.document_of([docno])
    _, nodes = graph.document_passages.select(documents)
    return graph.ids_of(nodes)
