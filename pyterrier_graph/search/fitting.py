"""The settings of a GraphIndex, chosen by judged queries: alpha of its hybrid, and the weights of evidence."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.graphs.relations import DOCUMENT, ORDER
from pyterrier_graph.search.document_evidence import GRID, DocumentEvidence, node_evidence
from pyterrier_graph.search.hybrid import ALPHA, ALPHAS, SIDES, Hybrid, combined
from pyterrier_graph.search.scores import query_numbers
from pyterrier_graph.training.grid_search import Numbers, Tuning, coordinate_search
from pyterrier_graph.training.validation import JudgedRun, Validation

# settings of an index before any query is judged, if the encoder knows the language
SETTINGS: Mapping[str, Any] = {"alpha": ALPHA, "evidence": {DOCUMENT: 0.3, ORDER: 0.3}}
ORDER_GRID = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
MEASURED_RESULTS = 100  # best results of each pipeline for a query
HIGH_COSINE = 0.5  # mean cosine above which vectors count less
MAX_SAMPLE = 10_000  # passages whose vectors are compared for the mean cosine
MIN_SAMPLE = 20


def mean_cosine(vectors: np.ndarray) -> float:
    """The mean cosine of the vectors of two passages; 0 if there are few passages.

    With an encoder that does not know the language of the texts, it is 0.65 or more.
    """
    last = len(vectors) - 1
    rows = np.linspace(0, last, MAX_SAMPLE).astype(int)
    rows = np.unique(rows)
    count = len(rows)
    if count < MIN_SAMPLE:
        return 0.0
    units = np.asarray(vectors[rows], dtype=np.float64)  # (count, d)
    norms = np.linalg.norm(units, axis=1, keepdims=True)  # (count, 1)
    units /= norms.clip(1e-12)
    vector_sum = units.sum(axis=0)  # (d,)
    total = (vector_sum**2).sum()  # of all count * count cosines
    total -= count  # cosines of vectors with themselves
    return float(total / (count * (count - 1)))


def default_settings(cosine: float) -> dict[str, Any]:
    """The settings before any query is judged: vectors count less if :func:`mean_cosine` is high."""
    excess = (cosine - HIGH_COSINE) / 0.15
    factor = np.clip(1 - excess, 0.3, 1)
    return {**SETTINGS, "alpha": ALPHA * float(factor)}


def measured_results(hybrid: Hybrid, topics: pd.DataFrame, qrels: pd.DataFrame) -> pd.DataFrame:
    """The best results of both pipelines for judged queries, as :meth:`Hybrid.combine` returns them."""
    judged = JudgedRun(topics, qrels, hybrid)
    run = hybrid.combine(judged.rows)
    scores = run[SIDES].fillna(0.0)
    ranks = scores.groupby(run["qid"]).rank(ascending=False)
    is_best = (ranks <= MEASURED_RESULTS).any(axis=1)
    return run.loc[is_best, ["qid", "docno", *SIDES]]


def best_settings(
    results: pd.DataFrame,
    graph: HeteroGraph,
    qrels: pd.DataFrame,
    present: Mapping[str, Any],
    training: Tuning,
    *,
    verbose: bool,
) -> dict[str, Any]:
    """The settings that judged queries support, by the one-standard-error rule.

    ``results`` are what :func:`measured_results` returns.
    """
    judged = JudgedRun(results, qrels, DocumentEvidence(graph=graph))
    validation = Validation(judged, training.measure)
    run = validation.run
    query = query_numbers(run)
    nodes = graph.nodes_of(run["docno"].tolist())

    @lru_cache(maxsize=1)
    def scores_and_evidence(alpha: float) -> pd.DataFrame:
        # columns are named after the numbers that are searched; the hybrid's scores are in "alpha"
        scores = combined(run, alpha)
        evidence = node_evidence(graph, query, nodes, scores)
        return pd.DataFrame({**evidence, "alpha": scores})

    def measure(numbers: Numbers) -> np.ndarray:
        components = scores_and_evidence(numbers["alpha"])
        weights = pd.Series({**numbers, "alpha": 1.0})
        scores = components @ weights
        return validation.per_query(scores)

    start = {"alpha": present["alpha"], **present["evidence"]}
    grid = [{"alpha": alpha} for alpha in ALPHAS]
    grid += [{DOCUMENT: weight} for weight in GRID]
    grid += [{ORDER: weight} for weight in ORDER_GRID]
    best = coordinate_search(start, grid, measure, desc="fit", verbose=verbose)
    return {"alpha": best.pop("alpha"), "evidence": best}
