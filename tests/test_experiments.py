"""Every experiment runs on a miniature collection, and a second call takes its runs from their files."""

from __future__ import annotations

import importlib
import io
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import tiny
from clef_ip_miniature import Miniature
from experiment_tools import Matches, pages, texts
from tiny import cross_encoder

import pyterrier_graph as ptg
from experiments import (
    clef_ip_2013,
    costs,
    dual_encoders,
    gpu_check,
    papers,
    scale,
)
from experiments.harness import command, systems

# a high probability for documents that have the query's first word
TEACHER = pt.apply.doc_score(
    lambda row: 0.95 if row["query"].split()[0] in row["text"].split() else 0.05
)
ENCODER = ["--encoder", tiny.checkpoint(positions=256)]


class Run(NamedTuple):
    """An experiment's arguments, the collection that it opens, and the systems of its table."""

    arguments: str
    collection: Any
    systems: str


PAIR = (
    "--negatives 1 --depth 6 --epochs 1 --batch 4 --max-tokens 8 "
    "--teacher-pairs 4 --teacher-epochs 1 --dev-queries 4"
)
LGRE = (
    f"--encoder {cross_encoder()} --depth 6 --queries 6 --folds 3 --max-tokens 32 --epochs 1 --pairs 2 --batch 2 "
    "--init identity --learning-rate 0.01 --encoder-learning-rate 0.01"
)
GNN = "--epochs 1 --unmasked-epochs 1 --batch 8 --negatives 1 --heads 2 --max-tokens 8 --measures RR@10 R@5"
RUNS = {
    "text_rerankers": Run(
        f"texts {LGRE} --systems off-the-shelf cross-encoder max-passage lgre --layers 1 all",
        texts,
        "BM25; off the shelf; cross-encoder; cross-encoder, max passage; LGRe, layers 1; LGRe, layers all",
    ),
    "dual_encoders": Run(
        f"texts {PAIR} --unlabeled-share 0.5 --systems in-batch-negatives pair --alpha 0.1 0.3 "
        "--thresholds 0.9/0.1 0.8/0.2",
        texts,
        "BM25; off the shelf; in-batch negatives; PAIR; PAIR, alpha = 0.3; PAIR, 0.8/0.2; "
        "PAIR, 0.8/0.2, alpha = 0.3",
    ),
    "contextual_indexes": Run(
        f"texts {GNN} --k 3 25 --folds 0 --cross-encoder {cross_encoder()} "
        "--systems bm25 dual-encoder graphmean gnnencoder papers-network joint-training",
        lambda: texts(4),
        "BM25; dual-encoder; GraphMean; GraphMean, k = 3; GNNEncoder; GNNEncoder, k = 3; papers' network; "
        "papers' network, k = 3; joint training; joint training, k = 3",
    ),
    "transfer": Run(
        f"medquad numpydoc --max-tokens 32 --cross-encoder {cross_encoder()}", pages, "; ".join(systems.NAMES)
    ),
}  # fmt: skip


def patched(module: Any, collection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has an experiment open a miniature collection, and search it without an index."""
    for place in (module, command, systems):
        if hasattr(place, "open_collection"):
            monkeypatch.setattr(place, "open_collection", lambda _: collection())
        if hasattr(place, "bm25"):
            monkeypatch.setattr(place, "bm25", Matches)
    monkeypatch.setattr(
        "sentence_transformers.SentenceTransformer._create_model_card", lambda *_, **__: None
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_an_experiment(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = importlib.import_module(f"experiments.{name}")
    run = RUNS[name]
    patched(module, run.collection, monkeypatch)
    if name == "dual_encoders":
        assert module.Bench(
            texts(1), options(module, tmp_path / "teacher", f"texts {PAIR}")
        ).teacher.probabilities
        monkeypatch.setattr(module.Bench, "teacher", TEACHER)
    arguments = [*ENCODER, *run.arguments.split(), "--output", str(tmp_path)]
    table = module.main(arguments)
    shown = table.drop(columns="queries", errors="ignore")
    assert shown.notna().all(axis=None) and len(table)
    found = set(
        table.index
        if table.index.name == "system" or not table.columns.isin(["system"]).any()
        else table["system"]
    )
    assert found == set(run.systems.split("; "))
    for model, method in (
        (ptg.HGATReranker, "fit"),
        (ptg.LGReReranker, "fit"),
        (ptg.CrossEncoderReranker, "fit"),
        (ptg.GNNEncoder, "fit"),
        (ptg.DualEncoder, "fit_examples"),
    ):
        monkeypatch.setattr(model, method, lambda *_, **__: pytest.fail("trained again"))
    pd.testing.assert_frame_equal(module.main(arguments), table)
    with pytest.raises(SystemExit, match="runs made with other options"):
        module.main([*arguments, "--dev-queries", "3"])


@pytest.mark.slow
def test_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "read_medquad", lambda *_, **__: pages())
    monkeypatch.setattr(costs, "rerank", late_interaction)
    small = "--passages 8 --indexed 60 --candidates 4 --tokens 32 --nodes 60 --rounds 1"
    tables = costs.main([*costs.PARTS, "--medquad", str(tmp_path), *ENCODER, *small.split()])
    assert [*tables] == [*costs.PARTS]
    for table in tables.values():
        assert (table["ms"] > 0).all() and len(table) > 1
    with pytest.raises(SystemExit):
        costs.main(["reranking"])


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


def late_interaction(
    ids: list[Any], queries: list[Any], passages: list[Any]
) -> list[list[dict[str, Any]]]:
    """Stands for PyLate's ``rerank``."""
    return [
        [
            {"id": docno, "score": float((query @ matrix.T).amax(1).sum())}
            for docno, matrix in zip(*each, strict=True)
        ]
        for query, *each in zip(queries, ids, passages, strict=True)
    ]


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
    assert f"python -m experiments.{program}" in capsys.readouterr().out


@pytest.mark.slow
def test_published_values_stand_beside_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patched(dual_encoders, texts, monkeypatch)
    monkeypatch.setattr(dual_encoders.Bench, "teacher", TEACHER)
    small = [*ENCODER, *PAIR.split(), "--unlabeled-share", "0.5"]
    given = ["pair", "table3", "--collection", "texts", "--output", str(tmp_path), *small]
    table = papers.main([*given, "--measures", "Success@5", "RR@10"])
    assert table is not None
    row = table.set_index("system").loc["PAIR, w/o SP"]
    assert row["Success@5 (published)"] == "0.740" and row["Success@5"][:2] in ("0.", "1.")
    assert table["Success@5 (published)"].notna().sum() == 6
    assert (tmp_path / "published.csv").exists()


# --- HGAT on patents


@pytest.mark.slow
def test_patents(
    miniature: Miniature, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyterrier_pisa", reason="the first stage is PISA, for x86-64 Linux")
    found = (text for document in miniature.documents.values() for _, text in document.passages)
    words = tuple(
        sorted({word for text in found for word in re.findall(r"[^\W\d_]+", text.lower())})
    )
    small = "--depth 4 --passages 3 --repeats 1 --runs 2 --passage-tokens 12 --query-tokens 12 --frozen-layers 0"
    arguments = [
        *small.split(),
        "--encoder",
        tiny.checkpoint(words),
        "--variants",
        "NO_LB",
        "NO_LB_NS",
    ]
    arguments += ["--output", str(tmp_path)]
    table = clef_ip_2013.main(arguments)
    assert table["model"].tolist() == ["BM25", "MaxSim", "std_NO_LB", "late_NO_LB_NS"]
    values = pd.read_csv(tmp_path / "values.csv").set_index(["model", "seed"])
    assert len(values) == 6 and values.apply(lambda column: column.between(0, 1)).all(axis=None)
    lambdas, relations = (
        pd.read_csv(tmp_path / f"{name}.csv", header=[0, 1], index_col=[0, 1])
        for name in ("lambdas", "relations")
    )
    assert lambdas.index.tolist() == [("lambda", 1), ("lambda", 2), ("lambda", 3), ("alpha", 0)]
    assert np.isnan(lambdas["mean"].loc[("alpha", 0)]["std_NO_LB"])
    np.testing.assert_allclose(relations["mean"].groupby(level="layer").sum(), 1)
    assert (tmp_path / "boxplots.svg").exists()
    assert (values["Recall@100"] > 0.3).all()  # the first stage is a real one
    tested = {topic.tid for topic in miniature.split_topics("2013/test") if topic.language == "EN"}
    for file in (tmp_path / "runs").iterdir():
        run = pd.read_csv(file, dtype=str)
        assert {*run["qid"]} == tested
        assert run.groupby(["qid", run["docno"].str.partition("%p")[0]]).size().max() == 3


# --- what each system learns from


def options(module: Any, folder: Path, arguments: str) -> Any:
    return module.command_line().parse_args([*ENCODER, *arguments.split(), "--output", str(folder)])
