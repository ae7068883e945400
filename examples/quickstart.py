"""The README's lines, as a script: graph reranking on real text, with nothing but Python packages.

Needs ``pip install 'pyterrier_graph[demo]'`` (PISA, and so x86-64 Linux, for the first stage).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyterrier as pt
from ir_measures import RR, nDCG

import pyterrier_graph as ptg
from pyterrier_graph.encoders.checkpoints import DEFAULT, resolve


def main(folder: str = "quickstart", queries: int = 20) -> None:
    """Indexes numpy's docstrings, and compares BM25, MaxSim and MaxSim through the graph.

    Args:
        folder: Where the index and the graph are put.
        queries: How many queries are run.
    """
    from pyterrier_pisa import PisaIndex

    dataset = pt.get_dataset("irds:pyterrier-graph/numpydoc/numpy")
    test = pt.get_dataset("irds:pyterrier-graph/numpydoc/numpy/test")

    index = PisaIndex(str(Path(folder, "index")), stemmer="porter2")
    if not index.built():
        index.index({"docno": doc["docno"], "text": doc["text"]} for doc in dataset.get_corpus_iter(verbose=False))
    graph = ptg.DocumentGraph(Path(folder, "graph"))
    if not graph.built():
        graph.index(dataset.get_corpus_iter(verbose=False))

    bm25 = index.bm25(num_results=5) >> graph.passages()
    maxsim = ptg.GraphMaxSim(graph, resolve(DEFAULT), weights={})
    graph_maxsim = ptg.GraphMaxSim(graph, resolve(DEFAULT))
    print(
        pt.Experiment(
            [bm25, bm25 >> maxsim, bm25 >> graph_maxsim],
            test.get_topics().head(queries),
            test.get_qrels(),
            [nDCG @ 10, RR @ 10],
            names=["BM25", "BM25 >> MaxSim", "BM25 >> GraphMaxSim"],
            baseline=0,
        )
    )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "quickstart")
