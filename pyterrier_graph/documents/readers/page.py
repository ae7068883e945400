"""What every format is converted to: a page of HTML."""

from __future__ import annotations

from contextlib import suppress
from typing import Literal, NamedTuple

LINE = "data-pyterrier-graph-line"  # attribute of a converted element: its line in the file


class ReaderError(ValueError):
    """A file that cannot be read; the message is the reason."""


class Page(NamedTuple):
    """A file as HTML.

    Attributes:
        html: The content. Elements with the attribute ``LINE`` know their line in the file.
        title: Title of the document. Without one, the page's only top-level heading or ``<title>``.
        lines: Where the lines of the file are known from: they are the lines of ``html``, attributes, or unknown.
    """

    html: str
    title: str = ""
    lines: Literal["html", "attributes", "unknown"] = "unknown"


def decode(data: bytes, declared: str = "") -> str:
    """Decodes a file: UTF-8, the declared encoding, or cp1252, as browsers do.

    Raises:
        ReaderError: If the file has NUL characters, so it is not a text file.
    """
    if declared.lower() in ("iso-8859-1", "latin1"):
        declared = "cp1252"
    text = data.decode("cp1252", "replace")
    for encoding in (declared, "utf-8-sig"):
        with suppress(LookupError, ValueError):
            text = data.decode(encoding)
    if "\0" in text:
        raise ReaderError("not a text: it contains NUL bytes")
    return text
