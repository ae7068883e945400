"""Hybrid: several rankings as one, against plain loops."""

from __future__ import annotations

from statistics import pstdev
from typing import Any

import pandas as pd
import pyterrier as pt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pyterrier_graph as ptg
from pyterrier_graph.search.hybrid import Frozen

TOPICS = pd.DataFrame({"qid": ["1", "2"], "query": ["alpha", "beta"]})
Scores = dict[str, dict[str, float]]
scores = st.dictionaries(
    st.sampled_from(["1", "2"]),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(-5, 5).map(float), min_size=1),
)


def pipeline(found: Scores, **columns: Any) -> pt.Transformer:
    rows = [
        (qid, docno, score) for qid, ranking in found.items() for docno, score in ranking.items()
    ]
    run = pd.DataFrame(rows, columns=["qid", "docno", "score"]).astype(
        {"qid": str, "docno": str, "score": float}
    )
    run = (
        pt.model.add_ranks(run.assign(**columns))
        if len(run)
        else run.assign(rank=pd.Series(dtype=int))
    )
    return pt.apply.generic(lambda topics: topics.merge(run, on="qid"))


def literal(parts: list[Scores], weights: list[float]) -> Scores:
    """The convex combination of z-scores above the last result's, one result at a time."""
    combined: Scores = {}
    for qid in TOPICS["qid"]:
        found = [part.get(qid, {}) for part in parts]
        share = [weight * bool(ranking) for weight, ranking in zip(weights, found, strict=True)]
        if not any(share):
            share = [float(bool(ranking)) for ranking in found]
        for docno in {docno for ranking in found for docno in ranking}:
            total = 0.0
            for weight, ranking in zip(share, found, strict=True):
                if docno in ranking:
                    low, spread = min(ranking.values()), pstdev(ranking.values())
                    total += (
                        weight / sum(share) * ((ranking[docno] - low) / spread if spread else 1)
                    )
            combined.setdefault(qid, {})[docno] = total
    return combined


@given(scores, scores, st.floats(0, 1))
def test_scores_are_the_literal_ones(lexical: Scores, dense: Scores, alpha: float) -> None:
    result = ptg.Hybrid(pipeline(lexical), pipeline(dense), alpha=alpha)(TOPICS)
    expected = literal([lexical, dense], [1 - alpha, alpha])
    got: Scores = {
        qid: dict(zip(rows["docno"], rows["score"], strict=True))
        for qid, rows in result.groupby("qid")
    }
    assert got.keys() == expected.keys()
    for qid, ranking in expected.items():
        assert got[qid] == pytest.approx(ranking)
        assert result[result["qid"] == qid]["score"].is_monotonic_decreasing


def test_alpha_moves_only_as_far_as_the_queries_agree() -> None:
    topics = pd.DataFrame({"qid": [str(n) for n in range(20)], "query": "x"})
    good = {str(n): {"a": 2.0, "b": 1.0, "c": 0.0} for n in range(20)}
    bad = {str(n): {"c": 3.0, "b": 0.1, "a": 0.0} for n in range(20)}
    qrels = pd.DataFrame({"qid": topics["qid"], "docno": "a", "label": 1})
    hybrid = ptg.Hybrid(pipeline(good), pipeline(bad), alpha=0.6, verbose=False)
    assert hybrid.fit(topics, qrels) is hybrid and hybrid.alpha < 0.6
    same = ptg.Hybrid(pipeline(good), pipeline(good), alpha=0.35, verbose=False)
    assert same.fit(topics, qrels).alpha == 0.35


def test_wrong_results() -> None:
    documents, passages = pipeline({"1": {"a": 1.0}}), pipeline({"1": {"a%p0": 1.0}})
    with pytest.raises(ValueError, match="ranks passages, and another documents"):
        ptg.Hybrid(documents, passages)(TOPICS)
    unscored = pipeline({"1": {"b": 1.0}}) >> pt.apply.generic(
        lambda run: run.assign(score=float("nan"))
    )
    with pytest.raises(ValueError, match="no score"):
        ptg.Hybrid(documents, unscored)(TOPICS)
    with pytest.raises(pt.validate.InputValidationError):
        ptg.Hybrid(documents, documents)(TOPICS[["qid"]])


TestHybrid = pt.testing.transformer_test_class(
    lambda: ptg.Hybrid(pipeline({"1": {"a": 1.0}}), pipeline({}))
)


def test_first_results_do_not_depend_on_how_many_are_wanted() -> None:
    """The components retrieve equally deep for one result and for many."""
    lexical = pipeline({"1": {name: 9.0 - rank for rank, name in enumerate("abcdef")}})
    dense = pipeline({"1": {name: 9.0 - rank**2 for rank, name in enumerate("febdca")}})
    complete = ptg.Hybrid(lexical, dense)(TOPICS)["docno"].tolist()
    for count in range(1, 7):
        fused = (ptg.Hybrid(lexical, dense) % count).compile()
        assert fused(TOPICS)["docno"].tolist() == complete[:count]
    assert {*ptg.Hybrid(lexical, dense, depth=1)(TOPICS)["docno"]} == {"a", "f"}


def test_labels_of_rows_do_not_matter() -> None:
    """Pipelines return frames with any index, as after a sort or a filter."""
    ranking = pipeline({"1": {"a": 1.0, "b": 2.0, "c": 3.0}})
    labeled = ranking >> pt.apply.generic(lambda run: run.set_axis([7, 0, 5]))
    plain, other = (ptg.Hybrid(one, one, depth=2)(TOPICS) for one in (ranking, labeled))
    pd.testing.assert_frame_equal(plain, other)
    assert [*other["docno"]] == ["c", "b"]


def test_a_frozen_pipeline_is_not_trained() -> None:
    hybrid = ptg.Hybrid(pipeline({"1": {"a": 1.0}}), pipeline({"1": {"a": 1.0}}))
    qrels = pd.DataFrame({"qid": ["1"], "docno": ["a"], "label": [1]})
    runs = []

    class Reranker(pt.Estimator):
        def fit(self, topics_or_res_tr: pd.DataFrame, *_: Any) -> None:
            runs.append(topics_or_res_tr)

        def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
            return inp

    (Frozen(hybrid) >> Reranker()).fit(TOPICS, qrels, TOPICS, qrels)
    pd.testing.assert_frame_equal(runs[0], hybrid(TOPICS))
