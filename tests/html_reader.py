"""Reads HTML for tests of what notebooks show."""

from __future__ import annotations

import lxml.html

HOSTILE = "<script>alert('x & \"y\"')</script></svg>"


class Reader:
    """The names of elements, the text, and the table of a piece of HTML."""

    def __init__(self, html: str) -> None:
        root = lxml.html.fragment_fromstring(html, create_parent=True)
        cells = [cell.text_content() for cell in root.iter("th", "td")]
        self.seen = [element.tag for element in root.iter()]
        self.text = root.text_content()
        self.table = dict(zip(cells[::2], cells[1::2], strict=False))
