"""Sections and passages of a document, assembled from the blocks of a page."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from posixpath import dirname, join, normpath
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from pyterrier_graph.documents.document import (
    NO_PARENT,
    PASSAGE,
    SECTION,
    Link,
    Node,
    passage_id,
    with_title_passage,
)

ANCHOR, LINK = "anchor", "link"
# Scheme of links to labels, which are unique in all files, and prefix of their anchors.
LABEL = "label"
# What an address may lack at its end, as in "guide" for "guide.md".
ENDINGS = (
    *("", ".md", ".html", ".htm", ".rst"),
    *("/index.md", "/index.html", "/index.rst", "/README.md", "/_index.md"),
)
# A word of more than 20 characters (an address, or Chinese, which has no spaces) counts as one per four characters.
_WORD = re.compile(r"(?<!\S)\S{1,20}(?!\S)|\S{1,4}")
_SENTENCE_END = re.compile(r"""[.!?…。！？।؟]["')\]}»”’]*$""")


class Mark(NamedTuple):
    """An anchor or a link in a block: its name or address, and the character that it precedes."""

    kind: str
    value: str
    offset: int


class Piece(NamedTuple):
    """A part of a block that fits into a passage."""

    text: str
    words: int
    line: int
    marks: list[Mark]

    def join(self, other: Piece) -> Piece:
        """Appends another piece."""
        text = f"{self.text} {other.text}"
        return Piece(text, self.words + other.words, self.line, self.marks + other.marks)


@dataclass
class Block:
    """A heading or another block of a page.

    Attributes:
        level: Level of a heading; 0 for other blocks.
        line: Line of the file where its text begins; 0 without text.
    """

    level: int = 0
    line: int = 0
    parts: list[str] = field(default_factory=list)
    length: int = 0  # characters
    marks: list[Mark] = field(default_factory=list)

    def add(self, text: str | None, line: int) -> None:
        """Adds text of a line, unless it is white space at the beginning."""
        if not text or not (self.line or text.strip()):
            return
        self.line = self.line or line
        self.parts.append(text)
        self.length += len(text)

    @property
    def text(self) -> str:
        """The text, with the line breaks of the file."""
        return clean("".join(self.parts))

    @property
    def title(self) -> str:
        """The text with normalized white space."""
        return " ".join(self.text.split())

    def pieces(self, max_words: int) -> Iterator[Piece]:
        """Yields the text in pieces of at most ``max_words`` words, preferably of whole sentences."""
        text, marks = self.text, self.marks
        words = [match.span() for match in _WORD.finditer(text)]
        start, left, line = 0, 0, self.line
        while start < len(words):
            end = _cut(text, words, start, max_words)
            before, left, right = left, words[start][0], words[end - 1][1]
            line += text.count("\n", before, left)
            count = len(marks)
            if end < len(words):
                count = bisect_left(marks, right, key=lambda mark: mark.offset)
            yield Piece(" ".join(text[left:right].split()), end - start, line, marks[:count])
            start, marks = end, marks[count:]


def _cut(text: str, words: list[tuple[int, int]], start: int, max_words: int) -> int:
    """Returns the end of a piece: after a sentence in its second half, else after a word, else anywhere."""
    end = min(start + max_words, len(words))
    if end == len(words):
        return end
    half = start + (end - start) // 2

    def preference(cut: int) -> tuple[bool, bool, int]:
        begin, stop = words[cut - 1]
        is_space = text[stop].isspace()
        is_sentence = is_space and cut > half and _SENTENCE_END.search(text[begin:stop])
        return bool(is_sentence), is_space, cut

    return max(range(start + 1, end + 1), key=preference)


@dataclass
class Draft:
    """A document with unresolved references to other documents.

    Attributes:
        lines: The line of the file of each node.
        references: Node, address, and the names that the address may stand for, the most exact first.
        names: Ids of the document and of the passages at its anchors, by the names that links use.
    """

    docno: str
    nodes: list[Node] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    references: list[tuple[int, str, list[str]]] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)


def assemble(
    docno: str, title: Block, blocks: Iterable[Block], min_words: int, max_words: int
) -> Draft:
    """Makes a document of its title and its other blocks.

    Blocks of a section that have fewer than ``min_words`` words are merged with the next one while both have at most
    ``max_words``; longer blocks are cut.
    """
    draft = Draft(docno)
    marks: list[tuple[int, Mark]] = []  # with their nodes

    def add(kind: str, text: str, parent: int, line: int, marks_of_node: list[Mark]) -> int:
        node = len(draft.nodes)
        draft.nodes.append(Node(kind, text, parent))
        draft.lines.append(line or 1)
        marks.extend((node, mark) for mark in marks_of_node)
        return node

    add(SECTION, title.title, NO_PARENT, title.line, title.marks)
    above = [(0, 0)]  # levels and nodes of the open sections
    trailing: list[Mark] = []  # of the last block, if it has no text
    for level, group in groupby(blocks, key=lambda block: block.level):
        pieces: list[Piece] = []
        for block in group:
            trailing = [] if level or block.line else block.marks
            if not level:
                pieces += block.pieces(max_words)
                continue
            while above[-1][0] >= level:
                above.pop()
            node = add(SECTION, block.title, above[-1][1], block.line, block.marks)
            above.append((level, node))
        for piece in merge(pieces, min_words, max_words):
            add(PASSAGE, piece.text, above[-1][1], piece.line, piece.marks)
    marks += [(len(draft.nodes) - 1, mark) for mark in trailing]
    for kind, text, parent in with_title_passage(draft.nodes)[len(draft.nodes) :]:
        add(kind, text, parent, draft.lines[0], [])
    _connect(draft, marks)
    return draft


def merge(pieces: Iterable[Piece], min_words: int, max_words: int) -> list[Piece]:
    """Merges each piece of fewer than ``min_words`` words with the next, or the last with the one before it."""
    merged: list[Piece] = []
    for piece in pieces:
        if merged and merged[-1].words < min_words and merged[-1].words + piece.words <= max_words:
            piece = merged.pop().join(piece)
        merged.append(piece)
    if len(merged) > 1 and merged[-1].words < min_words:
        *before, second, last = merged
        if second.words + last.words <= max_words:
            return [*before, second.join(last)]
    return merged


def clean(text: str) -> str:
    """Replaces the characters of a text that UTF-8 or a database cannot store."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _connect(draft: Draft, marks: list[tuple[int, Mark]]) -> None:
    """Turns marks into links, references and names."""
    docno = draft.docno
    anchors = {f"{docno}#": 0}
    for node, mark in marks:
        if mark.kind == ANCHOR:
            anchors.setdefault(f"{docno}#{clean(mark.value)}", node)
    for node, mark in marks:
        if mark.kind == LINK:
            address, names = _targets(clean(mark.value), docno)
            target = next((anchors[name] for name in names if name in anchors), None)
            if target is not None:
                draft.links.append(Link("internal", node, target))
            elif names and address != docno:
                draft.references.append((node, address, names))
    first = _first_passages(draft)
    draft.names = {name: first[node] for name, node in anchors.items()} | {docno: docno}
    for name, node in anchors.items():
        label = name.removeprefix(f"{docno}#")
        if label.startswith(f"{LABEL}-"):
            draft.names[label] = first[node]


def _targets(address: str, docno: str) -> tuple[str, list[str]]:
    """Returns the file that an address leads to, and the names that it may stand for: none outside the folder.

    Addresses are relative to the document, or to the folder if they begin with a slash.
    """
    try:
        scheme, host, path, _, fragment = urlsplit(address.strip())
    except ValueError:  # not an address
        return "", []
    path, fragment = unquote(path), unquote(fragment)
    if scheme == LABEL:
        return "", [f"{docno}#{LABEL}-{path}", f"{LABEL}-{path}"]
    file = normpath(path).lstrip("/") if path[:1] == "/" else normpath(join(dirname(docno), path))
    if scheme or host or file.startswith(".."):
        return "", []
    if not path or file == docno:
        return docno, [f"{docno}#{fragment}"]
    files = [normpath(f"{file}{ending}".lstrip("/")) for ending in ENDINGS]
    return file, [*(f"{file}#{fragment}" for file in files if fragment), *files]


def _first_passages(draft: Draft) -> list[str]:
    """Returns the id of the first passage of each node; the docno for the root and for nodes without passages."""
    first = [draft.docno] * len(draft.nodes)
    number = sum(node.kind == PASSAGE for node in draft.nodes)
    for node in reversed(range(1, len(draft.nodes))):
        kind, _, parent = draft.nodes[node]
        if kind == PASSAGE:
            number -= 1
            first[node] = passage_id(draft.docno, number)
        if parent > 0 and first[node] != draft.docno:
            first[parent] = first[node]
    return first
