"""The experiment on LGRe and cross-encoders, in miniature."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyterrier as pt
import pytest
import tiny
from experiment_tools import Matches, cross_encoder, texts

import pyterrier_graph as ptg
from experiments import text_rerankers
from experiments.harness.collection import Collection, Queries

pytestmark = pytest.mark.slow  # whole experiments, on tiny data

NUMPY = "irds:pyterrier-graph/numpydoc/numpy"


@pytest.fixture(autouse=True)
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_rerankers, "bm25", Matches)


def options(folder: Path, *more: str) -> Any:
    words = (
        f"texts --encoder {cross_encoder()} --depth 6 --queries 6 --folds 3 --max-tokens 32 --epochs 1 --pairs 2 "
        f"--batch 2 --init identity --learning-rate 0.01 --encoder-learning-rate 0.01 --output {folder}"
    )
    return text_rerankers.command_line().parse_args([*words.split(), *more])


def test_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    systems = ["--systems", *text_rerankers.SYSTEMS]
    chosen = options(tmp_path, *systems, "--layers", "1", "all", "--by-length", "--query-length", "2")
    table = text_rerankers.run(texts(), chosen)
    trained = ["cross-encoder", "cross-encoder, max passage", "LGRe, layers 1", "LGRe, layers all"]
    assert table["system"].tolist() == ["BM25", "off the shelf", *trained] * 2
    assert table["queries"].unique().tolist() == ["all (6)", "length <= 2 (6)"]
    assert table.columns.tolist() == ["queries", "system", *map(str, text_rerankers.MEASURES)]
    # a fold that is missing is made, and nothing else
    made: list[int] = []
    fit = ptg.CrossEncoderReranker.fit
    monkeypatch.setattr(ptg.CrossEncoderReranker, "fit", lambda self, *data: made.append(self.seed) or fit(self, *data))
    monkeypatch.setattr(ptg.LGReReranker, "fit", lambda *_: pytest.fail("trained again"))
    (tmp_path / "runs" / "cross-encoder-0.csv.gz").unlink()
    (tmp_path / "folds" / "cross-encoder-0" / "fold2.csv.gz").unlink()
    pd.testing.assert_frame_equal(text_rerankers.run(texts(), chosen), table)
    assert made == [0]
    with pytest.raises(SystemExit, match=r"other options \(pairs\)"):
        text_rerankers.run(texts(), options(tmp_path, *systems, "--layers", "1", "all", "--pairs", "5"))


def test_choices_of_tables_3_and_4(tmp_path: Path) -> None:
    chosen = options(tmp_path, "--systems", "lgre", "--word-graph", "full", "bipartite", "--distances", "none", "pair")
    made = text_rerankers.systems(chosen, cross_encoder())
    names = [f"LGRe, word graph {w}, distance {d}" for w in ("full", "bipartite") for d in ("none", "pair")]
    assert list(made) == names
    found: Any = made["LGRe, word graph bipartite, distance pair"](7)
    assert (found.config.word_graph, found.config.init, found.seed, found.max_tokens) == (
        "bipartite",
        "identity",
        7,
        32,
    )
    training = found.training
    assert (training.loss.distance, training.seed, training.pairs_per_epoch) == ("pair", 7, 2)
    assert (training.measure, training.patience, training.validation_candidates) == ("nDCG@20", None, None)


def test_all_learn_from_the_same_pairs(tmp_path: Path) -> None:
    chosen = options(tmp_path, "--systems", "cross-encoder", "lgre")
    made = [make(5) for make in text_rerankers.systems(chosen, cross_encoder()).values()]
    trainings: list[Any] = [vars(one.training) for one in made]  # type: ignore[attr-defined]
    different = {"loss", "ranking"}
    assert len({str({k: v for k, v in one.items() if k not in different}) for one in trainings}) == 1


def test_training_within_groups(tmp_path: Path) -> None:
    more = ["--systems", "cross-encoder", "--within-groups", "--query-length", "1", "--queries", "12"]
    collection = texts(4)
    topics, qrels = collection.queries["all"]
    short = topics.assign(query=[q.split()[0] if n % 2 else q for n, q in enumerate(topics["query"])])
    collection.queries["all"] = Queries(short, qrels)  # type: ignore[index]
    table = text_rerankers.run(collection, options(tmp_path, *more))
    assert table["system"].tolist() == ["BM25", "cross-encoder"] * 2
    sizes = [int(name.split("(")[1][:-1]) for name in table["queries"].unique()]
    assert sum(sizes) == 12
    for group, size in zip(("length-to-1", "length-over-1"), sizes, strict=True):
        assert len(list((tmp_path / group / "folds" / "cross-encoder-0").glob("fold*"))) == size


def test_adaptation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = "--adapt-queries 3 --adapt-candidates 4 --adapt-pairs 4 --max-tokens 16".split()
    more = ["--adapt", f"{NUMPY}/dev", *small]
    start = text_rerankers.adapted(options(tmp_path, *more))
    monkeypatch.setattr(ptg.CrossEncoderReranker, "fit", lambda *_: pytest.fail("trained again"))
    assert text_rerankers.adapted(options(tmp_path, *more)) == start
    run = pd.DataFrame({"qid": "1", "query": "alpha", "docno": ["a", "b"], "text": ["beta", "mu"], "score": 0.0})
    before, after = (ptg.CrossEncoderReranker(name, max_tokens=16)(run)["score"] for name in (cross_encoder(), start))
    assert not before.equals(after)
    with pytest.raises(pytest.fail.Exception):
        text_rerankers.adapted(options(tmp_path, *more, "--adapt-pairs", "7"))


def test_a_run_instead_of_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Matches(texts())(texts().all_queries.topics)
    monkeypatch.setattr(text_rerankers, "bm25", lambda *_: pytest.fail("indexed"))
    pt.io.write_results(found, str(tmp_path / "run.txt"))
    chosen = options(tmp_path, "--run", str(tmp_path / "run.txt"), "--depth", "2", "--queries", "4")
    task = text_rerankers.prepare(texts(), chosen)
    assert task.candidates.groupby("qid").size().tolist() == [2] * 4
    assert len(task.folds) == 3 and sum(map(len, task.folds)) == 4
    assert task.candidates["text"].tolist() == [
        *map(texts().texts(task.candidates["docno"]).get, task.candidates["docno"])
    ]


def test_folds_of_a_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_rerankers.ptg, "folds_of", lambda name: [{"a", name}, {"b", "x"}, {"c"}])
    chosen = options(tmp_path)
    chosen.collection, chosen.folds = "irds:one", None
    assert text_rerankers._folds({"a", "b", "c"}, chosen) == [{"a"}, {"b"}, {"c"}]


def splits() -> Collection:
    """A collection with training and test queries."""
    everything = texts(4)
    queries = everything.all_queries
    qids = queries.topics["qid"]
    parts = {"train": queries.among(qids[:24]), "dev": queries.among(qids[24:28]), "test": queries.among(qids[28:])}
    return replace(everything, queries=parts)


def test_a_split_instead_of_folds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = ["--checkpoint", cross_encoder(), "--encoder", "nothing", "--adapt", "irds:nothing"]
    more = ["--split", "--systems", "off-the-shelf", "cross-encoder", "lgre", "--against", "2", "--queries", "4"]
    seen: list[set[str]] = []
    fit = ptg.CrossEncoderReranker.fit
    monkeypatch.setattr(
        ptg.CrossEncoderReranker, "fit", lambda self, run, *rest: seen.append({*run["qid"]}) or fit(self, run, *rest)
    )
    table = text_rerankers.run(splits(), options(tmp_path, *checkpoint, *more))
    assert table["system"].tolist() == ["BM25", "off the shelf", "cross-encoder", "LGRe"]
    per_query = pd.read_csv(tmp_path / "per_query.csv")
    assert {*per_query["qid"]} <= {*splits().queries["test"].topics["qid"]} and per_query["qid"].nunique() == 4
    assert seen == [{*splits().queries["train"].topics["qid"]}]
    training = text_rerankers.systems(options(tmp_path, *more), cross_encoder())["LGRe"](0)
    assert training.training.negatives == 2  # type: ignore[attr-defined]


def test_what_cannot_work_is_refused_before_anything_is_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(text_rerankers, "bm25", lambda *_: pytest.fail("indexed"))
    with pytest.raises(SystemExit, match="no such checkpoint"):
        text_rerankers.run(texts(), options(tmp_path, "--checkpoint", str(tmp_path / "nothing")))
    with pytest.raises(SystemExit, match="no cross-encoder"):
        text_rerankers.run(texts(), options(tmp_path, "--checkpoint", tiny.checkpoint()))
    with pytest.raises(ValueError, match="identity"):
        text_rerankers.run(texts(), options(tmp_path, "--encoder", tiny.checkpoint(), "--systems", "lgre"))
    monkeypatch.setattr(text_rerankers, "run", lambda *_: pytest.fail("started"))
    small = ["numpydoc-numpy", "--output", str(tmp_path)]
    for wrong, problem in (
        (["--folds", "2"], "--folds 2: there are at least 3"),
        (["--split", "--within-groups"], "--split takes the place of folds"),
        (["--depth", "0"], "--depth must be at least 1"),
        (["--train", ""], "--train needs the id of a dataset"),
        (["--train", "irds:vaswani"], "numpydoc-numpy has its own queries"),
    ):
        with pytest.raises(SystemExit):
            text_rerankers.main([*small, *wrong])
        assert problem in capsys.readouterr().err


def test_what_robust04_needs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    robust = ["irds:disks45/nocr/trec-robust-2004", "--output", str(tmp_path / "none"), "--needs"]
    small = ["--encoder", cross_encoder(), "--max-tokens", "32", "--depth", "10", "--queries", "20", "--epochs", "2"]
    with caplog.at_level("INFO"), pytest.raises(SystemExit) as ended:
        text_rerankers.main([*robust, *small])
    assert ended.value.code == 0 and not (tmp_path / "none").exists()
    assert "528,155 documents, 250 queries for training and 20 for the test" in caplog.text
    # three systems, five folds, two epochs of 512 pairs
    assert "training: 30,720 texts of up to 32 tokens" in caplog.text
    assert "reranking: 600 texts" in caplog.text and "hours on this machine" in caplog.text


def test_passages_are_not_cut() -> None:
    task = text_rerankers.Task(pd.DataFrame(), pd.DataFrame({"docno": ["d%p0"]}), [])
    with pytest.raises(SystemExit, match="leave out max-passage"):
        text_rerankers.passages_of(task)


def test_presets_are_options() -> None:
    names = vars(text_rerankers.command_line().parse_args(["vaswani", "--output", "x"]))
    assert all(set(preset) <= set(names) for preset in text_rerankers.PRESETS.values())
