"""Readers of files: what they find, what they leave out, and what they do with bad files."""

from __future__ import annotations

import os
import sys
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pptx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reader_files import FILES

import pyterrier_graph as ptg
from pyterrier_graph.documents.readers.page import decode
from pyterrier_graph.documents.readers.passages import Block, merge

READERS = {name: getattr(ptg, f"read_{name}") for name in FILES}
pytestmark = pytest.mark.filterwarnings("ignore:.*files were not read")


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def read(
    name: str, folder: Path, files: dict[str, str | bytes] | None = None, **options: Any
) -> tuple[dict, Any]:
    """The records by docno, and their source."""
    source = READERS[name](
        write(folder, files or FILES[name]), **{"min_words": 0, "verbose": False} | options
    )
    records = {record["docno"]: record for record in source}
    for record in records.values():
        document = ptg.read_record(record)
        assert document.title == record["title"]
        assert len(record["lines"]) == len(document.nodes)
        assert record["text"] == "\n".join(document.passages())
    return records, source


def outline(record: dict[str, Any]) -> list[tuple[int, str]]:
    """Depth and text of each node; titles of sections end in a slash."""
    depth: list[int] = []
    for _, _, parent in record["nodes"]:
        depth.append(depth[parent] + 1 if parent >= 0 else 0)
    return [
        (d, text + "/" * (kind == "section"))
        for d, (kind, text, _) in zip(depth, record["nodes"], strict=True)
    ]


def outline_of(name: str, folder: Path, content: str | bytes) -> list[tuple[int, str]]:
    """The outline of a single file."""
    records, _ = read(name, folder, {(file := next(iter(FILES[name]))): content})
    return outline(records[file])


def targets(record: dict[str, Any]) -> list[str]:
    return [target for _, _, target in record["references"]]


def links(record: dict[str, Any]) -> list[tuple[str, str]]:
    nodes = record["nodes"]
    return [(nodes[source][1], nodes[target][1]) for _, source, target in record["links"]]


def test_markdown(tmp_path: Path):
    records, source = read("markdown", tmp_path)
    a, b = records.values()
    first = "Before all headings, see two and the code."
    assert outline(a) == [
        (0, "Guide/"),
        (1, first),
        (1, "Code/"),
        (2, "x = 1 y = 2"),
        (2, "See nowhere, the web, inline picture."),
        (2, "name | value"),
        (2, "one | 1"),
        (2, "From HTML"),
        (2, "Skips a level/"),
        (3, "first"),
        (3, "second"),
        (3, "quoted"),
    ]
    assert a["lines"] == [1, 6, 8, 10, 15, 17, 19, 21, 23, 25, 26, 27]
    assert links(a) == [(first, "Code")]
    assert targets(a) == ["sub/b.md%p0", "missing.md"]
    assert outline(b)[:2] == [(0, "Other title/"), (1, "Two words/")]
    assert targets(b) == ["a.md", "a.md%p2", "a.md", "a.md"]


def test_html(tmp_path: Path):
    a, b = read("html", tmp_path)[0].values()
    texts = ("one", "two", "inner", "A | B", "1 | 2", "code more", "term", "def up")
    assert outline(a) == [
        (0, "Top/"),
        (1, "Para b and bold c."),
        (1, "Two/"),
        *((2, text) for text in texts),
    ]
    assert links(a) == [("def up", "Top")] and targets(a) == ["b.html%p0", "b.html"]
    assert outline(b) == [(0, "/"), (1, "café é anchor d")] and targets(b) == ["a.html%p7"]


def test_xhtml(tmp_path: Path):
    head = '<?xml version="1.0" encoding="latin1"?><!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Strict//EN" "x.dtd">'
    body = '<head><script src="x"/></head><body><h1>A<a id="x"/></h1><p>caf\xe9&nbsp;&alpha; <a href="#x">x</a></p>'
    page = f'{head}<html xmlns="http://www.w3.org/1999/xhtml">{body}</body></html>'
    record = read("html", tmp_path, {"a.xhtml": page.encode("latin1")})[0]["a.xhtml"]
    assert outline(record) == [(0, "A/"), (1, "café α x")]
    assert links(record) == [("café α x", "A")]


def word(body: str) -> bytes:
    """A Word file; its relation ``link`` leads to ``a.ipynb``."""
    office = "http://schemas.openxmlformats.org"
    names = f'xmlns:w="{office}/wordprocessingml/2006/main" xmlns:r="{office}/officeDocument/2006/relationships"'
    kind = f"{office}/officeDocument/2006/relationships/hyperlink"
    link = f'<Relationship Id="link" Type="{kind}" Target="a.ipynb" TargetMode="External"/>'
    relations = f'<Relationships xmlns="{office}/package/2006/relationships">{link}</Relationships>'
    out = BytesIO()
    with ZipFile(out, "w") as file:
        text = f"<w:document {names}><w:body>{body}</w:body></w:document>"
        file.writestr("word/document.xml", text)
        file.writestr("word/_rels/document.xml.rels", relations)
    return out.getvalue()


def test_office(tmp_path: Path):
    slides = pptx.Presentation()
    slide = slides.slides.add_slide(slides.slide_layouts[1])
    slide.shapes.title.text, slide.placeholders[1].text = "Plan", "First step"
    slides.save(talk := BytesIO())
    run = "<w:r><w:t>{}</w:t></w:r>"
    linked = f'<w:hyperlink r:id="link">{run.format("a note")}</w:hyperlink>'
    letter = f"<w:p>{run.format('Read')}{linked}</w:p>"
    made = {"letter.docx": word(letter), "talk.pptx": talk.getvalue()}
    records, source = read("office", tmp_path, FILES["office"] | made)
    assert not source.report["broken"]
    texts = ["See the other.", "x = 1 # no title"]
    assert outline(records["a.ipynb"]) == [(0, "Note/"), *((1, text) for text in texts)]
    assert outline(records["letter.docx"]) == [(0, "/"), (1, "Reada note")]
    assert outline(records["talk.pptx"]) == [(0, "Plan/"), (1, "First step")]
    assert targets(records["a.ipynb"]) == ["b.ipynb"]
    assert targets(records["letter.docx"]) == ["a.ipynb"]


@pytest.mark.parametrize("name", ["markdown", "html"])
def test_graph_of_a_folder(name: str, tmp_path: Path):
    suffix = next(iter(FILES[name])).rpartition(".")[2]
    folder = write(
        tmp_path / "files", FILES[name] | {f"bad.{suffix}": b"\0", f"no.{suffix}": b"  "}
    )
    source = READERS[name](folder, verbose=False)
    with pytest.warns(UserWarning, match="1 of 4 files were not read"):
        graph = ptg.DocumentGraph(tmp_path / "graph").index(source)
    report = graph.meta["source"]
    assert report == source.report
    assert {*report["broken"]} == {f"bad.{suffix}"}
    assert report["files"] == 4 and report["documents"] == len(graph) == 2
    assert len(graph.edges("external").indices) >= 1


def test_processes_read_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    files = {f"{n:02}.md": f"# T{n}\n\ntext {n} [next]({n + 1:02}.md)\n" for n in range(20)}
    files["05.md"] = "\0"
    alone, source = read("markdown", tmp_path, files)
    monkeypatch.setattr("pyterrier_graph.documents.readers.files.FEW", 1)
    together, parallel = read("markdown", tmp_path, files)
    assert [*alone.items()] == [*together.items()] and len(alone) == 19
    assert source.report == parallel.report


# --- faults that users of other readers have reported


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("<button><h2>A</h2></button>b", [(0, "A/"), (1, "b")]),
        ("<table><tr><td><h2>A</h2>b<td>c</table>", [(0, "A/"), (1, "b | c")]),
        ("<p>a<button>b</button><button>c</button>d", [(0, "/"), (1, "a b c d")]),
        ("<p>東<ruby>京<rp>(</rp><rt>きょう</rt><rp>)</rp></ruby>都", [(0, "/"), (1, "東京都")]),
        ("<p>Press <b>Ctrl</b>+<kbd>C</kbd>", [(0, "/"), (1, "Press Ctrl+C")]),
    ],
)  # fmt: skip
def test_no_text_and_no_heading_of_a_page_is_lost(
    page: str, expected: list[tuple[int, str]], tmp_path: Path
):
    assert outline_of("html", tmp_path, page) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("---\ntitle: 4.10\n---\nx", [(0, "4.10/"), (1, "x")]),
        ("---\ntitle: C#: a guide\n---\n# Intro\n\nx", [(0, "C#: a guide/"), (1, "Intro/"), (2, "x")]),
    ],
)  # fmt: skip
def test_front_matter(text: str, expected: list[tuple[int, str]], tmp_path: Path):
    assert outline_of("markdown", tmp_path, text) == expected


@pytest.mark.parametrize("name", ["markdown", "html"])
def test_a_file_that_has_only_a_title(name: str, tmp_path: Path):
    text = {"markdown": "# Zika vaccine", "html": "<title>Zika vaccine</title>"}[name]
    assert outline_of(name, tmp_path, text) == [(0, "Zika vaccine/"), (1, "Zika vaccine")]


# --- bad files


def test_links_and_hidden_files_are_left_out(tmp_path: Path):
    folder = write(
        tmp_path / "in", {"a.md": "text", "sub/b.md": "text", ".git/c.md": "text", ".d.md": "text"}
    )
    write(tmp_path, {"secret.md": "text"})
    (folder / "loop").symlink_to(folder)
    (folder / "sub" / "loop").symlink_to("..")
    (folder / "out.md").symlink_to(tmp_path / "secret.md")
    (folder / "dangling.md").symlink_to("nothing")
    os.mkfifo(folder / "pipe.md")
    source = READERS["markdown"](folder, verbose=False)
    assert [record["docno"] for record in source] == ["a.md", "sub/b.md"]


def test_a_folder_that_does_not_exist():
    with pytest.raises(FileNotFoundError, match="no folder 'nowhere'"):
        ptg.read_markdown("nowhere")


def test_duplicate_ids_and_skipped_levels(tmp_path: Path):
    page = "<h2 id=x>A</h2>one<h6 id=x>B</h6>two<h3>C</h3>three <a href='#x'>x</a><a href='#no'>n</a><h2>D</h2>four"
    record = read("html", tmp_path, {"a.html": page})[0]["a.html"]
    sections = [(1, "A/"), (2, "one"), (2, "B/"), (3, "two"), (2, "C/"), (3, "three xn")]
    assert outline(record) == [(0, "/"), *sections, (1, "D/"), (2, "four")]
    assert links(record) == [("three xn", "A")]


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "pyterrier_graph.documents.readers.office", raising=False)
    monkeypatch.setitem(sys.modules, "markitdown", None)
    hint = r"reading office needs 'markitdown': pip install 'pyterrier_graph\[office\]'"
    with pytest.raises(ImportError, match=hint):
        [*ptg.read_office(write(tmp_path, {"a.pdf": ""}), verbose=False)]


# --- encodings


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252"])
def test_encodings(encoding: str):
    for text in ("café", "Größe und Maß: Übung macht den Meister. " * 5):
        assert decode(text.encode(encoding)) == text


def test_declared_encodings(tmp_path: Path):
    assert decode("<meta charset=latin1> Zürich".encode(), "latin1").endswith("Zürich")
    assert decode(b"caf\x82", "cp850") == "café"
    for name in ("no-such-encoding", "rot13", "base64", "undefined", ""):
        assert decode(b"caf\xe9", name) == "café"
    with pytest.raises(ValueError, match="not a text"):
        decode(b"a\0b")
    mention = 'Use `<meta charset="iso-8859-1">`. Zürich.'
    assert outline_of("markdown", tmp_path, mention)[1][1].endswith("Zürich.")
    assert outline_of("html", tmp_path, b"<meta charset=cp850><p>caf\x82")[1][1] == "café"


# --- passages

words = st.text("ab.", min_size=1, max_size=30)


def block(text: str) -> Block:
    made = Block()
    made.add(text, 7)
    return made


@given(st.lists(words, min_size=1, max_size=60), st.integers(1, 20))
def test_pieces_keep_all_text(tokens: list[str], limit: int):
    pieces = [*block("\n".join(tokens)).pieces(limit)]
    assert "".join(piece.text for piece in pieces).replace(" ", "") == "".join(tokens)
    assert all(piece.words <= limit for piece in pieces)
    first = 0
    for piece in pieces:
        assert 7 <= piece.line <= 7 + first
        first += len(piece.text.split())


@given(
    st.lists(st.lists(words, min_size=1, max_size=12), max_size=12),
    st.integers(0, 8),
    st.integers(8, 20),
)
def test_merged_pieces(blocks: list[list[str]], least: int, most: int):
    pieces = [piece for tokens in blocks for piece in block(" ".join(tokens)).pieces(most)]
    merged = merge(pieces, least, most)
    assert " ".join(piece.text for piece in merged) == " ".join(piece.text for piece in pieces)
    sizes = [piece.words for piece in merged]
    assert max(sizes, default=0) <= most and sum(sizes) == sum(piece.words for piece in pieces)
    assert all(
        size >= least or size + after > most
        for size, after in zip(sizes[:-2], sizes[1:-1], strict=True)
    )
    if not least:
        assert merged == pieces


def test_text_without_spaces_is_cut(tmp_path: Path):
    records, _ = read("markdown", tmp_path, {"a.md": "漢字" * 1000}, max_words=100)
    passages = [text for _, text in outline(records["a.md"])[1:]]
    assert "".join(passages) == "漢字" * 1000 and max(map(len, passages)) == 400
