"""Reads HTML."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Any

from lxml import etree

from pyterrier_graph.readers.encodings import decode
from pyterrier_graph.readers.errors import ReaderError
from pyterrier_graph.readers.links import follow
from pyterrier_graph.readers.options import ReaderOptions
from pyterrier_graph.readers.outline import Outline
from pyterrier_graph.readers.source import DocumentFiles, Files
from pyterrier_graph.readers.xml import ElementWalk, parse_xml

SUFFIXES = (".html", ".htm", ".xhtml")
ENDINGS = ("/index.html", ".html", ".htm")

_KINDS = {
    "pre": "code",
    "li": "list",
    "dt": "list",
    "dd": "list",
    "tr": "table",
    "blockquote": "quote",
    "figcaption": "caption",
    "caption": "caption",
}
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_BLOCKS = frozenset(
    "address article aside blockquote body caption center dd details dialog dir div dl dt fieldset figcaption figure "
    "footer form header hgroup hr html legend li main menu ol p pre search section summary table tbody tfoot thead tr "
    "ul".split()
)
_FLAT = frozenset(("tr", "pre", "caption", *_HEADINGS))  # blocks in them do not stand alone
_NO_TEXT = frozenset(
    "audio button canvas datalist head iframe input map meter noscript object option progress script select style svg "
    "template textarea title video".split()
)
_APART = frozenset(("nav", "aside"))
_OF_THE_PAGE = frozenset(("header", "footer"))  # unless they are parts of the main text
_ROLES_APART = frozenset(("navigation", "banner", "contentinfo", "complementary", "search"))
_CLASSES_APART = frozenset(  # of DocBook, Texinfo, Sphinx, and frameworks for web pages
    ("nav", "navbar", "navheader", "navfooter", "nav-panel", "sphinxsidebar", "breadcrumb", "breadcrumbs")
)
_MAIN = ("//main | //*[@role='main']", "//article | //*[@role='article']")


def read_html(
    files: Files,
    *,
    min_words: int = 30,
    max_words: int = 120,
    skip: Collection[str] = (),
    suffixes: Collection[str] = SUFFIXES,
    encoding: str | None = None,
    max_bytes: int = 50_000_000,
    seconds: float = 60,
    workers: int | None = None,
    strict: bool = False,
    verbose: bool = True,
) -> DocumentFiles:
    """Reads files of HTML.

    The title is that of the only heading of the highest level, or the page's ``<title>``. Where a page marks its main
    text (``<main>``, ``role="main"``, ``<article>``), other text is left out; so are navigation, asides, and the header
    and footer of the page. Cells of a row of a table are separated by ``|``. The encoding is the one that the page
    declares. Keywords of ``<meta>`` are codes.

    All arguments are those of :func:`~pyterrier_graph.read_markdown`.
    """
    options = ReaderOptions(min_words, max_words, skip, encoding, max_bytes, seconds)
    return DocumentFiles(files, parse, suffixes, options, workers=workers, strict=strict, verbose=verbose)


def parse(data: bytes, outline: Outline, encoding: str | None = None) -> None:
    """Reads a page into an outline."""
    from bs4.dammit import EncodingDetector

    declared = EncodingDetector.find_declared_encoding(data, is_html=True)
    text, outline.counts["files with bytes of another encoding"] = decode(data, encoding, declared)
    root = _tree(text)
    if root is None:
        return
    outline.title = " ".join((root.findtext(".//title") or "").split())
    outline.title_is_fallback = True
    for meta in root.iter("meta"):
        name, content = (meta.get("name") or "").lower(), meta.get("content") or ""
        if name == "keywords":
            outline.code(content)
        elif name in ("author", "date", "description"):
            outline.attributes[name] = content
    for path in _MAIN:
        for element in _outermost(root.xpath(path)):
            _Walk(outline, is_main=True).read(element)
        if outline.blocks:
            return
    _Walk(outline).read(root)


def parse_fragment(text: str, outline: Outline, line: int = 1) -> None:
    """Reads a piece of HTML that stands in another text, from this line on."""
    root = _tree(text)
    if root is not None:
        _Walk(outline, first_line=line, is_main=True).read(root)


def parse_tag(text: str, outline: Outline) -> None:
    """Reads a single tag that stands in another text: it may be an anchor, a link or a line break."""
    root = _tree(text)
    for element in root.iter("a", "span", "img", "br") if root is not None else ():
        _Walk(outline).mark(element)


def _tree(text: str) -> Any:
    """The root of a page; None if there is no element in it."""
    if text.lstrip("\ufeff \n").startswith("<?xml"):  # elements without content may be written as <a id="x"/>
        with suppress(ReaderError):
            root = parse_xml(text.encode("utf-8", "replace"), "utf-8")
            for element in root.iter("{*}*"):
                element.tag = etree.QName(element).localname
            return root
    parser = etree.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True, no_network=True, huge_tree=True)
    try:
        root = etree.fromstring(text.encode("utf-8", "replace"), parser)
    except etree.XMLSyntaxError as error:
        raise ReaderError(f"no HTML: {error}") from error
    if any(entry.type_name == "ERR_RESOURCE_LIMIT" for entry in parser.error_log):
        raise ReaderError("elements are nested too deeply")
    return root


def _outermost(elements: list[Any]) -> list[Any]:
    """Those elements that are in no other one of them."""
    found = set(elements)
    return [element for element in elements if found.isdisjoint(element.iterancestors())]


class _Walk(ElementWalk):
    """Goes through the elements of a page and tells an outline of them."""

    def __init__(self, outline: Outline, *, first_line: int = 1, is_main: bool = False) -> None:
        self.outline = outline
        self.lines_before = first_line - 1
        self.is_main = is_main
        self.open: list[tuple[Any, str, bool]] = [(None, "text", False)]  # blocks: element, kind, whether it is flat

    def _is_left_out(self, element: Any, root: Any) -> bool:
        if element is root:
            return False
        tag = element.tag
        if tag in _NO_TEXT or tag in _APART or element.get("role") in _ROLES_APART or element.get("hidden") is not None:
            return True
        if not _CLASSES_APART.isdisjoint((element.get("class") or "").split()):
            return True
        if tag == "a" and element.get("href") is not None:  # the sign of a heading that links to itself
            return len(element) == 0 and not any(map(str.isalnum, element.text or "")) and not element.get("id")
        return tag in _OF_THE_PAGE and not self.is_main

    def _start(self, element: Any) -> None:
        tag, outline = element.tag, self.outline
        _, kind, flat = self.open[-1]
        if tag in _HEADINGS:
            self.open.append((element, kind, True))
            outline.begin("text", self._line(element), _HEADINGS[tag])
        elif tag in _BLOCKS and flat and tag != "tr":
            outline.add(" ")
        elif tag in _BLOCKS:
            kind = _KINDS.get(tag, kind)
            self.open.append((element, kind, tag in _FLAT))
            outline.begin(kind, self._line(element))
        elif tag in ("td", "th"):
            outline.add("" if outline.is_blank else " | ")
        self.mark(element)

    def mark(self, element: Any) -> None:
        """Adds anchor, link and what stands for text of an element."""
        tag, outline = element.tag, self.outline
        if tag == "br":
            outline.add(" ")
        elif tag == "img":
            outline.add(f" {element.get('alt') or ''} ")
        outline.anchor(element.get("id") or (element.get("name") if tag == "a" else None))
        if tag == "a":
            follow(outline, element.get("href"), ENDINGS)

    def _end(self, element: Any) -> None:
        if self.open[-1][0] is element:
            self.open.pop()
            self.outline.begin(self.open[-1][1], None)
        elif element.tag in _BLOCKS:
            self.outline.add(" ")
