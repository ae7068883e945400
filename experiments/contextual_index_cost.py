"""What fusing costs beside encoding the same passages, and what a query then costs beside the base index.

``python -m experiments.fusing_cost``: passages are docstrings; each query retrieves 25 of them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pyterrier as pt
from pyterrier_dr import FlexIndex

from pyterrier_graph.encoders.checkpoints import DEFAULT, resolve
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.models.gnn_encoder import PaperGNNEncoderConfig
from pyterrier_graph.retrieve.dual_encoder import DualEncoder
from pyterrier_graph.retrieve.gnn_encoder import GNNEncoder

RETRIEVED = 25


def main() -> None:
    """Prints milliseconds per passage, and per query with the ratio of both indexes."""
    command = argparse.ArgumentParser(prog="python -m experiments.fusing_cost", description=main.__doc__)
    command.add_argument("--passages", type=int, default=20_000)
    command.add_argument("--queries", type=int, default=10_000)
    command.add_argument("--encoded", type=int, default=256, help="passages that encoding is timed with")
    command.add_argument("--repeats", type=int, default=200, help="queries that retrieval is timed with")
    options = command.parse_args()
    documents = pt.get_dataset("irds:pyterrier-graph/numpydoc/numpy").get_corpus_iter(verbose=False)
    texts = [document["text"] for document in documents][: options.encoded]
    encoder = DualEncoder(resolve(DEFAULT))
    encoder.encode_docs(texts[:32])
    encoding = timed(lambda: encoder.encode_docs(texts)) / len(texts)
    random = np.random.default_rng(0)
    with TemporaryDirectory() as name:
        folder = Path(name)
        base = index_of(folder / "base.flex", random, options.passages)
        graph = graph_of(folder / "graph", random, options.passages, options.queries)
        rows = {"encoding": encoding}
        fused: dict[str, FlexIndex] = {}
        for label, network in {"papers' network": PaperGNNEncoderConfig(384), "typed network": None}.items():
            gnn = GNNEncoder(encoder, base, graph, network, folder=folder)
            gnn.encoder = FixedQueries(random)  # the queries' vectors are not what is timed
            fused[label] = FlexIndex(str(folder / f"{len(fused)}.flex"), verbose=False)
            rows[label] = timed(lambda: gnn.fuse(base, fused[label])) / options.passages  # noqa: B023
        table = pd.DataFrame({"ms a passage": pd.Series(rows) * 1000})
        table["share of encoding"] = table["ms a passage"] / table.loc["encoding", "ms a passage"]
        print(table.round(4).to_string())
        queries = random.standard_normal((options.repeats, 384), dtype=np.float32)
        print(latencies({"base": base, **fused}, queries).round(3).to_string())


class FixedQueries:
    """Encodes queries in no time."""

    def __init__(self, random: np.random.Generator) -> None:
        self.random = random

    def encode_queries(self, texts: list[str]) -> np.ndarray:
        """Random vectors."""
        return unit(self.random, len(texts))


def unit(random: np.random.Generator, count: int) -> np.ndarray:
    """Vectors of length 1."""
    vectors = random.standard_normal((count, 384), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def index_of(path: Path, random: np.random.Generator, count: int) -> FlexIndex:
    """An index of random vectors."""
    index = FlexIndex(str(path), verbose=False)
    index.index({"docno": f"d{n}", "doc_vec": vector} for n, vector in enumerate(unit(random, count)))
    return index


def graph_of(path: Path, random: np.random.Generator, passages: int, queries: int) -> QueryPassageGraph:
    """A graph of queries that retrieve random passages, and know the first of them."""
    found = random.integers(0, passages - RETRIEVED, size=queries)[:, None] + np.arange(RETRIEVED)
    qids = np.repeat([f"q{n}" for n in range(queries)], RETRIEVED)
    results = pd.DataFrame({"qid": qids, "query": "query", "docno": [f"d{n}" for n in found.ravel()]})
    results["score"] = 1.0
    qrels = results[::RETRIEVED][["qid", "docno"]].assign(label=1)
    graph = QueryPassageGraph(path)
    return graph.from_results(results, [f"d{n}" for n in range(passages)], qrels=qrels, verbose=False)


def latencies(indexes: dict[str, FlexIndex], queries: np.ndarray) -> pd.DataFrame:
    """Milliseconds of single queries, the indexes taking turns: the median, and the ratio to the first index."""
    retrievers = {name: index.np_retriever(num_results=100) for name, index in indexes.items()}
    times: dict[str, list[float]] = {name: [] for name in indexes}
    for number, query in enumerate(queries):
        frame = pd.DataFrame({"qid": [str(number)], "query": [""], "query_vec": [query]})
        for name, retriever in retrievers.items():
            times[name].append(timed(lambda: retriever(frame)) * 1000)  # noqa: B023
    measured = pd.DataFrame(times)
    ratios = measured.div(measured[next(iter(indexes))], axis=0)
    return pd.DataFrame({"ms a query": measured.median(), "ratio": ratios.median()})


def timed(run: Callable[[], object]) -> float:
    """Seconds."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
