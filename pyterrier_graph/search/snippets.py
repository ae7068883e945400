"""Snippets: the part of a passage that has the words of a question, and the positions of these words."""

import re
from functools import lru_cache

from pyterrier_graph.search.bm25 import stem, words

WORD = re.compile(r"[^\W_]+")


@lru_cache(maxsize=1 << 16)
def stems(token: str) -> frozenset[str]:
    """Stems of the words in a token, such as those of ``"(e-mails)"``."""
    return frozenset(map(stem, words(token)))


def snippet(text: str, terms: frozenset[str], length: int = 40) -> str:
    """Returns the window of ``length`` words that has the most of the terms. Dots mark omitted text.

    Of several such windows, the first one with the most matching words is returned.
    """
    tokens = text.split()
    matches = [terms & stems(token) for token in tokens] if terms else []
    hits = [number for number, match in enumerate(matches) if match]
    first, last = 0, length - 1
    best = 0, 0  # terms and words that match, in the best window
    for number, start in enumerate(hits):
        window = [hit for hit in hits[number : number + length] if hit < start + length]
        window_terms = frozenset().union(*(matches[hit] for hit in window))
        score = len(window_terms), len(window)
        if score > best:
            best = score
            first, last = start, window[-1]
    # as many words before the first hit as after the last
    before = (length - (last + 1 - first)) // 2
    start = max(0, min(first - before, len(tokens) - length))
    end = start + length
    shown = " ".join(tokens[start:end])
    if start > 0:
        shown = f"… {shown}"
    if end < len(tokens):
        shown = f"{shown} …"
    return shown


def matching_words(text: str, terms: frozenset[str]) -> list[tuple[int, int]]:
    """Start and end of each word of a text that has one of the terms."""
    tokens = WORD.finditer(text)
    return [token.span() for token in tokens if terms & stems(token[0])]
