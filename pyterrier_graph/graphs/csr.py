"""Compressed sparse rows: for each row the numbers that it points to, one array after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

CHUNK = 1 << 20


class Adjacency(NamedTuple):
    """Row i points to ``indices[indptr[i]:indptr[i + 1]]``, which ascend and do not repeat.

    Attributes:
        indptr: Shape (rows + 1,), int64.
        indices: Shape (edges,), unsigned or signed integers.
    """

    indptr: np.ndarray
    indices: np.ndarray


def expand(adjacency: Adjacency, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Everything that some rows point to.

    Args:
        adjacency: The compressed rows.
        rows: Row numbers, shape (n,); they may repeat.

    Returns:
        Two int64 arrays of the same length: the position in ``rows``, and what that row points to.

    Raises:
        IndexError: If there is no such row.
    """
    position, place = places(adjacency.indptr, rows)
    return position, adjacency.indices[place].astype(np.int64)


def places(indptr: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where some rows' elements are: the position in ``rows``, and the place in the compressed arrays.

    Raises:
        IndexError: If there is no such row.
    """
    rows = checked(rows, len(indptr) - 1)
    return ranges(indptr[rows], indptr[rows + 1])


def checked(numbers: np.ndarray, count: int) -> np.ndarray:
    """Numbers as int64, if there are so many things that each is the number of one.

    Raises:
        IndexError: If it is not.
    """
    numbers = np.asarray(numbers, dtype=np.int64)
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < count:
        raise IndexError(f"numbers must be in 0 to {count - 1}, got {numbers.min()} to {numbers.max()}")
    return numbers


def ranges(starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All numbers in some ranges, one after the other: the position of the range, and the number."""
    counts = ends - starts
    position = np.repeat(np.arange(len(starts)), counts)
    return position, np.arange(len(position)) + np.repeat(starts - np.cumsum(counts) + counts, counts)


def compress(rows: np.ndarray, columns: np.ndarray, num_rows: int) -> Adjacency:
    """Compresses pairs in memory; repeated pairs become one."""
    order = np.lexsort((columns, rows))
    rows, columns = rows[order], columns[order]
    new = np.ones(len(rows), dtype=bool)
    new[1:] = (rows[1:] != rows[:-1]) | (columns[1:] != columns[:-1])
    return Adjacency(offsets(np.bincount(rows[new], minlength=num_rows)), columns[new])


def write_compressed(
    pairs: np.ndarray, num_rows: int, indptr: Path, indices: Path, scratch: Path, *, chunk: int = CHUNK
) -> int:
    """Compresses pairs on disk, by a counting sort through memory-mapped files.

    Its own memory is bounded by ``chunk``, or by the edges of the row that has most, whatever the number of pairs.

    Args:
        pairs: Row and column, shape (pairs, 2), uint32, memory-mapped.
        num_rows: Number of rows.
        indptr: File to write, int64.
        indices: File to write, uint32.
        scratch: Folder for temporary files.
        chunk: Number of pairs to hold in memory.

    Returns:
        The number of distinct pairs.
    """
    starts = np.memmap(scratch / "starts", np.int64, "w+", shape=(num_rows + 1,))
    for start in range(0, len(pairs), chunk):
        rows, counts = np.unique(pairs[start : start + chunk, 0], return_counts=True)
        starts[rows.astype(np.int64) + 1] += counts
    np.cumsum(starts, out=starts)
    free = np.memmap(scratch / "free", np.int64, "w+", shape=(num_rows + 1,))
    free[:] = starts
    columns = np.memmap(scratch / "columns", np.uint32, "w+", shape=(max(1, len(pairs)),))
    for start in range(0, len(pairs), chunk):
        part = pairs[start : start + chunk]
        part = part[np.argsort(part[:, 0], kind="stable")]
        rows, first, counts = np.unique(part[:, 0], return_index=True, return_counts=True)
        columns[np.repeat(free[rows] - first, counts) + np.arange(len(part))] = part[:, 1]
        free[rows] += counts
    total = 0
    with open(indptr, "wb") as indptr_file, open(indices, "wb") as indices_file:
        indptr_file.write(np.int64(0).tobytes())
        for first_row, end_row in _row_ranges(starts, chunk):
            lengths = np.diff(starts[first_row : end_row + 1])
            rows = np.repeat(np.arange(len(lengths)), lengths)
            merged = compress(rows, columns[starts[first_row] : starts[end_row]], len(lengths))
            (merged.indptr[1:] + total).tofile(indptr_file)
            merged.indices.tofile(indices_file)
            total += len(merged.indices)
    return total


def _row_ranges(starts: np.ndarray, chunk: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows that hold at most ``chunk`` rows and pairs, but one row at least."""
    first, rows = 0, len(starts) - 1
    while first < rows:
        fits = int(np.searchsorted(starts, starts[first] + chunk, side="right")) - 1
        end = max(first + 1, min(fits, first + chunk, rows))
        yield first, end
        first = end


def offsets(counts: np.ndarray) -> np.ndarray:
    """Where each row begins, and the last one ends, from the lengths of the rows."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])
