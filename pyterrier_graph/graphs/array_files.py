"""Arrays on disk: files that grow, and artifacts that map such files into memory."""

from __future__ import annotations

import hashlib
import os
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from npids.lookup import Lookup

from pyterrier_graph.artifacts import BuiltArtifact

DOCNOS = "docnos.npids"

_DTYPES = {
    "node_type": "u1",
    "utf8": "u1",
    "indices": "u4",
    "pairs": "u4",
    "edges": "u4",
    "scores": "f4",
    "features": "f2",
}


def array_file(folder: Path, name: str) -> Path:
    """The file that holds an array; its ending is the array's type."""
    return folder / f"{name}.{_DTYPES.get(name.rpartition('.')[2], 'i8')}"


def read_array(folder: Path, name: str) -> np.ndarray:
    """Memory-maps an array."""
    path = array_file(folder, name)
    dtype = np.dtype(f"<{path.suffix[1:]}")
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


class StoredGraph(BuiltArtifact):
    """Base of graphs on disk. Nothing is read before it is needed.

    Args:
        path: Folder of the graph; it may not exist yet.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._arrays: dict[str, np.ndarray] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # Worker processes map the files again instead of receiving copies of them.
        return type(self), (self.path,)

    @cached_property
    def docnos(self) -> Lookup:
        """Docnos by number (``.fwd``) and back (``.inv``, -1 for unknown ones)."""
        return Lookup(self._folder / DOCNOS)

    @property
    def _folder(self) -> Path:
        """Where the files are, once they have been checked."""
        assert self.meta
        return self.path

    def _array(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            self._arrays[name] = read_array(self._folder, name)
        return self._arrays[name]
