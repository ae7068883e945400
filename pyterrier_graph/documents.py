"""Structured documents: what a dataset provides and a graph is built from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from numbers import Integral
from typing import Any, NamedTuple, TypeVar

from pyterrier_graph.checks import check_type, is_unicode

SECTION = "section"
PASSAGE = "passage"
PASSAGE_SEPARATOR = "%p"
SECTION_SEPARATOR = "%s"
NO_PARENT = -1
MAX_DIGITS = 18


class Node(NamedTuple):
    """A part of a document: a ``'section'``, whose text is its title, or a ``'passage'``.

    ``parent`` is the position of the section that contains this node, or -1 for the document's root section.
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

    ``target`` is a docno, which stands for that document's root section, or ``docno%pN``, which is that document's
    passage N, also where passages have ids of their own.
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
    return (docno, int(number)) if separator and is_number(number) else (identifier, None)


def is_number(text: str) -> bool:
    """Whether a text is a number that an id can have: digits, and few enough for 64 bits."""
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS


def level_mismatch(found: Iterable[str], judged: Iterable[str]) -> str | None:
    """Says how to evaluate a run of passages by judgments of sections or documents, or the other way round.

    Returns None if an id is both in the run (``found``) and ``judged``, or if both have ids of one kind.
    """
    found, judged = set(found), set(judged)
    levels = run_level, judged_level = _level(found), _level(judged)
    if not found or not judged or found & judged or run_level == judged_level:
        return None
    aim = max(levels, key=LEVELS.index)
    if "sections" in levels:
        relation = "document" if aim == "documents" else "structural"
        fold, measure = f'graph.fold("{relation}")', f'on_nodes(nDCG @ 10, graph, "{relation}")'
    else:
        fold, measure = "pt.text.max_passage()", "on_documents(nDCG @ 10)"
    first = "" if run_level == aim else f"add {fold} to the pipeline, or "
    return (
        f"no judged docno is in the run, so every measure is 0: the run has {run_level}, such as {min(found)!r}, the "
        f"judgments have {judged_level}, such as {min(judged)!r}. To evaluate {aim}, {first}use "
        f"pyterrier_graph.measures.{measure}"
    )


LEVELS = ("passages", "sections", "documents")


def _level(names: Iterable[str]) -> str:
    """What ids are of: passages if one looks like the id of a passage, else sections, else documents."""
    marks = {name.rstrip("0123456789")[-len(PASSAGE_SEPARATOR) :] for name in names if name[-1:].isdigit()}
    return LEVELS[0 if PASSAGE_SEPARATOR in marks else 1 if SECTION_SEPARATOR in marks else 2]


def split_text(text: str, words: int = 120) -> Iterator[str]:
    """Splits running text into passages.

    Paragraphs (separated by blank lines) are merged until a passage has about ``words`` words. A longer paragraph is
    cut between words. No word is lost, and white space is normalized.
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
        nodes: Its parts in document order. Only the root section has no parent; its text is the document's title.
        links: Edges inside the document beyond order and structure.
        references: Edges to other documents.
        codes: Attributes that documents can share (classification codes, modules, concepts), for negative sampling.
        passage_ids: Ids that the passages have already, in document order. Without any, passage N is ``docno%pN``.
    """

    docno: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...] = ()
    references: tuple[Reference, ...] = ()
    codes: tuple[str, ...] = ()
    passage_ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for problem in _problems(self):
            raise ValueError(f"document {self.docno!r}: {problem}")

    @property
    def root(self) -> int:
        """Position of the root section."""
        return next(position for position, node in enumerate(self.nodes) if node.parent == NO_PARENT)

    @property
    def title(self) -> str:
        """Text of the root section."""
        return self.nodes[self.root].text

    def passages(self) -> list[str]:
        """The texts of the passages, in document order."""
        return [node.text for node in self.nodes if node.kind == PASSAGE]

    @classmethod
    def from_record(cls, record: Mapping[str, Any], *, passage_words: int = 120) -> StructuredDocument:
        """Reads a document as a corpus iterator yields it.

        Args:
            record: A dictionary with ``docno`` and either ``nodes`` (optionally ``links`` and ``references``), or
                ``text`` (optionally ``title``), which is split into passages under one section. ``codes``, and
                ``passage_ids`` where there are ``nodes``, are optional.
            passage_words: Words per passage for documents without structure.

        Raises:
            ValueError: If a field is missing or the structure is not a tree; the message names the document.
        """
        check_type("a record", record, Mapping, "a dictionary with docno and text")
        docno = record.get("docno")
        if not isinstance(docno, str) or not docno:
            raise ValueError(f"a document needs a non-empty text as 'docno', got {docno!r} (fields: {sorted(record)})")
        codes = _texts(record, "codes")
        if record.get("nodes") is not None:
            nodes, links = _read(record, "nodes", Node), _read(record, "links", Link)
            return cls(
                docno, nodes, links, _read(record, "references", Reference), codes, _texts(record, "passage_ids")
            )
        text = record.get("text")
        if not isinstance(text, str):
            raise ValueError(f"document {docno!r} has neither 'nodes' nor a text in 'text' (fields: {sorted(record)})")
        title = record.get("title")
        title = "" if is_missing(title) else title
        if not isinstance(title, str):
            raise ValueError(f"document {docno!r}: 'title' must be text, got {type(title).__name__}")
        passages = (Node(PASSAGE, passage, 0) for passage in split_text(text, passage_words))
        return cls(docno, (Node(SECTION, title, NO_PARENT), *passages), (), (), codes)


def is_missing(value: Any) -> bool:
    """Whether a field of a record is empty: None, or NaN as in a DataFrame."""
    return value is None or (isinstance(value, float) and value != value)


def _texts(record: Mapping[str, Any], field: str) -> tuple[str, ...]:
    """A field of a record that is a list of texts."""
    value = record.get(field)
    if is_missing(value):
        return ()
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise ValueError(f"document {record['docno']!r}: {field!r} must be a list of texts, got {value!r:.60}")
    return tuple(value)


def _read(record: Mapping[str, Any], field: str, kind: type[Part]) -> tuple[Part, ...]:
    """A field of a record, as nodes, links or references."""
    rows: Any = record.get(field)
    try:
        return () if is_missing(rows) else tuple(kind(*row) for row in rows)
    except TypeError as error:
        fields = ", ".join(kind._fields)
        raise ValueError(f"document {record['docno']!r}: {field!r} must be a list of ({fields}): {error}") from error


def _problems(document: StructuredDocument) -> Iterator[str]:
    """What is wrong with a document; what comes first has to be repaired before the rest can be checked."""
    yield from _wrong_types(document)
    nodes = document.nodes
    if split_passage_id(document.docno)[1] is not None:
        yield f"a docno must not look like a passage id (it ends in '{PASSAGE_SEPARATOR}' and a number)"
    if (roots := sum(node.parent == NO_PARENT for node in nodes)) != 1:
        yield f"needs exactly one root section (parent -1), has {roots}"
    for position, node in enumerate(nodes):
        if node.kind not in (SECTION, PASSAGE):
            yield f"node {position} has kind {node.kind!r}, expected 'section' or 'passage'"
        if node.parent == NO_PARENT:
            if node.kind != SECTION:
                yield f"node {position} is the root, so it must be a section"
        elif not 0 <= node.parent < len(nodes):
            yield f"node {position} has parent {node.parent}, but there are {len(nodes)} nodes"
        elif nodes[node.parent].kind != SECTION:
            yield f"node {position} lies in node {node.parent}, which is not a section"
    try:
        if any(node.parent >= position for position, node in enumerate(nodes)):  # else sections precede their parts
            TopologicalSorter({position: [node.parent] for position, node in enumerate(nodes)}).prepare()
    except CycleError as error:
        yield f"its section tree has a cycle through nodes {error.args[1][1:]}"
    if document.passage_ids:
        yield from _wrong_ids(document.passage_ids, sum(node.kind == PASSAGE for node in nodes))
    yield from _wrong_letters(document)
    for link in document.links:
        if not (0 <= link.source < len(nodes) and 0 <= link.target < len(nodes)):
            yield f"{link} points outside of its {len(nodes)} nodes"
    for reference in document.references:
        if not 0 <= reference.source < len(nodes):
            yield f"{reference} starts outside of its {len(nodes)} nodes"
        if not reference.target:
            yield f"{reference} names no document"


def _wrong_types(document: StructuredDocument) -> Iterator[str]:
    if not isinstance(document.docno, str):
        yield f"a docno must be a text, got {document.docno!r:.60}"
    parts: tuple[tuple[str, Iterable[Any], tuple[type, ...]], ...] = (
        ("node", document.nodes, (str, str, Integral)),
        ("link", document.links, (str, Integral, Integral)),
        ("reference", document.references, (str, Integral, str)),
    )
    for noun, rows, kinds in parts:
        for position, row in enumerate(rows):
            if not all(map(isinstance, row, kinds)):
                expected = ", ".join("a text" if kind is str else "a whole number" for kind in kinds)
                yield f"{noun} {position} is {tuple(row)!r:.120}, expected ({', '.join(row._fields)}): {expected}"
    for code in document.codes:
        if not isinstance(code, str):
            yield f"a code must be a text, got {code!r:.60}"


def _wrong_letters(document: StructuredDocument) -> Iterator[str]:
    """Half of a pair of surrogates, which JSON may have, and which no file can."""
    texts = [document.docno, *document.codes, *document.passage_ids]
    texts += [text for part in (*document.nodes, *document.links, *document.references) for text in part[:1]]
    texts += [node.text for node in document.nodes] + [reference.target for reference in document.references]
    if not is_unicode("".join(texts)):
        yield f"{next(text for text in texts if not is_unicode(text))!r:.60} is not valid Unicode"


def _wrong_ids(passage_ids: tuple[str, ...], passages: int) -> Iterator[str]:
    if len(passage_ids) != passages:
        yield f"has {passages} passages, but {len(passage_ids)} passage_ids"
    for identifier in passage_ids:
        if not isinstance(identifier, str) or not identifier or "\0" in identifier:
            yield f"the id of a passage must be a text without NUL characters, got {identifier!r}"
    if len({*passage_ids}) < len(passage_ids):
        yield "two passages have the same id"
