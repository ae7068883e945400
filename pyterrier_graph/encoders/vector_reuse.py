"""Vectors of texts that another file of the same encoder has already: only new texts are encoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from pyterrier_graph.artifacts import META, read_meta
from pyterrier_graph.encoders.vector_files import FLOAT, VECTORS, blocks

DIGESTS = "digests.u8"
DIGEST = np.dtype("<u8")  # a text's digest is two of them
TEXTS_AT_ONCE = 65_536


class VectorReuse:
    """The texts of an unfinished file of vectors whose vectors other files have.

    A vector is copied if the encoder and the digest (BLAKE2b, 16 bytes) of all that it reads are equal. With late
    chunking this is the whole document. So a copied vector is the one that the text got when it was encoded first; it
    differs from that of another encoding only as far as the encoder's vectors depend on the other texts of a batch.

    Memory: ten bytes per text, and while it is made 24 bytes per text of one other file.

    Args:
        folder: The folder of the unfinished file, with the digests of its texts.
        others: Folders of complete files; those without digests are left out.
        count_of: The number of vectors of another file, from its ``pt_meta.json``; 0 if they are of another encoder.
        dimension: Dimensions of the vectors.
    """

    def __init__(
        self, folder: Path, others: list[Path], count_of: Callable[[dict[str, Any]], int], dimension: int
    ) -> None:
        digests = read_digests(folder)
        self.sources: list[np.ndarray] = []
        self.source = np.full(len(digests), -1, dtype=np.int16)
        self.row = np.zeros(len(digests), dtype=np.int64)
        for other in others:
            if not (count := _count(other, count_of)) or (self.source >= 0).all():
                continue
            theirs = read_digests(other)
            order = np.argsort(theirs[:, 0], kind="stable")
            keys = theirs[order, 0]
            for part in blocks(len(digests), TEXTS_AT_ONCE):
                mine = digests[part]
                row = order[np.minimum(np.searchsorted(keys, mine[:, 0]), count - 1)]
                new = (theirs[row] == mine).all(axis=1) & (self.source[part] < 0)
                self.source[part[new]], self.row[part[new]] = len(self.sources), row[new]
            self.sources.append(np.memmap(other / VECTORS, dtype=FLOAT, mode="r", shape=(count, dimension)))

    def vectors(self, numbers: np.ndarray, encode: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Vectors of some texts; those that no other file has are encoded."""
        source = self.source[numbers]
        if (source < 0).all():
            return encode(numbers)
        vectors = np.empty((len(numbers), self.sources[0].shape[1]), dtype=FLOAT)
        for number in np.unique(source):
            here = source == number
            there = self.sources[number][self.row[numbers[here]]] if number >= 0 else encode(numbers[here])
            vectors[here] = there
        return vectors


def digests_of(texts: Iterable[str | bytes]) -> np.ndarray:
    """Digests of texts, shape (texts, 2)."""
    contents = (text.encode() if isinstance(text, str) else text for text in texts)
    joined = b"".join([blake2b(content, digest_size=16).digest() for content in contents])
    return np.frombuffer(joined, dtype=DIGEST).reshape(-1, 2)


def read_digests(folder: Path) -> np.ndarray:
    """The digests of a file's texts, memory-mapped."""
    if not (folder / DIGESTS).stat().st_size:
        return np.empty((0, 2), dtype=DIGEST)
    return np.memmap(folder / DIGESTS, dtype=DIGEST, mode="r").reshape(-1, 2)


def complete(folder: Path, pattern: str) -> list[Path]:
    """Folders of complete files, the one that was written last first."""
    metas = [path / META for path in folder.glob(pattern) if (path / META).is_file()]
    return [meta.parent for meta in sorted(metas, key=lambda meta: (-meta.stat().st_mtime_ns, meta.parent.name))]


def _count(folder: Path, count_of: Callable[[dict[str, Any]], int]) -> int:
    """How many vectors of a file can be copied."""
    try:
        meta = read_meta(folder, {})
    except ValueError:  # damaged
        return 0
    return count_of(meta) if DIGESTS in meta["files"] else 0
