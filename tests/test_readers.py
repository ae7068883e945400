"""Readers of files: what they find, what they leave out, and what they do with bad files."""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pptx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pptx.opc.constants import RELATIONSHIP_TYPE
from reader_files import FILES, paragraph, pdf, word

import pyterrier_graph as ptg
from pyterrier_graph.documents.document import split_text
from pyterrier_graph.documents.readers import files
from pyterrier_graph.documents.readers.files import decode
from pyterrier_graph.documents.readers.outline import ReaderError, Text, merge

READERS = {name: getattr(ptg, f"read_{name}") for name in FILES}
all_readers = pytest.mark.parametrize("name", READERS)


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
        document = ptg.StructuredDocument.from_record(record)
        assert document.root == 0 and document.title == record["title"]
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


def targets(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Text of the source, and target of each reference."""
    return [(record["nodes"][source][1], target) for _, source, target in record["references"]]


def links(record: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (record["nodes"][source][1], record["nodes"][target][1])
        for _, source, target in record["links"]
    ]


def test_markdown(tmp_path: Path):
    records, source = read("markdown", tmp_path)
    assert [*records] == ["a.md", "sub/b.md"]
    a, b = records.values()
    first = "Before all headings, see two and the code."
    see = "See nowhere, the web, inline picture."
    assert outline(a) == [
        (0, "Guide/"),
        (1, first),
        (1, "Code/"),
        (2, "x = 1 y = 2"),
        (2, see),
        (2, "name | value"),
        (2, "one | 1"),
        (2, "From HTML"),
        (2, "Skips a level/"),
        (3, "first"),
        (3, "second"),
        (3, "quoted"),
    ]
    lines = FILES["markdown"]["a.md"].split("\n")
    starts = [
        ("Before", 1),
        ("## Code", 2),
        ("```python", 3),
        ("See", 4),
        ("| name", 5),
        ("| one", 6),
        ("<div>", 7),
    ]
    assert all(lines[a["lines"][node] - 1].startswith(text) for text, node in starts)
    assert links(a) == [(first, "Code")]
    assert targets(a) == [(first, "sub/b.md%p0"), (see, "missing.md")]
    assert outline(b)[:2] == [(0, "Other title/"), (1, "Two words/")]
    assert [target for _, target in targets(b)] == ["a.md", "a.md%p2", "a.md", "a.md"]
    assert source.report["links_to_nowhere"] == ["a.md: missing.md"]


def test_html(tmp_path: Path):
    records, _ = read("html", tmp_path)
    a, b = records.values()
    assert outline(a) == [
        (0, "Top/"),
        (1, "Para b and bold c."),
        (1, "Two/"),
        *(
            (2, text)
            for text in ("one", "two", "inner", "A | B", "1 | 2", "code more", "term", "def up")
        ),
    ]
    assert links(a) == [("def up", "Top")]
    assert [target for _, target in targets(a)] == ["b.html%p0", "b.html"]
    assert outline(b) == [(0, "/"), (1, "café é anchor d")]
    assert targets(b) == [("café é anchor d", "a.html%p7")]


def test_html_without_a_main_part(tmp_path: Path):
    page = (
        "<title>T</title><header>H</header><h1>A</h1><h1>B</h1><p>x<nav>N</nav><footer>F</footer>"
    )
    page += "<p hidden>no</p><table class='x navheader'><tr><td>N</table>"
    records, _ = read("html", tmp_path, {"a.html": page, "b.html": "<main> </main><p>all"})
    assert outline(records["a.html"]) == [(0, "T/"), (1, "A/"), (1, "B/"), (2, "x")]
    assert outline(records["b.html"]) == [(0, "/"), (1, "all")]


def test_xhtml(tmp_path: Path):
    head = '<?xml version="1.0" encoding="latin1"?><!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Strict//EN" "x.dtd">'
    page = f'{head}<html xmlns="http://www.w3.org/1999/xhtml"><head><script src="x"/></head><body>%s</body></html>'
    body = '<h1>A<a id="x"/></h1><p>caf\xe9&nbsp;&alpha; <a href="#x">x</a></p>'
    files = {
        "a.xhtml": (page % body).encode("latin1"),
        "b.html": (page % body.replace("</p>", "")).encode("latin1"),
    }
    records, _ = read("html", tmp_path, files)
    for record in records.values():  # the second is not well-formed, and read as HTML
        assert outline(record) == [(0, "A/"), (1, "café α x")]
        assert links(record) == [("café α x", "A")]


def test_rst(tmp_path: Path):
    records, source = read("rst", tmp_path)
    index, other = records.values()
    text = "A paragraph with other-label, fun, sub/other, bar and Section."
    assert outline(index) == [
        (0, "Title/"),
        (1, "Section/"),
        *(
            (2, t)
            for t in (text, "argument", "Content of it.", "x = 1", "careful", "a | b", "c | d")
        ),
    ]
    lines = FILES["rst"]["index.rst"].split("\n")
    starts = [("Title", 0), ("Section", 1), ("A para", 2), (".. unk", 3), ("   Content", 4)]
    assert all(lines[index["lines"][node] - 1].startswith(text) for text, node in starts)
    assert links(index) == [(text, "Section")]
    label, document = "sub/other.rst%p0", "sub/other.rst"
    assert [t for _, t in targets(index)] == [document, document, label, document]
    assert outline(other)[:4] == [
        (0, "Other/"),
        (1, "Deep/"),
        (2, "fun(x)"),
        (2, "Does it. Back to lab, site, |undefined|."),
    ]
    assert len(outline(other)) == 4  # neither the included file nor raw HTML
    assert targets(other) == [(outline(other)[3][1], "index.rst%p0")]


def test_rst_of_other_forms(tmp_path: Path):
    text = """.. meta::
   :keywords: one, two

.. py:module:: pkg

.. py:class:: C

   .. py:method:: go()

      Goes. See [A]_, [1]_, :meth:`go`, :meth:`!stop` and ``|``.

.. image:: x.png
   :alt: A picture

.. topic:: Topic

   Inside.

| line one
| line two

.. [A] A book.
.. [1] A note.

.. highlight:: none
.. dot::
"""
    record = read("rst", tmp_path, {"a.rst": text})[0]["a.rst"]
    goes = "Goes. See A, , go, stop and |."
    texts = [
        "C",
        "go()",
        goes,
        "A picture",
        "Topic",
        "Inside.",
        "line one line two",
        "A book.",
        "A note.",
    ]
    assert [text for _, text in outline(record)[1:]] == texts
    assert {target for _, target in links(record)} >= {"A book.", "A note."}


def test_office(tmp_path: Path):
    slides = pptx.Presentation()
    for title, text in (("Plan", "First step"), ("", "No title <b>here</b>")):
        slide = slides.slides.add_slide(slides.slide_layouts[1 if title else 6])
        box = slide.placeholders[1] if title else slide.shapes.add_textbox(0, 0, 100, 100)
        box.text_frame.text = text
        if title:
            slide.shapes.title.text = title
    slides.save(tmp_path / "talk.pptx")
    cells = [
        ("markdown", "# Note\n\nSee [the guide](a.docx)."),
        ("code", "x = '```'\n# no title"),
        ("raw", "kept"),
    ]
    notebook = {
        "cells": [
            {"cell_type": kind, "source": text, "outputs": ["OUTPUT"]} for kind, text in cells
        ]
    }
    made = {"n.ipynb": json.dumps(notebook), "p.pdf": pdf("First page", "", "Third page")}
    records, source = read("office", tmp_path, FILES["office"] | made)
    assert not source.report["broken"] and not source.report["skipped"]
    assert outline(records["a.docx"]) == [(0, "Guide/"), (1, "A <b> paragraph."), (1, "the other")]
    assert targets(records["a.docx"]) == [("the other", "b.docx")] and records["a.docx"][
        "lines"
    ] == [1, 1, 1]
    assert outline(records["n.ipynb"]) == [
        (0, "Note/"),
        (1, "See the guide."),
        (1, "x = '```' # no title"),
        (1, "kept"),
    ]
    assert targets(records["n.ipynb"]) == [("See the guide.", "a.docx")] and records["n.ipynb"][
        "lines"
    ] == [1, 1, 2, 3]
    pages = [(0, "p/"), (1, "Page 1/"), (2, "First page"), (1, "Page 3/"), (2, "Third page")]
    assert outline(records["p.pdf"]) == pages and records["p.pdf"]["lines"] == [1, 1, 1, 3, 3]
    shown = [
        (0, "talk/"),
        (1, "Plan/"),
        (2, "First step"),
        (1, "Slide 2/"),
        (2, "No title <b>here</b>"),
    ]
    assert outline(records["talk.pptx"]) == shown and records["talk.pptx"]["lines"] == [
        1,
        1,
        1,
        2,
        2,
    ]


def test_hostile_office_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("the network is used"))
    (tmp_path / "secret.txt").write_text("SECRET")
    blip = '<a:blip xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" r:link="r1"/>'
    picture = f"<w:p><w:r><w:drawing>{blip}</w:drawing></w:r></w:p>"
    slides = pptx.Presentation()
    slide = slides.slides.add_slide(slides.slide_layouts[1])
    slide.placeholders[1].text = "kept"
    for target in ("https://example.org/x.png", (tmp_path / "secret.txt").as_uri()):
        slide.part.relate_to(target, RELATIONSHIP_TYPE.IMAGE, is_external=True)
    slides.save(tmp_path / "linked.pptx")
    monkeypatch.setattr(files, "MEMORY", 300 << 20)
    inflated = zlib.compress(bytes(500 << 20), 1)
    objects = b"1 0 obj<</Pages 2 0 R>>\nendobj\n2 0 obj<</Kids[3 0 R]/Count 1000000000>>\nendobj\n"
    objects += b"3 0 obj<</Type/Page/MediaBox[0 0 9 9]/Contents 4 0 R>>\nendobj\n4 0 obj<</Filter/FlateDecode/Length "
    end = b"\nendstream\nendobj\ntrailer\n<</Root 1 0 R>>"
    made = {
        "bomb.pdf": b"%%PDF-1.4\n%s%d>>\nstream\n%s%s" % (objects, len(inflated), inflated, end),
        "picture.ipynb": json.dumps(
            {"cells": [{"cell_type": "markdown", "source": "![kept](secret.txt)"}]}
        ),
        "bomb.docx": word(paragraph("x" * 51_000_000)),
        "picture.docx": word(paragraph("kept") + picture, "secret.txt"),
        "web.docx": word(paragraph("kept") + picture, "https://example.org/x.png"),
        "macro.ipynb": '{"cells": [{"cell_type": "code", "source": {"a": 1}}]}',
        "deep.ipynb": "[" * 100_000,
        "list.ipynb": "[]",
        "cut.pdf": pdf("text")[:200],
    }
    records, source = read("office", tmp_path, made)
    broken = source.report["broken"]
    assert "bytes, more than" in broken["bomb.docx"]
    if sys.platform == "linux":  # elsewhere memory is not limited
        assert "too large" in broken["bomb.pdf"]
    assert not any("unexpected" in reason for reason in broken.values())
    assert {"linked.pptx", "picture.docx", "picture.ipynb", "web.docx"} <= {*records}
    assert "SECRET" not in str(records)


@all_readers
def test_graph_of_a_folder(name: str, tmp_path: Path):
    suffix = next(iter(FILES[name])).rpartition(".")[2]
    folder = write(
        tmp_path / "files", FILES[name] | {f"bad.{suffix}": b"\0", f"no.{suffix}": b"  "}
    )
    source = READERS[name](folder, verbose=False)
    with pytest.warns(UserWarning, match="1 of 4 files were not read|2 of 4 files were not read"):
        graph = ptg.DocumentGraph(tmp_path / "graph").index(source)
    bad = {f"bad.{suffix}", f"no.{suffix}"}
    report = ptg.DocumentGraph(tmp_path / "graph").summary()["source"]
    assert report == source.report
    assert {*report["broken"], *report["empty"]} == bad and f"bad.{suffix}" in report["broken"]
    assert report["files"] == 4 and report["documents"] == len(graph) == 2
    assert len(graph.edges("external").indices) >= 1
    assert graph.unresolved.get("external", 0) == len(report["links_to_nowhere"])


@all_readers
def test_reads_again_and_a_list_of_files(name: str, tmp_path: Path):
    folder = write(tmp_path, FILES[name])
    source = READERS[name](folder, verbose=False)
    first = [*source]
    assert first == [*source]
    files = [folder / record["docno"] for record in first]
    assert [*READERS[name](files, verbose=False)] == first
    assert [record["docno"] for record in READERS[name](str(files[0]), verbose=False)] == [
        files[0].name
    ]


def test_processes_read_the_same(tmp_path: Path):
    files = {f"{n:02}.md": f"# T{n}\n\ntext {n} [next]({n + 1:02}.md)\n" for n in range(20)} | {
        "05.md": b"\0"
    }
    alone, source = read("markdown", tmp_path, files, workers=1)
    together, parallel = read("markdown", tmp_path, files, workers=2)
    assert [*alone.items()] == [*together.items()] and len(alone) == 19
    assert source.report == parallel.report


# --- bad files


@all_readers
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" \n",
        b"a\0b",
        bytes(range(256)),
        b"<div>" * 10000,
        b"<sec>" * 10000,
        b"> " * 10000,
        b"[" * 2000,
    ],
    ids=["empty", "blank", "NUL", "binary", "div", "sec", "quotes", "brackets"],
)
def test_bad_bytes(name: str, data: bytes, tmp_path: Path):
    suffix = next(iter(FILES[name])).rpartition(".")[2]
    records, source = read(name, tmp_path, {f"a.{suffix}": data})
    report = source.report
    assert report["files"] == 1 == len(records) + len(report["broken"]) + len(report["empty"])
    assert not any("unexpected" in reason for reason in report["broken"].values())


def test_large_files_are_not_opened(tmp_path: Path):
    file = tmp_path / "a.md"
    with open(file, "wb") as stream:
        stream.truncate(200_000_000)
    reason = read("markdown", tmp_path, {"b.md": "text"})[1].report["broken"]["a.md"]
    assert reason == "it has 200,000,000 bytes, more than 50,000,000"


def test_slow_files_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "SECONDS", 0.5)
    doubled = "\n".join(f".. |a{n}| replace:: |a{n + 1}| |a{n + 1}|" for n in range(30))
    pages = {"a.rst": f"{doubled}\n.. |a30| replace:: x\n\n|a0|", "b.rst": "x"}
    records, source = read("rst", tmp_path, pages)
    assert [*records] == ["b.rst"] and source.report["broken"] == {
        "a.rst": "not read within 0.5 seconds"
    }


def test_an_error_of_a_parser_is_one_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = READERS["markdown"](write(tmp_path, {"a.md": "x"}), verbose=False)
    monkeypatch.setattr(files, "parser", lambda name: lambda data, outline: 1 / 0)
    assert [*source] == [] and source.report["broken"] == {
        "a.md": "unexpected ZeroDivisionError: division by zero"
    }


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


@pytest.mark.skipif(os.name != "posix", reason="names are bytes on POSIX only")
def test_name_that_is_no_text(tmp_path: Path):
    (tmp_path / os.fsdecode(b"\xff.md")).write_text("text")
    _, source = read("markdown", tmp_path, {"b.md": "text"})
    assert source.report["broken"] == {
        "\N{REPLACEMENT CHARACTER}.md": "its name is not valid UTF-8"
    }
    (tmp_path / "a%p1").write_text("text")
    source = READERS["markdown"]([tmp_path / "a%p1"], verbose=False)
    assert not [*source] and source.report["broken"] == {
        "a%p1": "its name looks like the id of a passage"
    }


@pytest.mark.parametrize(
    "files, options, error, message",
    [
        (".", {"min_words": 5, "max_words": 4}, ValueError, "min_words must not exceed"),
        ("no such folder", {}, FileNotFoundError, "no file"),
        (["no such file"], {}, FileNotFoundError, "no file"),
        ([], {}, ValueError, "empty list"),
        (3, {}, TypeError, "files"),
    ],
)
def test_bad_arguments(files: Any, options: dict[str, Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        ptg.read_markdown(files, **options)


@pytest.mark.parametrize(
    "fields",
    [
        "a: &a [x]\nb: [*a, *a]",
        "[" * 5000,
        "a: 2020-99-99",
        "a: " + "9" * 9000,
        "!!python/object:os.x {}",
        "- 1",
        ":",
    ],
)
def test_bad_front_matter(fields: str, tmp_path: Path):
    records, source = read("markdown", tmp_path, {"a.md": f"---\n{fields}\n---\ntext"})
    assert outline(records["a.md"]) == [(0, "/"), (1, "text")]


def test_an_error_of_docutils(tmp_path: Path):
    records, source = read(
        "rst", tmp_path, {"a.rst": ".. |a| replace:: |b| |b|\n.. |b| replace:: |c| |c|\n\n|a|"}
    )
    assert not records and source.report["broken"] == {
        "a.rst": "docutils cannot read it: KeyError: 'c'"
    }


def test_duplicate_ids_and_skipped_levels(tmp_path: Path):
    page = "<h2 id=x>A</h2>one<h6 id=x>B</h6>two<h3>C</h3>three <a href='#x'>x</a><a href='#no'>n</a><h2>D</h2>four"
    records, source = read("html", tmp_path, {"a.html": page})
    a = records["a.html"]
    text = [
        (0, "/"),
        (1, "A/"),
        (2, "one"),
        (2, "B/"),
        (3, "two"),
        (2, "C/"),
        (3, "three xn"),
        (1, "D/"),
        (2, "four"),
    ]
    assert outline(a) == text and links(a) == [("three xn", "A")]


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "pyterrier_graph.documents.readers.rst", raising=False)
    monkeypatch.setitem(sys.modules, "docutils", None)
    with pytest.raises(
        ImportError, match=r"reading rst needs 'docutils': pip install 'pyterrier_graph\[files\]'"
    ):
        ptg.read_rst(tmp_path)


@pytest.mark.parametrize(
    "text, lines",
    [
        ("one\n\n- two\n- three\n\n  four\n", [1, 3, 4, 6]),
        ("<div>\n<p>one</p>\n<p>two</p>\n</div>\n\nthree\n", [2, 3, 6]),
        ("> one\n>\n> ```\n> two\n> ```\n\nthree <title> four\n", [1, 3, 7]),
        ("\n<p data-pyterrier-graph-line='x'>one\n", [2]),
    ],
)
def test_lines_of_markdown(text: str, lines: list[int], tmp_path: Path):
    records, _ = read("markdown", tmp_path, {"a.md": text})
    assert records["a.md"]["lines"][1:] == lines


# --- encodings


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252", "cp1251"])
def test_encodings(encoding: str):
    text = "Größe und Maß: Übung macht den Meister, sagt man überall dort, wo es schön ist. " * 5
    if encoding == "cp1251":
        text = "Съешь же ещё этих мягких французских булок, да выпей чаю. " * 5
    assert decode(text.encode(encoding)) == text
    assert decode(text.encode(encoding), encoding) == text


def test_encodings_that_are_declared():
    assert decode(b"<meta charset=cp850>caf\x82").endswith("café")
    assert decode(b"<meta charset=latin1>\x93caf\xe9\x94").endswith("“café”")  # as browsers read it
    assert decode(b"caf\x82", "cp850") == "café"
    for name in ("no-such-encoding", "rot13", "base64", "undefined"):
        assert decode(f"<meta charset={name}>café".encode()).endswith("café")
    assert decode(b"") == ""
    with pytest.raises(ReaderError, match="not a text"):
        decode(b"a\0b")


# --- passages

words = st.text("ab.", min_size=1, max_size=30)


@given(st.lists(words, min_size=1, max_size=60), st.integers(1, 20))
def test_pieces_keep_all_text(tokens: list[str], limit: int):
    text = Text(7)
    text.add("\n".join(tokens))
    pieces = [*text.pieces(limit)]
    assert "".join(piece.text for piece in pieces).replace(" ", "") == "".join(tokens)
    assert all(piece.size <= max(limit, 5) for piece in pieces)
    first = 0
    for piece in pieces:
        assert piece.line <= 7 + first
        first += len(piece.text.split())


@given(st.lists(words, min_size=1, max_size=40), st.data())
def test_marks_are_in_the_piece_of_their_word(tokens: list[str], data: st.DataObject):
    tokens = [token[:20] for token in tokens]
    text = Text(1)
    marked = data.draw(st.lists(st.integers(0, len(tokens) - 1), unique=True).map(sorted))
    for place, token in enumerate(tokens):
        if place in marked:
            text.mark("anchor", str(place))
        text.add(token[: len(token) // 2])  # a word may come in parts
        text.add(token[len(token) // 2 :] + " ")
    seen, start = [], 0
    for piece in text.pieces(7):
        end = start + len(piece.text.split())
        assert all(start <= int(mark.value[0]) < end for mark in piece.marks)
        seen += [int(mark.value[0]) for mark in piece.marks]
        start = end
    assert seen == marked


@given(
    st.lists(st.lists(words, min_size=1, max_size=12), max_size=12),
    st.integers(0, 8),
    st.integers(8, 20),
)
def test_merged_pieces(blocks: list[list[str]], least: int, most: int):
    pieces = []
    for block in blocks:
        text = Text(1)
        text.add(" ".join(block))
        pieces += text.pieces(most)
    merged = merge(pieces, least, most)
    assert " ".join(piece.text for piece in merged) == " ".join(piece.text for piece in pieces)
    assert all(piece.size <= most for piece in merged)
    assert sum(piece.size for piece in merged) == sum(piece.size for piece in pieces)
    sizes = [piece.size for piece in merged]
    assert all(
        size >= least or size + after > most
        for size, after in zip(sizes[:-2], sizes[1:-1], strict=True)
    )
    if not least:
        assert merged == pieces


def test_cuts_after_a_sentence():
    text = Text(1)
    text.add("One two three four. Five six seven eight nine ten. Eleven")
    assert [piece.text for piece in text.pieces(6)] == [
        "One two three four.",
        "Five six seven eight nine ten.",
        "Eleven",
    ]


def test_text_without_spaces_is_cut(tmp_path: Path):
    records, _ = read("markdown", tmp_path, {"a.md": "漢字" * 1000}, max_words=100)
    passages = [text for _, text in outline(records["a.md"])[1:]]
    assert "".join(passages) == "漢字" * 1000 and max(map(len, passages)) == 400


def test_options_of_passages(tmp_path: Path):
    page = "\n\n".join(("three words here",) * 5)
    records, source = read("markdown", tmp_path, {"a.md": page}, min_words=6, max_words=8)
    assert [text for _, text in outline(records["a.md"])[1:]] == [
        "three words here three words here"
    ] * 2 + ["three words here"]
    assert Counter(" ".join(split_text(page)).split())["three"] == 5
    assert np.diff(records["a.md"]["lines"][1:]).tolist() == [4, 4]
