"""Records of corpora as structured documents: those of ir_datasets with sections, paragraphs, headings or markup."""

from __future__ import annotations

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
    xml_text,
)

Record = Mapping[str, Any]
Section = tuple[str, list[str]]  # title and paragraphs
Sectioned = tuple[str, Iterable[Section]]  # the title of a document, and its sections

# Elements that hold the headline and the text of newswire on the TREC disks.
HEADLINES = ("headline", "hl", "ttl", "title", "ti", "doctitle")
TEXTS = ("text", "lp", "leadpara")


def read_record(record: Record, *, passage_words: int = 120) -> StructuredDocument:
    """Reads a document from a record of a corpus, with the structure that its fields have.

    The first line of this table whose fields the record has decides how it is read:

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

    Passages do not cross the border of a section, in which short paragraphs are joined. A section without text is kept
    if it has a title; the text of a section without title belongs to the document's root. Citations between documents
    are not read: in ``beir/scidocs`` they are the judgments.

    Args:
        record: A dictionary with ``docno`` and the fields of one of these lines; ``codes`` are optional.
        passage_words: Words per passage.

    Raises:
        ValueError: If a field is missing or has a wrong type; the message names the document.
    """
    if (
        not isinstance(record, Mapping)
        or not isinstance(record.get("docno"), str)
        or record.get("nodes") is not None
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
        {"docno": record["docno"], "nodes": nodes, "codes": record.get("codes")}
    )


def _sections(rows: Iterable[Any] | None) -> Iterator[Section]:
    """Sections of pairs: a title, and a text or a list of paragraphs; each may be missing."""
    for title, text in () if rows is None else rows:
        paragraphs = [text] if text is None or isinstance(text, str) else text
        yield (title or "").strip(), [paragraph or "" for paragraph in paragraphs]


def _newswire(record: Record) -> Sectioned:
    """An article of the TREC disks, in SGML that is close to HTML."""
    markup = record["marked_up_doc"]
    with needs_files_extra("reading markup"):
        import lxml.html

    text = markup.decode(errors="replace") if isinstance(markup, bytes) else markup
    article = lxml.html.fromstring(f"<div>{xml_text(text)}</div>")
    for paragraph in article.iter("p"):
        paragraph.text, paragraph.tail = (
            f"\n\n{xml_text(part)}" for part in (paragraph.text, paragraph.tail)
        )
    headline = next(article.iter(*HEADLINES), None)
    title = _text(record, "title") or ("" if headline is None else headline.text_content())
    texts = [element.text_content() for element in article.iter(*TEXTS)]
    return " ".join(title.split()), [
        ("", texts or [_text(record, "text") or _text(record, "body")])
    ]


def _by_headings(record: Record) -> Sectioned:
    """A web page whose headings are given in their order, and are lines of its body."""
    title, lines = (
        _text(record, "title"),
        [line.strip() for line in _text(record, "body").splitlines()],
    )
    places: dict[str, list[int]] = defaultdict(list)
    for number, line in enumerate(lines):
        places[line].append(number)
    starts = [(-1, "")]
    for heading in map(str.strip, _text(record, "headings").splitlines()):
        found = places.get(heading, [])
        following = bisect_right(found, starts[-1][0])
        if following < len(found) and heading not in ("", title):
            starts.append((found[following], heading))
    ends = [start for start, _ in starts[1:]] + [len(lines)]
    return title, [
        (name, lines[start + 1 : end]) for (start, name), end in zip(starts, ends, strict=True)
    ]


def _article(record: Record) -> Sectioned:
    """An article with an abstract; in ``cord19/fulltext``, a section comes as one row for each of its paragraphs."""
    plain = isinstance(record.get("body"), str | float | None)
    rows: Iterable[Section] = (
        [("", [_text(record, "body")])] if plain else _sections(record["body"])
    )
    sections = [
        (name, [*chain(*(texts for _, texts in part))])
        for name, part in groupby(rows, key=itemgetter(0))
    ]
    return _text(record, "title"), [("", [_text(record, "abstract")]), *sections]


def _page(record: Record) -> Sectioned:
    """A web page whose body has a line for each block of text."""
    return _text(record, "title"), [("", _text(record, "body").splitlines())]


def _text(record: Record, field: str) -> str:
    """The text of a field, which is empty if there is none."""
    value: Any = record.get(field)
    return "" if is_missing(value) else value


# How a record is read, by the first of these fields that it has. None: by StructuredDocument.from_record.
RECORD_TYPES: dict[tuple[str, ...], Callable[[Record], Sectioned] | None] = {
    ("sections",): lambda record: (_text(record, "title"), _sections(record["sections"])),
    ("marked_up_doc",): _newswire,
    ("headings", "body"): _by_headings,
    ("text",): None,
    ("abstract",): _article,
    ("body",): _page,
}
