"""Vectors of texts that another file of the same encoder has already: only new texts are encoded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from pyterrier_graph.artifacts import META, read_meta
from pyterrier_graph.encoders.vector_files import FLOAT, VECTORS, blocks

DIGESTS = "digests.u8"
DIGEST = np.dtype("<u8")  # a text's digest is two of them
SOURCE, ROW = np.dtype("<i2"), np.dtype("<i8")
TEXTS_AT_ONCE = 65_536


class VectorReuse:
    """The texts of an unfinished file of vectors whose vectors other files have.

    A vector is copied if the encoder and the digest (BLAKE2b, 16 bytes) of all that it reads are equal. With late
    chunking this is the whole document. So a copied vector is the one that the text got when it was encoded first; it
    differs from that of another encoding only as far as the encoder's vectors depend on the other texts of a batch.

    What is copied from where is on disk, ten bytes per text, so that it is the same for all workers, and when
    interrupted work goes on. While it is found out, there are 24 bytes per text of one other file in memory.

    Args:
        folder: The folder that :meth:`find` has written.
        dimension: Dimensions of the vectors.
    """

    def __init__(self, folder: Path, dimension: int) -> None:
        self.folder, self.dimension = folder, dimension

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.folder, self.dimension)

    @staticmethod
    def find(folder: Path, digests: np.ndarray, others: list[Path], count_of: Callable[[dict[str, Any]], int]) -> None:
        """Finds out which vectors can be copied.

        Args:
            folder: What is found is written here.
            digests: The digests of all texts.
            others: Folders of complete files; those without digests are left out.
            count_of: The number of vectors of another file, from its ``pt_meta.json``; 0 if they are of another
                encoder.
        """
        sources: list[tuple[str, int]] = []
        source, row = np.full(len(digests), -1, dtype=SOURCE), np.zeros(len(digests), dtype=ROW)
        for other in others:
            if not (count := _count(other, count_of)) or (source >= 0).all():
                continue
            theirs = read_digests(other)
            order = np.argsort(theirs[:, 0], kind="stable")
            keys = theirs[order, 0]
            for part in blocks(len(digests), TEXTS_AT_ONCE):
                mine = digests[part]
                place = order[np.minimum(np.searchsorted(keys, mine[:, 0]), count - 1)]
                new = (theirs[place] == mine).all(axis=1) & (source[part] < 0)
                source[part[new]], row[part[new]] = len(sources), place[new]
            sources.append((str(other.absolute()), count))
        folder.mkdir(exist_ok=True)
        source.tofile(folder / "source.i2")
        row.tofile(folder / "row.i8")
        (folder / "sources.json").write_text(json.dumps(sources), encoding="utf-8")

    @cached_property
    def _found(self) -> tuple[np.ndarray, np.ndarray, list[np.ndarray | None]]:
        """Per text the file and the row that its vector is copied from (-1: no file), and the vectors of the files."""
        sources: list[np.ndarray | None] = []
        for other, count in json.loads((self.folder / "sources.json").read_text(encoding="utf-8")):
            there = (Path(other) / VECTORS).exists()  # it may have been deleted since
            shape = count, self.dimension
            sources.append(np.memmap(Path(other) / VECTORS, dtype=FLOAT, mode="r", shape=shape) if there else None)
        source, row = self.folder / "source.i2", self.folder / "row.i8"
        return np.memmap(source, dtype=SOURCE, mode="r"), np.memmap(row, dtype=ROW, mode="r"), sources

    def vectors(self, numbers: np.ndarray, encode: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Vectors of some texts; those that no other file has are encoded."""
        sources, rows, files = self._found
        source = np.array(sources[numbers])
        source[np.isin(source, [number for number, file in enumerate(files) if file is None])] = -1
        if (source < 0).all():
            return encode(numbers)
        vectors = np.empty((len(numbers), self.dimension), dtype=FLOAT)
        for number in np.unique(source):
            here = source == number
            file = files[number] if number >= 0 else None
            vectors[here] = encode(numbers[here]) if file is None else file[rows[numbers[here]]]
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
