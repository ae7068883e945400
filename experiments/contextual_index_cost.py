"""What a contextual index costs beside encoding the same passages, and a query of it beside the dual-encoder's index.

``python -m experiments.contextual_index_cost``: passages are made up; each query retrieves 25 of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
from pyterrier_dr import FlexIndex

import pyterrier_graph as ptg
from experiments.harness.cost import random_text, random_vectors, seconds, side_by_side
from pyterrier_graph.retrieve.query_weights import QueryWeights, read_sample

RETRIEVED = 25


class RandomQueries(ptg.DualEncoder):
    """A dual-encoder that takes no time to encode queries: their vectors are not what is measured."""

    def encode_queries(self, texts: Sequence[str], batch_size: int | None = None) -> np.ndarray:
        """Random vectors."""
        return random_vectors(np.random.default_rng(0), len(texts), self.network.get_embedding_dimension())


def main(arguments: Sequence[str] | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Prints milliseconds per passage, and per query as multiples of the dual-encoder's index."""
    command = argparse.ArgumentParser(prog="python -m experiments.contextual_index_cost", description=main.__doc__)
    command.add_argument("--passages", type=int, default=20_000)
    command.add_argument("--queries", type=int, default=10_000)
    command.add_argument("--encoded", type=int, default=256, help="passages that are encoded")
    command.add_argument("--repeats", type=int, default=200, help="queries that are measured")
    command.add_argument("--encoder", default="all-MiniLM-L6-v2")
    options = command.parse_args(arguments)
    random = np.random.default_rng(0)
    texts = [random_text(random, 100) for _ in range(options.encoded)]
    encoder = RandomQueries(options.encoder)
    dimension = encoder.encode_docs(texts[:32]).shape[1]
    rows = {"encoding": seconds(lambda: encoder.encode_docs(texts)) / len(texts)}
    with TemporaryDirectory() as name:
        folder = Path(name)
        base = FlexIndex(str(folder / "base.flex"), verbose=False)
        vectors = random_vectors(random, options.passages, dimension)
        base.index({"docno": f"d{number}", "doc_vec": vector} for number, vector in enumerate(vectors))
        graph = graph_of(folder / "graph", random, options.passages, options.queries)
        common: dict[str, Any] = {"encoder": encoder, "query_graph": graph, "vectors": base, "verbose": False}
        models: dict[str, ptg.GraphMean | ptg.GNNEncoder] = {
            "GraphMean, a fixed weight": ptg.GraphMean(None, weights={"relevant": 0.5}, **common),
            "GraphMean, a weight per query": ptg.GraphMean(None, **common),
            "papers' network": ptg.GNNEncoder(config=ptg.GNNEncoderConfig.paper(), **common),
            "our network": ptg.GNNEncoder(**common),
        }
        retrievers: dict[str, pt.Transformer] = {"dual-encoder": base.np_retriever(num_results=100)}
        for label, model in models.items():
            path = folder / f"{len(retrievers)}.flex"
            rows[label] = seconds(partial(model.index, path)) / options.passages
            retrievers[label] = FlexIndex(str(path), verbose=False).np_retriever(num_results=100)
            if weights := getattr(model, "largest_weights", {}):
                retrievers[label] = QueryWeights(read_sample(path, weights), weights) >> retrievers[label]
        table = pd.DataFrame({"ms a passage": pd.Series(rows) * 1000})
        table["share of encoding"] = table["ms a passage"] / table.loc["encoding", "ms a passage"]
        print(table.round(4).to_string())
        queries = iter(random_vectors(random, len(retrievers) * (options.repeats + 1), dimension))

        def search(retriever: object) -> None:
            retriever(pd.DataFrame({"qid": ["1"], "query": [""], "query_vec": [next(queries)]}))  # type: ignore[operator]

        actions = {label: partial(search, retriever) for label, retriever in retrievers.items()}
        latencies = side_by_side(actions, options.repeats)
        print(latencies.assign(seconds=latencies["seconds"] * 1000).rename(columns={"seconds": "ms a query"}).round(3))
    return table, latencies


def graph_of(path: Path, random: np.random.Generator, passages: int, queries: int) -> ptg.QueryPassageGraph:
    """A graph of queries that retrieve random passages, of which the first is relevant."""
    found = random.integers(0, passages - RETRIEVED, size=queries)[:, None] + np.arange(RETRIEVED)
    qids = np.repeat([f"q{number}" for number in range(queries)], RETRIEVED)
    results = pd.DataFrame({"qid": qids, "query": "query", "docno": [f"d{n}" for n in found.ravel()], "score": 1.0})
    qrels = results[::RETRIEVED][["qid", "docno"]].assign(label=1)
    graph = ptg.QueryPassageGraph(path)
    return graph.from_results(results, [f"d{number}" for number in range(passages)], qrels=qrels, verbose=False)


if __name__ == "__main__":
    main()
