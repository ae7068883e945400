"""Structured documents: what datasets and files provide, and what graphs are built from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from pydantic.dataclasses import dataclass

from pyterrier_graph.checks import is_unicode

SECTION = "section"
PASSAGE = "passage"
PASSAGE_SEPARATOR = "%p"
SECTION_SEPARATOR = "%s"
NO_PARENT = -1
# the numbers have at most 64 bits
_PASSAGE_ID = re.compile(r"(.*)%p([0-9]{1,18})", re.DOTALL)
_SECTION_ID = re.compile(r"(.*)%s([0-9]{1,18})", re.DOTALL)


class Node(NamedTuple):
    """A part of a document: a ``'section'``, whose text is its title, or a ``'passage'``.

    ``parent`` is the position of the section that contains this node, or -1 for the document's root section.
    """

    kind: str
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
    match = pattern.fullmatch(identifier) if isinstance(identifier, str) else None
    return (match[1], int(match[2])) if match else (identifier, None)


def split_text(text: str, words: int = 120) -> Iterator[str]:
    """Splits a text into passages of at most ``words`` words. No word is lost.

    Short paragraphs (separated by blank lines) are merged, and long ones are cut between words.
    """
    if words < 1:
        raise ValueError(f"a passage needs at least one word, got words={words}")
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
        nodes: Sections and passages in document order. The only node without a parent is the root section, whose text
            is the title of the document.
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
        problem = next(_problems(self), None)
        if problem is not None:
            raise ValueError(f"document {self.docno!r}: {problem}")

    @property
    def root(self) -> int:
        """The position of the root section."""
        return [node.parent for node in self.nodes].index(NO_PARENT)

    @property
    def title(self) -> str:
        """The text of the root section."""
        return self.nodes[self.root].text

    def passages(self) -> list[str]:
        """The texts of the passages, in document order."""
        return [node.text for node in self.nodes if node.kind == PASSAGE]


def with_title_passage(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Adds the titles as a passage if there is no other, since search finds passages only."""
    titles = [node.text for node in nodes if isinstance(node.text, str) and node.text.strip()]
    if not titles or any(node.kind == PASSAGE for node in nodes):
        return (*nodes,)
    return (*nodes, Node(PASSAGE, " ".join(titles), 0))


def _problems(document: StructuredDocument) -> Iterator[str]:
    """Yields what is wrong with a document."""
    nodes, ids = document.nodes, document.passage_ids
    strings = [document.docno, *document.codes, *ids]
    for row in (*nodes, *document.links, *document.references):
        strings += [value for value in row if isinstance(value, str)]
    for value in strings:
        if not is_unicode(value):
            yield f"{value!r:.60} is not valid Unicode"
    if _PASSAGE_ID.fullmatch(document.docno) or _SECTION_ID.fullmatch(document.docno):
        ends = f"'{PASSAGE_SEPARATOR}' or '{SECTION_SEPARATOR}' and a number"
        yield f"a docno must not look like the id of a passage or section (it ends in {ends})"
    if any("\0" in identifier for identifier in (document.docno, *ids)):
        yield "ids must not contain NUL characters"
    yield from _problems_of_tree(nodes)
    if ids and len(ids) != len(document.passages()):
        yield f"has {len(document.passages())} passages, but {len(ids)} passage_ids"
    if "" in ids:
        yield "the id of a passage must not be empty"
    if len(set(ids)) < len(ids):
        yield "two passages have the same id"
    ends_of_edges = [reference.source for reference in document.references]
    for link in document.links:
        ends_of_edges += [link.source, link.target]
    for position in ends_of_edges:
        if not 0 <= position < len(nodes):
            yield f"a link or reference is at node {position}, but there are {len(nodes)} nodes"
    if any(not reference.target for reference in document.references):
        yield "a reference names no document"


def _problems_of_tree(nodes: Sequence[Node]) -> Iterator[str]:
    """Yields reasons why nodes are not a tree of sections with passages."""
    roots = sum(node.parent == NO_PARENT for node in nodes)
    if roots != 1:
        yield f"needs exactly one root section (parent -1), has {roots}"
    sections = {position for position, node in enumerate(nodes) if node.kind == SECTION}
    for position, node in enumerate(nodes):
        if node.kind not in (SECTION, PASSAGE):
            yield f"node {position} has kind {node.kind!r}, expected 'section' or 'passage'"
        if node.parent == NO_PARENT and position not in sections:
            yield f"node {position} is the root, so it must be a section"
        if node.parent != NO_PARENT and node.parent not in sections:
            yield f"node {position} lies in node {node.parent}, which is not a section"
    if any(node.parent >= position for position, node in enumerate(nodes)):
        parents = {position: [node.parent] for position, node in enumerate(nodes)}
        try:
            TopologicalSorter(parents).prepare()
        except CycleError as error:
            yield f"its section tree has a cycle through nodes {error.args[1][1:]}"
