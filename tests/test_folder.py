"""A folder that is searched: what is read, encoded and kept, what is printed, and what is refused."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyterrier as pt
import pytest
import tiny

import pyterrier_graph as ptg
from pyterrier_graph import __main__ as program
from pyterrier_graph.folders import cache as caches
from pyterrier_graph.folders import file_store, lexical, reading, search
from pyterrier_graph.folders.file_store import FileStore
from pyterrier_graph.folders.reading import PARSERS
from pyterrier_graph.folders.reasons import similarities
from pyterrier_graph.folders.search import FolderSearch
from pyterrier_graph.folders.snippets import content_stems, mark, snippet
from pyterrier_graph.folders.stored_files import title_of
from pyterrier_graph.readers.walking import find

FILES = {
    "guide.md": "# Guide\n\nalpha beta gamma\n\n## Installing\n\nkappa lambda, see [eta](sub/page.html#eta).\n",
    "sub/page.html": "<title>Page</title><h1>Page</h1><h2 id=eta>eta</h2><p>eta theta iota</p>",
    "sub/user_notes.txt": "delta epsilon\nzeta\n\nmu mu mu\n",
    "old.rst": "Old\n===\n\nzeta eta\n",
    "article.xml": "<article><front><article-meta><title-group><article-title>Article</article-title></title-group>"
    "</article-meta></front><body><sec><title>Body</title><p>iota kappa</p></sec></body></article>",
    "picture.png": "no text",
}
DOCUMENTS = {"guide.md", "sub/page.html", "sub/user_notes.txt", "old.rst", "article.xml"}
LONG_AGO = 10**18


def write(folder: Path, files: dict[str, str], changed: int = LONG_AGO) -> Path:
    for name, text in files.items():
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

    def counted(parse: Any, data: bytes, outline: Any, encoding: str | None) -> None:
        calls.append(outline.docno)
        parse(data, outline, encoding)

    for suffix, parse in PARSERS.items():
        monkeypatch.setitem(PARSERS, suffix, partial(counted, parse))
    return calls


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were encoded."""
    texts: list[str] = []
    encode = ptg.DualEncoder.encode_docs

    def counted(self: Any, given: Any, *args: Any, **options: Any) -> Any:
        texts.extend(given)
        return encode(self, given, *args, **options)

    monkeypatch.setattr(ptg.DualEncoder, "encode_docs", counted)
    return texts


def opened(folder: Path, **options: Any) -> FolderSearch:
    given = {"encoder": tiny.checkpoint(positions=512), "lexical": "none", "verbose": False}
    return ptg.open_folder(folder, **given | options)


def texts_of(opened: FolderSearch) -> dict[str, str]:
    return {row["docno"]: row["text"] for row in opened.graph.get_corpus_iter(verbose=False)}


def changed_text(text: str) -> Callable[[Path], None]:
    return lambda folder: write(folder, {"old.rst": text}, LONG_AGO + 1) and None


# --- what is read and built


def test_first_call_reads_all_kinds_of_files(folder: Path, parsed: list[str]) -> None:
    found = opened(folder)
    assert {*parsed} == DOCUMENTS and found.changes.read == len(DOCUMENTS)
    assert {docno.partition("%p")[0] for docno in texts_of(found)} == DOCUMENTS
    assert not found.broken and found.graph.summary()["edges"]["external"] == 1
    assert (folder / ".pyterrier_graph" / ".gitignore").read_text() == "*\n"


def test_second_call_reads_and_builds_nothing(
    folder: Path, parsed: list[str], encoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = opened(folder).search("alpha")
    parsed.clear(), encoded.clear()
    monkeypatch.setattr(ptg.DocumentGraph, "index", None)
    monkeypatch.setattr(ptg.GraphMean, "index", None)
    monkeypatch.setattr(reading, "_digest", None)  # no file is opened, either
    again = opened(folder)
    assert not parsed and not encoded and again.changes.read == again.changes.removed == 0
    pd.testing.assert_frame_equal(again.search("alpha"), before)


@pytest.mark.parametrize(
    ("change", "read", "new"),
    [
        pytest.param(changed_text("Old\n===\n\nzeta mu\n"), ["old.rst"], {"zeta mu"}, id="changed"),
        pytest.param(changed_text("New\n===\n\nzeta eta\n"), ["old.rst"], {"New"}, id="title"),
        pytest.param(lambda folder: write(folder, {"new.md": "# Old\n\nmu\n"}), ["new.md"], {"mu"}, id="added"),
        pytest.param(lambda folder: (folder / "old.rst").unlink(), [], set(), id="removed"),
        pytest.param(lambda folder: (folder / "old.rst").rename(folder / "x.rst"), ["x.rst"], set(), id="renamed"),
        pytest.param(lambda folder: os.utime(folder / "old.rst"), [], set(), id="touched"),
    ],
)
def test_only_what_changed_is_read_and_encoded(
    folder: Path, parsed: list[str], encoded: list[str], change: Any, read: list[str], new: set[str]
) -> None:
    opened(folder)
    parsed.clear(), encoded.clear()
    change(folder)
    updated = opened(folder)
    assert parsed == read and updated.changes.read == len(read)
    allowed = {next(iter(texts_of(updated).values())), updated.graph.texts(updated.graph.roots[:1])[0]}
    assert new <= {*encoded} and {*encoded} <= new | allowed  # the first text and title tell the dimension
    fresh = opened(folder, cache=folder.parent / "fresh")
    assert texts_of(updated) == texts_of(fresh) and {*texts_of(updated).values()} >= new - {"New"}
    assert updated.search("zeta")["docno"].tolist() == fresh.search("zeta")["docno"].tolist()


def test_same_size_within_the_same_time_stamp(folder: Path, parsed: list[str]) -> None:
    """A file that was changed just now may change again without another size or time."""
    now = time.time_ns()
    write(folder, {"old.rst": "Old\n===\n\nalpha\n"}, now)
    opened(folder)
    write(folder, {"old.rst": "Old\n===\n\nkappa\n"}, now)
    assert "kappa" in texts_of(opened(folder)).values()


def test_file_that_changes_while_it_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parse = PARSERS[".rst"]

    def changing(data: bytes, outline: Any, encoding: str | None) -> None:
        parse(data, outline, encoding)
        write(folder, {"old.rst": "Old\n===\n\nlambda mu\n"}, LONG_AGO + 1)

    with monkeypatch.context() as patch:
        patch.setitem(PARSERS, ".rst", changing)
        assert "zeta eta" in texts_of(opened(folder)).values()
    assert "lambda mu" in texts_of(opened(folder)).values()


def test_moved_folder_is_compared_by_content(folder: Path, parsed: list[str]) -> None:
    opened(folder)
    parsed.clear()
    moved = folder.rename(folder.with_name("moved"))
    assert opened(moved).changes.read == 0 and not parsed


def test_cache_of_another_folder_is_not_trusted(folder: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other", {"old.rst": FILES["old.rst"].replace("zeta", "beta")})
    opened(folder, cache=tmp_path / "cache")
    assert texts_of(opened(other, cache=tmp_path / "cache")) == {"old.rst%p0": "beta eta"}


def test_damaged_database_and_graph_are_made_anew(folder: Path) -> None:
    before = texts_of(opened(folder))
    cache = folder / ".pyterrier_graph"
    (cache / caches.FILES).write_bytes(b"no database" * 1000)
    (state,) = (path for path in cache.iterdir() if re.fullmatch("[0-9a-f]{16}", path.name))
    (state / "graph" / "pt_meta.json").write_text("{}")
    assert texts_of(opened(folder)) == before


def test_few_states_are_kept(folder: Path) -> None:
    for number in range(4):
        write(folder, {"old.rst": f"Old\n===\n\n{tiny.WORDS[number]}\n"}, LONG_AGO + number)
        opened(folder)
    cache = folder / ".pyterrier_graph"
    assert len([path for path in cache.iterdir() if path.is_dir() and path.name != "vectors"]) == caches.KEPT
    assert len([*(cache / "vectors").glob("passages-*")]) == caches.KEPT


def test_folder_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches.os, "access", lambda path, mode: False)
    found = opened(folder)
    assert found.cache.is_relative_to(pt.io.pyterrier_home()) and not (folder / ".pyterrier_graph").exists()


# --- calls that are killed, and calls at the same time


def killing(owner: Any, name: str, number: int = 1) -> None:
    """Kills this process when something is called for the n-th time, after the call."""
    function, calls = getattr(owner, name), []

    def called(*args: Any, **options: Any) -> Any:
        result = function(*args, **options)
        calls.append(name)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, called)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    ("owner", "name", "number", "left"),
    [
        (FileStore, "_put", 3, 3),  # of the files, two are kept
        (FileStore, "_digest", 1, 0),
        (search.StoredFiles, "_results", 1, 0),
        (ptg.DocumentGraph, "index", 1, 0),
        (ptg.DualEncoder, "encode_docs", 2, 0),
        (ptg.GraphMean, "index", 1, 0),
        (caches.shutil, "rmtree", 1, 0),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_killed_call_goes_on(
    folder: Path, parsed: list[str], monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, number: int, left: int
) -> None:
    monkeypatch.setattr(file_store, "AT_ONCE", 1)
    child = os.fork()
    if not child:
        try:
            killing(owner, name, number)
            opened(folder)
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    found = opened(folder)
    assert len(parsed) == left
    fresh = opened(folder, cache=folder.parent / "fresh")
    pd.testing.assert_frame_equal(found.search("zeta mu"), fresh.search("zeta mu"))
    assert opened(folder).changes.read == 0


def test_second_process_waits_and_says_so(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:

    from filelock import FileLock

    cache = folder / ".pyterrier_graph"
    cache.mkdir()
    lock = FileLock(cache / caches.LOCK, thread_local=False)
    lock.acquire()
    waited: list[float | None] = []

    class Lock(FileLock):  # the library refuses that a process waits for itself
        def acquire(self, timeout: float | None = None, **options: Any) -> Any:
            waited.append(timeout)
            if timeout != 0:
                lock.release()
            return super().acquire(timeout, **options)

    monkeypatch.setattr("filelock.FileLock", Lock)
    opened(folder)
    assert waited[:2] == [0, None]  # then there are locks of what is built
    assert "Another process works" in caplog.text


# --- the pipeline


def test_pipeline(folder: Path) -> None:
    found = opened(folder)
    assert pt.inspect.transformer_outputs(found.pipeline, ["qid", "query"])[-4:] == ["text", "title", "file", "line"]
    results = found.pipeline.search("mu")
    rows = results.set_index("docno")[["text", "title", "file", "line"]].T.to_dict("list")
    assert rows == {
        "article.xml%p0": ["iota kappa", "Article - Body", "article.xml", 1],
        "guide.md%p0": ["alpha beta gamma", "Guide", "guide.md", 3],
        "guide.md%p1": ["kappa lambda, see eta.", "Guide - Installing", "guide.md", 7],
        "old.rst%p0": ["zeta eta", "Old", "old.rst", 4],
        "sub/page.html%p0": ["eta theta iota", "Page - eta", "sub/page.html", 1],
        "sub/user_notes.txt%p0": ["delta epsilon zeta mu mu mu", "user notes", "sub/user_notes.txt", 1],
    }
    assert (found.pipeline >> ptg.GraphMaxSim(found.graph, tiny.encoder())).search("mu")["docno"].nunique() == 6
    assert len((found.pipeline % 2).search("mu")) == 2


def test_hybrid_with_pisa(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyterrier_pisa", reason="PISA is for x86-64 Linux")
    found = opened(folder, lexical="auto")
    assert found.lexical == "pisa" and found.hybrid is not None
    results = found.search("installing lambda mu")
    assert capfd.readouterr() == ("", "")
    assert results["docno"][0] == "guide.md%p1"  # the only one with two of these words
    assert re.match(r"words 0\.50 \+ meaning 0\.\d\d; similarity .*; title has Installing$", results["why"][0])
    for why, score in zip(results["why"], results["score"], strict=True):
        words, meaning = map(float, re.match(r"words (\S+) \+ meaning ([\d.]+)", why).groups())  # type: ignore[union-attr]
        assert words + meaning == pytest.approx(score, abs=0.011)
    assert opened(folder, lexical="pisa").search("installing lambda mu").equals(results)


def test_similarities_add_up_to_the_score(folder: Path) -> None:
    found = opened(folder)
    results = found.search("installing lambda")
    parts = similarities(results["docno"].tolist(), "installing lambda", found.index)
    assert [*parts.columns] == ["passage", "titles"]
    assert parts.sum(axis=1).tolist() == pytest.approx(results["score"].tolist(), abs=1e-5)


def test_representations(folder: Path) -> None:
    found = opened(folder)
    assert repr(found) == f"<folder {str(folder)!r}: 5 documents, 6 passages>"
    assert "not read" in found._repr_html_() and "GraphMean" not in repr(found)


def test_lexical_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="lexical must be one of"):
        lexical.choose("lucene")  # type: ignore[arg-type]
    monkeypatch.setattr(lexical, "find_spec", lambda name: None)
    assert lexical.choose("auto") == "none" and lexical.choose("terrier") == "terrier"
    with pytest.raises(ImportError, match="pip install pyterrier-pisa"):
        lexical.choose("pisa")


# --- snippets


def test_words_of_a_question() -> None:
    assert content_stems("How do I install the Packages?") == {"instal", "packag"}
    assert content_stems("to be or not to be") == {"to", "be", "or", "not"}


def test_snippet_has_the_most_words_of_the_question() -> None:
    text = f"alpha {'x ' * 50}alpha beta {'y ' * 50}"
    assert snippet(text, {"alpha", "beta"}, 10) == "… x x x x alpha beta y y y y …"
    assert snippet("alpha beta", {"alpha"}, 10) == "alpha beta"
    assert snippet("x " * 30, {"alpha"}, 3) == "x x x …"
    assert snippet("x " * 30 + "alpha", {"alpha"}, 3) == "… x x alpha"


@pytest.mark.parametrize("words", [1, 2, 5, 40])
def test_snippet_is_the_best_window(words: int) -> None:
    parts = [tiny.WORDS[(number * number) % 11] for number in range(60)]
    wanted = {"alpha", "gamma", "mu", "beta"}
    shown = snippet(" ".join(parts), wanted, words).strip("… ").split()
    best = max(len(wanted.intersection(parts[start : start + words])) for start in range(60))
    assert len(shown) == words and len(wanted.intersection(shown)) == best


def test_marks_are_on_words_with_the_stem() -> None:
    assert mark("Installing it_installs; reinstall", {"instal"}) == "**Installing** it_**installs**; reinstall"


def test_title_of_a_file() -> None:
    assert [title_of(path) for path in ("docs/user_guide-2.txt", "__.md")] == ["user guide 2", "__"]


# --- the program


def run(folder: Path, *words: str) -> int:
    given = ["--encoder", tiny.checkpoint(positions=512), "--lexical", "none"]
    return program.search([*given, str(folder), *words])


def test_output(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, {"bad.md": "\0"})
    assert run(folder, "which", "gamma?", "-n", "6") == 0
    out, err = capsys.readouterr()
    assert f"\n    {folder}/guide.md:3\n    alpha beta **gamma**\n    why: similarity" in out
    assert [line[:4] for line in out.splitlines() if line[:1].strip() or line[1:2].isdigit()] == [
        f" {rank}. " for rank in range(1, 7)
    ]
    assert "files read by this call: 6." in err and "Not readable: 1 file (bad.md: not a text" in err
    assert "no BM25" in err and "\033" not in out
    assert run(folder, "gamma", "--quiet") == 0
    assert capsys.readouterr().err == ""


def test_styles_are_for_terminals(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    write(folder, {"evil.md": "# \033[31mEvil\n\ngamma \033]0;title\a gamma\n"})
    assert run(folder, "gamma", "-n", "9") == 0
    out = capsys.readouterr().out
    assert "beta \033[1mgamma\033[0m" in out and "**" not in out
    assert "\033[31m" not in out and "\033]" not in out and "\a" not in out


@pytest.mark.parametrize(
    ("files", "question", "message"),
    [
        (None, "alpha", "there is no folder"),
        ({}, "alpha", "has no files whose names end in .md"),
        ({"a.png": "x"}, "alpha", "has no files whose names end in .md"),
        ({"a.md": "# x\n\ny"}, " ?! ", "the question is empty"),
        ({"a.md": "# x\n\ny"}, "", "the question is empty"),
        ({"a.md": "\0", "b.xml": "<"}, "alpha", "has no text: of 2 files, 2 cannot be read (a.md: not a text"),
        ({"a.md": "", "b.md": "# Only a title"}, "alpha", "has no text: of 2 files, 0 cannot be read"),
    ],
)
def test_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], files: dict[str, str] | None, question: str, message: str
) -> None:
    folder = tmp_path / "folder"
    if files is not None:
        folder.mkdir()
        write(folder, files)
    for _ in range(2):
        assert run(folder, question, "--quiet") == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("error: ") and message in err and err.count("\n") == 1


def test_file_instead_of_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder / "guide.md", "alpha") == 2
    assert "is a file: give the folder" in capsys.readouterr().err


def test_unreadable_file_is_counted_and_tried_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = reading._digest

    def refused(file: Path, size: int) -> bytes:
        if file.name == "old.rst":
            raise PermissionError(13, "Permission denied")
        return digest(file, size)

    with monkeypatch.context() as patch:
        patch.setattr(reading, "_digest", refused)
        assert opened(folder).broken == {"old.rst": "Permission denied"}
        patch.setattr(ptg.DocumentGraph, "index", None)  # the same state again
        assert opened(folder).broken == {"old.rst": "Permission denied"}
    assert not opened(folder).broken


def test_interrupted(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(search, "open_folder", interrupted)
    assert run(folder, "alpha") == 130
    assert "goes on" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["find"]])
def test_unknown_command(words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["pyterrier_graph", *words])
    with pytest.raises(SystemExit, match="2"):
        program.main()
    assert "search" in capsys.readouterr().err


def test_program_ends_with_a_status_and_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pyterrier_graph", "search", str(tmp_path / "none"), "alpha"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"error: there is no folder {str(tmp_path / 'none')!r}\n"


def test_unknown_encoder_and_wrong_number(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.search([str(folder), "alpha", "--encoder", str(folder / "none"), "--lexical", "none"]) == 2
    assert "cannot be loaded" in capsys.readouterr().err
    assert run(folder, "alpha", "-n", "0") == 2
    assert "num_results must be a whole number" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_name_that_is_no_text(folder: Path) -> None:
    (folder / os.fsdecode(b"\xff.md")).write_text("# Title\n\nalpha\n")
    assert opened(folder).broken == {"\N{REPLACEMENT CHARACTER}.md": "its name is not valid UTF-8"}
    assert opened(folder).changes.read == 0


@pytest.mark.slow
def test_several_processes_read_the_same(folder: Path, tmp_path: Path) -> None:
    write(folder, {f"many/{number}.md": f"# {number}\n\nalpha {number}\n" for number in range(20)})
    one, two = (opened(folder, cache=tmp_path / str(workers), workers=workers) for workers in (1, 2))
    assert texts_of(one) == texts_of(two) and one.changes == two.changes


def test_store_forgets_nothing_but_removed_files(folder: Path, tmp_path: Path) -> None:
    suffixes = (*PARSERS,)
    with FileStore(tmp_path / "files.sqlite") as store:
        first = store.update(find(folder, suffixes), verbose=False)
        (folder / "old.rst").unlink()
        second = store.update(find(folder, suffixes), verbose=False)
        assert (second.read, second.removed) == (0, 1) and first.digest != second.digest
        assert [result.docno for result in store.results()] == sorted(DOCUMENTS - {"old.rst"})
    with pytest.raises(sqlite3.ProgrammingError):
        next(store.results())
