"""Records with the texts of neighbors, against plain loops."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_document_graph import DOCUMENTS, corpora

from pyterrier_graph import DocumentGraph, QueryPassageGraph
from pyterrier_graph.graphs import context
from pyterrier_graph.graphs.hetero_graph import HeteroGraph

TOPICS = pd.DataFrame(
    {"qid": ["q1", "q2", "q3"], "query": ["inner product", "matrix times vector", "flat arrays"]}
)
QRELS = pd.DataFrame(
    [
        ("q1", "numpy.dot%p0", 1),
        ("q2", "numpy.dot%p0", 2),
        ("q3", "numpy.vdot%p1", 1),
        ("q1", "numpy.vdot%p1", 1),
    ],
    columns=["qid", "docno", "label"],
)


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> DocumentGraph:
    return DocumentGraph(tmp_path_factory.mktemp("graph") / "graph").index(DOCUMENTS)


@pytest.fixture(scope="module")
def queries(graph, tmp_path_factory) -> QueryPassageGraph:
    return QueryPassageGraph(tmp_path_factory.mktemp("queries") / "q").build(
        TOPICS, graph, qrels=QRELS
    )


def read(graph: DocumentGraph, *arguments: Any, **options: Any) -> dict[str, dict[str, str]]:
    rows = graph.get_corpus_iter(*arguments, **options)
    return {row.pop("docno"): row for row in map(dict, rows)}


def test_passages_with_titles_and_queries(graph, queries):
    found = read(graph, context=("title", "relevant"), query_graph=queries)
    assert found == {
        "numpy.dot%p0": {"text": "dot\ninner product\nmatrix times vector\nDot product."},
        "numpy.dot%p1": {"text": "Notes\nFor 2-D arrays."},
        "numpy.dot%p2": {"text": "Notes\nSee above."},
        "numpy.vdot%p0": {"text": "vdot\nOf two vectors."},
        "numpy.vdot%p1": {"text": "vdot\ninner product\nflat arrays\nFlattens."},
    }


def test_a_query_graph_of_some_passages(graph, tmp_path):
    some = [
        "numpy.vdot%p1",
        "numpy.dot%p0",
    ]  # an index in another order, without the other passages
    queries = QueryPassageGraph(tmp_path / "q").build(TOPICS, some, qrels=QRELS)
    found = read(graph, context="relevant", query_graph=queries)
    assert found["numpy.vdot%p1"]["text"] == "inner product\nflat arrays\nFlattens."
    assert found["numpy.vdot%p0"]["text"] == "Of two vectors."


# --- against plain loops


def literal(graph: HeteroGraph, relations: list[str]) -> list[dict[str, str]]:
    def step(nodes: list[int], relation: str) -> list[int]:
        return [int(other) for node in nodes for other in graph.edges(relation)[node]]

    def reached(node: int, path: str) -> set[int]:
        nodes = [node]
        for relation in path.split("/"):
            nodes = step(nodes, relation)
        return {*nodes} - {node}

    rows = [([int(node)], graph.ids_of([node])[0]) for node in graph.passage_nodes]
    made = []
    for nodes, docno in rows:
        context = {
            path: sorted({other for node in nodes for other in reached(node, path)})
            for path in relations
        }
        moved = {other for others in context.values() for other in others}
        own = [text for node in nodes if node not in moved for text in graph.texts([node]) if text]
        texts = {
            path: [text for text in graph.texts(others) if text] for path, others in context.items()
        }
        every = [text for found in texts.values() for text in found] + own
        made.append({"docno": docno, "text": "\n".join(dict.fromkeys(every))})
    return made


PATHS = [
    "title",
    "title/title",
    "order",
    "structural_i",
    "structural/structural_i",
    "external_i",
    "internal",
]


@given(
    corpora(),
    st.lists(st.sampled_from(PATHS), min_size=1, max_size=3, unique=True),
    st.integers(1, 5),
)
def test_records_are_the_literal_ones(documents, relations, block):
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(context, "BLOCK", block):
        graph = DocumentGraph(Path(folder) / "graph").index(documents)
        assert [*graph.get_corpus_iter(context=relations)] == literal(graph, relations)
