"""Reads a patent from its XML file, names its passages by XPaths as the task does, and finds references to claims."""

# No "from __future__ import annotations": PyTerrier's text loader wants fields that are annotated with str, not "str".

import re
from collections.abc import Collection, Iterator
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple

from lxml import etree

from pyterrier_graph.documents.document import (
    NO_PARENT,
    PASSAGE,
    SECTION,
    Link,
    Node,
    Reference,
    passage_id,
)

Element = Any  # of lxml, which has no public name for the class
HEADING_CHARACTERS = 80  # of a paragraph that is a heading; the paper does not give its number
PARAGRAPHS = {"abstract": "p", "description": "p", "claims": "claim"}

_DOCNO = re.compile(r"[A-Z]{2}-[0-9A-Z]{1,20}-[A-Z][0-9A-Z]?")
_XPATH = re.compile(
    r"(/patent-document/(?:abstract|description|claims))(?:\[\d+\])?/(p|claim)\b(?:\[(\d+)\])?"
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


class Patent(NamedTuple):
    """A patent document: one file of the collection, as a document of ir_datasets. Passage N has the id ``docno%pN``.

    Attributes:
        doc_id: Its docno: country, number and kind code, such as ``EP-1480263-A1``.
        title: The title, in the patent's language if there is one.
        text: The passages, separated by blank lines.
        language: EN, DE or FR; empty where the file does not state it.
        nodes: Sections and passages, as in :class:`~pyterrier_graph.StructuredDocument`.
        links: From passages to the claims that they refer to.
        references: To the cited documents.
        codes: IPC codes, each as subclass and as group: C07C, C07C45/50.
        xpaths: Of the passages.
    """

    doc_id: str
    title: str
    text: str
    language: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    references: tuple[Reference, ...]
    codes: tuple[str, ...]
    xpaths: tuple[str, ...]

    def default_text(self) -> str:
        """Title and text."""
        return f"{self.title} {self.text}"

    @property
    def passages(self) -> list[str]:
        """The texts of the passages."""
        return [node.text for node in self.nodes if node.kind == PASSAGE]

    @property
    def abstract(self) -> str:
        """The text of the abstract, or ``''``."""
        passages = zip(self.passages, self.xpaths, strict=True)
        prefix = "/patent-document/abstract"
        return " ".join(text for text, xpath in passages if xpath.startswith(prefix))

    def passage_id(self, xpath: str) -> str:
        """The id of the passage at an XPath; raises KeyError if there is no such element, or it is empty.

        The XPaths of a passage's translations lead to the passage too. A missing index is 1.
        """
        normalized = normalize_xpath(xpath)
        if normalized not in self.xpaths:
            raise KeyError(f"{self.doc_id} has no passage at {xpath}")
        return passage_id(self.doc_id, self.xpaths.index(normalized))


def read_patent(path: str | Path) -> Patent:
    """Reads a patent from its file, such as ``EP-1480263-A1.xml``."""
    path = Path(path)
    return parse_patent(path.read_bytes(), path.stem)


def parse_patent(data: bytes, docno: str) -> Patent:
    """Parses the XML of a patent document. Nothing is loaded, and only entities of characters are resolved.

    Of several abstracts, descriptions, sets of claims or titles, the first in the document's language is taken, or else
    the first.
    """
    parser = etree.XMLParser(resolve_entities=False, remove_comments=True, remove_pis=True)
    root = etree.fromstring(data, parser)
    for block in root.iter(*_BLOCKS):  # displayed on lines of their own
        block.text = f" {block.text or ''}"
        block.tail = f" {block.tail or ''}"
    language = _language(root)
    title = _choose(list(root.iter("invention-title")), language)
    title_text = "" if title is None else _plain_text(title)
    nodes = [Node(SECTION, title_text, NO_PARENT)]
    xpaths: list[str] = []
    claims: dict[int, int] = {}  # node of each claim, by its number
    titles = _TITLES.get(language, _TITLES["EN"])
    for tag in PARAGRAPHS:
        element = _choose(root.findall(tag), language)
        if element is not None:
            _add_passages(element, titles[tag], nodes, xpaths, claims)
    passages = [node.text for node in nodes if node.kind == PASSAGE]
    return Patent(
        docno,
        title_text,
        "\n\n".join(passages),
        language,
        tuple(nodes),
        tuple(_links(nodes, claims)),
        tuple(_references(root, docno)),
        tuple(_codes(root)),
        tuple(xpaths),
    )


def _plain_text(element: Element) -> str:
    """Returns all text of an element with normalized white space. Entities of a DTD are read as their names."""
    text = "".join(unescape(string) for string in element.itertext())
    return " ".join(text.split())


def is_docno(text: str) -> bool:
    """Whether a text is a docno, such as ``EP-1480263-A1``: country, number and kind code."""
    return _DOCNO.fullmatch(text) is not None


def normalize_xpath(xpath: str) -> str:
    """The XPath of a passage as in :attr:`Patent.xpaths`, such as ``/patent-document/claims/claim[1]``.

    A missing index is 1, the index of a translation is dropped, and an element inside of a passage stands for it.
    XPaths of other elements stay as they are.
    """
    match = _XPATH.match(xpath)
    if match is None:
        return xpath
    parent, tag, index = match.groups()
    return f"{parent}/{tag}[{index or 1}]"


def _language(element: Element) -> str:
    return element.get("lang", "").upper()


def _choose(versions: list[Element], language: str) -> Element | None:
    """The first version in the language, or else the first; None if there are no versions."""
    for version in versions:
        if _language(version) == language:
            return version
    return versions[0] if versions else None


def _add_passages(
    element: Element, title: str, nodes: list[Node], xpaths: list[str], claims: dict[int, int]
) -> None:
    """Adds the nodes and XPaths of an abstract, a description or claims, and the nodes of claims by their numbers."""
    tag = element.tag
    if element.find(PARAGRAPHS[tag]) is None:
        return
    nodes.append(Node(SECTION, title, 0))
    upper = section = current = len(nodes) - 1
    position = 0
    for child in element.iterchildren("heading", PARAGRAPHS[tag]):
        text = _plain_text(child)
        has_heading_tag = child.tag == "heading"
        opens_section = has_heading_tag or (tag == "description" and _is_heading(text))
        if text and opens_section:
            current = len(nodes)
            if text.isupper():
                upper = current
                nodes.append(Node(SECTION, text, section))
            else:  # a subsection of the heading in capitals before it
                nodes.append(Node(SECTION, text, upper))
        if has_heading_tag:
            continue
        position += 1
        if not text:
            continue
        if tag == "claims":
            attribute = child.get("num", "")
            number = int(attribute) if attribute.isdecimal() else position
            claims.setdefault(number, len(nodes))
        nodes.append(Node(PASSAGE, text, current))
        xpaths.append(f"/patent-document/{tag}/{child.tag}[{position}]")


def _is_heading(paragraph: str) -> bool:
    """Whether a paragraph is a heading by its case and its number of characters (Albarede et al. 2023, Sect. 5.1.3).

    It opens a section, and stays a passage of it, since judgments may name it.
    """
    return paragraph.isupper() and len(paragraph) <= HEADING_CHARACTERS


def _references(root: Element, docno: str) -> Iterator[Reference]:
    """References to the cited documents, each once, without the patent itself."""
    cited = [citation.get("ucid", "") for citation in root.iter("patcit")]
    for name in dict.fromkeys(cited):
        if is_docno(name) and name != docno:
            yield Reference("external", 0, name)


def _codes(root: Element) -> dict[str, None]:
    """IPC codes, each once: the keys of a dictionary, in the order of the file."""
    codes: dict[str, None] = {}
    for element in root.iter(*_IPC_TAGS):
        match = _IPC.match(_plain_text(element).upper())
        if match:
            subclass, group, subgroup = match.groups()
            codes[subclass] = None
            if group:
                codes[f"{subclass}{int(group)}/{subgroup}"] = None
    return codes


def _links(nodes: list[Node], claims: dict[int, int]) -> Iterator[Link]:
    """Links from passages to the claims that they refer to."""
    numbers = {node: number for number, node in claims.items()}
    for source, node in enumerate(nodes):
        if node.kind == PASSAGE:
            own = numbers.get(source)
            for number in claim_references(node.text, claims, own):
                yield Link("internal", source, claims[number])


# --- references to claims, in English, German and French

# Texts are in lower case.
_ANSPRUCH, _ANSPRUECHE = r"(?:patent)?anspruch(?:es|s|e)?", r"(?:patent)?anspr(?:ü|ue)che[ns]?"
_CLAIM = rf"\b(?:claims?|{_ANSPRUCH}|{_ANSPRUECHE}|revendications?)"
_UNIT = r"(?! ?(?:%|°|(?:[kcmnµμ]?[mgl]|percent|parts?|wt)\b))"
_NUMBER = rf"[(\[]?(?<!\d)\d{{1,4}}(?!\.?\d){_UNIT}[)\]]?"
_RANGE = r"(?:-|–|—|to\b|through\b|up to\b|bis\b|à|jusqu'à)"
_ALSO = r"(?:and ?/ ?or|und ?/ ?oder|et ?/ ?ou|and|or|und|oder|sowie|et|ou|&|/|,|;)"
_LIST = re.compile(
    rf"{_CLAIM} ?(?:nos?\.? ?|nr\.? ?|n° ?)?({_NUMBER}(?: ?(?:, ?{_ALSO}|{_ALSO}|{_RANGE}) ?{_NUMBER})*)"
)
_SPAN = re.compile(rf"(\d+)[)\]]?(?: ?{_RANGE} ?[(\[]?(\d+))?")

_EN = r"(?:preceding|previous|foregoing|prior|earlier|above)"
_DE = r"(?:vor(?:hergehend|hergegangen|herig|angehend|angegangen|stehend|genannt|ig)|obig)e[nrms]?"
_FR = r"(?:(?:qui )?pr[ée]c[éèe]d(?:ent|ente)s?|antérieure?s?|ci-dessus)"
_ALL_BEFORE = re.compile(
    rf"\b{_EN} claims\b|\b(?:any|either|each|every)(?: one)?(?: of the)? {_EN} claim\b"
    rf"|\b{_DE} {_ANSPRUECHE}|\b(?:irgend)?(?:einem|jedem) (?:der )?{_DE} {_ANSPRUCH}"
    rf"|\brevendications {_FR}|\b{_FR} revendications\b|\b(?:une|toute|quelle) revendication {_FR}"
)
_ONE_BEFORE = re.compile(rf"\b{_EN} claim\b|\b{_DE} {_ANSPRUCH}|\brevendication {_FR}")


def claim_references(text: str, claims: Collection[int], own: int | None = None) -> list[int]:
    """Returns the numbers of the claims that a text refers to, ascending, among all ``claims`` of the patent.

    A reference is a number, a list or a range ("claim 3", "Ansprüche 1 bis 4", "revendications 1, 2 ou 5"). If the text
    is the claim with the number ``own``, "any of the preceding claims" and "la revendication précédente" are references
    too, and references to the claim itself are left out.
    """
    text = text.lower()
    references: set[int] = set()
    for numbers in _LIST.findall(text):
        for first, last in _SPAN.findall(numbers):
            ends = int(first), int(last or first)
            low, high = sorted(ends)
            references.update(claim for claim in claims if low <= claim <= high)
    if own is not None:
        before = [claim for claim in claims if claim < own]
        if _ALL_BEFORE.search(text):
            references.update(before)
        elif before and _ONE_BEFORE.search(text):
            references.add(max(before))
    return sorted(references - {own})
