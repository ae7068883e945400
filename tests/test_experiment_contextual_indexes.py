"""The experiment on contextual indexes, in miniature."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tiny
from experiment_tools import WORDS, cross_encoder, pages, texts
from pyterrier_dr import FlexIndex

import pyterrier_graph as ptg
from experiments import contextual_indexes
from experiments.contextual_indexes import (
    ABLATIONS,
    CHOICES,
    DUAL,
    GNN,
    JOINT,
    JOINT_WITHOUT_GNN,
    MEAN,
    PAPERS,
    WITHOUT_EDGES,
    WITHOUT_FEATURES,
    Bench,
)
from experiments.harness.collection import Collection, Queries
from experiments.harness.groups import groups_by_overlap
from pyterrier_graph import plots

pytestmark = pytest.mark.slow  # whole experiments, on tiny data

QUICK = "--epochs 1 --unmasked-epochs 1 --batch 8 --negatives 1 --heads 2 --max-tokens 8".split()


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentence_transformers.SentenceTransformer._create_model_card", lambda *_, **__: None)


def options(folder: Path, *more: str) -> Any:
    arguments = ["texts", "--encoder", tiny.checkpoint(), *QUICK, "--output", str(folder), *more]
    return contextual_indexes.command_line().parse_args(arguments)


def toy() -> Collection:
    return texts(4)


def bench_of(folder: Path, *more: str) -> Bench:
    return Bench(toy().whole(), options(folder, *more), 0, folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the experiments on the toy collection are, so that its vectors and graphs are made once."""
    return tmp_path_factory.mktemp("toy")


FEATURES = ("--cross-encoder", cross_encoder())


def test_the_table(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for name, system in CHOICES.items() if system not in [*ABLATIONS][1:]]
    chosen = options(folder, "--systems", *names, *FEATURES, "--measures", "RR@10", "R@5")
    table = contextual_indexes.run(toy(), chosen)
    assert table["system"].tolist() == [CHOICES[name] for name in names]
    assert [*table] == ["system", "RR@10", "R@5"] and table.notna().all(axis=None)
    groups = pd.read_csv(folder / "groups.csv")
    assert groups.groupby("group")["queries"].first().sum() <= pd.read_csv(folder / "per_query.csv")["qid"].nunique()
    # nothing but what is shared, and runs, stays
    kept = {"documents", "queries-25", "vectors", "runs", "per_query.csv", "results.csv", "groups.csv"}
    assert {file.name for file in folder.iterdir()} == {*kept, "options.json"}
    ranking = pd.read_csv(folder / "runs" / "dual-encoder-0.csv.gz")
    assert ranking.groupby("qid").size().unique().tolist() == [24] and [*ranking] == ["qid", "docno", "score", "rank"]
    # an interrupted experiment goes on with the next run
    (folder / "runs" / "papers-network-0.csv.gz").unlink()
    fitted: list[Any] = []
    fit = ptg.GNNEncoder.fit
    monkeypatch.setattr(ptg.GNNEncoder, "fit", lambda model, *a, **o: fitted.append(model) or fit(model, *a, **o))
    pd.testing.assert_frame_equal(contextual_indexes.run(toy(), chosen), table)
    assert [model.config for model in fitted] == [ptg.GNNEncoderConfig.paper(heads=2, edge_features=16)]


def test_what_each_system_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def fit(model: Any, topics: pd.DataFrame, qrels: pd.DataFrame, *dev: Any) -> Any:
        config, training = model.network.config, model.training
        shape = [getattr(config, part, None) for part in ("layers", "gate", "shared_weights", "edge_features")]
        shape += [False] if getattr(config, "gnn", True) is False else []
        rates = training.learning_rate, training.encoder_learning_rate
        seen[name] = shape, model.edges, training.masked, training.skip_unanswerable, rates
        assert set(topics["qid"]) == set(bench.in_graph.topics["qid"])
        pd.testing.assert_frame_equal(dev[0], bench.dev.topics)
        return model

    monkeypatch.setattr(ptg.GNNEncoder, "fit", fit)
    bench = bench_of(folder, *FEATURES, "--learning-rate", "0.5")
    for name in CHOICES.values():
        if name not in (DUAL, MEAN):
            bench._system(name, 0, 25, 0.25)
    typed, papers = [None] * 4, [2, "filter", False, 16]
    assert seen[WITHOUT_EDGES] == (typed, False, None, False, (1e-3, None))
    assert seen[GNN] == (typed, True, 0.25, True, (0.5, None))
    assert seen[PAPERS] == (papers, True, 0.25, False, (0.5, None))
    assert seen[JOINT] == (papers, True, 0.25, False, (0.5, 2e-6))
    assert seen[JOINT_WITHOUT_GNN] == ([*papers, False], True, 0.25, False, (0.5, 2e-6))
    assert {name.removeprefix(f"{PAPERS}, "): seen[name][0] for name in ABLATIONS if name != PAPERS} == {
        "w/o mask": papers,
        "w/o gate": [2, 0.2, False, 16],
        "one layer": [1, "filter", False, 16],
        "one W": [2, "filter", True, None],
        "w/o edge features": [2, "filter", False, None],
    }
    assert [name for name in ABLATIONS if seen[name][2] is None] == [f"{PAPERS}, w/o mask"]
    with pytest.raises(SystemExit, match="needs --cross-encoder"):
        bench_of(folder).papers(WITHOUT_FEATURES, 0, 25, 0.25)


def test_curves(tmp_path: Path) -> None:
    chosen = options(tmp_path, "--k", "3", "25", "--masked", "0.05", "0.5", "--seeds", "0", "1")
    chosen.systems = ["dual-encoder", "graphmean", "papers-network"]
    table = contextual_indexes.run(toy(), chosen)
    runs = [f"{PAPERS}, k = 3", f"{PAPERS}, k = 3, 50% masked", PAPERS, f"{PAPERS}, 50% masked"]
    assert table["system"].tolist() == [DUAL, f"{MEAN}, k = 3", MEAN, *runs]
    assert table["R@5"].str.contains("±").tolist() == [False] * 3 + [True] * 4
    assert all("<svg" in (tmp_path / f"{option}.svg").read_text("utf-8") for option in ("k", "masked"))
    per_query = pd.read_csv(tmp_path / "per_query.csv")
    seeds = per_query.groupby("system", sort=False)["seed"].agg(lambda values: values.unique().tolist())
    assert seeds.to_dict() == {DUAL: [0], MEAN: [0], PAPERS: [0, 1]}
    ax = plots.measure_curve(per_query[per_query["masked"] != 0.5], "nDCG@10", x="k")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [DUAL, MEAN, PAPERS]


def test_fine_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = options(tmp_path, "--fine-tuning-epochs", "3", "--systems", "dual-encoder", "graphmean")
    seen: list[Any] = []
    fit = ptg.DualEncoder.fit
    monkeypatch.setattr(ptg.DualEncoder, "fit", lambda model, *a: seen.append((model.miner, *a)) or fit(model, *a))
    first = contextual_indexes.run(toy(), tuned)
    pd.testing.assert_frame_equal(contextual_indexes.run(toy(), tuned), first)
    ((miner, topics, qrels),) = seen  # once
    assert set(topics["qid"]) == set(qrels["qid"]) == set(bench_of(tmp_path).in_graph.topics["qid"])
    assert not len(miner.candidates(topics).merge(qrels, on=["qid", "docno"]))
    # the others stay as they are
    plain = contextual_indexes.run(toy(), options(tmp_path, "--systems", "dual-encoder"))
    vectors = [FlexIndex(str(path)).payload()[1] for path in (tmp_path / "vectors").glob("passages-*.flex")]
    assert len(vectors) == 2 and not np.allclose(*vectors, atol=1e-5)
    assert len(plain) == 1 and len(first) == 2


def test_each_query_is_tested_in_one_of_five_folds(tmp_path: Path) -> None:
    chosen = options(tmp_path, "--systems", "dual-encoder", "--folds", *"01234")
    contextual_indexes.run(toy(), chosen)
    per_query = pd.read_csv(tmp_path / "per_query.csv")
    assert not per_query.duplicated(["name", "qid", "measure"]).any()
    assert set(per_query["qid"]) == set(toy().all_queries.topics["qid"])
    assert len([*tmp_path.glob("**/*.flex")]) == 1  # all folds share the dual-encoder's vectors
    numpy = "irds:pyterrier-graph/numpydoc/numpy"
    arguments = [numpy, "--train", f"{numpy}/train", "--test", f"{numpy}/test", "--folds", "0", "1"]
    with pytest.raises(SystemExit, match="this one has test queries"):
        contextual_indexes.main([*arguments, "--output", str(tmp_path)])


def test_so_many_queries(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, "--train-queries", "5", "--dev-queries", "3", "--queries", "2")
    assert [len(part.topics) for part in (bench.in_graph, bench.dev, bench.test)] == [5, 3, 2]


@pytest.mark.parametrize("judged", ["passages", "documents"])
def test_titles_and_judgments_of_whole_documents(judged: str, tmp_path: Path) -> None:
    collection = pages()
    if judged == "documents":
        for name, part in collection.queries.items():
            qrels = part.qrels.assign(docno=part.qrels["docno"].str.removesuffix("%p0"))
            collection.queries[name] = Queries(part.topics, qrels)  # type: ignore[index]
    more = ["--relations", "relevant", "structural", "--systems", "dual-encoder", "graphmean", "gnnencoder"]
    chosen = options(tmp_path, *more)
    table = contextual_indexes.run(collection, chosen).set_index("system")
    assert float(table.at[MEAN, "RR@10"][:5]) > float(table.at[DUAL, "RR@10"][:5])  # only titles tell pages apart
    found = pd.read_csv(tmp_path / "runs" / "GraphMean-0.csv.gz")
    docnos = [f"{word}%p{n}" for word in WORDS for n in range(2)] if judged == "passages" else WORDS
    assert set(found["docno"]) == set(docnos) and len(found) == 4 * len(docnos)
    bench = Bench(collection, chosen, 0, tmp_path)
    relevant = bench.passage_qrels.groupby("qid")["docno"].agg(list)
    assert relevant["alpha-0"] == (["alpha%p0"] if judged == "passages" else ["alpha%p0", "alpha%p1"])


def test_groups_of_test_queries() -> None:
    def queries(*rows: tuple[str, str, str]) -> Queries:
        frame = pd.DataFrame(rows, columns=["qid", "query", "docno"])
        return Queries(frame[["qid", "query"]].drop_duplicates(), frame[["qid", "docno"]].assign(label=1))

    train = queries(("1", "alpha, Beta", "alpha0"), ("2", "gamma", "beta0"), ("3", "iota", "gamma0"))
    test = queries(
        ("a", "beta ALPHA", "alpha0"),
        ("b", "eta", "beta0"),
        ("c", "eta", "delta0"),
        ("d", "alpha eta", "delta0"),
        ("d", "alpha eta", "alpha0%p3"),  # the best of several
    )
    assert [*groups_by_overlap(train, test).values()] == [["c"], ["b"], ["a", "d"]]


def test_the_commands_of_the_documentation_are_understood() -> None:
    lines = re.sub(r"\\\n\s+", "", contextual_indexes.__doc__ or "").splitlines()
    commands = [line.split()[3:] for line in lines if "python -m experiments" in line]
    assert len(commands) == 4
    for command in commands:
        contextual_indexes.command_line().parse_args(command)
