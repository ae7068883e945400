"""Indexes of pyterrier_dr, read without importing it."""

import os
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from npids.lookup import Lookup

from pyterrier_graph.storage.arrays import DOCNOS
from pyterrier_graph.storage.artifact import read_meta


class Flex:
    """A ``FlexIndex`` that is read without pyterrier_dr, whose import takes seconds."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.index_path = Path(path)

    def __repr__(self) -> str:
        return f"FlexIndex({str(self.index_path)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Flex, (self.index_path,)  # worker processes map the files again

    def payload(self, return_dvecs: bool = True, return_docnos: bool = True) -> list[Any]:
        """The docnos, the memory-mapped vectors, and the content of ``pt_meta.json``."""
        content: list[Any] = []
        if return_docnos:
            content.append(self._docnos)
        if return_dvecs:
            content.append(self._dvecs)
        return [*content, self._meta]

    @cached_property
    def flex(self) -> Any:
        """The ``FlexIndex`` itself."""
        from pyterrier_dr import FlexIndex

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
