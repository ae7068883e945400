"""Makes structured documents and queries from the docstrings of installed packages."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from pyterrier_graph.datasets.sources import DocumentedObject, read_package
from pyterrier_graph.documents.document import (
    NO_PARENT,
    PASSAGE,
    SECTION,
    Link,
    Node,
    Reference,
    StructuredDocument,
    split_text,
)

MAX_SUMMARY_WORDS = 30
MIN_PASSAGE_WORDS = 3
MAX_PASSAGE_WORDS = 150
MIN_DOCUMENT_WORDS = 10
MAX_COPIES = 3
MAX_OVERLAP = 0.8
MIN_WORDS = 3

Words: TypeAlias = tuple[str, ...]
_Line: TypeAlias = tuple[
    str, set[str]
]  # a line that may become a query, with its relevant documents

_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class DocstringQuery:
    """A query with one or more relevant documents."""

    query_id: str
    text: str
    relevant: tuple[str, ...]


@dataclass(frozen=True)
class DocstringCorpus:
    """Documents and queries made from docstrings."""

    documents: Mapping[
        str, StructuredDocument
    ]  # by docno, the object's public qualified name, in this order
    summaries: tuple[
        DocstringQuery, ...
    ]  # summary lines; the id is the docno of the first document with this line
    see_also: tuple[DocstringQuery, ...]  # what other objects say about an object


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
    phrases = _phrases(lines, drafts.values())
    copies = VerbatimCopies(lines - phrases)
    for draft in drafts.values():
        draft.docstring = _without(draft.docstring, copies)
    kept = {
        docno
        for docno, draft in drafts.items()
        if _count_words(draft.docstring) >= MIN_DOCUMENT_WORDS
    }
    documents = {docno: _document(drafts[docno], names, kept) for docno in sorted(kept)}
    return DocstringCorpus(
        documents,
        tuple(_queries(summaries, phrases, kept, "{target}")),
        tuple(_queries(see_also, phrases, kept, "{target}#{digest:.8}")),
    )


@dataclass
class _Draft:
    docno: str
    names: tuple[str, ...]
    module: str
    docstring: Docstring


def _read(packages: Iterable[str]) -> dict[str, _Draft]:
    """Returns docstrings that may become documents, by docno. Equal docstrings are one document."""
    import pyterrier as pt

    same: dict[str, list[DocumentedObject]] = defaultdict(list)
    for package in packages:
        for found in read_package(package):
            same[" ".join(found.docstring.split())].append(found)
    drafts = {}
    for objects in pt.tqdm(same.values(), desc="docstrings", unit="docstring", delay=1):
        first = min(objects, key=lambda found: (found.name.count("."), found.name))
        with contextlib.suppress(ValueError):  # a docstring that violates the standard
            docstring = parse_docstring(first.docstring)
            if _count_words(docstring) >= MIN_DOCUMENT_WORDS:
                aliases = {name for found in objects for name in found.names}
                drafts[first.name] = _Draft(
                    first.name, tuple(sorted(aliases)), first.module, docstring
                )
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


def _summaries(drafts: Iterable[_Draft]) -> dict[Words, _Line]:
    lines: dict[Words, _Line] = {}
    for draft in drafts:
        summary = words(draft.docstring.summary)
        if len(summary) >= MIN_WORDS:
            lines.setdefault(summary, (draft.docstring.summary, set()))[1].add(draft.docno)
    return lines


def _see_also(
    drafts: Mapping[str, _Draft], names: _Names, summaries: Collection[Words]
) -> dict[Words, _Line]:
    lines: dict[Words, _Line] = {}
    for draft in drafts.values():
        for entry in draft.docstring.see_also:
            line = words(entry.description)
            target = names.resolve(entry.names[0], draft) if len(entry.names) == 1 else None
            if target and target != draft.docno and MIN_WORDS <= len(line) <= MAX_SUMMARY_WORDS:
                lines.setdefault(line, (entry.description, set()))[1].add(target)

    def is_paraphrase(line: Words, docno: str) -> bool:
        said, summary = set(line), set(words(drafts[docno].docstring.summary))
        return len(said & summary) < MAX_OVERLAP * len(said | summary)

    return {
        line: (text, docnos)
        for line, (text, docnos) in lines.items()
        if len(docnos) == 1 and line not in summaries and is_paraphrase(line, *docnos)
    }


def _phrases(lines: Iterable[Words], drafts: Iterable[_Draft]) -> set[Words]:
    copies = VerbatimCopies(lines)
    documents: Counter[Words] = Counter()
    for draft in drafts:
        documents.update(
            {
                line
                for passage in draft.docstring.passages
                for line, _, _ in copies.find(passage.text)
            }
        )
    return {line for line, count in documents.items() if count > MAX_COPIES}


def _without(docstring: Docstring, copies: VerbatimCopies) -> Docstring:
    passages = (
        passage._replace(text=copies.remove(passage.text)) for passage in docstring.passages
    )
    kept = (passage for passage in passages if len(passage.text.split()) >= MIN_PASSAGE_WORDS)
    return docstring._replace(passages=tuple(kept))


def _document(draft: _Draft, names: _Names, kept: Collection[str]) -> StructuredDocument:
    nodes = [Node(SECTION, draft.docno, NO_PARENT)]
    sections = {"": 0}
    named: dict[str, int] = {}
    mentions: list[tuple[int, frozenset[str]]] = []
    for passage in draft.docstring.passages:
        if passage.section not in sections:
            sections[passage.section] = len(nodes)
            nodes.append(Node(SECTION, passage.section, 0))
        for name in passage.names:
            named.setdefault(name, len(nodes))
        mentions.append((len(nodes), passage.mentions))
        nodes.append(Node(PASSAGE, passage.text, sections[passage.section]))
    named = sections | named
    links = [
        Link("internal", source, target)
        for source, mentioned in mentions
        for target in sorted(
            {named[name] for name in mentioned & named.keys()} - {source, nodes[source].parent}
        )
    ]
    targets: dict[str, None] = {}
    for entry in draft.docstring.see_also:
        for name in entry.names:
            docno = names.resolve(name, draft)
            targets[docno if docno and docno in kept else name] = None
    references = [Reference("external", 0, target) for target in targets if target != draft.docno]
    return StructuredDocument(
        draft.docno, tuple(nodes), tuple(links), tuple(references), (draft.module,)
    )


def _queries(
    lines: Mapping[Words, _Line], phrases: set[Words], kept: set[str], query_id: str
) -> Iterator[DocstringQuery]:
    queries = []
    for line, (text, docnos) in lines.items():
        relevant = tuple(sorted(docnos & kept))
        if relevant and line not in phrases:
            name = query_id.format(
                target=relevant[0], digest=hashlib.sha256(" ".join(line).encode()).hexdigest()
            )
            queries.append(DocstringQuery(name, text, relevant))
    yield from sorted(queries, key=lambda query: query.query_id)


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
            start: sorted(found, key=len, reverse=True) for start, found in by_start.items()
        }

    def find(self, text: str) -> Iterator[tuple[Words, int, int]]:
        """Yields copied lines with begin and end of each copy. Only the first of overlapping copies counts."""
        tokens = words(text)
        starts = list(zip(tokens, tokens[1:], tokens[2:], strict=False))
        if self._by_start.keys().isdisjoint(starts):
            return
        places = [match.span() for match in _WORD.finditer(text)]
        end = 0
        for position, start in enumerate(starts):
            for line in self._by_start.get(start, ()) if position >= end else ():
                if tokens[position : position + len(line)] == line:
                    end = position + len(line)
                    yield line, places[position][0], places[end - 1][1]
                    break

    def remove(self, text: str) -> str:
        """Returns the text without copies and the punctuation after them."""
        found = list(self.find(text))
        if not found:
            return text
        for _, begin, end in reversed(found):
            text = f"{text[:begin]} {text[end:].lstrip('.,;:!?')}"
        return self.remove(" ".join(text.split()))  # words that were apart may now be another copy


# --- docstrings as summary, sections and passages

_LISTS = frozenset(
    {
        "Parameters",
        "Other Parameters",
        "Attributes",
        "Methods",
        "Receives",
        "Returns",
        "Yields",
        "Raises",
        "Warns",
    }
)
_OUTSIDE_OF_SECTIONS = frozenset({"Signature", "Summary", "Extended Summary", "See Also", "index"})


class Passage(NamedTuple):
    """A passage of a docstring."""

    section: str  # the title of its section; "" for the description before the first section
    text: str  # without markup and line breaks
    names: frozenset[
        str
    ]  # the parameters that it describes, or the label of its bibliographic reference
    mentions: frozenset[str]  # the names, section titles and labels that its markup refers to


class SeeAlso(NamedTuple):
    """An entry of a "See Also" section: names of objects and their description."""

    names: tuple[str, ...]
    description: str


class Docstring(NamedTuple):
    """The parts of a docstring."""

    summary: str  # the summary line, or ""; no passage contains it
    passages: tuple[Passage, ...]  # in the order of the numpydoc standard, without "See Also"
    see_also: tuple[SeeAlso, ...]


def parse_docstring(text: str) -> Docstring:
    """Splits a docstring without indentation into its parts.

    A signature before the summary is removed. The summary is the first paragraph, or its first sentence if it has more
    than 30 words or ends in a colon. In sections that list things (parameters, attributes, returned values, errors),
    each entry is a passage; entries without a description are one passage together. In other sections, each paragraph
    is a passage, together with the code, formulas and lists after it. Passages of more than 150 words are cut; those of
    fewer than three words are left out. A docstring that violates the standard raises ValueError.
    """
    from numpydoc.docscrape import NumpyDocString

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about unknown sections and underlines of another length
        parsed = NumpyDocString(_TEMPLATE.sub("", _SIGNATURE.sub("", text, count=1)))
    summary, rest = _split_summary(parsed["Summary"])
    passages = [*_paragraphs("", [*rest, "", *parsed["Extended Summary"]])]
    for title, content in parsed.items():
        if title in _LISTS:
            passages += _entries(title, content)
        elif title not in _OUTSIDE_OF_SECTIONS:
            passages += _paragraphs(title, content)
    see_also = tuple(
        SeeAlso(
            tuple(name.removeprefix("~") for name, _ in objects), plain_text(" ".join(described))
        )
        for objects, described in parsed["See Also"]
    )
    return Docstring(summary, tuple(passages), see_also)


def plain_text(markup: str) -> str:
    """Removes the markup of reStructuredText from a text and joins its lines."""
    for sign, pattern, replacement in _MARKUP:
        if sign in markup:
            markup = pattern.sub(replacement, markup)
    return " ".join(markup.split())


_TEMPLATE = re.compile(r"%\((\w+)\)s|^[ \t]*\$?\{\w+\}[ \t]*$", re.MULTILINE)  # filled in at import
_SIGNATURE = re.compile(
    r"""\A\s*(?:[\w.,\ ]+=\ *)?[\w.]+\((?:(?!\n\s*\n).)*?\)  # name(...), in one paragraph
        [ \t]*(?:->[^\n]*)?(?:\n[ \t]*--[ \t]*)?(?:\n[ \t]*\n|\Z)""",
    re.DOTALL | re.VERBOSE,
)
_SENTENCE = re.compile(r"(.+?[.!?])\s+(?=[A-Z`])", re.DOTALL)
# What continues a paragraph: an indented block, code, a formula, the rest of a sentence, an item of a list.
_CONTINUES = re.compile(r"\s|>>>|\.\.\. |\.\. math::|[a-z]|[-*+] |\d+\. ")
_REFERENCE = re.compile(r"^\.\. \[(#?\w+)\]", re.MULTILINE)

# Characters without which a pattern cannot match, the pattern, and its replacement.
_MARKUP = tuple(
    (sign, re.compile(pattern, re.MULTILINE), replacement)
    for sign, pattern, replacement in (
        (".. ", r"^\s*\.\. _[^:\n]+:.*$", ""),  # label or address of a link
        (".. ", r"^\s*\.\. (?:versionadded|versionchanged|deprecated)::[ \t]*[\d.]*", ""),
        (
            ".. ",
            r"^\s*\.\. (?:math|note|warning|seealso|attention|tip|important|hint|rubric|admonition)::",
            "",
        ),
        (".. ", r"^\s*\.\. [\w:-]+::.*$", ""),
        (":", r"^\s*:[\w-]+:[^`\n]*$", ""),  # option of a directive
        ("..", r"^\s*\.\.(?= |$)", ""),
        ("`", r"(?:Read more in|See) the :ref:`User Guide <[^`]*`\.?", ""),
        ("`", r":[\w:+-]+:`([^`<]*?)\s*<[^`]*>`", r"\1"),
        ("`", r":[\w:+-]+:`[~!]?([^`]*)`", r"\1"),
        ("`", r"`([^`<]+?)\s*<[^`>]+>`__?", r"\1"),
        ("``", r"``(.+?)``", r"\1"),
        ("`", r"`~?([^`\n]*(?:\n[^`\n]*)?)`(?:__?\b)?", r"\1"),
        ("**", r"(?<![\w*\\])\*\*([^\s*](?:[^*]*[^\s*\\])?)\*\*(?![\w*])", r"\1"),
        ("*", r"(?<![\w*\\])\*([^\s*](?:[^*]*[^\s*\\])?)\*(?![\w*])", r"\1"),
        ("]_", r"\[(#?\w+)\]_", r"[\1]"),
        ("::", r"::\s*$", ":"),
        ("--", r"(?<!\S)(?:-{3,}|\+[-=+]+)(?!\S)", ""),  # lines of tables and under titles
        ("==", r"(?<!\S)(?:={3,}|\+[-=+]+)(?!\S)", ""),
        ("\\", r"\\([*_|`])", r"\1"),
    )
)
_MENTIONS = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?<![:`\w])`{1,2}([A-Za-z_]\w*)`{1,2}(?![`\w])",
        r"(?<![\w*\\])\*{1,2}([A-Za-z_]\w*)\*{1,2}(?![\w*])",
        r"\b(?:[Ss]ee|[Ii]n) (?:also )?(?:the )?[`\"'*]*((?:Other )?[A-Z][a-z]+)[`\"'*]*(?= section| below|[.,;)])",
        r"\[(#?\w+)\]_",
    )
)


def _split_summary(lines: list[str]) -> tuple[str, list[str]]:
    text = "\n".join(lines).strip()
    if len(text.split()) <= MAX_SUMMARY_WORDS and not text.endswith(":"):
        return plain_text(text), []
    sentence = _SENTENCE.match(text)
    if sentence and len(sentence[1].split()) <= MAX_SUMMARY_WORDS:
        return plain_text(sentence[1]), text[sentence.end() :].splitlines()
    return "", lines


def _entries(section: str, parameters: Iterable[Any]) -> Iterator[Passage]:
    for described, entries in itertools.groupby(parameters, key=lambda entry: bool(entry[2])):
        undescribed: dict[str, frozenset[str]] = {}
        for name, kind, description in entries:
            header = " : ".join(part for part in (name, kind) if part)
            parts = (
                part.strip("` ").lstrip("*\\")
                for part in re.sub(r"\(.*\)|:.*", "", name).split(",")
            )
            names = frozenset(filter(None, parts))
            if described:
                yield from _passages(section, f"{header}\n\n" + "\n".join(description), names)
            else:
                undescribed[header] = names
        yield from _passages(
            section, ", ".join(undescribed), frozenset[str]().union(*undescribed.values())
        )


def _paragraphs(section: str, lines: Iterable[str]) -> Iterator[Passage]:
    gathered: list[str] = []
    for block in re.split(r"\n\s*\n|\n(?=\.\. \[)", "\n".join(lines)):
        if not block.strip():
            continue
        unfinished = gathered and (
            gathered[-1].rstrip().endswith(":") or len(" ".join(gathered).split()) < 5
        )
        if gathered and not unfinished and not _CONTINUES.match(block):
            yield from _passages(section, "\n\n".join(gathered))
            gathered = []
        gathered.append(block)
    yield from _passages(section, "\n\n".join(gathered))


def _passages(section: str, markup: str, names: frozenset[str] = frozenset()) -> Iterator[Passage]:
    names |= frozenset(_REFERENCE.findall(markup))
    mentions = frozenset(name for pattern in _MENTIONS for name in pattern.findall(markup)) - names
    for text in split_text(plain_text(markup), MAX_PASSAGE_WORDS):
        if len(text.split()) >= MIN_PASSAGE_WORDS:
            yield Passage(section, text, names, mentions)
        names = mentions = frozenset()  # the first part has them all
