"""The check of everything behind Terrier: its table, what it covers, and its pipelines on another first stage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyterrier as pt
import pytest
import terrier_check
from terrier_check import main, run_check, table
from terrier_pipelines import CHECKS
from terrier_stages import Collection, PisaStage, Setting

ROOT = Path(__file__).resolve().parent.parent
SUBJECTS = ["penguins", "camels", "heaters"]
PISA = "bm25 rerank hybrid retriever operator rewrite reset text learning grid experiment features".split()
EXAMPLES = ["example existing_index", "example hybrid", "example lgre"]


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    """A small collection in TREC's format."""
    sentences = ["live on {} all day", "store much of what {} need", "are made of {} and water", "{} like it warm"]
    texts = [" ".join([sentence.format(subject)] * 8) for subject in SUBJECTS for sentence in sentences]
    documents = [f"<DOC>\n<DOCNO>{n}</DOCNO>\n{text}\n</DOC>\n" for n, text in enumerate(texts, 1)]
    queries = [
        f"<top>\n<num>{n}</num><title>\nWHAT DO {subject.upper()} NEED\n</title>\n</top>\n"
        for n, subject in enumerate(SUBJECTS, 1)
    ]
    (tmp_path / "doc-text.trec").write_text("".join(documents))
    (tmp_path / "query-text.trec").write_text("".join(queries))
    (tmp_path / "qrels").write_text("".join(f"{n} 0 {4 * n - 2} 1\n" for n in range(1, 4)))
    return tmp_path


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict]:
    """No checks but those that a test adds."""
    monkeypatch.setattr(terrier_check, "CHECKS", added := {})
    yield added


def setting(collection: Path) -> Setting:
    return Setting(Collection.read(collection), PisaStage(collection / "index"), collection, 2)


def test_collection_is_read(collection: Path) -> None:
    read = Collection.read(collection)
    assert len(read.documents) == 12 and read.documents["1"].startswith("live on penguins all day live")
    assert read.topics["query"][1] == "what do camels need"  # whose text Terrier would take as its query language
    assert read.qrels["docno"].tolist() == ["2", "6", "10"]
    assert [row["docno"] for row in read.get_corpus_iter()][:2] == ["1", "2"]


def test_missing_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "qrels").touch()
    with pytest.raises(SystemExit, match="has no doc-text.trec, query-text.trec: give a folder"):
        main([str(tmp_path)])


def test_table_says_what_came_of_each_check(collection: Path, checks: dict, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(at: Setting) -> None:
        print("on its way")
        raise ValueError("no such\nindex")

    checks |= {"good": lambda at: "AP 0.3", "bad": fails, "other": lambda at: at.terrier()}
    outcomes = [run_check(name, setting(collection)) for name in checks]
    assert "Traceback" in outcomes[1].error and capsys.readouterr().out == ""
    words = [" ".join(line.split()) for line in table(outcomes).splitlines()]
    assert words == [
        "good passed 0.0 s AP 0.3",
        "bad failed 0.0 s ValueError: no such",
        "other skipped 0.0 s needs Terrier",
        "1 passed, 1 failed, 1 skipped",
    ]


def test_unknown_checks_are_refused(collection: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(collection), "--only", "nothing"])
    assert "no check begins with nothing; there are: bm25 effectiveness, " in capsys.readouterr().err


def test_every_example_is_covered() -> None:
    examples = {f"example {file.stem}" for file in (ROOT / "examples").glob("*.py")}
    without = "example gnn_encoder"  # has no lexical first stage
    assert {name for name in CHECKS if name.startswith("example")} == examples - {without}


def test_every_operator_is_covered() -> None:
    signs = {"__rshift__": ">>", "__mod__": "%", "__add__": "+", "__mul__": "*", "__or__": "|", "__and__": "&"}
    signs |= {"__xor__": "^", "__pow__": "**"}
    assert all(hasattr(pt.Transformer, name) for name in signs)
    assert {name.split()[1] for name in CHECKS if name.startswith("operator")} == {*signs.values()}


@pytest.mark.parametrize(
    "name",
    "IterDictIndexer IndexFactory.of terrier.Retriever terrier.TerrierIndex.bm25 terrier.FeaturesRetriever rewrite.RM3 "
    "rewrite.Bo1QueryExpansion rewrite.SDM rewrite.reset rewrite.tokenise text.scorer text.snippets".split(),
)
def test_pyterrier_has_the_names(name: str) -> None:
    found = pt
    for part in name.split("."):
        found = getattr(found, part)
    assert callable(found)


@pytest.mark.slow
def test_checks_pass_on_pisa(collection: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyterrier_pisa", reason="PISA is for x86-64 Linux")
    names = [*PISA, *EXAMPLES]
    failed = main([str(collection), "--first-stage", "pisa", "--queries", "3", "--only", *names])
    captured = capsys.readouterr()
    assert not failed, captured.err
    lines = captured.out.splitlines()
    assert "0 failed, 6 skipped" in lines[-1], captured.out
    assert len(lines) == 2 + sum(name.startswith(tuple(names)) for name in CHECKS)
