"""Reads plain text: paragraphs, which blank lines separate."""

from html import escape
from itertools import groupby

from pyterrier_graph.documents.readers.page import LINE, Page, decode


def to_html(data: bytes, name: str) -> Page:
    """Converts a text file."""
    html = ""
    lines = enumerate(decode(data).splitlines(), 1)
    for has_text, group in groupby(lines, key=lambda line: bool(line[1].strip())):
        numbers, texts = zip(*group, strict=True)
        if has_text:
            text = escape("\n".join(texts))
            html += f'<p {LINE}="{numbers[0]}">{text}</p>'
    return Page(html, lines="attributes")
