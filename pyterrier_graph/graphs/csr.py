"""Compressed sparse rows of numpy arrays or torch tensors. Torch is imported only for tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

Array = Any  # np.ndarray or torch.Tensor, the same for all arrays of one CSR
NO_EDGES = np.empty((2, 0), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class CSR:
    """Compressed sparse rows: row i has the elements ``indices[indptr[i]:indptr[i + 1]]``.

    They hold adjacency lists: the neighbors of each node, the passages of each document, the queries of each passage.
    All arrays are numpy arrays, which may be memory-mapped, or all are torch tensors.

    Attributes:
        indptr: The offset of each row, and the end of the last one; shape (rows + 1,), int64 (tensors also int32).
        indices: The elements, such as the neighbors of a node; shape (elements,), integers.
        data: Arrays with one entry per element, such as scores, by name; shape (elements, ...).
    """

    indptr: Array
    indices: Array
    data: Mapping[str, Array] = field(default_factory=dict)

    @classmethod
    def group(cls, rows: Array, indices: Array, count: int, **data: Array) -> CSR:
        """Groups elements by row, in their order; pairs of a row and an element may repeat."""
        order = rows.argsort(stable=True)
        elements = indices[order]
        data = {name: values[order] for name, values in data.items()}
        if isinstance(rows, np.ndarray):
            lengths = np.bincount(rows, minlength=count)
        else:
            lengths = rows.bincount(minlength=count)
        return cls(offsets(lengths), elements, data)

    @classmethod
    def distinct(cls, rows: np.ndarray, indices: np.ndarray, count: int) -> CSR:
        """Groups distinct elements by row (numpy arrays), in ascending order."""
        from scipy import sparse

        largest = int(indices.max(initial=-1))
        is_element = np.ones(len(rows), dtype=bool)
        shape = count, largest + 1
        pairs = sparse.coo_array((is_element, (rows, indices)), shape)
        matrix = pairs.tocsr()  # sums repeated pairs
        matrix.sort_indices()
        indptr = matrix.indptr.astype(np.int64)
        elements = matrix.indices.astype(np.int64)
        return cls(indptr, elements)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __getitem__(self, row: int) -> Array:
        start = int(self.indptr[row])
        end = int(self.indptr[row + 1])
        return self.indices[start:end]

    @property
    def lengths(self) -> Array:
        """Number of elements per row, shape (rows,)."""
        return self.indptr[1:] - self.indptr[:-1]

    @cached_property
    def row_index(self) -> Array:
        """The row of each element, shape (elements,)."""
        return _repeated(self.lengths, len(self.indices))

    def positions(self, rows: Array) -> tuple[Array, Array]:
        """As :meth:`select`, with positions in :attr:`indices` instead of elements."""
        starts = self.indptr[rows]
        ends = self.indptr[rows + 1]
        lengths = ends - starts
        _, positions = ranges(starts, lengths)
        row = _repeated(lengths, len(positions))
        return row, positions

    def select(self, rows: Array) -> tuple[Array, Array]:
        """Elements of ``rows``, which may repeat.

        Returns the position of each element's row in ``rows``, and the elements; two arrays of int64.
        """
        row, positions = self.positions(rows)
        elements = self.indices[positions]
        if isinstance(elements, np.ndarray):
            return row, elements.astype(np.int64)
        return row, elements.long()

    def filter(self, mask: Array) -> CSR:
        """The same rows with only the elements whose ``mask``, shape (elements,), is True."""
        num_before = offsets(mask)  # elements that remain before each position, (elements + 1,)
        indptr = num_before[self.indptr]
        indices = self.indices[mask]
        data = {name: values[mask] for name, values in self.data.items()}
        return CSR(indptr, indices, data)

    def element(self, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Element ``positions[i]`` of row ``rows[i]`` (numpy arrays); -1 if there is none, and for row -1."""
        elements = np.full(len(rows), -1, dtype=np.int64)
        starts = self.indptr[rows]
        ends = self.indptr[rows + 1]  # row -1 ends before it starts
        lengths = ends - starts
        exists = (positions >= 0) & (positions < lengths)
        offset = starts[exists] + positions[exists]
        elements[exists] = self.indices[offset]
        return elements

    def draw(self, rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Draws an element of each row (numpy arrays); -1 for rows without elements, and for row -1."""
        starts = self.indptr[rows]
        ends = self.indptr[rows + 1]  # row -1 ends before it starts
        lengths = ends - starts
        exists = lengths > 0
        positions = np.full(len(rows), -1)
        positions[exists] = random.integers(lengths[exists])
        return self.element(rows, positions)


def offsets(lengths: Array) -> Array:
    """The offset of each row, and the end of the last one, from the lengths of the rows; shape (rows + 1,), int64."""
    if isinstance(lengths, np.ndarray):
        start = np.zeros(1, dtype=np.int64)
        ends = np.cumsum(lengths, dtype=np.int64)
        return np.concatenate([start, ends])
    from torch.nn.functional import pad

    return pad(lengths.cumsum(0), (1, 0))


def ranges(starts: Array, lengths: Array) -> tuple[Array, Array]:
    """Concatenates the ranges ``start, ..., start + length - 1``: returns their offsets and their numbers."""
    bounds = offsets(lengths)
    shifts = starts - bounds[:-1]  # (ranges,)
    if isinstance(lengths, np.ndarray):
        shift: Array = np.repeat(shifts, lengths)  # (numbers,)
        return bounds, np.arange(len(shift)) + shift
    import torch

    shift = torch.repeat_interleave(shifts, lengths)  # (numbers,)
    return bounds, torch.arange(len(shift), device=starts.device) + shift


def adjacency(edges: np.ndarray, count: int) -> tuple[CSR, CSR]:
    """Rows of edges i -> j, shape (2, edges), and of their inverses, without self-loops and repeated edges."""
    is_loop = edges[0] == edges[1]
    i, j = edges[:, ~is_loop]
    forward = CSR.distinct(i, j, count)
    back = CSR.distinct(j, i, count)
    return forward, back


def _repeated(lengths: Array, total: int) -> Array:
    """The numbers 0, 1, ..., repeated ``lengths`` times each; ``total`` is the sum of the lengths."""
    if isinstance(lengths, np.ndarray):
        numbers: Array = np.arange(len(lengths))
        return np.repeat(numbers, lengths)
    import torch

    numbers = torch.arange(len(lengths), device=lengths.device)
    return numbers.repeat_interleave(lengths, output_size=total)
