"""The few numbers of a GraphIndex, chosen by judged queries: alpha of its hybrid, and the weights of evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.search.document_evidence import Evidence
from pyterrier_graph.search.hybrid import ALPHAS, Fusion, weighted
from pyterrier_graph.training.grid_search import Numbers, Tuning, coordinate_search
from pyterrier_graph.training.validation import Validation, judged

FOLDS, ENOUGH = 5, 500  # of answered queries; how many are left out of the context at most, to be measured
KEPT = 100  # results of each pipeline for a query that are measured

Parts = tuple[pd.DataFrame, np.ndarray]


def measured_parts(hybrid: Fusion, topics: pd.DataFrame, qrels: pd.DataFrame) -> Parts:
    """The best results of both pipelines for judged queries, and their normalized scores, shape (results, 2)."""
    topics = judged(topics, qrels, hybrid)[0]
    found, parts = hybrid._parts(topics)
    merged = hybrid._frame(topics, found)
    ranks = pd.DataFrame(parts).groupby(merged["qid"]).rank(ascending=False)
    kept = (ranks <= KEPT).any(axis=1).to_numpy()
    return merged[["qid", "docno"]][kept].reset_index(drop=True), parts[kept]


def left_out(
    make: Callable[[pd.DataFrame], Fusion], topics: pd.DataFrame, qrels: pd.DataFrame, *, verbose: bool
) -> Iterator[Parts]:
    """The parts of answered queries, in folds, each in the hybrid whose context does not have the fold's queries.

    ``make`` makes the hybrid for a context of some ``topics``, which are those of all answered queries.
    """
    relevant = qrels.loc[qrels["label"] > 0, "qid"]
    topics = topics[topics["qid"].isin(relevant)].reset_index(drop=True)
    fold = np.random.default_rng(0).permutation(len(topics)) % FOLDS
    count = 0
    for number in pt.tqdm(range(FOLDS), desc="answered queries left out", unit="fold", disable=not verbose):
        if count >= ENOUGH or len(topics) < FOLDS:
            break
        yield measured_parts(make(topics[fold != number]), topics[fold == number], qrels)
        count += int((fold == number).sum())


def best_numbers(
    parts: Parts, evidence: Evidence, qrels: pd.DataFrame, alpha: float, training: Tuning, *, verbose: bool
) -> tuple[float, Numbers]:
    """Alpha and the weights of evidence, moved from their present values as far as the queries support it.

    ``parts`` are what :func:`measured_parts` returns; ``evidence`` has the present weights.
    """
    merged, scores = parts
    validation = Validation(merged, qrels, training.measure, evidence)
    found: dict[float, pd.DataFrame] = {}

    def measure(numbers: Numbers) -> np.ndarray:
        value = numbers["alpha"]
        if value not in found:
            run = merged.assign(score=weighted(scores, np.array([1 - value, value])).sum(1))
            found.clear()
            found[value] = evidence.evidence(run).assign(alpha=run["score"])
        return validation.per_query(found[value] @ pd.Series({**numbers, "alpha": 1.0}))

    grid = [*({"alpha": value} for value in ALPHAS), *evidence.grid()]
    numbers = coordinate_search({"alpha": alpha} | evidence.weights, grid, measure, desc="fit", verbose=verbose)
    return numbers.pop("alpha"), numbers
