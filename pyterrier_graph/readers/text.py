"""Texts of blocks: they are gathered, measured in words and cut."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

_LONG_WORD = 20  # characters; a longer one counts as several words: an address, or Chinese, which has no spaces
_LETTERS = 4  # characters of a long word that count as one word
_ENDS = (".", "!", "?", "…", "。", "！", "？", "।", "؟")
_CLOSING = "\"')]}»”’"


class Mark(NamedTuple):
    """What is at a word of a text: an anchor, or a link."""

    word: int
    kind: str
    value: tuple[str, ...]


class Piece(NamedTuple):
    """A part of a text that is not longer than a passage."""

    text: str
    size: int
    line: int
    marks: list[Mark]


@dataclass
class Text:
    """The text of a heading or of a block, as it is read.

    Attributes:
        kind: What the block is, such as ``'code'``.
        line: The line of the file that it begins in, from 1.
        level: The level of a heading; 0 if this is no heading.
    """

    kind: str
    line: int
    level: int = 0
    parts: list[str] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    words: int = 0

    def add(self, text: str) -> None:
        """Adds text as the file has it: its line breaks are those of the file."""
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
            sizes = [_size(word) for word in words]
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
    """The text without what cannot be stored as UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{REPLACEMENT CHARACTER}")


def _size(word: str) -> int:
    return 1 if len(word) <= _LONG_WORD else -(-len(word) // _LETTERS)


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
            end = next((place for place in sentences if words[place - 1].rstrip(_CLOSING).endswith(_ENDS)), end)
        yield start, end
        start = end
