"""How time and memory are measured."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

VOCABULARY = "matrix vector array value index axis shape result input output function mean sum order type size".split()
BETWEEN_SAMPLES = 0.02  # seconds
Clock = Callable[[], float]


def seconds(action: Callable[[], object], clock: Clock = time.perf_counter) -> float:
    """How long a call takes; ``time.process_time`` counts processor time, which other programs do not change."""
    start = clock()
    action()
    return clock() - start


def side_by_side(
    actions: Mapping[str, Callable[[], object]], repeats: int, clock: Clock = time.perf_counter
) -> pd.DataFrame:
    """Calls actions in turns, and compares each with the first one of the same round.

    Args:
        actions: What is measured, by name.
        repeats: Rounds; one more, which is not counted, comes before.
        clock: Time in seconds.

    Returns:
        A row per action: ``seconds`` and ``ratio`` to the first action, both medians over the rounds.
    """
    rounds = [[seconds(action, clock) for action in actions.values()] for _ in range(repeats + 1)][1:]
    rows = {
        name: {
            "seconds": median(times[place] for times in rounds),
            "ratio": median(times[place] / times[0] for times in rounds),
        }
        for place, name in enumerate(actions)
    }
    return pd.DataFrame(rows).T


def in_process(module: str, *arguments: Any) -> list[float]:
    """Runs a module in a process of its own, whose memory is its own as well; returns the numbers of its last line.

    Call it while this process is small: Linux counts the memory of a process as part of its children's peak.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [float(number) for number in output.splitlines()[-1].split()]


@contextmanager
def peak_without_files() -> Iterator[list[float]]:
    """Samples the memory of this process that is not of mapped files; yields a list with the maximum, in MiB.

    The system can take back mapped files at any time. Only Linux distinguishes them; elsewhere the maximum is NaN.
    """
    status = Path("/proc/self/status")
    peak = [0.0 if status.exists() else float("nan")]
    done = threading.Event()

    def sample() -> None:
        while not done.wait(BETWEEN_SAMPLES):
            line = next(line for line in status.read_text("ascii").splitlines() if line.startswith("RssAnon"))
            peak[0] = max(peak[0], float(line.split()[1]) / 1024)

    if status.exists():
        threading.Thread(target=sample, daemon=True).start()
    yield peak
    done.set()


def random_text(random: np.random.Generator, words: int = 40) -> str:
    """Words for a passage."""
    return " ".join(random.choice(VOCABULARY, words))


def random_vectors(random: np.random.Generator, count: int, dimension: int = 384) -> np.ndarray:
    """Vectors of length 1, shape (count, dimension)."""
    vectors = random.standard_normal((count, dimension), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
