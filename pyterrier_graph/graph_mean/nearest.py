"""Exact search: the vectors with the largest inner products, a block of them at a time."""

from __future__ import annotations

import numpy as np

from pyterrier_graph.storage.arrays import blocks

VECTORS_AT_ONCE, SCORES_AT_ONCE = 4096, 1 << 26
BLOCK = 64  # scores per maximum, which bounds the k-th largest score


def nearest(queries: np.ndarray, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores and rows of the ``k`` best vectors per query (or of all, if there are fewer), shape (queries, k) each."""
    k = min(k, len(vectors))
    scores, rows = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
    for some in blocks(len(queries), max(1, SCORES_AT_ONCE // max(1, len(vectors)))):
        products = np.empty((len(some), len(vectors)), np.float32)
        for block in blocks(len(vectors), VECTORS_AT_ONCE):
            part = slice(block[0], block[-1] + 1)
            products[:, part] = queries[some] @ vectors[part].T
        for query, values in zip(some, products, strict=True):
            rows[query] = largest(values, k)
            scores[query] = values[rows[query]]
    return scores, rows


def largest(values: np.ndarray, k: int) -> np.ndarray:
    """Positions of the ``k`` largest of at least ``k`` values, in descending order; equal ones ascend."""
    if not k:
        return np.empty(0, np.int64)
    maxima = np.maximum.reduceat(values, np.arange(0, len(values), BLOCK))
    bound = maxima if len(maxima) >= k else values  # at least k values reach its k-th largest
    candidates = np.flatnonzero(values >= np.partition(bound, -k)[-k])
    return candidates[np.argsort(-values[candidates], kind="stable")[:k]]
