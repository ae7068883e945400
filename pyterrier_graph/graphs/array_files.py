"""Arrays and texts on disk: files that grow, and artifacts that map such files into memory."""

import hashlib
import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property, lru_cache
from pathlib import Path
from typing import BinaryIO, TypeVar

import lz4.block
import numpy as np
from npids.lookup import Lookup

from pyterrier_graph.artifacts import BuiltArtifact
from pyterrier_graph.graphs.consistency import Bounds, check_array, count_of, offsets_to, open_ids

DOCNOS = "docnos.npids"
TEXTS = "texts.lz4"
BLOCKS = "text_blocks"
BLOCK = 64
Opened = TypeVar("Opened")

_DTYPES = {"node_type": "u1", "indices": "u4", "pairs": "u4", "edges": "u4", "scores": "f4", "features": "f2"}


def array_file(folder: Path, name: str) -> Path:
    """The file that holds an array; its ending is the array's type."""
    return folder / f"{name}.{_DTYPES.get(name.rpartition('.')[2], 'i8')}"


def read_array(folder: Path, name: str, bounds: Bounds | None = None) -> np.ndarray:
    """Memory-maps an array, which has been checked if its bounds are given."""
    path = array_file(folder, name)
    dtype = np.dtype(f"<{path.suffix[1:]}")
    if bounds is not None:
        check_array(path, dtype, bounds)
    if not path.stat().st_size:
        return np.empty(0, dtype=dtype)
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))


def digest(folder: Path) -> str:
    """SHA-256 of the files in a folder."""
    total = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        with open(file, "rb") as data:
            total.update(file.name.encode() + hashlib.file_digest(data, "sha256").digest())
    return total.hexdigest()


class ArrayFiles(ExitStack):
    """Arrays that grow on disk; a context manager, which closes the files."""

    def __init__(self) -> None:
        super().__init__()
        self._files: dict[Path, BinaryIO] = {}

    def append(self, folder: Path, name: str, values: np.ndarray) -> None:
        """Adds values after those before; without any, there is an empty file."""
        path = array_file(folder, name)
        if path not in self._files:
            self._files[path] = self.enter_context(open(path, "ab"))
        self._files[path].write(np.ascontiguousarray(values, dtype=f"<{path.suffix[1:]}").tobytes())


class TextWriter(ExitStack):
    """Writes texts in blocks of 64, which are compressed together: the blocks, and where each begins."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._blocks = self.enter_context(open(folder / TEXTS, "wb"))
        self._offsets = self.enter_context(ArrayFiles())
        self._offsets.append(folder, BLOCKS, np.zeros(1))
        self._waiting: list[bytes] = []
        self.push(self._finish)

    def extend(self, texts: Sequence[str]) -> None:
        """Adds texts after those before."""
        self._waiting += [text.encode("utf-8") for text in texts]
        complete = len(self._waiting) - len(self._waiting) % BLOCK
        for start in range(0, complete, BLOCK):
            self._write(self._waiting[start : start + BLOCK])
        del self._waiting[:complete]

    def _finish(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None and self._waiting:
            self._write(self._waiting)

    def _write(self, texts: list[bytes]) -> None:
        lengths = np.array([len(text) for text in texts], dtype="<u4")
        self._blocks.write(lz4.block.compress(b"".join([lengths.tobytes(), *texts])))
        self._offsets.append(self._folder, BLOCKS, np.array([self._blocks.tell()]))


class TextReader:
    """Reads ``count`` texts by number; keeps the blocks read last.

    A ValueError says that the files are damaged.
    """

    def __init__(self, folder: Path, count: int) -> None:
        size = (folder / TEXTS).stat().st_size
        self._offsets = read_array(folder, BLOCKS, offsets_to(size, -(-count // BLOCK)))
        self._bytes = np.memmap(folder / TEXTS, dtype=np.uint8, mode="r") if size else np.empty(0, dtype=np.uint8)
        self._file = folder / TEXTS
        self._count = count
        self._block = lru_cache(maxsize=512)(self._decompress)

    def read(self, numbers: np.ndarray) -> list[str]:
        """Texts by number, shape (n,)."""
        unique, position = np.unique(numbers, return_inverse=True)  # ascending, so that each block is needed once
        texts = []
        for number in unique.tolist():
            data, bounds = self._block(number // BLOCK)
            place = number % BLOCK
            texts.append(self._text(data[bounds[place] : bounds[place + 1]], number))
        return [texts[place] for place in position.tolist()]

    def _text(self, data: bytes, number: int) -> str:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{str(self._file)!r} is damaged: text {number} is no text ({error})") from error

    def _decompress(self, block: int) -> tuple[bytes, list[int]]:
        """A block's texts, one after the other, and where each begins."""
        packed = self._bytes[self._offsets[block] : self._offsets[block + 1]]
        count = min(BLOCK, self._count - block * BLOCK)
        try:
            # lz4 reserves as many bytes as the first four say; no byte of a block stands for more than 255
            if int.from_bytes(packed[:4].tobytes(), "little") > 255 * len(packed):
                raise ValueError("too long")
            data = lz4.block.decompress(packed)
            lengths = np.frombuffer(data, dtype="<u4", count=count)
            bounds = [4 * count, *(4 * count + np.cumsum(lengths, dtype=np.int64)).tolist()]
            if bounds[-1] != len(data):
                raise ValueError("other lengths")
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"{str(self._file)!r} is damaged: block {block} cannot be unpacked ({error})") from error
        return data, bounds


class StoredGraph(BuiltArtifact):
    """Base of graphs on disk. Nothing is read before it is needed, and each file is checked when it is opened.

    A ValueError names a file with numbers that cannot be, or says that another graph has taken the place of this one.
    """

    NUM_DOCNOS: str  # the entry of pt_meta.json that says how many docnos there are

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._arrays: dict[str, np.ndarray] = {}

    @abstractmethod
    def _bounds(self, name: str) -> Bounds:
        """What the entries of an array may be."""

    @cached_property
    def docnos(self) -> Lookup:
        """Docnos by number (``.fwd``) and back (``.inv``, -1 for unknown ones)."""
        return self._ids(DOCNOS, self.NUM_DOCNOS)

    def _open(self, open_in: Callable[[Path], Opened]) -> Opened:
        """Opens files, once ``pt_meta.json`` has been checked: they are those that it lists."""
        assert self.meta
        try:
            return open_in(self.path)
        finally:  # also if it fails: the files may be those of another graph
            self.check_in_place()

    def _ids(self, name: str, count: str) -> Lookup:
        return self._open(lambda folder: open_ids(folder / name, count_of(self.meta, count)))

    def _array(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            bounds = self._bounds(name)
            self._arrays[name] = self._open(lambda folder: read_array(folder, name, bounds))
        return self._arrays[name]
