"""What building and opening a graph of queries and passages costs, against doing it in memory.

``python -m experiments.query_passage_graph_cost``

The comparison is a naive program: all results in one pandas frame, and scipy's sparse matrices of them in both
directions. Each step is a process of its own, whose peak memory includes that of imports (``import``).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from scipy import sparse

from experiments.harness.cost import in_process, peak_mib
from pyterrier_graph import QueryPassageGraph

STEPS = ("import", "results", "graph: build", "graph: open", "pandas: build", "pandas: open")
FRAME = 1024
READ = 1000


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Prints seconds, processor time and peak memory (MiB) of each step, and sizes on disk."""
    command = argparse.ArgumentParser(prog="python -m experiments.query_passage_graph_cost", description=main.__doc__)
    command.add_argument("--queries", type=int, default=400_000)
    command.add_argument("--passages", type=int, default=1_000_000)
    command.add_argument("--k", type=int, default=25, help="passages per query")
    command.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    command.add_argument("--folder", help=argparse.SUPPRESS)
    given = [*(sys.argv[1:] if arguments is None else arguments)]
    options = command.parse_args(given)
    if options.step:
        start, worked = time.perf_counter(), time.process_time()
        run(options.step, Path(options.folder), options.queries, options.passages, options.k)
        print(time.perf_counter() - start, time.process_time() - worked, peak_mib())
        return pd.DataFrame()
    module, measured = "experiments.query_passage_graph_cost", {}
    with TemporaryDirectory() as folder:
        for step in STEPS:
            measured[step] = in_process(module, *given, "--step", step, "--folder", folder)
        sizes = {path.name: sum(file.stat().st_size for file in path.iterdir()) for path in Path(folder).iterdir()}
    table = pd.DataFrame(measured, index=["seconds", "processor time", "peak MiB"]).T.round(2)
    print(f"{options.queries * options.k:,} edges, {options.queries:,} queries, {options.passages:,} passages")
    print(table.to_string())
    print("MiB on disk:", {name: round(size / 2**20) for name, size in sizes.items()})
    return table


def run(step: str, folder: Path, queries: int, passages: int, k: int) -> None:
    """One step; opening includes reading the edges of a thousand passages."""
    graph, naive = folder / "graph", folder / "pandas"
    some = np.random.default_rng(1).integers(0, passages, READ)
    docnos = (f"d{number}" for number in range(passages))
    match step:
        case "results":
            deque(results(queries, passages, k), maxlen=0)
        case "graph: build":
            QueryPassageGraph(graph).from_results(results(queries, passages, k), docnos, k=k, verbose=False)
        case "graph: open":
            QueryPassageGraph(graph).edges_of_passages(some)
        case "pandas: build":
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
        case "pandas: open":
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
                "query": [f"what is said about subject number {number}" for number in query],
                "docno": [f"d{number}" for number in found],
                "score": random.random(len(found)),
            }
        )


if __name__ == "__main__":
    main()
