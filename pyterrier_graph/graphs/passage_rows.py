"""Corpora whose rows are passages already, as documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from pyterrier_graph.documents import NO_PARENT, PASSAGE, SECTION, Node, StructuredDocument

DocumentOf = Callable[[Mapping[str, Any]], Any]


def check_rows(document: str | DocumentOf | None, order: str | None) -> None:
    """Raises TypeError or ValueError if these cannot say how rows make documents."""
    if document is not None and not isinstance(document, str) and not callable(document):
        raise TypeError(f"document must be the name of a field, or a function of a row, got {document!r}")
    if order is not None and not isinstance(order, str):
        raise TypeError(f"order must be the name of a field, got {order!r}")
    if order is not None and document is None:
        raise ValueError("order= is for a corpus of passages: give document=, too")


def documents_of_rows(
    rows: Iterable[Any], document: str | DocumentOf, order: str | None = None
) -> Iterator[StructuredDocument]:
    """Documents whose passages are rows that follow one another; memory holds the rows of one document.

    Passages keep the ``docno`` of their rows as ids. The title of a document is the ``title`` of its rows. If the rows
    have different titles, each title becomes a section, which holds the rows with this title that follow one another.

    Args:
        rows: Passages: ``docno``, ``text``, and, if wanted, ``title``.
        document: A field, or a function of a row, that gives the docno of a row's document: a text or a whole number.
        order: A field that orders the rows of a document.

    Raises:
        ValueError: If a row has no docno or text, its document is missing, or rows of a document cannot be ordered.
    """
    for docno, group in groupby(map(_checked, rows), _key(document)):
        held = [*group]
        if order is not None:
            try:
                held.sort(key=lambda row: row[order])
            except (KeyError, TypeError) as error:
                raise ValueError(f"document {docno!r}: its rows cannot be ordered by {order!r}: {error!r}") from error
        yield StructuredDocument(docno, (*_nodes(held),), passage_ids=tuple(row["docno"] for row in held))


def _checked(row: Any) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise ValueError(f"with document=, a corpus consists of rows with 'docno' and 'text', not of {row!r:.80}")
    for field in ("docno", "text"):
        if not isinstance(row.get(field), str):
            given = f"{row.get(field)!r} (row: {dict(row)!r:.80})"
            raise ValueError(f"a passage needs a text as {field!r}, got {given}")
    return row


def _key(document: str | DocumentOf) -> Callable[[Mapping[str, Any]], str]:
    """The docno of a row's document, as text."""

    def docno_of(row: Mapping[str, Any]) -> str:
        docno = row.get(document) if isinstance(document, str) else document(row)
        if hasattr(docno, "__index__") and not isinstance(docno, bool):
            docno = str(docno)
        if not isinstance(docno, str) or not docno:
            source = f"in {document!r}" if isinstance(document, str) else "from document="
            raise ValueError(f"passage {row['docno']!r}: no docno of its document {source}, but {docno!r}")
        return docno

    return docno_of


def _nodes(rows: list[Mapping[str, Any]]) -> Iterator[Node]:
    parts = [(title, [*group]) for title, group in groupby(rows, _title)]
    yield Node(SECTION, parts[0][0] if len(parts) == 1 else "", NO_PARENT)
    place = 0  # of the last node
    for title, group in parts:
        parent = 0
        if title and len(parts) > 1:
            yield Node(SECTION, title, 0)
            parent = place = place + 1
        for row in group:
            yield Node(PASSAGE, row["text"], parent)
        place += len(group)


def _title(row: Mapping[str, Any]) -> str:
    title = row.get("title")
    return title if isinstance(title, str) else ""
