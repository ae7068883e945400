from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyterrier as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal

from pyterrier_graph.evaluation.cross_validation import cross_validate, query_folds


def topics(count: int) -> pd.DataFrame:
    return pd.DataFrame(
        {"qid": [f"{n:03}" for n in range(count)], "query": [f"query {n}" for n in range(count)]}
    )


def qrels(count: int) -> pd.DataFrame:
    return pd.DataFrame({"qid": [f"{n:03}" for n in range(count)], "docno": "NA", "label": 1})


class Memory(pt.Estimator):
    """Memorizes what it is trained on, and scores a document by it."""

    def __init__(self, log: list[Memory] | None = None) -> None:
        self.seen: list[set[str]] = []
        if log is not None:
            log.append(self)

    def fit(
        self, topics_tr: pd.DataFrame, qrels_tr: pd.DataFrame, topics_va: Any, qrels_va: Any
    ) -> Memory:
        assert not self.seen
        assert set(topics_tr["qid"]) == set(qrels_tr["qid"]) and set(topics_va["qid"]) == set(
            qrels_va["qid"]
        )
        self.seen = [set(topics_tr["qid"]), set(topics_va["qid"])]
        return self

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        self.tested = set(inp["qid"])
        rows = [
            (qid, docno, (sum(map(int, self.seen[0])) * int(qid) % 31 + number) / 7)
            for qid in inp["qid"]
            for number, docno in enumerate(["NA", "01", "a,b"])
        ]
        return pt.model.add_ranks(pd.DataFrame(rows, columns=["qid", "docno", "score"]))


# --- the protocol ---


@given(
    count=st.integers(3, 40), folds=st.integers(3, 10), seed=st.integers(0, 5), shuffle=st.randoms()
)
def test_queries_are_divided_evenly_whatever_their_order(
    count: int, folds: int, seed: int, shuffle: Any
):
    folds = min(folds, count)
    made = query_folds(topics(count), folds, seed=seed)
    assert sorted(qid for fold in made for qid in fold) == topics(count)["qid"].tolist()
    sizes = [len(fold) for fold in made]
    assert len(sizes) == folds and max(sizes) - min(sizes) <= 1
    order = list(range(count))
    shuffle.shuffle(order)
    assert query_folds(topics(count).iloc[order], folds, seed=seed) == made


@settings(max_examples=5)
@given(count=st.integers(3, 20), folds=st.integers(3, 6), seed=st.integers(0, 5))
def test_every_query_is_ranked_once_by_a_pipeline_that_does_not_know_it(
    count: int, folds: int, seed: int
):
    folds = min(folds, count)
    log: list[Memory] = []
    run = cross_validate(
        lambda fold: Memory(log=log), topics(count), qrels(count), folds, seed=seed, verbose=False
    )
    assert len(log) == folds
    made = query_folds(topics(count), folds, seed=seed)
    for number, memory in enumerate(log):
        train, validation = memory.seen
        assert memory.tested == made[number]
        assert validation == made[number - 1]  # of the first fold, the last one
        assert train == set(topics(count)["qid"]) - made[number] - made[number - 1]
        assert set(run["qid"][run["fold"] == number + 1]) == made[number]
    assert len(run) == 3 * count and not run.duplicated(["qid", "docno"]).any()


# --- what is refused ---


@pytest.mark.parametrize(
    ("folds", "message"),
    [
        ([["000", "001"], ["002"], ["003", "001"], ["004"]], "exactly one fold"),
        ([["000", "001"], ["002"], ["003"]], "exactly one fold"),
        (6, "number of splits n_splits=6 greater"),
    ],
)
def test_wrong_folds(folds: Any, message: str):
    with pytest.raises(ValueError, match=message):
        cross_validate(lambda fold: Memory(), topics(5), qrels(5), folds, verbose=False)


# --- continuing after a kill ---


class KilledError(Exception):
    pass


def test_an_estimator_of_another_fold_is_refused():
    memory = Memory()
    with pytest.raises(ValueError, match="must make a new .*Memory.* for each fold"):
        cross_validate(
            lambda fold: pt.Transformer.identity() >> memory, topics(5), qrels(5), verbose=False
        )


def test_goes_on_with_the_fold_that_was_interrupted(tmp_path: Path):
    log: list[Memory] = []

    def make(fold: int) -> Memory:
        if fold == 3:
            raise KilledError
        return Memory()

    arguments: Any = {
        "topics": topics(10),
        "qrels": qrels(10),
        "output_dir": tmp_path / "out",
        "verbose": False,
    }
    with pytest.raises(KilledError):
        cross_validate(make, **arguments)
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "fold1.parquet",
        "fold2.parquet",
    ]
    run = cross_validate(lambda fold: Memory(log=log), **arguments)
    folds = query_folds(topics(10))
    assert [memory.tested for memory in log] == folds[2:]
    expected = cross_validate(lambda fold: Memory(), topics(10), qrels(10), verbose=False)
    assert_frame_equal(run, expected, check_exact=True)
    log.clear()
    assert_frame_equal(
        cross_validate(lambda fold: Memory(log=log), **arguments), expected, check_exact=True
    )
    assert not log
