"""The part of a passage that has the words of a question, and these words marked."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from pyterrier_graph.checks import QualityWarning
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.search.bm25 import stem, words

WORD = re.compile(r"[^\W_]+")
COPIED, SHINGLE = 0.6, 3  # share of a text's sequences of this many words that its copy has, too
SAMPLE, QUESTIONS, WORDS = 2000, 64, 6  # passages, random questions, words of each


class Matcher(dict[str, frozenset[str]]):
    """Which of the wanted stems a word of a text has. Each distinct word is looked at once."""

    def __init__(self, wanted: Iterable[str]) -> None:
        self.wanted = frozenset(wanted)

    def __missing__(self, word: str) -> frozenset[str]:
        self[word] = stems = self.wanted.intersection(_stems(word))
        return stems


@lru_cache(maxsize=1 << 16)
def _stems(word: str) -> tuple[str, ...]:
    return tuple(map(stem, words(word)))


def snippet(text: str, matcher: Matcher, length: int = 40) -> str:
    """The first window of ``length`` words that has the most wanted stems. Dots mark what is left out.

    A stem counts once, and a hundredth more for each further occurrence.
    """
    tokens = text.split() if matcher.wanted else text.split(maxsplit=length)
    seen = enumerate(tokens if matcher.wanted else ())
    hits = [(at, stems) for at, token in seen if (stems := matcher[token])]
    best, first, last = 0.0, 0, -1
    for number, (start, _) in enumerate(hits):
        inside = [hit for hit in hits[number : number + length] if hit[0] < start + length]
        score = len(frozenset().union(*(stems for _, stems in inside))) + len(inside) / 100
        if score > best:
            best, first, last = score, start, inside[-1][0]
    # as many words before the first hit as after the last
    before = (length - (last + 1 - first)) // 2
    start = max(0, min(first - before, len(tokens) - length)) if hits else 0
    shown = " ".join(tokens[start : start + length])
    return f"{'… ' * (start > 0)}{shown}{' …' * (start + length < len(tokens))}"


def matching_words(text: str, matcher: Matcher) -> list[tuple[int, int]]:
    """Start and end of each word of ``text`` that has one of the matcher's stems."""
    return [match.span() for match in WORD.finditer(text) if matcher[match[0]]]


def random_questions(graph: DocumentGraph) -> list[str]:
    """Questions without meaning: words drawn from the passages of a graph."""
    random = np.random.default_rng(0)
    sample = np.sort(random.permutation(graph.passage_nodes)[:SAMPLE])
    drawn = sorted({*re.findall(r"[^\W\d_]{3,}", " ".join(graph.texts(sample)))} or {"?"})
    return [" ".join(question) for question in random.choice(drawn, (QUESTIONS, WORDS))]


def distinct(
    texts: Sequence[str], around: Sequence[str], files: Sequence[str], most: int
) -> list[int]:
    """The numbers of the first ``most`` texts that are not copies of an earlier one.

    ``around`` has each text with the passages before and after it, since a copy may be split at other words.
    """
    chosen: dict[int, tuple[set[tuple[str, ...]], ...]] = {}
    for number, text in enumerate(texts):
        if len(chosen) == most:
            break
        parts = _shingles(text)
        near = (known[files[other] != files[number]] for other, known in chosen.items())
        if all(len(parts & known) < COPIED * len(parts) for known in near):
            chosen[number] = parts, _shingles(around[number])
    return [*chosen]


def _shingles(text: str) -> set[tuple[str, ...]]:
    tokens = words(text)
    return {
        tuple(tokens[start : start + SHINGLE]) for start in range(max(1, len(tokens) - SHINGLE + 1))
    }


def warn_of_no_answer(question: str, best: float, unrelated: float) -> str:
    """Warns that the best similarity is that of random words, and returns the reason."""
    reason = f"the best similarity is {best:.2f}, and random words have {unrelated:.2f}"
    warnings.warn(
        f"no passage answers {question!r:.60}: {reason}; ask in other words",
        QualityWarning,
        stacklevel=4,
    )
    return reason


def check_question(question: str) -> None:
    """Raises ValueError if a question has no word."""
    if not words(question):
        raise ValueError("the question is empty: it needs a word")
