"""What building and opening a graph of queries and passages costs, against doing it in memory.

``python -m experiments.query_passage_graph_build``

The peer is what one writes first: all results in one pandas frame, scipy's sparse matrices of it in both directions,
saved as they are. Each step is a process of its own, whose peak memory includes what importing takes (``import``).
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from scipy import sparse

from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph

STEPS = ("import", "results", "graph: build", "graph: open", "pandas: build", "pandas: open")
FRAME = 1024
READ = 1000


def main() -> None:
    """Prints seconds, by the clock and at work, peak memory (MiB) of each step, and sizes on disk."""
    command = argparse.ArgumentParser(prog="python -m experiments.query_passage_graph_build", description=main.__doc__)
    command.add_argument("--queries", type=int, default=400_000)
    command.add_argument("--passages", type=int, default=1_000_000)
    command.add_argument("--k", type=int, default=25, help="passages per query")
    command.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    command.add_argument("--folder", help=argparse.SUPPRESS)
    options = command.parse_args()
    if options.step:
        start, worked = time.perf_counter(), time.process_time()
        run(options.step, Path(options.folder), options.queries, options.passages, options.k)
        seconds = time.perf_counter() - start, time.process_time() - worked
        print(*seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    measured = {}
    with TemporaryDirectory() as folder:
        for step in STEPS:
            child = [sys.executable, "-m", "experiments.query_passage_graph_build", *sys.argv[1:]]
            child += ["--step", step, "--folder", folder]
            output = subprocess.run(child, check=True, capture_output=True, text=True).stdout
            measured[step] = [float(number) for number in output.split()[-3:]]
        sizes = {path.name: sum(file.stat().st_size for file in path.iterdir()) for path in Path(folder).iterdir()}
    print(f"{options.queries * options.k:,} edges, {options.queries:,} queries, {options.passages:,} passages")
    print(pd.DataFrame(measured, index=["seconds", "of which at work", "peak MiB"]).T.round(2).to_string())
    print("MiB on disk:", {name: round(size / 2**20) for name, size in sizes.items()})


def run(step: str, folder: Path, queries: int, passages: int, k: int) -> None:
    """One step; opening includes reading the edges of a thousand passages."""
    graph, naive = folder / "graph", folder / "pandas"
    some = np.random.default_rng(1).integers(0, passages, READ)
    docnos = (f"d{number}" for number in range(passages))
    if step == "results":
        for _ in results(queries, passages, k):
            pass
    elif step == "graph: build":
        QueryPassageGraph(graph).from_results(results(queries, passages, k), docnos, k=k, verbose=False)
    elif step == "graph: open":
        QueryPassageGraph(graph).edges_of_passages(some)
    elif step == "pandas: build":
        frame = pd.concat([*results(queries, passages, k)], ignore_index=True)
        query, qids = pd.factorize(frame["qid"])
        passage = pd.Index(list(docnos)).get_indexer(frame["docno"])
        shape = (len(qids), passages)
        matrix = sparse.coo_array((frame["score"].to_numpy(np.float32), (query, passage)), shape).tocsr()
        numbered = sparse.csr_array((np.arange(matrix.nnz), matrix.indices, matrix.indptr), shape)
        naive.mkdir()
        sparse.save_npz(naive / "forward.npz", matrix, compressed=False)
        sparse.save_npz(naive / "backward.npz", numbered.T.tocsr(), compressed=False)
        frame.drop_duplicates("qid")[["qid", "query"]].to_pickle(naive / "queries.pickle")
    elif step == "pandas: open":
        for name in ("forward", "backward"):
            matrix = sparse.load_npz(naive / f"{name}.npz")
        matrix[some]
        pd.read_pickle(naive / "queries.pickle")


def results(queries: int, passages: int, k: int) -> Iterator[pd.DataFrame]:
    """Results in frames; few passages are found often, most seldom."""
    random = np.random.default_rng(0)
    for start in range(0, queries, FRAME):
        query = np.arange(start, min(start + FRAME, queries))
        first = (passages * random.random((len(query), 1)) ** 3).astype(np.int64)
        found = ((first + np.arange(k) * (passages // k)) % passages).ravel()
        query = np.repeat(query, k)
        yield pd.DataFrame(
            {
                "qid": [f"q{number}" for number in query],
                "query": [f"what is known of subject number {number}" for number in query],
                "docno": [f"d{number}" for number in found],
                "score": random.random(len(found)),
            }
        )


if __name__ == "__main__":
    main()
