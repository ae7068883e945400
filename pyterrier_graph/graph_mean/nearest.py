"""Search for the vectors with the largest inner products, among all of them or among candidates with similar codes.

A code has 2 bits per dimension: the nearest of 16 centroids for each pair of dimensions (product quantization). Codes
are in lists of nearby vectors, and a query is compared with a quarter of the lists. Measured:
``experiments/results/costs.md``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pyterrier_graph.checks import SpeedWarning
from pyterrier_graph.storage.arrays import blocks

VECTORS_AT_ONCE, SCORES_AT_ONCE = 4096, 1 << 26
LISTS, SEARCHED = 1024, 256  # lists of an index, and how many a query is compared with
SAMPLE_PER_LIST = 64  # vectors that centroids are computed from
ROWS_AT_ONCE, QUERIES_AT_ONCE = 16_384, 256
CANDIDATES_PER_RESULT, MIN_CANDIDATES = 10, 5000
BLOCK = 64  # scores per maximum; the k-th largest maximum is a bound of the k-th largest score

Candidates = Callable[[np.ndarray, int], Iterator[np.ndarray]]


def nearest(queries: np.ndarray, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores and rows of the ``k`` best vectors per query (or of all, if there are fewer), shape (queries, k) each."""
    k = min(k, len(vectors))
    scores = np.empty((len(queries), k), np.float32)
    rows = np.empty((len(queries), k), np.int64)
    queries_at_once = max(1, SCORES_AT_ONCE // max(1, len(vectors)))
    for batch in blocks(len(queries), queries_at_once):
        products = np.empty((len(batch), len(vectors)), np.float32)
        for block in blocks(len(vectors), VECTORS_AT_ONCE):
            rows_of_block = slice(block[0], block[-1] + 1)
            products[:, rows_of_block] = queries[batch] @ vectors[rows_of_block].T
        for query, values in zip(batch, products, strict=True):
            rows[query] = largest(values, k)
            scores[query] = values[rows[query]]
    return scores, rows


def largest(values: np.ndarray, k: int) -> np.ndarray:
    """Positions of the ``k`` largest of at least ``k`` values, in descending order; equal ones ascend."""
    if not k:
        return np.empty(0, np.int64)
    starts = np.arange(0, len(values), BLOCK)
    maxima = np.maximum.reduceat(values, starts)
    bound = maxima if len(maxima) >= k else values  # at least k values reach its k-th largest
    candidates = np.flatnonzero(values >= np.partition(bound, -k)[-k])
    order = np.argsort(-values[candidates], kind="stable")
    return candidates[order[:k]]


# --- codes


def write_codes(file: Path, vectors: np.ndarray) -> None:
    """Writes the codes of vectors; without FAISS there is a warning and no file."""
    count, dimension = vectors.shape
    faiss = _load_faiss(f"an index of {count} passages")
    if faiss is None:
        return
    lists = min(LISTS, -(-count // SAMPLE_PER_LIST))
    pairs = dimension // 2 if dimension % 2 == 0 else dimension
    kind = f"IVF{lists},PQ{pairs}x4fs"
    codes = faiss.index_factory(dimension, kind, faiss.METRIC_INNER_PRODUCT)
    codes.nprobe = -(-lists * SEARCHED // LISTS)
    sample = np.linspace(0, count - 1, SAMPLE_PER_LIST * lists).astype(np.int64)
    codes.train(vectors[sample])
    for rows in blocks(count, ROWS_AT_ONCE):
        codes.add(vectors[rows])
    faiss.write_index(codes, str(file))


def read_codes(file: Path) -> Candidates | None:
    """Reads codes into memory; without FAISS there is a warning, and None.

    Returns a function of vectors of queries and a number of results: per query, the numbers of passages, ascending,
    whose codes are most similar, more than results as far as the searched lists have them.
    """
    faiss = _load_faiss(repr(str(file.parent)))
    return None if faiss is None else partial(_candidates, faiss.read_index(str(file)))


def best_of_candidates(
    queries: np.ndarray, vectors: np.ndarray, candidates: Candidates, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """As :func:`nearest`, among the candidates that :func:`read_codes` finds; among all if these are too few."""
    k = min(k, len(vectors))
    scores = np.empty((len(queries), k), np.float32)
    rows = np.empty((len(queries), k), np.int64)
    for query, numbers in enumerate(candidates(queries, k)):
        if len(numbers) < k:
            one = slice(query, query + 1)
            scores[one], rows[one] = nearest(queries[one], vectors, k)
            continue
        products = vectors[numbers] @ queries[query]
        best = largest(products, k)
        scores[query], rows[query] = products[best], numbers[best]
    return scores, rows


def _candidates(codes: Any, queries: np.ndarray, num_results: int) -> Iterator[np.ndarray]:
    wanted = max(MIN_CANDIDATES, CANDIDATES_PER_RESULT * num_results)
    wanted = min(codes.ntotal, wanted)
    for batch in blocks(len(queries), QUERIES_AT_ONCE):
        _, candidates = codes.search(queries[batch], wanted)  # (queries, candidates)
        for rows in candidates:
            yield np.sort(rows[rows >= 0])


def _load_faiss(searched: str) -> Any:
    try:
        import faiss
    except ImportError:
        warnings.warn(
            f"{searched} will be searched exactly: approximate search needs FAISS, "
            "pip install 'pyterrier_graph[faiss]'",
            SpeedWarning,
            stacklevel=5,
        )
        return None
    return faiss
