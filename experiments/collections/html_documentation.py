"""Documentation in HTML, as Sphinx and DocBook write it: pages are looked for by the entries of its index.

The index is not searched. Left out are entries that a page contains word for word, in its titles or in its text, and
entries that name a function, an option or a module: they would be found by matching alone. The texts of links give
hardly any further queries: of those on a tenth of the pages of Python and PostgreSQL, three were on no other page.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from posixpath import normpath
from typing import Any
from urllib.parse import unquote, urlsplit

import lxml.html
from sklearn.feature_extraction.text import CountVectorizer

import pyterrier_graph as ptg
from experiments.harness.collection import Collection, Query, Record, queries_by_split, split_of
from pyterrier_graph.documents.document import NO_PARENT

INDEXES = (
    "genindex-all.html",
    "genindex.html",
    "bookindex.html",
)  # the first that there is has all entries
NOT_SEARCHED = (
    "genindex*.html",
    "bookindex.html",
    "py-modindex.html",
    "contents.html",
    "search.html",
)
SHARES = (0.3, 0.2, 0.5)
# Entries with these words name an object of the program, and an object has its name on its page.
OF_OBJECTS = (
    "built-in function",
    "command line option",
    "configuration parameter",
    "environment variable",
    "module",
)
WORD = re.compile(r"[^\W\d_]+(-[^\W\d_]+)*")  # letters, and hyphens between them
MAX_WORDS = 8
MAX_PAGES = 3  # an entry with more pages names none of them


def read_html_documentation(path: Path) -> Collection:
    """The pages of a folder of HTML documentation, such as ``/usr/share/doc/python3.11/html``.

    Queries are divided by the page that they look for: three in ten are for training, two for validation.

    Args:
        path: The folder.

    Raises:
        ValueError: If the folder has no index.
    """
    index = next((path / name for name in INDEXES if (path / name).exists()), None)
    if index is None:
        raise ValueError(f"{str(path)!r} has no index of its documentation: {', '.join(INDEXES)}")
    pages = {
        page["docno"]: _record(page)
        for page in ptg.read_html(path, verbose=False)
        if _is_searched(page["docno"])
    }
    entries: dict[tuple[str, ...], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for text, page in _entries(index):
        entries[tuple(sorted(text.casefold().split()))][text].add(
            page
        )  # "module sys" and "sys module" are one query
    texts = {min(same): set().union(*same.values()) for same in entries.values()}
    contained = _contained(texts, (text for page in pages.values() for _, text, _ in page["nodes"]))
    queries = []
    for number, text in enumerate(sorted(texts.keys() - contained)):
        found = sorted(texts[text] & pages.keys())
        splits = {split_of(page, SHARES) for page in found}
        if len(splits) == 1 and len(texts[text]) <= MAX_PAGES:
            queries.append(Query(f"{number}", text, splits.pop(), tuple(found)))
    return Collection.in_memory(path.name, [*pages.values()], queries_by_split(queries))


def _is_searched(docno: str) -> bool:
    return not any(fnmatch(docno, pattern) for pattern in NOT_SEARCHED)


def _record(page: Record) -> Record:
    """A page whose text has the titles of its sections, too."""
    text = "\n".join(text for _, text, parent in page["nodes"] if parent != NO_PARENT)
    return {name: page[name] for name in ("docno", "title", "nodes", "links", "references")} | {
        "text": text
    }


def _entries(index: Path) -> Iterator[tuple[str, str]]:
    """The entries of an index, each after those that it is under, and the pages that they lead to."""
    for entry in lxml.html.parse(str(index)).getroot().iter("li", "dt"):
        terms = [*_terms(entry)]
        words = re.sub(r"\([^()]*\)", " ", " ".join(terms[::-1])).replace(",", " ").split()
        text = " ".join(words)
        if (
            2 <= len(words) <= MAX_WORDS
            and all(map(WORD.fullmatch, words))
            and not any(map(text.count, OF_OBJECTS))
        ):
            for link in entry.findall("a"):
                address = urlsplit(link.get("href") or "")
                if address.path and not address.netloc:
                    yield text, normpath(unquote(address.path))


def _terms(entry: Any) -> Iterator[str]:
    """The words of an entry, and of those that it is under; they precede its links, or are the text of the first."""
    while entry is not None and entry.tag in ("li", "dt"):
        first = next(iter(entry.findall("a")), None)
        yield (entry.text or "").strip(" ,\n") or ("" if first is None else first.text_content())
        above = entry.getparent().getparent()
        entry = above.getprevious() if above is not None and above.tag == "dd" else above


def _contained(queries: Iterable[str], texts: Iterable[str]) -> set[str]:
    """Those queries that a text contains word for word."""
    counter = CountVectorizer(token_pattern=r"\w+", ngram_range=(1, 2 * MAX_WORDS))
    split = counter.build_tokenizer()
    phrases = {query: " ".join(split(query.lower())) for query in queries}
    if not phrases:
        return set()
    counter.vocabulary = sorted(set(phrases.values()))
    present = dict(
        zip(counter.vocabulary, counter.transform(texts).sum(axis=0).A1 > 0, strict=True)
    )
    return {query for query, phrase in phrases.items() if present[phrase]}
