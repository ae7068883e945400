"""Reads plain text: paragraphs, which blank lines separate."""

from pyterrier_graph.documents.readers.files import decode
from pyterrier_graph.documents.readers.outline import Outline


def parse(data: bytes, outline: Outline) -> None:
    """Reads a text file into an outline."""
    blank = True
    for number, line in enumerate(decode(data).splitlines(keepends=True), 1):
        if blank and line.strip():
            outline.begin(number)
        blank = not line.strip()
        outline.add("" if blank else line)
    outline.end()
