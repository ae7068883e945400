"""Records of datasets as structured documents: miniature files, read by the classes of ir_datasets and by PyTerrier."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ir_datasets
import pandas as pd
import pyterrier as pt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ir_datasets.datasets import beir, cord19, msmarco_document, msmarco_document_v2
from ir_datasets.datasets.base import Dataset
from ir_datasets.formats import GenericDoc, TrecDocs

import pyterrier_graph as ptg
from pyterrier_graph.documents.document import NO_PARENT, StructuredDocument
from pyterrier_graph.documents.records import read_record


class Downloaded:
    """A file that is there, where ir_datasets expects one that it downloads."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def path(self, force: bool = True) -> str:
        return str(self.file)

    @contextmanager
    def stream(self) -> Iterator[Any]:
        with self.file.open("rb") as file:
            yield file


def archive(path: Path, mode: str, **files: str | bytes) -> Downloaded:
    with tarfile.open(path, mode) as tar:
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return Downloaded(path)


def written(path: Path, text: str) -> Downloaded:
    path.write_text(text, "utf-8")
    return Downloaded(path)


@pytest.fixture
def corpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The records that PyTerrier yields for documents of ir_datasets."""
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "home"))

    def records(docs: Any) -> Iterator[dict[str, Any]]:
        monkeypatch.setitem(ir_datasets.registry._registered, "miniature", Dataset(docs))
        return pt.get_dataset("irds:miniature").get_corpus_iter(verbose=False)

    return records


def outline(document: StructuredDocument, node: int | None = None) -> tuple[str, list[Any]]:
    """A document as nested pairs of titles and parts."""
    node = document.root if node is None else node
    parts = [
        outline(document, number) if part.kind == "section" else part.text
        for number, part in enumerate(document.nodes)
        if part.parent == node
    ]
    return document.nodes[node].text, parts


def outlines(records: Any, **options: Any) -> dict[str, Any]:
    return {record["docno"]: outline(read_record(record, **options)) for record in records}


# --- datasets

METADATA = """cord_uid,title,doi,abstract,publish_time,pmc_json_files,pdf_json_files
full,Masks,10.1/a,They help.,2020-05-01,masks.json,
pdf,Gloves,10.1/b,,2020-05-02,,gloves.json
bare,Soap,10.1/c,It cleans.,2020,,
"""


def cord19_docs(folder: Path) -> cord19.Cord19Docs:
    def parsed(*rows: tuple[str, str]) -> str:
        return json.dumps(
            {"body_text": [{"section": section, "text": text} for section, text in rows]}
        )

    date = folder / "extracted" / "2020-07-16"
    date.mkdir(parents=True)
    (date / "metadata.csv").write_text(METADATA)
    masks = parsed(("Intro", "One."), ("Intro", "Two."), ("Methods", "Three."), ("Intro", "Four."))
    gloves = parsed(("", "Five."), ("", "Six."), ("Results", " "))
    archive(date / "document_parses.tar.gz", "w:gz", **{"masks.json": masks, "gloves.json": gloves})
    return cord19.Cord19Docs(
        Downloaded(folder / "cord19"), folder / "extracted", date.name, include_fulltext=True
    )


def test_cord19(corpus, tmp_path: Path):
    assert outlines(corpus(cord19_docs(tmp_path))) == {
        "full": (
            "Masks",
            ["They help.", ("Intro", ["One. Two."]), ("Methods", ["Three."]), ("Intro", ["Four."])],
        ),
        "pdf": ("Gloves", ["Five. Six.", ("Results", [])]),
        "bare": ("Soap", ["It cleans."]),
    }


def test_msmarco_document(corpus, tmp_path: Path):
    body = "https://example.org\nTies\nHow to tie.\n\nA tie is long."
    text = f"<DOC>\n<DOCNO>D1</DOCNO>\n<TEXT>\n{body}\n</TEXT>\n</DOC>\n"
    docs = msmarco_document.MsMarcoTrecDocs(written(tmp_path / "docs", text))
    assert outlines(corpus(docs), passage_words=5) == {
        "D1": ("Ties", ["How to tie.", "A tie is long."])
    }


def msmarco_v2(folder: Path, *documents: tuple[str, str]) -> msmarco_document_v2.MsMarcoV2Docs:
    rows = [
        {"docid": f"D{number}", "url": "", "title": "Ties", "headings": headings, "body": body}
        for number, (headings, body) in enumerate(documents)
    ]
    lines = gzip.compress("\n".join(map(json.dumps, rows)).encode())
    return msmarco_document_v2.MsMarcoV2Docs(
        archive(folder / "docs.tar", "w", **{"docs/00.gz": lines})
    )


def test_msmarco_document_v2(corpus, tmp_path: Path):
    docs = msmarco_v2(
        tmp_path,
        (
            "Ties\nKinds\n Bow \nNot there\nEnd\n",
            "Ties\nA tie is long.\nKinds\nBow\nIt is short.\nKinds\nMore.\nEnd\n",
        ),
        ("", "One.\nTwo."),
        ("Kinds", ""),
    )
    assert outlines(corpus(docs)) == {
        "D0": (
            "Ties",
            [
                "Ties A tie is long.",
                ("Kinds", []),
                ("Bow", ["It is short. Kinds More."]),
                ("End", []),
            ],
        ),
        "D1": ("Ties", ["One. Two."]),
        "D2": ("Ties", ["Ties"]),  # found by its title
    }


@pytest.mark.parametrize(
    "kind", [GenericDoc, beir.BeirTitleDoc, beir.BeirTitleUrlDoc, beir.BeirSciDoc]
)
def test_beir(corpus, tmp_path: Path, kind: type):
    metadata = {"url": "u", "authors": [], "year": 1, "cited_by": ["2"], "references": ["3"]}
    row = {"_id": "1", "title": "Ties", "text": "A tie is long.", "metadata": metadata}
    docs = beir.BeirDocs("miniature", written(tmp_path / "corpus.jsonl", json.dumps(row)), kind)
    title = "Ties" if "title" in kind._fields else ""
    documents = [read_record(record) for record in corpus(docs)]
    assert [outline(document) for document in documents] == [(title, ["A tie is long."])]
    assert not documents[0].references


LATIMES = """<DOC>
<DOCNO> LA010189-0001 </DOCNO>
<DATE>
<P>
January 1, 1989
</P>
</DATE>
<HEADLINE>
<P>
BRIDGE &amp; ROAD;
</P>
<P>
OPENED
</P>
</HEADLINE>
<TEXT>
<P>
The bridge is open.
</P>
<P>
It took long.
</P>
</TEXT>
</DOC>
"""
FBIS = """<DOC>
<DOCNO> FBIS3-1 </DOCNO>
<HT>  "cr00000011094001" </HT>
<HEADER>
<H3> <TI>      BRIDGE OPENS </TI></H3>
</HEADER>
<TEXT>
The bridge is open.

   It took long.
</TEXT>
</DOC>
"""


@pytest.mark.parametrize("parser", ["BS4", "sax"])
def test_robust04(corpus, tmp_path: Path, parser: str):
    docs = TrecDocs(
        written(tmp_path / "docs", LATIMES + FBIS), parser=parser, namespace="miniature"
    )
    assert outlines(corpus(docs), passage_words=5) == {
        "LA010189-0001": ("BRIDGE & ROAD; OPENED", ["The bridge is open.", "It took long."]),
        "FBIS3-1": (
            "BRIDGE OPENS" if parser == "sax" else "",
            ["The bridge is open.", "It took long."],
        ),
    }


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
def test_newswire_in_bytes(encoding: str):
    markup = "<HL>Zürich</HL><TEXT>In the café.</TEXT>".encode(encoding)
    record = {"docno": "d", "marked_up_doc": markup}
    assert outline(read_record(record)) == ("Zürich", ["In the café."])


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA])
def test_missing_titles(missing: Any):
    record = {"docno": "d", "title": missing, "text": "Text."}
    assert outline(read_record(record)) == ("", ["Text."])
    record |= {"codes": missing, "nodes": missing}  # in a frame whose other rows have them
    assert outline(read_record(record)) == ("", ["Text."])


def test_function_of_ones_own(tmp_path: Path):
    rows = [("d1", "Ties", ["long", "short"]), ("d2", "Bows", [])]

    def read(row):
        return {
            "docno": row[0],
            "title": row[1],
            "sections": [(part, f"It is {part}.") for part in row[2]],
        }

    graph = ptg.DocumentGraph(tmp_path / "graph").index(map(read, rows))
    assert [row["text"] for row in graph.get_corpus_iter()] == [
        "It is long.",
        "It is short.",
        "Bows",
    ]
    assert [row["title"] for row in graph.get_corpus_iter("documents")] == ["Ties", "Bows"]
    with pytest.raises(ValueError, match="not of None"):
        ptg.DocumentGraph(tmp_path / "other").index([None])
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    "fields", [{"text": ""}, {"sections": []}, {"body": " "}, {"abstract": None}]
)
def test_documents_that_have_only_a_title(fields: dict[str, Any], tmp_path: Path):
    document = read_record({"docno": "a", "title": "Zika vaccine"} | fields)
    assert document.passages() == ["Zika vaccine"]
    graph = ptg.DocumentGraph(tmp_path / "graph").index([document])
    assert [row["docno"] for row in graph.get_corpus_iter()] == ["a%p0"]


# --- sections


@given(
    sections=st.lists(
        st.tuples(st.none() | st.text(), st.none() | st.text() | st.lists(st.none() | st.text()))
    ),
    title=st.none() | st.text() | st.just(float("nan")),
    words=st.integers(1, 5),
)
def test_sections(sections, title, words: int):
    document = read_record(
        {"docno": "d", "title": title, "sections": sections}, passage_words=words
    )
    expected = []
    for name, text in sections:
        name = (name or "").strip()
        expected += [(True, name, "")] if name else []
        paragraphs = text if isinstance(text, list) else [text]
        expected += [
            (False, word, name) for paragraph in paragraphs for word in (paragraph or "").split()
        ]
    titles = [title] * (isinstance(title, str) and bool(title.strip()))
    titles += [name for is_title, name, _ in expected if is_title]
    if all(is_title for is_title, _, _ in expected):  # they are the only passage
        expected += [(False, word, "") for word in " ".join(titles).split()]
        words = 10**9
    found = []
    for kind, text, parent in document.nodes[1:]:
        if kind == "section":
            assert parent == 0
            found.append((True, text, ""))
        else:
            assert len(text.split()) <= words
            within = document.nodes[parent].text if parent else ""
            found += [(False, word, within) for word in text.split()]
    assert found == expected
    assert document.nodes[0].parent == NO_PARENT
    assert document.title == (title if isinstance(title, str) else "")


# --- bad input


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"title": "Ties"}, "needs a non-empty string as 'docno', got None"),
        (
            {"docno": "d", "title": "Ties"},
            "'d' has no fields that .*read_record.*'docno', 'title'.*map.function",
        ),
        ({"docno": "d", "text": None}, "'d' has neither 'nodes' nor a string"),
        ({"docno": "d", "body": b"One."}, "'d': body cannot be read: .*bytes"),
        ({"docno": "d", "sections": [("Intro", "One.", 2)]}, "'d': sections cannot be read"),
    ],
)
def test_bad_records(record: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        read_record(record)
