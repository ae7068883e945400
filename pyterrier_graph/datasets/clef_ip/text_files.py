"""Reads the small text files that come with the collection: topics, judgments, runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not text; the message names it.
    """
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text in UTF-8: {error}") from error


def read_lines(path: str | os.PathLike[str]) -> Iterator[tuple[str, str]]:
    """The lines that are not blank, each after its place, as messages name it.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not text; the message names it.
    """
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            yield f"{path}, line {number}", line
