"""Search for the vectors with the largest inner products, among all of them or among candidates with similar codes.

A code has 2 bits per dimension: the nearest of 16 centroids for each pair of dimensions (product quantization). Codes
are in lists of nearby vectors, and a query is compared with a quarter of the lists. Measured:
``experiments/results/costs.md``.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from pyterrier_graph.checks import SpeedWarning
from pyterrier_graph.storage.arrays import blocks

VECTORS_AT_ONCE = 4096
SCORES_AT_ONCE = 1 << 26
LISTS = 1024  # lists of an index
SEARCHED = 256  # lists that a query is compared with
SAMPLE_PER_LIST = 64  # vectors that centroids are computed from
ROWS_AT_ONCE = 16_384
CANDIDATES_PER_RESULT = 10
MIN_CANDIDATES = 5000
BLOCK = 64  # scores per maximum; the k-th largest maximum is a bound of the k-th largest score


def nearest(queries: np.ndarray, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores and rows of the ``k`` best vectors per query (or of all, if there are fewer), shape (queries, k) each."""
    count = len(vectors)
    k = min(k, count)
    scores = np.empty((len(queries), k), np.float32)
    rows = np.empty((len(queries), k), np.int64)
    queries_at_once = max(1, SCORES_AT_ONCE // max(1, count))
    for batch in blocks(len(queries), queries_at_once):
        products = np.empty((len(batch), count), np.float32)
        for start in range(0, count, VECTORS_AT_ONCE):
            block = slice(start, start + VECTORS_AT_ONCE)
            products[:, block] = queries[batch] @ vectors[block].T
        for query, values in zip(batch, products, strict=True):
            best = largest(values, k)
            rows[query] = best
            scores[query] = values[best]
    return scores, rows


def largest(values: np.ndarray, k: int) -> np.ndarray:
    """Positions of the ``k`` largest of at least ``k`` values, in descending order; equal ones ascend."""
    if not k:
        return np.empty(0, np.int64)
    starts = np.arange(0, len(values), BLOCK)
    maxima = np.maximum.reduceat(values, starts)
    bounds = maxima if len(maxima) >= k else values  # at least k values reach its k-th largest
    threshold = np.partition(bounds, -k)[-k]
    candidates = np.flatnonzero(values >= threshold)
    order = np.argsort(-values[candidates], kind="stable")
    return candidates[order[:k]]


# --- codes


def write_codes(file: Path, vectors: np.ndarray) -> None:
    """Writes the codes of vectors; without FAISS there is a warning and no file."""
    count, dimension = vectors.shape
    try:
        import faiss
    except ImportError:
        warnings.warn(
            f"an index of {count} passages will be searched exactly: approximate search needs FAISS, "
            "pip install 'pyterrier_graph[faiss]'",
            SpeedWarning,
            stacklevel=4,
        )
        return
    lists = min(LISTS, math.ceil(count / SAMPLE_PER_LIST))
    pairs = dimension // 2 if dimension % 2 == 0 else dimension
    kind = f"IVF{lists},PQ{pairs}x4fs"
    codes: Any = faiss.index_factory(dimension, kind, faiss.METRIC_INNER_PRODUCT)
    codes.nprobe = math.ceil(lists * SEARCHED / LISTS)
    sample = np.linspace(0, count - 1, SAMPLE_PER_LIST * lists).astype(np.int64)
    codes.train(vectors[sample])
    for rows in blocks(count, ROWS_AT_ONCE):
        codes.add(vectors[rows])
    faiss.write_index(codes, str(file))


def read_codes(file: Path) -> Any:
    """Reads codes into memory, a FAISS index."""
    import faiss

    return faiss.read_index(str(file))


def nearest_by_codes(
    queries: np.ndarray, vectors: np.ndarray, codes: Any, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """As :func:`nearest`, among vectors with similar codes; among all if the searched lists have fewer than ``k``."""
    k = min(k, len(vectors))
    wanted = max(MIN_CANDIDATES, CANDIDATES_PER_RESULT * k)
    wanted = min(wanted, len(vectors))
    scores = np.empty((len(queries), k), np.float32)
    rows = np.empty((len(queries), k), np.int64)
    for row, query in enumerate(queries):
        _, (candidates,) = codes.search(query[None], wanted)  # (wanted,), -1 for none
        candidates = np.sort(candidates[candidates >= 0])
        if len(candidates) < k:
            scores[row], rows[row] = nearest(query[None], vectors, k)
            continue
        products = vectors[candidates] @ query
        best = largest(products, k)
        scores[row] = products[best]
        rows[row] = candidates[best]
    return scores, rows
