"""Reads a patent from its XML file, and names its passages by XPaths as the task does."""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lxml import etree

from pyterrier_graph.datasets.clef_ip.claim_references import claim_references
from pyterrier_graph.documents import NO_PARENT, PASSAGE, SECTION, Link, Node, Reference, passage_id, split_passage_id

MAX_BYTES = 1 << 27
PARAGRAPHS = {"abstract": "p", "description": "p", "claims": "claim"}

_DOCNO = re.compile(r"[A-Z]{2}-[0-9A-Z]{1,20}-[A-Z][0-9A-Z]?")
_INDEX = r"(?:\[\s*([1-9]\d{0,8})\s*\])?"
_XPATH = re.compile(
    rf"/patent-document(?:\[1\])?/(abstract|description|claims){_INDEX}(?:/([a-z-]+){_INDEX}(?:/[^\s,]*)?)?"
)
_TITLES = {
    "DE": {"abstract": "Zusammenfassung", "description": "Beschreibung", "claims": "Ansprüche"},
    "EN": {"abstract": "Abstract", "description": "Description", "claims": "Claims"},
    "FR": {"abstract": "Abrégé", "description": "Description", "claims": "Revendications"},
}
_BLOCKS = frozenset("br claim-text dd dl dt entry heading li ol p row table ul".split())
# A date follows the group, with or without a space between them.
_IPC = re.compile(r"([A-H]\d\d[A-Z])(?: ?(\d{1,4}) ?/ ?(\d{2,6}?)(?=(?:19|20)\d{6}|\D|$))?")
_IPC_TAGS = ("classification-ipcr", "main-classification", "further-classification")
_PARSER = etree.XMLParser(
    resolve_entities=False,
    load_dtd=False,
    no_network=True,
    huge_tree=False,  # libxml2's limits: 10 MB per text, 256 levels
    remove_comments=True,
    remove_pis=True,
)


@dataclass(frozen=True)
class Patent:
    """A patent document: one file of the collection. The passage N has the id ``docno%pN``."""

    docno: str  # country, number and kind code, such as EP-1480263-A1
    language: str  # EN, DE or FR; empty where the file does not say
    title: str  # in that language if there is one
    codes: tuple[str, ...]  # IPC codes, each as subclass and as group: C07C, C07C45/50
    citations: tuple[str, ...]  # docnos of the cited documents
    nodes: tuple[Node, ...]  # sections and passages, as in StructuredDocument
    links: tuple[Link, ...]  # from passages to the claims that they refer to
    xpaths: tuple[str, ...]  # of the passages
    versions: dict[str, int]  # the number of abstracts, descriptions and sets of claims: mostly one per language
    claims_in_first: int  # the number of claims in the first claim element; in older files this element has all claims

    @property
    def passages(self) -> list[str]:
        """The texts of the passages."""
        return [node.text for node in self.nodes if node.kind == PASSAGE]

    @property
    def abstract(self) -> str:
        """The text of the abstract, or ``''``."""
        start = format_xpath("abstract", 0)
        passages = zip(self.passages, self.xpaths, strict=True)
        return " ".join(text for text, xpath in passages if xpath.startswith(start))

    def passage_id(self, xpath: str) -> str:
        """The id of the passage at an XPath; a KeyError if there is no such element, or it is empty.

        The XPaths of a passage's translations lead to the passage too. Where one element has all claims, so do the
        XPaths of all claims. A missing index is 1.
        """
        part, version, position = parse_xpath(xpath)
        wanted = [format_xpath(part, position)]
        if position == 1:
            wanted.append(format_xpath(part, 0))
        if part == "claims" and 1 < position <= self.claims_in_first:
            wanted.append(format_xpath(part, 1))
        for candidate in wanted:
            if candidate in self.xpaths and version <= self.versions[part]:
                return passage_id(self.docno, self.xpaths.index(candidate))
        raise KeyError(f"{self.docno} has no passage at {xpath}")

    def xpath(self, identifier: str) -> str:
        """The XPath of the passage with an id (``docno%pN``). It is a KeyError if there is no such passage."""
        docno, number = split_passage_id(identifier)
        if docno != self.docno or number is None or number >= len(self.xpaths):
            raise KeyError(f"{self.docno} has {len(self.xpaths)} passages; {identifier!r} is none of them")
        return self.xpaths[number]

    def to_record(self) -> dict[str, Any]:
        """The patent as a record for :meth:`pyterrier_graph.documents.StructuredDocument.from_record`."""
        return {
            "docno": self.docno,
            "title": self.title,
            "text": "\n\n".join(self.passages),
            "language": self.language,
            "nodes": self.nodes,
            "links": self.links,
            "references": tuple(Reference("external", 0, docno) for docno in self.citations),
            "codes": self.codes,
            "xpaths": self.xpaths,
        }


def read_patent(path: str | Path) -> Patent:
    """Reads a patent from its file, such as ``EP-1480263-A1.xml``. A ValueError names a file that is no patent's."""
    path = Path(path)
    if path.suffix != ".xml" or not is_docno(path.stem):
        raise ValueError(f"{path}: not the file of a patent, which has a name like EP-1480263-A1.xml")
    with open(path, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"{path}: larger than {MAX_BYTES >> 20} MiB, which no patent is")
    try:
        return parse_patent(data, path.stem)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def parse_patent(data: bytes, docno: str) -> Patent:
    """Parses the XML of a patent document.

    Of several abstracts, descriptions, sets of claims or titles, the first in the document's language is taken, or else
    the first. Entities are not expanded, and no other file is loaded. It is a ValueError if the XML is not well-formed,
    declares entities, or is not a ``patent-document``.
    """
    try:
        root = etree.fromstring(data, _PARSER)
    except etree.LxmlError as error:
        raise ValueError(f"not well-formed XML: {error}") from error
    declared = root.getroottree().docinfo.internalDTD
    if declared is not None and next(declared.iterentities(), None) is not None:
        raise ValueError("the file declares entities, which no file of the collection needs")
    if root.tag != "patent-document":
        raise ValueError(f"its root element is <{root.tag}>, expected <patent-document>")
    language = _document_language(root)
    title = _choose(list(root.iter("invention-title")), language)
    nodes = [Node(SECTION, "" if title is None else _text(title), NO_PARENT)]
    xpaths: list[str] = []
    claims: dict[int, int] = {}
    versions = {part: root.findall(part) for part in PARAGRAPHS}
    chosen = {part: _choose(found, language) for part, found in versions.items()}
    for part, element in chosen.items():
        if element is not None:
            _add_part(element, part, _TITLES.get(language, _TITLES["EN"])[part], nodes, xpaths, claims)
    return Patent(
        docno,
        language,
        nodes[0].text,
        tuple(_codes(root)),
        tuple(dict.fromkeys(cited for cited in _citations(root) if cited != docno)),
        tuple(nodes),
        tuple(_links(nodes, claims)),
        tuple(xpaths),
        {part: len(found) for part, found in versions.items()},
        _claims_in_first(chosen["claims"]),
    )


def is_docno(text: str) -> bool:
    """Whether a text is a docno, such as ``EP-1480263-A1``: country, number and kind code."""
    return _DOCNO.fullmatch(text) is not None


def format_xpath(part: str, position: int) -> str:
    """The XPath of a paragraph or claim; position 0 stands for the part as a whole."""
    return f"/patent-document/{part}" + (f"/{PARAGRAPHS[part]}[{position}]" if position else "")


def parse_xpath(xpath: str) -> tuple[str, int, int]:
    """The part, version and position in an XPath such as ``/patent-document/claims/claim[2]``.

    The part is ``'abstract'``, ``'description'`` or ``'claims'``. The version is the place among the elements of that
    name, of which there may be one per language. The position is the place among the part's paragraphs or claims, or 0
    for the part as a whole. Both are counted from 1, and a missing index is 1. The XPath of an element inside a
    paragraph or claim means the paragraph or claim. Other XPaths are a ValueError.
    """
    match = _XPATH.fullmatch(xpath.strip())
    part, version, step, position = match.groups() if match else (None, None, None, None)
    if part is None or step not in (None, PARAGRAPHS[part]):
        raise ValueError(
            f"{xpath!r} is no XPath of a passage, such as /patent-document/abstract/p[1], "
            "/patent-document/description/p[1] or /patent-document/claims/claim[1]"
        )
    return part, int(version or 1), int(position or 1) if step else 0


def _language(element: etree._Element) -> str:
    return (element.get("lang") or "").strip().upper()


def _document_language(root: etree._Element) -> str:
    elements = (root, *(found for tag in ("description", "claims", "invention-title") for found in root.iter(tag)))
    return next(filter(None, map(_language, elements)), "")


def _choose(versions: list[etree._Element], language: str) -> etree._Element | None:
    """The first version with content, if possible in the language, or else in no declared language."""

    def rank(version: etree._Element) -> tuple[bool, int]:
        is_empty = not len(version) and not (version.text or "").strip()
        return is_empty, [language, "", _language(version)].index(_language(version))

    return min(versions, key=rank, default=None)


def _add_part(
    element: etree._Element, part: str, title: str, nodes: list[Node], xpaths: list[str], claims: dict[int, int]
) -> None:
    """Adds the nodes and XPaths of an abstract, a description or claims, and the nodes of claims by their numbers."""
    section = len(nodes)
    if element.find(PARAGRAPHS[part]) is None:  # text without paragraphs
        if text := _text(element):
            nodes += [Node(SECTION, title, 0), Node(PASSAGE, text, section)]
            xpaths.append(format_xpath(part, 0))
        return
    nodes.append(Node(SECTION, title, 0))
    upper = section = current = len(nodes) - 1
    position = 0
    for child in element:
        if child.tag not in ("heading", PARAGRAPHS[part]):
            continue
        text = _text(child)
        if child.tag == "heading":
            if text:  # headings in other case are subsections of the heading in capitals before them
                current = len(nodes)
                nodes.append(Node(SECTION, text, section if text.isupper() else upper))
                upper = current if text.isupper() else upper
            continue
        position += 1
        if text:
            if part == "claims":
                claims.setdefault(_claim_number(child, position), len(nodes))
            nodes.append(Node(PASSAGE, text, current))
            xpaths.append(format_xpath(part, position))


def _claims_in_first(claims: etree._Element | None) -> int:
    elements = [] if claims is None else claims.findall("claim")
    return len(elements[0].findall("claim-text")) if len(elements) == 1 else min(1, len(elements))


def _claim_number(claim: etree._Element, position: int) -> int:
    number = (claim.get("num") or "").strip()
    return int(number) if number.isascii() and number.isdigit() and len(number) < 9 else position


def _text(element: etree._Element) -> str:
    return " ".join("".join(_pieces(element)).split())


def _pieces(element: etree._Element) -> Iterator[str]:
    """The texts in an element, with spaces around parts that are displayed on lines of their own."""
    yield element.text or ""
    for child in element:
        if isinstance(child, etree._Entity):  # of a DTD that was not loaded
            yield html.unescape(child.text)
        else:
            is_block = child.tag in _BLOCKS
            yield " " * is_block
            yield from _pieces(child)
            yield " " * is_block
        yield child.tail or ""


def _codes(root: etree._Element) -> dict[str, None]:
    codes: dict[str, None] = {}
    for element in root.iter(*_IPC_TAGS):
        if match := _IPC.match(_text(element).upper()):
            subclass, group, subgroup = match.groups()
            codes[subclass] = None
            if group:
                codes[f"{subclass}{int(group)}/{subgroup}"] = None
    return codes


def _citations(root: etree._Element) -> Iterator[str]:
    for citation in root.iter("patcit"):
        parts = (citation.findtext(f"document-id/{tag}") or "" for tag in ("country", "doc-number", "kind"))
        cited = citation.get("ucid") or "-".join(part.strip() for part in parts)
        if is_docno(cited):
            yield cited


def _links(nodes: list[Node], claims: dict[int, int]) -> Iterator[Link]:
    numbers = {node: number for number, node in claims.items()}
    for position, node in enumerate(nodes):
        if node.kind == PASSAGE:
            for number in claim_references(node.text, claims, numbers.get(position)):
                yield Link("internal", position, claims[number])
