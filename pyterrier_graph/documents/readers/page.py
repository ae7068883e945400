"""What every format is converted to: a page of HTML."""

from __future__ import annotations

import codecs
from contextlib import suppress
from typing import Literal, NamedTuple

MAX_BYTES = 50_000_000  # of a file
LINE = "data-pyterrier-graph-line"  # attribute of a converted element: its line in the file
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_LATIN = frozenset(("iso-8859-1", "iso8859-1", "latin-1", "latin1", "ascii", "us-ascii"))


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
    """Decodes a file: its byte order mark, UTF-8, the declared encoding, or cp1252, as browsers do.

    Raises:
        ReaderError: If the file has NUL characters, so it is not a text file.
    """
    marked = next((name for mark, name in _BYTE_ORDER_MARKS.items() if data.startswith(mark)), "")
    declared = "cp1252" if declared.lower() in _LATIN else declared
    for encoding in (marked or "utf-8", declared):
        with suppress(LookupError, ValueError):
            text = data.decode(encoding)
            break
    else:
        text = data.decode("cp1252", "replace")
    if "\0" in text:
        raise ReaderError("not a text: it contains NUL bytes")
    return text
