"""Vectors that are encoded once, and kept in files: of queries, of titles, and of the passages of a graph.

Each file has the vectors of some texts by one encoder. A text is encoded only if no other file of the same encoder in
the same folder has it: vectors are copied where the digest (BLAKE2b, 16 bytes) of all that the encoder reads is equal.
So a copied vector is the one that the text got when it was encoded first; it differs from a new one only as far as the
encoder's vectors depend on the other texts of a batch.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from hashlib import blake2b, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyterrier_graph.encoders.flex import Flex
from pyterrier_graph.storage.arrays import DOCNOS, blocks
from pyterrier_graph.storage.artifact import META, atomic_folder, json_sha256, read_meta
from pyterrier_graph.storage.shards import ShardWriter, Workers

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder

    from pyterrier_graph.graphs.hetero_graph import HeteroGraph

VECTORS, DIGESTS = "vecs.f4", "digests.u8"
FLOAT, DIGEST = np.dtype("<f4"), np.dtype("<u8")  # the digest of a text is two numbers
TEXTS_PER_SHARD, TEXTS_AT_ONCE = 256, 8192
FLEX = {"type": "dense_index", "format": "flex"}
HINT = {"package_hint": "pyterrier_dr"}
# in the identity of vectors, what only tells which texts they are of
TEXTS = {"texts": None, "graph": None, "titles": None}

VectorsOf = Callable[[np.ndarray], np.ndarray]


def checked_vectors(vectors: Any, numbers: np.ndarray, dimension: int | None) -> np.ndarray:
    """The output of an encoder for some texts, as ``FLOAT``; without a dimension, any is allowed.

    Raises:
        ValueError: If the vectors are not finite, or not of shape (numbers, dimension).
    """
    with np.errstate(over="ignore"):
        vectors = np.asarray(vectors, dtype=FLOAT)
    if vectors.ndim != 2 or vectors.shape != (len(numbers), dimension or vectors.shape[1]):
        shape = f"({len(numbers)}, {dimension or 'd'})"
        raise ValueError(f"an encoder must return vectors of shape {shape}, got {vectors.shape}")
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise ValueError(f"vector {numbers[finite.argmin()]} is not finite")
    return vectors


def encoder_name(encoder: BiEncoder) -> str:
    """A name that distinguishes an encoder from all others."""
    return getattr(encoder, "model_name", repr(encoder))


def without_bars(encoder: BiEncoder) -> BiEncoder:
    """An encoder with the same weights that shows no progress, for work that has a bar of its own."""
    if getattr(encoder, "verbose", True):
        encoder = copy.copy(encoder)
        encoder.verbose = False
    return encoder


def encode_once(
    folder: Path,
    name: str,
    identity: dict[str, Any],
    count: int,
    texts: Callable[[np.ndarray], list[str]],
    encode: Callable[[list[str]], Any],
    *,
    workers: Workers = 1,
    verbose: bool = True,
) -> np.ndarray:
    """Vectors of many texts, which are encoded batch by batch into a file, and read from there by later calls.

    Each name, such as ``'queries'``, and identity gets a folder of its own. The identity has all that the vectors
    depend on: the encoder's ``model_name``, a digest of the texts. Vectors are copied from files with the same name
    whose identity differs only in ``'texts'``. The first text is encoded once more, for the dimension.

    Returns a memory-mapped array, float32 of shape (count, d); what is written to it does not reach the file.
    """
    about = {
        "type": "vectors",
        "format": "float32",
        "format_version": 1,
        "doc_count": count,
        "base": identity,
    }
    path = folder / f"{name}-{json_sha256(about)[:16]}"
    _write(path, about, texts, encode, desc=name, workers=workers, verbose=verbose)
    shape = (count, read_meta(path, about)["vec_size"])
    if not count:  # an empty file cannot be mapped
        return np.broadcast_to(FLOAT.type(0), shape)
    return np.asarray(np.memmap(path / VECTORS, dtype=FLOAT, mode="c", shape=shape))


def base_vectors(
    folder: Path,
    graph: HeteroGraph,
    encoder: BiEncoder,
    *,
    titles: bool = False,
    workers: Workers = 1,
    verbose: bool = True,
) -> Flex:
    """The ``FlexIndex`` of a graph's passages, in the order of ``graph.passage_nodes``, by an encoder.

    It is written into a folder with those of other graphs and encoders, unless it is there already. A call that was
    killed continues when it is repeated. With ``titles``, the titles above a passage precede its text.
    """
    identity: dict[str, Any] = {"encoder": encoder_name(encoder), "graph": graph.fingerprint()}
    identity |= {"titles": True} if titles else {}
    path = folder / f"passages-{json_sha256(identity)[:16]}.flex"
    nodes = graph.passage_nodes
    if not len(nodes):
        raise ValueError(f"{graph!r} has no passages: none of its documents has a text")

    def texts(numbers: np.ndarray) -> list[str]:
        return graph.texts(nodes[numbers], titles=titles)

    about = FLEX | HINT | {"doc_count": len(nodes), "base": identity}
    _write(
        path,
        about,
        texts,
        without_bars(encoder).encode_docs,
        desc=f"encoding passages{' with titles' * titles}",
        workers=workers,
        verbose=verbose,
        write_more=lambda files: graph.write_passage_ids(files / DOCNOS),
    )
    return Flex(path)


def digests_of(texts: Iterable[str]) -> np.ndarray:
    """Digests of texts, shape (texts, 2)."""
    joined = b"".join([blake2b(text.encode(), digest_size=16).digest() for text in texts])
    return np.frombuffer(joined, dtype=DIGEST).reshape(-1, 2)


def _write(
    path: Path,
    about: dict[str, Any],
    texts: Callable[[np.ndarray], list[str]],
    encode: Callable[[list[str]], Any],
    *,
    desc: str,
    workers: Workers,
    verbose: bool,
    write_more: Callable[[Path], None] = lambda files: None,
) -> None:
    """Writes vectors of what is read for each number, and the digests of their texts, unless they are there.

    Vectors are copied from folders with the same prefix whose vectors depend on the same, the texts aside.
    """
    if os.path.isfile(path / META):
        return
    count, one = about["doc_count"], np.arange(min(1, about["doc_count"]))
    dimension = checked_vectors(encode(texts(one)), one, None).shape[1]
    meta = about | {"vec_size": dimension}
    with atomic_folder(path, meta) as folder:
        write_more(folder)
        with open(folder / DIGESTS, "wb") as out:
            for numbers in blocks(count, TEXTS_AT_ONCE):
                digests_of(texts(numbers)).tofile(out)
        digests, vectors = _read_digests(folder), _new_vectors(folder / VECTORS, count, dimension)
        new = _copy(vectors, digests, _copyable(path, meta))
        first = np.sort(new[np.unique(digests[new], axis=0, return_index=True)[1]])
        identity = meta | {"new texts": sha256(digests[first].tobytes()).hexdigest()}
        shards = ShardWriter(folder.parent, len(first), TEXTS_PER_SHARD, identity)
        shards.compute(
            partial(_encoded, encode, dimension),
            read=lambda numbers: (first[numbers], texts(first[numbers])),
            workers=workers,
            desc=desc,
            unit="text",
            delay=1,
            disable=not verbose,
        )
        end = 0
        for arrays in shards.read():
            start, end = end, end + len(arrays[VECTORS])
            vectors[first[start:end]] = arrays[VECTORS]
        rows_of = _finder(digests[first])
        repeated = np.setdiff1d(new, first)
        for block in blocks(len(repeated), TEXTS_AT_ONCE):
            numbers = repeated[block]
            vectors[numbers] = vectors[first[rows_of(digests[numbers])]]
        del vectors  # Windows does not rename folders of files that are mapped


def _encoded(
    encode: Callable[[list[str]], Any], dimension: int, rows: tuple[np.ndarray, list[str]]
) -> dict[str, np.ndarray]:
    """Vectors of numbered texts, shape (texts, d)."""
    numbers, texts = rows
    return {VECTORS: checked_vectors(encode(texts), numbers, dimension)}


def _copy(vectors: np.ndarray, digests: np.ndarray, folders: list[Path]) -> np.ndarray:
    """Copies the vectors of equal texts from other folders; returns the numbers of texts that none of them has."""
    new = np.ones(len(digests), dtype=bool)
    for folder in folders:
        rows_of = _finder(_read_digests(folder))
        stored = _read_vectors(folder / VECTORS, vectors.shape[1])
        for block in blocks(len(digests), TEXTS_AT_ONCE):
            numbers = block[new[block]]
            rows = rows_of(digests[numbers])
            numbers, rows = numbers[rows >= 0], rows[rows >= 0]
            vectors[numbers], new[numbers] = stored[rows], False
    return np.flatnonzero(new)


def _finder(stored: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """A function from digests, shape (texts, 2), to their rows in ``stored``, -1 for unknown ones."""
    order = np.argsort(stored[:, 0], kind="stable")
    keys = stored[order, 0]

    def rows_of(digests: np.ndarray) -> np.ndarray:
        rows = order[np.minimum(np.searchsorted(keys, digests[:, 0]), len(keys) - 1)]
        return np.where((stored[rows] == digests).all(axis=1), rows, -1)

    return rows_of


def _new_vectors(file: Path, count: int, dimension: int) -> np.ndarray:
    """Creates a file of vectors, memory-mapped, shape (count, dimension)."""
    file.touch()
    if not count:  # an empty file cannot be mapped
        return np.empty((0, dimension), dtype=FLOAT)
    return np.memmap(file, FLOAT, "w+", shape=(count, dimension))


def _read_digests(folder: Path) -> np.ndarray:
    """The digests of a file's texts, memory-mapped, shape (texts, 2)."""
    return _read_vectors(folder / DIGESTS, 2, DIGEST)


def _read_vectors(file: Path, dimension: int, dtype: np.dtype[Any] = FLOAT) -> np.ndarray:
    """Memory-maps an array of shape (texts, dimension)."""
    if not file.stat().st_size:  # an empty file cannot be mapped
        return np.empty((0, dimension), dtype=dtype)
    return np.memmap(file, dtype=dtype, mode="r").reshape(-1, dimension)


def _copyable(path: Path, meta: dict[str, Any]) -> list[Path]:
    """Folders of complete files with vectors that depend on the same, the texts aside; the newest first."""
    prefix = path.name.partition("-")[0]
    metas = [file for file in path.parent.glob(f"{prefix}-*/{META}") if file.is_file()]
    metas.sort(key=lambda file: (-file.stat().st_mtime_ns, file.parent.name))
    copyable = []
    for file in metas:
        with suppress(ValueError):  # damaged, or of other dimensions
            other = read_meta(file.parent, {"vec_size": meta["vec_size"]})
            if other["base"] | TEXTS == meta["base"] | TEXTS and other["doc_count"]:
                copyable.append(file.parent)
    return copyable
