"""Vectors that are encoded once, and kept in files: of queries, of titles, and of the passages of a graph.

Each file has the vectors of some texts by one encoder. A text is encoded only if no other file of the same encoder in
the same folder has it: vectors are copied where the digest (BLAKE2b, 16 bytes) of all that the encoder reads is equal.
So a copied vector is the one that the text got when it was encoded first; it differs from a new one only as far as the
encoder's vectors depend on the other texts of a batch.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
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
# entries of the identity of vectors that only tell which texts they are of
WHICH_TEXTS = {"texts": None, "graph": None, "titles": None}

Texts = Callable[[np.ndarray], list[str]]  # of numbers
Encode = Callable[[list[str]], Any]  # vectors, shape (texts, d)
VectorsOf = Callable[[np.ndarray], np.ndarray]  # of numbers, shape (numbers, d)


def checked_vectors(vectors: Any, count: int, dimension: int | None = None) -> np.ndarray:
    """The output of an encoder for ``count`` texts, as ``FLOAT``; without a dimension, any is allowed.

    Raises:
        ValueError: If the vectors are not finite, or not of shape (count, dimension).
    """
    vectors = np.asarray(vectors, dtype=FLOAT)
    if vectors.ndim != 2 or vectors.shape != (count, dimension or vectors.shape[1]):
        shape = f"({count}, {dimension or 'd'})"
        raise ValueError(f"an encoder must return vectors of shape {shape}, got {vectors.shape}")
    if not np.isfinite(vectors).all():
        raise ValueError("an encoder returned a vector that is not finite")
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
    texts: Texts,
    encode: Encode,
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
    identity = {
        "encoder": encoder_name(encoder),
        "graph": graph.fingerprint(),
        "titles": titles,
    }
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
        desc="encoding passages",
        workers=workers,
        verbose=verbose,
        write_more=lambda files: graph.write_passage_ids(files / DOCNOS),
    )
    return Flex(path)


def _write(
    path: Path,
    about: dict[str, Any],
    texts: Texts,
    encode: Encode,
    *,
    desc: str,
    workers: Workers,
    verbose: bool,
    write_more: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Writes vectors of the text of each number, and the digests of the texts, unless they are there.

    Vectors are copied from folders with the same prefix whose vectors depend on the same, the texts aside.
    """
    if os.path.isfile(path / META):
        return
    count = about["doc_count"]
    dimension = checked_vectors(encode(texts(np.arange(1))), 1).shape[1]
    meta = about | {"vec_size": dimension}
    with atomic_folder(path, meta) as folder:
        write_more(folder)
        digests = _write_digests(folder / DIGESTS, texts, count)
        vectors = np.memmap(folder / VECTORS, FLOAT, "w+", shape=(count, dimension))
        new = np.arange(count)
        for other in _similar_folders(path, meta):
            known = _mapped(other / DIGESTS, DIGEST, 2), _mapped(other / VECTORS, FLOAT, dimension)
            new = _copy(vectors, digests, new, *known)
        first = np.unique(digests[new], axis=0, return_index=True)[1]
        first = new[np.sort(first)]  # texts that are encoded: each once
        identity = meta | {"new texts": sha256(digests[first].tobytes()).hexdigest()}
        shards = ShardWriter(folder.parent, len(first), TEXTS_PER_SHARD, identity)
        shards.compute(
            partial(_encoded, encode, dimension),
            read=lambda rows: texts(first[rows]),
            workers=workers,
            desc=desc,
            unit="text",
            delay=1,
            disable=not verbose,
        )
        start = 0
        for shard in shards.read():
            numbers = first[start : start + TEXTS_PER_SHARD]
            vectors[numbers] = shard[VECTORS]
            start += TEXTS_PER_SHARD
        repeated = np.setdiff1d(new, first)
        _copy(vectors, digests, repeated, digests, vectors)
        del vectors  # Windows does not rename folders of files that are mapped


def _encoded(encode: Encode, dimension: int, texts: list[str]) -> dict[str, np.ndarray]:
    """Vectors of texts, shape (texts, d)."""
    return {VECTORS: checked_vectors(encode(texts), len(texts), dimension)}


def _write_digests(file: Path, texts: Texts, count: int) -> np.ndarray:
    """Writes the digest of each text; returns them memory-mapped, shape (count, 2)."""
    with open(file, "wb") as out:
        for numbers in blocks(count, TEXTS_AT_ONCE):
            for text in texts(numbers):
                out.write(blake2b(text.encode(), digest_size=16).digest())
    return _mapped(file, DIGEST, 2)


def _mapped(file: Path, dtype: np.dtype[Any], width: int) -> np.ndarray:
    """Memory-maps an array of shape (texts, width)."""
    return np.memmap(file, dtype, "r").reshape(-1, width)


def _copy(
    vectors: np.ndarray,
    digests: np.ndarray,
    numbers: np.ndarray,
    stored_digests: np.ndarray,
    stored: np.ndarray,
) -> np.ndarray:
    """Copies stored vectors of the texts with these numbers; returns the numbers of texts that are not stored."""
    order = np.argsort(stored_digests[:, 0], kind="stable")
    keys = stored_digests[order, 0]
    missing = [numbers[:0]]
    for block in blocks(len(numbers), TEXTS_AT_ONCE):
        batch = numbers[block]
        position = np.searchsorted(keys, digests[batch, 0])
        row = order[np.minimum(position, len(keys) - 1)]  # the first text with this key, or any
        known = (stored_digests[row] == digests[batch]).all(axis=1)
        vectors[batch[known]] = stored[row[known]]
        missing.append(batch[~known])
    return np.concatenate(missing)


def _similar_folders(path: Path, meta: dict[str, Any]) -> Iterator[Path]:
    """Folders of complete files with vectors that depend on the same, the texts aside; the newest first."""
    prefix = path.name.partition("-")[0]
    files = path.parent.glob(f"{prefix}-*/{META}")
    for file in sorted(files, key=lambda file: file.stat().st_mtime_ns, reverse=True):
        with suppress(ValueError):  # damaged, or of other dimensions
            other = read_meta(file.parent, {"vec_size": meta["vec_size"]})
            if other["base"] | WHICH_TEXTS == meta["base"] | WHICH_TEXTS:
                yield file.parent
