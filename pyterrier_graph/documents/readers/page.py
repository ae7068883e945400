"""What every format is converted to: a page of HTML."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

LINE = "data-pyterrier-graph-line"  # attribute of a converted element: its line in the file


class Page(NamedTuple):
    """A file as HTML.

    Attributes:
        html: The content. Elements with the attribute ``LINE`` know their line in the file.
        title: Title of the document. Without one, the page's only top-level heading or ``<title>``.
        has_lines: Whether the lines of ``html`` are the lines of the file.
    """

    html: str
    title: str = ""
    has_lines: bool = False


def decode(data: bytes, declared: str = "") -> str:
    """Decodes a file: UTF-8, the declared encoding, or cp1252.

    Raises:
        ValueError: If the file contains NUL characters, so that it is not a text file.
    """
    text = data.decode("cp1252", "replace")
    for encoding in (declared, "utf-8-sig"):
        with suppress(LookupError, ValueError):
            text = data.decode(encoding)
    if "\0" in text:
        raise ValueError("not a text file: it contains NUL bytes")
    return text
