"""Reads records of ir_datasets and other corpora, whose fields have texts, sections or nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from numbers import Integral
from typing import Any

import pandas as pd

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
TEXTS = ("text", "abstract", "body")
DocumentOf = Callable[[Record], Any]  # the docno of a passage's document


def structured_documents(
    corpus_iter: Iterable[Any],
    document: str | DocumentOf | None,
    passage_words: int,
) -> Iterator[tuple[StructuredDocument, Any]]:
    """Documents of a corpus, as in :meth:`DocumentGraph.index`, each with the lines of its nodes or None."""
    if isinstance(corpus_iter, pd.DataFrame):
        corpus_iter = corpus_iter.to_dict("records")
    if document is not None:
        for structured in documents_of_rows(corpus_iter, document):
            yield structured, None
        return
    for record in corpus_iter:
        if isinstance(record, StructuredDocument):
            yield record, None
        else:
            yield read_record(record, passage_words=passage_words), record.get("lines")


def read_record(record: Record, *, passage_words: int = 120) -> StructuredDocument:
    """Makes a structured document of a record of a corpus.

    The fields of the record decide how it is read. The first matching line of this table counts:

    ================  ============================================================================================
    field             document
    ================  ============================================================================================
    ``nodes``         a :class:`~pyterrier_graph.StructuredDocument`: ``links``, ``references``, ...
    ``sections``      ``title``, and pairs of a title and a text, or a list of paragraphs
    ``text``          ``title``, and passages of the text: ``beir/*`` and most others
    ``abstract``      ``title``, and passages of the abstract: ``cord19``, ``medline``
    ``body``          ``title``, and passages of the body: ``disks45``, ``msmarco-document``
    ================  ============================================================================================

    Passages do not cross borders of sections. Short paragraphs of a section are joined. A section without text is kept
    if it has a title, and the text of a section without a title belongs to the root. The titles of a document without
    any text are its only passage. Citations between documents are not read: in ``beir/scidocs`` they are the judgments.

    Args:
        record: A dictionary with ``docno`` and one of these fields. ``codes`` are optional.
        passage_words: Maximum number of words per passage, where texts are split.

    Raises:
        ValueError: If a field is missing or has a wrong type, or the structure is not a tree. The message names the
            document.
    """
    if not isinstance(record, Mapping) or "docno" not in record:
        raise ValueError(f"a document must be a dictionary with 'docno', got {record!r:.80}")
    docno = record["docno"]
    names = STRUCTURE if "nodes" in record else ("codes",)
    structure = {name: record[name] for name in names if name in record}
    try:
        if "nodes" not in record:
            structure["nodes"] = _read_nodes(record, passage_words)
        return StructuredDocument(docno, **structure)
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"document {docno!r}: {error}") from error


def _read_nodes(record: Record, passage_words: int) -> tuple[Node, ...]:
    """The nodes of a record with sections or a text."""
    sections = record.get("sections")
    if sections is None:
        field = next((field for field in TEXTS if field in record), None)
        if field is None:
            raise ValueError(
                "no field that pyterrier_graph.read_record reads, such as 'text' "
                f"(fields: {sorted(record)}); a function of your own can read it: "
                "graph.index(map(function, documents))"
            )
        sections = [("", record[field])]
    nodes = [Node(SECTION, _title(record), NO_PARENT)]
    for name, text in sections:
        paragraphs = [text] if isinstance(text, str) else [*text]
        parent = 0
        if name:
            parent = len(nodes)
            nodes.append(Node(SECTION, name, 0))
        section_text = "\n\n".join(paragraphs)
        for passage in split_text(section_text, passage_words):
            nodes.append(Node(PASSAGE, passage, parent))
    return with_title_passage(nodes)


def _title(record: Record) -> str:
    """The title of a record; in rows of a DataFrame it may be NaN."""
    title = record.get("title")
    if isinstance(title, str):
        return title
    return ""


# --- corpora whose rows are passages already


def documents_of_rows(
    rows: Iterable[Record], document: str | DocumentOf
) -> Iterator[StructuredDocument]:
    """Documents whose passages are consecutive rows. Memory holds the rows of one document.

    Passages keep the ``docno`` of their rows as ids. The title of a document is the ``title`` of its rows. If titles
    differ, consecutive rows with the same title become a section.

    Args:
        rows: Passages: ``docno``, ``text``, and optionally ``title``.
        document: The field with the docno of a row's document (a string or an integer), or a function of the row.
    """
    document_of = document if callable(document) else lambda row: row[document]
    for docno, group in groupby(rows, key=document_of):
        passages = [*group]
        ids = tuple(row["docno"] for row in passages)
        if isinstance(docno, Integral):
            docno = str(docno)
        nodes = _nodes_of_rows(passages)
        yield StructuredDocument(docno, nodes, passage_ids=ids)


def _nodes_of_rows(rows: list[Record]) -> tuple[Node, ...]:
    titles = [_title(row) for row in rows]
    common = titles[0] if len(set(titles)) == 1 else ""
    nodes = [Node(SECTION, common, NO_PARENT)]
    parent = 0  # the section of a row
    previous = common
    for row, title in zip(rows, titles, strict=True):
        if title != previous:
            parent = 0
            if title:
                parent = len(nodes)
                nodes.append(Node(SECTION, title, 0))
        nodes.append(Node(PASSAGE, row["text"], parent))
        previous = title
    return tuple(nodes)
