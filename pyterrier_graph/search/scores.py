"""Scores of results: ranks, scores relative to the other results of a query, and their combination."""

import numpy as np
import pandas as pd

from pyterrier_graph.checks import positions


def query_numbers(run: pd.DataFrame) -> np.ndarray:
    """The number of each result's query, shape (results,); queries are numbered in the order of the run."""
    numbers, _ = run["qid"].factorize()
    return numbers


def ranked(run: pd.DataFrame, scores: np.ndarray) -> pd.DataFrame:
    """A run with new scores and ranks, sorted by score within each query; equal scores and queries keep their order."""
    query = query_numbers(run)
    order = np.lexsort((-scores, query))
    rank = positions(query[order])
    run = run.take(order).reset_index(drop=True)
    return run.assign(score=scores[order], rank=rank)


def above_lowest(scores: np.ndarray, query: np.ndarray) -> np.ndarray:
    """How much each score is above the lowest one of its query, shape (results,)."""
    queries = query.max(initial=-1) + 1
    lowest = np.full(queries, np.inf)
    np.minimum.at(lowest, query, scores)
    return scores - lowest[query]


def normalized_scores(scores: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Z-scores above the lowest score of each query, shape (results,); 1 where all scores of a query are equal."""
    above = above_lowest(scores, query)
    results = np.bincount(query)  # (queries,)
    results = np.maximum(results, 1)  # no division by zero
    mean = np.bincount(query, above) / results
    squares = (above - mean[query]) ** 2  # (results,)
    variance = np.bincount(query, squares) / results
    spread = np.sqrt(variance)[query]  # (results,)
    normalized = np.ones_like(above)
    return np.divide(above, spread, out=normalized, where=spread > 0)


def weighted(normalized: np.ndarray, query: np.ndarray, alpha: float) -> np.ndarray:
    """What a lexical and a dense pipeline add to scores, shape (results, 2).

    If a pipeline has retrieved nothing for a query, the other one gets its weight.

    Args:
        normalized: Normalized scores of both, shape (results, 2); NaN where the pipeline has not retrieved the result.
        query: The number of each result's query, shape (results,).
        alpha: Share of the dense pipeline.
    """
    has_score = ~np.isnan(normalized)  # (results, 2)
    counts = [np.bincount(query, side) for side in has_score.T]
    retrieved = np.stack(counts, axis=1) > 0  # (queries, 2)
    weights = retrieved * np.array([1 - alpha, alpha])  # (queries, 2)
    # a pipeline without weight gets it where the other one has retrieved nothing
    has_weight = weights.any(axis=1, keepdims=True)  # (queries, 1)
    weights = np.where(has_weight, weights, retrieved)
    total = weights.sum(axis=1, keepdims=True)  # (queries, 1)
    total[total == 0] = 1  # queries without results
    shares = weights / total  # (queries, 2)
    return np.nan_to_num(normalized) * shares[query]
