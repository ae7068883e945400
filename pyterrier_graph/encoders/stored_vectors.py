"""Vectors that are encoded once, and kept in files: of queries, of titles, and of the passages of a graph.

Each file has the vectors of some texts by one encoder. A text is encoded only if no other file of the same encoder in
the same folder has it: vectors are copied where the digest (BLAKE2b, 16 bytes) of all that the encoder reads is equal.
So a copied vector is the one that the text got when it was encoded first; it differs from a new one only as far as the
encoder's vectors depend on the other texts of a batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
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

VECTORS = "vecs.f4"
DIGESTS = "digests.u8"
FLOAT = np.dtype("<f4")  # of the numbers of a vector
DIGEST = np.dtype("S16")  # of a text
TEXTS_PER_SHARD = 256
TEXTS_AT_ONCE = 8192
FLEX = {"type": "dense_index", "format": "flex", "package_hint": "pyterrier_dr"}
# entries of the identity of vectors that only tell which texts they are of
WHICH_TEXTS = {"texts": None, "graph": None, "titles": None}

Texts = Callable[[np.ndarray], list[str]]  # of numbers
Encode = Callable[[list[str]], Any]  # vectors, shape (texts, d)


def checked_vectors(vectors: Any, count: int, dimension: int | None = None) -> np.ndarray:
    """The output of an encoder for ``count`` texts, as ``FLOAT``; without a dimension, any is allowed.

    Raises:
        ValueError: If the vectors are not finite, or not of shape (count, dimension).
    """
    vectors = np.asarray(vectors, dtype=FLOAT)
    shape = count, dimension or vectors.shape[-1]
    if vectors.shape != shape:
        raise ValueError(f"an encoder must return vectors of shape {shape}, got {vectors.shape}")
    if not np.isfinite(vectors).all():
        raise ValueError("an encoder returned a vector that is not finite")
    return vectors


def encoder_name(encoder: BiEncoder) -> str:
    """A name that no other encoder has."""
    return getattr(encoder, "model_name", repr(encoder))


def encode_once(
    folder: Path,
    name: str,
    identity: dict[str, Any],
    count: int,
    texts: Texts,
    encode: Encode,
    *,
    write_ids: Callable[[Path], None] | None = None,
    workers: Workers = 1,
    verbose: bool = True,
) -> Flex:
    """Vectors of many texts as a ``FlexIndex``, which is written unless an earlier call has written it.

    Each name, such as ``'queries'``, and identity gets a folder of its own. The identity has all that the vectors
    depend on: the encoder's ``model_name``, a digest of the texts. Vectors are copied from folders with the same name
    whose identities differ only in which texts they are of. A call that was killed continues when it is repeated. The
    first text is encoded once more, for the dimension.

    Args:
        folder: Folder of the new folder.
        name: What the texts are.
        identity: All that the vectors depend on.
        count: Number of texts.
        texts: Returns the texts with some numbers.
        encode: Returns vectors of texts, shape (texts, d).
        write_ids: Writes the ids of the texts, if they have any, to a file.
        workers: Number of processes, or ``'ray'``: see :mod:`~pyterrier_graph.storage.shards`.
        verbose: Whether to show progress.
    """
    about = FLEX | {"doc_count": count, "base": identity}
    path = folder / f"{name}-{json_sha256(about)[:16]}"
    if os.path.isfile(path / META):
        return Flex(path)
    first_text = texts(np.arange(1))
    dimension = checked_vectors(encode(first_text), 1).shape[1]
    meta = about | {"vec_size": dimension}
    with atomic_folder(path, meta) as new_folder:
        if write_ids is not None:
            write_ids(new_folder / DOCNOS)
        digests = _write_digests(new_folder / DIGESTS, texts, count)
        vectors = np.memmap(new_folder / VECTORS, FLOAT, "w+", shape=(count, dimension))
        new = _copy_from_similar(path, identity, vectors, digests)
        _, rows = np.unique(digests[new], return_index=True)
        first = new[np.sort(rows)]  # texts that are encoded: each once
        new_digest = sha256(digests[first].tobytes())
        inputs = meta | {"new texts": new_digest.hexdigest()}
        shards = ShardWriter(new_folder.parent, len(first), TEXTS_PER_SHARD, inputs)
        shards.compute(
            partial(_encoded, encode, dimension),
            read=lambda rows: texts(first[rows]),
            workers=workers,
            desc=f"encoding {name}",
            unit="text",
            delay=1,
            disable=not verbose,
        )
        batches = blocks(len(first), TEXTS_PER_SHARD)
        for batch, shard in zip(batches, shards.read(), strict=True):
            numbers = first[batch]
            vectors[numbers] = shard[VECTORS]
        repeated = np.setdiff1d(new, first)
        _copy(vectors, digests, repeated, digests, vectors)
        del vectors  # Windows does not rename folders of files that are mapped
    return Flex(path)


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

    It is written beside the vectors of other graphs and encoders, unless it is there already. With ``titles``,
    the titles above a passage precede its text.
    """
    nodes = graph.passage_nodes
    identity = {
        "encoder": encoder_name(encoder),
        "graph": graph.fingerprint(),
        "titles": titles,
    }
    return encode_once(
        folder,
        "passages",
        identity,
        len(nodes),
        lambda numbers: graph.texts(nodes[numbers], titles=titles),
        encoder.encode_docs,
        write_ids=graph.write_passage_ids,
        workers=workers,
        verbose=verbose,
    )


def _encoded(encode: Encode, dimension: int, texts: list[str]) -> dict[str, np.ndarray]:
    """Vectors of texts, shape (texts, d)."""
    vectors = encode(texts)
    return {VECTORS: checked_vectors(vectors, len(texts), dimension)}


def _write_digests(file: Path, texts: Texts, count: int) -> np.ndarray:
    """Writes the digest of each text; returns them memory-mapped, shape (count,)."""
    with open(file, "wb") as out:
        for numbers in blocks(count, TEXTS_AT_ONCE):
            for text in texts(numbers):
                digest = blake2b(text.encode(), digest_size=DIGEST.itemsize)
                out.write(digest.digest())
    return np.memmap(file, DIGEST, "r")


def _keys(digests: np.ndarray) -> np.ndarray:
    """The first half of each digest, as a number, which is faster to look up than a string."""
    return digests.view("<u8")[::2]


def _copy_from_similar(
    path: Path, identity: dict[str, Any], vectors: np.ndarray, digests: np.ndarray
) -> np.ndarray:
    """Copies vectors that similar folders have; returns the numbers of the other texts."""
    numbers = np.arange(len(digests))
    for folder in _similar_folders(path, identity):
        stored_digests = np.memmap(folder / DIGESTS, DIGEST, "r")
        stored = np.memmap(folder / VECTORS, FLOAT, "r").reshape(-1, vectors.shape[1])
        numbers = _copy(vectors, digests, numbers, stored_digests, stored)
    return numbers


def _copy(
    vectors: np.ndarray,
    digests: np.ndarray,
    numbers: np.ndarray,
    stored_digests: np.ndarray,
    stored: np.ndarray,
) -> np.ndarray:
    """Copies stored vectors of the texts with these numbers; returns the numbers of texts that are not stored."""
    keys = _keys(stored_digests)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    missing = [numbers[:0]]
    for block in blocks(len(numbers), TEXTS_AT_ONCE):
        batch = numbers[block]
        position = np.searchsorted(keys, _keys(digests[batch]))
        row = order[np.minimum(position, len(keys) - 1)]  # the first text with this key, or any
        known = stored_digests[row] == digests[batch]
        vectors[batch[known]] = stored[row[known]]
        missing.append(batch[~known])
    return np.concatenate(missing)


def _similar_folders(path: Path, identity: dict[str, Any]) -> Iterator[Path]:
    """Folders with vectors that depend on the same, the texts aside."""
    prefix = path.name.partition("-")[0]
    for file in sorted(path.parent.glob(f"{prefix}-*/{META}")):
        other = read_meta(file.parent)["base"]
        if other | WHICH_TEXTS == identity | WHICH_TEXTS:
            yield file.parent
