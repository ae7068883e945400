"""Reads JATS: the XML of journal articles, such as those of PubMed Central."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from urllib.parse import unquote, urlsplit

from pyterrier_graph.readers.errors import ReaderError
from pyterrier_graph.readers.options import ReaderOptions
from pyterrier_graph.readers.outline import Outline
from pyterrier_graph.readers.source import DocumentFiles, Files
from pyterrier_graph.readers.xml import ElementWalk, parse_xml, plain_text

SUFFIXES = (".xml", ".nxml")

_KINDS = {
    "list-item": "list",
    "def-item": "list",
    "preformat": "code",
    "code": "code",
    "tr": "table",
    "disp-quote": "quote",
    "fig": "caption",
    "table-wrap": "caption",
    "supplementary-material": "caption",
    "ref": "references",
}
_BLOCKS = frozenset(
    "disp-formula disp-quote list list-item def-list def-item term def fig table-wrap table tr boxed-text "
    "preformat code verse-group verse-line statement supplementary-material ref fn attrib speech p title".split()
)
_FLAT = frozenset(("p", "tr", "ref", "preformat", "code", "term", "verse-line", "attrib", "title", "caption"))
_NO_TEXT = frozenset(
    "graphic inline-graphic media object-id permissions tex-math annotation sub-article response contrib-group".split()
)
_SECTIONS = {
    "abstract": "Abstract",
    "trans-abstract": "Abstract",
    "sec": "",
    "ack": "Acknowledgments",
    "app": "Appendix",
    "ref-list": "References",
    "glossary": "",
    "notes": "",
}
_TEXTS = ("front/article-meta/abstract", "front/article-meta/trans-abstract", "body", "floats-group", "back")
_LABELED = ("fig", "table-wrap", "supplementary-material")
_ID_KINDS = {"doi": "doi", "pmid": "pmid", "pmc": "pmcid", "pmcid": "pmcid", "medline": "pmid"}
_HREF = "{http://www.w3.org/1999/xlink}href"


def read_jats(
    files: Files,
    *,
    min_words: int = 30,
    max_words: int = 120,
    skip: Collection[str] = ("references",),
    suffixes: Collection[str] = SUFFIXES,
    encoding: str | None = None,
    max_bytes: int = 50_000_000,
    seconds: float = 60,
    workers: int | None = None,
    strict: bool = False,
    verbose: bool = True,
) -> DocumentFiles:
    """Reads articles in JATS, the XML of PubMed Central.

    An article has its title, the abstract, the sections, captions of figures and tables, and the appendices. Citations
    of articles that are among the files become edges ``external``: articles are recognized by DOI, PubMed id, or PubMed
    Central id. Subjects and keywords are codes. The bibliography itself is skipped by default. No network is used and
    no entity is expanded; files that are not well-formed are not read.

    All arguments are those of :func:`~pyterrier_graph.read_markdown`.
    """
    options = ReaderOptions(min_words, max_words, skip, encoding, max_bytes, seconds)
    return DocumentFiles(files, parse, suffixes, options, workers=workers, strict=strict, verbose=verbose)


def parse(data: bytes, outline: Outline, encoding: str | None = None) -> None:
    """Reads an article into an outline. Nothing that the file names is opened, and no entity is expanded."""
    root = parse_xml(data, encoding)
    article = root if root.tag == "article" else next(root.iter("article"), None)
    if article is None:
        raise ReaderError(f"no article of JATS: the root element is {str(root.tag)[:60]!r}")
    _read_front(article, outline)
    references = {ref.get("id"): [*_names(ref)] for ref in article.iter("ref")}
    for path in _TEXTS:
        for element in article.iterfind(path):
            _Walk(outline, references).read(element)
    outline.end()


def _read_front(article: Any, outline: Outline) -> None:
    for meta in article.iterfind("front/article-meta"):
        outline.names += _names(meta, "article-id")
        for title in meta.iterfind("title-group/article-title"):
            outline.title = outline.title or plain_text(title)
        outline.code([plain_text(word) for word in meta.iter("kwd", "subject")])
        for year in meta.iterfind("pub-date/year"):
            outline.attributes.setdefault("year", plain_text(year))
    for journal in article.iterfind("front/journal-meta//journal-title"):
        outline.attributes.setdefault("journal", plain_text(journal))


def _names(element: Any, tag: str = "pub-id") -> list[str]:
    """The names of an article by its identifiers, such as ``"doi:10.1000/1"``."""
    names = [_name(part.get("pub-id-type", ""), plain_text(part)) for part in element.iter(tag)]
    names += [_doi(link) for link in element.iter("ext-link", "uri")] if tag == "pub-id" else []
    return [*filter(None, names)]


def _name(kind: str, value: str) -> str:
    kind = _ID_KINDS.get(kind.lower(), "")
    value = value.strip().lower().removeprefix("pmc").removeprefix("https://doi.org/")
    return f"{kind}:{value}" if kind and value else ""


def _doi(link: Any) -> str:
    """The name of the article that an address of doi.org leads to."""
    try:
        address = urlsplit(link.get(_HREF) or plain_text(link))
    except ValueError:
        return ""
    if link.get("ext-link-type") == "doi" and not address.netloc:
        return _name("doi", address.path)
    return _name("doi", unquote(address.path.lstrip("/"))) if address.netloc.endswith("doi.org") else ""


class _Walk(ElementWalk):
    """Goes through a part of an article and tells an outline of it."""

    def __init__(self, outline: Outline, references: dict[str | None, list[str]]) -> None:
        self.outline = outline
        self.references = references
        self.level = 0
        self.open: list[tuple[Any, str, bool]] = [(None, "text", False)]  # blocks: element, kind, whether it is flat

    def _is_left_out(self, element: Any, root: Any) -> bool:
        parent = element.getparent()
        if element.tag == "ref-list" and "references" in self.outline.skip:
            self.outline.counts["skipped references"] += len(element.findall("ref"))
            return True
        return element.tag in _NO_TEXT or (element.tag == "label" and parent is not None and parent.tag not in _LABELED)

    def _start(self, element: Any) -> None:
        tag, outline = element.tag, self.outline
        _, kind, flat = self.open[-1]
        if tag in _SECTIONS:
            self.level += 1
            outline.begin("text", element.sourceline)
            if _SECTIONS[tag] and element.find("title") is None:
                outline.begin("text", element.sourceline, self.level)
                outline.add(_SECTIONS[tag])
                outline.anchor(element.get("id"))
                outline.begin("text", None)
                return
        elif tag == "title" and element.getparent().tag in _SECTIONS:
            self.open.append((element, kind, True))
            outline.begin("text", element.sourceline, self.level)
        elif tag == "caption":
            self.open.append((element, kind, True))
            outline.add(" ")
        elif tag in ("td", "th"):
            outline.add("" if outline.is_blank else " | ")
        elif tag in _BLOCKS and flat and tag not in ("tr", *_LABELED):
            outline.add(" ")
        elif tag in _BLOCKS:
            kind = _KINDS.get(tag, "text" if kind == "caption" else kind)
            self.open.append((element, kind, tag in _FLAT))
            outline.begin(kind, element.sourceline)
        outline.anchor(element.get("id"))
        if tag == "xref":
            self._refer(element)
        elif tag in ("ext-link", "uri") and kind != "references":
            if name := _doi(element):
                outline.refer(name)
            else:
                outline.counts["links out of the files"] += 1

    def _refer(self, xref: Any) -> None:
        for target in xref.get("rid", "").split():
            names = self.references.get(target)
            if names is None or "references" not in self.outline.skip:
                self.outline.link(target)
            if names:
                self.outline.refer(*names)
            elif names is not None:
                self.outline.counts["citations without an identifier"] += 1

    def _end(self, element: Any) -> None:
        if element.tag in _SECTIONS:
            self.level -= 1
            self.outline.begin("text", None)
        elif self.open[-1][0] is element:
            self.open.pop()
            if element.tag != "caption":
                self.outline.begin(self.open[-1][1], None)
        elif element.tag in _BLOCKS:
            self.outline.add(" ")
