"""Digests of texts beside their vectors: a text that was encoded before is found again."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

DIGESTS = "digests.u8"
DIGEST = np.dtype("<u8")  # a text's digest is two of them


def digests_of(texts: list[bytes]) -> np.ndarray:
    """BLAKE2b of some texts, 16 bytes each, as an array of shape (texts, 2)."""
    joined = b"".join([blake2b(text, digest_size=16).digest() for text in texts])
    return np.frombuffer(joined, dtype=DIGEST).reshape(-1, 2)


def read_digests(folder: Path) -> np.ndarray:
    """The digests in a folder, memory-mapped."""
    if not (folder / DIGESTS).stat().st_size:
        return np.empty((0, 2), dtype=DIGEST)
    return np.memmap(folder / DIGESTS, dtype=DIGEST, mode="r").reshape(-1, 2)


class StoredTexts:
    """The texts of a folder with digests and vectors. Memory: 16 bytes per text."""

    def __init__(self, folder: Path, vectors: np.ndarray) -> None:
        self.digests, self.vectors = read_digests(folder), vectors
        self._order = np.argsort(self.digests[:, 0], kind="stable")
        self._keys = self.digests[self._order, 0]

    def rows(self, digests: np.ndarray) -> np.ndarray:
        """The row of each text; -1 for those that are not here."""
        if not len(self._keys):
            return np.full(len(digests), -1, dtype=np.int64)
        row = self._order[np.minimum(np.searchsorted(self._keys, digests[:, 0]), len(self._keys) - 1)]
        return np.where((self.digests[row] == digests).all(axis=1), row, -1)


def encode_new(encode: Callable[[list[str]], Any], stored: list[StoredTexts]) -> Callable[[list[str]], np.ndarray]:
    """An encoder that reads equal texts of a call once, and no text that is stored."""

    def encoded(texts: list[str]) -> np.ndarray:
        digests = digests_of([text.encode() for text in texts])
        _, first, place = np.unique(digests, axis=0, return_index=True, return_inverse=True)
        first, place = np.unique(first[place.reshape(-1)], return_inverse=True)  # in the order of the texts
        missing, parts = np.ones(len(first), dtype=bool), []
        for other in stored:
            rows = other.rows(digests[first])
            here = missing & (rows >= 0)
            missing &= ~here
            parts.append((here, other.vectors[rows[here]]))
        if missing.any():
            new = np.asarray(encode([texts[number] for number in first[missing]]))
            if new.ndim != 2 or len(new) != missing.sum() or new.dtype.kind != "f":
                return new  # for the caller to refuse
            parts.append((missing, new))
        vectors = np.empty((len(first), parts[-1][1].shape[1]), dtype=parts[-1][1].dtype)
        for here, values in parts:
            vectors[here] = values
        return vectors[place]

    return encoded
