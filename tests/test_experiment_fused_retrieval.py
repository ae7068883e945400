"""The experiment on GNN-encoders, and its collections."""

from __future__ import annotations

import ast
import dataclasses
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tiny
from ir_measures import parse_measure
from pyterrier_dr import FlexIndex
from test_lgre_reranker import cross_encoder

from experiments import fused_retrieval, gnn_compare
from experiments.collection import Collection, Query, TextCollection
from experiments.dense_retrieval import Queries
from experiments.fused_retrieval import (
    ABLATIONS,
    CHOICES,
    CONTROL,
    DUAL,
    GNN,
    KEPT,
    PAPERS,
    RULE,
    WITHOUT_FEATURES,
    Bench,
    Task,
    task_of,
)
from experiments.text_reranking import DatasetTexts
from pyterrier_graph import plots
from pyterrier_graph.documents import Node
from pyterrier_graph.models.gnn_encoder import PaperGNNEncoderConfig
from pyterrier_graph.retrieve.dual_encoder import DualEncoder
from pyterrier_graph.retrieve.gnn_encoder import GNNEncoder

WORDS = tiny.WORDS
QUICK = "--epochs 1 --control-epochs 1 --batch 8 --negatives 1 --heads 2 --max-length 8".split()
NUMPY = fused_retrieval.NUMPYDOC


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentence_transformers.SentenceTransformer._create_model_card", lambda *_, **__: None)


def options(folder: Path, *more: str) -> Any:
    arguments = ["--model", tiny.checkpoint(), *QUICK, "--output", str(folder), *more]
    return fused_retrieval.parser().parse_args(arguments)


def toy() -> TextCollection:
    """Two texts for each word; four queries look for the first one."""
    documents = [
        {"docno": f"{w}{n}", "title": w, "text": f"{w} {o}"} for w in WORDS for n, o in enumerate(("mu", "nu"))
    ]
    asked = [(f"{word}-{other}", f"{word} {other}", f"{word}0") for word in WORDS for other in WORDS[:4]]
    frame = pd.DataFrame(asked, columns=["qid", "query", "docno"])
    return TextCollection("toy", documents, frame[["qid", "query"]], frame[["qid", "docno"]].assign(label=1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all experiments on the toy collection are, so that its vectors and graphs are made once."""
    return tmp_path_factory.mktemp("toy")


def test_the_table(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = options(folder, "--systems", *CHOICES, "--cross-encoder", cross_encoder())
    chosen.measures = [parse_measure("RR@10"), parse_measure("R@5")]
    asked = gnn_compare.flat(toy())
    table = fused_retrieval.run(asked, chosen)
    assert table["system"].tolist() == [*CHOICES.values()]
    assert [*table] == ["system", "RR@10", "R@5"] and table.notna().all(axis=None)
    per_query = pd.read_csv(folder / "per_query.csv")
    assert set(per_query["qid"]) == set(asked.test.topics["qid"])
    groups = pd.read_csv(folder / "groups.csv")
    sizes = groups.groupby("group")["queries"].first().to_dict()
    assert sum(sizes.values()) <= len(asked.test.topics) and set(groups["system"]) == {*CHOICES.values()}
    # nothing but what is shared, and runs, stays
    kept = {"base.flex", "queries-25", "vectors", "runs", "per_query.csv", "results.csv", "groups.csv"}
    assert {file.name for file in folder.iterdir()} == kept
    ranking = pd.read_csv(folder / "runs" / "dual-encoder-0.csv.gz")
    assert ranking.groupby("qid").size().unique().tolist() == [24] and [*ranking] == ["qid", "docno", "score", "rank"]
    # what was killed goes on with the next one
    (folder / "runs" / "papers-GNN-0.csv.gz").unlink()
    fitted: list[GNNEncoder] = []
    fit = GNNEncoder.fit
    monkeypatch.setattr(GNNEncoder, "fit", lambda model, *a, **o: fitted.append(model) or fit(model, *a, **o))
    pd.testing.assert_frame_equal(fused_retrieval.run(asked, chosen), table)
    assert [type(model.network.config) for model in fitted] == [PaperGNNEncoderConfig]


def test_what_each_system_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def fit(model: GNNEncoder, topics: pd.DataFrame, qrels: pd.DataFrame, *dev: Any, texts: Any = None) -> GNNEncoder:
        config, training = model.network.config, model.training
        shape = [getattr(config, part, None) for part in ("layers", "gate", "shared_weights", "edge_features")]
        shape += [False] if getattr(config, "gnn", True) is False else []
        rates = training.learning_rate, training.encoder_learning_rate
        seen[name] = shape, model.control, training.masked, training.skip_unanswerable, rates, texts is not None
        assert set(topics["qid"]) == set(asked.listened.topics["qid"])
        pd.testing.assert_frame_equal(dev[0], asked.dev.topics)
        return model

    monkeypatch.setattr(GNNEncoder, "fit", fit)
    chosen = options(folder, "--cross-encoder", cross_encoder(), "--learning-rate", "0.5")
    asked = gnn_compare.flat(toy())
    bench = Bench(asked, chosen)
    for name in CHOICES.values():
        if name not in (DUAL, RULE):
            bench._system(name, 0, 25, 0.25)
    typed, papers = [None] * 4, [2, "filter", False, 16]
    assert seen[CONTROL] == (typed, True, None, False, (1e-3, None), False)
    assert seen[GNN] == (typed, False, 0.25, True, (0.5, None), False)
    assert seen[PAPERS] == (papers, False, 0.25, False, (0.5, None), False)
    assert seen["joint training"] == (papers, False, 0.25, False, (0.5, 2e-6), True)
    assert seen["joint training, w/o GNN"] == ([*papers, False], False, 0.25, False, (0.5, 2e-6), True)
    assert {name.removeprefix(f"{PAPERS}, "): seen[name][0] for name in ABLATIONS if name != PAPERS} == {
        "w/o mask": papers,
        "w/o gate": [2, 0.2, False, 16],
        "one layer": [1, "filter", False, 16],
        "one W (000)": [2, "filter", True, None],
        "w/o edge features": [2, "filter", False, None],
    }
    assert [name for name in ABLATIONS if seen[name][2] is None] == [f"{PAPERS}, w/o mask"]
    with pytest.raises(ValueError, match="needs --cross-encoder"):
        Bench(asked, options(folder)).papers(WITHOUT_FEATURES, 0, 25, 0.25)


def test_curves(folder: Path) -> None:
    chosen = options(folder, "--k", "3", "25", "--masked", "0.05", "0.5", "--seeds", "0", "1")
    chosen.systems = ["dual-encoder", "rule", "papers-gnn"]
    table = fused_retrieval.run(gnn_compare.flat(toy()), chosen)
    runs = [f"{PAPERS}, k = 3", f"{PAPERS}, k = 3, 50% masked", PAPERS, f"{PAPERS}, 50% masked"]
    assert table["system"].tolist() == [DUAL, f"{RULE}, k = 3", RULE, *runs]
    assert table["R@5"].str.contains("±").tolist() == [False] * 3 + [True] * 4
    assert all("<svg" in (folder / f"{option}.svg").read_text("utf-8") for option in ("k", "masked"))
    per_query = pd.read_csv(folder / "per_query.csv")
    seeds = per_query.groupby("system", sort=False)["seed"].agg(lambda values: values.unique().tolist())
    assert seeds.to_dict() == {DUAL: [0], RULE: [0], PAPERS: [0, 1]}
    swept = per_query.groupby("system", sort=False)[["k", "masked"]].agg(lambda values: sorted(set(values.dropna())))
    assert swept.to_dict("index") == {
        DUAL: {"k": [], "masked": []},
        RULE: {"k": [3, 25], "masked": []},
        PAPERS: {"k": [3, 25], "masked": [0.05, 0.5]},
    }
    ax = plots.measure_curve(per_query[per_query["masked"] != 0.5], "nDCG@10", x="k")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [DUAL, RULE, PAPERS]
    assert ax.lines[1].get_xdata().tolist() == [3, 25]


def test_fine_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = options(tmp_path, "--fine-tuning-epochs", "10", "--systems", "dual-encoder", "rule")
    seen: list[Any] = []
    fit = DualEncoder.fit
    monkeypatch.setattr(DualEncoder, "fit", lambda model, *a: seen.append((model.miner, *a)) or fit(model, *a))
    asked = gnn_compare.flat(toy())
    first = fused_retrieval.run(asked, tuned)
    pd.testing.assert_frame_equal(fused_retrieval.run(asked, tuned), first)
    ((miner, topics, qrels),) = seen  # once
    assert set(topics["qid"]) == set(asked.listened.topics["qid"])
    relevant = asked.listened.qrels[["qid", "docno"]]
    pd.testing.assert_frame_equal(
        *(frame[["qid", "docno"]].sort_values(["qid", "docno"], ignore_index=True) for frame in (qrels, relevant))
    )
    assert not len(miner.candidates(topics).merge(relevant, on=["qid", "docno"]))
    # the others stay what they are
    plain = fused_retrieval.run(asked, options(tmp_path, "--systems", "dual-encoder"))
    vectors = [FlexIndex(str(tmp_path / path / "base.flex")).payload()[1] for path in ("", "fine-tuned")]
    assert vectors[0].shape == vectors[1].shape and not np.allclose(*vectors, atol=1e-4)
    assert (tmp_path / "results.csv").exists() and len(plain) == 1 and len(first) == 2


def test_each_query_is_tested_in_one_of_five_folds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gnn_compare.FLAT, "cranfield", lambda _: toy())
    arguments = ["--model", tiny.checkpoint(), *QUICK, "--systems", "dual-encoder", "rule", "--folds", *"01234"]
    table = gnn_compare.main(["cranfield", str(tmp_path), *arguments, "--output", str(tmp_path / "folds")])
    per_query = pd.read_csv(tmp_path / "folds" / "per_query.csv")
    assert not per_query.duplicated(["name", "qid", "measure"]).any()
    assert set(per_query["qid"]) == set(toy().get_topics()["qid"]) and set(table["system"]) == {DUAL, RULE}
    for fold in range(5):
        task = gnn_compare.flat(toy(), fold)
        parts = [set(part.topics["qid"]) for part in (task.listened, task.dev, task.test)]
        assert len(set().union(*parts)) == sum(map(len, parts)) == len(toy().get_topics())
        tested = pd.read_csv(tmp_path / "folds" / f"fold-{fold}" / "per_query.csv")
        assert set(tested["qid"]) == parts[2]
    assert {file.name for file in (tmp_path / "folds").iterdir() if file.suffix == ".flex"} == {"base.flex"}
    seen: list[int] = []
    monkeypatch.setattr(fused_retrieval, "run_folds", lambda _, given: seen.extend(given.folds))
    fused_retrieval.main(["--dataset", f"{NUMPY}/test"], ["--folds", "0", "3"])
    assert seen == [0, 3]
    # those that have a test set would only be repeated
    with pytest.raises(SystemExit, match="leave out --test"):
        fused_retrieval.main([], ["numpydoc", "--folds", "0", "3"])
    with pytest.raises(SystemExit):
        gnn_compare.main(["numpydoc-numpy", "--folds", "0", "3"])


def test_so_many_queries(tmp_path: Path) -> None:
    asked, seen = gnn_compare.flat(toy()), []
    chosen = options(tmp_path, "--systems", "dual-encoder", "--train-queries", "5", "--dev-queries", "3")

    class Seen(Bench):
        def __init__(self, task: Task, options: Any) -> None:
            super().__init__(task, options)
            seen.append((len(task.listened.topics), len(task.dev.topics), len(task.test.topics)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_retrieval, "Bench", Seen)
        fused_retrieval.run(asked, chosen)
    assert seen == [(5, 3, len(asked.test.topics))]


def test_what_was_killed_while_it_indexed_is_made_anew(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "base.flex").mkdir()
    (tmp_path / "base.flex" / "vecs.f4").write_bytes(b"some")
    asked = gnn_compare.flat(toy())
    index = Bench(asked, options(tmp_path)).index
    np.testing.assert_array_equal(
        index.payload(return_docnos=False)[0], Bench(asked, options(folder)).index.payload(return_docnos=False)[0]
    )


def test_texts_are_read_when_they_are_asked_for(folder: Path, tmp_path: Path) -> None:
    asked = gnn_compare.flat(toy())
    unread = dataclasses.replace(asked, documents=lambda: pytest.fail("all documents were read"))
    wanted = pd.DataFrame({"docno": ["beta1", "alpha0"]})
    found = Bench(unread, options(folder)).texts(wanted)
    assert found["text"].tolist() == ["beta\nbeta nu", "alpha\nalpha mu"]
    with pytest.raises(ValueError, match="give Task.texts"):
        _ = Bench(dataclasses.replace(asked, texts=None), options(tmp_path)).texts


def pages() -> Collection:
    """A page for each word, which only its title names, and two queries for it."""
    records = [
        {"docno": word, "nodes": [Node("section", word, -1), Node("passage", "mu nu", 0), Node("passage", "nu", 0)]}
        for word in WORDS
    ]
    splits = ["train"] * 8 + ["dev", "test"] * 2
    queries = [
        Query(f"{word}-{n}", f"{word} {other}", split, (f"{word}%p0",))
        for word, split in zip(WORDS, splits, strict=True)
        for n, other in enumerate(("mu", "nu"))
    ]
    return Collection("pages", records, queries)


@pytest.mark.parametrize("judged", ["passages", "documents"])
def test_titles_and_judgments_of_whole_documents(judged: str, tmp_path: Path) -> None:
    asked = gnn_compare.structured(pages())
    if judged == "documents":
        parts = {
            name: Queries(part.topics, part.qrels.assign(docno=part.qrels["docno"].str.removesuffix("%p0")))
            for name, part in vars(asked).items()
            if isinstance(part, Queries)
        }
        asked = dataclasses.replace(asked, **parts)
    chosen = options(
        tmp_path, "--channels", "relevant", "structural", "--systems", "dual-encoder", "rule", "gnn-encoder"
    )
    table = fused_retrieval.run(asked, chosen).set_index("system")
    assert float(table.at[RULE, "RR@10"][:5]) > float(table.at[DUAL, "RR@10"][:5])  # only titles tell pages apart
    found = pd.read_csv(tmp_path / "runs" / "rule-0.csv.gz")
    docnos = [f"{word}%p{n}" for word in WORDS for n in range(2)] if judged == "passages" else WORDS
    assert set(found["docno"]) == set(docnos) and len(found) == 4 * len(docnos)
    bench = Bench(asked, chosen)
    relevant = bench.passage_qrels.groupby("qid")["docno"].agg(list)
    assert relevant["alpha-0"] == (["alpha%p0"] if judged == "passages" else ["alpha%p0", "alpha%p1"])
    assert bench.texts(pd.DataFrame({"docno": ["beta%p0"]}))["text"].tolist() == ["mu nu"]
    groups = {name: len(qids) for name, qids in bench.groups().items()}
    assert groups == {"no training query": 4, "overlap below 0.1": 0, "overlap from 0.1": 0}


def test_groups_of_test_queries(tmp_path: Path) -> None:
    def queries(*rows: tuple[str, str, str]) -> Queries:
        frame = pd.DataFrame(rows, columns=["qid", "query", "docno"])
        return Queries(frame[["qid", "query"]].drop_duplicates(), frame[["qid", "docno"]].assign(label=1))

    listened = queries(("1", "alpha, Beta", "alpha0"), ("2", "gamma", "beta0"), ("3", "iota", "gamma0"))
    test = queries(
        ("a", "beta ALPHA", "alpha0"),
        ("b", "eta", "beta0"),
        ("c", "eta", "delta0"),
        ("d", "alpha eta", "delta0"),
        ("d", "alpha eta", "alpha0%p3"),  # the best of several
    )
    groups = Bench(Task(lambda: [], listened, None, test, test), options(tmp_path)).groups()
    assert [qids.tolist() for qids in groups.values()] == [["c"], ["b"], ["a", "d"]]


def test_queries_are_divided(tmp_path: Path) -> None:
    named = ["--dataset", NUMPY, "--train", f"{NUMPY}/train", "--test", f"{NUMPY}/test"]
    whole = task_of(options(tmp_path, *named, "--dev", f"{NUMPY}/see-also/dev"))
    apart = task_of(options(tmp_path, *named))
    train, dev = (set(part.topics["qid"]) for part in (apart.listened, apart.dev))
    assert not train & dev and train | dev == set(whole.listened.topics["qid"])
    assert len(dev) == len(train | dev) // 5 and set(apart.dev.qrels["qid"]) == dev
    own = task_of(options(tmp_path, "--dataset", f"{NUMPY}/test"))
    sizes = [len(part.topics) for part in (own.listened, own.dev, own.test)]
    assert sum(sizes) == len(whole.test.topics) and abs(sizes[0] - 3 * sizes[2]) <= 3
    with pytest.raises(SystemExit, match="--test needs --train"):
        task_of(options(tmp_path, "--dataset", NUMPY, "--test", f"{NUMPY}/test"))


@pytest.mark.parametrize("name", ["msmarco", "nq", "triviaqa"])
@pytest.mark.parametrize("arguments", ["--seeds 3", "numpydoc --systems", "--dataset irds:vaswani --measures P@5"])
def test_example(name: str, arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(fused_retrieval, "task_of", lambda given: given)
    monkeypatch.setattr(fused_retrieval, "run", lambda _, given: seen.append(given))
    monkeypatch.setattr(sys, "argv", [f"gnn_encoder_{name}.py", *arguments.split()])
    runpy.run_path(str(Path(__file__).parents[1] / "examples" / f"gnn_encoder_{name}.py"), run_name="__main__")
    (given,) = seen
    first = "irds:msmarco-passage" if name == "msmarco" else "irds:dpr-w100"
    expected = {"--": first, "nu": NUMPY}[arguments[:2]] if "vaswani" not in arguments else "irds:vaswani"
    assert given.dataset == expected
    assert (given.train is None) == (given.test is None) == ("vaswani" in arguments)
    for dataset in (given.dataset, given.train, given.dev, given.test):
        assert dataset is None or DatasetTexts(dataset).datasets  # ir_datasets knows it
    assert all(measure["cutoff"] <= KEPT for measure in given.measures)
    assert Path(given.model).exists() == ("numpydoc" in arguments)


def test_a_dataset_is_needed() -> None:
    with pytest.raises(SystemExit, match="name a dataset"):
        fused_retrieval.main([], [])


def test_the_commands_of_the_examples_are_understood() -> None:
    for file in sorted((Path(__file__).parents[1] / "examples").glob("gnn_encoder_*.py")):
        documentation = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
        lines = re.sub(r"\\\n\s+", "", documentation).splitlines()
        commands = [line.split()[2:] for line in lines if line.startswith(f"    python examples/{file.name}")]
        assert commands
        for command in commands:
            fused_retrieval.parser().parse_args(command)


def test_docstrings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[tuple[Task, Any]] = []
    monkeypatch.setattr(gnn_compare, "run", lambda asked, given: seen.append((asked, given)))
    gnn_compare.main(["numpydoc-numpy", "--output", str(tmp_path)])
    asked, given = seen[0]
    assert given.passage_words == 120 and Path(given.model).exists()
    assert {*next(iter(asked.documents()))} == {"docno", "title", "text"}
    assert asked.extra is not None
    looked_for = [set(part.qrels["docno"]) for part in (asked.extra, asked.dev)]
    assert not looked_for[0] & looked_for[1] and all(looked_for)
    for part in (asked.listened, asked.extra, asked.dev, asked.test):
        assert set(part.topics["qid"]) == set(part.qrels["qid"]) and part.topics["qid"].is_unique
        assert not part.qrels["docno"].str.contains("%p").any() and not part.qrels.duplicated(["qid", "docno"]).any()


def test_collections_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[tuple[Task, Any]] = []
    monkeypatch.setattr(gnn_compare, "run", lambda asked, given: seen.append((asked, given)))
    monkeypatch.setitem(gnn_compare.STRUCTURED, "medquad", lambda path, passages: pages())
    monkeypatch.setitem(gnn_compare.STRUCTURED, "trec-car", lambda path: pages())
    monkeypatch.setitem(gnn_compare.FLAT, "vaswani", lambda path: toy())
    for name in ("medquad", "trec-car", "vaswani"):
        gnn_compare.main([name, str(tmp_path)])
    sizes = [[len(part.topics) for part in (asked.listened, asked.dev, asked.test)] for asked, _ in seen]
    assert sizes[:2] == [[16, 4, 4]] * 2 and sum(sizes[2]) == 48
    assert [given.passage_words for _, given in seen] == [120, 120, None]
    assert [len([*asked.documents()]) for asked, _ in seen] == [12, 12, 24]
    assert seen[2][0].texts is not None
