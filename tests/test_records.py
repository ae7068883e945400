"""Records of datasets as structured documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ir_datasets.datasets.beir import BeirSciDoc, BeirTitleDoc
from ir_datasets.datasets.cord19 import Cord19Doc
from ir_datasets.datasets.msmarco_document import MsMarcoDocument
from ir_datasets.formats import GenericDoc

import pyterrier_graph as ptg
from pyterrier_graph.documents.document import NO_PARENT, StructuredDocument
from pyterrier_graph.documents.records import read_record


def outline(document: StructuredDocument, node: int = 0) -> tuple[str, list[Any]]:
    """A document as nested pairs of titles and texts."""
    children = [
        outline(document, number) if child.kind == "section" else child.text
        for number, child in enumerate(document.nodes)
        if child.parent == node
    ]
    return document.nodes[node].text, children


# --- datasets


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (Cord19Doc("d", "Soap", "10.1/a", "2020-05-01", "It cleans."), ("Soap", ["It cleans."])),
        (MsMarcoDocument("d", "u", "Ties", "How.\n\nIt is long."), ("Ties", ["How. It is long."])),
        (GenericDoc("d", "A tie."), ("", ["A tie."])),
        (BeirTitleDoc("d", "A tie.", "Ties"), ("Ties", ["A tie."])),
        (BeirSciDoc("d", "A tie.", "Ties", [], 1, ["2"], ["3"]), ("Ties", ["A tie."])),
    ],
)
def test_documents_of_ir_datasets(document: Any, expected: Any):
    read = read_record({"docno": document.doc_id, **document._asdict()})
    assert outline(read) == expected and not read.references


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA])
def test_missing_titles(missing: Any):
    record = {"docno": "d", "title": missing, "text": "Text."}
    assert outline(read_record(record)) == ("", ["Text."])


@pytest.mark.parametrize(
    "fields", [{"text": ""}, {"sections": []}, {"body": " "}, {"abstract": ""}]
)
def test_documents_that_have_only_a_title(fields: dict[str, Any], tmp_path: Path):
    document = read_record({"docno": "a", "title": "Zika vaccine"} | fields)
    assert document.passages() == ["Zika vaccine"]
    graph = ptg.DocumentGraph(tmp_path / "graph").index([document])
    assert [row["docno"] for row in graph.get_corpus_iter()] == ["a%p0"]


# --- sections


@given(
    sections=st.lists(st.tuples(st.none() | st.text(), st.text() | st.lists(st.text()))),
    title=st.none() | st.text() | st.just(float("nan")),
    words=st.integers(1, 5),
)
def test_sections(sections, title, words: int):
    document = read_record(
        {"docno": "d", "title": title, "sections": sections}, passage_words=words
    )
    expected = []
    for name, text in sections:
        name = name or ""
        expected += [(True, name, "")] if name else []
        paragraphs = text if isinstance(text, list) else [text]
        expected += [(False, word, name) for paragraph in paragraphs for word in paragraph.split()]
    titles = [title] * isinstance(title, str)
    titles += [name for is_title, name, _ in expected if is_title]
    if all(is_title for is_title, _, _ in expected):  # they are the only passage
        expected += [(False, word, "") for word in " ".join(titles).split()]
        words = 10**9
    read = []
    for kind, text, parent in document.nodes[1:]:
        if kind == "section":
            assert parent == 0
            read.append((True, text, ""))
        else:
            assert len(text.split()) <= words
            within = document.nodes[parent].text if parent else ""
            read += [(False, word, within) for word in text.split()]
    assert read == expected
    assert document.nodes[0].parent == NO_PARENT
    assert document.title == (title if isinstance(title, str) else "")


# --- bad input


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"title": "Ties"}, "must be a dictionary with 'docno', got .*Ties"),
        ({"docno": 7, "text": "x"}, "document 7: .*valid string"),
        (
            {"docno": "d", "title": "Ties"},
            "'d': no field that .*read_record.*'docno', 'title'.*map.function",
        ),
        ({"docno": "d", "text": None}, "'d': .*must be an iterable"),
        ({"docno": "d", "body": b"One."}, "'d': .*expected str"),
        ({"docno": "d", "sections": [("Intro", "One.", 2)]}, "'d': too many values"),
    ],
)
def test_bad_records(record: dict[str, Any], message: str):
    with pytest.raises(ValueError, match="(?s)" + message):
        read_record(record)


def test_a_frame_is_a_corpus_and_its_documents_may_be_numbers(tmp_path: Path) -> None:
    corpus = pd.DataFrame({"docno": ["a", "b"], "text": ["How.", "It is long."], "page": [7, 8]})
    graph = ptg.DocumentGraph(tmp_path / "graph", verbose=False).index(corpus, document="page")
    assert [*graph.docnos] == ["7", "8"]
    assert [record["docno"] for record in graph.get_corpus_iter()] == ["a", "b"]
