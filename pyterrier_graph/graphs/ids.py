"""Ids on disk by number, numbers by id, and the parts of the ids of nodes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from npids.builder import FwdLookupBuilder
from npids.codecs import FwdFixedBytes
from npids.lookup import Lookup

from pyterrier_graph.documents import PASSAGE_SEPARATOR, SECTION_SEPARATOR, is_number

NO_NUMBER = -1


class _PlainIds(FwdFixedBytes):
    """Stores ids as they are.

    The forms of npids 0.1.3 for numbered ids fail where there is a '%' before the number, as in every passage id, and
    looking up an id that does not look like the stored ones may raise.
    """

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


def numbers_of(lookup: Lookup, ids: Sequence[str]) -> np.ndarray:
    """Numbers of ids, int64; -1 for unknown ids. Each id is looked up once."""
    place, names = pd.factorize(np.array(ids, dtype=object))
    return np.array(lookup.inv[names.tolist()], dtype=np.int64)[place] if len(names) else place.astype(np.int64)


def all_numbers_of(lookup: Lookup, ids: Sequence[str], noun: str) -> np.ndarray:
    """Numbers of ids, int64; raises KeyError, which names up to three, if some are unknown."""
    ids = list(ids)
    numbers = numbers_of(lookup, [identifier if isinstance(identifier, str) else "" for identifier in ids])
    if (numbers < 0).any():
        raise KeyError(f"{some([ids[row] for row in np.flatnonzero(numbers < 0)], noun)} not in the graph")
    return numbers


def ids_of(lookup: Lookup, numbers: np.ndarray) -> list[str]:
    """Ids by number."""
    if not len(numbers):
        return []
    unique, place = np.unique(numbers, return_inverse=True)
    return lookup.fwd[unique].astype(object)[place].tolist()


def parse_id(identifier: Any) -> tuple[str, int, bool]:
    """Docno (``''`` for what is no text), number (-1: there is none), and whether this is the id of a section."""
    if not isinstance(identifier, str):
        return "", NO_NUMBER, False
    for separator in (PASSAGE_SEPARATOR, SECTION_SEPARATOR):
        docno, found, number = identifier.rpartition(separator)
        if found and is_number(number):
            return docno, int(number), separator == SECTION_SEPARATOR
    return identifier, NO_NUMBER, False


def some(unknown: Sequence[Any], noun: str) -> str:
    """How many of something there are, with up to three of them: ``"4 nodes ('a', 'b', 'c', ...)"``."""
    named = ", ".join(repr(identifier) for identifier in unknown[:3])
    return f"{len(unknown)} {noun}{'s' if len(unknown) > 1 else ''} ({named}{', ...' if len(unknown) > 3 else ''})"
