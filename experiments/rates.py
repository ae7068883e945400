"""The rates of all long-running operations, compared with those of alternatives in the same run.

``python -m experiments.rates``
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
from pyterrier_dr import SBertBiEncoder

import pyterrier_graph as ptg
from experiments import scale
from experiments.gpu_check import texts_of
from experiments.harness.cost import random_vectors
from experiments.harness.synthetic import NumberEncoder, write_vectors
from experiments.hgat_cost import document
from pyterrier_graph.encoders.checkpoints import DType
from pyterrier_graph.encoders.names import resolve
from pyterrier_graph.graphs.hetero_graph import MemoryGraph

SIZES = (10_000, 1_000_000, 10_000_000)
PROCESSES = 2
DTYPES: tuple[DType, ...] = ("float32", "auto")
Row = tuple[str, str, float, float]  # task, program, processor ms and wall ms a passage (of search: a query)


def main(arguments: Sequence[str] | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Prints milliseconds per passage, and the hours that follow for collections on two cores."""
    command = argparse.ArgumentParser(prog="python -m experiments.rates", description=main.__doc__)
    command.add_argument("--encoder", default="all-MiniLM-L6-v2")
    command.add_argument("--encoded", type=int, default=256, help="passages that are encoded")
    command.add_argument("--indexed", type=int, default=50_000, help="passages of graphs and indexes")
    command.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="of collections, for the hours")
    options = command.parse_args(arguments)
    rows = []
    for measure in (encoding, indexing, contextualizing, search):
        for row in measure(options):
            print(*row, flush=True)
            rows.append(row)
    columns = ["task", "program", "CPU ms", "wall ms"]
    table = pd.DataFrame(rows, columns=columns).set_index(["task", "program"])
    per_passage = table.drop(index="search", level=0)["CPU ms"]
    hours = {f"{size:,}": per_passage * size / 3_600_000 / PROCESSES for size in options.sizes}
    print(table.round(4).to_string(), pd.DataFrame(hours).round(3).to_string(), sep="\n\n")
    return table, pd.DataFrame(hours)


def timed(action: Callable[[], Any], count: int) -> tuple[float, float]:
    """Processor time, with that of processes that have ended, and wall time: milliseconds for one of ``count``."""
    start, before = time.perf_counter(), os.times()
    action()
    after = os.times()
    return 1000 * (sum(after[:4]) - sum(before[:4])) / count, 1000 * (time.perf_counter() - start) / count


def encoding(options: argparse.Namespace) -> Iterator[Row]:
    """Vectors of passages and of their tokens."""
    texts, checkpoint = texts_of(options.encoded), resolve(options.encoder)
    reference = SBertBiEncoder(checkpoint, batch_size=32, verbose=False)
    programs: dict[str, tuple[str, Callable[[list[str]], Any]]] = {
        "pyterrier_dr SBertBiEncoder": ("encode", reference.encode_docs),
        "sentence-transformers": ("encode", lambda texts: reference.model.encode(texts, batch_size=32)),
    }
    for dtype in DTYPES:
        dual, tokens = (
            ptg.DualEncoder(checkpoint, max_query_tokens=32, max_passage_tokens=128, dtype=dtype, verbose=False),
            ptg.TokenEncoder(checkpoint, dtype=dtype),
        )
        programs[f"DualEncoder, {dtype}"] = "encode", dual.encode_docs
        programs[f"TokenEncoder, {dtype}"] = "encode tokens", tokens.encode_passages
    for name, (task, encode) in programs.items():
        encode(texts[:32])
        yield task, name, *timed(lambda encode=encode: encode(texts), len(texts))  # type: ignore[misc]
    name = f"sentence-transformers, pool of {PROCESSES}"
    costs = []
    for part in (texts, 2 * texts):  # the difference is without the start of the processes

        def in_pool(part: list[str] = part) -> None:
            pool = reference.model.start_multi_process_pool(["cpu"] * PROCESSES)
            reference.model.encode(part, pool=pool, batch_size=32, chunk_size=max(1, len(texts) // (2 * PROCESSES)))
            reference.model.stop_multi_process_pool(pool)

        costs.append(timed(in_pool, len(texts)))
    yield "encode", name, costs[1][0] - costs[0][0], costs[1][1] - costs[0][1]


def indexing(options: argparse.Namespace) -> Iterator[Row]:
    """Document graph and contextual index of a made-up corpus."""
    with TemporaryDirectory() as folder:
        for step in scale.STEPS:
            duration, us, *_ = scale.run(step, options.indexed, Path(folder))
            task = "index" if step in scale.INDEXES else "document graph" if step == "document graph" else ""
            if task:
                yield (
                    task,
                    "GraphMean: " + step.split(": ")[1] if task == "index" else step,
                    us / 1000,
                    (1000 * duration / options.indexed),
                )


def contextualizing(options: argparse.Namespace) -> Iterator[Row]:
    """HGAT, of token vectors that are there, in documents with sections."""
    encoder = ptg.TokenEncoder(options.encoder)
    graph = MemoryGraph.from_documents([document(0, min(64, options.encoded), 60, flat=False)])
    with TemporaryDirectory() as folder:
        store = ptg.TokenStore(Path(folder) / "tokens", verbose=False).build(graph, encoder)
        model = ptg.HGATReranker(graph, encoder, tokens=store, verbose=False)
        model.contextualize(Path(folder) / "first")
        costs = timed(lambda: model.contextualize(Path(folder) / "second"), len(graph.passage_nodes))
    yield "contextualize", "HGATReranker", *costs


def search(options: argparse.Namespace) -> Iterator[Row]:
    """Exhaustive search; the time grows with the passages."""
    encoder = NumberEncoder()
    with TemporaryDirectory() as folder:
        graph = ptg.DocumentGraph(Path(folder) / "graph", verbose=False).index([{"docno": "d", "text": "text"}])
        index = write_vectors(Path(folder) / "base.flex", options.indexed, graph, encoder)
        vectors = random_vectors(np.random.default_rng(3), 4)
        queries = pd.DataFrame({"qid": [*"1234"], "query": "", "query_vec": [*vectors]})
        for name, retriever in {"numpy": index.np_retriever(), "torch": index.torch_retriever()}.items():
            with torch.inference_mode():
                retriever(queries)
                cpu, wall = timed(lambda retriever=retriever: retriever(queries), len(queries))  # type: ignore[misc]
            yield "search", f"{name}, a query of {options.indexed:,} passages", cpu, wall


if __name__ == "__main__":
    main()
