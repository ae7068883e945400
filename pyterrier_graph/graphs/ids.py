"""Ids on disk, by number and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
