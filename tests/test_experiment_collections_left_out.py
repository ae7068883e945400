"""The experiment that leaves one collection out, in miniature."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tiny
from experiment_tools import pages, texts

import pyterrier_graph as ptg
from experiments import collections_left_out
from experiments.collections_left_out import JUDGED_ONLY, Bench, Named
from experiments.harness.collection import ALL, Collection, Queries
from experiments.harness.judgments import judged_ranking, relevant_passages
from experiments.left_out import fixed_weights, names, tables
from experiments.left_out.corpus import Corpus, TitledTexts
from experiments.left_out.fold import Fold

BEST_TITLE = {"medquad": 0.5, "numpydoc": 1.0, "numpydoc-see-also": 2.0}


def options(folder: Path, *more: str) -> Any:
    arguments = ["vaswani", "--encoder", tiny.checkpoint(), "--max-tokens", "32", "--output", str(folder), *more]
    return collections_left_out.command_line().parse_args(arguments)


def collections() -> dict[str, Collection]:
    """Texts with pooled judgments and no splits, and pages with splits, where only titles tell passages apart."""
    topics, qrels = texts(4).queries[ALL]
    graded = pd.concat([qrels, qrels.assign(docno=qrels["docno"].str.replace("0", "1"), label=0)], ignore_index=True)
    return {"cranfield": replace(texts(4), queries={ALL: Queries(topics, graded)}), "medquad": pages()}


def corpus(folder: Path, name: str = "medquad") -> Corpus:
    return Corpus(name, collections()[name], folder, tiny.checkpoint(), 32, "pisa")


def fold(folder: Path, name: str = "medquad") -> Fold:
    number = None if name == "medquad" else 0
    return Fold(corpus(folder, name), number, train_queries=None, dev_queries=500, test_queries=None)


# ------------------------------------------------------------------------------------------------------- the program


@pytest.mark.slow
def test_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = options(tmp_path, "--seeds", "0", "1")
    table = collections_left_out.run(collections(), chosen)
    expected = [names.CHOICES[name] for name in collections_left_out.CHOSEN]
    assert table.index.tolist() == expected and [*table] == ["cranfield", "medquad", "mean"]
    assert (table != "").all(axis=None)
    per_query = pd.read_csv(tmp_path / "per_query.csv")
    tested = per_query[per_query["measure"] == "nDCG@10"].groupby(["collection", "name", "seed"])["qid"].agg(sorted)
    everything = {"cranfield": texts(4).all_queries.topics, "medquad": pages().queries["test"].topics}
    for (name, system, _), qids in tested.items():  # each query once: that of a fold is in no other
        assert qids == sorted(everything[name]["qid"]), system
    seeds = per_query.groupby("name")["seed"].nunique()
    assert {system for system, count in seeds.items() if count == 2} == {*names.TRAINED}
    assert set(per_query[per_query["measure"] == JUDGED_ONLY]["collection"]) == {"cranfield"}
    assert pd.read_csv(tmp_path / "table.csv").shape == (len(expected), 4)
    goals = pd.read_csv(tmp_path / "goals.csv")
    assert goals["collection"].value_counts().to_dict() == {"cranfield": 5, "medquad": 5, "mean": 2}
    # a second call makes nothing anew, but what it is asked for
    made: list[str] = []
    pipeline = Fold.pipeline
    monkeypatch.setattr(Fold, "pipeline", lambda at, system, seed=0: made.append(system) or pipeline(at, system, seed))
    pd.testing.assert_frame_equal(collections_left_out.run(collections(), chosen), table)
    assert not made
    again = options(tmp_path, "--seeds", "0", "1", "--remake", "dual-encoder")
    pd.testing.assert_frame_equal(collections_left_out.run(collections(), again), table)
    assert made == [names.DUAL] * 6  # five folds, and one division
    with pytest.raises(SystemExit, match="max_tokens"):
        collections_left_out.run(collections(), options(tmp_path, "--max-tokens", "16"))


@pytest.mark.slow
def test_weights_and_models_come_from_other_collections_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(at: Fold) -> pd.DataFrame:
        grid = pd.DataFrame(fixed_weights.GRID).assign(qid="1")
        grid["value"] = (grid["title"] == BEST_TITLE[at.corpus.name]).astype(float)
        return pd.concat([grid.assign(split=split) for split in ("dev", "test")])

    monkeypatch.setattr(fixed_weights, "measured", measured)
    seen: dict[tuple[str, str], Any] = {}

    def add(bench: Bench, system: str, make: Any, seed: int = 0, file: str | None = None) -> None:
        seen[bench.corpus.name, system] = file

    monkeypatch.setattr(Bench, "_add", add)
    given = {"medquad": pages(), "numpydoc": pages(), "numpydoc-see-also": pages()}
    benches = {name: Bench(name, found, options(tmp_path)) for name, found in given.items()}
    for name, bench in benches.items():
        bench.add_local()
        bench.add_from_elsewhere([o for o in benches.values() if o.corpus.family != bench.corpus.family])
        assert seen[name, names.MEAN_BEST] == f"GraphMean, title {BEST_TITLE[name]:g}, relevant 0"
    # the two sets of queries for one corpus know nothing of each other
    assert seen["numpydoc", names.MEAN_ELSEWHERE] == "GraphMean, title 0.5, relevant 0"
    assert seen["numpydoc-see-also", names.GNN_ELSEWHERE] == f"{names.GNN_ELSEWHERE}, medquad"
    assert seen["medquad", names.MEAN_ELSEWHERE] == "GraphMean, title 1, relevant 0"
    assert seen["medquad", names.GNN_ELSEWHERE] == f"{names.GNN_ELSEWHERE}, numpydoc"


def test_one_collection_alone_has_nothing_from_elsewhere(tmp_path: Path) -> None:
    chosen = "bm25", "graphmean-fixed-weights-from-elsewhere", "graphmean-best-fixed-weights"
    table = collections_left_out.run({"medquad": pages()}, options(tmp_path, "--systems", *chosen))
    assert table.index.tolist() == [names.BM25, names.MEAN_BEST]


def test_names_of_collections() -> None:
    assert Named.parse("numpydoc-see-also") == Named("numpydoc-see-also", None)
    assert Named.parse("cacm=a/b") == Named("cacm", Path("a/b"))
    with pytest.raises(argparse.ArgumentTypeError, match="unknown collection 'cacn'"):
        Named.parse("cacn=a/b")


def test_a_collection_without_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        collections_left_out.main(["cacm", "--output", str(tmp_path)])
    assert "cacm needs the folder that it is in" in capsys.readouterr().err


def test_the_commands_of_the_documentation_are_understood() -> None:
    lines = re.sub(r"\\\n\s+", "", collections_left_out.__doc__ or "").splitlines()
    commands = [line.split()[3:] for line in lines if "python -m experiments.collections_left_out" in line]
    assert len(commands) == 2
    for command in commands:
        collections_left_out.command_line().parse_args(command)


def test_measures_over_judged_documents_need_pooled_judgments_that_differ(tmp_path: Path) -> None:
    assert corpus(tmp_path / "a", "cranfield").pooled
    assert not corpus(tmp_path / "b", "medquad").pooled
    alike = Corpus("cranfield", texts(), tmp_path / "c", tiny.checkpoint(), 32, "pisa")
    assert not alike.pooled


# ------------------------------------------------------------------------------------------------------- the systems


def test_titles_in_texts(tmp_path: Path) -> None:
    shared = corpus(tmp_path)
    titled = TitledTexts(shared.graph)
    nodes = shared.graph.passage_nodes[:2]
    assert titled.texts(nodes) == ["alpha: mu nu", "alpha: nu"]
    assert titled.ids_of(nodes) == ["alpha%p0", "alpha%p1"]
    assert titled.fingerprint() != shared.graph.fingerprint()
    expected = shared.encoder.encode_docs(titled.texts(nodes))
    np.testing.assert_allclose(shared.titled_index.payload()[1][:2], expected, atol=0.02)  # perhaps half precision
    assert not np.allclose(shared.index.payload()[1][:2], expected, atol=0.02)


def test_bm25_with_context_finds_what_only_titles_and_answered_queries_say(tmp_path: Path) -> None:
    bench = fold(tmp_path)
    topics = pd.DataFrame({"qid": ["title", "query"], "query": ["alpha", "mu"]})
    bare, context = (bench.pipeline(name)(topics) for name in (names.BM25, names.BM25_CONTEXT))
    assert set(bare["qid"]) == {"query"}
    assert set(context[context["qid"] == "title"]["docno"]) == {"alpha%p0", "alpha%p1"}
    best = context[context["qid"] == "title"].sort_values("rank")["docno"].iloc[0]
    assert best == "alpha%p0"  # which training queries name


def test_each_hybrid_has_its_parts(tmp_path: Path) -> None:
    bench = fold(tmp_path)
    mean, bm25, context = (bench.pipeline(name) for name in (names.MEAN, names.BM25, names.BM25_CONTEXT))
    for name, lexical in ((names.HYBRID, bm25), (names.HYBRID_CONTEXT, context), (names.HYBRID_HOME, bm25)):
        hybrid = bench.pipeline(name)
        assert isinstance(hybrid, ptg.Hybrid) and hybrid.pipelines == (lexical, mean)
    assert bench.pipeline(names.HYBRID).alpha == 0.5


@pytest.mark.parametrize("name", ["medquad", "cranfield"])
def test_the_grid_measures_what_retrieval_finds(name: str, tmp_path: Path) -> None:
    bench = fold(tmp_path, name)
    measured = fixed_weights.measured(bench)
    assert len(measured) == len(fixed_weights.GRID) * (len(bench.dev.topics) + len(bench.test.topics))
    pd.testing.assert_frame_equal(fixed_weights.measured(bench), measured)  # stored
    weights = {"title": 0.5, "relevant": 0.2}
    expected = fixed_weights.RunEvaluator("nDCG@10", bench.test.qrels).per_query(
        judged_ranking(bench.fixed(weights)(bench.test.topics), bench.test.qrels, 100)
    )
    chosen = measured[(measured["title"] == 0.5) & (measured["relevant"] == 0.2) & (measured["split"] == "test")]
    pd.testing.assert_series_equal(chosen.set_index("qid")["value"].sort_index(), expected, check_names=False)


def test_best_weights_are_those_of_the_mean_over_collections() -> None:
    def part(values: dict[tuple[float, float], list[float]], split: str = "dev") -> pd.DataFrame:
        rows = [(*point, split, str(n), value) for point, of in values.items() for n, value in enumerate(of)]
        return pd.DataFrame(rows, columns=["title", "relevant", "split", "qid", "value"])

    one = part({(0, 0): [1.0, 0.6], (1, 0): [0.5, 0.5]})
    # more queries count no more than few
    other = part({(0, 0): [0.4] * 9, (1, 0): [0.9] * 9})
    assert fixed_weights.best_weights([one], "dev") == {"title": 0.0, "relevant": 0.0}
    assert fixed_weights.best_weights([one, other], "dev") == {"title": 1.0, "relevant": 0.0}
    tested = part({(0, 0): [0.0], (1, 0): [1.0]}, "test")
    assert fixed_weights.best_weights([pd.concat([one, tested])], "test") == {"title": 1.0, "relevant": 0.0}


def test_judgments_of_documents_and_of_passages(tmp_path: Path) -> None:
    graph = corpus(tmp_path).graph
    qrels = pd.DataFrame({"qid": ["1", "1"], "docno": ["alpha", "beta"], "label": [1, 0]})
    assert relevant_passages(graph, qrels)["docno"].tolist() == ["alpha%p0", "alpha%p1"]
    passages = qrels.assign(docno=["alpha%p1", "beta%p0"])
    assert relevant_passages(graph, passages)["docno"].tolist() == ["alpha%p1"]
    found = pd.DataFrame({"qid": "1", "docno": ["alpha%p0", "beta%p0", "alpha%p1"], "score": [1.0, 2.0, 3.0]})
    assert judged_ranking(found, qrels, 2)[["docno", "score", "rank"]].to_numpy().tolist() == [
        ["alpha", 3.0, 0],
        ["beta", 2.0, 1],
    ]
    assert judged_ranking(found, passages, 2)["docno"].tolist() == ["alpha%p1", "beta%p0"]


# -------------------------------------------------------------------------------------------------------- the tables


def per_query(values: dict[str, dict[str, float]], queries: int = 20) -> pd.DataFrame:
    """Measures by system and collection, which differ a little from query to query."""
    rng = np.random.default_rng(0)
    noise = {name: rng.normal(0, 0.01, queries) for name in {name for row in values.values() for name in row}}
    rows = [
        (collection, system, str(query), "nDCG@10", value + noise[collection][query] * (1 + number / 100), 0)
        for number, (system, row) in enumerate(values.items())
        for collection, value in row.items()
        for query in range(queries)
    ]
    return pd.DataFrame(rows, columns=["collection", "name", "qid", "measure", "value", "seed"])


VALUES = {
    names.BM25: {"a": 0.5, "b": 0.3},
    names.DUAL: {"a": 0.4, "b": 0.4},
    names.TITLE_IN_TEXT: {"a": 0.45, "b": 0.38},
    names.MEAN: {"a": 0.46, "b": 0.395},
    names.MEAN_BEST: {"a": 0.5, "b": 0.4},
    names.HYBRID: {"a": 0.52, "b": 0.39},
}


def test_overview() -> None:
    table = tables.overview(per_query(VALUES), "nDCG@10", names.DUAL)
    assert table.index.tolist() == [name for name in names.SYSTEMS if name in VALUES]
    assert [*table] == ["a", "b", "mean"]
    assert table.loc[names.BM25, "a"].endswith("+") and table.loc[names.BM25, "b"].endswith("-")
    some = {name: {c: v for c, v in row.items() if (name, c) != (names.MEAN, "b")} for name, row in VALUES.items()}
    table = tables.overview(per_query(some), "nDCG@10", names.DUAL)
    assert table.loc[names.MEAN, ["b", "mean"]].tolist() == ["", ""]  # no mean over fewer collections


def test_goals() -> None:
    goals = tables.goals(per_query(VALUES), "nDCG@10")
    found = {(row.goal.split()[0], row.collection): row for row in goals.itertuples()}
    assert found["Hybrid", "a"].compared == names.BM25 and found["Hybrid", "a"].reached
    assert found["Hybrid", "b"].compared == names.MEAN and not found["Hybrid", "b"].reached
    below, within = (goals[goals["goal"].str.contains(words)].set_index("collection") for words in ("below", "within"))
    assert below["compared"].to_dict() == {"a": names.TITLE_IN_TEXT, "b": names.DUAL}
    assert below["reached"].tolist() == [True, False] and below["significant"].tolist() == ["+", "-"]
    assert within["reached"].tolist() == [False, True] and within["difference"].round(3).tolist() == [-0.04, -0.005]
    average, each = goals[goals["collection"] == "mean"].itertuples()
    # the best system is one that somebody could have chosen, and its rival is what users would try first
    assert average.goal.startswith(names.HYBRID) and average.compared == names.TITLE_IN_TEXT
    assert average.difference == pytest.approx(0.455 - 0.415, abs=0.002) and average.reached
    assert each.difference == pytest.approx(0.455 - 0.45, abs=0.002) and not each.reached
