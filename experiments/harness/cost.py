"""How time and memory are measured."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

VOCABULARY = "matrix vector array value index axis shape result input output function mean sum order type size".split()
BETWEEN_SAMPLES = 0.02  # seconds
Programs = Mapping[str, Callable[[], object]]


def compare(
    tasks: Mapping[str, Programs], rounds: int, counts: Mapping[str, int] | int = 1
) -> pd.DataFrame:
    """Processor time of programs for the same task, which take turns; prints the table and the load of the machine.

    Args:
        tasks: Programs by name, for each task. The first one is what the others are compared with.
        rounds: Rounds; one more, which is not counted, comes before.
        counts: How many queries, passages or other units a call processes, for all tasks or for each.

    Returns:
        A row per task and program: ``ms`` per unit, the least of all rounds, and its ``ratio`` to the first program's.
    """
    rows: dict[tuple[str, str], tuple[float, float]] = {}
    for task, programs in tasks.items():
        times: dict[str, list[float]] = {name: [] for name in programs}
        for _ in range(rounds + 1):
            for name, program in programs.items():
                start = time.process_time()
                program()
                times[name].append(time.process_time() - start)
        least = [min(each[1:]) for each in times.values()]
        count = counts if isinstance(counts, int) else counts[task]
        rows |= {
            (task, name): (1000 * t / count, t / least[0])
            for name, t in zip(times, least, strict=True)
        }
    table = pd.DataFrame(rows, index=["ms", "ratio"]).T.rename_axis(["task", "program"])
    print(
        f"{table.round(4).to_string()}\nload of the machine: {os.getloadavg()[1]:.1f}", flush=True
    )
    return table


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
            line = next(
                line
                for line in status.read_text("ascii").splitlines()
                if line.startswith("RssAnon")
            )
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
