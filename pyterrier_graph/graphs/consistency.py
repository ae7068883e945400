"""Whether stored arrays, texts and ids can be what they should be: checked before anything is indexed by them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from npids.lookup import Lookup

CHUNK = 1 << 18  # entries that are read at once; they fit into a processor's cache
# npids 0.1: a header with the type of a block, where the next one is (or -1), its number of ids, and a length of JSON
HEADER = struct.Struct("<IqqI")
MAGIC, FORWARD, INVERSE = 1145655374, 0, 1


class Bounds(NamedTuple):
    """What the entries of an array may be."""

    length: int | None = None  # entries; None: any number
    low: int = 0
    high: int | None = None  # the largest value; None: the values are floating point numbers, all finite
    rising: bool = False  # no entry is smaller than the one before
    distinct: bool = False  # all are larger than the one before
    offsets: bool = False  # rising from low to high
    tree: bool = False  # an entry is the number of the one above, or -1


def offsets_to(last: int, rows: int) -> Bounds:
    """The bounds of the offsets of some rows, and of the end of the last one."""
    return Bounds(rows + 1, 0, last, rising=True, offsets=True)


def count_of(meta: Mapping[str, Any], name: str) -> int:
    """A number of entries in ``pt_meta.json``; ValueError if it is none."""
    count = meta.get(name)
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise ValueError(f"pt_meta.json is damaged: {name!r} should be a number of entries, is {count!r}")
    return count


def check_array(file: Path, dtype: np.dtype, bounds: Bounds) -> None:
    """Reads a file of numbers, some at a time; raises ValueError unless they are within their bounds."""
    size = file.stat().st_size
    if size % dtype.itemsize or bounds.length not in (None, size // dtype.itemsize):
        needed = "whole entries" if bounds.length is None else f"{bounds.length:,} entries"
        raise ValueError(
            f"{str(file)!r} is damaged: {needed} of {dtype.itemsize} bytes are needed, it has {size:,} bytes"
        )
    number, before = 0, None
    later = []  # entries whose parent comes after them: only through these there can be a cycle
    with open(file, "rb") as data:
        for values in _chunks(data, dtype):
            wrong = _wrong(values, before, bounds)
            if wrong is not None:
                place, must = wrong
                raise ValueError(f"{str(file)!r} is damaged: entry {number + place:,} is {values[place]}, {must}")
            if bounds.tree:
                later.append(number + np.flatnonzero(values >= np.arange(number, number + len(values))))
            number, before = number + len(values), values[-1]
    if bounds.offsets and before != bounds.high:
        raise ValueError(f"{str(file)!r} is damaged: it ends with {before}, not with {bounds.high}")
    if number and _has_cycle(np.memmap(file, dtype, "r"), np.concatenate([*later, np.empty(0, np.int64)])):
        raise ValueError(f"{str(file)!r} is damaged: an entry is above itself")


def _has_cycle(parent: np.ndarray, numbers: np.ndarray) -> bool:
    """Whether the way up from some entries comes back: one that takes two steps at a time meets another (Floyd)."""
    slow = fast = numbers
    while len(slow):
        slow, fast = parent[slow], parent[fast]
        fast = np.where(fast < 0, -1, parent[fast])
        if (slow == fast).any():
            return True
        slow, fast = slow[fast >= 0], fast[fast >= 0]
    return False


def _chunks(data: BinaryIO, dtype: np.dtype) -> Iterator[np.ndarray]:
    while len(values := np.fromfile(data, dtype, CHUNK)):
        yield values


def _wrong(values: np.ndarray, before: Any, bounds: Bounds) -> tuple[int, str] | None:
    """The place of a value that is out of bounds, and what it must be."""
    if bounds.high is None:
        finite = np.isfinite(values)
        return None if finite.all() else (int(finite.argmin()), "and must be finite")
    if values.min() < bounds.low or values.max() > bounds.high:
        outside = (values < bounds.low) | (values > bounds.high)
        return int(outside.argmax()), f"and must be {bounds.low} to {bounds.high}"
    if bounds.offsets and before is None and values[0] != bounds.low:
        return 0, f"and must be {bounds.low}"
    if bounds.rising or bounds.distinct:
        compare = np.less_equal if bounds.distinct else np.less
        if before is not None and compare(values[0], before):
            return 0, f"after {before}"
        falls = compare(values[1:], values[:-1])
        if falls.any():
            place = int(falls.argmax()) + 1
            return place, f"after {values[place - 1]}"
    return None


def open_ids(file: Path, count: int) -> Lookup:
    """Opens a file of ids after :func:`check_ids`."""
    check_ids(file, count)
    return Lookup(file)


def check_ids(file: Path, count: int) -> None:
    """Raises ValueError unless a file of ids can be read safely, and has as many as there should be."""
    try:
        _check_ids(file, count)
    except (ValueError, struct.error, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{str(file)!r} is damaged: {error}") from error


def _check_ids(file: Path, count: int) -> None:
    size, found, start, inverse = file.stat().st_size, 0, 0, False
    with open(file, "rb") as data:
        while start >= 0:
            data.seek(start)
            kind, following, ids, length = HEADER.unpack(data.read(HEADER.size))
            end = size if following == -1 else following
            body = start + HEADER.size + length
            if not start < body <= end <= size or not 0 <= ids <= size or (start == 0) != (kind == MAGIC):
                raise ValueError(f"the header at byte {start} leads out of the file")
            config = json.loads(data.read(length))
            if kind == FORWARD:
                if config["format"] == "fixedbytes":
                    width = config["length"] - len(config["prefix"].encode())
                    if type(width) is not int or width < 1 or ids * width != end - body:
                        raise ValueError(f"{ids} ids of {width} bytes are not in {end - body} bytes")
                found += ids
            elif kind == INVERSE:
                inverse = True
                if ids != found:
                    raise ValueError(f"it has numbers of {ids} ids, and {found} ids")
                if config["format"] == "hash":
                    _check_hashes(data, config["hash_bits"], ids, end - body)
            elif kind != MAGIC:
                raise ValueError(f"blocks of type {kind} are unknown")
            start = following
    if found != count or not inverse:
        raise ValueError(f"it has {found} ids, {count} are needed")


def _check_hashes(data: BinaryIO, bits: Any, ids: int, size: int) -> None:
    """Checks the offsets of the hash table that leads from ids to numbers, and the numbers."""
    buckets = (1 << bits) + 1 if type(bits) is int and 0 <= bits <= 32 else -1
    if 4 * (buckets + ids) != size:
        raise ValueError(f"a hash table of {bits} bits is not in {size} bytes")
    offsets, numbers = np.fromfile(data, "<u4", buckets), np.fromfile(data, "<u4", ids)
    if offsets[0] != 0 or offsets[-1] != ids or (offsets[1:] < offsets[:-1]).any() or (numbers >= max(ids, 1)).any():
        raise ValueError("the hash table of its ids leads to numbers that are not there")
