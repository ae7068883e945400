"""The cost of large collections: document graphs and contextual indexes of millions of passages.

``python -m experiments.scale --passages 1000000``: the corpus is made up, see :mod:`experiments.harness.synthetic`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from pyterrier_dr import FlexIndex

import pyterrier_graph as ptg
from experiments.harness.cost import in_process, peak_without_files
from experiments.harness.synthetic import NumberEncoder, documents, write_queries, write_vectors

Weights = dict[str, float] | str
INDEXES: dict[str, Weights] = {
    "index: title, relevant": {"title": 1.0, "relevant": 0.5},
    "index: title, retrieved": {"title": 1.0, "retrieved": 0.5},
    "index: auto": "auto",
}
STEPS = ("documents", "document graph", "vectors", "query graph", *INDEXES)
COLUMNS = ["s", "CPU us a passage", "peak MiB", "MiB written"]


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Prints time, processor time, memory and size of each step, which runs in a process of its own.

    Memory is that without mapped files, which the system can take back at any time. Steps: make the ``documents`` and
    do nothing; the ``document graph`` of them, which includes making them; write the ``vectors`` of the passages, and
    the ``query graph``, which are needed for the others; contextual indexes, where the encoder takes no time.
    """
    command = argparse.ArgumentParser(prog="python -m experiments.scale", description=main.__doc__)
    command.add_argument("--passages", type=int, nargs="+", default=[100_000])
    command.add_argument("--steps", nargs="+", choices=STEPS, default=[*STEPS])
    command.add_argument("--folder", type=Path, help="where to write, and to find what was written (a temporary one)")
    command.add_argument("--delete", action="store_true", help="whether an index is deleted when it has been measured")
    command.add_argument("--only", action="store_true", help=argparse.SUPPRESS)
    options = command.parse_args(sys.argv[1:] if arguments is None else arguments)
    if options.only:
        print(*run(options.steps[0], options.passages[0], options.folder, options.delete))
        return pd.DataFrame()
    rows = {}
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(TemporaryDirectory()))
        for count in options.passages:
            place = folder / str(count)
            place.mkdir(exist_ok=True, parents=True)
            for step in options.steps:
                given = ["--passages", count, "--steps", step, "--folder", place, "--only"]
                rows[count, step] = in_process("experiments.scale", *given, *["--delete"] * options.delete)
                print(count, step, *rows[count, step], flush=True)
    table = pd.DataFrame(rows, index=COLUMNS).T.rename_axis(["passages", "step"]).round(1)
    print(table.to_string())
    return table


def run(step: str, passages: int, folder: Path, delete: bool = False) -> tuple[float, ...]:
    """Does one step, and returns its row of the table."""
    before = set(folder.rglob("*"))
    action = _action(step, passages, folder)
    with peak_without_files() as peak:
        start, processor = time.perf_counter(), time.process_time()
        action()
        duration, processor = time.perf_counter() - start, time.process_time() - processor
    written = [path for path in folder.rglob("*") if path.is_file() and path not in before]
    size = sum(path.stat().st_size for path in written)
    if delete and step in INDEXES:
        for path in written:
            path.unlink()
    return duration, 1e6 * processor / passages, peak[0], size / 2**20


def _action(step: str, passages: int, folder: Path) -> Callable[[], Any]:
    graph = ptg.DocumentGraph(folder / "documents.graph", verbose=False)
    if step == "documents":
        return lambda: deque(documents(passages), maxlen=0)
    if step == "document graph":
        return lambda: graph.index(documents(passages))
    encoder = NumberEncoder()
    if step == "vectors":
        return lambda: write_vectors(folder / "base.flex", passages, graph, encoder)
    base = FlexIndex(str(folder / "base.flex"), verbose=False)
    if step == "query graph":
        return lambda: write_queries(folder / "queries.graph", passages, base)
    queries = ptg.QueryPassageGraph(folder / "queries.graph")
    options: dict[str, Any] = {"query_graph": queries, "vectors": base, "folder": folder / "vectors", "verbose": False}
    model = ptg.GraphMean(graph, encoder, INDEXES[step], **options)  # type: ignore[arg-type]
    return partial(model.index, folder / f"{step.partition(': ')[2].replace(', ', '-')}.flex")


if __name__ == "__main__":
    main()
