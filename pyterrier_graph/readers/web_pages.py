"""Records of web crawls, which have a page as it was sent: the headers of HTTP, a body of bytes, and its type."""

from __future__ import annotations

import logging
from email import message_from_string

from pyterrier_graph.documents import NO_PARENT, SECTION, Node, StructuredDocument
from pyterrier_graph.readers.fields import Record, checked_text, text_of

MIN_WORDS = 30
HTML = ("text/html", "application/xhtml+xml", "")  # without a type, a page is taken for HTML

logger = logging.getLogger(__name__)


def read_page(record: Record, passage_words: int) -> StructuredDocument:
    """Reads a page of HTML from ``body``; one of another type, or that cannot be read, is a document without text.

    Links to anchors of the page become links between its parts. Other links are left out: they lead to addresses, and
    not to docnos.
    """
    from pyterrier_graph.readers.errors import ReaderError
    from pyterrier_graph.readers.html import parse
    from pyterrier_graph.readers.options import ReaderOptions
    from pyterrier_graph.readers.reading import read_draft

    docno, body = record["docno"], record["body"]
    if not isinstance(body, bytes):
        body = text_of(record, "body").encode("utf-8", "replace")
    empty = StructuredDocument(docno, (Node(SECTION, "", NO_PARENT),))
    if not body or text_of(record, "body_content_type").strip().lower() not in HTML:
        return empty
    options = ReaderOptions(min(MIN_WORDS, passage_words), passage_words, (), _encoding(record), len(body), 0)
    try:
        draft = read_draft(parse, body, docno, options)
    except ReaderError as error:
        logger.warning("document %r: %s", docno, error)
        return empty
    nodes = draft.nodes or empty.nodes
    return StructuredDocument(docno, (*nodes,), (*draft.links,), (), (*draft.codes,))


def _encoding(record: Record) -> str | None:
    """The encoding that the headers name."""
    headers = record.get("http_headers")
    text = headers.decode("latin-1") if isinstance(headers, bytes) else checked_text(record, "http_headers", headers)
    return message_from_string(text.partition("\n")[2]).get_content_charset()  # the first line is the status
