"""Corpora of passages that keep their ids, against plain loops, and through the package."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

from pyterrier_graph.documents.document import PASSAGE, SECTION, Node, StructuredDocument
from pyterrier_graph.documents.records import read_record
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.graphs.judgments import documents_of, judged_ids

ROWS = [
    {"docno": "1", "title": "Ants", "text": "Ants live in colonies."},
    {"docno": "2", "title": "Ants", "text": "Ants carry leaves."},
    {"docno": "3", "title": "Bees", "text": "Bees dance."},
    {
        "docno": "Bees",
        "title": "1",
        "text": "A band from Sydney.",
    },  # an id that is also a title, and a title an id
]


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> DocumentGraph:
    return build(tmp_path_factory.mktemp("graph"), ROWS, document="title")


def build(folder: Path, rows: Any, **options: Any) -> DocumentGraph:
    return DocumentGraph(folder / "graph").index(rows, **options)


def test_rows_keep_their_ids(graph):
    assert graph.meta["documents"] == 3
    assert graph.ids_of(graph.passage_nodes) == ["1", "2", "3", "Bees"]
    assert graph.texts(graph.nodes_of(["Bees", "2", "Ants%s0"])) == [
        "A band from Sydney.",
        "Ants carry leaves.",
        "Ants",
    ]
    assert graph.ids_of(np.array([3, 1, 0])) == ["Bees%s0", "1", "Ants%s0"]
    assert graph.texts(graph.nodes_of(["2"]), titles=True) == ["Ants: Ants carry leaves."]
    ants = graph.nodes_of(["1", "2"])
    assert graph.neighbors(ants, "order")[1].tolist() == [ants[1]]
    assert [record["docno"] for record in graph.get_corpus_iter()] == ["1", "2", "3", "Bees"]
    assert pickle.loads(pickle.dumps(graph)).ids_of(ants) == ["1", "2"]
    assert graph.find(["Ants%p0", "7", None, "3"]).tolist() == [
        -1,
        -1,
        -1,
        int(graph.nodes_of(["3"])[0]),
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([*ROWS, ROWS[0] | {"docno": "9"}], "document 'Ants' comes twice.*the rows"),
        ([*ROWS, {"docno": "2", "title": "Cows", "text": ""}], "passage '2' comes twice"),
        ([{"docno": "1", "text": "a", "title": None}], "valid string .*None"),
    ],
)
def test_bad_rows_leave_nothing(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        build(tmp_path, rows, document="title")
    assert not any(tmp_path.iterdir())


def test_documents_with_and_without_own_ids(tmp_path):
    nodes = (Node(SECTION, "", -1), Node(PASSAGE, "a", 0))
    documents = [StructuredDocument("d", nodes, passage_ids=("x",)), StructuredDocument("e", nodes)]
    mixed = build(tmp_path / "mixed", documents)
    assert mixed.ids_of(np.arange(4)) == ["d%s0", "x", "e%s0", "e%p0"]
    taken = StructuredDocument("d", nodes, passage_ids=("e%p0",))
    with pytest.raises(ValueError, match="passage 'e%p0' comes twice"):
        build(tmp_path / "taken", [taken, documents[1]])
    with pytest.raises(ValueError, match="has 1 passages, but 2 passage_ids"):
        StructuredDocument("d", nodes, passage_ids=("x", "y"))
    record = {"docno": "d", "nodes": nodes, "passage_ids": ["x"]}
    assert read_record(record) == documents[0]


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ABC"), st.sampled_from(["", "S", "T"]), st.text("xy%p0 ", max_size=4)
        )
    )
)
def test_the_graph_has_the_rows(given_rows):
    names = {}
    rows = []
    for number, (document, title, text) in enumerate(sorted(given_rows, key=lambda row: row[0])):
        rows.append({"docno": f"{text}%p{number}", "doc": document, "title": title, "text": text})
        names.setdefault(document, []).append(rows[-1])
    if not rows:
        return
    with tempfile.TemporaryDirectory() as folder:
        graph = build(Path(folder), rows, document="doc")
        assert graph.ids_of(graph.passage_nodes) == [row["docno"] for row in rows]
        nodes = graph.nodes_of([row["docno"] for row in rows])
        assert nodes.tolist() == graph.passage_nodes.tolist()
        assert graph.texts(nodes) == [row["text"] for row in rows]
        assert graph.titles(nodes) == [row["title"] for row in rows]
        assert graph.docnos_of(graph.document[nodes]) == [row["doc"] for row in rows]
        every = np.arange(graph.num_nodes)
        assert graph.nodes_of(graph.ids_of(every)).tolist() == every.tolist()


# --- through the package


def with_own_ids(document: StructuredDocument) -> StructuredDocument:
    ids = tuple(f"{document.docno}-{'xyz'[number]}" for number, _ in enumerate(document.passages()))
    return StructuredDocument(
        document.docno, document.nodes, document.links, document.references, (), ids
    )


def own(docnos: pd.Series) -> pd.Series:
    return docnos.replace(
        {f"%p{number}$": f"-{letter}" for number, letter in enumerate("xyz")}, regex=True
    )


@pytest.fixture(scope="module")
def tiny_graph(tmp_path_factory) -> DocumentGraph:
    return build(
        tmp_path_factory.mktemp("tiny"), [with_own_ids(document) for document in tiny.documents()]
    )


def test_judgments_of_documents_and_of_passages(tiny_graph):
    run, qrels = tiny.run(), tiny.qrels()
    run, of_passages = run.assign(docno=own(run["docno"])), qrels.assign(docno=own(qrels["docno"]))
    documents = run["docno"].str.split("-").str[0]
    assert documents_of(run["docno"], tiny_graph).tolist() == documents.tolist()
    assert judged_ids(run["docno"], of_passages, tiny_graph).tolist() == run["docno"].tolist()
    of_documents = qrels.assign(docno=qrels["docno"].str.split("%").str[0]).drop_duplicates(
        ["qid", "docno"]
    )
    assert judged_ids(run["docno"], of_documents, tiny_graph).tolist() == documents.tolist()
