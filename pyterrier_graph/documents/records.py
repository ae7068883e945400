"""Reads records of ir_datasets and other corpora, with their sections, paragraphs, headings or markup."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
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
    needs_files_extra,
    split_text,
    with_title_passage,
)
from pyterrier_graph.documents.readers.page import decode

Record = Mapping[str, Any]
Section = tuple[str, list[str]]  # title and paragraphs
Sectioned = tuple[str, Iterable[Section]]  # the title of a document, and its sections

NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

# Elements with the headline and the text of newswire on the TREC disks.
HEADLINES = ("headline", "hl", "ttl", "title", "ti", "doctitle")
TEXTS = ("text", "lp", "leadpara")


def read_record(record: Record, *, passage_words: int = 120) -> StructuredDocument:
    """Makes a structured document of a record of a corpus.

    The fields of the record decide how it is read. The first matching line of this table counts:

    ===================================  =======================================================================
    fields                               document
    ===================================  =======================================================================
    ``nodes``                            as :meth:`~pyterrier_graph.StructuredDocument.from_record` reads it
    ``sections``                         pairs of a title and a text, or a list of paragraphs, under ``title``
    ``marked_up_doc``                    ``trec-robust04``, ``disks45``, ``aquaint``: headline and paragraphs
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
        or not isinstance(record.get("docno"), str)
        or not is_missing(record.get("nodes"))
    ):
        return StructuredDocument.from_record(record)
    fields = next((fields for fields in RECORD_TYPES if record.keys() >= {*fields}), None)
    if fields is None:
        raise ValueError(
            f"document {record['docno']!r} has no fields that pyterrier_graph.read_record reads, such as 'text' "
            f"(fields: {sorted(record)}); a function of your own can read it: graph.index(map(function, documents))"
        )
    sectioned = RECORD_TYPES[fields]
    if sectioned is None:
        return StructuredDocument.from_record(record, passage_words=passage_words)
    try:
        title, sections = sectioned(record)
        nodes = [Node(SECTION, title, NO_PARENT)]
        for name, paragraphs in sections:
            parent = len(nodes) if name else 0
            if name:
                nodes.append(Node(SECTION, name, 0))
            nodes += (
                Node(PASSAGE, text, parent)
                for text in split_text("\n\n".join(paragraphs), passage_words)
            )
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"document {record['docno']!r}: {', '.join(fields)} cannot be read: {error}"
        ) from error
    return StructuredDocument.from_record(
        {"docno": record["docno"], "nodes": with_title_passage(nodes), "codes": record.get("codes")}
    )


def _sections(rows: Iterable[Any] | None) -> Iterator[Section]:
    """Yields sections of pairs of a title and a text, or a list of paragraphs. Both may be missing."""
    for title, text in () if rows is None else rows:
        paragraphs = [text] if text is None or isinstance(text, str) else text
        yield (title or "").strip(), [paragraph or "" for paragraph in paragraphs]


def _newswire(record: Record) -> Sectioned:
    """Reads an article of the TREC disks, whose SGML resembles HTML."""
    markup = record["marked_up_doc"]
    with needs_files_extra("reading markup"):
        import lxml.html

    text = decode(markup) if isinstance(markup, bytes) else markup or ""
    article = lxml.html.fromstring(f"<div>{NOT_XML.sub(' ', text)}</div>")
    for paragraph in article.iter("p"):
        for name in ("text", "tail"):
            text = getattr(paragraph, name) or ""
            setattr(paragraph, name, f"\n\n{NOT_XML.sub(' ', text)}")
    headline = next(article.iter(*HEADLINES), None)
    title = _text(record, "title") or ("" if headline is None else headline.text_content())
    texts = [element.text_content() for element in article.iter(*TEXTS)]
    texts = texts or [_text(record, "text") or _text(record, "body")]
    return " ".join(title.split()), [("", texts)]


def _by_headings(record: Record) -> Sectioned:
    """Reads a web page whose headings are a list, and lines of its body."""
    title = _text(record, "title")
    lines = [line.strip() for line in _text(record, "body").splitlines()]
    numbers_of: dict[str, list[int]] = defaultdict(list)
    for number, line in enumerate(lines):
        numbers_of[line].append(number)
    starts = [(-1, "")]
    for heading in map(str.strip, _text(record, "headings").splitlines()):
        numbers = numbers_of.get(heading, [])
        following = bisect_right(numbers, starts[-1][0])
        if following < len(numbers) and heading not in ("", title):
            starts.append((numbers[following], heading))
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


# Readers of records by the fields that they need. None is StructuredDocument.from_record.
RECORD_TYPES: dict[tuple[str, ...], Callable[[Record], Sectioned] | None] = {
    ("sections",): lambda record: (_text(record, "title"), _sections(record["sections"])),
    ("marked_up_doc",): _newswire,
    ("headings", "body"): _by_headings,
    ("text",): None,
    ("abstract",): _article,
    ("body",): _page,
}
