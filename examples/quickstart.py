"""A first program: graph reranking of the docstrings of numpy. Nothing but Python packages is downloaded.

    python examples/quickstart.py [FOLDER]

Needs ``pip install 'pyterrier_graph[demo]'``. The first stage is PISA, for x86-64 Linux; any other works as well.
"""

from __future__ import annotations

import sys

import pyterrier as pt
from ir_measures import RR, nDCG
from pyterrier_pisa import PisaIndex

import pyterrier_graph as ptg

NUMPY = "irds:pyterrier-graph/numpydoc/numpy"


def main(folder: str = "quickstart", queries: int = 20) -> None:
    """Indexes the docstrings, searches, and compares BM25, MaxSim, and MaxSim along the relations of a graph.

    Args:
        folder: Folder of the index and the graph.
        queries: Number of test queries that are compared.
    """
    corpus, test = pt.get_dataset(NUMPY), pt.get_dataset(f"{NUMPY}/test")
    index = PisaIndex(f"{folder}/index", stemmer="porter2")
    if not index.built():
        index.index(
            {"docno": doc["docno"], "text": doc["text"]}
            for doc in corpus.get_corpus_iter(verbose=False)
        )
    graph = ptg.DocumentGraph(f"{folder}/graph")
    if not graph.built():
        graph.index(corpus.get_corpus_iter(verbose=False))

    bm25 = index.bm25(num_results=5) >> graph.passages()
    maxsim = bm25 >> ptg.GraphMaxSim(graph, weights={})  # the passage alone
    graph_maxsim = bm25 >> ptg.GraphMaxSim(graph)  # also titles and neighbors
    print(graph_maxsim.search("how are ties broken").head(3)[["docno", "score", "text"]])
    print(
        pt.Experiment(
            [bm25, maxsim, graph_maxsim],
            test.get_topics().head(queries),
            test.get_qrels(),
            [nDCG @ 10, RR @ 10],
            names=["BM25", "MaxSim", "GraphMaxSim"],
            baseline=0,
            plan="tree",  # BM25 runs once
            verbose=False,
        )
    )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "quickstart")
