"""Texts on disk, compressed, by number."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from types import TracebackType

import lz4.block
import numpy as np

BLOCK = 64
TEXTS = "texts.lz4"
BLOCKS = "text_blocks.i8"


class TextWriter:
    """Writes texts in blocks of 64, which are compressed together.

    Args:
        folder: Where the two files go: the compressed blocks, and where each begins.
    """

    def __init__(self, folder: Path) -> None:
        self._blocks = open(folder / TEXTS, "wb")
        self._offsets = open(folder / BLOCKS, "wb")
        self._open: list[bytes] = []
        self._written = 0
        self._offsets.write(np.int64(0).tobytes())

    def __enter__(self) -> TextWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None and self._open:
            self._write(self._open)
        self._blocks.close()
        self._offsets.close()

    def extend(self, texts: Sequence[str]) -> None:
        """Adds texts after those before."""
        self._open += [text.encode("utf-8") for text in texts]
        complete = len(self._open) - len(self._open) % BLOCK
        for start in range(0, complete, BLOCK):
            self._write(self._open[start : start + BLOCK])
        del self._open[:complete]

    def _write(self, texts: list[bytes]) -> None:
        lengths = np.array([len(text) for text in texts], dtype="<u4")
        self._written += self._blocks.write(lz4.block.compress(b"".join([lengths.tobytes(), *texts])))
        self._offsets.write(np.int64(self._written).tobytes())


class TextReader:
    """Reads texts by number; keeps the blocks read last.

    Args:
        folder: Where the files are.
        count: Number of texts.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self._bytes = np.memmap(folder / TEXTS, dtype=np.uint8, mode="r")
        self._offsets = np.fromfile(folder / BLOCKS, dtype="<i8")
        self._count = count
        self._block = lru_cache(maxsize=512)(self._decompress)

    def read(self, numbers: np.ndarray) -> list[str]:
        """Texts by number, shape (n,)."""
        unique, position = np.unique(numbers, return_inverse=True)  # ascending, so that each block is needed once
        texts = [self._text(number) for number in unique.tolist()]
        return [texts[place] for place in position.tolist()]

    def _text(self, number: int) -> str:
        block, place = divmod(number, BLOCK)
        data, bounds = self._block(block)
        return data[bounds[place] : bounds[place + 1]].decode("utf-8")

    def _decompress(self, block: int) -> tuple[bytes, list[int]]:
        """A block's texts, one after the other, and where each begins."""
        data = lz4.block.decompress(self._bytes[self._offsets[block] : self._offsets[block + 1]])
        count = min(BLOCK, self._count - block * BLOCK)
        lengths = np.frombuffer(data, dtype="<u4", count=count)
        return data, [4 * count, *(4 * count + np.cumsum(lengths, dtype=np.int64)).tolist()]
