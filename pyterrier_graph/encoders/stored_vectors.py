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
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyterrier_graph.encoders.flex import Flex
from pyterrier_graph.storage.arrays import DOCNOS, blocks, write_ids
from pyterrier_graph.storage.artifact import META, atomic_folder, json_sha256, read_meta
from pyterrier_graph.storage.shards import ShardWriter, Workers

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder

    from pyterrier_graph.graphs.hetero_graph import HeteroGraph

VECTORS, NEW_VECTORS, DIGESTS = "vecs.f4", "new.f4", "digests.u8"
FLOAT, DIGEST = np.dtype("<f4"), np.dtype("<u8")  # the digest of a text is two numbers
SOURCE, ROW = np.dtype("<i2"), np.dtype("<i8")
PASSAGES_AT_ONCE, TEXTS_AT_ONCE = 256, 8192
FLEX = {"type": "dense_index", "format": "flex"}
HINT = {"package_hint": "pyterrier_dr"}
# in the identity of vectors, what only tells which texts they are of
TEXTS = {"texts": None, "graph": None, "titles": None}

VectorsOf = Callable[[np.ndarray], np.ndarray]


def checked_vectors(vectors: Any, numbers: np.ndarray, dimension: int | None) -> np.ndarray:
    """The output of an encoder for some texts, as ``FLOAT``; without a dimension, any is allowed.

    Raises:
        ValueError: If the vectors are not finite floating point numbers of shape (numbers, dimension).
    """
    vectors = np.asarray(vectors)
    shape = len(numbers), dimension or (vectors.shape[1] if vectors.ndim == 2 else "d")
    if vectors.shape != shape or not vectors.shape[1] or vectors.dtype.kind != "f":
        raise ValueError(
            f"vectors must be floating point numbers of shape {shape}, but they are {vectors.dtype} of shape "
            f"{vectors.shape}"
        )
    with np.errstate(over="ignore"):
        vectors = vectors.astype(FLOAT, copy=False)
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
    batch_size: int = 1024,
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
    progress = {"desc": name, "unit": "text", "delay": 1, "disable": not verbose}
    _write(
        path,
        about,
        texts,
        encode,
        f"{name}-*",
        at_once=batch_size,
        workers=workers,
        progress=progress,
    )
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
    quiet = without_bars(encoder)
    if not len(nodes):
        raise ValueError(f"{graph!r} has no passages: none of its documents has a text")

    def texts(numbers: np.ndarray) -> list[str]:
        return graph.texts(nodes[numbers], titles=titles)

    parts = (graph.ids_of(nodes[numbers]) for numbers in blocks(len(nodes), PASSAGES_AT_ONCE))
    about = FLEX | HINT | {"doc_count": len(nodes), "base": identity}
    desc = f"encoding passages{' with titles' * titles}"
    _write(
        path,
        about,
        texts,
        quiet.encode_docs,
        "passages-*.flex",
        write_more=lambda files: write_ids(files / DOCNOS, chain.from_iterable(parts)),
        at_once=PASSAGES_AT_ONCE,
        workers=workers,
        progress={"desc": desc, "unit": "passage", "delay": 1, "disable": not verbose},
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
    pattern: str,
    *,
    write_more: Callable[[Path], None] = lambda files: None,
    at_once: int,
    workers: Workers,
    progress: dict[str, Any],
) -> None:
    """Writes vectors of what is read for each number, and the digests of their texts, unless they are there.

    Vectors are copied from folders of the same pattern whose vectors depend on the same, the texts aside.
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
        own, others = _read_digests(folder), _copyable(path.parent, pattern, meta)
        source, row = _copies(own, [*map(_read_digests, others)])
        new = np.flatnonzero(source < 0)
        first = np.sort(new[np.unique(own[new], axis=0, return_index=True)[1]])  # of equal texts
        digest = sha256(own[first].tobytes()).hexdigest()
        shards = ShardWriter(folder.parent, len(first), at_once, meta | {"new texts": digest})
        shards.compute(
            partial(_encoded, encode, dimension),
            read=lambda numbers: (first[numbers], texts(first[numbers])),
            workers=workers,
            **progress,
        )
        shards.concatenate(folder, [VECTORS])
        if len(first) < count:
            encoded = (folder / VECTORS).rename(folder / NEW_VECTORS)
            vectors = [_read_vectors(other / VECTORS, dimension) for other in others]
            vectors.append(_read_vectors(encoded, dimension))
            source[new], row[new] = len(others), _copies(own[new], [own[first]])[1]
            with open(folder / VECTORS, "wb") as out:
                for numbers in blocks(count, TEXTS_AT_ONCE):
                    _copied(vectors, source[numbers], row[numbers]).tofile(out)
            del vectors  # Windows does not remove files that are mapped
            encoded.unlink()


def _encoded(
    encode: Callable[[list[str]], Any], dimension: int, rows: tuple[np.ndarray, list[str]]
) -> dict[str, np.ndarray]:
    """Vectors of numbered texts, shape (texts, d)."""
    numbers, texts = rows
    return {VECTORS: checked_vectors(encode(texts), numbers, dimension)}


def _copied(vectors: list[np.ndarray], source: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Vectors from several arrays, shape (texts, d)."""
    out = np.empty((len(row), vectors[0].shape[1]), dtype=FLOAT)
    for number in np.unique(source):
        out[source == number] = vectors[number][row[source == number]]
    return out


def _copies(digests: np.ndarray, stored: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Per text which of the stored files has its vector, -1 for none, and in which row; takes 24 bytes per text."""
    source, row = np.full(len(digests), -1, dtype=SOURCE), np.zeros(len(digests), dtype=ROW)
    for number, theirs in enumerate(stored):
        order = np.argsort(theirs[:, 0], kind="stable")
        keys = theirs[order, 0]
        for block in blocks(len(digests), TEXTS_AT_ONCE):
            mine = digests[block]  # (texts, 2)
            place = order[np.minimum(np.searchsorted(keys, mine[:, 0]), len(keys) - 1)]
            new = (theirs[place] == mine).all(axis=1) & (source[block] < 0)
            source[block[new]], row[block[new]] = number, place[new]
    return source, row


def _read_digests(folder: Path) -> np.ndarray:
    """The digests of a file's texts, memory-mapped, shape (texts, 2)."""
    return _read_vectors(folder / DIGESTS, 2, DIGEST)


def _read_vectors(file: Path, dimension: int, dtype: np.dtype[Any] = FLOAT) -> np.ndarray:
    """Memory-maps an array of shape (texts, dimension)."""
    if not file.stat().st_size:  # an empty file cannot be mapped
        return np.empty((0, dimension), dtype=dtype)
    return np.memmap(file, dtype=dtype, mode="r").reshape(-1, dimension)


def _copyable(folder: Path, pattern: str, meta: dict[str, Any]) -> list[Path]:
    """Folders of complete files with vectors that depend on the same, the texts aside; the newest first."""
    metas = [path / META for path in folder.glob(pattern) if (path / META).is_file()]
    metas.sort(key=lambda file: (-file.stat().st_mtime_ns, file.parent.name))
    copyable = []
    for file in metas:
        with suppress(ValueError):  # damaged, or of other dimensions
            other = read_meta(file.parent, {"vec_size": meta["vec_size"]})
            if other["base"] | TEXTS == meta["base"] | TEXTS and other["doc_count"]:
                copyable.append(file.parent)
    return copyable
