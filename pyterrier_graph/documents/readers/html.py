"""Reads HTML. Files of the other formats become HTML, too: all of them are read by the same :class:`Walk`."""

from __future__ import annotations

import json
from contextlib import suppress
from html import unescape
from typing import Any

from lxml import etree

from pyterrier_graph.documents.readers.files import decode
from pyterrier_graph.documents.readers.outline import Outline, ReaderError

ENDINGS = ("/index.html", ".html", ".htm")
# Attributes of elements that are made of other formats: the line, and marks as JSON, each a method and its arguments.
LINE, MARKS = "{pyterrier_graph}line", "{pyterrier_graph}marks"

_HEADINGS = {
    f"h{level}": level for level in range(1, 21)
}  # those of other formats may be deeper than h6
_BLOCKS = frozenset(
    "address article aside blockquote body caption center dd details dialog dir div dl dt fieldset figcaption figure "
    "footer form header hgroup hr html legend li main menu ol p pre search section summary table tbody tfoot thead tr "
    "ul".split()
)
_NO_TEXT = frozenset(
    "audio button canvas datalist head iframe input map meter noscript object option progress script select style svg "
    "template textarea title video".split()
)
_APART = frozenset(("nav", "aside"))
_OF_THE_PAGE = frozenset(("header", "footer"))  # unless they are parts of the main text
_ROLES_APART = frozenset(("navigation", "banner", "contentinfo", "complementary", "search"))
_CLASSES_APART = frozenset(  # of DocBook, Texinfo, Sphinx, and frameworks for web pages
    (
        "nav",
        "navbar",
        "navheader",
        "navfooter",
        "nav-panel",
        "sphinxsidebar",
        "breadcrumb",
        "breadcrumbs",
    )
)
_MAIN = ("//main | //*[@role='main']", "//article | //*[@role='article']")


def parse(data: bytes, outline: Outline) -> None:
    """Reads a page into an outline."""
    root = _page(decode(data))
    if root is None:
        return
    outline.title = " ".join((root.findtext(".//title") or "").split())
    outline.title_is_fallback = True
    for path in _MAIN:
        for element in _outermost(root.xpath(path)):
            Walk(outline, is_main=True).read(element)
        if outline.blocks:
            return
    Walk(outline).read(root)


def parse_html(text: str) -> Any:
    """The root element of a page, which need not be well-formed; None if there is no element."""
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


def parse_xml(data: bytes, encoding: str | None = None) -> Any:
    """The root element of XML. Nothing is loaded, and entities other than characters stay as they are."""
    try:
        parser = etree.XMLParser(
            resolve_entities=False,
            no_network=True,
            huge_tree=False,  # libxml2's limits: 10 MB per text, 256 levels
            load_dtd=False,
            encoding=encoding,
            remove_comments=True,
            remove_pis=True,
        )
        return etree.fromstring(data, parser)
    except (etree.XMLSyntaxError, ValueError, LookupError) as error:
        raise ReaderError(f"not well-formed XML: {error}") from error


def plain_text(element: Any) -> str:
    """All text of an element, with normalized white space; the text of an entity of a DTD is its name."""
    return " ".join("".join(map(unescape, element.itertext())).split())


def _page(text: str) -> Any:
    """The root element of HTML or XHTML, with names of HTML."""
    if text.lstrip("\ufeff \n").startswith(
        "<?xml"
    ):  # elements without content may be written as <a id="x"/>
        with suppress(ReaderError):
            root = parse_xml(text.encode("utf-8", "replace"), "utf-8")
            for element in root.iter("{*}*"):
                element.tag = etree.QName(element).localname
                for name in [name for name in element.attrib if name.startswith("{")]:
                    del element.attrib[name]
            return root
    return parse_html(text)


def _outermost(elements: list[Any]) -> list[Any]:
    """The elements that are not inside of another one of them."""
    found = set(elements)
    return [element for element in elements if found.isdisjoint(element.iterancestors())]


class Walk:
    """Adds the headings, blocks, anchors and links of a page to an outline.

    The addresses of links may lack one of the ``endings``. If ``is_main``, a header or a footer is one of the text,
    rather than of the page. Blocks inside of ``flat`` elements are part of their text, except rows of tables.
    """

    def __init__(
        self,
        outline: Outline,
        endings: tuple[str, ...] = ENDINGS,
        *,
        is_main: bool = False,
        flat: tuple[str, ...] = (),
    ) -> None:
        self.outline, self.endings, self.is_main = outline, endings, is_main
        self.flat = frozenset(("tr", "pre", "caption", *flat))
        self.open: list[tuple[Any, bool]] = [(None, False)]  # blocks: element, whether it is flat

    def read(self, root: Any) -> None:
        """Reads an element with all elements inside."""
        self.outline.begin(_line(root))
        walk = etree.iterwalk(root, events=("start", "end"))
        for event, element in walk:
            if event == "start" and element is not root and self._is_left_out(element):
                walk.skip_subtree()
            elif event == "start":
                self._start(element)
                # the text of an entity is its name: that of &alpha; becomes the character
                self.outline.add(
                    element.text if isinstance(element.tag, str) else unescape(element.text)
                )
            else:
                self._end(element)
                self.outline.add(element.tail if element is not root else "")
        self.outline.end()

    def _is_left_out(self, element: Any) -> bool:
        tag = element.tag
        if (
            tag in _NO_TEXT
            or tag in _APART
            or element.get("role") in _ROLES_APART
            or element.get("hidden") is not None
        ):
            return True
        if not _CLASSES_APART.isdisjoint((element.get("class") or "").split()):
            return True
        if (
            tag == "a" and element.get("href") is not None
        ):  # the sign of a heading that links to itself
            return (
                len(element) == 0
                and not any(map(str.isalnum, element.text or ""))
                and not element.get("id")
            )
        return tag in _OF_THE_PAGE and not self.is_main

    def _start(self, element: Any) -> None:
        tag, outline = element.tag, self.outline
        _, flat = self.open[-1]
        if tag in _HEADINGS:
            self.open.append((element, True))
            outline.begin(_line(element), _HEADINGS[tag])
        elif tag in _BLOCKS and flat and tag != "tr":
            outline.add(" ")
        elif tag in _BLOCKS:
            self.open.append((element, tag in self.flat))
            outline.begin(_line(element))
        elif tag in ("td", "th"):
            outline.add("" if not outline.text.words else " | ")
        elif tag == "br":
            outline.add(" ")
        elif tag == "img":
            outline.add(f" {element.get('alt') or ''} ")
        outline.anchor(element.get("id") or (element.get("name") if tag == "a" else None))
        if tag == "a":
            outline.follow(element.get("href"), self.endings)
        for method, *arguments in json.loads(element.get(MARKS) or "[]"):
            getattr(outline, method)(*arguments)

    def _end(self, element: Any) -> None:
        if self.open[-1][0] is element:
            self.open.pop()
            self.outline.begin(None)
        elif element.tag in _BLOCKS:
            self.outline.add(" ")


def _line(element: Any) -> int | None:
    return int(element.get(LINE) or 0) or element.sourceline
