"""Scores of runs: ranks, and scores relative to the other results of a query."""

import numpy as np
import pandas as pd


def ranked(run: pd.DataFrame, scores: np.ndarray) -> pd.DataFrame:
    """A run with new scores and ranks, sorted by score within each query; equal scores and queries keep their order."""
    query = run["qid"].factorize()[0]
    order = np.lexsort((-scores, query))
    query = query[order]
    rank = np.arange(len(run)) - np.searchsorted(query, query)
    run = run.take(order).reset_index(drop=True)
    return run.assign(score=scores[order], rank=rank)


def above_lowest(scores: np.ndarray, query: np.ndarray) -> np.ndarray:
    """How much each score is above the lowest one of its query, shape (results,)."""
    lowest = np.full(query.max(initial=-1) + 1, np.inf)
    np.minimum.at(lowest, query, scores)
    return scores - lowest[query]


def normalized_scores(scores: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Z-scores above the lowest score of each query, shape (results,); 1 where all scores of a query are equal."""
    above = above_lowest(scores, query)
    results = np.bincount(query)
    mean = np.bincount(query, above) / results
    spread = np.sqrt(np.bincount(query, (above - mean[query]) ** 2) / results)[query]
    return np.divide(above, spread, out=np.ones_like(above), where=spread > 0)
