"""Reads records of ir_datasets and other corpora, with their sections, paragraphs or headings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

from pyterrier_graph.documents.document import (
    NO_PARENT,
    PASSAGE,
    SECTION,
    Node,
    StructuredDocument,
    is_missing,
    split_text,
    with_title_passage,
)

Record = Mapping[str, Any]
Section = tuple[str, list[str]]  # title and paragraphs
Sectioned = tuple[str, Iterable[Section]]  # the title of a document, and its sections


def read_record(record: Record, *, passage_words: int = 120) -> StructuredDocument:
    """Makes a structured document of a record of a corpus.

    The fields of the record decide how it is read. The first matching line of this table counts:

    ===================================  =======================================================================
    fields                               document
    ===================================  =======================================================================
    ``nodes``                            as :meth:`~pyterrier_graph.StructuredDocument.from_record` reads it
    ``sections``                         pairs of a title and a text, or a list of paragraphs, under ``title``
    ``headings``, ``body``               ``msmarco-document-v2``: a section begins at each heading in the body
    ``text``                             ``beir/*`` and most others: ``title``, and passages of the text
    ``abstract``                         ``cord19/fulltext``, ``pmc``, ``medline``: abstract, and sections of ``body``
    ``body``                             ``msmarco-document``: ``title``, and passages of the lines of the body
    ===================================  =======================================================================

    Passages do not cross borders of sections. Short paragraphs of a section are joined. A section without text is kept
    if it has a title, and the text of a section without a title belongs to the root. The titles of a document without
    any text are its only passage. Citations between documents are not read: in ``beir/scidocs`` they are the judgments.

    Args:
        record: A dictionary with ``docno`` and the fields of one of these lines. ``codes`` are optional.
        passage_words: Maximum number of words per passage.

    Raises:
        ValueError: If a field is missing or has a wrong type. The message names the document.
    """
    if (
        not isinstance(record, Mapping)
        or "docno" not in record
        or not is_missing(record.get("nodes"))
    ):
        return StructuredDocument.from_record(record)
    docno = record["docno"]
    fields = next((fields for fields in RECORD_TYPES if record.keys() >= {*fields}), None)
    if fields is None:
        raise ValueError(
            f"document {docno!r} has no fields that pyterrier_graph.read_record reads, such as 'text' "
            f"(fields: {sorted(record)}); a function of your own can read it: graph.index(map(function, documents))"
        )
    try:
        nodes = _nodes(*RECORD_TYPES[fields](record), passage_words)
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"document {docno!r}: {', '.join(fields)} cannot be read: {error}"
        ) from error
    return StructuredDocument.from_record(
        {"docno": docno, "nodes": nodes, "codes": record.get("codes")}
    )


def _nodes(title: str, sections: Iterable[Section], passage_words: int) -> tuple[Node, ...]:
    """The nodes of a document with these sections."""
    nodes = [Node(SECTION, title, NO_PARENT)]
    for name, paragraphs in sections:
        parent = len(nodes) if name else 0
        if name:
            nodes.append(Node(SECTION, name, 0))
        passages = split_text("\n\n".join(paragraphs), passage_words)
        nodes += (Node(PASSAGE, text, parent) for text in passages)
    return with_title_passage(nodes)


def _sections(rows: Iterable[Any] | None) -> Iterator[Section]:
    """Yields sections of pairs of a title and a text, or a list of paragraphs. Both may be missing."""
    for title, text in () if rows is None else rows:
        paragraphs = [text] if text is None or isinstance(text, str) else text
        yield (title or "").strip(), [paragraph or "" for paragraph in paragraphs]


def _by_headings(record: Record) -> Sectioned:
    """Reads a web page whose headings are a list, and lines of its body."""
    title = _text(record, "title")
    lines = [line.strip() for line in _text(record, "body").splitlines()]
    starts = [(-1, "")]
    for heading in map(str.strip, _text(record, "headings").splitlines()):
        if heading not in ("", title):
            with suppress(ValueError):  # the body does not have it
                starts.append((lines.index(heading, starts[-1][0] + 1), heading))
    ends = [start for start, _ in starts[1:]] + [len(lines)]
    return title, [
        (name, lines[start + 1 : end]) for (start, name), end in zip(starts, ends, strict=True)
    ]


def _article(record: Record) -> Sectioned:
    """Reads an article with an abstract. In ``cord19/fulltext``, each paragraph of a section is a row of its own."""
    sections: list[Section] = [("", [_text(record, "abstract")])]
    if isinstance(record.get("body"), str | float | None):
        sections.append(("", [_text(record, "body")]))
    else:
        for name, rows in groupby(_sections(record["body"]), key=itemgetter(0)):
            sections.append((name, [*chain(*(texts for _, texts in rows))]))
    return _text(record, "title"), sections


def _page(record: Record) -> Sectioned:
    """Reads a web page whose body has a line for each block of text."""
    return _text(record, "title"), [("", _text(record, "body").splitlines())]


def _text(record: Record, field: str) -> str:
    """Returns the text of a field, which may be missing."""
    value: Any = record.get(field)
    return "" if is_missing(value) else value


# Readers of records by the fields that they need.
RECORD_TYPES: dict[tuple[str, ...], Callable[[Record], Sectioned]] = {
    ("sections",): lambda record: (_text(record, "title"), _sections(record["sections"])),
    ("headings", "body"): _by_headings,
    ("text",): lambda record: (_text(record, "title"), [("", [record["text"]])]),
    ("abstract",): _article,
    ("body",): _page,
}
