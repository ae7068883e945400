"""Every experiment runs on a miniature collection, and a second call takes its runs from their files."""

from __future__ import annotations

import importlib
import io
import re
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyterrier as pt
import pytest
import tiny
from clef_ip_miniature import Miniature
from experiment_tools import Matches, pages, texts
from ir_measures import RR
from tiny import cross_encoder

import pyterrier_graph as ptg
from experiments import (
    clef_ip_2013,
    contextual_indexes,
    costs,
    dual_encoders,
    gpu_check,
    papers,
    scale,
    search_at_scale,
    text_rerankers,
    training_costs,
)
from experiments.collections.ir_datasets import read_questions
from experiments.harness import command
from experiments.harness.results import Results
from pyterrier_graph.evaluation.measures import AnswerRecall

# a high probability for documents that have the query's first word
TEACHER = pt.apply.doc_score(
    lambda row: 0.95 if row["query"].split()[0] in row["text"].split() else 0.05
)
ENCODER = ["--encoder", tiny.checkpoint(positions=256)]


class Run(NamedTuple):
    """An experiment, its arguments after those of the paper's table, its collection and its systems.

    ``systems`` are those of the arguments, which replace the table's.
    """

    module: Any
    collection: Any
    arguments: str
    systems: str = ""


PAIR = (
    "--negatives 1 --depth 6 --epochs 1 --batch 4 --max-tokens 8 "
    "--teacher-pairs 4 --teacher-epochs 1 --dev-queries 4"
)
GNN = "--epochs 1 --batch 8 --negatives 1 --max-tokens 8 --dev-queries 4"
RUNS = {
    "pair table3": Run(dual_encoders, texts, f"{PAIR} --unlabeled-share 0.5 --hide 0.1"),
    "lgre table4": Run(
        text_rerankers,
        texts,
        "--depth 6 --queries 6 --folds 3 --max-tokens 32 --epochs 1 --pairs 2 --batch 2 --layers 1 --init identity "
        "--learning-rate 0.01 --encoder-learning-rate 0.01 "
        "--systems off-the-shelf cross-encoder max-passage lgre",
        "BM25; off the shelf; cross-encoder; cross-encoder, max passage",
    ),
    "gnn-encoder table4": Run(
        contextual_indexes,
        lambda: texts(4),
        f"{GNN} --unmasked-epochs 1 --k 3 25 --folds 0 --cross-encoder {cross_encoder()} --measures RR@10 R@5 "
        "--systems bm25 dual-encoder graphmean gnnencoder papers-network papers-network-average-0-5",
        "BM25; dual-encoder; papers' network, average 0.5; papers' network, average 0.5, k = 3; GraphMean; "
        "GraphMean, k = 3; GNNEncoder; GNNEncoder, k = 3; papers' network; papers' network, k = 3",
    ),
    "gnn-encoder-preprint table4": Run(contextual_indexes, texts, f"{GNN} --passage-batch 8"),
}


def patched(module: Any, collection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has an experiment open a miniature collection, and search it without an index."""
    for place in (module, command):
        if hasattr(place, "open_collection"):
            monkeypatch.setattr(place, "open_collection", lambda _: collection())
        if hasattr(place, "bm25"):
            monkeypatch.setattr(place, "bm25", Matches)


@pytest.mark.slow
@pytest.mark.parametrize("table", RUNS)
def test_a_table(table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published values stand beside ours, and a second call trains nothing."""
    module, collection, arguments, systems = RUNS[table]
    patched(module, collection, monkeypatch)
    monkeypatch.setattr(dual_encoders.Bench, "teacher", TEACHER)
    encoder = cross_encoder() if module is text_rerankers else tiny.checkpoint(positions=256)
    given = (
        f"{table} --collection texts --output {tmp_path} --encoder {encoder} {arguments}".split()
    )
    ours = papers.main(given)
    assert ours is not None and ours.notna().all(axis=None)
    paper, name = table.split()
    published = pd.read_csv(io.StringIO(papers.tables()[paper][name]["published"]), dtype=str)
    values = [column for column in ours if column.endswith(" (published)")]
    assert ours[values].to_numpy().tolist() == published.iloc[:, 1:].to_numpy().tolist()
    assert len(values) == published.shape[1] - 1 == (ours.shape[1] - 1) / 2
    assert ours.iloc[:, 0].tolist() == published.iloc[:, 0].tolist()
    found = pd.read_csv(tmp_path / "results.csv")
    assert found.notna().all(axis=None)
    assert {*systems.split("; ")} - {""} <= {*found["system"]}
    for model, method in (
        (ptg.LGReReranker, "fit"),
        (ptg.CrossEncoderReranker, "fit"),
        (ptg.GNNEncoder, "fit"),
        (ptg.DualEncoder, "fit_examples"),
    ):
        monkeypatch.setattr(model, method, lambda *_, **__: pytest.fail("trained again"))
    pd.testing.assert_frame_equal(papers.main(given), ours)


@pytest.mark.slow
def test_the_teacher_of_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patched(dual_encoders, texts, monkeypatch)
    given = [*ENCODER, "texts", *PAIR.split(), "--output", str(tmp_path)]
    options = dual_encoders.command_line().parse_args(given)
    assert dual_encoders.Bench(texts(1), options).teacher.probabilities


@pytest.mark.slow
def test_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "read_medquad", lambda *_, **__: pages())
    monkeypatch.setattr(costs, "DOCUMENTS", ((4, False), (5, True)))
    small = "--passages 8 --indexed 60 --candidates 4 --tokens 32 --nodes 60 --rounds 1"
    tables = costs.main([*costs.PARTS, "--medquad", str(tmp_path), *ENCODER, *small.split()])
    assert [*tables] == [*costs.PARTS]
    for table in tables.values():
        assert (table["ms"] > 0).all() and len(table) > 1
    with pytest.raises(SystemExit):
        costs.main(["reranking"])


@pytest.mark.slow
def test_training_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_costs, "read_medquad", lambda *_, **__: pages())
    small = "--train 3 --dev 2 --candidates 6 --tokens 16"
    table = training_costs.main([str(tmp_path), *ENCODER, *small.split()])
    assert (table["a step"] > 0).all()
    validated = table.drop(index=training_costs.PEER)
    assert (validated["validation"] > 0).all()
    assert (table["all"] > table["steps"] + table["validation"]).all()


@pytest.mark.slow
def test_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """What is measured in a process of its own is run in this one."""

    def in_process(other: str, *given: Any) -> list[float]:
        capsys.readouterr()
        importlib.import_module(other).main([*map(str, given)])
        return [float(number) for number in capsys.readouterr().out.splitlines()[-1].split()]

    monkeypatch.setattr(scale, "in_process", in_process)
    assert len(scale.main(["--passages", "60", "--folder", str(tmp_path)])) == len(scale.STEPS)


@pytest.mark.slow
def test_search_at_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    patched(search_at_scale, texts, monkeypatch)
    table = search_at_scale.main(f"texts --output {tmp_path} --vectors 2000 --queries 3".split())
    assert (table["recall"].loc[:, 1000] > 0.9).all() and (table["codes, ms"] > 0).all()


@pytest.mark.slow
def test_gpu_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = f"--output {tmp_path} --passages 4 --dimension 8 --repeats 1".split()
    table = gpu_check.main([*ENCODER, *arguments])
    on_gpu = table["device"] == gpu_check.GPU
    assert set(table[~on_gpu]["outcome"]) <= {"passed", "measured"} and on_gpu.any()
    right = gpu_check.passes

    def wrong(*given: Any) -> Any:
        """Gradients that depend on the precision."""
        output, gradients = right(*given)
        return output, gradients * len(str(given[-1]))

    monkeypatch.setattr(gpu_check, "passes", wrong)
    with pytest.raises(SystemExit, match="backward"):
        gpu_check.main([*ENCODER, *arguments])


def test_recall_of_answers(tmp_path: Path) -> None:
    """A file of DPR has questions and answers; judged measures stand beside it where there are judgments."""
    file = tmp_path / "test.qa.csv"
    file.write_text('alpha\t"[\'mu\', ""the nu""]"\nbeta\t[\'kappa\']\n', "utf-8")
    queries = read_questions(file)
    assert queries.topics["answers"].tolist() == [["mu", "the nu"], ["kappa"]]
    run = pd.DataFrame({"qid": ["0", "0", "1"], "docno": ["a", "b", "b"], "score": [2.0, 1.0, 1.0]})
    texts = pt.apply.text(lambda row: {"a": "no", "b": "The Mu."}[row["docno"]])
    measures = [AnswerRecall @ 1, AnswerRecall @ 2, RR @ 10]
    results = Results(tmp_path / "answers", queries, measures[:2], texts)
    results.add("found", lambda: pt.model.add_ranks(run))
    means = results.per_query.groupby("measure")["value"].sum()
    assert means.to_dict() == {"AnswerRecall@1": 0.0, "AnswerRecall@2": 1.0}


# --- the papers' tables

TABLES = [(paper, table) for paper, tables in papers.tables().items() for table in tables]


@pytest.mark.parametrize(("paper", "table"), TABLES, ids="-".join)
def test_a_table_of_a_paper(paper: str, table: str, capsys: pytest.CaptureFixture[str]) -> None:
    about = papers.tables()[paper][table]
    collections: list[list[str] | None] = [None]
    if "COLLECTION" in about["command"]:
        collections.append(["medquad", "PATH"])
    for collection in collections:
        program, *given = papers.arguments_of(about, collection)
        command = importlib.import_module(f"experiments.{program}").command_line()
        parsed = command.parse_args([*given, "--output", "x"])  # stops if there is no such option
        if collection:
            assert (parsed.collection, str(parsed.path)) == ("medquad", "PATH")
            assert parsed.train is parsed.test is None
    published = pd.read_csv(io.StringIO(about["published"]))
    assert len(published) > 1 and not published.columns.duplicated().any()
    assert papers.main([paper, table, "--needs"]) is None
    said = capsys.readouterr().out
    assert f"command: python -m experiments.{program}" in said
    for field in ("files", "license", "disk", "models", "GPU"):
        assert f"\n{field}: " in said


@pytest.mark.parametrize("paper", papers.tables())
def test_the_page_of_a_paper_has_its_tables(paper: str) -> None:
    """Made by ``python -m experiments.papers PAPER --page``."""
    file = (
        Path(__file__)
        .parents[1]
        .joinpath("docs", "papers", f"{paper.removesuffix('-preprint')}.md")
    )
    assert papers.page(paper) in file.read_text("utf-8")


# --- HGAT on patents


@pytest.mark.slow
def test_patents(miniature: Miniature, home: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyterrier_pisa", reason="the first stage is PISA, for x86-64 Linux")
    found = (text for document in miniature.documents.values() for _, text in document.passages)
    words = sorted({word for text in found for word in re.findall(r"[^\W\d_]+", text.lower())})
    small = "--depth 4 --passages 3 --repeats 1 --runs 2 --passage-tokens 12 --query-tokens 12 --frozen-layers 0"
    encoder = ["--encoder", tiny.checkpoint(tuple(words))]
    arguments = [*small.split(), *encoder, "--variants", "NO_LB_NS", "--output", str(tmp_path)]
    table = clef_ip_2013.main(arguments)
    assert table["model"].tolist() == ["BM25", "MaxSim", "late_NO_LB_NS"]
    values = pd.read_csv(tmp_path / "values.csv").set_index(["model", "seed"])
    assert len(values) == 4 and values.apply(lambda column: column.between(0, 1)).all(axis=None)
    assert (values["Recall@100"] > 0.3).all()  # the first stage is a real one
    assert (tmp_path / "boxplots.svg").exists()
    for name, column, rows in (("table4", "PRES@100", 1), ("table5", "late_NO_LB_NS", 4)):
        about = papers.tables()["hgat"][name]
        beside = papers.beside(about, table, tmp_path)  # the paper's rows and columns
        assert len(beside) == len(pd.read_csv(io.StringIO(about["published"])))
        assert beside[column].notna().sum() == rows
