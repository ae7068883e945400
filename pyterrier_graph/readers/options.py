"""Options of the readers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from pyterrier_graph.checks import check_choice, check_count, check_number, check_type
from pyterrier_graph.readers.outline import KINDS, Outline

Parse = Callable[[bytes, Outline, str | None], None]


@dataclass(frozen=True)
class ReaderOptions:
    """How files are read; the fields are described in :func:`~pyterrier_graph.read_markdown`."""

    min_words: int
    max_words: int
    skip: Collection[str]
    encoding: str | None
    max_bytes: int
    seconds: float

    def __post_init__(self) -> None:
        check_count("min_words", self.min_words, 0)
        check_count("max_words", self.max_words)
        if self.min_words > self.max_words:
            raise ValueError(f"min_words must not exceed max_words, got {self.min_words} and {self.max_words}")
        check_type("skip", self.skip, (tuple, list, set, frozenset), f"kinds of blocks, of {', '.join(KINDS)}")
        for kind in self.skip:
            check_choice("a kind in skip", kind, KINDS[1:])
        check_type("encoding", self.encoding, (str, type(None)), "the name of an encoding, or None")
        check_count("max_bytes", self.max_bytes)
        check_number("seconds", self.seconds, 0)
