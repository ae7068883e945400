"""Reads plain text: paragraphs, which blank lines separate."""

import re
from html import escape

from pyterrier_graph.documents.readers.page import LINE, Page, decode

PARAGRAPH = re.compile(r"(?:.*\S.*(?:\n|\Z))+")  # lines that are not blank


def to_html(data: bytes, name: str) -> Page:
    """Converts a text file."""
    text = "\n".join(decode(data).splitlines())
    html = ""
    for paragraph in PARAGRAPH.finditer(text):
        line = text.count("\n", 0, paragraph.start()) + 1
        html += f'<p {LINE}="{line}">{escape(paragraph[0])}</p>'
    return Page(html, lines="attributes")
