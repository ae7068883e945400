"""The part of a passage that has the words of a question, and these words marked."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence

import numpy as np

from pyterrier_graph.checks import QualityWarning, check_type
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.search.bm25 import Stems, words

WORD = re.compile(r"[^\W_]+")
COPIED, SHINGLE = 0.6, 3  # share of a text's sequences of this many words that its copy has, too
SAMPLE, QUESTIONS, WORDS = 2000, 64, 6  # passages, random questions, words of each


def snippet(text: str, wanted: set[str], length: int = 40, *, stems: Stems | None = None) -> str:
    """The first window of ``length`` words that has the most wanted stems. Dots mark what is left out.

    A stem counts once, and a hundredth more for each further occurrence.
    """
    parts = text.split()
    stems = Stems() if stems is None else stems
    hits = [(at, stem) for at, part in enumerate(parts) for stem in _stems(part, stems, wanted)]
    best, first, last = 0.0, 0, -1
    for number, (start, _) in enumerate(hits):
        inside = [hit for hit in hits[number : number + length] if hit[0] < start + length]
        score = len({stem for _, stem in inside}) + len(inside) / 100
        if score > best:
            best, first, last = score, start, inside[-1][0]
    before = (
        length - (last + 1 - first)
    ) // 2  # as many words before the first hit as after the last
    start = max(0, min(first - before, len(parts) - length)) if hits else 0
    shown = " ".join(parts[start : start + length])
    return f"{'… ' * (start > 0)}{shown}{' …' * (start + length < len(parts))}"


def _stems(word: str, stems: Stems, wanted: set[str]) -> set[str]:
    return wanted.intersection(stems[part] for part in words(word))


def matching_words(text: str, wanted: set[str]) -> list[tuple[int, int]]:
    """Start and end of each word of a text that has one of the wanted stems."""
    stems = Stems()
    return [match.span() for match in WORD.finditer(text) if _stems(match[0], stems, wanted)]


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

    ``around`` has each text with its neighbors in its file, since another file may be cut elsewhere.
    """
    kept: dict[int, tuple[set[tuple[str, ...]], ...]] = {}
    for number, text in enumerate(texts):
        if len(kept) == most:
            break
        parts = _shingles(text)
        near = (known[files[other] != files[number]] for other, known in kept.items())
        if all(len(parts & known) < COPIED * len(parts) for known in near):
            kept[number] = parts, _shingles(around[number])
    return [*kept]


def _shingles(text: str) -> set[tuple[str, ...]]:
    found = words(text)
    return {
        tuple(found[start : start + SHINGLE]) for start in range(max(1, len(found) - SHINGLE + 1))
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
    check_type("question", question, str, "a string")
    if not words(question):
        raise ValueError("the question is empty: it needs a word")
