"""Kinds of word pieces: those around a text, punctuation, and those that stand for no word."""

from __future__ import annotations

import re
import string
from typing import Any, NamedTuple

import numpy as np

ENDS = ("cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id", "pad_token_id")


class WordPieces(NamedTuple):
    """Which word pieces of a tokenizer's vocabulary are of a kind; arrays are bool, of shape (word pieces,).

    Attributes:
        ends: What a tokenizer puts around a text, such as [CLS] and [SEP].
        punctuation: Word pieces without a letter or digit, of ASCII's punctuation.
        wordless: What no text has: the ends, [MASK], and the markers of ColBERT's queries and passages.
    """

    ends: np.ndarray
    punctuation: np.ndarray
    wordless: np.ndarray

    @classmethod
    def of(cls, tokenizer: Any) -> WordPieces:
        """The kinds of a Hugging Face tokenizer's word pieces."""
        pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        bare = [(piece or "").removeprefix("##").lstrip("▁Ġ") for piece in pieces]
        punctuation = np.array([bool(piece) and not piece.strip(string.punctuation) for piece in bare])
        ends = np.zeros(len(pieces), dtype=bool)
        ends[[number for name in ENDS if (number := getattr(tokenizer, name, None)) is not None]] = True
        wordless = np.array([re.fullmatch(r"\[unused\d+\]", piece or "") is not None for piece in pieces])
        wordless[[*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()]] = True
        if tokenizer.unk_token_id is not None:
            wordless[tokenizer.unk_token_id] = False
        return cls(ends, punctuation & ~wordless, wordless)
