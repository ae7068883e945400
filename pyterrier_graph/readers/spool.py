"""Keeps drafts and names in a temporary database until all files are read, so that references find their targets."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing


class Spool(ExitStack):
    """Drafts in their order, and ids by name. SQLite has them on disk, and removes them at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._database = self.enter_context(closing(sqlite3.connect("")))  # "": a temporary file
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("CREATE TABLE drafts (body TEXT)")
        self._database.execute("CREATE TABLE names (name TEXT PRIMARY KEY, id TEXT) WITHOUT ROWID")

    def add(self, body: str, names: Mapping[str, str]) -> int:
        """Adds a draft and its names; returns how many of the names another document had before."""
        self._database.execute("INSERT INTO drafts VALUES (?)", (body,))
        before = self._database.total_changes
        self._database.executemany("INSERT OR IGNORE INTO names VALUES (?, ?)", names.items())
        return len(names) - (self._database.total_changes - before)

    def drafts(self) -> Iterator[str]:
        """The drafts, in the order in which they were added."""
        yield from (body for (body,) in self._database.execute("SELECT body FROM drafts ORDER BY rowid"))

    def find(self, names: Iterable[str]) -> tuple[int, str] | None:
        """Position and id of the first name that a document has."""
        for position, name in enumerate(names):
            for (found,) in self._database.execute("SELECT id FROM names WHERE name = ?", (name,)):
                return position, found
        return None
