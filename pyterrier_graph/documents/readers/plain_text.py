"""Reads plain text: paragraphs, which blank lines separate."""

import re
from html import escape

from pyterrier_graph.documents.readers.page import Page, decode

BLANK_LINE = re.compile(r"^[^\S\n]*$", re.MULTILINE)


def to_html(data: bytes, name: str) -> Page:
    """Converts a text file. A paragraph begins at each blank line, so the lines stay."""
    text = escape(decode(data))
    html = BLANK_LINE.sub("<p>", text)
    return Page(html, has_lines=True)
