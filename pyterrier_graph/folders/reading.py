"""Reads a file of a folder, unless the file is the one that was read before."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from pyterrier_graph.readers import html, jats, markdown, plain_text, rst
from pyterrier_graph.readers.options import Parse, ReaderOptions
from pyterrier_graph.readers.reading import Result, read_file
from pyterrier_graph.readers.walking import Found, find

READERS = (markdown, html, rst, jats, plain_text)
PARSERS: dict[str, Parse] = {suffix: reader.parse for reader in READERS for suffix in reader.SUFFIXES}
OPTIONS = ReaderOptions(min_words=30, max_words=120, skip=(), encoding=None, max_bytes=50_000_000, seconds=60)
SETTLED = 2 * 10**9  # nanoseconds; a file that was changed less long ago may change again within the same time stamp


@dataclass
class Reading:
    """A file as it was found, and what was read of it.

    Attributes:
        path: Its path in the folder.
        size: Its size in bytes.
        time: When it was changed, in nanoseconds; -1 if size and time do not tell whether it changes.
        digest: SHA-256 of its content. It is random if the file changed while it was read.
        result: What was read; None if the digest is that of before.
    """

    path: str
    size: int
    time: int
    digest: bytes
    result: Result | None


def find_files(folder: Path) -> Found:
    """Finds the files that can be read.

    Raises:
        FileNotFoundError: If there is no such folder.
        NotADirectoryError: If it is a file.
        ValueError: If it has no such files.
    """
    if not folder.exists():
        raise FileNotFoundError(f"there is no folder {str(folder)!r}")
    if not folder.is_dir():
        raise NotADirectoryError(f"{str(folder)!r} is a file: give the folder that it is in")
    found = find(folder, (*PARSERS,))
    if not found.paths:
        reason = f" ({'; '.join(found.broken.values())})" if found.broken else ""
        raise ValueError(f"{str(folder)!r} has no files whose names end in {', '.join(PARSERS)}{reason}")
    return found


def read_if_changed(root: Path, item: tuple[str, bytes]) -> Reading:
    """Reads a file unless its content has this digest; no error of a file leaves this function."""
    path, digest_before = item
    file = root / path
    try:
        before = file.stat()
        digest = _digest(file, before.st_size)
        same = digest == digest_before
        result = None if same else read_file(PARSERS[file.suffix.lower()], root, OPTIONS, path)
        after = file.stat()
    except OSError as error:
        return lost(root, item, error.strerror or str(error))
    stable = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
    settled = stable and time.time_ns() - after.st_mtime_ns > SETTLED
    if not stable:
        digest = os.urandom(32)
    return Reading(path, after.st_size, after.st_mtime_ns if settled else -1, digest, result)


def lost(root: Path, item: tuple[str, bytes], reason: str = "its process died") -> Reading:
    """What stands for a file that could not be read."""
    path, digest_before = item
    digest = hashlib.sha256(reason.encode()).digest()
    result = None if digest == digest_before else Result(os.fsencode(path).decode("utf-8", "replace"), reason)
    return Reading(path, -1, -1, digest, result)


def _digest(file: Path, size: int) -> bytes:
    if size > OPTIONS.max_bytes:  # it is not read
        return hashlib.sha256(f"{size} bytes".encode()).digest()
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()
