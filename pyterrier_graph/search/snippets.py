"""The part of a passage that has the words of a question, and these words marked."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path

from pyterrier_graph.checks import QualityWarning, check_type, is_unicode

WORD = re.compile(r"[^\W_]+")
COPIED, SHINGLE = 0.6, 3  # share of a text's sequences of so many words that another text has, too


@lru_cache(maxsize=1 << 16)
def _stem(word: str) -> str:
    import snowballstemmer

    return snowballstemmer.stemmer("english").stemWord(
        word
    )  # a stemmer has state, which threads must not share


@lru_cache(maxsize=1)
def _stop_words() -> frozenset[str]:
    """``ENGLISH_STOP_WORDS`` of scikit-learn, of which only this file is run: importing all takes a second."""
    package = find_spec("sklearn")
    assert package is not None and package.origin is not None
    return run_path(str(Path(package.origin).parent / "feature_extraction" / "_stop_words.py"))[
        "ENGLISH_STOP_WORDS"
    ]


def stems(text: str) -> list[str]:
    """The stems of the words of a text, in their order."""
    return [_stem(word.casefold()) for word in WORD.findall(text)]


def content_stems(question: str) -> set[str]:
    """The stems of a question, without words such as "the"; all of them if there are no others."""
    words = [word.casefold() for word in WORD.findall(question)]
    return {_stem(word) for word in [word for word in words if word not in _stop_words()] or words}


def snippet(text: str, wanted: set[str], words: int = 40) -> str:
    """The part of a text with the most of the wanted stems; the first part where several have as many.

    Dots stand for what is left out.
    """
    parts = text.split()
    stem_of = {
        word: stem for word in {*WORD.findall(text)} if (stem := _stem(word.casefold())) in wanted
    }
    found = [{stem_of[word] for word in WORD.findall(part) if word in stem_of} for part in parts]
    counts: Counter[str] = Counter()
    best, last = (0, 0), -1
    for place, entering in enumerate(found):
        if place >= words and found[place - words]:
            counts.subtract(found[place - words])
        if not entering:  # the score does not grow
            continue
        counts.update(entering)
        score = (sum(count > 0 for count in counts.values()), counts.total())
        if score > best:
            best, last = score, place
    first = next((place for place in range(max(0, last - words + 1), last + 1) if found[place]), 0)
    before = (
        words - (last + 1 - first)
    ) // 2  # as many words before the first match as after the last
    start = max(0, min(first - before, len(parts) - words)) if last >= 0 else 0
    shown = " ".join(parts[start : start + words])
    return f"{'… ' * (start > 0)}{shown}{' …' * (start + words < len(parts))}"


def matching_words(text: str, wanted: set[str]) -> list[tuple[int, int]]:
    """Start and end of each word of a text that has one of the wanted stems."""
    return [match.span() for match in WORD.finditer(text) if wanted.intersection(stems(match[0]))]


def distinct(
    texts: Sequence[str], around: Sequence[str], files: Sequence[str], most: int
) -> list[int]:
    """The numbers of the first texts, the best first, that are not copies of an earlier one; ``most`` of them at most.

    ``around`` has each text with those next to it in its file, since another file may be cut elsewhere.
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
    words = [word.casefold() for word in WORD.findall(text)]
    return {
        tuple(words[start : start + SHINGLE]) for start in range(max(1, len(words) - SHINGLE + 1))
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
    check_type("question", question, str, "a text")
    if not is_unicode(question):
        raise ValueError(f"the question has characters that are not in Unicode: {question!r}")
    if not WORD.search(question):
        raise ValueError("the question is empty: it needs a word")
