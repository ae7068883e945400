"""Explains the score of a passage: of a reranker, a dense model or its index, or a hybrid of pipelines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.documents.document import split_passage_id
from pyterrier_graph.encoders.checkpoints import tokenized
from pyterrier_graph.graph_mean.contextual_index import ContextualIndex, ContextualRetriever
from pyterrier_graph.graphs.hetero_graph import PASSAGE_TYPE, HeteroGraph
from pyterrier_graph.graphs.relations import OWN
from pyterrier_graph.html import (
    COLORS,
    NEUTRAL,
    bar,
    colors_of,
    in_words,
    marked,
    pipeline_name,
    relation,
    styled,
)
from pyterrier_graph.search.hybrid import Hybrid
from pyterrier_graph.search.snippets import check_question

SHOWN = 3  # sources of one relation
LENGTH = 400  # characters of a neighbor's text; the passage itself is shown in full
NO_TEXT = "(no text)"
KEY = (
    "The stronger the color of a word, the more it adds; words that are underlined with dots take from the score. "
    "Punctuation and special tokens are in the numbers of the parts, and not marked."
)

Spans = list[tuple[int, int, float]]  # start and end of a word, and what it adds

WORD = re.compile(r"\w+")
NOTHING = 0.0005  # is shown as +0.000
CLOSE = 0.02  # difference of similarities up to which token vectors explain a vector: encoding may be in half precision
EXPLAINED = (
    "GraphMean, GNNEncoder, their index or its retriever, GraphMaxSim, HGATReranker, or Hybrid"
)
COMMON = ["relation", "source", "text", "weight", "score"]
SUMS = (
    "The vectors of this index are sums: to see their parts, explain the GraphMean or GNNEncoder."
)
WORDS = "The part of a word is computed from the encoder's own token vectors and scaled to the part of its text."
NORMALIZED = "The scores of each pipeline are normalized for the query before they are added up."


def explain(
    pipeline: pt.Transformer, query: str, docno: str, *, graph: HeteroGraph | None = None
) -> Explanation:
    """Shows the parts of a passage's score: its text, titles and neighbors, and what each of their words adds.

    ::

        ptg.explain(bm25 >> graph.passages() >> hgat, "how are ties broken", "numpy.argsort%p2")

    Args:
        pipeline: GraphMean, GNNEncoder, their index or its retriever, GraphMaxSim, HGATReranker, Hybrid, or a pipeline;
            of several in a pipeline, the last one is explained.
        query: The query.
        docno: A passage, or a document: its best passage is explained.
        graph: The graph of a reranker that has none, as behind ``CandidateGraph``.

    Returns:
        An :class:`~pyterrier_graph.show.explain.Explanation`, which notebooks show and ``print`` writes as text,
        with ``frame``, ``score`` and ``html``.

    Raises:
        KeyError: If the passage is not in the graph, or not among the results of a hybrid.
        ValueError: If nothing in the pipeline can be explained, or the query is empty.
    """
    check_question(query)
    return _explanation(explainable(pipeline), query, docno, graph)


def explainable(pipeline: Any) -> Any:
    """The last model of a pipeline that can be explained; ValueError if there is none."""
    found = [*_explainable(pipeline)]
    if not found:
        name = pipeline_name(pipeline)
        raise ValueError(
            f"{name} cannot be explained: give {EXPLAINED}, or a pipeline with one of them"
        )
    return found[-1]


def _explainable(pipeline: Any) -> Iterator[Any]:
    """The parts of a pipeline that can be explained, in their order; a retriever is its index."""
    if isinstance(pipeline, ContextualRetriever):
        yield pipeline.index
    elif hasattr(pipeline, "explain"):
        yield pipeline
    elif isinstance(pipeline, pt.Transformer):
        for inner in pt.inspect.subtransformers(pipeline).values():
            for one in inner if isinstance(inner, list) else [inner]:
                yield from _explainable(one)


def _explanation(model: Any, query: str, docno: str, graph: HeteroGraph | None) -> Explanation:
    if isinstance(model, Hybrid):
        return _hybrid(model, query, docno, graph)
    graph = graph if graph is not None else model.graph
    if graph is None:
        raise ValueError(
            f"{pipeline_name(model)} has no graph, which has the texts: explain(..., graph=graph)"
        )
    frame, node = _passage(model, query, docno, graph)
    about: dict[str, Any] = {
        "query": query,
        "docno": graph.ids_of(node)[0],
        "model": pipeline_name(model),
    }
    about["titles"] = graph.titles(node)[0]
    if "position" in frame.columns:
        frame, words = _by_token(model, frame, graph)
        return Explanation(frame=frame, words=words, **about)
    summed = isinstance(model, ContextualIndex) and len(frame) == 1
    words = _words_of_vectors(frame, model.encoder, query)
    return Explanation(frame=frame, words=words, notes=(WORDS, *[SUMS] * summed), **about)


def _passage(
    model: Any, query: str, docno: str, graph: HeteroGraph
) -> tuple[pd.DataFrame, np.ndarray]:
    """The parts of a passage's score and its node; of a document, the passage with the highest score."""
    nodes = graph.find([docno])
    if nodes[0] < 0 or graph.node_type[nodes[0]] != PASSAGE_TYPE:
        try:
            _, nodes = graph.passages_of_documents(graph.document_of([docno]))
        except KeyError as error:
            raise KeyError(f"{docno!r} is neither a passage nor a document of {graph!r}") from error
    if not len(nodes):
        raise KeyError(f"the document {docno!r} has no passage")
    frames = [model.explain(query, name, graph=graph) for name in graph.ids_of(nodes)]
    best = int(np.argmax([frame["score"].sum() for frame in frames]))
    return (frames[best] if "position" in frames[best].columns else _ordered(frames[best])), nodes[
        best : best + 1
    ]


def _ordered(frame: pd.DataFrame) -> pd.DataFrame:
    """The passage itself comes first, then the relations and sources that change the score most."""
    part = frame.groupby("relation")["score"].transform("sum").abs()
    keys = pd.DataFrame(
        {"own": frame["relation"] != OWN, "part": -part, "score": -frame["score"].abs()}
    )
    order = keys.assign(relation=frame["relation"]).sort_values(
        ["own", "part", "relation", "score"], kind="stable"
    )
    return frame.loc[order.index, COMMON].reset_index(drop=True)


def _by_token(
    model: Any, tokens: pd.DataFrame, graph: HeteroGraph
) -> tuple[pd.DataFrame, dict[int, Spans]]:
    """Sums up the parts of tokens by text, and by the words of a text."""
    frame = tokens.groupby(["relation", "source"], sort=False, as_index=False)["score"].sum()
    nodes = graph.nodes_of(frame["source"].tolist())
    frame["text"], frame["weight"] = graph.texts(nodes, titles=model._with_titles), np.nan
    frame = _ordered(frame)
    words = {}
    for row in frame.groupby("relation", sort=False).head(SHOWN).itertuples():
        spans = token_spans(
            model.encoder.network.tokenizer, row.text, model.encoder.token_ids(row.text).tolist()
        )
        own = tokens[(tokens["relation"] == row.relation) & (tokens["source"] == row.source)]
        own = own[own["position"] >= 0]
        words[row.Index] = word_parts(row.text, [spans[at] for at in own["position"]], own["score"])
    return frame, words


def _words_of_vectors(frame: pd.DataFrame, encoder: Any, query: str) -> dict[int, Spans]:
    """The words of each text with their parts of its score, for a model with a vector per passage."""
    vector = np.asarray(encoder.encode_queries([query])[0], dtype=np.float32)
    scaled = {}
    for row in frame.groupby("relation", sort=False).head(SHOWN).itertuples():
        words = similarity_words(encoder, row.text, vector)
        total = sum(number for *_, number in words)
        scale = row.score / total if total * row.score > 0 else 0.0
        scaled[row.Index] = [(start, end, number * scale) for start, end, number in words]
    return scaled


def _hybrid(model: Hybrid, query: str, docno: str, graph: HeteroGraph | None) -> Explanation:
    """A part per pipeline, and the explanation of each pipeline that has one."""
    try:
        frame = model.explain(query, docno)
    except KeyError:
        frame = model.explain(query, split_passage_id(docno)[0])
    inner = []
    for pipeline in model.pipelines:
        try:
            inner.append(_explanation(explainable(pipeline), query, docno, graph))
        except (KeyError, ValueError):
            continue
    found = frame["source"].iloc[0]
    return Explanation(
        query, found, "Hybrid", frame[COMMON], notes=(NORMALIZED,), inner=tuple(inner)
    )


def token_spans(tokenizer: Any, text: str, ids: Iterable[int]) -> list[tuple[int, int] | None]:
    """The characters of each word piece; None for special ones, and where the tokenizer cannot tell."""
    if not text.strip() or not tokenizer.is_fast:
        return [None for _ in ids]
    encoded = tokenized(
        tokenizer, text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
    )
    spans, place = encoded["offset_mapping"], 0
    found: list[tuple[int, int] | None] = []
    for number in ids:
        try:
            at = encoded["input_ids"].index(number, place)
        except ValueError:  # a special token, or one of a prompt
            found.append(None)
            continue
        found.append((int(spans[at][0]), int(spans[at][1])))
        place = at + 1
    return found


def word_parts(text: str, spans: Sequence[tuple[int, int] | None], parts: Iterable[float]) -> Spans:
    """Sums up what tokens add, by word; punctuation and special tokens belong to no word."""
    words = [match.span() for match in WORD.finditer(text)]
    starts = np.array([start for start, _ in words])
    sums = np.zeros(len(words))
    for span, part in zip(spans, parts, strict=True):
        if span is not None and len(words):
            at = int(np.searchsorted(starts, span[0], side="right")) - 1
            if at >= 0 and span[0] < words[at][1]:
                sums[at] += part
    return [
        (start, end, float(part)) for (start, end), part in zip(words, sums, strict=True) if part
    ]


def similarity_words(encoder: Any, text: str, query: np.ndarray) -> Spans:
    """Each word's share of the inner product of a text's and a query's vectors; empty unless tokens are averaged."""
    network: Any = getattr(encoder, "network", None)
    if not text.strip() or not hasattr(network, "encode_document"):
        return []
    kept = {"output_value": "token_embeddings", "show_progress_bar": False}
    tokens = np.asarray(network.encode_document([text], **kept)[0].float().cpu())
    parts = tokens @ query / len(tokens)
    exact = float(encoder.encode_docs([text])[0] @ query)
    scaled = parts / np.linalg.norm(tokens.mean(0))
    for one in (scaled, parts):
        if abs(one.sum() - exact) < CLOSE:
            cut = {"truncation": True, "max_length": network.max_seq_length}
            ids = tokenized(network.tokenizer, text, **cut)["input_ids"]
            return (
                word_parts(text, token_spans(network.tokenizer, text, ids), one)
                if len(ids) == len(one)
                else []
            )
    return []


@dataclass(frozen=True, repr=False, eq=False)
class Explanation:
    """The parts of a passage's score, which :func:`~pyterrier_graph.explain` returns; a notebook shows it.

    Attributes:
        docno: The passage, or a document among the results of a Hybrid.
        frame: A row per source, grouped by relation: ``relation`` (``'own'`` for the passage itself, the name of a
            Hybrid's pipeline), ``source`` (id of the node or query), ``text``, ``weight``, and ``score``, the part of
            the score that comes from the source.
        words: By row of the frame: the words of its text and their parts of the score.
        inner: Explanations of the pipelines that a Hybrid combines.
    """

    query: str
    docno: str
    model: str
    frame: pd.DataFrame
    words: Mapping[int, Spans] = field(default_factory=dict)
    titles: str = ""
    notes: tuple[str, ...] = ()
    inner: tuple[Explanation, ...] = ()

    @property
    def score(self) -> float:
        """The sum of the parts."""
        return float(self.frame["score"].sum())

    @property
    def html(self) -> str:
        """The explanation as HTML, which needs no network and no script."""
        return styled(self._html())

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        lines = [f"{self.query} → {self.docno}: {self.score:.3f} ({self.model})"]
        lines += [f"  {self.titles}"] * bool(self.titles)
        parts, nothing = self._parts()
        for name, part, rows in parts:
            lines.append(f"  {part:+.3f}  {in_words(name)}")
            for row in rows[:SHOWN].itertuples():
                strongest = sorted(self.words.get(row.Index, []), key=lambda word: -abs(word[2]))[
                    :5
                ]
                words = ", ".join(dict.fromkeys(row.text[start:end] for start, end, _ in strongest))
                if text := " ".join(row.text.split()):
                    lines.append(
                        f"          {text[:100]}{'…' * (len(text) > 100)}{f' [{words}]' if words else ''}"
                    )
        lines += [f"  {0:+.3f}  {', '.join(map(in_words, nothing))}"] * bool(nothing)
        return "\n".join([*lines, *(str(one) for one in self.inner)])

    def _parts(self) -> tuple[list[tuple[str, float, pd.DataFrame]], list[str]]:
        """Each relation, its part of the score, and its sources; and the relations that add nothing."""
        parts, nothing = [], []
        for name, rows in self.frame.groupby("relation", sort=False):
            if name != OWN and rows["score"].abs().sum() < NOTHING:
                nothing.append(str(name))
            else:
                parts.append((str(name), float(rows["score"].sum()), rows))
        return parts, nothing

    def _html(self) -> str:
        parts, nothing = self._parts()
        largest = max((abs(part) for _, part, _ in parts), default=0.0)
        strongest = max(
            (abs(number) for words in self.words.values() for *_, number in words), default=0.0
        )
        colors = colors_of(name for name, _, _ in parts if name != OWN)
        blocks = []
        for name, part, rows in parts:
            color = colors.get(name, NEUTRAL)
            texts = "".join(self._source(row, strongest) for row in rows[:SHOWN].itertuples())
            more = (
                f'<div class="quiet">and {len(rows) - SHOWN} more</div>'
                if len(rows) > SHOWN
                else ""
            )
            head = f"<div>{bar(part, largest)} {relation(name, color)}</div>"
            blocks.append(
                f'<div class="block" style="border-color: {color}">{head}{texts}{more}</div>'
            )
        if nothing:
            names = ", ".join(map(relation, nothing))
            blocks.append(f'<div class="block">{bar(0, largest)} {names}</div>')
        keys = [KEY] * bool(strongest)
        notes = "".join(f'<div class="quiet">{escape(note)}</div>' for note in (*keys, *self.notes))
        return (
            f'<div class="title">{escape(self.query)} → {escape(self.docno)}</div>'
            f"<div>{escape(self.model)}: {self.score:.3f}</div>"
            f'<div class="quiet">{escape(self.titles)}</div>{"".join(blocks)}{notes}'
            + "".join(
                f'<div class="block" style="border-color: {COLORS[1]}">{one._html()}</div>'
                for one in self.inner
            )
        )

    def _source(self, row: Any, scale: float) -> str:
        end = len(row.text) if row.relation == OWN else LENGTH
        words = [word for word in self.words.get(row.Index, []) if word[1] <= end]
        drawn = marked(row.text[:end], words, scale) + "…" * (end < len(row.text))
        return f'<div title="{escape(row.source)}">{drawn or NO_TEXT * (row.relation == OWN)}</div>'
