"""Pairs of a query and a document as the input of a cross-encoder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoTokenizer


class PairTokenizer:
    """Tokenizes pairs as ``[CLS] query [SEP] document [SEP]``, by the tokenizer of a checkpoint.

    Args:
        model: Hugging Face id or folder of the checkpoint.
        max_length: Maximal number of tokens of a pair; the longer text is cut until the pair fits.

    Raises:
        ValueError: If the checkpoint has no fast tokenizer.
    """

    def __init__(self, model: str, max_length: int) -> None:
        self.max_length = max_length
        self.tokenizer = AutoTokenizer.from_pretrained(model, padding_side="right")
        if not self.tokenizer.is_fast:
            raise ValueError(f"{model!r} has no fast tokenizer, which tells the tokens of query and document apart")

    @property
    def limit(self) -> int:
        """Maximal number of tokens according to the checkpoint."""
        return self.tokenizer.model_max_length

    def __call__(self, queries: Sequence[str], documents: Sequence[str]) -> dict[str, Tensor]:
        """Makes a batch.

        Args:
            queries: Texts.
            documents: Texts, as many.

        Returns:
            Arguments of ``LGRe.forward``: ``input_ids``, ``attention_mask``, ``segments``, and ``token_type_ids`` if
            the encoder has them; each of shape (pairs, tokens).
        """
        encoding = self.tokenizer(
            list(queries),
            list(documents),
            padding=True,
            truncation="longest_first",
            max_length=self.max_length,
            return_tensors="pt",
        )
        sides = np.array([pair.sequence_ids for pair in encoding.encodings], dtype=float)  # NaN for special tokens
        return {**encoding, "segments": torch.from_numpy(np.nan_to_num(sides, nan=-1).astype(np.int64))}

    def tokens(self, input_ids: Tensor) -> list[str]:
        """The word pieces of token ids."""
        return list(self.tokenizer.convert_ids_to_tokens(input_ids.tolist()))

    def save(self, folder: Path) -> None:
        """Writes the tokenizer into the folder of a checkpoint."""
        self.tokenizer.save_pretrained(folder)
