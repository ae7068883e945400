"""The settings of a GraphIndex, chosen by judged queries: alpha of its hybrid, and the weights of evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.graphs.judgments import passage_qrels
from pyterrier_graph.graphs.relations import DOCUMENT, ORDER
from pyterrier_graph.search.document_evidence import DocumentEvidence
from pyterrier_graph.search.hybrid import ALPHA, ALPHAS, SIDES, Hybrid, combined
from pyterrier_graph.training.grid_search import Numbers, Tuning, coordinate_search
from pyterrier_graph.training.validation import JudgedRun, Validation

# of an index before any query is judged, if the encoder knows the language
SETTINGS: Mapping[str, Any] = {"alpha": ALPHA, "evidence": {DOCUMENT: 0.3, ORDER: 0.3}}
FOLDS = 5  # of answered queries
ENOUGH_QUERIES = 500  # answered queries that are measured before the remaining folds are skipped
MEASURED_RESULTS = 100  # best results of each pipeline for a query
HIGH_COSINE = 0.5  # mean cosine above which vectors count less
MAX_SAMPLE, MIN_SAMPLE = 10_000, 20  # passages whose vectors are compared for the mean cosine


def mean_cosine(vectors: np.ndarray) -> float:
    """The mean cosine of the vectors of two passages; 0 if there are few passages.

    An encoder that does not know a language makes vectors of 0.65 and more.
    """
    rows = np.unique(np.linspace(0, len(vectors) - 1, MAX_SAMPLE).astype(int))
    count = len(rows)
    if count < MIN_SAMPLE:
        return 0.0
    units = np.asarray(vectors[rows], dtype=np.float64)  # (count, d)
    units /= np.linalg.norm(units, axis=1, keepdims=True).clip(1e-12)
    total = (units.sum(axis=0) ** 2).sum()  # of all count * count cosines
    return float((total - count) / (count * (count - 1)))  # without each vector's with itself


def default_settings(cosine: float) -> dict[str, Any]:
    """The settings before any query is judged: vectors count less if :func:`mean_cosine` is high."""
    factor = float(np.clip(1 - (cosine - HIGH_COSINE) / 0.15, 0.3, 1))
    return {**SETTINGS, "alpha": ALPHA * factor}


def measured_results(hybrid: Hybrid, topics: pd.DataFrame, qrels: pd.DataFrame) -> pd.DataFrame:
    """The best results of both pipelines for judged queries, as :meth:`Hybrid.combine` returns them."""
    run = hybrid.combine(JudgedRun(topics, qrels, hybrid).rows)
    ranks = run[SIDES].fillna(0.0).groupby(run["qid"]).rank(ascending=False)
    return run.loc[(ranks <= MEASURED_RESULTS).any(axis=1), ["qid", "docno", *SIDES]]


def best_settings(
    results: Sequence[pd.DataFrame],
    graph: HeteroGraph,
    qrels: pd.DataFrame,
    present: Mapping[str, Any],
    training: Tuning,
    *,
    verbose: bool,
) -> dict[str, Any]:
    """The settings that judged queries support, by the one-standard-error rule.

    ``results`` are what :func:`measured_results` returns, each for some of the queries.
    """
    evidence = evidence_of(graph, present["evidence"])
    judged = JudgedRun(pd.concat(results, ignore_index=True), qrels, evidence)
    validation = Validation(judged, training.measure)

    @lru_cache(maxsize=1)
    def scores_and_evidence(alpha: float) -> pd.DataFrame:
        scores = combined(validation.run, alpha)
        run = validation.run.assign(score=scores)
        return evidence.evidence(run).assign(alpha=scores)

    def measure(numbers: Numbers) -> np.ndarray:
        weights = pd.Series({**numbers, "alpha": 1.0})
        return validation.per_query(scores_and_evidence(numbers["alpha"]) @ weights)

    start = {"alpha": present["alpha"]} | evidence.weights
    grid = [*({"alpha": value} for value in ALPHAS), *evidence.grid()]
    best = coordinate_search(start, grid, measure, desc="fit", verbose=verbose)
    return {"alpha": best.pop("alpha"), "evidence": best}


def answered_settings(
    make: Callable[[pd.DataFrame], Hybrid],
    topics: pd.DataFrame,
    qrels: pd.DataFrame,
    graph: HeteroGraph,
    present: Mapping[str, Any],
    training: Tuning,
    *,
    verbose: bool,
) -> dict[str, Any]:
    """The settings that answered queries support, each ranked by a hybrid whose context lacks it.

    ``make`` makes the hybrid with some of the topics as context. With fewer than five queries, there are no settings.
    """
    qrels = passage_qrels(qrels, graph)
    relevant = qrels.loc[qrels["label"] > 0, "qid"]
    topics = topics[topics["qid"].isin(relevant)].reset_index(drop=True)
    if len(topics) < FOLDS:
        return {}
    fold = np.random.default_rng(0).permutation(len(topics)) % FOLDS
    results, count = [], 0
    for number in pt.tqdm(
        range(FOLDS), desc="answered queries left out", unit="fold", disable=not verbose
    ):
        hybrid = make(topics[fold != number])
        results.append(measured_results(hybrid, topics[fold == number], qrels))
        count += (fold == number).sum()
        if count >= ENOUGH_QUERIES:
            break
    return best_settings(results, graph, qrels, present, training, verbose=verbose)


def evidence_of(graph: HeteroGraph, weights: Mapping[str, float]) -> DocumentEvidence:
    """The evidence with weights by name, ``document`` among them."""
    relations = dict(weights)
    return DocumentEvidence(relations.pop(DOCUMENT), relations=relations, graph=graph)
