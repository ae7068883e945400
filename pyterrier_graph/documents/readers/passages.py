"""Sections and passages of a document, assembled from the blocks of a page."""

from __future__ import annotations

import re
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
    Kind,
    Link,
    Node,
    passage_id,
    with_title_passage,
)

ANCHOR = "anchor"
LINK = "link"
# What an address may lack at its end, as in "guide" for "guide.md".
ENDINGS = ("", ".md", ".html", "/index.md", "/index.html", "/README.md", "/_index.md")
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
        words = self.words + other.words
        marks = self.marks + other.marks
        return Piece(text, words, self.line, marks)


@dataclass
class Block:
    """A heading or another block of a page.

    Attributes:
        level: Level of a heading; 0 for other blocks.
        line: Line of the file where its text begins; 0 without text.
        length: Number of characters.
    """

    level: int = 0
    line: int = 0
    parts: list[str] = field(default_factory=list)
    length: int = 0
    marks: list[Mark] = field(default_factory=list)

    def add(self, text: str | None, line: int) -> None:
        """Adds text of a line, unless it is white space at the beginning."""
        if not text or not (self.line or text.strip()):
            return
        self.line = self.line or line
        self.parts.append(text)
        self.length += len(text)

    def mark(self, kind: str, value: str) -> None:
        """Adds an anchor or a link before the next character."""
        self.marks.append(Mark(kind, value, self.length))

    @property
    def title(self) -> str:
        """The text with normalized white space."""
        text = "".join(self.parts)
        return " ".join(text.split())

    def pieces(self, max_words: int) -> Iterator[Piece]:
        """Yields the text in pieces of at most ``max_words`` words, preferably of whole sentences."""
        text = "".join(self.parts)  # with the line breaks of the file
        words = [match.span() for match in _WORD.finditer(text)]
        marks = self.marks  # of this piece and the next ones
        line = self.line
        counted = 0  # characters whose line breaks are counted
        start = 0
        while start < len(words):
            end = _cut(text, words, start, max_words)
            is_last = end == len(words)
            left, _ = words[start]
            _, right = words[end - 1]
            line += text.count("\n", counted, left)
            counted = left
            inside = [mark for mark in marks if is_last or mark.offset < right]
            content = " ".join(text[left:right].split())
            yield Piece(content, end - start, line, inside)
            marks = marks[len(inside) :]
            start = end


def _cut(text: str, words: list[tuple[int, int]], start: int, max_words: int) -> int:
    """Returns the end of a piece: after a sentence in its second half, else after a word, else anywhere."""
    end = min(start + max_words, len(words))
    if end == len(words):
        return end
    half = start + (end - start) // 2

    def preference(cut: int) -> tuple[bool, bool, int]:
        begin, stop = words[cut - 1]
        is_space = text[stop].isspace()
        if not is_space or cut <= half:
            return False, is_space, cut
        ends_sentence = _SENTENCE_END.search(text[begin:stop])
        return bool(ends_sentence), is_space, cut

    return max(range(start + 1, end + 1), key=preference)


def merge(pieces: Iterable[Piece], min_words: int, max_words: int) -> list[Piece]:
    """Merges each piece of fewer than ``min_words`` words with the next, or the last with the one before it."""
    merged: list[Piece] = []
    for piece in pieces:
        if merged and merged[-1].words < min_words:
            if merged[-1].words + piece.words <= max_words:
                piece = merged.pop().join(piece)
        merged.append(piece)
    if len(merged) > 1 and merged[-1].words < min_words:
        *before, second, last = merged
        if second.words + last.words <= max_words:
            return [*before, second.join(last)]
    return merged


@dataclass
class Draft:
    """A document with unresolved references to other documents.

    Attributes:
        lines: The line of the file of each node.
        marks: Anchors and links, with their nodes.
        references: Node, file, and the names that the address may stand for, the most exact first.
        names: Ids of the document and of the passages at its anchors, by the names that links use.
    """

    docno: str
    nodes: list[Node] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    marks: list[tuple[int, Mark]] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    references: list[tuple[int, str, list[str]]] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    def add(self, kind: Kind, text: str, parent: int, line: int, marks: list[Mark]) -> int:
        """Adds a node, and returns its number."""
        node = len(self.nodes)
        self.nodes.append(Node(kind, text, parent))
        self.lines.append(line or 1)
        self.marks += [(node, mark) for mark in marks]
        return node


def assemble(
    docno: str, title: Block, blocks: Iterable[Block], min_words: int, max_words: int
) -> Draft:
    """Makes a document of its title and its other blocks.

    Blocks of a section that have fewer than ``min_words`` words are merged with the next one while both have at most
    ``max_words``; longer blocks are cut.
    """
    draft = Draft(docno)
    draft.add(SECTION, title.title, NO_PARENT, title.line, title.marks)
    sections = [(0, 0)]  # level and node of each open section
    for is_heading, group in groupby(blocks, key=lambda block: block.level > 0):
        if is_heading:
            for block in group:
                while sections[-1][0] >= block.level:
                    sections.pop()
                _, parent = sections[-1]
                node = draft.add(SECTION, block.title, parent, block.line, block.marks)
                sections.append((block.level, node))
        else:
            pieces: list[Piece] = []
            for block in group:
                pieces.extend(block.pieces(max_words))
            _, parent = sections[-1]
            for piece in merge(pieces, min_words, max_words):
                draft.add(PASSAGE, piece.text, parent, piece.line, piece.marks)
    draft.nodes = [*with_title_passage(draft.nodes)]
    if len(draft.nodes) > len(draft.lines):
        draft.lines.append(draft.lines[0])
    _connect(draft)
    return draft


def _connect(draft: Draft) -> None:
    """Turns marks into links, references and names."""
    docno = draft.docno
    anchors = {f"{docno}#": 0}
    for node, mark in draft.marks:
        if mark.kind == ANCHOR:
            anchors.setdefault(f"{docno}#{mark.value}", node)
    for node, mark in draft.marks:
        if mark.kind != LINK:
            continue
        file, names = _targets(mark.value, docno)
        target = next((anchors[name] for name in names if name in anchors), None)
        if target is not None:
            draft.links.append(Link("internal", node, target))
        elif names and file != docno:
            draft.references.append((node, file, names))
    first = _first_passages(draft)
    draft.names = {name: first[node] for name, node in anchors.items()}
    draft.names[docno] = docno


def _targets(address: str, docno: str) -> tuple[str, list[str]]:
    """Returns the file that an address leads to, and the names that it may stand for: none outside the folder.

    Addresses are relative to the document, or to the folder if they begin with a slash.
    """
    try:
        scheme, host, path, _, fragment = urlsplit(address.strip())
    except ValueError:  # not an address
        return "", []
    path = unquote(path)
    fragment = unquote(fragment)
    file = normpath(join(dirname(docno), path))
    file = file.lstrip("/")
    if scheme or host or file.startswith(".."):
        return "", []
    if not path or file == docno:
        return docno, [f"{docno}#{fragment}"]
    files = [normpath(f"{file}{ending}".lstrip("/")) for ending in ENDINGS]
    anchors = [f"{file}#{fragment}" for file in files if fragment]
    return file, anchors + files


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
