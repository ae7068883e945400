"""Writes an index with the passages of another index, and other vectors."""

from __future__ import annotations

import hashlib
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np

from pyterrier_graph.artifacts import read_meta
from pyterrier_graph.encoders.vector_files import FLOAT, VECTORS, VectorsOf, checked_vectors, unfinished, write_vectors
from pyterrier_graph.graphs.array_files import DOCNOS
from pyterrier_graph.graphs.csr import checked
from pyterrier_graph.graphs.ids import ids_of
from pyterrier_graph.retrieve.index_identity import file_sha256, identity_of

if TYPE_CHECKING:
    from pyterrier_dr import FlexIndex


def write_index(
    base_index: FlexIndex,
    index: FlexIndex,
    vectors_of: VectorsOf,
    *,
    identity: dict[str, Any],
    previous: tuple[FlexIndex, np.ndarray] | None = None,
    chunk_size: int = 16_384,
    verbose: bool = True,
) -> FlexIndex:
    """Writes an ordinary ``FlexIndex`` with the passages of another one, and other vectors, chunk by chunk.

    Until the index is complete there is nothing at its path. Unfinished work lies in ``<path>.unfinished``; the same
    call continues after the last whole chunk.

    Args:
        base_index: The index that has the passages.
        index: Where to write; nothing may be there yet.
        vectors_of: Numbers of passages in the base index, int64 and ascending, to their vectors, floating point of
            shape (passages, d), where d is the base index's. Called with one chunk after the other, or, with
            ``previous``, with those passages of a chunk that changed.
        identity: Digests of all that the vectors depend on, for JSON. :func:`identity_of` returns it.
        previous: A contextual index of the same passages, and the numbers of those whose vectors have changed. All
            others are copied from it.
        chunk_size: Passages per chunk. Memory grows with it, not with the index.
        verbose: Whether to show progress.

    Returns:
        ``index``.

    Raises:
        FileExistsError: If something lies at the index's path.
        FileNotFoundError: If there is no base index.
        IndexError: If there is no passage with a number that ``previous`` comes with.
        ValueError: If vectors are of another shape or not finite, ``previous`` is of other passages or not contextual,
            or the unfinished work is of something else.
    """
    base = base_index.index_path
    docnos, about = base_index.payload(return_dvecs=False)
    count, dimension = shape = about["doc_count"], about["vec_size"]
    kind = {name: about[name] for name in ("type", "format", "doc_count", "vec_size")}
    digest = file_sha256(base / DOCNOS)
    contextual: dict[str, Any] = {"identity": identity, "docnos_sha256": digest}

    def new(numbers: np.ndarray) -> np.ndarray:
        return checked_vectors(
            vectors_of(numbers), numbers, dimension, lambda number: f"passage {ids_of(docnos, np.array([number]))[0]!r}"
        )

    chunk = new
    if previous is not None:
        old, numbers = previous
        contextual["previous"] = {"identity": identity_of(old)}
        read_meta(old.index_path, kind)
        if file_sha256(old.index_path / DOCNOS) != digest:
            raise ValueError(f"{old!r} has other docnos than {base_index!r}: nothing can be copied from it")
        if np.asarray(numbers).dtype.kind not in "iu":
            raise ValueError(f"changed passages are given by number, got {np.asarray(numbers).dtype}")
        changed = np.zeros(count, dtype=bool)
        changed[checked(numbers, count)] = True
        contextual["previous"] |= {
            "copied": int(count - changed.sum()),
            "changed_sha256": hashlib.sha256(np.packbits(changed).tobytes()).hexdigest(),
        }

        def chunk(numbers: np.ndarray) -> np.ndarray:
            here = changed[numbers]
            # not mapped: pages that were read would count as memory until another process needs it
            vectors = np.fromfile(
                old.index_path / VECTORS,
                FLOAT,
                count=len(numbers) * dimension,
                offset=int(numbers[0]) * dimension * FLOAT.itemsize,
            ).reshape(-1, dimension)
            if here.any():
                vectors[here] = new(numbers[here])
            return vectors

    files = {DOCNOS: (base / DOCNOS).stat().st_size, VECTORS: count * dimension * FLOAT.itemsize}
    meta = kind | {"package_hint": "pyterrier_dr", "contextual": contextual, "files": files}
    with unfinished(index.index_path, meta) as (folder, out):
        shutil.copyfile(base / DOCNOS, folder / DOCNOS)
        progress = {"desc": "indexing", "unit": "passage", "disable": not verbose}
        write_vectors(out, shape, chunk, at_once=chunk_size, progress=progress)
    return index
