"""Vectors of passages that another index of the same encoder has already: only new texts are encoded."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyterrier_graph.artifacts import META, read_meta
from pyterrier_graph.encoders.late_chunking import passages_in_documents
from pyterrier_graph.encoders.vector_files import FLOAT, VECTORS, blocks

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder

    from pyterrier_graph.graphs.hetero_graph import HeteroGraph

DIGESTS = "digests.u8"
DIGEST = np.dtype("<u8")  # a text's digest is two of them
PASSAGES_AT_ONCE = 65_536


class VectorReuse:
    """The passages of an unfinished index whose vectors other indexes in the same folder have.

    A vector is copied if the encoder and the digest (BLAKE2b, 16 bytes) of all that it reads are equal. With late
    chunking this is the whole document. So a copied vector is the one that the text got when it was encoded first; it
    differs from that of another encoding only as far as the encoder's vectors depend on the other texts of a batch.

    Memory: ten bytes per passage, and while it is made 24 bytes per passage of one other index.

    Args:
        folder: The folder of the unfinished index, with the digests of its passages.
        others: Folders of complete indexes; those of another encoder or dimension, or without digests, are left out.
        encoder: Name of the encoder.
        dimension: Dimensions of the vectors.
    """

    def __init__(self, folder: Path, others: list[Path], encoder: str, dimension: int) -> None:
        digests = read_digests(folder)
        self.sources: list[np.ndarray] = []
        self.source = np.full(len(digests), -1, dtype=np.int16)
        self.row = np.zeros(len(digests), dtype=np.int64)
        for other in others:
            if not (count := _count(other, encoder, dimension)) or (self.source >= 0).all():
                continue
            theirs = read_digests(other)
            order = np.argsort(theirs[:, 0], kind="stable")
            keys = theirs[order, 0]
            for part in blocks(len(digests), PASSAGES_AT_ONCE):
                mine = digests[part]
                row = order[np.minimum(np.searchsorted(keys, mine[:, 0]), count - 1)]
                new = (theirs[row] == mine).all(axis=1) & (self.source[part] < 0)
                self.source[part[new]], self.row[part[new]] = len(self.sources), row[new]
            self.sources.append(np.memmap(other / VECTORS, dtype=FLOAT, mode="r", shape=(count, dimension)))

    def vectors(self, numbers: np.ndarray, encode: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Vectors of some passages; those that no other index has are encoded."""
        source = self.source[numbers]
        if (source < 0).all():
            return encode(numbers)
        vectors = np.empty((len(numbers), self.sources[0].shape[1]), dtype=FLOAT)
        for number in np.unique(source):
            here = source == number
            there = self.sources[number][self.row[numbers[here]]] if number >= 0 else encode(numbers[here])
            vectors[here] = there
        return vectors


def text_digests(graph: HeteroGraph, nodes: np.ndarray, encoder: BiEncoder) -> np.ndarray:
    """Digests of what an encoder reads for the vectors of some passages, shape (passages, 2)."""
    if not getattr(encoder, "late_chunking", False):
        return _digests([text.encode() for text in graph.texts(nodes)])
    texts, documents, positions = passages_in_documents(graph, nodes)
    own = _digests([text.encode() for text in texts])
    place = np.searchsorted(documents, positions, side="right") - 1
    bounds = zip(positions.tolist(), documents[place].tolist(), documents[place + 1].tolist(), strict=True)
    return _digests([f"{position - start} ".encode() + own[start:end].tobytes() for position, start, end in bounds])


def read_digests(folder: Path) -> np.ndarray:
    """The digests of an index's passages, memory-mapped."""
    if not (folder / DIGESTS).stat().st_size:
        return np.empty((0, 2), dtype=DIGEST)
    return np.memmap(folder / DIGESTS, dtype=DIGEST, mode="r").reshape(-1, 2)


def indexes_in(folder: Path, pattern: str) -> list[Path]:
    """Folders of complete indexes, the one that was written last first."""
    metas = [path / META for path in folder.glob(pattern) if (path / META).is_file()]
    return [meta.parent for meta in sorted(metas, key=lambda meta: (-meta.stat().st_mtime_ns, meta.parent.name))]


def _digests(texts: list[bytes]) -> np.ndarray:
    joined = b"".join([blake2b(text, digest_size=16).digest() for text in texts])
    return np.frombuffer(joined, dtype=DIGEST).reshape(-1, 2)


def _count(folder: Path, encoder: str, dimension: int) -> int:
    """How many passages an index has whose vectors can be copied."""
    try:
        meta: dict[str, Any] = read_meta(folder, {"type": "dense_index", "format": "flex", "vec_size": dimension})
    except ValueError:  # damaged
        return 0
    fits = meta.get("base", {}).get("encoder") == encoder and DIGESTS in meta["files"]
    return meta["doc_count"] if fits else 0
