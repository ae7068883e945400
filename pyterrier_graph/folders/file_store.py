"""What was read of the files of a folder, in a database, so that only changed files are read again."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyterrier as pt

from pyterrier_graph import __version__
from pyterrier_graph.folders.reading import OPTIONS, Reading, lost, read_if_changed
from pyterrier_graph.readers.parallel import in_order
from pyterrier_graph.readers.reading import Result
from pyterrier_graph.readers.walking import Found

FORMAT = 1
AT_ONCE = 64  # files; so many are read again, at most, after a call that was killed
READER = f"{FORMAT} {__version__} {OPTIONS}"  # what was read by others is read again
TABLES = """
CREATE TABLE IF NOT EXISTS files (
    path BLOB PRIMARY KEY, size INTEGER, time INTEGER, digest BLOB, reader TEXT, result TEXT
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS folder (place TEXT);
"""


@dataclass(frozen=True)
class Changes:
    """What a call found.

    Attributes:
        read: Number of files that were read, since they are new or have changed.
        removed: Number of files that are no longer there.
        digest: A digest of the names and contents of all files.
    """

    read: int
    removed: int
    digest: str


class FileStore(ExitStack):
    """What was read of each file, with its size, time and digest. A call that was killed continues when it is repeated.

    Args:
        file: The database; it is made anew if it is damaged.
    """

    def __init__(self, file: Path) -> None:
        super().__init__()
        try:
            self._open(file)
        except sqlite3.DatabaseError:
            self.close()
            file.unlink()
            self._open(file)

    def _open(self, file: Path) -> None:
        self._database = self.enter_context(closing(sqlite3.connect(file)))
        self._database.executescript(TABLES)
        (state,) = self._database.execute("PRAGMA quick_check(1)").fetchone()
        if state != "ok":
            raise sqlite3.DatabaseError(state)

    def update(self, found: Found, *, workers: int | None = None, verbose: bool = True) -> Changes:
        """Reads files whose size or time is not that of before, and whose content is not, either."""
        with self._database:
            place = str(found.root.absolute())
            if self._database.execute("SELECT place FROM folder").fetchall() != [(place,)]:
                self._database.execute("DELETE FROM folder")
                self._database.execute("INSERT INTO folder VALUES (?)", (place,))
                self._database.execute("UPDATE files SET time = -1")  # the folder was moved: contents are compared
        known = {
            path: (size, time, digest if reader == READER else b"")
            for path, size, time, digest, reader in self._database.execute(
                "SELECT path, size, time, digest, reader FROM files"
            )
        }
        changed = []
        for path in found.paths:
            size, time, digest = known.pop(os.fsencode(path), (-1, -1, b""))
            with suppress(OSError):
                state = (found.root / path).stat()
                if digest and time >= 0 and (state.st_size, state.st_mtime_ns) == (size, time):
                    continue
            changed.append((path, digest))
        with self._database:
            self._database.executemany("DELETE FROM files WHERE path = ?", [(path,) for path in known])
        readings = in_order(partial(read_if_changed, found.root), changed, workers, partial(lost, found.root))
        progress = pt.tqdm(readings, "reading files", len(changed), unit="file", delay=1, disable=not verbose)
        read = 0
        for number, reading in enumerate(progress, 1):
            read += reading.result is not None
            self._put(reading)
            if number % AT_ONCE == 0:
                self._database.commit()
        self._database.commit()
        return Changes(read, len(known), self._digest())

    def results(self) -> Iterator[Result]:
        """What was read, in the order of the paths."""
        for (result,) in self._database.execute("SELECT result FROM files ORDER BY path"):
            yield Result(**json.loads(result))

    def _put(self, reading: Reading) -> None:
        state = (reading.size, reading.time, reading.digest)
        path = os.fsencode(reading.path)
        if reading.result is None:
            self._database.execute("UPDATE files SET size = ?, time = ?, digest = ? WHERE path = ?", (*state, path))
        else:
            row = (path, *state, READER, json.dumps(vars(reading.result)))
            self._database.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", row)

    def _digest(self) -> str:
        digest = hashlib.sha256(READER.encode())
        for path, content in self._database.execute("SELECT path, digest FROM files ORDER BY path"):
            digest.update(len(path).to_bytes(4, "big") + path + content)
        return digest.hexdigest()
