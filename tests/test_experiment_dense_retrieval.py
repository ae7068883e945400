"""The experiment on dual-encoders, and its collections."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import tiny
from test_experiment_text_reranking import Matches

from experiments import dense_retrieval, pair_compare
from experiments.collection import Collection, Query, TextCollection
from experiments.dense_retrieval import BM25, CHOICES, PAIR, START, SYSTEMS, Bench, Queries, Task, task, task_of
from pyterrier_graph.documents import Node
from pyterrier_graph.rerank.cross_encoder import CrossEncoderReranker
from pyterrier_graph.retrieve.dual_encoder import DualEncoder
from pyterrier_graph.training.mining import HardNegativeMiner

WORDS = tiny.WORDS[:10]
QUICK = "--negatives 1 --depth 6 --epochs 1 --batch 4 --max-length 8 --teacher-pairs 4 --teacher-epochs 1".split()


class Teacher(pt.Transformer):
    """Believes in documents that have the query's word."""

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        has = [query in text.split() for query, text in zip(inp["query"], inp["text"], strict=True)]
        return pt.model.add_ranks(inp.assign(score=np.where(has, 0.95, 0.05)))


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_retrieval, "index_bm25", lambda corpus, *_: Matches(corpus))
    monkeypatch.setattr(Bench, "teacher", Teacher())
    monkeypatch.setattr("sentence_transformers.SentenceTransformer._create_model_card", lambda *_, **__: None)


def toy() -> TextCollection:
    documents = [
        {"docno": f"{w}{n}", "title": w, "text": f"{w} {other}"}
        for w in WORDS
        for n, other in enumerate(("mu", "lambda"))
    ]
    topics = pd.DataFrame([{"qid": f"q{n}", "query": word} for n, word in enumerate(WORDS)])
    qrels = pd.DataFrame([{"qid": f"q{n}", "docno": f"{word}0", "label": 1} for n, word in enumerate(WORDS)])
    return TextCollection("toy", documents, topics, qrels)


def options(folder: Path, *more: str) -> Any:
    arguments = ["--model", tiny.checkpoint(), *QUICK, "--output", str(folder), *more]
    return dense_retrieval.parser().parse_args(arguments)


def toy_task(chosen: Any) -> Task:
    collection = toy()
    return task(collection, dense_retrieval.divided(collection.topics, collection.qrels), chosen)


def test_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = options(tmp_path, "--unlabeled-share", "0.5", "--seeds", "0", "1", "--systems", *CHOICES)
    table = dense_retrieval.run(toy_task(chosen), chosen)
    assert table["system"].tolist() == [BM25, START, *SYSTEMS]
    trained = table.set_index("system").loc[[*SYSTEMS]]
    assert trained.notna().all(axis=None) and trained["R@5"].str.contains("±").all()
    per_query = pd.read_csv(tmp_path / "per_query.csv")
    assert per_query.groupby("name")["seed"].nunique().to_dict() == {BM25: 1, START: 1} | dict.fromkeys(SYSTEMS, 2)
    mined = pd.read_csv(tmp_path / "mined.csv")
    assert mined["examples"].nunique() == 5  # labeled: in-batch, as found, denoised; pseudo labels of two kinds
    similarities = sorted(file.name for file in (tmp_path / "similarities").iterdir())
    assert similarities == sorted(file.name for file in (tmp_path / "runs").iterdir())
    assert len(similarities) == 1 + 2 * len(SYSTEMS)
    assert [*pd.read_csv(tmp_path / "similarities" / similarities[0])] == ["positive_query", "positive_negative"]
    # what was killed goes on with the next one
    (tmp_path / "runs" / "PAIR-1.csv.gz").unlink()
    (tmp_path / "checkpoints").rename(tmp_path / "elsewhere")
    fitted = []
    fit = DualEncoder.fit_examples
    monkeypatch.setattr(DualEncoder, "fit_examples", lambda model, *a, **o: fitted.append(model) or fit(model, *a, **o))
    pd.testing.assert_frame_equal(dense_retrieval.run(toy_task(chosen), chosen), table)
    assert [model.training.seed for model in fitted] == [1]


def test_what_each_system_learns_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, tuple[Any, ...]] = {}

    def fit_examples(model: DualEncoder, examples: Any, run: Any, qrels: Any, *, pretraining_examples: Any) -> Any:
        columns, first = len(examples.column_names), pretraining_examples
        alphas = model.training.alpha, None if first is None else model.pretraining.alpha
        seen[name] = columns, set(examples["query"]), first and set(first["query"]), alphas, model.separate_encoders
        assert set(run["qid"]) == set(qrels["qid"]) == set(asked.dev.topics["qid"])
        return model

    monkeypatch.setattr(DualEncoder, "fit_examples", fit_examples)
    chosen = options(tmp_path, "--unlabeled-share", "0.5")
    asked = toy_task(chosen)
    bench = Bench(asked, chosen)
    for name, system in SYSTEMS.items():
        bench.training(system, "0.9/0.1", 0, name)()
    labeled, others = set(asked.train.topics["query"]), set(asked.unlabeled["query"])
    assert not labeled & others
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


def test_thresholds_of_table_5(tmp_path: Path) -> None:
    chosen = options(tmp_path, "--unlabeled-share", "0.5", "--thresholds", "0.9/0.1", "0.8/0.2")
    chosen.systems = ["hard-negatives", "pair"]
    table = dense_retrieval.run(toy_task(chosen), chosen)
    assert table["system"].tolist() == [BM25, START, "+ hard negatives", "PAIR, 0.9/0.1", "PAIR, 0.8/0.2"]


def test_a_teacher_is_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(dense_retrieval, "index_bm25", lambda corpus, *_: Matches(corpus))
    chosen = options(tmp_path)
    teacher = Bench(toy_task(chosen), chosen).teacher
    pairs = pd.DataFrame({"qid": "1", "query": "alpha", "docno": ["a", "b"], "text": ["alpha mu", "beta mu"]})
    scores = teacher(pairs)["score"]
    assert scores.between(0, 1).all()
    monkeypatch.setattr(CrossEncoderReranker, "fit", lambda *_: pytest.fail("trained again"))
    again = Bench(toy_task(chosen), chosen).teacher
    np.testing.assert_array_equal(again(pairs)["score"], scores)
    other = options(tmp_path, "--teacher", str(tmp_path / "teacher" / "cross-encoder"))
    np.testing.assert_allclose(Bench(toy_task(chosen), other).teacher(pairs)["score"], scores, atol=1e-6)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_teacher_that_is_worse_than_its_student(sign: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    chosen = options(tmp_path)
    bench = Bench(toy_task(chosen), chosen)
    bench.teacher = Teacher() >> pt.apply.doc_score(lambda row: sign * (row["score"] + 0.01 * ("mu" in row["text"])))
    with caplog.at_level("INFO", "experiments.dense_retrieval"):
        bench.check_teacher()
    (record,) = caplog.records
    assert record.levelname == ("INFO" if sign > 0 else "WARNING")
    assert record.args[0] > 0.9 if sign > 0 else record.args[0] < record.args[1]


def test_queries_are_divided(tmp_path: Path) -> None:
    asked = task_of(options(tmp_path, "--dataset", "irds:pyterrier-graph/numpydoc/numpy/test", "--dev-queries", "5"))
    sizes = [len(part.topics) for part in (asked.train, asked.dev, asked.test)]
    assert sizes[1] == 5 and abs(sizes[0] - 3 * sizes[2]) <= 3
    qids = [set(part.topics["qid"]) for part in (asked.train, asked.dev, asked.test)]
    assert len(set().union(*qids)) == sum(sizes)
    for part, expected in zip((asked.train, asked.dev, asked.test), qids, strict=True):
        assert set(part.qrels["qid"]) == expected
    assert len(asked.unlabeled) == 0


def test_queries_of_their_own_and_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "questions.txt").write_text("1 how to sort?\n2 mean: of what\n", "utf-8")
    corpus = "irds:pyterrier-graph/numpydoc/numpy"
    named = ["--dataset", corpus, "--train", f"{corpus}/train", "--test", f"{corpus}/test"]
    asked = task_of(options(tmp_path, *named, "--unlabeled", str(tmp_path / "questions.txt")))
    assert asked.unlabeled["query"].tolist() == ["how to sort?", "mean: of what"]
    whole = dense_retrieval.DatasetTexts(f"{corpus}/train").get_topics()
    assert len(asked.train.topics) + len(asked.dev.topics) == len(whole)
    with_dev = task_of(options(tmp_path, *named, "--dev", f"{corpus}/dev", "--unlabeled", f"{corpus}/dev"))
    assert len(with_dev.train.topics) == len(whole)
    assert set(with_dev.unlabeled["qid"]) == set(with_dev.dev.topics["qid"])
    with pytest.raises(SystemExit, match="--test needs --train"):
        task_of(options(tmp_path, "--dataset", corpus, "--test", f"{corpus}/test"))
    with pytest.raises(SystemExit, match="name a dataset"):
        dense_retrieval.main([], [])


@pytest.mark.parametrize("name", ["msmarco", "nq", "numpydoc", "--dataset"])
def test_example(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(dense_retrieval, "task_of", lambda given: given)
    monkeypatch.setattr(dense_retrieval, "run", lambda _, given: seen.append(given))
    more = ["irds:vaswani"] if name == "--dataset" else ["--seeds", "3"]
    monkeypatch.setattr(sys, "argv", ["pair.py", name, *more])
    runpy.run_path(str(Path(__file__).parents[1] / "examples" / "pair.py"), run_name="__main__")
    assert seen[0].seeds == ([0] if name == "--dataset" else [3])
    for dataset in (seen[0].dataset, seen[0].train, seen[0].test):
        assert dataset is None or dense_retrieval.DatasetTexts(dataset).datasets  # ir_datasets knows it


def test_medquad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [Node("section", "flu", -1), Node("passage", "flu alpha", 0), Node("passage", "flu beta", 0)]
    record = {"docno": "page", "nodes": nodes}
    queries = [Query(f"q{n}", "alpha", split, ("page%p0",)) for n, split in enumerate(("train", "dev", "test") * 2)]
    monkeypatch.setattr(pair_compare, "read_medquad", lambda *_, **__: Collection("medquad", [record], queries))
    seen: list[Any] = []
    monkeypatch.setattr(pair_compare, "run", lambda asked, given: seen.append((asked, given)))
    pair_compare.main(["anywhere", "--output", str(tmp_path)])
    asked, given = seen[0]
    assert [document["docno"] for document in asked.corpus.get_corpus_iter(verbose=False)] == ["page%p0", "page%p1"]
    assert (len(asked.train.topics), len(asked.unlabeled), len(asked.test.topics)) == (1, 1, 2)
    assert isinstance(asked.test, Queries) and Path(given.model).exists()


def test_late_interaction_as_a_teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(dense_retrieval, "index_bm25", lambda corpus, *_: Matches(corpus))
    records = [
        {
            "docno": word,
            "nodes": [Node("section", word, -1), *(Node("passage", text, 0) for text in (f"{word} mu", "nu"))],
        }
        for word in WORDS
    ]
    splits = ["train"] * 6 + ["dev", "test"] * 2
    queries = [
        Query(f"q{n}", word, split, (f"{word}%p0", f"{word}%p1"))
        for n, (word, split) in enumerate(zip(WORDS, splits, strict=True))
    ]
    medquad = Collection("medquad", records, queries)
    monkeypatch.setattr(pair_compare, "read_medquad", lambda *_, **__: medquad)
    monkeypatch.setattr(pair_compare, "run", lambda *arguments: Bench(*arguments))
    arguments = ["anywhere", "--output", str(tmp_path), "--model", tiny.checkpoint(), *QUICK]
    bench = pair_compare.main([*arguments, "--teacher", "late-interaction", "--train-queries", "6"])
    word, other = WORDS[6], WORDS[0]  # nothing was learned from the first
    passages = {f"{word}%p0": f"{word} mu", f"{word}%p1": "nu", f"{other}%p0": f"{other} mu"}
    pairs = pd.DataFrame({"docno": [*passages], "text": [*passages.values()]}).assign(qid="1", query=word)
    scored = bench.teacher(pairs).set_index("docno")["score"]
    assert 0.5 < scored[f"{word}%p1"] <= 1  # by its title alone
    assert 0 <= scored[f"{other}%p0"] < 0.5 < scored[f"{word}%p0"] <= 1
    alone = bench.teacher(pairs.iloc[2:])["score"].item()
    assert alone == pytest.approx(scored[f"{other}%p0"], abs=1e-6)  # a score does not depend on what else is asked
    assert pair_compare.main(arguments).make_teacher is Bench.cross_encoder  # by default


def test_similarities(tmp_path: Path) -> None:
    chosen = options(tmp_path)
    asked = toy_task(chosen)
    bench = Bench(asked, chosen)
    model = bench.dual_encoder(PAIR, 0)
    found = bench._similarities(model)
    examples = HardNegativeMiner(bench.bm25, bench.texts, hard_negatives=1, depth=6).labeled(*asked.test).dataset
    first = {name: model.encode_queries([examples[0]["query"]])[0] for name in ("query",)}
    first |= {name: model.encode_docs([examples[0][name]])[0] for name in ("positive", "negative_1")}
    expected = [first["positive"] @ first["query"], first["positive"] @ first["negative_1"]]
    np.testing.assert_allclose(found.iloc[0].tolist(), expected, rtol=1e-4)
