"""Structured documents: what a dataset provides and a graph is built from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

SECTION = "section"
PASSAGE = "passage"
PASSAGE_SEPARATOR = "%p"
NO_PARENT = -1


class Node(NamedTuple):
    """A part of a document.

    Attributes:
        kind: ``'section'`` (a section, whose text is its title) or ``'passage'`` (running text).
        text: The title or the passage.
        parent: Position of the section that contains this node, or -1 for the document's root section.
    """

    kind: str
    text: str
    parent: int


class Link(NamedTuple):
    """An edge between two nodes of the same document, by their positions; ``'internal'``, or a name of your own."""

    relation: str
    source: int
    target: int


class Reference(NamedTuple):
    """An edge from a node to another document; ``'external'``, or a name of your own.

    ``target`` is a docno, which stands for that document's root section, or a passage id (``docno%pN``).
    """

    relation: str
    source: int
    target: str


Part = TypeVar("Part", Node, Link, Reference)


def passage_id(docno: str, number: int) -> str:
    """The id of a document's passage: ``docno%pN``, where N counts from 0 in document order."""
    return f"{docno}{PASSAGE_SEPARATOR}{number}"


def split_passage_id(identifier: str) -> tuple[str, int | None]:
    """Splits ``docno%pN`` into docno and N; N is None if the id is not the id of a passage."""
    docno, separator, number = identifier.rpartition(PASSAGE_SEPARATOR)
    if separator and number.isascii() and number.isdigit():
        return docno, int(number)
    return identifier, None


def level_mismatch(found: Iterable[str], judged: Iterable[str]) -> str | None:
    """Says how to evaluate passages by judgments of documents, or documents by judgments of passages.

    Args:
        found: The ids in a run.
        judged: The ids in the judgments.

    Returns:
        A message if the run has passages (``docno%pN``), the judgments have documents, or the other way round, and no
        id is in both; None otherwise.
    """
    found, judged = set(found), set(judged)
    if not found or not judged or not found.isdisjoint(judged):
        return None
    of_passages = [any(split_passage_id(name)[1] is not None for name in names) for names in (found, judged)]
    if of_passages[0] == of_passages[1]:
        return None
    kinds = ("passages", "documents") if of_passages[0] else ("documents", "passages")
    first = "add pt.text.max_passage() to the pipeline, or " if of_passages[0] else ""
    return (
        f"no judged docno is in the run, so every measure is 0: the run has {kinds[0]}, such as {min(found)!r}, the "
        f"judgments have {kinds[1]}, such as {min(judged)!r}. To evaluate documents, {first}use "
        "pyterrier_graph.measures.on_documents(nDCG @ 10)"
    )


def split_text(text: str, words: int = 120) -> Iterator[str]:
    """Splits running text into passages.

    Paragraphs (separated by blank lines) are merged until a passage has about ``words`` words. A longer paragraph is
    cut between words. No word is lost.

    Args:
        text: The text.
        words: The length, in words separated by white space, that a passage is filled up to.

    Yields:
        str: The passages, in order, with white space normalized.
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
        docno: The document's id.
        nodes: Its parts in document order. Exactly one node, the root section, has no parent; the text of the root
            section is the document's title.
        links: Edges inside the document beyond order and structure.
        references: Edges to other documents.
        codes: Attributes that documents can share (classification codes, modules, concepts), for negative sampling.
    """

    docno: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...] = ()
    references: tuple[Reference, ...] = ()
    codes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(self)

    @property
    def root(self) -> int:
        """Position of the root section."""
        return next(position for position, node in enumerate(self.nodes) if node.parent == NO_PARENT)

    @property
    def title(self) -> str:
        """Text of the root section."""
        return self.nodes[self.root].text

    def passages(self) -> list[str]:
        """The texts of the passages, in document order; passage N has the id ``docno%pN``."""
        return [node.text for node in self.nodes if node.kind == PASSAGE]

    @classmethod
    def from_record(cls, record: Mapping[str, Any], *, passage_words: int = 120) -> StructuredDocument:
        """Reads a document as a corpus iterator yields it.

        Args:
            record: A dictionary with ``docno`` and either ``nodes`` (optionally ``links`` and ``references``), or
                ``text`` (optionally ``title``), which is split into passages under one section. ``codes`` are optional.
            passage_words: Words per passage for documents without structure.

        Raises:
            ValueError: If a field is missing or the structure is not a tree; the message names the document.
        """
        docno = record.get("docno")
        if not isinstance(docno, str) or not docno:
            raise ValueError(f"a document needs a non-empty text as 'docno', got {docno!r} (fields: {sorted(record)})")
        codes = tuple(record.get("codes") or ())
        if record.get("nodes") is not None:
            return cls(
                docno,
                _read(record, "nodes", Node),
                _read(record, "links", Link),
                _read(record, "references", Reference),
                codes,
            )
        text = record.get("text")
        if not isinstance(text, str):
            raise ValueError(f"document {docno!r} has neither 'nodes' nor a text in 'text' (fields: {sorted(record)})")
        title = record.get("title") or ""
        if not isinstance(title, str):
            raise ValueError(f"document {docno!r}: 'title' must be text, got {type(title).__name__}")
        passages = (Node(PASSAGE, passage, 0) for passage in split_text(text, passage_words))
        return cls(docno, (Node(SECTION, title, NO_PARENT), *passages), (), (), codes)


def _read(record: Mapping[str, Any], field: str, kind: type[Part]) -> tuple[Part, ...]:
    """A field of a record, as nodes, links or references."""
    rows = record.get(field)
    try:
        return tuple(kind(*row) for row in rows) if rows is not None else ()
    except TypeError as error:
        fields = ", ".join(kind._fields)
        raise ValueError(f"document {record['docno']!r}: {field!r} must be a list of ({fields}): {error}") from error


def _check(document: StructuredDocument) -> None:
    def fail(problem: str) -> None:
        raise ValueError(f"document {document.docno!r}: {problem}")

    nodes = document.nodes
    if split_passage_id(document.docno)[1] is not None:
        fail(f"a docno must not look like a passage id (it ends in '{PASSAGE_SEPARATOR}' and a number)")
    roots = [position for position, node in enumerate(nodes) if node.parent == NO_PARENT]
    if len(roots) != 1:
        fail(f"needs exactly one root section (parent -1), has {len(roots)}")
    for position, node in enumerate(nodes):
        if node.kind not in (SECTION, PASSAGE):
            fail(f"node {position} has kind {node.kind!r}, expected 'section' or 'passage'")
        if not isinstance(node.text, str):
            fail(f"node {position} has no text but {node.text!r}")
        if node.parent == NO_PARENT:
            if node.kind != SECTION:
                fail(f"node {position} is the root, so it must be a section")
        elif not 0 <= node.parent < len(nodes):
            fail(f"node {position} has parent {node.parent}, but there are {len(nodes)} nodes")
        elif nodes[node.parent].kind != SECTION:
            fail(f"node {position} lies in node {node.parent}, which is not a section")
    reaches_root = {roots[0]}
    for position in range(len(nodes)):
        path: dict[int, None] = {}  # an ordered set
        while position not in reaches_root:
            if position in path:
                fail(f"its section tree has a cycle through nodes {[*path][[*path].index(position) :]}")
            path[position] = None
            position = nodes[position].parent
        reaches_root.update(path)
    for link in document.links:
        if not (0 <= link.source < len(nodes) and 0 <= link.target < len(nodes)):
            fail(f"{link} points outside of its {len(nodes)} nodes")
    for reference in document.references:
        if not 0 <= reference.source < len(nodes):
            fail(f"{reference} starts outside of its {len(nodes)} nodes")
        if not isinstance(reference.target, str) or not reference.target:
            fail(f"{reference} names no document")
