"""Structured documents: what datasets and files provide, and what graphs are built from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

from pydantic.dataclasses import dataclass

Kind = Literal["section", "passage"]
SECTION: Final = "section"
PASSAGE: Final = "passage"
PASSAGE_SEPARATOR = "%p"
SECTION_SEPARATOR = "%s"
NO_PARENT = -1
# the numbers have at most 64 bits
_PASSAGE_ID = re.compile(r"(.*)%p([0-9]{1,18})", re.DOTALL)
_SECTION_ID = re.compile(r"(.*)%s([0-9]{1,18})", re.DOTALL)


class Node(NamedTuple):
    """A part of a document: a ``'section'``, whose text is its title, or a ``'passage'``.

    ``parent`` is the position of the section that contains this node; -1 for the first node, the root section.
    """

    kind: Kind
    text: str
    parent: int


class Link(NamedTuple):
    """An edge between two nodes of a document, by their positions. The relation is ``'internal'`` or any other name."""

    relation: str
    source: int
    target: int


class Reference(NamedTuple):
    """An edge from a node to another document. The relation is ``'external'`` or any other name.

    ``target`` is a docno, which means the root section of that document, or ``docno%pN``, which means its passage N
    even if passages have ids of their own.
    """

    relation: str
    source: int
    target: str


def passage_id(docno: str, number: int) -> str:
    """Returns the id of a passage: ``docno%pN``, where N counts from 0 in document order."""
    return f"{docno}{PASSAGE_SEPARATOR}{number}"


def split_passage_id(identifier: str) -> tuple[str, int | None]:
    """Splits ``docno%pN`` into docno and N. N is None for other ids."""
    return _split(_PASSAGE_ID, identifier)


def split_section_id(identifier: str) -> tuple[str, int | None]:
    """Splits ``docno%sN`` into docno and N. N is None for other ids."""
    return _split(_SECTION_ID, identifier)


def _split(pattern: re.Pattern[str], identifier: str) -> tuple[str, int | None]:
    if not isinstance(identifier, str):
        return identifier, None
    match = pattern.fullmatch(identifier)
    if match is None:
        return identifier, None
    docno, number = match.groups()
    return docno, int(number)


def split_text(text: str, words: int = 120) -> Iterator[str]:
    """Splits a text into passages of at most ``words`` words. No word is lost.

    Short paragraphs (separated by blank lines) are merged, and long ones are cut between words.
    """
    passage: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        tokens = paragraph.split()
        if passage and len(passage) + len(tokens) > words:
            yield " ".join(passage)
            passage = []
        passage += tokens
        while len(passage) > words:
            yield " ".join(passage[:words])
            passage = passage[words:]
    if passage:
        yield " ".join(passage)


@dataclass(frozen=True)
class StructuredDocument:
    """A document as a tree of sections and passages, with links inside it and references to other documents.

    Attributes:
        docno: Id of the document.
        nodes: Sections and passages in document order. The first node is the root section, whose text is the title of
            the document. A section comes before the nodes that it contains.
        links: Edges inside the document, in addition to order and structure.
        references: Edges to other documents.
        codes: Attributes that documents share (classification codes, modules, concepts), for negative sampling.
        passage_ids: Existing ids of the passages, in document order. By default, passage N is ``docno%pN``.
    """

    docno: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...] = ()
    references: tuple[Reference, ...] = ()
    codes: tuple[str, ...] = ()
    passage_ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for problem in _problems(self):
            raise ValueError(problem)

    @property
    def title(self) -> str:
        """The text of the root section."""
        return self.nodes[0].text

    def passages(self) -> list[str]:
        """The texts of the passages, in document order."""
        return [node.text for node in self.nodes if node.kind == PASSAGE]


def with_title_passage(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Adds the titles as a passage if there is no other, since search finds passages only."""
    titles = " ".join(node.text for node in nodes if node.text.strip())
    if not titles or any(node.kind == PASSAGE for node in nodes):
        return (*nodes,)
    return (*nodes, Node(PASSAGE, titles, 0))


def _problems(document: StructuredDocument) -> Iterator[str]:
    """Yields what is wrong with a document."""
    docno = document.docno
    nodes = document.nodes
    if _PASSAGE_ID.fullmatch(docno) or _SECTION_ID.fullmatch(docno):
        yield "a docno must not look like the id of a passage or section"
    if not nodes or nodes[0].kind != SECTION or nodes[0].parent != NO_PARENT:
        yield "the first node must be the root section (parent -1)"
    for position, node in enumerate(nodes[1:], start=1):
        if not 0 <= node.parent < position or nodes[node.parent].kind != SECTION:
            yield f"node {position} lies in node {node.parent}, which is not a section before it"
    positions = [reference.source for reference in document.references]
    for link in document.links:
        positions += [link.source, link.target]
    for position in positions:
        if not 0 <= position < len(nodes):
            yield f"a link or reference is at node {position}, but there are {len(nodes)} nodes"
    passages = len(document.passages())
    ids = len(document.passage_ids)
    if ids not in (0, passages):
        yield f"has {passages} passages, but {ids} passage_ids"
