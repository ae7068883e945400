"""Arrays, texts and ids in files: written piece by piece, and memory-mapped."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pandas as pd
import pyarrow as pa
from npids.builder import FwdLookupBuilder
from npids.codecs import FwdFixedBytes
from npids.lookup import Lookup

from pyterrier_graph.storage.artifact import BuiltArtifact

DOCNOS = "docnos.npids"
TEXTS = "texts"
TEXT_OFFSETS = "text_offsets"
IDS_AT_ONCE = 65_536

# of arrays by the last word of their names; all others are i8
_DTYPES = {
    "node_type": "u1",
    TEXTS: "u1",
    "indices": "u4",
    "pairs": "u4",
    "edges": "u4",
    "scores": "f4",
    "features": "f2",
    "tokens": "f2",
}


def blocks(count: int, at_once: int) -> Iterator[np.ndarray]:
    """Yields the numbers from 0 to ``count - 1``, ``at_once`` at a time."""
    for start in range(0, count, at_once):
        yield np.arange(start, min(start + at_once, count))


def array_file(folder: Path, name: str) -> Path:
    """The file of an array; its suffix is the array's type."""
    last_word = name.rpartition(".")[2]  # "indices" of "order.indices"
    dtype = _DTYPES.get(last_word, "i8")
    return folder / f"{name}.{dtype}"


def _dtype(file: Path) -> np.dtype:
    """The type that the suffix of an array's file names, little-endian."""
    return np.dtype(f"<{file.suffix[1:]}")


def read_array(folder: Path, name: str) -> np.ndarray:
    """Memory-maps an array."""
    path = array_file(folder, name)
    dtype = _dtype(path)
    if not path.stat().st_size:  # an empty file cannot be mapped
        return np.empty(0, dtype=dtype)
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))


class ArrayWriter(ExitStack):
    """Appends to arrays and texts in the files of a folder; a context manager, which closes the files."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self._files: dict[str, BinaryIO] = {}
        self._text_end = 0

    def append(self, name: str, values: np.ndarray) -> None:
        """Adds values to the end of an array; an array without values becomes an empty file."""
        path = array_file(self.folder, name)
        if name not in self._files:
            self._files[name] = self.enter_context(open(path, "ab"))
        content = np.ascontiguousarray(values, dtype=_dtype(path))
        self._files[name].write(content.tobytes())

    def append_texts(self, texts: Sequence[str]) -> None:
        """Appends texts, in UTF-8."""
        if TEXT_OFFSETS not in self._files:
            self.append(TEXT_OFFSETS, np.zeros(1))
        encoded = [text.encode() for text in texts]
        lengths = [len(text) for text in encoded]
        ends = self._text_end + np.cumsum(lengths, dtype=np.int64)
        content = b"".join(encoded)
        self.append(TEXTS, np.frombuffer(content, np.uint8))
        self.append(TEXT_OFFSETS, ends)
        self._text_end += len(content)


class _PlainIds(FwdFixedBytes):
    """Stores ids as they are: npids 0.1.3 cannot compress passage ids, and may raise when others are looked up."""

    def seed(self, id: str) -> bool:
        self.prefix = b""
        return super().seed(id)


@contextmanager
def writing_ids(path: Path) -> Iterator[FwdLookupBuilder]:
    """Writes an ``npids.Lookup``: provides a builder, whose ``add`` takes one id at a time."""
    with Lookup.builder(path) as builder:
        builder.formats = {FwdFixedBytes.NAME: _PlainIds()}
        builder.seeded_formats = dict(builder.formats)
        try:
            yield builder
        except BaseException:
            builder.fout.close()  # npids closes the file only if there is no error
            raise


def write_ids(path: Path, ids: Iterable[str]) -> None:
    """Writes an ``npids.Lookup`` with these ids."""
    with writing_ids(path) as builder:
        for identifier in ids:
            builder.add(identifier)


def numbers_of(lookup: Lookup, ids: Sequence[str]) -> np.ndarray:
    """Numbers of ids, int64; -1 for unknown ids. Each distinct id is looked up once."""
    # position is -1 where an id is None
    position, distinct = pd.factorize(np.array(ids, dtype=object))
    if not len(distinct):
        return position.astype(np.int64)
    numbers = np.array(lookup.inv[distinct.tolist()], dtype=np.int64)
    numbers = np.append(numbers, -1)  # the last one is the number of None
    return numbers[position]


def known_numbers_of(lookup: Lookup, ids: Sequence[str] | np.ndarray) -> np.ndarray:
    """Numbers of ids, in their shape; raises KeyError if one is unknown."""
    ids = np.asarray(ids)
    flat_ids = ids.ravel().tolist()
    numbers = numbers_of(lookup, flat_ids).reshape(ids.shape)
    unknown = ids[numbers < 0]
    if len(unknown):
        raise KeyError(f"{str(unknown[0])!r} is not a passage of the index")
    return numbers


def ids_of(lookup: Lookup, numbers: np.ndarray) -> list[str]:
    """Ids by number."""
    if not len(numbers):
        return []
    distinct, position = np.unique(numbers, return_inverse=True)
    ids = lookup.fwd[distinct].astype(object)
    return ids[position].tolist()


def check_unique(ids_file: Path) -> None:
    """Raises ValueError if two passages have the same id."""
    with Lookup(ids_file) as lookup:
        for numbers in blocks(len(lookup), IDS_AT_ONCE):
            ids = ids_of(lookup, numbers)
            is_repeated = numbers_of(lookup, ids) != numbers
            repeated = np.flatnonzero(is_repeated)
            if len(repeated):
                docno = ids[repeated[0]]
                raise ValueError(
                    f"passage {docno!r} comes twice: the ids of passages must be unique"
                )


class StoredGraph(BuiltArtifact):
    """Base of graphs on disk, whose files are mapped when they are needed."""

    def __init__(self, path: str | os.PathLike[str], *, verbose: bool = True) -> None:
        super().__init__(path, verbose=verbose)
        self._arrays: dict[str, np.ndarray] = {}

    @cached_property
    def docnos(self) -> Lookup:
        """Docnos by number (``.fwd``) and back (``.inv``, -1 for unknown ones)."""
        return Lookup(self.folder / DOCNOS)

    def _array(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            self._arrays[name] = read_array(self.folder, name)
        return self._arrays[name]

    def _texts(self, numbers: np.ndarray) -> list[str]:
        """Stored texts by number."""
        offsets = self._array(TEXT_OFFSETS)  # (texts + 1,)
        offset_buffer = pa.py_buffer(offsets)
        content_buffer = pa.py_buffer(self._array(TEXTS))
        count = len(offsets) - 1
        stored = pa.LargeStringArray.from_buffers(count, offset_buffer, content_buffer)
        texts = stored.take(pa.array(numbers))
        return texts.to_pylist()
