"""Short codes of the vectors of a large index, by which FAISS finds candidates, whose exact scores are then computed.

A code has 2 bits per dimension: the number of the nearest of 16 centroids for each pair of dimensions (product
quantization). All codes are compared with a query, which takes a twelfth of the time of all vectors. There are no lists
of nearby vectors: ``experiments/results/costs.md`` has the comparison.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pyterrier_graph.checks import SpeedWarning, load_faiss
from pyterrier_graph.storage.arrays import blocks

PURPOSE = "approximate search"
SAMPLED, ROWS_AT_ONCE, QUERIES_AT_ONCE = 8192, 16_384, 256
CANDIDATES, LEAST = 10, 2000  # vectors per result, and in all


def write_codes(file: Path, arrays: Sequence[np.ndarray]) -> None:
    """Writes the codes of the vectors of some arrays, one after the other; without FAISS there is only a warning."""
    count, width = arrays[0].shape
    faiss = _faiss(f"an index of {count} passages")
    if faiss is None:
        return
    codes = faiss.index_factory(width, f"PQ{width // 2 if width % 2 == 0 else width}x4fs", faiss.METRIC_INNER_PRODUCT)
    codes.train(arrays[0][np.linspace(0, count - 1, SAMPLED).astype(np.int64)])
    for vectors in arrays:
        for rows in blocks(len(vectors), ROWS_AT_ONCE):
            codes.add(vectors[rows])
    faiss.write_index(codes, str(file))


def read_codes(file: Path) -> Any:
    """The codes of an index, in memory; without FAISS None and a warning."""
    faiss = _faiss(repr(str(file.parent)))
    try:
        return None if faiss is None else faiss.read_index(str(file))
    except RuntimeError as error:
        raise ValueError(f"{str(file)!r} is damaged: {error}") from error


def candidates(
    codes: Any, queries: np.ndarray, num_results: int, window_offsets: np.ndarray | None
) -> Iterator[np.ndarray]:
    """Per query the passages, ascending, that have the most similar codes, among them those of further windows."""
    count = codes.ntotal - (0 if window_offsets is None else window_offsets[-1])  # passages
    for some in blocks(len(queries), QUERIES_AT_ONCE):
        for rows in codes.search(queries[some], min(codes.ntotal, max(LEAST, CANDIDATES * num_results)))[1]:
            if window_offsets is not None:
                further = rows >= count
                rows[further] = np.searchsorted(window_offsets, rows[further] - count, side="right") - 1
            yield np.unique(rows[rows >= 0])


def _faiss(searched: str) -> Any:
    try:
        return load_faiss(PURPOSE)
    except ImportError as error:
        warnings.warn(f"{searched} will be searched exactly: {error}", SpeedWarning, stacklevel=5)
        return None
