"""Reads records of ir_datasets and other corpora, with their sections, paragraphs or headings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import groupby
from numbers import Integral
from typing import Any

import pandas as pd
from pydantic import ValidationError

from pyterrier_graph.documents.document import (
    NO_PARENT,
    PASSAGE,
    SECTION,
    Node,
    StructuredDocument,
    split_text,
    with_title_passage,
)

Record = Mapping[str, Any]
STRUCTURE = ("nodes", "links", "references", "codes", "passage_ids")
DocumentOf = Callable[[Record], Any]  # the docno of a passage's document
Section = tuple[str, list[str]]  # title and paragraphs


def structured_documents(
    corpus_iter: Iterable[Record | StructuredDocument] | pd.DataFrame,
    document: str | DocumentOf | None,
    passage_words: int,
) -> Iterator[tuple[StructuredDocument, Any]]:
    """Documents of a corpus, as in :meth:`DocumentGraph.index`, each with the lines of its nodes or None."""
    if isinstance(corpus_iter, pd.DataFrame):
        corpus_iter = corpus_iter.astype(object).where(corpus_iter.notna(), None).to_dict("records")
    if isinstance(corpus_iter, str | Mapping) or not isinstance(corpus_iter, Iterable):
        kinds = "documents: records with 'docno' and 'text', or dataset.get_corpus_iter()"
        raise TypeError(f"corpus_iter must be {kinds}, got {corpus_iter!r:.60}")
    if document is None:
        return (_with_lines(record, passage_words) for record in corpus_iter)
    return ((made, None) for made in documents_of_rows(corpus_iter, document))


def _with_lines(
    record: Record | StructuredDocument, passage_words: int
) -> tuple[StructuredDocument, Any]:
    if isinstance(record, StructuredDocument):
        return record, None
    return read_record(record, passage_words=passage_words), record.get("lines")


def read_record(record: Record, *, passage_words: int = 120) -> StructuredDocument:
    """Makes a structured document of a record of a corpus.

    The fields of the record decide how it is read. The first matching line of this table counts:

    ===================================  =======================================================================
    fields                               document
    ===================================  =======================================================================
    ``nodes``                            a :class:`~pyterrier_graph.StructuredDocument`: ``links``, ``references``, ...
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
        passage_words: Maximum number of words per passage, where texts are split.

    Raises:
        TypeError: If the record is not a dictionary.
        ValueError: If a field is missing or has a wrong type, or the structure is not a tree. The message names the
            document.
    """
    if not isinstance(record, Mapping):
        raise TypeError(f"a document must be a dictionary, got {record!r:.60}")
    docno = record.get("docno")
    if not isinstance(docno, str) or not docno:
        raise ValueError(
            f"a document needs a non-empty string as 'docno', got {docno!r} (fields: {sorted(record)})"
        )
    structure = {name: record[name] for name in STRUCTURE if not is_missing(record.get(name))}
    if "nodes" not in structure:
        codes = structure.get("codes", ())
        structure = {"nodes": _read_nodes(record, passage_words), "codes": codes}
    try:
        return StructuredDocument(docno, **structure)
    except ValidationError as error:
        raise ValueError(f"document {docno!r}: {error}") from error


def is_missing(value: Any) -> bool:
    """Returns whether a field of a record is None, or NaN or pd.NA as in a DataFrame."""
    is_nan = isinstance(value, float) and value != value
    return value is None or value is pd.NA or is_nan


def _read_nodes(record: Record, passage_words: int) -> tuple[Node, ...]:
    """The nodes of a record whose text is in other fields than ``nodes``."""
    docno = record["docno"]
    fields = next((names for names in RECORD_TYPES if record.keys() >= {*names}), None)
    if fields is None:
        raise ValueError(
            f"document {docno!r} has no fields that pyterrier_graph.read_record reads, such as 'text' "
            f"(fields: {sorted(record)}); a function of your own can read it: graph.index(map(function, documents))"
        )
    try:
        title, sections = _text(record, "title"), RECORD_TYPES[fields](record)
        return _nodes(title, sections, passage_words)
    except (TypeError, ValueError, AttributeError) as error:
        names = ", ".join(fields)
        raise ValueError(f"document {docno!r}: {names} cannot be read: {error}") from error


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


def _by_headings(record: Record) -> Iterator[Section]:
    """Reads a web page whose headings are a list, and lines of its body."""
    title = _text(record, "title")
    lines = [line.strip() for line in _text(record, "body").splitlines()]
    name, start = "", 0
    for heading in map(str.strip, _text(record, "headings").splitlines()):
        if heading not in ("", title):
            with suppress(ValueError):  # the body does not have it
                end = lines.index(heading, start)
                yield name, lines[start:end]
                name, start = heading, end + 1
    yield name, lines[start:]


def _article(record: Record) -> Iterator[Section]:
    """Reads an article with an abstract. In ``cord19/fulltext``, each paragraph of a section is a row of its own."""
    yield "", [_text(record, "abstract")]
    if isinstance(record.get("body"), str | float | None):
        yield "", [_text(record, "body")]
        return
    for name, rows in groupby(_sections(record["body"]), key=lambda section: section[0]):
        yield name, [paragraph for _, paragraphs in rows for paragraph in paragraphs]


def _text(record: Record, field: str) -> str:
    """Returns the text of a field, which may be missing."""
    value: Any = record.get(field)
    return "" if is_missing(value) else value


# Readers of the sections of records by the fields that they need.
RECORD_TYPES: dict[tuple[str, ...], Callable[[Record], Iterable[Section]]] = {
    ("sections",): lambda record: _sections(record["sections"]),
    ("headings", "body"): _by_headings,
    ("text",): lambda record: [("", [record["text"]])],
    ("abstract",): _article,
    ("body",): lambda record: [("", _text(record, "body").splitlines())],
}


# --- corpora whose rows are passages already


def documents_of_rows(
    rows: Iterable[Any], document: str | DocumentOf
) -> Iterator[StructuredDocument]:
    """Documents whose passages are consecutive rows. Memory holds the rows of one document.

    Passages keep the ``docno`` of their rows as ids. The title of a document is the ``title`` of its rows. If titles
    differ, consecutive rows with the same title become a section.

    Args:
        rows: Passages: ``docno``, ``text``, and optionally ``title``.
        document: The field with the docno of a row's document (a string or an integer), or a function of the row.
    """
    for docno, group in groupby(rows, key=lambda row: _docno_of(row, document)):
        passages = [*group]
        ids = tuple(row["docno"] for row in passages)
        yield StructuredDocument(docno, _nodes_of_rows(passages), passage_ids=ids)


def _docno_of(row: Any, document: str | DocumentOf) -> str:
    """The docno of a row's document; raises ValueError if it has none, or the row is no passage."""
    fields = row if isinstance(row, Mapping) else {}
    if not (isinstance(fields.get("docno"), str) and isinstance(fields.get("text"), str)):
        raise ValueError(
            f"with document=, a row needs strings as 'docno' and 'text', got {row!r:.80}"
        )
    docno = row.get(document) if isinstance(document, str) else document(row)
    if not isinstance(docno, str | Integral) or docno == "":
        source = f"in {document!r}" if isinstance(document, str) else "from document="
        raise ValueError(
            f"passage {row['docno']!r}: no docno of its document {source}, but {docno!r}"
        )
    return str(docno)


def _nodes_of_rows(rows: list[Record]) -> tuple[Node, ...]:
    values = [row.get("title") for row in rows]
    titles = [value if isinstance(value, str) else "" for value in values]
    common = titles[0] if len(set(titles)) == 1 else ""
    nodes = [Node(SECTION, common, NO_PARENT)]
    parent, above = 0, common  # the section of a row, and its title
    for row, title in zip(rows, titles, strict=True):
        if title != above:
            parent, above = 0, title
            if title:
                parent = len(nodes)
                nodes.append(Node(SECTION, title, 0))
        nodes.append(Node(PASSAGE, row["text"], parent))
    return tuple(nodes)
