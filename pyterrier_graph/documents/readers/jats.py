"""Reads JATS, the XML of journal articles such as those of PubMed Central, by way of the HTML that a table makes of it.

No network is used and no entity is expanded; files that are not well-formed are not read.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote, urlsplit

from lxml import etree

from pyterrier_graph.documents.readers.html import MARKS, Walk, parse_xml, plain_text
from pyterrier_graph.documents.readers.outline import Outline, ReaderError

_TAGS = {
    "list": "ul",
    "disp-quote": "blockquote",
    **{name: name for name in ("caption", "table", "tr", "td", "th")},
    **dict.fromkeys(("list-item", "def-item"), "li"),
    **dict.fromkeys(("preformat", "code"), "pre"),
    **dict.fromkeys(("fig", "table-wrap", "supplementary-material"), "figure"),
    **dict.fromkeys(("p", "term", "verse-line", "attrib", "title"), "p"),
    **dict.fromkeys(
        ("def-list", "def", "disp-formula", "boxed-text", "verse-group", "statement", "fn", "speech"), "div"
    ),
    **dict.fromkeys(
        "label graphic inline-graphic media object-id permissions tex-math annotation sub-article response "
        "contrib-group ref-list".split(),
        "script",  # which is left out
    ),
}
_TITLES = {
    "abstract": "Abstract",
    "trans-abstract": "Abstract",
    "sec": "",
    "ack": "Acknowledgments",
    "app": "Appendix",
    "glossary": "",
    "notes": "",
}
_LABELS = {("label", "fig"), ("label", "table-wrap"), ("label", "supplementary-material")}
_TEXTS = ("front/article-meta/abstract", "front/article-meta/trans-abstract", "body", "floats-group", "back")
_ID_KINDS = {"doi": "doi", "pmid": "pmid", "pmc": "pmcid", "pmcid": "pmcid", "medline": "pmid"}
_HREF = "{http://www.w3.org/1999/xlink}href"


def parse(data: bytes, outline: Outline) -> None:
    """Reads an article into an outline. Nothing that the file names is opened, and no entity is expanded."""
    root = parse_xml(data)
    article = root if root.tag == "article" else next(root.iter("article"), None)
    if article is None:
        raise ReaderError(f"not an article of JATS: the root element is {str(root.tag)[:60]!r}")
    _read_front(article, outline)
    cited = {ref.get("id"): [*_names(ref)] for ref in article.iter("ref")}
    for part in [part for path in _TEXTS for part in article.iterfind(path)]:
        _rename(part, cited)
        Walk(outline, flat=("p",), alone=("figure",)).read(part)
    outline.end()


def _read_front(article: Any, outline: Outline) -> None:
    for meta in article.iterfind("front/article-meta"):
        outline.names += _names(meta, "article-id")
        for title in meta.iterfind("title-group/article-title"):
            outline.title = outline.title or plain_text(title)
        outline.code([plain_text(word) for word in meta.iter("kwd", "subject")])


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


def _rename(element: Any, cited: dict[str | None, list[str]], parent: str = "", level: int = 0) -> None:
    """Renames an element and all elements inside, so that they are those of a page of HTML.

    ``cited`` are the names of the articles that the references cite, by the id of the reference; ``level`` is the
    number of sections around the element.
    """
    tag = element.tag
    element.tag = _TAGS.get(tag, "span")
    if element.tag == "script" and (tag, parent) not in _LABELS:
        return
    if tag in _TITLES:
        level += 1
        element.tag = "section"
        if _TITLES[tag] and element.find("title") is None:
            element.insert(0, etree.Element(f"h{level}"))
            element[0].text = _TITLES[tag]
    elif tag == "title" and parent in _TITLES:
        element.tag = f"h{level}"
    elif tag == "label":
        element.tag = "span"
        element.set("class", "label")
    elif tag == "xref":
        targets = [(target, cited.get(target)) for target in element.get("rid", "").split()]
        marks = [["link", target] if names is None else ["refer", *names] for target, names in targets if names != []]
        element.set(MARKS, json.dumps(marks))
    elif tag in ("ext-link", "uri") and (name := _doi(element)):
        element.set(MARKS, json.dumps([["refer", name]]))
    for child in element:
        if isinstance(child.tag, str) and not (tag in _TITLES and child.sourceline is None):
            _rename(child, cited, tag, level)
    if element.tag == "figure":
        _join_label_and_caption(element)


def _join_label_and_caption(figure: Any) -> None:
    label, caption = figure.find("span[@class='label']"), figure.find("caption")
    if label is not None and caption is not None:
        caption.insert(0, label)
        label.tail, caption.text = f" {caption.text or ''}", None
    elif label is not None:
        label.tag = "caption"
