"""Ids on disk, by number and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
from npids.builder import FwdLookupBuilder
from npids.codecs import FwdFixedBytes
from npids.lookup import Lookup


class _PlainIds(FwdFixedBytes):
    """Stores ids as they are.

    npids 0.1.3 picks the shortest form. Its forms for numbered ids fail where there is a '%' before the number, as in
    every passage id, and looking up an id that does not look like the stored ones may raise.
    """

    def seed(self, id: str) -> bool:
        self.prefix = b""
        return super().seed(id)


@contextmanager
def writing_ids(path: Path) -> Iterator[FwdLookupBuilder]:
    """Writes an ``npids.Lookup``; ids are given to ``add`` of what this hands out."""
    with Lookup.builder(path) as builder:
        builder.formats = {FwdFixedBytes.NAME: _PlainIds()}
        builder.seeded_formats = dict(builder.formats)
        yield builder


def numbers_of(lookup: Lookup, ids: Sequence[str]) -> np.ndarray:
    """Numbers of ids, int64; -1 for those that are not there. Each id is looked up once."""
    place, names = pd.factorize(np.array(ids, dtype=object))
    return np.array(lookup.inv[names.tolist()], dtype=np.int64)[place] if len(names) else place.astype(np.int64)


def ids_of(lookup: Lookup, numbers: np.ndarray) -> list[str]:
    """Ids by number."""
    if not len(numbers):
        return []
    unique, place = np.unique(numbers, return_inverse=True)
    return lookup.fwd[unique].astype(object)[place].tolist()
