"""Short codes of the vectors of a large index, by which FAISS finds candidates, whose exact scores are then computed.

A code has 2 bits per dimension: the number of the nearest of 16 centroids for each pair of dimensions (product
quantization). All codes are compared with a query; there are no lists of nearby vectors.
``experiments/results/costs.md`` compares both.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pyterrier_graph.checks import SpeedWarning, load_faiss
from pyterrier_graph.storage.arrays import blocks

PURPOSE = "approximate search"
SAMPLED, ROWS_AT_ONCE, QUERIES_AT_ONCE = 8192, 16_384, 256
CANDIDATES, LEAST, SHARE = 10, 2000, 200  # vectors per result, in all, and at least one of so many


def write_codes(file: Path, arrays: Sequence[np.ndarray]) -> None:
    """Writes the codes of the vectors of some arrays, one after the other; without FAISS there is only a warning."""
    count, width = arrays[0].shape
    faiss = _faiss(f"an index of {count} passages")
    if faiss is None:
        return
    codes = faiss.index_factory(
        width, f"PQ{width // 2 if width % 2 == 0 else width}x4fs", faiss.METRIC_INNER_PRODUCT
    )
    codes.train(arrays[0][np.linspace(0, count - 1, SAMPLED).astype(np.int64)])
    for vectors in arrays:
        for rows in blocks(len(vectors), ROWS_AT_ONCE):
            codes.add(vectors[rows])
    faiss.write_index(codes, str(file))


def read_codes(
    file: Path,
) -> Callable[[np.ndarray, int, np.ndarray | None], Iterator[np.ndarray]] | None:
    """Reads the codes of an index into memory, for :func:`_candidates`; without FAISS None and a warning."""
    faiss = _faiss(repr(str(file.parent)))
    try:
        return None if faiss is None else partial(_candidates, faiss.read_index(str(file)))
    except RuntimeError as error:
        raise ValueError(f"{str(file)!r} is damaged: {error}") from error


def _candidates(
    codes: Any, queries: np.ndarray, num_results: int, offsets: np.ndarray | None
) -> Iterator[np.ndarray]:
    """Per query at least so many passages, ascending, with the most similar codes; ``offsets`` of further windows."""
    count = codes.ntotal - (0 if offsets is None else offsets[-1])  # passages
    wanted = max(LEAST, CANDIDATES * num_results, codes.ntotal // SHARE)
    for some in blocks(len(queries), QUERIES_AT_ONCE):
        for rows in codes.search(queries[some], min(codes.ntotal, wanted))[1]:
            if offsets is not None:
                further = rows >= count
                rows[further] = np.searchsorted(offsets, rows[further] - count, side="right") - 1
            passages = np.unique(rows[rows >= 0])
            yield (
                passages if len(passages) >= num_results else np.arange(count)
            )  # where a passage has many windows


def _faiss(searched: str) -> Any:
    try:
        return load_faiss(PURPOSE)
    except ImportError as error:
        warnings.warn(f"{searched} will be searched exactly: {error}", SpeedWarning, stacklevel=5)
        return None
