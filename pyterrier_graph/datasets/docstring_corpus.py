"""Makes structured documents and queries from the docstrings of installed packages."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from pyterrier_graph.datasets.docstrings import (
    MAX_SUMMARY_WORDS,
    MIN_PASSAGE_WORDS,
    Docstring,
    parse_docstring,
)
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

MIN_DOCUMENT_WORDS = 10
MAX_COPIES = 3
MAX_OVERLAP = 0.8
MIN_WORDS = 3

Words: TypeAlias = tuple[str, ...]

_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class DocstringQuery:
    """A query with one or more relevant documents."""

    query_id: str
    text: str
    relevant: tuple[str, ...]


@dataclass(frozen=True)
class DocstringCorpus:
    """Documents and queries made from docstrings.

    Attributes:
        documents: Documents, sorted by docno: the public qualified name of the object.
        summaries: Summary lines. The id is the docno of the first document with this line.
        see_also: What other objects say about an object.
    """

    documents: Mapping[str, StructuredDocument]
    summaries: tuple[DocstringQuery, ...]
    see_also: tuple[DocstringQuery, ...]


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
    summaries = _summaries(drafts.values())
    see_also = _see_also(drafts, names, summaries)
    lines = summaries.keys() | see_also.keys()
    queries = lines - _phrases(lines, drafts.values())
    copies = VerbatimCopies(queries)
    for docno, draft in list(drafts.items()):
        draft.docstring = _without(draft.docstring, copies)
        if _count_words(draft.docstring) < MIN_DOCUMENT_WORDS:
            del drafts[docno]
    return DocstringCorpus(
        {docno: _document(drafts[docno], names, drafts.keys()) for docno in sorted(drafts)},
        _queries(summaries, queries, drafts.keys(), "{target}"),
        _queries(see_also, queries, drafts.keys(), "{target}#{digest:.8}"),
    )


@dataclass
class _Draft:
    """A docstring that may become a document, and all names of the object."""

    docno: str
    names: list[str]
    module: str
    docstring: Docstring


class _Line(NamedTuple):
    """The text of a line that may become a query, and its relevant documents."""

    text: str
    docnos: set[str]


_Lines: TypeAlias = dict[Words, _Line]


def _read(packages: Iterable[str]) -> dict[str, _Draft]:
    """Returns docstrings that may become documents, by docno. Equal docstrings are one document."""
    import pyterrier as pt

    same: dict[str, list[DocumentedObject]] = defaultdict(list)
    for package in packages:
        for documented in read_package(package):
            same[" ".join(documented.docstring.split())].append(documented)
    drafts = {}
    for objects in pt.tqdm(same.values(), desc="docstrings", unit="docstring", delay=1):
        first = min(objects, key=lambda documented: (documented.name.count("."), documented.name))
        with contextlib.suppress(ValueError):  # a docstring that violates the standard
            docstring = parse_docstring(first.docstring)
            if _count_words(docstring) >= MIN_DOCUMENT_WORDS:
                names = sorted({name for documented in objects for name in documented.names})
                drafts[first.name] = _Draft(first.name, names, first.module, docstring)
    return drafts


def _count_words(docstring: Docstring) -> int:
    return sum(len(passage.text.split()) for passage in docstring.passages)


class _Names:
    """Finds the documents of names that docstrings mention."""

    _ABBREVIATIONS = {"np": "numpy", "pd": "pandas", "nx": "networkx", "sp": "scipy"}

    def __init__(self, drafts: Iterable[_Draft]) -> None:
        self._docnos = {name: draft.docno for draft in drafts for name in draft.names}
        self._by_ending: dict[tuple[str, str], set[str]] = defaultdict(set)
        for name, docno in self._docnos.items():
            package, *parts = name.split(".")
            for start in range(len(parts)):
                self._by_ending[package, ".".join(parts[start:])].add(docno)

    def resolve(self, name: str, draft: _Draft) -> str | None:
        """Returns the docno of a name in the object, its class or its modules, or of the only object with this name."""
        first, _, rest = name.partition(".")
        name = f"{self._ABBREVIATIONS.get(first, first)}.{rest}" if rest else name
        parts = draft.docno.split(".")
        for end in range(len(parts), -1, -1):
            if docno := self._docnos.get(".".join([*parts[:end], name])):
                return docno
        candidates = self._by_ending.get((parts[0], name), ())
        return next(iter(candidates)) if len(candidates) == 1 else None


def _summaries(drafts: Iterable[_Draft]) -> _Lines:
    lines: _Lines = {}
    for draft in drafts:
        text = draft.docstring.summary
        if len(line := words(text)) >= MIN_WORDS:
            lines.setdefault(line, _Line(text, set())).docnos.add(draft.docno)
    return lines


def _see_also(drafts: Mapping[str, _Draft], names: _Names, summaries: _Lines) -> _Lines:
    lines: _Lines = {}
    for draft in drafts.values():
        for entry in draft.docstring.see_also:
            line = words(entry.description)
            target = names.resolve(entry.names[0], draft) if len(entry.names) == 1 else None
            if target and target != draft.docno and MIN_WORDS <= len(line) <= MAX_SUMMARY_WORDS:
                lines.setdefault(line, _Line(entry.description, set())).docnos.add(target)

    def is_paraphrase(line: Words, docno: str) -> bool:
        said, summary = set(line), set(words(drafts[docno].docstring.summary))
        return len(said & summary) < MAX_OVERLAP * len(said | summary)

    return {
        key: line
        for key, line in lines.items()
        if len(line.docnos) == 1 and key not in summaries and is_paraphrase(key, *line.docnos)
    }


def _phrases(lines: Iterable[Words], drafts: Iterable[_Draft]) -> set[Words]:
    """Returns the lines that have copies in more than ``MAX_COPIES`` documents."""
    copies = VerbatimCopies(lines)
    documents: Counter[Words] = Counter()
    for draft in drafts:
        texts = (passage.text for passage in draft.docstring.passages)
        documents.update({line for text in texts for line, _, _ in copies.find(text)})
    return {line for line, count in documents.items() if count > MAX_COPIES}


def _without(docstring: Docstring, copies: VerbatimCopies) -> Docstring:
    """Removes copies, and passages that are too short without them."""
    passages = (
        passage._replace(text=copies.remove(passage.text)) for passage in docstring.passages
    )
    long = (passage for passage in passages if len(passage.text.split()) >= MIN_PASSAGE_WORDS)
    return docstring._replace(passages=tuple(long))


def _document(draft: _Draft, names: _Names, docnos: Collection[str]) -> StructuredDocument:
    nodes = [Node(SECTION, draft.docno, NO_PARENT)]
    sections = {"": 0}
    named: dict[str, int] = {}
    mentions: dict[int, frozenset[str]] = {}
    for passage in draft.docstring.passages:
        if passage.section not in sections:
            sections[passage.section] = len(nodes)
            nodes.append(Node(SECTION, passage.section, 0))
        for name in passage.names:
            named.setdefault(name, len(nodes))
        mentions[len(nodes)] = passage.mentions
        nodes.append(Node(PASSAGE, passage.text, sections[passage.section]))
    named = sections | named
    links = []
    for source, mentioned in mentions.items():
        targets = {named[name] for name in mentioned & named.keys()}
        targets -= {source, nodes[source].parent}
        links += [Link("internal", source, target) for target in sorted(targets)]
    return StructuredDocument(
        draft.docno,
        tuple(nodes),
        tuple(links),
        tuple(_references(draft, names, docnos)),
        (draft.module,),
    )


def _references(draft: _Draft, names: _Names, docnos: Collection[str]) -> Iterator[Reference]:
    """Yields references to the objects of "See Also", each once."""
    targets: dict[str, None] = {}
    for entry in draft.docstring.see_also:
        for name in entry.names:
            docno = names.resolve(name, draft)
            targets[docno if docno and docno in docnos else name] = None
    for target in targets:
        if target != draft.docno:
            yield Reference("external", 0, target)


def _queries(
    lines: _Lines, queries: set[Words], docnos: Collection[str], query_id: str
) -> tuple[DocstringQuery, ...]:
    made = []
    for key, line in lines.items():
        relevant = tuple(sorted(line.docnos.intersection(docnos)))
        if relevant and key in queries:
            digest = hashlib.sha256(" ".join(key).encode()).hexdigest()
            name = query_id.format(target=relevant[0], digest=digest)
            made.append(DocstringQuery(name, line.text, relevant))
    return tuple(sorted(made, key=lambda query: query.query_id))


def words(text: str) -> Words:
    """Returns the words of a text in lower case. Texts with equal words are copies of each other."""
    return tuple(map(str.lower, _WORD.findall(text)))


class VerbatimCopies:
    """Finds copies of lines in texts, ignoring case, punctuation and white space.

    Lines are sequences of words. Lines of fewer than three words are ignored, since they are found everywhere.
    """

    def __init__(self, lines: Iterable[Words]) -> None:
        by_start: dict[Words, set[Words]] = defaultdict(set)
        for line in lines:
            if len(line) >= MIN_WORDS:
                by_start[line[:MIN_WORDS]].add(line)
        self._by_start = {
            start: sorted(same, key=len, reverse=True) for start, same in by_start.items()
        }

    def find(self, text: str) -> Iterator[tuple[Words, int, int]]:
        """Yields copied lines with begin and end of each copy. Only the first of overlapping copies counts."""
        tokens = words(text)
        starts = list(zip(tokens, tokens[1:], tokens[2:], strict=False))
        if self._by_start.keys().isdisjoint(starts):
            return
        spans = [match.span() for match in _WORD.finditer(text)]
        end = 0
        for position, start in enumerate(starts):
            for line in self._by_start.get(start, ()) if position >= end else ():
                if tokens[position : position + len(line)] == line:
                    end = position + len(line)
                    yield line, spans[position][0], spans[end - 1][1]
                    break

    def remove(self, text: str) -> str:
        """Returns the text without copies and the punctuation after them."""
        copies = list(self.find(text))
        if not copies:
            return text
        for _, begin, end in reversed(copies):
            text = f"{text[:begin]} {text[end:].lstrip('.,;:!?')}"
        return self.remove(" ".join(text.split()))  # words that were apart may now be another copy
