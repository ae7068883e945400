"""Windows of texts that are longer than an encoder's input."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any


def windows_of(texts: Sequence[str], tokens: Iterable[Any], size: int) -> list[list[str]]:
    """Splits texts into windows of ``size`` tokens; the first window is the whole text.

    A window begins with the word at which the window before it ends.

    Args:
        texts: The texts.
        tokens: Their tokens, as ``tokenizers.Encoding``, without special tokens.
        size: Number of tokens that the encoder reads of a text.
    """
    size = max(1, size)
    windows = []
    for text, encoding in zip(texts, tokens, strict=True):
        words, spans, starts = encoding.word_ids, encoding.offsets, [0]
        while (end := starts[-1] + size) < len(spans):
            start = words.index(words[end])  # the first token of the word at which the window ends
            starts.append(start if start > starts[-1] else end)
        bounds = [*(spans[start][0] for start in starts[1:]), len(text)]
        windows.append([text, *(text[start:end] for start, end in pairwise(bounds))])
    return windows
