"""Reads plain text: paragraphs, which blank lines separate."""

from pyterrier_graph.readers.encodings import decode
from pyterrier_graph.readers.outline import Outline

SUFFIXES = (".txt", ".text")


def parse(data: bytes, outline: Outline, encoding: str | None = None) -> None:
    """Reads a text file into an outline."""
    text, outline.counts["files with bytes of another encoding"] = decode(data, encoding)
    blank = True
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if blank and line.strip():
            outline.begin("text", number)
        blank = not line.strip()
        outline.add("" if blank else line)
    outline.end()
