"""The settings of a GraphIndex, chosen by judged queries: alpha of its hybrid, and the weights of evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.graphs.relations import DOCUMENT, ORDER
from pyterrier_graph.search.document_evidence import Evidence
from pyterrier_graph.search.hybrid import ALPHA, ALPHAS, Fusion, weighted
from pyterrier_graph.training.grid_search import Numbers, Tuning, coordinate_search
from pyterrier_graph.training.validation import JudgedRun, Validation

SETTINGS: Mapping[str, Any] = {
    "alpha": ALPHA,
    "evidence": {DOCUMENT: 0.0, ORDER: 0.0},
}  # before any query is judged
RESULTS = 1000  # of each pipeline, for a query that chooses the settings
FOLDS, ENOUGH = (
    5,
    500,
)  # of answered queries; how many are left out of the context at most, to be measured
KEPT = 100  # results of each pipeline for a query that are measured

Parts = tuple[pd.DataFrame, np.ndarray]


def measured_parts(hybrid: Fusion, topics: pd.DataFrame, qrels: pd.DataFrame) -> Parts:
    """The best results of both pipelines for judged queries, and their normalized scores, shape (results, 2)."""
    topics = JudgedRun(topics, qrels, hybrid).rows
    found, parts = hybrid._parts(topics)
    merged = hybrid._frame(topics, found)
    ranks = pd.DataFrame(parts).groupby(merged["qid"]).rank(ascending=False)
    kept = (ranks <= KEPT).any(axis=1).to_numpy()
    return merged[["qid", "docno"]][kept].reset_index(drop=True), parts[kept]


def left_out(
    make: Callable[[pd.DataFrame], Fusion],
    topics: pd.DataFrame,
    qrels: pd.DataFrame,
    *,
    verbose: bool,
) -> Iterator[Parts]:
    """The parts of answered queries, in folds, each in the hybrid whose context does not have the fold's queries.

    ``make`` makes the hybrid for a context of some ``topics``, which are those of all answered queries.
    """
    relevant = qrels.loc[qrels["label"] > 0, "qid"]
    topics = topics[topics["qid"].isin(relevant)].reset_index(drop=True)
    fold = np.random.default_rng(0).permutation(len(topics)) % FOLDS
    count = 0
    for number in pt.tqdm(
        range(FOLDS), desc="answered queries left out", unit="fold", disable=not verbose
    ):
        if count >= ENOUGH or len(topics) < FOLDS:
            break
        yield measured_parts(make(topics[fold != number]), topics[fold == number], qrels)
        count += int((fold == number).sum())


def best_settings(
    parts: Sequence[Parts],
    graph: HeteroGraph,
    qrels: pd.DataFrame,
    present: Mapping[str, Any],
    training: Tuning,
    *,
    verbose: bool,
) -> dict[str, Any]:
    """The settings, moved from their present values as far as judged queries support it.

    ``parts`` are what :func:`measured_parts` returns, each for some of the queries.
    """
    merged = pd.concat([found for found, _ in parts], ignore_index=True)
    scores = np.concatenate([scores for _, scores in parts])
    evidence = evidence_of(graph, present["evidence"])
    validation = Validation(JudgedRun(merged, qrels, evidence), training.measure)
    found: dict[float, pd.DataFrame] = {}

    def measure(numbers: Numbers) -> np.ndarray:
        value = numbers["alpha"]
        if value not in found:
            run = merged.assign(score=weighted(scores, value).sum(1))
            found.clear()
            found[value] = evidence.evidence(run).assign(alpha=run["score"])
        return validation.per_query(found[value] @ pd.Series({**numbers, "alpha": 1.0}))

    start = {"alpha": present["alpha"]} | evidence.weights
    grid = [*({"alpha": value} for value in ALPHAS), *evidence.grid()]
    numbers = coordinate_search(start, grid, measure, desc="fit", verbose=verbose)
    return {"alpha": numbers.pop("alpha"), "evidence": numbers}


def evidence_of(graph: HeteroGraph, weights: Mapping[str, float]) -> Evidence:
    """The evidence with weights by name, ``document`` among them."""
    relations = {name: weight for name, weight in weights.items() if name != DOCUMENT}
    return Evidence(weights[DOCUMENT], relations=relations, graph=graph)
