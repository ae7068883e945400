"""Compressed sparse rows: numpy arrays and tensors against plain lists."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyterrier_graph.graphs.csr import CSR, offsets

LISTS = st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=6)


def compressed(lists: list[list[int]], kind: str) -> CSR:
    flat = [element for row in lists for element in row]
    lengths = numbers([len(row) for row in lists], kind)
    scores = np.arange(len(flat)) / 2
    return CSR(
        offsets(lengths),
        numbers(flat, kind),
        {"scores": scores if kind == "numpy" else torch.from_numpy(scores)},
    )


def numbers(values: list[int], kind: str) -> np.ndarray | torch.Tensor:
    array = np.array(values, dtype=np.int64)
    return array if kind == "numpy" else torch.from_numpy(array)


def rows_of(csr: CSR, name: str | None = None) -> list[list[float]]:
    values = csr.indices if name is None else csr.data[name]
    bounds = csr.indptr.tolist()
    return [values[start:end].tolist() for start, end in zip(bounds[:-1], bounds[1:], strict=True)]


both = pytest.mark.parametrize("kind", ["numpy", "torch"])


@both
@given(LISTS, st.data())
def test_rows(kind, lists, data):
    csr = compressed(lists, kind)
    scores = rows_of(csr, "scores")
    assert rows_of(csr) == lists and len(csr) == len(lists)
    assert [csr[row].tolist() for row in range(len(lists))] == lists
    assert csr.lengths.tolist() == [len(row) for row in lists]
    assert csr.row_index.tolist() == [row for row, elements in enumerate(lists) for _ in elements]

    rows = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=8))
    position, elements = csr.select(numbers(rows, kind))
    expected = [(place, element) for place, row in enumerate(rows) for element in lists[row]]
    assert [*zip(position.tolist(), elements.tolist(), strict=True)] == expected
    _, place = csr.positions(numbers(rows, kind))
    assert csr.indices[place].tolist() == elements.tolist()
    kept = csr.filter(csr.indices % 2 == 0)
    assert rows_of(kept) == [[element for element in row if element % 2 == 0] for row in lists]
    assert kept.data["scores"].tolist() == [
        score
        for row, own in zip(lists, scores, strict=True)
        for element, score in zip(row, own, strict=True)
        if element % 2 == 0
    ]


@both
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=20))
def test_group(kind, pairs):
    rows, elements = ([pair[end] for pair in pairs] for end in (0, 1))
    csr = CSR.group(
        numbers(rows, kind), numbers(elements, kind), 6, places=numbers([*range(len(pairs))], kind)
    )
    assert rows_of(csr) == [[element for own, element in pairs if own == row] for row in range(6)]
    assert rows_of(csr, "places") == [
        [place for place, (own, _) in enumerate(pairs) if own == row] for row in range(6)
    ]
    distinct = CSR.distinct(np.array(rows, dtype=np.int64), np.array(elements, dtype=np.int64), 6)
    assert rows_of(distinct) == [
        sorted({element for own, element in pairs if own == row}) for row in range(6)
    ]


def test_drawing_is_even_and_leaves_out_empty_rows():
    csr = compressed([[5, 6, 7], [], [8]], "numpy")
    drawn = csr.draw(np.array([0] * 3000 + [1, -1, 2]), np.random.default_rng(0))
    assert drawn[-3:].tolist() == [-1, -1, 8]
    assert np.allclose(np.bincount(drawn[:3000])[5:] / 3000, 1 / 3, atol=0.04)


def test_elements_by_position():
    csr = compressed([[5, 6, 7], [], [8]], "numpy")
    rows, positions = [0, 0, 0, 1, 2, -1], [0, 2, 3, 0, -1, 0]
    assert csr.element(np.array(rows), np.array(positions)).tolist() == [5, 7, -1, -1, -1, -1]
