"""Scores of different models made comparable, per query, so that they can be added up."""

from typing import Literal

import pandas as pd

Normalization = Literal["min-max", "z-score", "rank"]


def normalized(scores: pd.Series, qids: pd.Series, normalization: Normalization = "min-max") -> pd.Series:
    """Scores on a common scale, per query; if all are equal, they are 0.5 by min-max and 0 by z-score.

    Args:
        scores: One score per result.
        qids: The query of each result, with the same index.
        normalization: ``'min-max'`` to 0 to 1 (Bruch et al., TOIS 2023, Sect. 3); ``'z-score'`` by mean and standard
            deviation; ``'rank'`` to ``1 / (60 + rank)``, reciprocal rank fusion (Cormack et al., SIGIR 2009).
    """
    scores = scores.astype(float)
    by_query = scores.groupby(qids)
    if normalization == "rank":
        return 1 / (60 + by_query.rank(ascending=False, method="first") - 1)
    if normalization == "z-score":
        spread = by_query.transform("std", ddof=0)
        return ((scores - by_query.transform("mean")) / spread.where(spread > 0, 1)).astype(float)
    low, high = by_query.transform("min"), by_query.transform("max")
    return ((scores - low) / (high - low).where(high > low, 1)).where(high > low, 0.5)


def check_finite_scores(run: pd.DataFrame, source: object) -> None:
    """Raises ValueError if the ``score`` of a result is not a finite number; ``source`` is what the scores are of."""
    scores = pd.to_numeric(run["score"], errors="coerce").astype(float)
    wrong = run[~scores.abs().lt(float("inf"))]
    if len(wrong):
        first = wrong.iloc[0]
        raise ValueError(f"{source!r}: query {first['qid']!r}, {first['docno']!r} has no finite score")
