"""The walk that reads a page of HTML, and HTML files."""

from __future__ import annotations

import re
from typing import Any

from lxml import etree

from pyterrier_graph.documents.readers.page import LINE, Page, decode
from pyterrier_graph.documents.readers.passages import ANCHOR, LINK, Block

_BLOCKS = frozenset(
    "address article aside blockquote body caption center dd details dialog dir div dl dt fieldset figcaption figure "
    "footer form header hgroup hr html legend li main menu ol p pre search section summary table tbody tfoot thead tr "
    "ul".split()
)
_FLAT = frozenset(("tr", "pre", "caption"))  # blocks inside are part of their text
_SPACED = frozenset(("br", "button", "img"))  # separated from the words around
_NOT_READ = frozenset(
    "annotation aside audio canvas datalist head iframe input map meter nav noscript object option progress rp rt "
    "script select style svg template textarea title video".split()
)
_ROLES_NOT_READ = frozenset(("navigation", "banner", "contentinfo", "complementary", "search"))
# Classes of DocBook, Texinfo, Sphinx and frameworks for web pages.
_CLASSES_NOT_READ = frozenset(
    "nav navbar navheader navfooter nav-panel sphinxsidebar breadcrumb breadcrumbs docinfo".split()
)
_MAIN = "//main | //*[@role='main']"
_ARTICLES = "//article[not(ancestor::article)]"
_HEADING = re.compile("h([1-6])")
_DECLARED = re.compile(
    rb"<(?:meta[^>]+charset|\?xml[^>]+encoding)\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE
)


def to_html(data: bytes, name: str) -> Page:
    """Reads an HTML file."""
    declared = _DECLARED.search(data[:1024])
    encoding = declared[1].decode() if declared else ""
    return Page(decode(data, encoding), has_lines=True)


def read_page(page: Page) -> tuple[Block, list[Block]]:
    """Returns the title and the other blocks of a page, or of its main text if the page marks it."""
    parser = etree.HTMLParser(
        encoding="utf-8", remove_comments=True, remove_pis=True, no_network=True, huge_tree=True
    )
    data = page.html.encode("utf-8", "replace")
    root = etree.fromstring(data, parser)
    if root is None:
        return Block(), []
    main = root.xpath(_MAIN)[:1] or root.xpath(_ARTICLES)
    walk = _Walk(page, is_main=bool(main))
    for element in main or [root]:
        walk.read(element)
    fallback = root.findtext(".//title") or ""
    return _split_title(page.title, fallback, walk.blocks)


def _split_title(title: str, fallback: str, blocks: list[Block]) -> tuple[Block, list[Block]]:
    """Returns the title and the other blocks. The only heading of the highest level is the title."""
    headings = [block for block in blocks if block.level]
    if headings:
        heading, *further = headings
        levels = [block.level for block in further]
        is_highest = heading.level < min(levels, default=10)
        if is_highest and title.casefold().strip() in ("", heading.title.casefold()):
            return heading, [block for block in blocks if block is not heading]
    declared = Block()
    declared.add(title or fallback, 1)
    return declared, blocks


class _Walk:
    """Collects the blocks of a page, with their anchors and links."""

    def __init__(self, page: Page, *, is_main: bool) -> None:
        self.has_lines = page.has_lines
        self.is_main = is_main  # so headers and footers belong to the text, not to the page
        self.line = 1
        self.blocks: list[Block] = [Block()]

    def read(self, element: Any, is_flat: bool = False) -> None:
        """Reads an element and all elements inside. Blocks in a flat element are part of its text."""
        tag = element.tag
        heading = _HEADING.fullmatch(tag)
        starts = heading or tag == "tr" or (tag in _BLOCKS and not is_flat)
        is_spaced = tag in _BLOCKS or tag in _SPACED
        if starts:
            self._begin(int(heading[1]) if heading else 0)
        elif is_spaced:
            self._add(" ")
        elif tag in ("td", "th") and self.blocks[-1].line:
            self._add(" | ")
        self._mark(element)
        text = element.get("alt") if tag == "img" else element.text
        self._add(text)
        is_flat = is_flat or bool(heading) or tag in _FLAT
        for child in element:
            if not self._is_left_out(child):
                self.read(child, is_flat)
            self._add(child.tail)
        if starts:
            self._begin()
        elif is_spaced:
            self._add(" ")

    def _begin(self, level: int = 0) -> None:
        """Begins a block. A block without text leaves its marks to it."""
        marks = []
        if not self.blocks[-1].line:
            marks = self.blocks.pop().marks
        self.blocks.append(Block(level, marks=marks))

    def _add(self, text: str | None) -> None:
        self.blocks[-1].add(text, self.line)

    def _mark(self, element: Any) -> None:
        """Keeps the line, the anchor and the link of an element."""
        line = element.sourceline if self.has_lines else self.line
        self.line = int(element.get(LINE, line))
        is_link = element.tag == "a"
        anchor = element.get("id") or (element.get("name") if is_link else None)
        address = element.get("href") if is_link else None
        if anchor:
            self.blocks[-1].mark(ANCHOR, anchor)
        if address is not None:
            self.blocks[-1].mark(LINK, address)

    def _is_left_out(self, element: Any) -> bool:
        """Returns whether an element is no text, navigation, hidden, or the sign of a link to its heading."""
        tag = element.tag
        if (
            tag in _NOT_READ
            or element.get("role") in _ROLES_NOT_READ
            or element.get("hidden") is not None
            or not _CLASSES_NOT_READ.isdisjoint(element.get("class", "").split())
        ):
            return True
        if tag in ("header", "footer"):
            return not self.is_main
        if tag == "a" and element.get("href") is not None and not element.get("id"):
            has_words = any(character.isalnum() for character in element.text or "")
            return len(element) == 0 and not has_words
        return False
