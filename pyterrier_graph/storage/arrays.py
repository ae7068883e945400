"""Arrays, texts and ids on disk: files that grow, and artifacts that map such files into memory."""

import copyreg
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd
import pyarrow as pa
from npids.builder import FwdLookupBuilder
from npids.codecs import FwdFixedBytes
from npids.lookup import Lookup

from pyterrier_graph.checks import is_unicode
from pyterrier_graph.storage.artifact import BuiltArtifact, read_meta

DOCNOS = "docnos.npids"
TEXTS, TEXT_OFFSETS = "texts", "text_offsets"
IDS_AT_ONCE = 65_536
COMPARED = 1 << 20  # ids that are compared at once

_DTYPES = {"node_type": "u1", TEXTS: "u1", "scores": "f4", "features": "f2"}
_DTYPES |= dict.fromkeys(("indices", "pairs", "edges"), "u4")


def blocks(count: int, at_once: int) -> Iterator[np.ndarray]:
    """The numbers below a count, ``at_once`` at a time."""
    for start in range(0, count, at_once):
        yield np.arange(start, min(start + at_once, count))


def array_file(folder: Path, name: str) -> Path:
    """The file that holds an array; its ending is the array's type."""
    return folder / f"{name}.{_DTYPES.get(name.rpartition('.')[2], 'i8')}"


def read_array(folder: Path, name: str) -> np.ndarray:
    """Memory-maps an array."""
    path = array_file(folder, name)
    dtype = np.dtype(f"<{path.suffix[1:]}")
    if not path.stat().st_size:  # an empty file cannot be mapped
        return np.empty(0, dtype=dtype)
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))


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


class TextWriter(ArrayFiles):
    """Writes texts one after the other in UTF-8, and where each ends."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder, self._end = folder, 0
        self.append(folder, TEXTS, np.empty(0))
        self.append(folder, TEXT_OFFSETS, np.zeros(1))

    def extend(self, texts: Sequence[str]) -> None:
        """Adds texts after those before."""
        encoded = [text.encode() for text in texts]
        ends = self._end + np.cumsum([len(text) for text in encoded], dtype=np.int64)
        self.append(self._folder, TEXTS, np.frombuffer(b"".join(encoded), np.uint8))
        self.append(self._folder, TEXT_OFFSETS, ends)
        self._end = int(ends[-1]) if len(ends) else self._end


class _PlainIds(FwdFixedBytes):
    """Stores ids as they are: npids 0.1.3 cannot compress passage ids, and may raise when others are looked up."""

    def seed(self, id: str) -> bool:
        self.prefix = b""
        return super().seed(id)


@contextmanager
def writing_ids(path: Path) -> Iterator[FwdLookupBuilder]:
    """Writes an ``npids.Lookup``: the context gives a builder, whose method ``add`` takes one id after the other."""
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
    """Numbers of ids, int64; -1 for unknown ids. Each id is looked up once."""
    place, names = pd.factorize(np.array(ids, dtype=object))
    if not len(names):
        return place.astype(np.int64)
    try:
        numbers = lookup.inv[names.tolist()]
    except UnicodeEncodeError:
        numbers = lookup.inv[[name if is_unicode(name) else "" for name in names]]
    return np.array(numbers, dtype=np.int64)[place]


def ids_of(lookup: Lookup, numbers: np.ndarray) -> list[str]:
    """Ids by number."""
    if not len(numbers):
        return []
    unique, place = np.unique(numbers, return_inverse=True)
    return lookup.fwd[unique].astype(object)[place].tolist()


def check_unique(ids_file: Path) -> None:
    """Raises ValueError if two passages have the same id."""
    with Lookup(ids_file) as lookup:
        for numbers in blocks(len(lookup), COMPARED):
            ids = ids_of(lookup, numbers)
            twice = np.flatnonzero(numbers_of(lookup, ids) != numbers)
            if len(twice):
                raise ValueError(
                    f"passage {ids[twice[0]]!r} comes twice: the ids of passages must be unique"
                )


def some(unknown: Sequence[Any], noun: str) -> str:
    """The number of unknown names, with up to three of them: ``"4 nodes ('a', 'b', 'c', ...)"``."""
    named = ", ".join(repr(identifier) for identifier in unknown[:3])
    return f"{len(unknown)} {noun}{'s' if len(unknown) > 1 else ''} ({named}{', ...' if len(unknown) > 3 else ''})"


# --- in worker processes, which open files again instead of receiving copies of them


def flex_index(index: Any) -> tuple[Any, ...]:
    """How to open a ``FlexIndex`` again, for pickle."""
    return (
        type(index),
        (str(index.index_path),),
        {name: vars(index)[name] for name in ("sim_fn", "verbose", "_meta")},
    )


class Flex:
    """A ``FlexIndex`` that is read without pyterrier_dr, whose import takes seconds."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.index_path = Path(path)

    def __repr__(self) -> str:
        return f"FlexIndex({str(self.index_path)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Flex, (self.index_path,)

    def payload(self, return_dvecs: bool = True, return_docnos: bool = True) -> list[Any]:
        """The docnos, the memory-mapped vectors, and the content of ``pt_meta.json``."""
        return [self._docnos] * return_docnos + [self._dvecs] * return_dvecs + [self._meta]

    @cached_property
    def flex(self) -> Any:
        """The ``FlexIndex`` itself."""
        from pyterrier_dr import FlexIndex

        copyreg.pickle(FlexIndex, flex_index)
        index = FlexIndex(str(self.index_path), verbose=False)
        index._meta = self._meta  # it refuses other types than its own
        return index

    @cached_property
    def _meta(self) -> dict[str, Any]:
        return read_meta(self.index_path)

    @cached_property
    def _dvecs(self) -> np.ndarray:
        shape = (self._meta["doc_count"], self._meta["vec_size"])
        return np.memmap(self.index_path / "vecs.f4", dtype="<f4", mode="r", shape=shape)

    @cached_property
    def _docnos(self) -> Lookup:
        return Lookup(self.index_path / DOCNOS)


copyreg.pickle(Lookup, lambda lookup: (Lookup, (lookup.path,)))


class StoredGraph(BuiltArtifact):
    """Base of graphs on disk, whose files are mapped when they are needed."""

    def __init__(self, path: str | os.PathLike[str], *, verbose: bool = True) -> None:
        super().__init__(path, verbose=verbose)
        self._arrays: dict[str, np.ndarray] = {}

    @cached_property
    def docnos(self) -> Lookup:
        """Docnos by number (``.fwd``) and back (``.inv``, -1 for unknown ones)."""
        return self._open(lambda folder: Lookup(folder / DOCNOS))

    def _array(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            self._arrays[name] = self._open(lambda folder: read_array(folder, name))
        return self._arrays[name]

    def _texts(self, numbers: np.ndarray) -> list[str]:
        """Stored texts by number, shape (n,)."""
        offsets, content = self._array(TEXT_OFFSETS), self._array(TEXTS)
        texts = pa.LargeStringArray.from_buffers(
            len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(content)
        )
        return texts.take(pa.array(numbers)).to_pylist()
