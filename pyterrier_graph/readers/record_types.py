"""Types of records: what datasets of ir_datasets keep as sections, paragraphs, headings or markup."""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

from pyterrier_graph.readers.fields import Record, Section, checked_list, checked_text, sections_of, text_of

Sectioned = tuple[str, Iterable[Section]]  # the title of a document, and its sections
MEDIA = "a list of media, whose last part is a text"
# Elements that hold the headline and the text of newswire on the TREC disks.
HEADLINES = ("headline", "hl", "ttl", "title", "ti", "doctitle")
TEXTS = ("text", "lp", "leadpara")
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _sectioned(record: Record) -> Sectioned:
    return text_of(record, "title"), sections_of(record, "sections")


def _news(record: Record) -> Sectioned:
    """An article of the Washington Post."""
    rows = checked_list(record, "body_paras_html", record["body_paras_html"], "a list of texts")
    paragraphs = [_markup(checked_text(record, "body_paras_html", html)).text_content() for html in rows]
    media = checked_list(record, "body_media", record.get("body_media"), MEDIA)
    texts = [text for row in media for text in checked_list(record, "body_media", row, MEDIA)[-1:]]
    captions = [checked_text(record, "body_media", text) for text in texts]
    return text_of(record, "title"), [("", paragraphs), ("", captions)]


def _newswire(record: Record) -> Sectioned:
    """An article of the TREC disks."""
    markup = record["marked_up_doc"]
    text = markup.decode(errors="replace") if isinstance(markup, bytes) else text_of(record, "marked_up_doc")
    article = _markup(text)
    for paragraph in article.iter("p"):
        paragraph.text, paragraph.tail = (f"\n\n{_allowed(text)}" for text in (paragraph.text, paragraph.tail))
    headline = next(article.iter(*HEADLINES), None)
    title = text_of(record, "title") or ("" if headline is None else headline.text_content())
    texts = [element.text_content() for element in article.iter(*TEXTS)]
    return " ".join(title.split()), [("", texts or [text_of(record, "text") or text_of(record, "body")])]


def _by_headings(record: Record) -> Sectioned:
    """A web page whose headings are given in their order, and are lines of its body."""
    title, lines = text_of(record, "title"), [line.strip() for line in text_of(record, "body").splitlines()]
    places: dict[str, list[int]] = defaultdict(list)
    for number, line in enumerate(lines):
        places[line].append(number)
    starts = [(-1, "")]
    for heading in map(str.strip, text_of(record, "headings").splitlines()):
        found = places.get(heading, [])
        following = bisect_right(found, starts[-1][0])
        if following < len(found) and heading not in ("", title):
            starts.append((found[following], heading))
    ends = [start for start, _ in starts[1:]] + [len(lines)]
    return title, [(name, lines[start + 1 : end]) for (start, name), end in zip(starts, ends, strict=True)]


def _article(record: Record) -> Sectioned:
    """An article with an abstract; in ``cord19/fulltext``, a section comes as one row for each of its paragraphs."""
    plain = isinstance(record.get("body"), str | float | None)
    rows: Iterable[Section] = [("", [text_of(record, "body")])] if plain else sections_of(record, "body")
    sections = [(name, [*chain(*(texts for _, texts in part))]) for name, part in groupby(rows, key=itemgetter(0))]
    return text_of(record, "title"), [("", [text_of(record, "abstract")]), *sections]


def _page(record: Record) -> Sectioned:
    """A web page whose body has a line for each block of text."""
    return text_of(record, "title"), [("", text_of(record, "body").splitlines())]


def _markup(text: str) -> Any:
    """Parsed HTML, or SGML that is near to it."""
    import lxml.html

    return lxml.html.fromstring(f"<div>{_allowed(text)}</div>")


def _allowed(text: str | None) -> str:
    """A text in which characters that lxml does not take are spaces."""
    return NOT_XML.sub(" ", text or "")


WEB_PAGE = ("body", "body_content_type")
# The first fields that a record has say how it is read. None: by StructuredDocument.from_record, or as a web page.
RECORD_TYPES: dict[tuple[str, ...], Callable[[Record], Sectioned] | None] = {
    ("sections",): _sectioned,
    ("body_paras_html",): _news,
    ("marked_up_doc",): _newswire,
    WEB_PAGE: None,
    ("headings", "body"): _by_headings,
    ("text",): None,
    ("abstract",): _article,
    ("body",): _page,
}
