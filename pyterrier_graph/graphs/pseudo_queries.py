"""Training queries and judgments from the structure of documents, for corpora without judgments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd

from pyterrier_graph.checks import check_choice, check_count
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.hetero_graph import (
    PASSAGE_TYPE,
    SECTION_TYPE,
    TITLE_SEPARATOR,
    HeteroGraph,
)
from pyterrier_graph.graphs.relations import TITLE, inverse

KINDS = ("title", "question", "sentence")
WORDS = (5, 40)  # of a sentence that becomes a query

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


def pseudo_queries(
    graph: HeteroGraph, kinds: Sequence[str] | str, count: int, seed: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The frames of :meth:`DocumentGraph.pseudo_queries`. Memory holds the titles, and the texts that are drawn."""
    kinds = [kinds] if isinstance(kinds, str) else [*dict.fromkeys(kinds)]
    for kind in kinds:
        check_choice("kinds", kind, KINDS)
    check_count("count", count)
    check_count("seed", seed, 0)
    random = np.random.default_rng(seed)
    made = [
        _sentences if kind == "sentence" else partial(_headings, questions=kind == "question")
        for kind in kinds
    ]
    frames = [
        make(graph, count, random).assign(kind=kind) for kind, make in zip(kinds, made, strict=True)
    ]
    rows = pd.concat(frames, ignore_index=True)
    if not len(rows):
        named = " or ".join(map(repr, kinds))
        needed = f"titles need passages below them, sentences a section with several passages; {count} were drawn"
        raise ValueError(f"{graph!r} has nothing to make queries of kind {named} from: {needed}")
    rows["source"] = graph.ids_of(rows["node"].to_numpy(np.int64))
    rows["docno"] = graph.ids_of(rows["passage"].to_numpy(np.int64))
    first = rows.drop_duplicates("query")  # equal titles of several sections are one query
    qid = (first["kind"] + ":" + first["source"]).set_axis(first["query"])
    rows["qid"] = qid.loc[rows["query"]].to_numpy()
    topics = rows.drop_duplicates("qid")[["qid", "query", "kind", "source"]]
    qrels = rows[["qid", "docno"]].drop_duplicates().assign(label=1)
    return topics.reset_index(drop=True), qrels.reset_index(drop=True)


def _rows(
    graph: HeteroGraph,
    queries: Sequence[str],
    stated: Sequence[str],
    nodes: np.ndarray,
    answers: CSR,
) -> pd.DataFrame:
    """Rows ``query, node, passage``: the answers to each query without a sentence or line equal to ``stated``."""
    texts = graph.texts(answers.indices)
    rows = [
        row
        for row, (query, text) in enumerate(zip(answers.row_index.tolist(), texts, strict=True))
        if text.strip() and _normal(stated[query]) not in map(_normal, sentences(text))
    ]
    query = answers.row_index[rows]
    names = [queries[number] for number in query.tolist()]
    return pd.DataFrame({"query": names, "node": nodes[query], "passage": answers.indices[rows]})


def sentences(text: str) -> list[str]:
    """The sentences and lines of a text."""
    return [sentence for sentence in map(str.strip, _SENTENCE_END.split(text)) if sentence]


def _normal(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".:?!")


def _headings(
    graph: HeteroGraph, count: int, random: np.random.Generator, *, questions: bool
) -> pd.DataFrame:
    """Titles, with those above them, or titles that are questions; relevant are the passages right below."""
    sections = np.flatnonzero(graph.node_type == SECTION_TYPE)
    texts = graph.texts(sections)
    chosen = [
        row
        for row, text in enumerate(texts)
        if text.strip() and text.rstrip().endswith("?") == questions
    ]
    row, below = graph.neighbors(sections[chosen], inverse(TITLE))
    passage = graph.node_type[below] == PASSAGE_TYPE
    row, below = row[passage], below[passage]
    drawn = _drawn(np.unique(row), count, random)
    nodes, stated = sections[chosen][drawn], [texts[chosen[position]].strip() for position in drawn]
    queries = stated
    if not questions:
        above = (titles.replace(TITLE_SEPARATOR, " ") for titles in graph.titles(nodes))
        queries = [
            " ".join(f"{titles} {own}".split()) for titles, own in zip(above, stated, strict=True)
        ]
    of_drawn = np.isin(row, drawn)
    query = np.searchsorted(drawn, row[of_drawn])
    answers = CSR.group(query, below[of_drawn], len(drawn))
    return _rows(graph, queries, stated, nodes, answers)


def _sentences(graph: HeteroGraph, count: int, random: np.random.Generator) -> pd.DataFrame:
    """A sentence of a passage per section; relevant are the other passages of the section."""
    passages = np.asarray(graph.passage_nodes)
    parents, section = np.unique(graph.parent[passages], return_inverse=True)
    sections = CSR.group(section, passages, len(parents))
    drawn = _drawn(np.flatnonzero(sections.lengths > 1), count, random)
    nodes = sections.draw(drawn, random)
    queries = []
    for text in graph.texts(nodes):
        proper = [one for one in sentences(text) if WORDS[0] <= len(one.split()) <= WORDS[1]]
        queries.append(proper[int(random.integers(len(proper)))] if proper else "")
    texts = pd.Series(queries, dtype=object)
    # a repeated sentence says nothing about its section
    usable = (~texts.duplicated(keep=False) & (texts != "")).to_numpy()
    row, passage = sections.select(drawn)
    is_answer = (passage != nodes[row]) & usable[row]
    answers = CSR.group(row[is_answer], passage[is_answer], len(drawn))
    return _rows(graph, queries, queries, nodes, answers)


def _drawn(elements: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
    """At most ``count`` elements, drawn at random, in ascending order."""
    if len(elements) <= count:
        return elements
    return np.sort(random.choice(elements, count, replace=False))
