"""Shared by all experiments: splits of queries, stored runs, tables."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pandas as pd
import pytest
from experiment_tools import texts
from ir_measures import RR

from experiments.harness.collection import SPLITS, Queries
from experiments.harness.results import OPTIONS, Results, claim


def test_queries_are_divided() -> None:
    splits = texts().split(fold=4)
    qids = [set(splits[name].topics["qid"]) for name in SPLITS]
    everything = set(texts().all_queries.topics["qid"])
    assert set().union(*qids) == everything and sum(map(len, qids)) == len(everything)
    assert [set(splits[name].qrels["qid"]) for name in SPLITS] == qids
    others = texts().split(fold=0)["test"].topics["qid"]
    assert not set(others) & qids[2]


def run_of(places: dict[str, int]) -> pd.DataFrame:
    """A run that has the relevant document of each query at some place."""
    rows = [
        (qid, "right" if place == rank else f"d{rank}", -float(rank), rank)
        for qid, place in places.items()
        for rank in range(3)
    ]
    return pd.DataFrame(rows, columns=["qid", "docno", "score", "rank"])


def test_results_are_stored_and_tabulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    qids = [f"q{n}" for n in range(6)]
    queries = Queries(
        pd.DataFrame({"qid": qids, "query": "word"}),
        pd.DataFrame({"qid": qids, "docno": "right", "label": 1}),
    )
    made: list[str] = []

    def results() -> Results:
        found = Results(tmp_path, queries, [RR @ 10])
        for name, place in (("BM25", 1), ("better <= 2", 0)):
            for seed in range(1 + place):
                found.add(
                    name,
                    lambda name=name, place=place: (
                        made.append(name) or run_of(dict.fromkeys(qids, place))
                    ),
                    seed,
                )
        return found

    table = results().table(groups={"all": qids, "some": qids[:2], "none": []})
    assert table["queries"].tolist() == ["all (6)"] * 2 + ["some (2)"] * 2
    assert table["RR@10"].str[:5].tolist() == ["0.500", "1.000"] * 2
    assert made == ["BM25", "BM25", "better <= 2"]
    assert "than BM25" in capsys.readouterr().out
    assert len(pd.read_csv(tmp_path / "per_query.csv")) == 18
    assert results().table()["system"].tolist() == ["BM25", "better <= 2"]
    assert len(made) == 3
    (tmp_path / "runs" / "BM25-1.csv.gz").unlink()
    results()
    assert made[3:] == ["BM25"]


def test_a_folder_belongs_to_some_options(tmp_path: Path) -> None:
    claim(tmp_path, Namespace(epochs=1, seeds=[0], output=tmp_path), ["seeds"])
    claim(tmp_path, Namespace(epochs=1, seeds=[1], output="elsewhere"), ["seeds"])
    with pytest.raises(SystemExit, match=r"made with other options \(epochs\)"):
        claim(tmp_path, Namespace(epochs=2, seeds=[0], output=tmp_path), ["seeds"])
    assert '"epochs": "1"' in (tmp_path / OPTIONS).read_text("utf-8")
