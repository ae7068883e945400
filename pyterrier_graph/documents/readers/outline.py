"""Sections and passages from headings and blocks of text, which a parser finds in a file.

A parser fills an :class:`Outline`, in the order of the file. :func:`assemble` makes a :class:`Draft` of it: a document
whose references to other files are still names.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from posixpath import dirname, join, normpath
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from pyterrier_graph.documents.document import NO_PARENT, PASSAGE, SECTION, Link, Node, passage_id

ANCHOR, NAME, LINK, REFERENCE = "anchor", "name", "link", "reference"
MAX_LEVEL = 20
MAX_HEADING = 100  # words; a longer one is a heading that nobody closed
_LONG_WORD = 20  # characters; a longer one counts as several words: an address, or Chinese, which has no spaces
_LETTERS = 4  # characters of a long word that count as one word
_ENDS = (".", "!", "?", "…", "。", "！", "？", "।", "؟")
_CLOSING = "\"')]}»”’"


class ReaderError(ValueError):
    """A file that cannot be read; the message is the reason."""


class Mark(NamedTuple):
    """An anchor or a link at a word of a text."""

    word: int
    kind: str
    value: tuple[str, ...]


class Piece(NamedTuple):
    """A part of a text that is not longer than a passage."""

    text: str
    size: int
    line: int
    marks: list[Mark]

    def joined(self, other: Piece) -> Piece:
        """This piece and the one after it."""
        return Piece(
            f"{self.text} {other.text}", self.size + other.size, self.line, self.marks + other.marks
        )


@dataclass
class Text:
    """The text of a heading or of a block, as it is read."""

    line: int  # of the file, from 1
    level: int = 0  # of a heading; 0 if it is not a heading
    parts: list[str] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    words: int = 0

    def add(self, text: str) -> None:
        """Adds text with the line breaks of the file."""
        if text:
            continues = self.parts and not text[0].isspace() and not self.parts[-1][-1].isspace()
            self.words += len(text.split()) - bool(continues)
            self.parts.append(text)

    def mark(self, kind: str, *value: str) -> None:
        """Adds a mark at the word that comes next."""
        self.marks.append(Mark(self.words, kind, value))

    def plain(self) -> str:
        """The text, with normalized white space."""
        return clean(" ".join("".join(self.parts).split()))

    def pieces(self, max_words: int) -> Iterator[Piece]:
        """The text, cut into pieces of at most so many words, after a sentence where there is one in reach."""
        text = clean("".join(self.parts))
        words = text.split()
        sizes = [1] * len(words)
        if max(map(len, words), default=0) > _LONG_WORD:
            words = [part for word in words for part in _chop(word, max_words * _LETTERS)]
            sizes = [1 if len(word) <= _LONG_WORD else -(-len(word) // _LETTERS) for word in words]
        if sum(sizes) <= max_words:
            yield Piece(" ".join(words), sum(sizes), self.line, self.marks)
            return
        words_until = [*accumulate(len(line.split()) for line in text.split("\n"))]
        marks = iter(self.marks)
        mark = next(marks, None)
        for start, end in _cuts(words, sizes, max_words):
            here = []
            while mark and (mark.word < end or end == len(words)):
                here.append(mark)
                mark = next(marks, None)
            line = self.line + min(bisect_right(words_until, start), len(words_until) - 1)
            yield Piece(" ".join(words[start:end]), sum(sizes[start:end]), line, here)


def clean(text: str) -> str:
    """Replaces the characters of a text that UTF-8 or a database cannot store."""
    return (
        text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{REPLACEMENT CHARACTER}")
    )


def _chop(word: str, characters: int) -> list[str]:
    if len(word) <= max(characters, _LONG_WORD):
        return [word]
    return [word[start : start + characters] for start in range(0, len(word), characters)]


def _cuts(words: list[str], sizes: list[int], limit: int) -> Iterator[tuple[int, int]]:
    """Begin and end of the pieces: each ends with the last sentence of its second half, if one ends there."""
    start = 0
    while start < len(words):
        end, size = start, 0
        while end < len(words) and (end == start or size + sizes[end] <= limit):
            size += sizes[end]
            end += 1
        if end < len(words):
            sentences = range(end, start + (end - start) // 2, -1)
            end = next(
                (place for place in sentences if words[place - 1].rstrip(_CLOSING).endswith(_ENDS)),
                end,
            )
        yield start, end
        start = end


class Outline:
    """The headings and blocks of a file. A parser begins each one, adds its text, and marks anchors and links in it."""

    def __init__(self, docno: str) -> None:
        self.docno = docno
        self.title = ""  # that the file declares
        self.title_is_fallback = False  # whether a heading is preferred to the declared title
        self.blocks: list[Text] = []
        self.text = Text(1)  # the present block

    def begin(self, line: int | None, level: int = 0) -> None:
        """Ends the present block, and begins one in this line; a block with a ``level`` is a heading."""
        self.end()
        marks, line = self.text.marks, line or self.text.line
        self.text = Text(line, min(level, MAX_LEVEL), marks=marks)

    def end(self) -> None:
        """Ends the present block. A block without text leaves its marks to the next block."""
        text = self.text
        if text.words > MAX_HEADING:
            text.level = 0
        self.text = Text(text.line)
        if text.words:
            self.blocks.append(text)
        else:
            self.text.marks = text.marks

    def add(self, text: str | None) -> None:
        """Adds text to the present block."""
        self.text.add(text or "")

    def anchor(self, name: str | None) -> None:
        """Marks a place that links can lead to."""
        if name:
            self.text.mark(ANCHOR, clean(name))

    def name(self, name: str) -> None:
        """Marks a place that has a name for all files."""
        self.text.mark(NAME, clean(name))

    def link(self, name: str) -> None:
        """Marks a link to an anchor of this document; the empty name is that of the document itself."""
        self.text.mark(LINK, clean(name))

    def refer(self, *names: str, address: str = "") -> None:
        """Marks a reference to the first of these names, or paths of files with or without anchors, that exists.

        ``address`` is the path of the file, if the reference names one. A name that is not a path may belong to a
        document elsewhere, so that an unknown one is not a broken link.
        """
        self.text.mark(REFERENCE, *map(clean, (address, *names)))

    def follow(self, address: str | None, endings: tuple[str, ...] = ()) -> None:
        """Marks a link to an address, such as ``"../guide.md#install"``: an anchor of this file, or another file.

        Addresses are relative to the document, or to the folder if they begin with a slash. They may lack one of the
        ``endings``, such as ``".md"`` or ``"/index.md"``.
        """
        if address is None:
            return
        try:
            scheme, host, path, _, fragment = urlsplit(address.strip())
        except ValueError:  # not an address
            return
        path, fragment = unquote(path), unquote(fragment.partition(":~:")[0])
        target = (
            normpath(join(dirname(self.docno), path))
            if path[:1] != "/"
            else normpath(path).lstrip("/")
        )
        if scheme or host or target.startswith(".."):
            return
        if not path or target == self.docno:
            self.link(fragment)
        else:
            paths = [normpath(f"{target}{ending}".lstrip("/")) for ending in ("", *endings)]
            self.refer(
                *(f"{path}#{fragment}" for path in paths if fragment), *paths, address=target
            )


@dataclass
class Draft:
    """A document whose references are still names."""

    docno: str
    nodes: list[Node] = field(default_factory=list)  # the root is the first
    lines: list[int] = field(
        default_factory=list
    )  # per node the line of the file where it begins, from 1
    links: list[Link] = field(default_factory=list)
    references: list[tuple[int, str, list[str]]] = field(
        default_factory=list
    )  # node, path or "", names of targets
    names: dict[str, str] = field(
        default_factory=dict
    )  # of the document and its parts: docno or passage id


def assemble(outline: Outline, min_words: int, max_words: int) -> Draft:
    """Makes a document of an outline.

    The first heading is the document's title if it is the only one of the highest level, unless the file declares
    another title. A heading belongs to the nearest heading above it of a smaller level. Blocks of a section with fewer
    than ``min_words`` words are merged with the next one while both have at most ``max_words``; longer ones are cut.
    """
    blocks, title = _title(outline)
    draft = Draft(outline.docno)
    placed: list[tuple[int, list[Mark]]] = []  # node, marks

    def add(kind: str, text: str, parent: int, line: int, marks: list[Mark]) -> int:
        draft.nodes.append(Node(kind, text, parent))
        draft.lines.append(line)
        placed.append((len(draft.nodes) - 1, marks))
        return len(draft.nodes) - 1

    above = [
        (0, add(SECTION, title.plain(), NO_PARENT, title.line, title.marks))
    ]  # levels and nodes
    for is_heading, group in groupby(blocks, key=lambda block: block.level > 0):
        if is_heading:
            for block in group:
                while above[-1][0] >= block.level:
                    above.pop()
                above.append(
                    (
                        block.level,
                        add(SECTION, block.plain(), above[-1][1], block.line, block.marks),
                    )
                )
        else:
            for piece in merge(
                (piece for block in group for piece in block.pieces(max_words)),
                min_words,
                max_words,
            ):
                add(PASSAGE, piece.text, above[-1][1], piece.line, piece.marks)
    placed.append((len(draft.nodes) - 1, outline.text.marks))  # those after all text
    _connect(draft, placed)
    return draft


def merge(pieces: Iterable[Piece], min_words: int, max_words: int) -> list[Piece]:
    """Merges each piece of fewer than ``min_words`` words with the next, or the last with the one before it."""
    merged: list[Piece] = []
    for piece in pieces:
        if merged and merged[-1].size < min_words and merged[-1].size + piece.size <= max_words:
            piece = merged.pop().joined(piece)
        merged.append(piece)
    if (
        len(merged) > 1
        and merged[-1].size < min_words
        and merged[-2].size + merged[-1].size <= max_words
    ):
        last = merged.pop()
        merged.append(merged.pop().joined(last))
    return merged


def _title(outline: Outline) -> tuple[list[Text], Text]:
    """The blocks without the title, and the title."""
    headings = [block for block in outline.blocks if block.level]
    declared = Text(1)
    declared.add(clean(outline.title))
    if not headings or any(other.level <= headings[0].level for other in headings[1:]):
        return outline.blocks, declared
    first = headings[0]
    same = first.plain().casefold() == declared.plain().casefold()
    if declared.words and not outline.title_is_fallback and not same:
        return outline.blocks, declared
    return [block for block in outline.blocks if block is not first], first


def _connect(draft: Draft, placed: list[tuple[int, list[Mark]]]) -> None:
    """Turns marks into links, references and names."""
    places = {f"{draft.docno}#": 0}
    for node, marks in placed:
        for mark in marks:
            name = f"{draft.docno}#{mark.value[0]}" if mark.kind == ANCHOR else mark.value[0]
            if mark.kind in (ANCHOR, NAME):
                places.setdefault(name, node)
    for node, marks in placed:
        for kind, (name, *names) in (
            (mark.kind, mark.value) for mark in marks if mark.kind in (LINK, REFERENCE)
        ):
            target = next(
                (places[name] for name in names or [f"{draft.docno}#{name}"] if name in places),
                None,
            )
            if target is not None:
                draft.links.append(Link("internal", node, target))
            elif kind == REFERENCE:
                draft.references.append((node, name, names))
    first = _first_passages(draft)
    draft.names = {name: first[node] for name, node in places.items()}
    draft.names[draft.docno] = draft.docno


def _first_passages(draft: Draft) -> list[str]:
    """Per node the id of its first passage, which may be the node itself; without any, the docno."""
    found = [draft.docno] * len(draft.nodes)
    passages = 0
    for node, (kind, _, above) in enumerate(draft.nodes):
        if kind == PASSAGE:
            found[node] = passage_id(draft.docno, passages)
            passages += 1
            while above > 0 and found[above] == draft.docno:
                found[above] = found[node]
                above = draft.nodes[above].parent
    return found
