"""Structured documents: what datasets and files provide, and what graphs are built from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

from pydantic import ValidationError
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


STRUCTURE = ("nodes", "links", "references", "codes", "passage_ids")


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

    @classmethod
    def from_record(
        cls, record: Mapping[str, Any], *, passage_words: int = 120
    ) -> StructuredDocument:
        """Makes a document of a record, as corpus iterators yield them.

        Args:
            record: A dictionary with ``docno`` and either ``nodes`` (optionally ``links``, ``references`` and
                ``passage_ids``) or ``text`` (optionally ``title``), which is split into passages under one section.
                If the text is empty, the title is the only passage. ``codes`` are always optional.
            passage_words: Maximum number of words per passage of a document without structure.

        Raises:
            TypeError: If the record is not a dictionary.
            ValueError: If a field is missing or the structure is not a tree. The message names the document.
        """
        if not isinstance(record, Mapping):
            raise TypeError(f"a document must be a dictionary, got {record!r:.60}")
        docno = record.get("docno")
        if not isinstance(docno, str) or not docno:
            raise ValueError(
                f"a document needs a non-empty string as 'docno', got {docno!r} (fields: {sorted(record)})"
            )
        fields = {name: record[name] for name in STRUCTURE if not is_missing(record.get(name))}
        try:
            if "nodes" in fields:
                return cls(docno, **fields)
            nodes = _nodes_of_text(record, passage_words)
            return cls(docno, nodes, codes=fields.get("codes", ()))
        except ValidationError as error:
            raise ValueError(f"document {docno!r}: {error}") from error


def _nodes_of_text(record: Mapping[str, Any], passage_words: int) -> tuple[Node, ...]:
    """The nodes of a record without structure: passages under a section with its title."""
    text: Any = record.get("text")
    if not isinstance(text, str):
        raise ValueError(
            f"document {record['docno']!r} has neither 'nodes' nor a string as 'text' (fields: {sorted(record)})"
        )
    title: Any = record.get("title")
    root = Node(SECTION, "" if is_missing(title) else title, NO_PARENT)
    passages = (Node(PASSAGE, passage, 0) for passage in split_text(text, passage_words))
    return with_title_passage((root, *passages))


def with_title_passage(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Adds the titles as a passage if there is no other, since search finds passages only."""
    titles = [node.text for node in nodes if isinstance(node.text, str) and node.text.strip()]
    if not titles or any(node.kind == PASSAGE for node in nodes):
        return (*nodes,)
    return (*nodes, Node(PASSAGE, " ".join(titles), 0))


def is_missing(value: Any) -> bool:
    """Returns whether a field of a record is None, or NaN or pd.NA as in a DataFrame."""
    import pandas as pd

    return pd.api.types.is_scalar(value) and bool(pd.isna(value))


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
