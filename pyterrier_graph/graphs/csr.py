"""Compressed sparse rows of numpy arrays or torch tensors; torch is imported only where a tensor is given."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

CHUNK = 1 << 20

Array = Any  # np.ndarray or torch.Tensor; all arrays of one CSR are of one kind


@dataclass(frozen=True, eq=False)
class CSR:
    """Compressed sparse rows: row i has the elements ``indices[indptr[i]:indptr[i + 1]]``.

    All arrays are numpy arrays, which may be memory-mapped, or all are torch tensors.

    Attributes:
        indptr: The offset of each row, and the end of the last one; shape (rows + 1,), int64 (tensors also int32).
        indices: The elements, such as the neighbors of a node; shape (elements,), integers.
        data: Arrays with one entry per element, such as scores, by name; shape (elements, ...).
        row_data: Arrays with one entry per row, by name; shape (rows, ...).

    Raises:
        ValueError: If shapes or types do not fit each other.
    """

    indptr: Array
    indices: Array
    data: Mapping[str, Array] = field(default_factory=dict)
    row_data: Mapping[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.indptr.ndim != 1 or not len(self.indptr) or self.indices.ndim != 1:
            shapes = f"{tuple(self.indptr.shape)} and {tuple(self.indices.shape)}"
            raise ValueError(f"indptr and indices must have shapes (rows + 1,) and (elements,), got {shapes}")
        if not isinstance(self.indptr, np.ndarray) and self.indptr.dtype != self.indices.dtype:
            types = f"{self.indptr.dtype} and {self.indices.dtype}"
            raise ValueError(f"indptr and indices must both be int64 or both int32, got {types}")
        first, last = int(self.indptr[0]), int(self.indptr[-1])
        if first != 0 or last != len(self.indices):
            raise ValueError(
                f"indptr must go from 0 to the number of elements, {len(self.indices)}; it goes from {first} to {last}"
            )
        for arrays, count, noun in (self.data, len(self.indices), "elements"), (self.row_data, len(self), "rows"):
            for name, values in arrays.items():
                if len(values) != count:
                    raise ValueError(
                        f"{name} must have {count} entries, as many as there are {noun}, got {len(values)}"
                    )

    @classmethod
    def empty(cls, rows: int, device: Any) -> CSR:
        """Rows without elements, of tensors on a device."""
        import torch

        indptr = torch.zeros(rows + 1, dtype=torch.int64, device=device)
        return cls(indptr, indptr[:0])

    @classmethod
    def group(cls, rows: Array, indices: Array, count: int, **data: Array) -> CSR:
        """Compresses pairs of a row and an element, which may repeat, to ``count`` rows; their order is kept."""
        order, lengths = _sorted(rows, count)
        return cls(offsets(lengths), indices[order], {name: values[order] for name, values in data.items()})

    @classmethod
    def distinct(cls, rows: np.ndarray, indices: np.ndarray, count: int) -> CSR:
        """Compresses pairs of a row and an element (numpy arrays). Elements ascend; repeated pairs become one."""
        order = np.lexsort((indices, rows))
        rows, indices = rows[order], indices[order]
        new = np.ones(len(rows), dtype=bool)
        new[1:] = (rows[1:] != rows[:-1]) | (indices[1:] != indices[:-1])
        return cls(offsets(np.bincount(rows[new], minlength=count)), indices[new])

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __getitem__(self, row: int) -> Array:
        return self.indices[int(self.indptr[row]) : int(self.indptr[row + 1])]

    @property
    def lengths(self) -> Array:
        """Number of elements per row, shape (rows,)."""
        return self.indptr[1:] - self.indptr[:-1]

    @cached_property
    def row_index(self) -> Array:
        """The row of each element, shape (elements,)."""
        return _repeated(self.lengths, len(self.indices))

    def places(self, rows: Array) -> tuple[Array, Array]:
        """As :meth:`select`, but with the place of an element in :attr:`indices` instead of the element."""
        if isinstance(self.indptr, np.ndarray):
            rows = checked(rows, len(self))
        starts = self.indptr[rows]
        lengths = self.indptr[rows + 1] - starts
        _, place = ranges(starts, lengths)
        return _repeated(lengths, len(place)), place

    def select(self, rows: Array) -> tuple[Array, Array]:
        """Per element of some rows, which may repeat: the position in ``rows``, and the element, int64.

        An IndexError says that there is no such row.
        """
        position, place = self.places(rows)
        elements = self.indices[place]
        return position, elements.astype(np.int64) if isinstance(elements, np.ndarray) else elements.long()

    def rows(self, part: slice) -> CSR:
        """The rows ``part.start`` to ``part.stop - 1`` with their data, as views."""
        indptr = self.indptr[part.start : part.stop + 1]
        first, last = int(indptr[0]), int(indptr[-1])
        return CSR(
            indptr - first,
            self.indices[first:last],
            {name: values[first:last] for name, values in self.data.items()},
            {name: values[part] for name, values in self.row_data.items()},
        )

    def filter(self, kept: Array) -> CSR:
        """The same rows with only those elements for which ``kept``, shape (elements,), is True."""
        kept_before = offsets(kept)
        data = {name: values[kept] for name, values in self.data.items()}
        return CSR(kept_before[self.indptr], self.indices[kept], data, self.row_data)

    def transpose(self) -> tuple[CSR, Array]:
        """The rows that have each element, without data, and their places in :attr:`indices`; computed once."""
        return self._transposed

    @cached_property
    def _transposed(self) -> tuple[CSR, Array]:
        order, lengths = _sorted(self.indices, 0)
        return CSR(offsets(lengths), self.row_index[order]), order

    def draw(self, rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Draws an element of each of some rows (numpy arrays); -1 for a row without elements, or for row -1."""
        drawn = np.full(len(rows), -1, dtype=np.int64)
        position = np.flatnonzero(rows >= 0)
        position = position[self.indptr[rows[position]] < self.indptr[rows[position] + 1]]
        drawn[position] = self.indices[random.integers(self.indptr[rows[position]], self.indptr[rows[position] + 1])]
        return drawn

    def torch(self) -> CSR:
        """The same rows as tensors; memory is shared where numpy allows writing to it."""
        import torch

        def convert(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array if array.flags.writeable else array.copy())

        return self._map(convert)

    def to(self, device: Any, **options: Any) -> CSR:
        """Moves the tensors to a device; options are those of ``Tensor.to``."""
        return self._map(lambda tensor: tensor.to(device, **options))

    def _map(self, convert: Any) -> CSR:
        arrays = [{name: convert(values) for name, values in arrays.items()} for arrays in (self.data, self.row_data)]
        return CSR(convert(self.indptr), convert(self.indices), *arrays)


def offsets(lengths: Array) -> Array:
    """The offset of each row, and the end of the last one, from the lengths of the rows; shape (rows + 1,), int64."""
    if isinstance(lengths, np.ndarray):
        return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])
    from torch.nn.functional import pad

    return pad(lengths.cumsum(0), (1, 0))


def ranges(starts: Array, lengths: Array) -> tuple[Array, Array]:
    """Offsets of ranges, and the numbers ``start, start + 1, ..., start + length - 1`` of one range after the other."""
    bounds = offsets(lengths)
    if isinstance(lengths, np.ndarray):
        return bounds, np.arange(bounds[-1]) + np.repeat(starts - bounds[:-1], lengths)
    import torch

    shift = torch.repeat_interleave(starts - bounds[:-1], lengths)
    return bounds, torch.arange(len(shift), device=starts.device) + shift


def checked(numbers: Any, count: int) -> np.ndarray:
    """Numbers as int64; IndexError unless all are in 0 to ``count - 1``, TypeError unless all are whole numbers."""
    numbers = np.asarray(numbers)
    if len(numbers) and numbers.dtype.kind not in "iu":
        raise TypeError(f"whole numbers are needed, got an array of {numbers.dtype}")
    numbers = numbers.astype(np.int64, copy=False)
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < count:
        raise IndexError(f"numbers must be in 0 to {count - 1}, got {numbers.min()} to {numbers.max()}")
    return numbers


def _repeated(lengths: Array, total: int) -> Array:
    """0, 1, ..., each as often as its length says."""
    if isinstance(lengths, np.ndarray):
        return np.repeat(np.arange(len(lengths)), lengths)
    import torch

    return torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths, output_size=total)


def _sorted(numbers: Array, count: int) -> tuple[Array, Array]:
    """A stable order of some numbers, and how often each comes (at least ``count`` numbers)."""
    if isinstance(numbers, np.ndarray):
        return np.argsort(numbers, kind="stable"), np.bincount(numbers, minlength=count)
    return numbers.argsort(stable=True), numbers.bincount(minlength=count)


def write_compressed(
    pairs: np.ndarray, num_rows: int, indptr: Path, indices: Path, scratch: Path, *, chunk: int = CHUNK
) -> int:
    """Compresses pairs of a row and an element on disk, by a counting sort through memory-mapped files.

    Pairs have shape (pairs, 2) and are uint32; the files get int64 and uint32. Elements ascend, and repeated pairs
    become one; the number of distinct pairs is returned. Memory is bounded by ``chunk`` pairs, or by the longest row.
    """
    starts = _scratch_array(scratch / "starts", np.int64, num_rows + 1)
    for start in range(0, len(pairs), chunk):
        rows, counts = np.unique(pairs[start : start + chunk, 0], return_counts=True)
        starts[rows.astype(np.int64) + 1] += counts
    np.cumsum(starts, out=starts)
    free = _scratch_array(scratch / "free", np.int64, num_rows + 1)
    free[:] = starts
    columns = _scratch_array(scratch / "columns", np.uint32, max(1, len(pairs)))
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
            merged = CSR.distinct(rows, columns[starts[first_row] : starts[end_row]], len(lengths))
            # tofile does not say that there is no space
            indptr_file.write((merged.indptr[1:] + total).data)
            indices_file.write(merged.indices.data)
            total += len(merged.indices)
    return total


def _scratch_array(file: Path, dtype: type, length: int) -> np.ndarray:
    """An array of zeros on disk; OSError if there is no space (a mapped file without space ends the process)."""
    with open(file, "wb") as out:
        size = length * np.dtype(dtype).itemsize
        out.truncate(size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(out.fileno(), 0, size)
    return np.memmap(file, dtype, "r+", shape=(length,))


def _row_ranges(starts: np.ndarray, chunk: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows that hold at most ``chunk`` rows and pairs, but one row at least."""
    first, rows = 0, len(starts) - 1
    while first < rows:
        fits = int(np.searchsorted(starts, starts[first] + chunk, side="right")) - 1
        end = max(first + 1, min(fits, first + chunk, rows))
        yield first, end
        first = end
