"""Snippets: the part of a passage that has the words of a question, and the positions of these words."""

import re
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache

from pyterrier_graph.search.bm25 import stem, words

WORD = re.compile(r"[^\W_]+")


@lru_cache(maxsize=1 << 16)
def stems(token: str) -> frozenset[str]:
    """Stems of the words in a token, such as those of ``"(e-mails)"``."""
    return frozenset(map(stem, words(token)))


def snippet(text: str, terms: frozenset[str] = frozenset(), length: int = 40) -> str:
    """Returns the window of ``length`` words that has the most of the terms. Dots mark omitted text.

    Of several such windows, the first one with the most matching words is returned. Without matches, the window is the
    beginning.
    """
    tokens = text.split()
    matches = [terms & stems(token) for token in tokens] if terms else []
    first, last = _best_window(matches, length)
    # as many words before the first match as after the last
    matching_length = last + 1 - first
    before = (length - matching_length) // 2
    start = min(first - before, len(tokens) - length)
    start = max(start, 0)
    end = start + length
    shown = " ".join(tokens[start:end])
    if start > 0:
        shown = f"… {shown}"
    if end < len(tokens):
        shown = f"{shown} …"
    return shown


def _best_window(matches: Sequence[frozenset[str]], length: int) -> tuple[int, int]:
    """The first and the last matching word of the best window; the whole first window if no word matches.

    ``matches`` has the terms that each word matches.
    """
    hits = [position for position, terms in enumerate(matches) if terms]
    best = 0, length - 1
    best_score = 0, 0  # terms and words that match
    for number, first in enumerate(hits):
        end = bisect_left(hits, first + length)
        window = hits[number:end]
        window_matches = [matches[position] for position in window]
        window_terms = frozenset().union(*window_matches)
        score = len(window_terms), len(window)
        if score > best_score:
            best_score = score
            best = first, window[-1]
    return best


def matching_words(text: str, terms: frozenset[str]) -> list[tuple[int, int]]:
    """Start and end of each word of a text that has one of the terms."""
    tokens = WORD.finditer(text)
    return [token.span() for token in tokens if terms & stems(token[0])]
