"""A folder that is searched: what is read, encoded and kept, what is printed, and what is refused."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyterrier as pt
import pytest
import tiny

import pyterrier_graph as ptg
from pyterrier_graph import __main__ as program
from pyterrier_graph.documents.readers import files
from pyterrier_graph.documents.readers.files import read_file
from pyterrier_graph.search.folder import CACHE
from pyterrier_graph.search.graph_index import GraphIndex
from pyterrier_graph.search.snippets import snippet

FILES = {
    "guide.md": "# Guide\n\nalpha beta gamma\n\n## Installing\n\nkappa lambda, see [eta](sub/page.html#eta).\n",
    "sub/page.html": "<title>Page</title><h1>Page</h1><h2 id=eta>eta</h2><p>eta theta iota</p>",
    "sub/user_notes.txt": "delta epsilon\nzeta\n\nmu mu mu\n",
    "old.md": "# Old\n\nzeta eta\n",
    "article.htm": "<h1>Article</h1><h2>Body</h2><p>iota kappa</p>",
    "picture.png": "no text",
}
DOCUMENTS = {"guide.md", "sub/page.html", "sub/user_notes.txt", "old.md", "article.htm"}
LONG_AGO = 10**18


def write(folder: Path, contents: dict[str, str], changed: int = LONG_AGO) -> Path:
    for name, text in contents.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        os.utime(file, ns=(changed, changed))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "folder", FILES)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The docnos that parsers were called for."""
    calls: list[str] = []

    def counted(root: Path, path: str, *options: Any) -> Any:
        calls.append(path)
        return read_file(root, path, *options)

    monkeypatch.setattr(files, "read_file", counted)
    return calls


def opened(folder: Path, **options: Any) -> GraphIndex:
    given = {"encoder": tiny.checkpoint(positions=512), "verbose": False}
    return ptg.open_folder(folder, **given | options)


def texts_of(opened: GraphIndex) -> dict[str, str]:
    return {row["docno"]: row["text"] for row in opened.graph.get_corpus_iter()}


def changed_text(text: str) -> Callable[[Path], None]:
    return lambda folder: write(folder, {"old.md": text}, LONG_AGO + 1) and None


# --- what is read and built


def test_first_call_reads_all_kinds_of_files(folder: Path, parsed: list[str]) -> None:
    found = opened(folder)
    assert {*parsed} == DOCUMENTS and found.meta["source"]["files"] == len(DOCUMENTS)
    assert {docno.partition("%p")[0] for docno in texts_of(found)} == DOCUMENTS
    assert not found.meta["source"]["broken"] and found.graph.meta["edges"]["external"] == 1
    assert "files not read" not in found._repr_html_() and "Lines(" in repr(found.hybrid())
    assert (folder / ".pyterrier_graph" / ".gitignore").read_text() == "*\n"


def test_second_call_reads_and_builds_nothing(
    folder: Path, parsed: list[str], encoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = opened(folder).search("alpha")
    parsed.clear(), encoded.clear()
    monkeypatch.setattr(ptg.DocumentGraph, "index", None)
    monkeypatch.setattr(ptg.GraphMean, "index", None)
    again = opened(folder)
    assert not parsed and not encoded
    pd.testing.assert_frame_equal(again.search("alpha"), before)


@pytest.mark.parametrize(
    ("change", "new"),
    [
        pytest.param(changed_text("# New\n\nzeta eta\n"), {"New", "New: zeta eta"}, id="title"),
        pytest.param(lambda folder: (folder / "old.md").unlink(), set(), id="removed"),
    ],
)
def test_only_new_texts_are_encoded(
    folder: Path, encoded: list[str], change: Any, new: set[str]
) -> None:
    opened(folder)
    encoded.clear()
    change(folder)
    updated = opened(folder)
    passages = updated.graph.passage_nodes
    titled = updated.graph.texts(passages, titles=True)  # no passage is encoded without its titles
    allowed = {
        titled[0],
        updated.graph.texts(updated.graph.roots[:1])[0],
    }  # these tell the dimension
    assert new <= {*encoded} and {*encoded} <= new | allowed
    fresh = opened(shutil.copytree(folder, folder.parent / "fresh", ignore=lambda *_: [CACHE]))
    assert texts_of(updated) == texts_of(fresh) and {*titled} >= new - {"New"}
    scores = [
        index.search("zeta").set_index("docno")["score"].to_dict() for index in (updated, fresh)
    ]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def test_damaged_index_is_replaced(folder: Path) -> None:
    found = opened(folder)
    before = texts_of(found)
    (found.path / "pt_meta.json").write_text("{}")
    assert texts_of(opened(folder)) == before


# --- results


def test_results(folder: Path) -> None:
    found = opened(folder)
    results = found.hybrid().search("mu").set_index("docno")
    columns = pt.inspect.transformer_outputs(found.hybrid(), ["qid", "query"])
    assert columns[-4:] == ["text", "title", "file", "line"]
    assert len(results) == 6
    assert results.loc["guide.md%p1", columns[-4:]].tolist() == [
        "kappa lambda, see eta.",
        "Guide - Installing",
        "guide.md",
        7,
    ]
    assert results["title"]["sub/user_notes.txt%p0"] == "user notes"
    reranked = found.hybrid() >> ptg.GraphMaxSim(found.graph, tiny.encoder())
    assert reranked.search("mu")["docno"].nunique() == 6


@pytest.mark.parametrize("engine", ["bm25s", "pisa"])
def test_reasons(folder: Path, capfd: pytest.CaptureFixture[str], engine: Any) -> None:
    if engine == "pisa":
        pytest.importorskip("pyterrier_pisa", reason="PISA is for x86-64 Linux")
    results = opened(folder, lexical=engine).search("installing lambda mu")
    assert capfd.readouterr().out == ""
    assert results["docno"][0] == "guide.md%p1"  # the only one with two of these words
    assert re.match(r"words \d\.\d\d \+ meaning \d\.\d\d \+ document .*", results["why"][0])
    for why, score in zip(results["why"], results["score"], strict=True):
        parts = re.findall(r"(?:words|meaning|document|order) ([\d.]+)", why)
        assert sum(map(float, parts)) == pytest.approx(score, abs=0.021)


def test_one_result_per_section_and_no_copies(folder: Path) -> None:
    text = " ".join(f"alpha{number}" for number in range(300))
    found = opened(write(folder, {"long.md": f"# Long\n\n{text}", "copy.txt": "zeta eta\n"}))
    assert len(found.graph) == len(DOCUMENTS) + 2
    results = found.search("alpha3 zeta eta", 20)
    assert [*results["file"]].count("long.md") == 1 and results["text"].is_unique
    assert len({"copy.txt", "old.md"} & {*results["file"]}) == 1


def test_files_that_are_skipped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyterrier_graph.search.files.find_spec", lambda name: None)
    found = opened(
        write(
            folder, {"a.pdf": "", "b.pdf": "", "sub/c.DOCX": "", "Makefile": "", ".hidden.pdf": ""}
        )
    )
    assert found.meta["source"]["skipped"] == {".pdf": 2, ".docx": 1, ".png": 1, "no suffix": 1}
    assert program._state(found).endswith("Other files: 2 .pdf, 1 no suffix, 1 .png, 1 .docx.")


# --- snippets


@pytest.mark.parametrize(
    ("text", "words", "shown"),
    [
        (f"alpha {'x ' * 50}alpha beta {'y ' * 50}", 10, "… x x x x alpha beta y y y y …"),
        ("alpha beta", 10, "alpha beta"),
        ("x " * 30, 3, "x x x …"),
        ("x " * 30 + "alpha", 3, "… x x alpha"),
    ],
)
def test_snippet_has_the_most_words_of_the_question(text: str, words: int, shown: str) -> None:
    assert snippet(text, frozenset({"alpha", "beta"}), words) == shown


# --- the program


def run(folder: Path, *words: str) -> int:
    given = ["--encoder", tiny.checkpoint(positions=512)]
    return program.search([*given, str(folder), *words])


def test_output(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, {"bad.md": "\0"})
    assert run(folder, "which", "gamma?", "-n", "6") == 0
    out, err = capsys.readouterr()
    assert f"\n    {folder}/guide.md:3\n    alpha beta **gamma**\n    why: words " in out
    assert [line[:4] for line in out.splitlines() if line[:1].strip() or line[1:2].isdigit()] == [
        f" {rank}. " for rank in range(1, 7)
    ]
    assert (
        "5 documents, 6 passages" in err
        and "cannot be read: 1 (bad.md: ValueError: not a text" in err
    )
    assert "\033" not in out
    assert run(folder, "gamma", "--quiet") == 0
    assert capsys.readouterr().err == ""


def test_control_characters_are_not_printed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, {"evil.md": "# \033[31mEvil\n\ngamma \033]0;title\a gamma\n"})
    assert run(folder, "gamma", "-n", "9") == 0
    out = capsys.readouterr().out
    assert "beta **gamma**" in out and "\033" not in out and "\a" not in out


@pytest.mark.parametrize(
    ("files", "question", "message"),
    [
        (None, "alpha", "there is no folder"),
        ({}, "alpha", "has no files whose names end in .md"),
        ({"a.md": "# x\n\ny"}, "", "the question is empty"),
        (
            {"a.md": "\0", "b.md": "\0"},
            "alpha",
            "has no text: of 2 files, 2 cannot be read (a.md: ValueError: not a text",
        ),
    ],
)
def test_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], files: Any, question: str, message: str
) -> None:
    folder = tmp_path / "folder"
    if isinstance(files, str):
        folder.write_text(files)
    elif files is not None:
        folder.mkdir()
        write(folder, files)
    for _ in range(2):
        assert run(folder, question, "--quiet") == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("error: ") and message in err and err.count("\n") == 1
