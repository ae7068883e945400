"""Directions that shorter token vectors are projected on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from pyterrier_graph.encoders.token_encoder import TokenEncoder

TEXTS, WORDS = 100, 40


def principal_directions(vectors: Tensor, dimension: int) -> Tensor:
    """The directions in which some vectors, shape (n, d), are longest: orthonormal rows, shape (dimension, d).

    Vectors are not centered, so that cosines change as little as possible. A direction's largest entry is positive.
    """
    vectors = vectors.double()
    directions = torch.linalg.eigh(vectors.T @ vectors).eigenvectors.T.flip(0)[:dimension]
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    return (directions * largest.sign()).float()


def vocabulary_sample(encoder: TokenEncoder, *, seed: int = 0) -> list[str]:
    """Texts of random words of an encoder's vocabulary.

    The principal directions of their token vectors depend on the encoder only. What MaxSim loses by them was about as
    large as its standard error (0.004 to 0.006 nDCG@10) on the two collections on which the sample was chosen.
    """
    tokenizer = encoder.network.tokenizer
    numbers = np.random.default_rng(seed).permutation(len(tokenizer)).tolist()
    special = set(tokenizer.all_special_ids)
    pieces = tokenizer.convert_ids_to_tokens([number for number in numbers if number not in special])
    strings = (tokenizer.convert_tokens_to_string([piece]).strip() for piece in pieces)
    words = [word for word, _ in zip((s for s in strings if s.isalpha()), range(TEXTS * WORDS), strict=False)]
    return [" ".join(words[start : start + WORDS]) for start in range(0, len(words), WORDS)]
