"""What all experiments share: collections, stored runs, tables, command lines, measurements."""

from __future__ import annotations

import time
from argparse import Namespace
from pathlib import Path

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import tiny
from datasets import Dataset
from experiment_tools import WORDS, pages, texts
from ir_measures import RR, nDCG
from scipy.stats import ttest_rel

from experiments.collections import open_collection
from experiments.collections.ir_datasets import read_ir_datasets
from experiments.collections.numpydoc import read_numpydoc, read_see_also
from experiments.harness import needs
from experiments.harness.calibration import calibrated, reliability, sure_thresholds
from experiments.harness.collection import ALL, SPLITS, Collection, Queries, joined
from experiments.harness.command import add_options, parse, parser
from experiments.harness.cost import fastest, in_process, side_by_side
from experiments.harness.judgments import false_negatives, with_hidden
from experiments.harness.results import OPTIONS, Results, choice, claim, slug, stored
from experiments.harness.significance import differences
from pyterrier_graph.documents import StructuredDocument

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


def test_whole_texts_as_passages() -> None:
    whole = texts().whole()
    found = {r["docno"]: StructuredDocument.from_record(r) for r in whole.get_corpus_iter(verbose=False)}
    assert found["alpha0"].passages() == ["alpha\nalpha mu"]
    assert set(whole.all_queries.qrels["docno"]) == {f"{word}0%p0" for word in WORDS}


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


def test_samples() -> None:
    queries = texts().all_queries
    some = queries.sample(5)
    assert len(some.topics) == 5 and set(some.qrels["qid"]) == set(some.topics["qid"])
    assert some.topics["qid"].tolist() == [qid for qid in queries.topics["qid"] if qid in set(some.topics["qid"])]
    assert queries.sample(None) is queries.sample(1000) is queries
    again = joined([some, queries.without(some)])
    assert set(again.topics["qid"]) == set(queries.topics["qid"])


def test_structured_datasets_become_passages() -> None:
    collection = read_ir_datasets(f"{NUMPY}/test")
    corpus = {record["docno"]: record["text"] for record in collection.get_corpus_iter(verbose=False)}
    assert set(collection.queries[ALL].qrels["docno"]) <= corpus.keys() and all("%p" in docno for docno in corpus)
    some = list(corpus)[5:500:40]
    assert collection.texts(some) == {docno: corpus[docno] for docno in some}


def test_see_also_queries() -> None:
    collection = read_see_also("numpy")
    assert {*next(iter(collection.documents()))} == {"docno", "title", "text"}
    looked_for = [set(collection.queries[name].qrels["docno"]) for name in ("extra", "dev")]
    assert not looked_for[0] & looked_for[1] and all(looked_for)
    for part in collection.queries.values():
        assert set(part.topics["qid"]) == set(part.qrels["qid"]) and part.topics["qid"].is_unique
        assert not part.qrels["docno"].str.contains("%p").any() and not part.qrels.duplicated(["qid", "docno"]).any()


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


def test_wrong_values_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = parser("What it is.", ["one"], ["one"])
    given = ["irds:vaswani", "--output", str(tmp_path / "out")]
    for wrong, problem in (
        (["--train", ""], "--train needs the id of a dataset of ir_datasets"),
        (["--train", "irds:vaswani"], "--train and --test need each other"),
        (["--train", "irds:vaswani", "--test", "irds:none"], "ir_datasets has no dataset 'irds:none'"),
        (["--queries", "0"], "--queries must be at least 1, got 0"),
    ):
        with pytest.raises(SystemExit):
            parse(command, {}, [*given, *wrong])
        assert problem in capsys.readouterr().err


def test_needs(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(needs, "milliseconds", lambda name, tokens, training: (36.0, 10**6, 256) if training else (
        3.6, 10**6, 256))  # fmt: skip
    options = Namespace(collection="irds:msmarco-passage", train="irds:msmarco-passage/train/judged", queries=10)
    options = Namespace(**vars(options), test="irds:msmarco-passage/dev/small", train_queries=None, encoder="e")
    work = [needs.Work("one", 100_000, 8), needs.Work("other", 200_000, 16, training=True)]
    seen: list[needs.Sizes] = []
    with caplog.at_level("INFO"):
        hours = needs.say(options, lambda _, sizes: seen.append(sizes) or needs.Needs(work, vectors=1))  # type: ignore[func-returns-value]
    assert seen == [(8_841_823, 502_939, 10)]
    assert hours == pytest.approx(0.1 + 2.0)
    operations = 2e6 * (100_000 * 8 + 3 * 200_000 * 16)
    assert f"computed, not measured: {operations / needs.SUSTAINED / 3600:.1f}" in caplog.text
    assert f"{8_841_823 * (needs.BM25_BYTES + 1024) / 2**30:.1f} GiB" in caplog.text
    with pytest.raises(ValueError, match="ir_datasets has no dataset .irds:none"):
        needs.sizes_of(Namespace(**vars(options) | {"collection": "irds:none"}))


def test_an_encoder_is_measured() -> None:
    duration, parameters, dimension = needs.milliseconds(tiny.checkpoint(), 8, True)
    assert duration > 0 and dimension == 16 and parameters > 0
    with pytest.raises(ValueError, match="reads at most"):
        needs.milliseconds(tiny.checkpoint(), 10_000, False)
    with pytest.raises(ValueError, match="'nothing-here' cannot be loaded"):
        needs.milliseconds("nothing-here", 8, False)


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


def test_differences(tmp_path: Path) -> None:
    values = [("a", "1", 0.5), ("a", "2", 0.7), ("a", "3", 0.2), ("b", "1", 0.4), ("b", "2", 0.4), ("b", "3", 0.3)]
    frame = pd.DataFrame(values, columns=["name", "qid", "value"]).assign(measure="nDCG@10")
    found = differences(frame, tmp_path, [nDCG @ 10]).set_index(["system", "other"])
    assert found.loc[("a", "b"), "difference"] == pytest.approx(0.1)
    assert found.loc[("a", "b"), "p"] == pytest.approx(ttest_rel([0.5, 0.7, 0.2], [0.4, 0.4, 0.3]).pvalue)
    assert len(pd.read_csv(tmp_path / "differences.csv")) == 2


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


def test_names() -> None:
    assert slug("2 < length <= 4") != slug("length > 4")
    assert choice("PAIR, w/ PSR in fine-tuning") == "pair-with-psr-in-fine-tuning"
    assert choice("papers' network, w/o mask") == "papers-network-without-mask"


def test_measurements() -> None:
    calls: list[str] = []
    actions = {"one": lambda: (calls.append("one"), time.sleep(0.002)), "two": lambda: time.sleep(0.02)}
    table = side_by_side(actions, 2)
    assert calls == ["one"] * 3 and table.loc["one", "ratio"] == 1 and table.loc["two", "ratio"] > 2
    assert 0.002 <= fastest(actions["one"], 2) < 0.02


def test_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "printing.py").write_text("import sys\nprint('a line')\nprint(*sys.argv[1:], 2.5)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert in_process("printing", 1, "7") == [1, 7, 2.5]
