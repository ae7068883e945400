"""Matrices of vectors on disk that are written row by row, in little memory; an interrupted call can be repeated."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.artifacts import META, check_vacant
from pyterrier_graph.checks import check_count

VECTORS = "vecs.f4"
BEGUN = "unfinished.json"
FLOAT = np.dtype("<f4")

VectorsOf = Callable[[np.ndarray], np.ndarray]


def write_vectors(
    path: Path,
    meta: dict[str, Any],
    shape: tuple[int, int],
    vectors_of: VectorsOf,
    *,
    at_once: int,
    progress: dict[str, Any],
    write_ids: Callable[[Path], Any] | None = None,
) -> None:
    """Writes a folder with a matrix. Unfinished work lies in ``<path>.unfinished``, where an equal call continues.

    Args:
        path: Path of the artifact; it must not exist yet, or be an empty folder.
        meta: The content of ``pt_meta.json``; the size of the matrix is added to its ``files``.
        shape: Rows, columns.
        vectors_of: Returns the rows of some numbers, which ascend, as ``FLOAT``.
        at_once: Rows per block. Only whole blocks of unfinished work are kept, so that every block is computed from the
            same rows as without an interruption.
        progress: Arguments of ``pt.tqdm``.
        write_ids: Writes the artifact's other files into the folder that it is given.

    Raises:
        ValueError: If the unfinished folder was begun with another ``meta``.
    """
    check_count("at_once", at_once)
    check_vacant(path)
    folder = path.with_name(f"{path.name}.unfinished")
    folder.mkdir(parents=True, exist_ok=True)
    vectors = folder / VECTORS
    vectors.touch()
    text = as_json(meta | {"files": meta["files"] | {VECTORS: shape[0] * shape[1] * FLOAT.itemsize}})
    if vectors.stat().st_size:
        _check_begun(folder, json.loads(text))
    with pt.io.finalized_open(str(folder / BEGUN), "b") as begun:
        begun.write(text.encode())
    if write_ids is not None:
        write_ids(folder)
    count, size = shape[0], shape[1] * FLOAT.itemsize
    there = vectors.stat().st_size // size
    done = count if there >= count else there // at_once * at_once
    with open(vectors, "r+b") as out, pt.tqdm(total=count, initial=done, **progress) as bar:
        out.seek(done * size)
        for numbers in blocks(count, at_once, done):
            out.write(np.ascontiguousarray(vectors_of(numbers)).data)
            out.flush()
            bar.update(len(numbers))
        os.fsync(out.fileno())
    os.replace(folder / BEGUN, folder / META)
    os.replace(folder, path)


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


def as_json(meta: dict[str, Any]) -> str:
    """Text with sorted names."""
    return json.dumps(meta, indent=1, sort_keys=True, allow_nan=False)


def _check_begun(folder: Path, meta: dict[str, Any]) -> None:
    begun = next((file for file in (folder / BEGUN, folder / META) if file.is_file()), None)
    if begun is None:
        raise ValueError(f"{str(folder)!r} does not say what its vectors are of: delete it to begin anew")
    # flat dictionaries, with names such as "identity.encoder"
    then, now = (
        pd.json_normalize(about).to_dict("records")[0]
        for about in (json.loads(begun.read_text(encoding="utf-8")), meta)
    )
    differing = [name for name in then | now if then.get(name) != now.get(name)]
    if differing:
        list_of = "; ".join(f"{name} was {then.get(name)!r}, and is {now.get(name)!r}" for name in differing)
        raise ValueError(f"{str(folder)!r} is unfinished work of something else: {list_of}. Delete it to begin anew")
