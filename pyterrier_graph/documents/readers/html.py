"""The walk that reads a page of HTML, and HTML files."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from lxml import etree

from pyterrier_graph.documents.readers.page import LINE, Page, ReaderError, decode
from pyterrier_graph.documents.readers.passages import ANCHOR, LINK, MAX_HEADING, Block, Mark

_BLOCKS = frozenset(
    "address article aside blockquote body caption center dd details dialog dir div dl dt fieldset figcaption figure "
    "footer form header hgroup hr html legend li main menu ol p pre search section summary table tbody tfoot thead tr "
    "ul".split()
)
_FLAT = frozenset(("tr", "pre", "caption"))  # blocks inside are part of their text
_APART = frozenset(("br", "button", "img"))  # separated from the words around
_NOT_READ = frozenset(
    "annotation aside audio canvas datalist head iframe input map meter nav noscript object option progress rp rt "
    "script select style svg template textarea title video".split()
)
# Roles, and classes of DocBook, Texinfo, Sphinx and frameworks for web pages.
_ROLES_NOT_READ = frozenset(("navigation", "banner", "contentinfo", "complementary", "search"))
_CLASSES_NOT_READ = frozenset(
    "nav navbar navheader navfooter nav-panel sphinxsidebar breadcrumb breadcrumbs docinfo".split()
)
_MAIN = ("//main | //*[@role='main']", "//article | //*[@role='article']")
_HEADING = re.compile("h([1-6])")
_DECLARED = re.compile(
    rb"<(?:meta[^>]+charset|\?xml[^>]+encoding)\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE
)
_AFTER_BODY = re.compile(r"</(?:body|html)\s*>", re.IGNORECASE)  # text may follow


def to_html(data: bytes, name: str) -> Page:
    """Reads an HTML file."""
    declared = _DECLARED.search(data[:1024])
    text = decode(data, declared[1].decode("ascii") if declared else "")
    return Page(_AFTER_BODY.sub("", text), lines="html")


def parse_html(text: str) -> Any:
    """Returns the root element of a page, which need not be well-formed, or None for an empty page."""
    parser = etree.HTMLParser(
        encoding="utf-8", remove_comments=True, remove_pis=True, no_network=True, huge_tree=True
    )
    try:
        root = etree.fromstring(text.encode("utf-8", "replace"), parser)
    except etree.XMLSyntaxError as error:
        raise ReaderError(f"not HTML: {error}") from error
    if any(entry.type_name == "ERR_RESOURCE_LIMIT" for entry in parser.error_log):
        raise ReaderError("elements are nested too deeply")
    return root


def parse_xml(data: bytes) -> Any:
    """Returns the root element of XML. Nothing is loaded, and entities other than characters stay as they are."""
    try:
        parser = etree.XMLParser(
            resolve_entities=False,
            no_network=True,
            huge_tree=False,  # libxml2's limits: 10 MB per text, 256 levels
            load_dtd=False,
            remove_comments=True,
            remove_pis=True,
        )
        return etree.fromstring(data, parser)
    except (etree.XMLSyntaxError, ValueError, LookupError) as error:
        raise ReaderError(f"not well-formed XML: {error}") from error


def plain_text(element: Any) -> str:
    """Returns all text of an element with normalized white space. Entities of a DTD are read as their names."""
    return " ".join("".join(map(unescape, element.itertext())).split())


def read_page(page: Page) -> tuple[Block, list[Block]]:
    """Returns the title and the other blocks of a page, or of its main text if the page marks it."""
    root = parse_html(page.html)
    if root is None:
        return Block(), []
    for path in _MAIN:
        walk = _Walk(page, root, is_main=True)
        elements = {*root.xpath(path)}
        for element in root.xpath(path):
            if elements.isdisjoint(element.iterancestors()):
                walk.read(element)
        if any(block.line for block in walk.blocks):
            break
    else:
        walk = _Walk(page, root, is_main=False)
        walk.read(root)
    return _split_title(page.title, root.findtext(".//title") or "", walk.blocks)


def _split_title(title: str, fallback: str, blocks: list[Block]) -> tuple[Block, list[Block]]:
    """Returns the title and the other blocks. The only heading of the highest level is the title."""
    levels = [block.level for block in blocks if block.level]
    heading = next((block for block in blocks if block.level), Block())
    is_title = levels and min(levels[1:], default=10) > levels[0]
    if is_title and title.casefold().strip() in ("", heading.title.casefold()):
        return heading, [block for block in blocks if block is not heading]
    declared = Block()
    declared.add(title or fallback, 1)
    return declared, blocks


class _Walk:
    """Collects the blocks of a page, with their anchors and links.

    Attributes:
        blocks: The blocks. The last one may have no text: its marks are at the end of the page.
    """

    def __init__(self, page: Page, root: Any, *, is_main: bool) -> None:
        self.lines = page.lines
        self.is_main = is_main  # so headers and footers are those of the text, not of the page
        self.shown_by_click = {*root.xpath("//@aria-controls")}
        self.line = 1
        self.blocks: list[Block] = [Block()]

    def read(self, element: Any, is_flat: bool = False) -> None:
        """Reads an element and all elements inside. Blocks in a flat element are part of its text."""
        tag, level = element.tag, _level(element)
        starts = level > 0 or tag == "tr" or (tag in _BLOCKS and not is_flat)
        is_apart = tag in _BLOCKS or tag in _APART or "-" in tag  # a custom element
        if starts:
            self._begin(level)
        elif is_apart:
            self._add(" ")
        elif tag in ("td", "th") and self.blocks[-1].line:
            self._add(" | ")
        self._mark(element)
        self._add(element.get("alt") if tag == "img" else element.text)
        is_flat = is_flat or level > 0 or tag in _FLAT
        for child in element:
            if not self._is_left_out(child):
                self.read(child, is_flat)
            self._add(child.tail)
        if starts:
            self._begin()
        elif is_apart:
            self._add(" ")

    def _begin(self, level: int = 0) -> None:
        """Begins a block. A block without text leaves its marks to it."""
        last = self.blocks[-1]
        marks = [] if last.line else self.blocks.pop().marks
        if last.level and len(last.text.split()) > MAX_HEADING:
            last.level = 0
        self.blocks.append(Block(level, marks=marks))

    def _add(self, text: str | None) -> None:
        self.blocks[-1].add(text, self.line)

    def _mark(self, element: Any) -> None:
        """Keeps the line, the anchor and the link of an element."""
        line = element.sourceline if self.lines == "html" else element.get(LINE)
        if re.fullmatch(r"[1-9]\d{0,7}", f"{line}"):
            self.line = int(line)
        is_link = element.tag == "a"
        anchor = element.get("id") or (element.get("name") if is_link else None)
        address = element.get("href") if is_link else None
        block = self.blocks[-1]
        if anchor:
            block.marks.append(Mark(ANCHOR, anchor, block.length))
        if address is not None:
            block.marks.append(Mark(LINK, address, block.length))

    def _is_left_out(self, element: Any) -> bool:
        """Returns whether an element is no text, navigation, hidden for good, or the sign of a link to its heading."""
        tag, role, classes = element.tag, element.get("role"), element.get("class") or ""
        hidden = element.get("hidden")
        if (
            tag in _NOT_READ
            or role in _ROLES_NOT_READ
            or not _CLASSES_NOT_READ.isdisjoint(classes.split())
            or (tag in ("header", "footer") and not self.is_main)
        ):
            return True
        if hidden not in (None, "until-found") and element.get("id") not in self.shown_by_click:
            return True
        if tag == "a" and element.get("href") is not None and not element.get("id"):
            return len(element) == 0 and not any(map(str.isalnum, element.text or ""))
        return False


def _level(element: Any) -> int:
    """Returns the level of a heading, or 0 for other elements."""
    if match := _HEADING.fullmatch(element.tag):
        return int(match[1])
    if element.get("role") != "heading":
        return 0
    level = element.get("aria-level") or "2"
    return int(level) if re.fullmatch("[1-9]", level) else 2
