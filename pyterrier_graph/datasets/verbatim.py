"""Finds and removes verbatim copies of lines in texts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TypeAlias

Words: TypeAlias = tuple[str, ...]

MIN_WORDS = 3
_WORD = re.compile(r"\w+")


def words(text: str) -> Words:
    """The words of a text, in lower case. Texts with equal words are copies of each other."""
    return tuple(map(str.lower, _WORD.findall(text)))


class VerbatimCopies:
    """Finds copies of lines in texts, independent of case, punctuation and white space.

    Args:
        lines: The words of each line. Lines of fewer than three words are ignored: they are found everywhere.
    """

    def __init__(self, lines: Iterable[Words]) -> None:
        by_start: dict[Words, set[Words]] = defaultdict(set)
        for line in lines:
            if len(line) >= MIN_WORDS:
                by_start[line[:MIN_WORDS]].add(line)
        self._by_start = {start: sorted(found, key=len, reverse=True) for start, found in by_start.items()}

    def find(self, text: str) -> Iterator[tuple[Words, int, int]]:
        """The lines that the text copies, with begin and end of each copy; of overlapping copies, the first."""
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
        """The text without copies and without the punctuation after each copy."""
        found = list(self.find(text))
        if not found:
            return text
        for _, begin, end in reversed(found):
            text = f"{text[:begin]} {text[end:].lstrip('.,;:!?')}"
        return self.remove(" ".join(text.split()))  # words that were apart may now be another copy
