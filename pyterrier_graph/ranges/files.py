"""The files of ranges: each is written completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

TEMPORARY = ".tmp"

Work = Callable[[np.ndarray], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Ranges:
    """Rows in ranges of equal size, but for the last one; each has a file in a folder once it is computed."""

    folder: Path
    rows: int
    rows_per_range: int

    def __len__(self) -> int:
        """Number of ranges."""
        return -(-self.rows // self.rows_per_range)

    def numbers(self, number: int) -> np.ndarray:
        """The rows of a range."""
        start = number * self.rows_per_range
        return np.arange(start, min(start + self.rows_per_range, self.rows))

    def file(self, number: int) -> Path:
        """Where the rows of a range are stored."""
        return self.folder / f"{number:08d}.safetensors"

    def read(self, number: int) -> dict[str, np.ndarray]:
        """The stored arrays of a range."""
        with safe_open(self.file(number), framework="numpy") as stored:
            return {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118

    def write(self, number: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Stores the arrays of a range."""
        temporary = self.folder / f"{number:08d}-{uuid4().hex}{TEMPORARY}"
        try:
            save_file({name: np.ascontiguousarray(values) for name, values in arrays.items()}, temporary)
            with open(temporary, "r+b") as stored:
                os.fsync(stored.fileno())
            os.replace(temporary, self.file(number))
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def remove_temporary(self) -> None:
        """Removes what workers that died have left."""
        for file in self.folder.glob(f"*{TEMPORARY}"):
            file.unlink(missing_ok=True)


@dataclass(frozen=True)
class RangeJob:
    """Computes and stores the rows of a range, unless they are stored."""

    ranges: Ranges
    work: Work

    def __call__(self, number: int) -> None:
        """Computes one range."""
        if not self.ranges.file(number).exists():
            self.ranges.write(number, self.work(self.ranges.numbers(number)))
