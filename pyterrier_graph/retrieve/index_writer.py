"""Writes indexes of vectors: the encoder's own vectors of passages, and contextual vectors made from them."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyterrier_graph.artifacts import META, read_meta
from pyterrier_graph.encoders.vector_files import FLOAT, VECTORS, VectorsOf, checked_vectors, unfinished, write_vectors
from pyterrier_graph.graphs.builder import DOCNOS
from pyterrier_graph.graphs.csr import checked
from pyterrier_graph.graphs.ids import ids_of, writing_ids
from pyterrier_graph.retrieve.index_identity import file_sha256, identity_of

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder, FlexIndex

    from pyterrier_graph.graphs.hetero_graph import HeteroGraph

PASSAGES_AT_ONCE = 1024
FLEX = {"type": "dense_index", "format": "flex", "package_hint": "pyterrier_dr"}


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
    meta = kind | {"package_hint": FLEX["package_hint"], "contextual": contextual, "files": files}
    with unfinished(index.index_path, meta) as (folder, out):
        shutil.copyfile(base / DOCNOS, folder / DOCNOS)
        progress = {"desc": "indexing", "unit": "passage", "disable": not verbose}
        write_vectors(out, shape, chunk, at_once=chunk_size, progress=progress)
    return index


def write_base_index(
    path: Path, graph: HeteroGraph, encoder: BiEncoder, identity: dict[str, Any], *, verbose: bool = True
) -> None:
    """Writes the ``FlexIndex`` of a document graph's passages, batch by batch; the same call continues it.

    Args:
        path: Where to write; nothing is done if the index is there.
        graph: Its passages are encoded, in the order of ``graph.passage_nodes``.
        encoder: Encodes them.
        identity: What tells these vectors from others, for JSON.
        verbose: Whether to show progress.

    Raises:
        ValueError: If vectors are of another shape or not finite, or the unfinished work is of something else.
    """
    if (path / META).is_file():
        return
    nodes = graph.passage_nodes
    dimension = int(np.asarray(encoder.encode_docs(graph.texts(nodes[:1]))).shape[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    files = {VECTORS: len(nodes) * dimension * FLOAT.itemsize}
    meta = FLEX | {"doc_count": len(nodes), "vec_size": dimension, "base": identity, "files": files}

    def encoded(numbers: np.ndarray) -> np.ndarray:
        vectors = encoder.encode_docs(graph.texts(nodes[numbers]))
        return checked_vectors(
            vectors, numbers, dimension, lambda number: f"passage {graph.ids_of(nodes[[number]])[0]}"
        )

    with unfinished(path, meta) as (folder, out):
        (folder / DOCNOS).unlink(missing_ok=True)  # the writer would append
        with writing_ids(folder / DOCNOS) as ids:
            for start in range(0, len(nodes), PASSAGES_AT_ONCE):
                for docno in graph.ids_of(nodes[start : start + PASSAGES_AT_ONCE]):
                    ids.add(docno)
        progress = {"desc": "encoding passages", "unit": "passage", "disable": not verbose}
        write_vectors(out, (len(nodes), dimension), encoded, at_once=PASSAGES_AT_ONCE, progress=progress)
