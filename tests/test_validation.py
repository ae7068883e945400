"""Validation by a ranking measure, and the grid search that uses it."""

from __future__ import annotations

import ir_measures
import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tiny import judged

from pyterrier_graph.training.grid_search import coordinate_search
from pyterrier_graph.training.validation import Validation

RUN = pd.DataFrame(
    {
        "qid": [1, 1, 1, 2, 2, 3],
        "docno": ["a%p0", "a%p1", "b%p0", "b%p3", "c%p0", "a%p0"],
        "rank": [2, 0, 1, 0, 1, 0],
    }
)
QRELS = pd.DataFrame({"qid": ["1", "2"], "docno": ["a", "c"], "label": [1, 1]})


def test_passages_count_for_their_document_unless_passages_are_judged() -> None:
    validation = Validation(judged(RUN, QRELS), "RR")
    assert len(validation.run) == 5  # query 3 is not judged
    assert validation.per_query([0.0, 3.0, 2.0, 1.0, 2.0]).tolist() == [1.0, 1.0]
    assert validation.per_query([0.0, 1.0, 2.0, 1.0, 2.0]).mean() == 0.75
    passages = Validation(judged(RUN, QRELS.assign(docno=["a%p0", "c%p0"])), "RR")
    assert passages.per_query([0.0, 3.0, 2.0, 1.0, 2.0]) == pytest.approx([1 / 3, 1])


@pytest.mark.parametrize("measure", ["nDCG@3", "AP@2", "R@2", "RR@1"])
def test_what_is_below_the_cutoff_does_not_count(measure: str) -> None:
    random = np.random.default_rng(0)
    run = pd.DataFrame({"qid": np.repeat([*"abcd"], 9), "docno": np.tile([*"stuvwxyzq"], 4)})
    qrels = run.sample(12, random_state=0).assign(label=random.integers(1, 3, 12))
    for scores in (
        random.integers(0, 3, 36) / 3,
        1 + random.integers(0, 3, 36) * 1e-9,
    ):  # equal ones, also as float32
        frames = map(pt.model.to_ir_measures, (qrels, run.assign(score=scores)))
        expected = ir_measures.iter_calc([ir_measures.parse_measure(measure)], *frames)
        found = Validation(judged(run, qrels), measure).per_query(scores)
        assert found.tolist() == [
            value.value for value in sorted(expected, key=lambda value: value.query_id)
        ]


def test_the_first_candidates_of_each_query() -> None:
    first = Validation(judged(RUN, QRELS), "RR", candidates=1)
    assert first.run["docno"].tolist() == [
        "a%p0",
        "a%p1",
        "b%p3",
    ]  # by rank, with all passages of a document
    order = Validation(judged(RUN.drop(columns="rank").iloc[::-1], QRELS), "RR", candidates=1)
    assert order.run["docno"].tolist() == ["c%p0", "b%p0"]
    assert len(Validation(judged(RUN, QRELS), "RR", candidates=9).run) == 5


def test_candidates_that_are_not_judged() -> None:
    with pytest.warns(
        UserWarning, match="none of the candidates is judged, so RR is 0: the run has 'a%p0'.* 'x'"
    ):
        assert (
            Validation(judged(RUN, QRELS.assign(docno="x")), "RR").per_query(np.zeros(5)).sum() == 0
        )


def test_coordinate_search() -> None:
    grid = [{name: value} for name in "ab" for value in (0.0, 1.0, 2.0)]
    tried: list[dict[str, float]] = []

    def measure(numbers: dict[str, float]) -> np.ndarray:
        tried.append(numbers)
        return np.full(3, -((numbers["a"] - 1) ** 2) - numbers["b"])

    assert coordinate_search({"a": 0.0, "b": 2.0}, grid, measure, verbose=False) == {
        "a": 1.0,
        "b": 0.0,
    }
    assert tried[0] == {"a": 0.0, "b": 2.0}
    assert len(tried) == len(
        {(numbers["a"], numbers["b"]) for numbers in tried}
    )  # nothing is measured twice


def search(start: float, measured: dict[float, list[float]]) -> float:
    grid = [{"a": value} for value in measured]
    return coordinate_search(
        {"a": start}, grid, lambda numbers: np.array(measured[numbers["a"]]), verbose=False
    )["a"]


@given(
    st.lists(st.lists(st.floats(0, 1), min_size=5, max_size=5), min_size=2, max_size=5),
    st.integers(0, 4),
)
def test_the_rule_is_the_literal_one(rows: list[list[float]], start: int) -> None:
    start %= len(rows)
    means = [sum(row) / len(row) for row in rows]
    best = rows[max(range(len(rows)), key=lambda number: (means[number], number == start))]
    allowed = []
    for number, row in enumerate(rows):
        worse = [one - other for one, other in zip(best, row, strict=True)]
        mean = sum(worse) / 5
        error = (sum((value - mean) ** 2 for value in worse) / 4 / 5) ** 0.5
        assume(abs(mean - error) > 1e-7 or row == best)
        if mean <= error:
            allowed.append(abs(number - start))
    # equal means may choose another best one
    assume(sum(abs(mean - max(means)) < 1e-9 for mean in means) == 1)
    found = search(float(start), {float(number): row for number, row in enumerate(rows)})
    assert abs(found - start) == min(allowed)
