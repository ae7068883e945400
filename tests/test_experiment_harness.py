"""Shared by all experiments: collections, stored runs, tables, command lines, measurements."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
from datasets import Dataset
from experiment_tools import pages, texts
from ir_measures import RR

from experiments.collections import open_collection
from experiments.collections.ir_datasets import read_ir_datasets
from experiments.collections.numpydoc import read_numpydoc
from experiments.harness.calibration import calibrated, reliability, sure_thresholds
from experiments.harness.collection import SPLITS, Collection, Queries
from experiments.harness.command import add_options, parse, parser
from experiments.harness.cost import in_process
from experiments.harness.judgments import false_negatives, with_hidden
from experiments.harness.results import OPTIONS, Results, claim, stored
from experiments.text_rerankers import by_query_length

NUMPY = "irds:pyterrier-graph/numpydoc/numpy"


def test_texts_of_documents_and_passages() -> None:
    assert texts().texts(["beta1", "alpha0", "unknown"]) == {"alpha0": "alpha\nalpha mu", "beta1": "beta\nbeta nu"}
    passages = pages().passages()
    assert [record["docno"] for record in passages.get_corpus_iter(verbose=False)][:3] == [
        "alpha%p0",
        "alpha%p1",
        "beta%p0",
    ]
    assert passages.texts(["beta%p0"]) == {"beta%p0": "mu nu"}
    run = pd.DataFrame({"qid": "1", "docno": ["beta%p1", "alpha%p0"]})
    assert passages.with_texts(run)["text"].tolist() == ["nu", "mu nu"]
    with pytest.raises(KeyError, match="1 candidates are not in the collection: gone"):
        texts().with_texts(pd.DataFrame({"qid": "1", "docno": ["gone", "alpha0"]}))


@pytest.mark.parametrize("fold", range(5))
def test_queries_are_divided(fold: int) -> None:
    splits = texts().split(fold=fold)
    qids = [set(splits[name].topics["qid"]) for name in SPLITS]
    everything = set(texts().all_queries.topics["qid"])
    assert set().union(*qids) == everything and sum(map(len, qids)) == len(everything)
    assert [set(splits[name].qrels["qid"]) for name in SPLITS] == qids
    others = texts().split(fold=(fold + 1) % 5)["test"].topics["qid"]
    assert not set(others) & qids[2]


def test_validation_queries_are_held_out() -> None:
    collection = read_ir_datasets(NUMPY, train=f"{NUMPY}/train", test=f"{NUMPY}/test")
    splits = collection.split(dev_queries=7)
    train, dev = (set(splits[name].topics["qid"]) for name in ("train", "dev"))
    assert len(dev) == 7 and not train & dev and train | dev == set(collection.queries["train"].topics["qid"])
    given = read_ir_datasets(NUMPY, train=f"{NUMPY}/train", dev=f"{NUMPY}/dev", test=f"{NUMPY}/test").split()
    assert set(given["dev"].topics["qid"]) == set(read_numpydoc("numpy").queries["dev"].topics["qid"])
    with pytest.raises(ValueError, match="need each other"):
        read_ir_datasets(NUMPY, test=f"{NUMPY}/test")


def test_collections_by_name(tmp_path: Path) -> None:
    def opened(name: str, path: Path | None = None) -> Collection:
        splits = dict.fromkeys(("train", "dev", "test"))
        return open_collection(Namespace(collection=name, path=path, passages=10, **splits))

    assert opened("numpydoc-numpy").structured
    assert opened(f"{NUMPY}/dev,{NUMPY}/test").name == "pyterrier-graph/numpydoc/numpy/dev"
    for name, problem in (("vaswani", "needs the folder"), ("other", "unknown collection")):
        with pytest.raises(ValueError, match=problem):
            opened(name)
    for name in ("medquad", "trec-car", "cranfield", "vaswani"):
        with pytest.raises(FileNotFoundError):
            opened(name, tmp_path)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = parser("What it is.", ["one", "two"], ["one"])
    add_options(command, "more", k=([1], "several"), rate=(0.5, "one"), flag=(False, "a flag"), name=(str, "none"))
    presets = {"numpydoc-numpy": {"rate": 0.25}, "": {"rate": 0.125}}
    given = ["--output", str(tmp_path / "out"), "--k", "2", "3"]
    collection, options = parse(command, presets, ["numpydoc-numpy", *given])
    assert collection.name == "numpydoc/numpy" and (tmp_path / "out").is_dir()
    assert (options.k, options.rate, options.flag, options.name) == ([2, 3], 0.25, False, None)
    assert options.systems == ["one"]
    assert parse(command, presets, ["numpydoc-numpy", *given, "--rate", "1"])[1].rate == 1
    assert parse(command, presets, [f"{NUMPY}/dev", *given, "--flag"])[1].rate == 0.125
    with pytest.raises(SystemExit):
        parse(command, presets, ["vaswani", *given])
    assert "vaswani needs the folder" in capsys.readouterr().err


def scored(scores: np.ndarray, relevant: np.ndarray) -> tuple[pd.DataFrame, pd.DataFrame]:
    run = pd.DataFrame({"qid": "1", "docno": [f"d{n}" for n in range(len(scores))], "score": scores})
    return run, run[["qid", "docno"]].assign(label=relevant.astype(int))


def test_thresholds_that_judgments_support() -> None:
    scores = np.arange(1000) / 1000
    relevant = scores >= 0.8
    relevant[[700, 720]] = True
    relevant[[805, 810, 815]] = False
    positive, negative = sure_thresholds(*scored(scores, relevant))
    above, below = scores >= positive, scores < negative
    assert relevant[above].mean() >= 0.9 and relevant[scores >= positive - 0.001].mean() < 0.9
    assert relevant[below].mean() <= 0.01 and relevant[scores < negative + 0.002].mean() <= relevant.mean()
    assert negative < positive
    for judged in (np.zeros(1000, dtype=bool), np.arange(1000) % 2 == 0):
        with pytest.raises(ValueError, match="never sure enough"):
            sure_thresholds(*scored(scores, judged))


def test_a_calibrated_score_is_a_probability() -> None:
    random = np.random.default_rng(0)
    logits = random.normal(size=4000) * 2
    run, qrels = scored(logits, random.random(4000) < 1 / (1 + np.exp(1 - 0.5 * logits)))
    by_docno = run.set_index("docno")["score"]
    reranker = pt.apply.generic(lambda found: found.assign(score=found["docno"].map(by_docno)))
    found = calibrated(reranker, run, qrels)(run.drop(columns="score"))
    np.testing.assert_allclose(found["score"], 1 / (1 + np.exp(1 - 0.5 * logits)), atol=0.05)
    bins = reliability(found, qrels)
    assert bins["candidates"].sum() == 4000
    large = bins[bins["candidates"] > 300]
    np.testing.assert_allclose(large["relevant"], large["probability"], atol=0.07)
    with pytest.raises(ValueError, match="0 of 4000"):
        calibrated(reranker, run, qrels.assign(label=0))


def test_hidden_judgments() -> None:
    qrels = pd.DataFrame([(f"{q}", f"d{q}{n}", int(n < 4)) for q in range(10) for n in range(q % 3 + 3)],
                         columns=["qid", "docno", "label"])  # fmt: skip
    queries = Queries(pd.DataFrame({"qid": [f"{q}" for q in range(10)], "query": "x"}), qrels)
    left, hidden = with_hidden(queries, 0.5)
    assert len(hidden) == round(0.5 * qrels["label"].sum()) and (hidden["label"] == 1).all()
    assert len(left.qrels) + len(hidden) == len(qrels) and {*left.qrels[left.qrels["label"] > 0]["qid"]} == {
        *qrels["qid"]
    }
    most, _ = with_hidden(queries, 0.99)
    assert (most.qrels.groupby("qid")["label"].sum() == 1).all()
    none, nothing = with_hidden(queries, 0.0)
    assert not len(nothing) and none.qrels.equals(qrels)
    row = hidden.iloc[0]
    again = [row["docno"]] * 2  # counts once
    columns = {"positive_docno": ["a", "b"], "negative_1_docno": again, "negative_2_docno": ["x", "y"]}
    ids = Dataset.from_dict({"qid": [row["qid"]] * 2, **columns})
    assert false_negatives(ids, hidden) == (3, 1)


def run_of(places: dict[str, int]) -> pd.DataFrame:
    """A run that has the relevant document of each query at some place."""
    rows = [
        (qid, "right" if place == rank else f"d{rank}", -float(rank), rank)
        for qid, place in places.items()
        for rank in range(3)
    ]
    return pd.DataFrame(rows, columns=["qid", "docno", "score", "rank"])


def test_results_are_stored_and_tabulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    qids = [f"q{n}" for n in range(6)]
    queries = Queries(
        pd.DataFrame({"qid": qids, "query": "word"}), pd.DataFrame({"qid": qids, "docno": "right", "label": 1})
    )
    made: list[str] = []

    def results() -> Results:
        found = Results(tmp_path, queries, [RR @ 10])
        for name, place in (("BM25", 1), ("better <= 2", 0)):
            for seed in range(1 + place):
                found.add(
                    name, lambda name=name, place=place: made.append(name) or run_of(dict.fromkeys(qids, place)), seed
                )
        return found

    table = results().table(groups={"all": qids, "some": qids[:2], "none": []})
    assert table["queries"].tolist() == ["all (6)"] * 2 + ["some (2)"] * 2
    assert table["RR@10"].str[:5].tolist() == ["0.500", "1.000"] * 2
    assert made == ["BM25", "BM25", "better <= 2"]
    assert {file.name for file in tmp_path.glob("runs/*")} == {"BM25-0.csv.gz", "BM25-1.csv.gz", "better-to-2-0.csv.gz"}
    assert "than BM25" in capsys.readouterr().out
    assert len(pd.read_csv(tmp_path / "per_query.csv")) == 18
    assert results().table()["system"].tolist() == ["BM25", "better <= 2"]
    assert len(made) == 3
    (tmp_path / "runs" / "BM25-1.csv.gz").unlink()
    results()
    assert made[3:] == ["BM25"]
    with pytest.raises(RuntimeError, match="killed"):
        stored(tmp_path / "runs" / "other.csv.gz", lambda: (_ for _ in ()).throw(RuntimeError("killed")))
    assert not (tmp_path / "runs" / "other.csv.gz").exists()


def test_a_folder_belongs_to_some_options(tmp_path: Path) -> None:
    claim(tmp_path, Namespace(epochs=1, seeds=[0], output=tmp_path), ["seeds"])
    claim(tmp_path, Namespace(epochs=1, seeds=[1], output="elsewhere"), ["seeds"])
    with pytest.raises(SystemExit, match=r"made with other options \(epochs\)"):
        claim(tmp_path, Namespace(epochs=2, seeds=[0], output=tmp_path), ["seeds"])
    assert '"epochs": "1"' in (tmp_path / OPTIONS).read_text("utf-8")


def test_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "printing.py").write_text("import sys\nprint('a line')\nprint(*sys.argv[1:], 2.5)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert in_process("printing", 1, "7") == [1, 7, 2.5]


def test_groups_by_query_length() -> None:
    frame = pd.DataFrame({"qid": list("012345"), "query": ["", "a", "a b c", "a  b  c", "a b c d", "a b c d e f"]})
    groups = by_query_length(frame, [1, 4], str.split)
    assert {name: group["qid"].tolist() for name, group in groups.items()} == {
        "length <= 1": ["0", "1"],
        "1 < length <= 4": ["2", "3", "4"],
        "length > 4": ["5"],
    }
