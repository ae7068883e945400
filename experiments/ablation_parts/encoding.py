"""Vectors of texts, encoded once into a file; a call that was stopped continues where it was."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np

TOKENS_AT_ONCE, PART = 1024, 256  # tokens of a batch, and texts after which work can stop

Encode = Callable[[Sequence[str]], np.ndarray]


class Store:
    """The vectors of texts by one encoder, in a file of keys and one of vectors, which both only grow.

    Args:
        folder: Folder.
        encode: Turns texts into vectors, shape (texts, d); called for texts that are not stored.
    """

    def __init__(self, folder: Path, encode: Encode) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.encode = folder, encode
        self._keys, self._vectors = folder / "keys.txt", folder / "vectors.f4"

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of texts, float32 of shape (texts, d)."""
        keys = [blake2b(text.encode(), digest_size=12).hexdigest() for text in texts]
        rows = self._rows()
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in rows}
        by_length = sorted(missing, key=lambda key: -len(missing[key]))
        for start in range(0, len(by_length), PART):
            part = by_length[start : start + PART]
            self._append(part, self.encode([missing[key] for key in part]))
        rows = self._rows() if missing else rows
        if not rows:
            return np.zeros((0, 0), np.float32)
        shape = len(rows), self._dimension
        vectors = np.memmap(self._vectors, np.float32, "r", shape=shape)
        return np.asarray(vectors[[rows[key] for key in keys]])

    def _rows(self) -> dict[str, int]:
        """The row of each key."""
        keys = self._keys.read_text().split() if self._keys.exists() else []
        return {key: row for row, key in enumerate(keys)}

    @property
    def _dimension(self) -> int:
        return int((self.folder / "dimension.txt").read_text())

    def _append(self, keys: Sequence[str], vectors: np.ndarray) -> None:
        (self.folder / "dimension.txt").write_text(f"{vectors.shape[1]}")
        size = len(self._rows()) * vectors.shape[1] * 4
        with self._vectors.open("r+b" if self._vectors.exists() else "wb") as file:
            file.seek(size)  # a call that was stopped may have left vectors without keys
            file.write(np.asarray(vectors, np.float32).tobytes())
        with self._keys.open("a") as file:
            file.write("".join(f"{key}\n" for key in keys))


class Encoder:
    """A checkpoint of sentence-transformers, run by OpenVINO in float32.

    Args:
        checkpoint: Its folder or name.
        tokens: Tokens of a text at most.
        threads: Threads.
    """

    def __init__(self, checkpoint: str, tokens: int, threads: int) -> None:
        import torch

        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # it would call a server
        import openvino
        from sentence_transformers import SentenceTransformer

        network = SentenceTransformer(checkpoint, device="cpu")
        self.tokenizer, self.tokens = network.tokenizer, tokens

        class Vectors(torch.nn.Sequential):
            def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
                found = super().forward({"input_ids": ids, "attention_mask": mask})
                return torch.nn.functional.normalize(found["sentence_embedding"], dim=1)

        example = torch.tensor([[5, 6, 7], [5, 6, 7]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
        made = openvino.convert_model(Vectors(*network).eval(), example_input=example)
        options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
        self._run = openvino.Core().compile_model(made, "CPU", options)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of length 1, shape (texts, d)."""
        ids = self.tokenizer([*texts], truncation=True, max_length=self.tokens)["input_ids"]
        order = sorted(range(len(ids)), key=lambda number: -len(ids[number]))
        found: list[np.ndarray] = []
        start = 0
        while start < len(order):
            length = len(ids[order[start]])
            part = order[start : start + max(8, TOKENS_AT_ONCE // length)]
            padded = np.full((len(part), length), self.tokenizer.pad_token_id, np.int64)
            mask = np.zeros((len(part), length), np.int64)
            for row, number in enumerate(part):
                padded[row, : len(ids[number])], mask[row, : len(ids[number])] = ids[number], 1
            found.append(self._run([padded, mask])[0])
            start += len(part)
        vectors = np.concatenate(found)
        return vectors[np.argsort(order)]
