"""Reads HTML as a browser does, for tests of what notebooks show."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

HOSTILE = "<script>alert('x & \"y\"')</script></svg>"
NO_END = {"br", "hr", "img", "meta", "link", "input"}


class Reader(HTMLParser):
    """Collects what a browser would make of a value, and complains where tags do not match."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.cells: list[str] = []
        self.text = ""
        self.feed(html)
        assert not self.open, f"{self.open} stay open"

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)
        self.attributes += attrs
        self.open += [tag] * (tag not in NO_END)
        if tag in ("th", "td"):
            self.cells.append("")

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if {"th", "td"}.intersection(self.open):
            self.cells[-1] += data

    @property
    def table(self) -> dict[str, str]:
        return dict(zip(self.cells[::2], self.cells[1::2], strict=True))
