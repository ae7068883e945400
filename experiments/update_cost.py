"""What updates of a GraphIndex cost: processor time, bytes written, and the disk after many of them.

::

    python -m experiments.update_cost --passages 100000 --updates 3
    python -m experiments.update_cost --passages 10000 --updates 50

Documents of ten passages with 60 random words each. The vectors are random, so encoding takes no time.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from zlib import crc32

import numpy as np

import pyterrier_graph as ptg

DIMENSIONS, PASSAGES, LENGTH, VOCABULARY = 384, 10, 60, 20_000


class RandomEncoder:
    """Gives each text a random vector of length 1, which depends on the text alone."""

    model_name, verbose = "random", False
    table = np.random.default_rng(0).normal(size=(4096, DIMENSIONS)).astype(np.float32)

    def encode_docs(self, texts: Sequence[str], batch_size: int | None = None) -> np.ndarray:
        """Vectors of texts, shape (texts, d)."""
        rows = np.array([crc32(text.encode()) % 4096 for text in texts], dtype=np.int64)
        return self.table[rows] / np.linalg.norm(self.table[rows], axis=1, keepdims=True)

    encode_queries = encode_docs


def documents(count: int) -> Iterator[dict[str, str]]:
    """Documents with random words."""
    draw = random.Random(0)
    words = [f"word{number}" for number in range(VOCABULARY)]
    for number in range(count):
        passages = (" ".join(draw.choices(words, k=LENGTH)) for _ in range(PASSAGES))
        yield {"docno": f"d{number}", "title": f"Title {number}", "text": "\n\n".join(passages)}


def main() -> None:
    """Prints a line per update."""
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("--passages", type=int, default=100_000)
    command.add_argument("--updates", type=int, default=3)
    options = command.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        index = ptg.GraphIndex(f"{folder}/index", encoder=RandomEncoder(), verbose=False)
        docs = documents(options.passages // PASSAGES)
        report(index, "index", lambda: index.index(docs, passage_words=LENGTH))
        for number in range(1, options.updates + 1):
            doc = {"docno": f"d{number}", "title": "Title", "text": f"changed word{number}"}
            report(index, f"update {number}", lambda: index.update([doc]))  # noqa: B023


def report(index: ptg.GraphIndex, name: str, change: object) -> None:
    """Prints what a change costs."""
    started, before = time.process_time(), written()
    assert callable(change)
    change()
    seconds, size = time.process_time() - started, sum(sizes(index.path))
    print(
        f"{name}: {seconds:.2f} s of processor time, {(written() - before) / 1e6:.0f} MB written, "
        f"{size / 1e6:.1f} MB on the disk, {len(index)} passages",
        flush=True,
    )


def written() -> int:
    """Bytes that this process has written."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["wchar"])


def sizes(path: Path) -> list[int]:
    """Sizes of the files in a folder."""
    return [file.stat().st_size for file in path.rglob("*") if file.is_file()]


if __name__ == "__main__":
    main()
