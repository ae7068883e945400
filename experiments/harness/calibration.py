"""How sure a teacher may be: its scores as probabilities, and thresholds that dev judgments support."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyterrier as pt
from sklearn.linear_model import LogisticRegression

CALIBRATED = "calibrated"
SURE_POSITIVE, SURE_NEGATIVE = 0.9, 0.99
LEAST = 10  # candidates beyond a threshold
BINS = 10


class Probability(LogisticRegression):
    """Predicts how probable it is that a document is relevant, not whether it is relevant."""

    def predict(self, X: np.ndarray) -> np.ndarray:  # noqa: N803  # as scikit-learn calls it
        """Probabilities, shape (documents,)."""
        return self.predict_proba(X)[:, 1]


def relevance(run: pd.DataFrame, qrels: pd.DataFrame) -> np.ndarray:
    """Whether each row of a run is judged relevant, shape (rows,)."""
    relevant = qrels.loc[qrels["label"] > 0, ["qid", "docno"]]
    return pd.MultiIndex.from_frame(run[["qid", "docno"]]).isin(pd.MultiIndex.from_frame(relevant))


def calibrated(reranker: pt.Transformer, run: pd.DataFrame, qrels: pd.DataFrame) -> pt.Transformer:
    """A reranker whose scores are probabilities, by logistic regression on its own scores (Platt scaling).

    Args:
        reranker: Any reranker.
        run: Candidates of dev queries.
        qrels: Judgments for them.

    Raises:
        ValueError: If all candidates are relevant, or none is.
    """
    scored = reranker.transform(run.drop(columns=["score", "rank"], errors="ignore"))
    relevant = relevance(scored, qrels)
    if relevant.all() or not relevant.any():
        raise ValueError(
            f"a teacher is calibrated by relevant and other candidates: {relevant.sum()} of {len(scored)}"
        )
    model = Probability(C=1e6).fit(scored[["score"]].to_numpy(), relevant)

    def probability(found: pd.DataFrame) -> pd.DataFrame:
        return found.assign(score=model.predict(found[["score"]].to_numpy()))

    return reranker >> pt.apply.generic(probability)


def sure_thresholds(scored: pd.DataFrame, qrels: pd.DataFrame) -> tuple[float, float]:
    """The thresholds s_pos and s_neg that dev judgments support.

    s_pos is the least score such that 90 % of the candidates from there on are relevant, s_neg the highest score such
    that 99 % of the candidates below are not. At least ten candidates are beyond each of them.

    Args:
        scored: Dev candidates with the teacher's ``score``, a probability.
        qrels: Judgments for them.

    Raises:
        ValueError: If there is no such threshold.
    """
    scored = scored.assign(relevant=relevance(scored, qrels)).sort_values("score", kind="stable")
    score, relevant = scored["score"].to_numpy(), scored["relevant"].to_numpy()
    count = np.arange(len(score) + 1)
    below = np.r_[0, np.cumsum(relevant)]  # relevant ones among the first n
    above = below[-1] - below
    allowed = np.r_[True, score[1:] > score[:-1], True]  # not between equal scores
    negative = np.flatnonzero(allowed & (count >= LEAST) & (count - below >= SURE_NEGATIVE * count))
    rest = len(score) - count
    positive = np.flatnonzero(allowed & (rest >= LEAST) & (above >= SURE_POSITIVE * rest))
    if not len(positive) or not len(negative):
        side, share, what = (
            ("above", SURE_POSITIVE, "") if not len(positive) else ("below", SURE_NEGATIVE, "not ")
        )
        raise ValueError(
            f"the teacher is never sure enough: there are no {LEAST} dev candidates {side} a threshold of which "
            f"{share:.0%} are {what}relevant; give thresholds, a better teacher, or more dev queries"
        )
    s_pos = float(score[positive[0]])
    place = negative[negative <= positive[0]]
    s_neg = float(score[min(place[-1], len(score) - 1)]) if len(place) else 0.0
    return s_pos, min(s_neg, np.nextafter(s_pos, 0.0))


def is_thresholds(text: str) -> bool:
    """Whether a text is s_pos/s_neg, or stands for those of the calibration."""
    try:
        positive, negative = map(float, text.split("/"))
    except ValueError:
        return text == CALIBRATED
    return 1 >= positive > negative >= 0


def reliability(scored: pd.DataFrame, qrels: pd.DataFrame) -> pd.DataFrame:
    """The share of relevant candidates by the teacher's probability, in ten bins."""
    number = np.minimum((scored["score"].to_numpy() * BINS).astype(int), BINS - 1)
    bins = pd.DataFrame(
        {
            "from": number / BINS,
            "relevant": relevance(scored, qrels),
            "probability": scored["score"],
        }
    )
    return (
        bins.groupby("from")
        .agg(
            candidates=("relevant", "size"),
            relevant=("relevant", "mean"),
            probability=("probability", "mean"),
        )
        .reset_index()
    )
