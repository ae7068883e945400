"""Search in HTML documentation: its reader, and the experiment, on a folder in miniature."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
from experiment_tools import Matches

from experiments import documentation_search
from experiments.collections.html_documentation import read_html_documentation
from experiments.harness.collection import SPLITS

SPHINX = """<html><body><div role="main"><h1>Index</h1><ul>
<li><a href="alpha/index.html#a1">alpha, beta</a>, <a href="gamma.html">[1]</a>
  <ul><li><a href="alpha/index.html#a2">of gamma</a></li><li><a href="delta.html#x">delta (in module x)</a>
    <ul><li><a href="gamma.html">in use</a></li></ul></li></ul></li>
<li>epsilon<ul><li><a href="gamma.html">zeta theta</a></li><li><a href="delta.html">eta</a></li></ul></li>
<li><a href="gamma.html">said here</a></li>
<li><a href="gamma.html">Title of gamma</a></li>
<li><a href="gamma.html">kappa_lambda mu</a></li>
<li><a href="gamma.html">-x option</a></li>
<li><a href="gamma.html">one</a></li>
<li><a href="gamma.html">module iota</a></li>
<li><a href="https://example.org/gamma.html">far away</a>, <a>no link</a>, <a href="nowhere.html">gone page</a></li>
<li><a href="gamma.html">eta epsilon</a></li>
<li><a href="p1.html">many pages</a>, <a href="p2.html">2</a>, <a href="p3.html">3</a>, <a href="p4.html">4</a></li>
<li><a href="gamma.html">a b c d e f g h i</a></li>
</ul></div></body></html>"""
DOCBOOK = """<html><body><div class="index"><dl>
<dt id="i1">alpha, <a class="indexterm" href="gamma.html">Gamma</a></dt>
<dd><dl><dt>with beta, <a class="indexterm" href="alpha/index.html#A">Alpha</a></dt>
<dt>(see also delta)</dt></dl></dd>
<dt>delta, <a href="gamma.html">Gamma</a></dt>
</dl></div></body></html>"""


def page(title: str, *paragraphs: str) -> str:
    body = "".join(f"<p>{text}</p>" for text in paragraphs)
    return f'<html><head><title>{title}</title></head><body><div role="main"><h1>{title}</h1>{body}</div></body></html>'


def folder_of(path: Path, index: str, text: str) -> Path:
    (path / "alpha").mkdir(parents=True)
    (path / index).write_text(text)
    (path / "search.html").write_text(page("Search", "alpha beta"))
    (path / "alpha" / "index.html").write_text(page("Alpha", "It is <b>Said</b> here.", "beta alpha"))
    (path / "gamma.html").write_text(page("Title of gamma", "gamma delta"))
    (path / "delta.html").write_text(page("Delta", "epsilon and eta"))
    return path


def queries(path: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for part in read_html_documentation(path).queries.values():
        for row in part.topics.merge(part.qrels, on="qid").itertuples():
            found.setdefault(row.query, set()).add(row.docno)
    return found


@pytest.fixture
def one_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.collections.html_documentation.SHARES", (0.0, 0.0, 1.0))


@pytest.mark.usefixtures("one_split")
def test_entries_of_sphinx(tmp_path: Path):
    assert queries(folder_of(tmp_path / "docs", "genindex.html", SPHINX)) == {
        "alpha beta": {"alpha/index.html", "gamma.html"},
        "alpha beta of gamma": {"alpha/index.html"},
        "alpha beta delta": {"delta.html"},
        "alpha beta delta in use": {"gamma.html"},
        "epsilon zeta theta": {"gamma.html"},
        "epsilon eta": {"delta.html", "gamma.html"},  # with "eta epsilon"
    }


@pytest.mark.usefixtures("one_split")
def test_entries_of_docbook(tmp_path: Path):
    assert queries(folder_of(tmp_path / "docs", "bookindex.html", DOCBOOK)) == {"alpha with beta": {"alpha/index.html"}}


def test_documents(tmp_path: Path):
    collection = read_html_documentation(folder_of(tmp_path / "docs", "genindex.html", SPHINX))
    records = {record["docno"]: record for record in collection.get_corpus_iter(verbose=False)}
    assert {docno: record["title"] for docno, record in records.items()} == {
        "alpha/index.html": "Alpha",
        "gamma.html": "Title of gamma",
        "delta.html": "Delta",
    }
    assert records["alpha/index.html"]["text"] == "It is Said here. beta alpha"
    pages = {split: set(collection.queries[split].qrels["docno"]) for split in SPLITS}
    assert not pages["dev"] & pages["test"] and not pages["train"]


def test_the_whole_index_comes_before_the_others(tmp_path: Path):
    path = folder_of(tmp_path / "docs", "genindex.html", "<html><body>nothing</body></html>")
    assert not queries(path)
    (path / "genindex-all.html").write_text(SPHINX)
    assert "epsilon zeta theta" in queries(path)


def test_folder_without_index(tmp_path: Path):
    with pytest.raises(ValueError, match="has no index of its documentation: genindex-all.html"):
        read_html_documentation(tmp_path)


@pytest.mark.slow
def test_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    words = {word: other for word, other in zip(tiny.WORDS, tiny.WORDS[1:], strict=False)}
    entries = "".join(f'<li><a href="{word}.html">{word} of {other}</a></li>' for word, other in words.items())
    path = folder_of(tmp_path / "docs", "genindex.html", f"<html><body><ul>{entries}</ul></body></html>")
    for word, other in words.items():
        (path / f"{word}.html").write_text(page(word, f"{word} and {other}"))
    monkeypatch.setattr(documentation_search, "bm25", Matches)
    monkeypatch.setattr(documentation_search, "DIMENSIONS", 8)
    arguments = f"html {path} --encoder {tiny.checkpoint()} --max-tokens 24 --dtype float32 --output {tmp_path / 'out'}"
    table = documentation_search.main(arguments.split()).set_index("system")
    assert [*table.index] == [documentation_search.BM25, *documentation_search.SYSTEMS.values()]
    assert table.loc[documentation_search.BM25, "RR@10"].startswith("0.9") or table["RR@10"].iloc[0].startswith("1.0")
    monkeypatch.setattr(documentation_search.Bench, "system", lambda *_: pytest.fail("ranked again"))
    assert documentation_search.main(arguments.split()).set_index("system").equals(table)
