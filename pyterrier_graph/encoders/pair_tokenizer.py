"""A query and a document side by side, as cross-encoders read them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoTokenizer


class PairTokenizer:
    """Makes ``[CLS] query [SEP] document [SEP]`` of texts, in the way of a checkpoint.

    Args:
        model: Hugging Face id or folder of the checkpoint.
        max_length: Tokens of a pair: the longer text of the two is cut until they fit.

    Raises:
        ValueError: If the checkpoint's tokenizer is none that tells which text a token is of.
    """

    def __init__(self, model: str, max_length: int) -> None:
        self.max_length = max_length
        self.tokenizer = AutoTokenizer.from_pretrained(model, padding_side="right")
        if not self.tokenizer.is_fast:
            raise ValueError(f"the tokenizer of {model!r} does not tell which text a token is of: a fast one is needed")

    @property
    def limit(self) -> int:
        """Most tokens that the checkpoint is said to read."""
        return self.tokenizer.model_max_length

    def __call__(self, queries: Sequence[str], documents: Sequence[str]) -> dict[str, Tensor]:
        """A batch.

        Args:
            queries: Texts.
            documents: As many.

        Returns:
            Arguments of ``LGRe.forward``: ``input_ids``, ``attention_mask``, ``segments``, and ``token_type_ids`` where
            the encoder has some; each of shape (pairs, tokens).
        """
        encoding = self.tokenizer(
            list(queries),
            list(documents),
            padding=True,
            truncation="longest_first",
            max_length=self.max_length,
            return_tensors="pt",
        )
        sides = np.array([pair.sequence_ids for pair in encoding.encodings], dtype=float)  # not a number for specials
        return {**encoding, "segments": torch.from_numpy(np.nan_to_num(sides, nan=-1).astype(np.int64))}

    def tokens(self, input_ids: Tensor) -> list[str]:
        """The word pieces that numbers stand for."""
        return list(self.tokenizer.convert_ids_to_tokens(input_ids.tolist()))

    def save(self, folder: Path) -> None:
        """Writes what a checkpoint in this folder needs."""
        self.tokenizer.save_pretrained(folder)
