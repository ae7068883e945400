"""Vectors of texts that are encoded once, and read from disk by later calls."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pyterrier_graph.artifacts import META, read_meta
from pyterrier_graph.encoders.vector_files import FLOAT, VECTORS, blocks, checked_vectors
from pyterrier_graph.encoders.vector_reuse import DIGESTS, VectorReuse, complete, digests_of, read_digests
from pyterrier_graph.ranges.workers import Workers
from pyterrier_graph.ranges.writer import as_json, unfinished


def encode_once(
    folder: Path | None,
    name: str,
    identity: dict[str, Any],
    count: int,
    texts: Callable[[np.ndarray], list[str]],
    encode: Callable[[list[str]], Any],
    *,
    batch_size: int = 1024,
    dtype: str | None = None,
    workers: Workers = 1,
    verbose: bool = True,
) -> np.ndarray:
    """Vectors of many texts, which are encoded batch by batch into a file, and read from there by later calls.

    Texts that another file in the folder has, with the same name and an identity that differs only in ``'texts'``, are
    not encoded again: see :class:`~pyterrier_graph.encoders.vector_reuse.VectorReuse`.

    Args:
        folder: Each name and identity gets a folder of its own in it. None: a temporary one, while the array is in use.
        name: What is encoded, such as ``'queries'``.
        identity: All that the vectors depend on, for JSON: the encoder's ``model_name``, a digest of the texts.
        count: Number of texts.
        texts: Returns the texts of some numbers, which are below ``count`` and ascend.
        encode: Texts to floating point vectors, shape (texts, d). The first text is encoded once more, for d.
        batch_size: Number of texts that are encoded, and written, at once.
        dtype: The precision in which texts are encoded, if it is known. Finished vectors of any precision are taken.
        workers: Number of processes, or ``'ray'``: see :mod:`~pyterrier_graph.ranges.writer`.
        verbose: Whether to show progress.

    Returns:
        A memory-mapped array, float32 of shape (count, d); what is written to it does not reach the file.
    """

    def encoded(numbers: np.ndarray, dimension: int | None = None) -> np.ndarray:
        return checked_vectors(encode(texts(numbers)), numbers, dimension, "text {}".format)

    if folder is None:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
            options: dict[str, Any] = {"batch_size": batch_size, "dtype": dtype, "workers": workers, "verbose": verbose}
            return encode_once(Path(temporary), name, identity, count, texts, encode, **options)
    about = {"type": "vectors", "format": "float32", "format_version": 1, "count": count, "identity": identity}
    about = json.loads(as_json(about))
    path = folder / f"{name}-{hashlib.sha256(as_json(about).encode()).hexdigest()[:16]}"
    if not (path / META).is_file():
        dimension = encoded(np.arange(min(1, count))).shape[1]

        def rows_of(other: dict[str, Any]) -> int:
            fits = other["type"] == "vectors" and other["dimension"] == dimension
            same = fits and other["identity"] | {"texts": None} == about["identity"] | {"texts": None}
            return other["count"] if same else 0

        meta = about | {"dimension": dimension} | ({} if dtype is None else {"dtype": dtype})
        with unfinished(path, meta, count, batch_size) as writer:
            reuse = VectorReuse(writer.place / "reuse", dimension)

            def write_digests(files: Path) -> None:
                with open(files / DIGESTS, "wb") as digests:
                    for numbers in blocks(count, batch_size):
                        digests.write(digests_of(texts(numbers)).tobytes())
                reuse.find(reuse.folder, read_digests(files), complete(folder, f"{name}-*"), rows_of)

            def rows(numbers: np.ndarray) -> dict[str, np.ndarray]:
                return {VECTORS: reuse.vectors(numbers, partial(encoded, dimension=dimension))}

            writer.prepare(write_digests)
            progress: dict[str, Any] = {"desc": name, "unit": "text", "delay": 1, "disable": not verbose}
            writer.compute(rows, VECTORS, workers=workers, **progress)
    shape = (count, read_meta(path, about)["dimension"])
    if not count:  # an empty file cannot be mapped
        return np.broadcast_to(FLOAT.type(0), shape)
    return np.asarray(np.memmap(path / VECTORS, dtype=FLOAT, mode="c", shape=shape))
