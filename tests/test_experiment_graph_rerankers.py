"""The experiment on graph rerankers, in miniature."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import tiny
from experiment_tools import Matches, pages

import pyterrier_graph as ptg
from experiments import graph_rerankers

pytestmark = pytest.mark.slow  # whole experiments, on tiny data


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_rerankers, "bm25", Matches)
    monkeypatch.setattr(graph_rerankers.Bench, "_encoder", lambda _: tiny.encoder())
    monkeypatch.setitem(graph_rerankers.SHAPE, "registers", 2)
    monkeypatch.setitem(graph_rerankers.TRAINING, "epochs", 1)


def options(folder: Path, *more: str) -> Any:
    small = ["--documents", "12", "--triples", "8", "--train-queries", "8", "--queries", "4"]
    return graph_rerankers.command_line().parse_args(["pages", *small, "--output", str(folder), *more])


def test_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = options(tmp_path, "--variants", "NO_LB", "NO_LB_NS", "--seeds", "0", "1")
    table = graph_rerankers.run(pages(), chosen).set_index("system")
    default = [f"GraphMaxSim, default weights{more}{suffix}" for more in ("", ", tuned") for suffix in ("", ", titled")]
    both = [f"{name}{suffix}" for name in ("MaxSim", "GraphMaxSim") for suffix in ("", ", titled")]
    hgats = ["std_NO_LB", "std_NO_LB, titled"]
    expected = [
        "BM25",
        *default,
        *(name + more for name in [*both, *hgats] for more in ("", " + document")),
        "late_NO_LB_NS",
    ]
    assert sorted(table.index) == sorted(expected)
    assert table.loc["std_NO_LB", "nDCG@10"].count("±") == 1 and "±" not in table.loc["GraphMaxSim", "nDCG@10"]
    # only titles tell pages apart
    assert float(table.loc["GraphMaxSim", "RR@10"][:5]) > float(table.loc["MaxSim", "RR@10"][:5])
    monkeypatch.setattr(ptg.HGATReranker, "fit", lambda *_: pytest.fail("trained again"))
    pd.testing.assert_frame_equal(graph_rerankers.run(pages(), chosen).set_index("system"), table)


def test_an_encoder_has_its_own_projection(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        graph_rerankers.main(["medquad", str(tmp_path), "--output", "x", "--encoder", "a", "--projection", "b"])
    assert "leave out --projection" in capsys.readouterr().err


def test_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def hgat(bench: Any, name: str, seed: int, *_: Any) -> Any:
        made = original(bench, name, seed, *_)
        seen[name] = made.config, made.training
        return made

    original = graph_rerankers.Bench.hgat
    monkeypatch.setattr(graph_rerankers.Bench, "hgat", hgat)
    names = ["the-paper", "scalars-at-5e-3", "random-start"]
    chosen = options(tmp_path, "--systems", "hgat", "--variants", "NO_LB", "--choices", *names)
    table = graph_rerankers.run(pages(), chosen)
    assert {"the paper", "scalars at 5e-3", "random start"} < set(table["system"])
    config, training = seen["the paper"]
    assert (config.layers, config.heads, config.init, config.registers) == (3, 8, "random", 0)
    assert config.relations == graph_rerankers.EIGHT and training.scalar_learning_rate is None
    assert seen["scalars at 5e-3"][1].scalar_learning_rate == 0.005 and seen["std_NO_LB"][1].max_triples == 8
    assert seen["random start"][0].relations == graph_rerankers.RELATIONS


def test_hgat_that_starts_at_graph_maxsim(tmp_path: Path) -> None:
    chosen = options(tmp_path, "--systems", "graph-maxsim", "hgat-matches")
    table = graph_rerankers.run(pages(), chosen).set_index("system")
    assert {"GraphMaxSim", "HGAT from GraphMaxSim", "HGAT from GraphMaxSim, titled"} <= set(table.index)
    best, trained = (float(table.loc[name, "nDCG@10"][:5]) for name in ("GraphMaxSim", "HGAT from GraphMaxSim"))
    assert trained >= best - 0.05


def test_ways_to_learn_from_graph_maxsim(tmp_path: Path) -> None:
    ways = ["--starts", *graph_rerankers.STARTS, "--learns", "slowly", "fast", "with-registers"]
    chosen = options(tmp_path, "--systems", "hgat-matches", "--texts", "bare", *ways)
    table = graph_rerankers.run(pages(), chosen)
    starts = [f"HGAT from GraphMaxSim{name}" for name in graph_rerankers.STARTS.values()]
    names = [name + more for name in starts for more in ("", ", fast", ", with-registers")]
    assert sorted(table["system"]) == sorted(["BM25", *names])
    for name in names:
        log = pd.read_csv(tmp_path / "training" / f"{graph_rerankers.slug(name)}-0.csv")
        assert log["nDCG@10"].notna().sum() >= 2  # before training, and after


def test_tuning_on_training_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[set[str], set[str]]] = []

    def fit(reranker: Any, topics: pd.DataFrame, qrels: pd.DataFrame) -> None:
        seen.append((set(topics["qid"]), set(qrels["qid"])))

    monkeypatch.setattr(ptg.GraphMaxSim, "fit", fit)
    for name, queries in (("dev", "0"), ("more", "3")):
        more = ["--systems", "graph-maxsim", "--texts", "bare", "--tune-queries", queries]
        graph_rerankers.run(pages(), options(tmp_path / name, *more))
    splits = pages().split(dev_queries=100)
    train, dev, test = (set(splits[name].topics["qid"]) for name in ("train", "dev", "test"))
    (alone, judged), *_, (both, judged_both) = seen
    assert len(seen) == 4  # from two starts
    assert alone == judged == dev and both == judged_both
    assert len(both - dev) == 3 and both - dev <= train and not both & test
