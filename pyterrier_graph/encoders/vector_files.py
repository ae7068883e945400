"""Matrices of vectors on disk."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

VECTORS = "vecs.f4"
FLOAT = np.dtype("<f4")

VectorsOf = Callable[[np.ndarray], np.ndarray]


def blocks(count: int, at_once: int, first: int = 0) -> Iterator[np.ndarray]:
    """The numbers below a count, some at a time."""
    for start in range(first, count, at_once):
        yield np.arange(start, min(start + at_once, count))


def checked_vectors(
    vectors: Any, numbers: np.ndarray, dimension: int | None, name_of: Callable[[int], str]
) -> np.ndarray:
    """Vectors as ``FLOAT``; a ValueError unless they are finite floating point numbers of shape (numbers, dimension).

    With None the dimension may be any. ``name_of`` returns the name of a number's text or passage, for messages.
    """
    vectors = np.asarray(vectors)
    fits = vectors.ndim == 2 and len(vectors) == len(numbers) and vectors.shape[1] == (dimension or vectors.shape[1])
    if not fits or not vectors.shape[1] or vectors.dtype.kind != "f":
        first = f", from {name_of(int(numbers[0]))} on," if len(numbers) else ""
        raise ValueError(
            f"{len(numbers)} vectors{first} must be floating point numbers of shape ({len(numbers)}, "
            f"{dimension or 'd'}), but they are {vectors.dtype} of shape {vectors.shape}"
        )
    with np.errstate(over="ignore"):
        vectors = vectors.astype(FLOAT, copy=False)
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise ValueError(f"{name_of(int(numbers[finite.argmin()]))}: its vector is not finite")
    return vectors
