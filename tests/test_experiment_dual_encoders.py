"""The experiment on dual-encoders, in miniature."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import tiny
from experiment_tools import Matches, pages, texts

import pyterrier_graph as ptg
from experiments import dual_encoders
from experiments.dual_encoders import BM25, CHOICES, PAIR, START, SYSTEMS, Bench
from experiments.harness import command
from experiments.harness.collection import Collection, Queries

pytestmark = pytest.mark.slow  # whole experiments, on tiny data

QUICK = (
    "--negatives 1 --depth 6 --epochs 1 --batch 4 --max-tokens 8 --teacher-pairs 4 --teacher-epochs 1 --dev-queries 4"
).split()


class Teacher(pt.Transformer):
    """Gives a high probability to documents that have the query's first word."""

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        has = [query.split()[0] in text.split() for query, text in zip(inp["query"], inp["text"], strict=True)]
        return pt.model.add_ranks(inp.assign(score=np.where(has, 0.95, 0.05)))


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dual_encoders, "bm25", Matches)
    monkeypatch.setattr("sentence_transformers.SentenceTransformer._create_model_card", lambda *_, **__: None)


@pytest.fixture
def teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "teacher", Teacher())


def collection() -> Collection:
    return texts(1)


def options(folder: Path, *more: str) -> Any:
    arguments = ["texts", "--encoder", tiny.checkpoint(), *QUICK, "--output", str(folder), *more]
    return dual_encoders.command_line().parse_args(arguments)


@pytest.mark.usefixtures("teacher")
def test_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    systems = ["in-batch-negatives", "denoising", "pair"]
    chosen = options(tmp_path, "--unlabeled-share", "0.5", "--seeds", "0", "1", "--systems", *systems)
    table = dual_encoders.run(collection(), chosen)
    assert table["system"].tolist() == [BM25, START, *(CHOICES[name] for name in systems)]
    trained = table.set_index("system").iloc[2:]
    assert trained.notna().all(axis=None) and trained["R@5"].str.contains("±").all()
    assert pd.read_csv(tmp_path / "mined.csv")["examples"].nunique() == 4
    similarities = {file.name for file in (tmp_path / "similarities").iterdir()}
    assert similarities == {file.name for file in (tmp_path / "runs").iterdir()} - {"BM25-0.csv.gz"}
    assert [*pd.read_csv(tmp_path / "similarities" / "PAIR-0.csv.gz")] == ["positive_query", "positive_negative"]
    # an interrupted experiment goes on with the next run
    (tmp_path / "runs" / "PAIR-1.csv.gz").unlink()
    (tmp_path / "checkpoints").rename(tmp_path / "elsewhere")
    fitted = []
    fit = ptg.DualEncoder.fit_examples
    monkeypatch.setattr(
        ptg.DualEncoder, "fit_examples", lambda model, *a, **o: fitted.append(model) or fit(model, *a, **o)
    )
    pd.testing.assert_frame_equal(dual_encoders.run(collection(), chosen), table)
    assert [model.training.seed for model in fitted] == [1]


@pytest.mark.usefixtures("teacher")
def test_what_each_system_learns_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, tuple[Any, ...]] = {}

    def fit_examples(
        model: ptg.DualEncoder, examples: Any, run: Any, qrels: Any, *, pretraining_examples: Any
    ) -> ptg.DualEncoder:
        columns, first = len(examples.column_names), pretraining_examples
        alphas = model.training.alpha, None if first is None else model.pretraining.alpha
        seen[name] = columns, set(examples["query"]), first and set(first["query"]), alphas, model.separate_encoders
        assert set(run["qid"]) == set(qrels["qid"]) == set(bench.dev.topics["qid"])
        return model

    monkeypatch.setattr(ptg.DualEncoder, "fit_examples", fit_examples)
    bench = Bench(collection(), options(tmp_path, "--unlabeled-share", "0.5"))
    for name, system in SYSTEMS.items():  # noqa: B007  # fit_examples reads the name
        bench.trained(system, "0.9/0.1", 0, name)
    labeled, others = set(bench.train.topics["query"]), set(bench.unlabeled["query"])
    assert labeled and others and not labeled & others
    assert {name: found[0] for name, found in seen.items() if found[0] != 3} == {"in-batch negatives": 2}
    assert all(found[1] == labeled for found in seen.values())
    stages = {name: found[2:4] for name, found in seen.items()}
    assert stages == {
        "in-batch negatives": (None, (0.0, None)),
        "+ hard negatives": (None, (0.0, None)),
        "+ denoising": (None, (0.0, None)),
        "PAIR": (others, (0.0, 0.1)),
        "PAIR, w/o PSR": (others, (0.0, 0.0)),
        "PAIR, w/o KD": (labeled, (0.0, 0.1)),
        "PAIR, w/ PSR in fine-tuning": (others, (0.1, 0.1)),
        "PAIR, separate encoders": (others, (0.0, 0.1)),
        "PAIR, w/o pre-training": (None, (0.0, None)),
    }
    assert [name for name, found in seen.items() if found[4]] == ["PAIR, separate encoders"]


@pytest.mark.usefixtures("teacher")
def test_thresholds_of_table_5(tmp_path: Path) -> None:
    chosen = options(tmp_path, "--thresholds", "0.9/0.1", "0.8/0.2", "--systems", "hard-negatives", "denoising")
    table = dual_encoders.run(collection(), chosen)
    assert table["system"].tolist() == [BM25, START, "+ hard negatives", "+ denoising", "+ denoising, 0.8/0.2"]


def test_a_teacher_is_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    teacher = Bench(collection(), options(tmp_path)).teacher
    pairs = pd.DataFrame({"qid": "1", "query": "alpha", "docno": ["a", "b"], "text": ["alpha mu", "beta mu"]})
    scores = teacher(pairs)["score"]
    assert scores.between(0, 1).all()
    monkeypatch.setattr(ptg.CrossEncoderReranker, "fit", lambda *_: pytest.fail("trained again"))
    np.testing.assert_array_equal(Bench(collection(), options(tmp_path)).teacher(pairs)["score"], scores)
    other = options(tmp_path, "--teacher", str(tmp_path / "teacher" / "cross-encoder"))
    given = Bench(collection(), other).teacher(pairs)["score"]  # the same order, other probabilities
    assert given.between(0, 1).all() and (np.argsort(given) == np.argsort(scores)).all()


def test_a_calibrated_teacher_and_false_negatives(tmp_path: Path) -> None:
    several = texts(4)
    qrels = several.all_queries.qrels
    other = qrels.assign(docno=qrels["docno"].str.replace("0", "1"))  # both texts of a word are relevant
    judged = Queries(several.all_queries.topics, pd.concat([qrels, other], ignore_index=True))
    several = replace(several, queries={"all": judged})
    more = [
        "--dev-queries",
        "8",
        "--hide",
        "0.4",
        "--thresholds",
        "calibrated",
        "0.9/0.1",
        "--systems",
        "hard-negatives",
        "denoising",
    ]
    bench = Bench(several, options(tmp_path, *more))
    first = pt.apply.doc_score(lambda row: 0.95 if row["text"].split()[0] == row["query"].split()[0] else 0.05)
    bench.teacher = first >> pt.apply.generic(pt.model.add_ranks)
    assert bench.hidden["qid"].is_unique and len(bench.hidden) == round(0.8 * len(bench.train.topics))
    assert {*bench.train.qrels["qid"]} == {*bench.train.topics["qid"]}  # one is kept
    with_all = bench.mined("labeled", SYSTEMS["+ hard negatives"], "calibrated")
    assert len(with_all) == len(bench.train.qrels)
    positive, negative = bench.calibration
    assert 0.05 < negative < positive <= 0.95
    bench.mined("labeled", SYSTEMS["+ denoising"], "calibrated")
    wrong = pd.read_csv(tmp_path / "negatives.csv").set_index("examples")["hidden"]
    assert wrong["labeled True no teacher"] > 0 and wrong["labeled True calibrated"] == 0
    assert pd.read_csv(tmp_path / "calibration.csv")["relevant"].tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    "wrong, problem",
    [
        (["--thresholds", "0.1/0.9"], "write s_pos/s_neg"),
        (["--thresholds", "sure"], "write s_pos/s_neg"),
        (["--hide", "1"], "--hide is a share"),
        (["--epochs", "0"], "--epochs must be at least 1"),
        (["--teacher", "nothing"], "no such checkpoint"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_indexed(
    wrong: list[str], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(command, "open_collection", lambda *_: pytest.fail("opened"))
    with pytest.raises(SystemExit) as ended:
        dual_encoders.main(["numpydoc-numpy", "--encoder", tiny.checkpoint(), "--output", str(tmp_path), *wrong])
    assert problem in f"{capsys.readouterr().err}{ended.value}"


def test_what_msmarco_needs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    named = ["--train", "irds:msmarco-passage/train/judged", "--test", "irds:msmarco-passage/dev/small"]
    small = ["--encoder", tiny.checkpoint(), "--max-tokens", "8", "--train-queries", "1000", "--seeds", "0", "1"]
    few = ["--systems", "in-batch-negatives", "pair", "--epochs", "1", "--negatives", "2", "--depth", "7", "--needs"]
    with caplog.at_level("INFO"), pytest.raises(SystemExit):
        dual_encoders.main(["irds:msmarco-passage", *named, *small, *few, "--output", str(tmp_path / "none")])
    assert "8,841,823 documents, 1,000 queries for training and 6,980 for the test" in caplog.text
    assert "a teacher's scores: 7,000 texts" in caplog.text
    assert "training: 24,000 texts" in caplog.text  # one stage and two, two seeds, four texts a query
    assert "encoding the corpus for each system: 44,209,115 texts" in caplog.text
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("sign", [1, -1])
def test_a_teacher_that_is_worse_than_its_student(sign: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(collection(), options(tmp_path))
    bench.teacher = Teacher() >> pt.apply.doc_score(lambda row: sign * (row["score"] + 0.01 * ("mu" in row["text"])))
    with caplog.at_level("INFO", "experiments.dual_encoders"):
        bench.check_teacher()
    record = caplog.records[-1]
    assert record.levelname == ("INFO" if sign > 0 else "WARNING")
    assert record.args[0] > 0.9 if sign > 0 else record.args[0] < record.args[1]


def test_queries_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "questions.txt").write_text("1 how to sort?\n2 mean: of what\n", "utf-8")
    bench = Bench(collection(), options(tmp_path, "--unlabeled", str(tmp_path / "questions.txt")))
    assert bench.unlabeled["query"].tolist() == ["how to sort?", "mean: of what"]
    assert len(bench.train.topics) + len(bench.dev.topics) + len(bench.test.topics) == len(tiny.WORDS)


def test_late_interaction_as_a_teacher(tmp_path: Path) -> None:
    bench = Bench(pages(), options(tmp_path, "--teacher", "late-interaction"))
    word, other = tiny.WORDS[8], tiny.WORDS[0]
    passages = {f"{word}%p0": "mu nu", f"{word}%p1": "nu", f"{other}%p0": "mu nu"}
    pairs = pd.DataFrame({"docno": [*passages], "text": [*passages.values()]}).assign(qid="1", query=f"{word} mu")
    scored = bench.teacher(pairs).set_index("docno")["score"]
    assert scored.between(0, 1).all()
    assert scored[f"{word}%p0"] > scored[f"{other}%p0"]  # only the titles differ
    alone = bench.teacher(pairs.iloc[2:])["score"].item()
    assert alone == pytest.approx(scored[f"{other}%p0"], abs=1e-6)  # a score does not depend on the other passages


def test_similarities(tmp_path: Path) -> None:
    bench = Bench(collection(), options(tmp_path))
    model = bench.dual_encoder(PAIR, 0)
    found = bench.similarities(model)
    examples = ptg.HardNegativeMiner(bench.bm25, bench.texts, hard_negatives=1, depth=6).labeled(*bench.test).dataset
    query = model.encode_queries([examples[0]["query"]])[0]
    positive, negative = (model.encode_docs([examples[0][name]])[0] for name in ("positive", "negative_1"))
    np.testing.assert_allclose(found.iloc[0].tolist(), [positive @ query, positive @ negative], rtol=1e-4)
