"""The cost of large collections: document graphs and a whole GraphIndex of millions of passages.

``python -m experiments.scale --passages 1000000``: the corpus is made up, see :mod:`experiments.harness.synthetic`.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

import pyterrier_graph as ptg
from experiments.harness.cost import in_process, peak_without_files
from experiments.harness.synthetic import NumberEncoder, documents
from pyterrier_graph.documents.document import PASSAGE
from pyterrier_graph.search.bm25 import BM25Index

GRAPH_INDEX = "GraphIndex"
STEPS = ("documents", "document graph", "BM25", GRAPH_INDEX, "GraphIndex: update of one document")
COLUMNS = ["s", "CPU us a passage", "peak MiB", "MiB written"]


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Prints time, processor time, memory and size of each step, which runs in a process of its own.

    Memory is that without mapped files, which the system can take back at any time. Steps: make the ``documents`` and
    do nothing; make their ``document graph``; make an index of ``BM25``; make a whole ``GraphIndex``, whose encoder
    takes no time; and then change one of its documents. The first three include making the documents.
    """
    command = argparse.ArgumentParser(prog="python -m experiments.scale", description=main.__doc__)
    command.add_argument("--passages", type=int, nargs="+", default=[100_000])
    command.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
    command.add_argument(
        "--folder", type=Path, help="where to write, and to find what was written (a temporary one)"
    )
    command.add_argument("--only", action="store_true", help=argparse.SUPPRESS)
    options = command.parse_args(arguments)
    if options.only:
        print(*run(options.steps[0], options.passages[0], options.folder))
        return pd.DataFrame()
    rows = {}
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(TemporaryDirectory()))
        for count in options.passages:
            place = folder / str(count)
            place.mkdir(exist_ok=True, parents=True)
            for step in options.steps:
                given = ["--passages", count, "--steps", step, "--folder", place, "--only"]
                rows[count, step] = in_process("experiments.scale", *given)
                print(count, step, *rows[count, step], flush=True)
    table = pd.DataFrame(rows, index=COLUMNS).T.rename_axis(["passages", "step"]).round(1)
    print(table.to_string())
    return table


def run(step: str, passages: int, folder: Path) -> tuple[float, ...]:
    """Does one step, and returns its row of the table."""
    before = set(folder.rglob("*"))
    action = _action(step, passages, folder)
    with peak_without_files() as peak:
        start, processor = time.perf_counter(), time.process_time()
        action()
        duration, processor = time.perf_counter() - start, time.process_time() - processor
    written = [path for path in folder.rglob("*") if path.is_file() and path not in before]
    size = sum(path.stat().st_size for path in written)
    return duration, 1e6 * processor / passages, peak[0], size / 2**20


def _action(step: str, passages: int, folder: Path) -> Callable[[], Any]:
    if step == "documents":
        return lambda: deque(documents(passages), maxlen=0)
    if step == "document graph":
        return lambda: ptg.DocumentGraph(folder / "documents.graph", verbose=False).index(
            documents(passages)
        )
    if step == "BM25":
        nodes = (node for document in documents(passages) for node in document.nodes)
        texts = (node.text for node in nodes if node.kind == PASSAGE)
        return lambda: BM25Index.build(folder / "bm25", texts)
    whole = ptg.GraphIndex(folder / "whole", encoder=NumberEncoder(), verbose=False)
    return lambda: (
        whole.index(documents(passages)) if step == GRAPH_INDEX else whole.update(documents(9))
    )


if __name__ == "__main__":
    main()
