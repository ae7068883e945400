"""Makes structured documents and queries from the docstrings of installed packages."""

from __future__ import annotations

import functools
import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeAlias

import pyterrier as pt

from pyterrier_graph.datasets.docstrings import Docstring, parse_docstring
from pyterrier_graph.datasets.sources import DocumentedObject, read_package
from pyterrier_graph.documents.document import (
    NO_PARENT,
    PASSAGE,
    SECTION,
    Link,
    Node,
    Reference,
    StructuredDocument,
)

MIN_PASSAGE_WORDS = 3
MIN_DOCUMENT_WORDS = 10
MAX_COPIES = 3
MAX_OVERLAP = 0.8
MIN_WORDS = 3

Words: TypeAlias = tuple[str, ...]


class DocstringQuery(NamedTuple):
    """A query with one or more relevant documents."""

    query_id: str
    text: str
    relevant: tuple[str, ...]


class DocstringCorpus(NamedTuple):
    """Documents and queries made from docstrings.

    Attributes:
        documents: Documents, sorted by docno: the public qualified name of the object.
        summaries: Summary lines. The id is the docno of the first document with this line.
        see_also: What other objects say about an object.
    """

    documents: dict[str, StructuredDocument]
    summaries: list[DocstringQuery]
    see_also: list[DocstringQuery]


def build_corpus(packages: Iterable[str]) -> DocstringCorpus:
    """Reads the docstrings of installed packages and makes documents and queries from them.

    Equal docstrings become one document. A docstring with fewer than ten words besides its summary is left out.
    Summary lines of three words or more are queries. The description of an object in a "See Also" section is a query if
    it has three words or more, differs from the object's summary (Jaccard coefficient of their words below 0.8), and
    neither describes nor summarizes another object. A line with verbatim copies in more than three documents is a
    common phrase, not a query. Copies of the queries are removed from all documents. Sources are read, not imported.
    """
    drafts = _read(packages)
    names = _Names(drafts.values())
    summaries = _summaries(drafts)
    see_also = _see_also(drafts, names, summaries)
    lines = summaries.keys() | see_also.keys()
    queries = lines - _phrases(lines, drafts)
    copies = VerbatimCopies(queries)
    documents = {}
    for docno, draft in sorted(drafts.items()):
        docstring = _without(draft.docstring, copies)
        if _count_words(docstring) >= MIN_DOCUMENT_WORDS:
            documents[docno] = _document(draft.described, docstring, names)
    return DocstringCorpus(
        documents,
        summaries=_queries(summaries, queries, documents, "{target}"),
        see_also=_queries(see_also, queries, documents, "{target}#{digest:.8}"),
    )


class _Draft(NamedTuple):
    """An object that may become a document."""

    described: DocumentedObject
    docstring: Docstring


class _Line(NamedTuple):
    """The text of a line that may become a query, and its relevant documents."""

    text: str
    docnos: set[str]


_Lines: TypeAlias = dict[Words, _Line]


def _read(packages: Iterable[str]) -> dict[str, _Draft]:
    """Returns the objects that may become documents, by docno. Objects with equal docstrings are one document."""
    objects: dict[str, DocumentedObject] = {}
    for package in packages:
        for described in read_package(package):
            text = " ".join(described.docstring.split())
            if text in objects:
                first = objects[text]
                described = first._replace(names=first.names + described.names)
            objects[text] = described
    drafts = {}
    for described in pt.tqdm(objects.values(), desc="docstrings", unit="docstring", delay=1):
        with suppress(ValueError):  # a docstring that violates the standard
            docstring = parse_docstring(described.docstring)
            if _count_words(docstring) >= MIN_DOCUMENT_WORDS:
                drafts[described.name] = _Draft(described, docstring)
    return drafts


def _count_words(docstring: Docstring) -> int:
    return sum(len(passage.text.split()) for passage in docstring.passages)


class _Names:
    """Finds the documents of names that docstrings mention."""

    def __init__(self, drafts: Iterable[_Draft]) -> None:
        self._docnos: dict[str, str] = {}
        # by package and the last parts of a name
        self._by_ending: dict[tuple[str, str], set[str]] = defaultdict(set)
        for described, _ in drafts:
            for name in described.names:
                self._docnos[name] = described.name
                package, *parts = name.split(".")
                for start in range(len(parts)):
                    ending = ".".join(parts[start:])
                    self._by_ending[package, ending].add(described.name)

    def resolve(self, name: str, docno: str) -> str | None:
        """Returns the docno of a name in the object, its class or its modules, or of the only object with this name."""
        parts = docno.split(".")
        for end in range(len(parts), -1, -1):
            qualified = ".".join([*parts[:end], name])
            if qualified in self._docnos:
                return self._docnos[qualified]
        package = parts[0]
        candidates = self._by_ending.get((package, name), ())
        return next(iter(candidates)) if len(candidates) == 1 else None


def _add_line(lines: _Lines, text: str, docno: str) -> None:
    line = words(text)
    if len(line) < MIN_WORDS:
        return
    if line not in lines:
        lines[line] = _Line(text, set())
    lines[line].docnos.add(docno)


def _summaries(drafts: Mapping[str, _Draft]) -> _Lines:
    lines: _Lines = {}
    for docno, draft in drafts.items():
        _add_line(lines, draft.docstring.summary, docno)
    return lines


def _see_also(drafts: Mapping[str, _Draft], names: _Names, summaries: _Lines) -> _Lines:
    lines: _Lines = {}
    for docno, draft in drafts.items():
        for entry in draft.docstring.see_also:
            for name in entry.names:
                target = names.resolve(name, docno)
                if target and target != docno:
                    _add_line(lines, entry.description, target)
    unambiguous = {}
    for line, described in lines.items():
        if line in summaries or len(described.docnos) > 1:
            continue
        [docno] = described.docnos
        summary = words(drafts[docno].docstring.summary)
        if _overlap(line, summary) < MAX_OVERLAP:
            unambiguous[line] = described
    return unambiguous


def _overlap(line: Words, other: Words) -> float:
    """Returns the Jaccard coefficient of the words."""
    common = {*line} & {*other}
    union = {*line, *other}
    return len(common) / len(union)


def _phrases(lines: Iterable[Words], drafts: Mapping[str, _Draft]) -> set[Words]:
    """Returns the lines that have copies in more than ``MAX_COPIES`` documents."""
    copies = VerbatimCopies(lines)
    documents: Counter[Words] = Counter()
    for draft in drafts.values():
        copied: set[Words] = set()  # each line once per document
        for passage in draft.docstring.passages:
            copied.update(copies.find(passage.text))
        documents.update(copied)
    return {line for line, count in documents.items() if count > MAX_COPIES}


def _without(docstring: Docstring, copies: VerbatimCopies) -> Docstring:
    """Removes copies, and passages that are too short without them."""
    passages = []
    for passage in docstring.passages:
        text = copies.remove(passage.text)
        if len(text.split()) >= MIN_PASSAGE_WORDS:
            passages.append(passage._replace(text=text))
    return docstring._replace(passages=tuple(passages))


def _document(
    described: DocumentedObject, docstring: Docstring, names: _Names
) -> StructuredDocument:
    docno = described.name
    nodes = [Node(SECTION, docno, NO_PARENT)]
    sections = {"": 0}  # node of each title
    named: dict[str, int] = {}  # passage that describes each parameter or bibliographic reference
    mentions: dict[int, frozenset[str]] = {}  # names that each passage mentions
    for passage in docstring.passages:
        if passage.section not in sections:
            sections[passage.section] = len(nodes)
            nodes.append(Node(SECTION, passage.section, 0))
        for name in passage.names:
            named.setdefault(name, len(nodes))
        mentions[len(nodes)] = passage.mentions
        nodes.append(Node(PASSAGE, passage.text, sections[passage.section]))
    targets = sections | named
    links = tuple(_links(mentions, targets))
    references = tuple(_references(docno, docstring, names))
    codes = (described.module,)
    return StructuredDocument(docno, tuple(nodes), links, references, codes)


def _links(mentions: Mapping[int, frozenset[str]], named: Mapping[str, int]) -> Iterator[Link]:
    """Yields links from passages to the sections and passages that they mention."""
    for source, names in mentions.items():
        targets = {named[name] for name in names if name in named}
        for target in sorted(targets - {source}):
            yield Link("internal", source, target)


def _references(docno: str, docstring: Docstring, names: _Names) -> Iterator[Reference]:
    """Yields references to the objects of "See Also", each once."""
    seen = {docno}
    for entry in docstring.see_also:
        for name in entry.names:
            target = names.resolve(name, docno) or name
            if target not in seen:
                seen.add(target)
                yield Reference("external", 0, target)


def _queries(
    lines: _Lines, queries: set[Words], documents: Mapping[str, StructuredDocument], query_id: str
) -> list[DocstringQuery]:
    answered = []
    for line, (text, docnos) in lines.items():
        relevant = tuple(sorted(docnos & documents.keys()))
        if relevant and line in queries:
            digest = hashlib.sha256(" ".join(line).encode()).hexdigest()
            name = query_id.format(target=relevant[0], digest=digest)
            answered.append(DocstringQuery(name, text, relevant))
    return sorted(answered)


def words(text: str) -> Words:
    """Returns the words of a text in lower case. Texts with equal words are copies of each other."""
    return tuple(re.findall(r"\w+", text.lower()))


class VerbatimCopies:
    """Finds copies of lines in texts, ignoring case, punctuation and white space.

    Lines are sequences of three words or more.
    """

    def __init__(self, lines: Iterable[Words]) -> None:
        self._by_start: dict[Words, list[Words]] = defaultdict(list)
        for line in lines:
            self._by_start[line[:MIN_WORDS]].append(line)

    def find(self, text: str) -> list[Words]:
        """Returns the lines that a text has copies of, longest first."""
        tokens = words(text)
        copied = set()
        for start in range(len(tokens)):
            first_words = tokens[start : start + MIN_WORDS]
            for line in self._by_start.get(first_words, ()):
                end = start + len(line)
                is_equal = tokens[start:end] == line
                if is_equal and _pattern(line).search(text):
                    copied.add(line)
        return sorted(copied, key=lambda line: (-len(line), line))

    def remove(self, text: str) -> str:
        """Returns the text without copies and the punctuation after them."""
        lines = self.find(text)
        for line in lines:
            text = _pattern(line).sub(" ", text)
        if not lines:
            return text
        # words that were apart may now be another copy
        return self.remove(" ".join(text.split()))


@functools.cache
def _pattern(line: Words) -> re.Pattern[str]:
    between = r"\W+".join(line)
    return re.compile(rf"\b{between}\b[.,;:!?]*", re.IGNORECASE)
