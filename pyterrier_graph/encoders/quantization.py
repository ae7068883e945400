"""Vectors in few bits per dimension: product quantization (Jégou, Douze and Schmid 2011)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import Tensor

from pyterrier_graph.checks import check_choice

Bits = Literal[1, 2, 4]
CODEBOOKS = "codebooks.safetensors"
CENTROIDS = 256  # of a byte
SAMPLED, STEPS = 32, 10  # vectors for each centroid, and steps of k-means: more take long, and change little
VECTORS_AT_ONCE = 16_384


@dataclass(frozen=True, eq=False)
class VectorQuantizer:
    """Stores each part of a vector as one byte: the number of the nearest of 256 centroids of that part.

    With 4 bits per dimension a part has 2 dimensions, with 2 it has 4, with 1 it has 8. Learning the centroids and
    finding the nearest ones is work for FAISS (``pip install 'pyterrier_graph[faiss]'``); reading needs nothing but
    the centroids.

    Attributes:
        codebooks: The centroids, shape (parts, 256, dimensions of a part), float32.
    """

    codebooks: np.ndarray

    def __post_init__(self) -> None:
        shape, dtype = self.codebooks.shape, self.codebooks.dtype
        if len(shape) != 3 or shape[1] != CENTROIDS or dtype != np.float32 or not np.isfinite(self.codebooks).all():
            raise ValueError(f"codebooks must be finite float32 of shape (parts, 256, d), got {dtype} of shape {shape}")

    @classmethod
    def fit(cls, sample: np.ndarray, bits: Bits) -> Self:
        """Learns the centroids by k-means; the same sample gives the same centroids.

        Args:
            sample: Vectors, shape (vectors, d), of which 8,192 are used at most.
            bits: Per dimension: 4 is a quarter of float16, 2 an eighth, 1 a sixteenth.

        Raises:
            ImportError: If there is no FAISS.
            ValueError: If ``bits`` are others, or parts of ``8 / bits`` dimensions do not divide d.
        """
        dimension = sample.shape[1]
        check_bits(bits, dimension)
        size = 8 // bits
        quantizer = load_faiss().ProductQuantizer(dimension, dimension // size, 8)
        quantizer.cp.niter, quantizer.cp.max_points_per_centroid = STEPS, SAMPLED
        quantizer.cp.min_points_per_centroid = 1  # no warning for a small corpus
        sample = sample if len(sample) else np.zeros((1, dimension))
        rows = np.resize(np.arange(len(sample)), max(len(sample), CENTROIDS))
        quantizer.train(np.ascontiguousarray(sample[rows], dtype=np.float32))
        centroids = load_faiss().vector_to_array(quantizer.centroids)
        return cls(centroids.reshape(-1, CENTROIDS, size).astype(np.float32))

    @property
    def dimension(self) -> int:
        """Dimensions of a vector."""
        return self.codebooks.shape[0] * self.codebooks.shape[2]

    @property
    def bits(self) -> int:
        """Bits per dimension."""
        return 8 // self.codebooks.shape[2]

    @property
    def width(self) -> int:
        """Bytes of a vector."""
        return len(self.codebooks)

    def encode(self, vectors: np.ndarray) -> np.ndarray:
        """The codes of vectors of shape (vectors, d): uint8 of shape (vectors, width)."""
        if vectors.ndim != 2 or vectors.shape[1] != self.dimension:
            raise ValueError(f"vectors must have shape (any number, {self.dimension}), got {vectors.shape}")
        if not len(vectors):
            return np.empty((0, self.width), dtype=np.uint8)
        return self._encoder.compute_codes(np.ascontiguousarray(vectors, dtype=np.float32))

    def decode(self, codes: np.ndarray, device: torch.device | str = "cpu") -> Tensor:
        """The vectors that codes of shape (vectors, width) stand for: float32 of shape (vectors, d), on a device."""
        if codes.ndim != 2 or codes.shape[1] != self.width or codes.dtype != np.uint8:
            raise ValueError(
                f"codes must be uint8 of shape (any number, {self.width}), got {codes.dtype} of shape {codes.shape}"
            )
        table = torch.from_numpy(self.codebooks).flatten(0, 1).to(device)
        first = torch.arange(0, len(table), CENTROIDS, dtype=torch.int32, device=device)
        vectors = torch.empty(len(codes), self.dimension, device=device)
        for start in range(0, len(codes), VECTORS_AT_ONCE):
            part = torch.from_numpy(np.array(codes[start : start + VECTORS_AT_ONCE])).to(device)
            rows = torch.index_select(table, 0, (part.int() + first).flatten())
            vectors[start : start + VECTORS_AT_ONCE] = rows.view(len(part), -1)
        return vectors

    def save(self, folder: Path) -> None:
        """Writes the centroids into a folder."""
        save_file({"codebooks": self.codebooks}, folder / CODEBOOKS)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads the centroids; a ValueError says that the file is missing or damaged."""
        try:
            return cls(load_file(folder / CODEBOOKS)["codebooks"])
        except (SafetensorError, FileNotFoundError, KeyError, ValueError) as error:
            raise ValueError(f"{str(folder / CODEBOOKS)!r} is missing or damaged: {error}") from error

    @cached_property
    def _encoder(self) -> Any:
        faiss = load_faiss()
        quantizer = faiss.ProductQuantizer(self.dimension, self.width, 8)
        faiss.copy_array_to_vector(self.codebooks.ravel(), quantizer.centroids)
        return quantizer

    def __getstate__(self) -> dict[str, Any]:
        return {"codebooks": self.codebooks}  # a worker makes FAISS's quantizer anew


def check_bits(bits: Bits, dimension: int) -> None:
    """Raises ValueError unless vectors of so many dimensions can have so many bits per dimension."""
    check_choice("bits", bits, get_args(Bits))
    if dimension % (8 // bits):
        raise ValueError(f"with {bits} bits the dimensions must be a multiple of {8 // bits}, got {dimension}")
    load_faiss()


def load_faiss(purpose: str = "quantization") -> Any:
    """The module ``faiss``; an ImportError says what needs it, and how to install it."""
    try:
        import faiss
    except ImportError as error:
        raise ImportError(f"{purpose} needs FAISS: pip install 'pyterrier_graph[faiss]'") from error
    return faiss
