"""Trains HGAT (Albarede et al. 2023) on the docstrings of numpy, saves it, and compares it with MaxSim.

    python examples/hgat.py [FOLDER]

Needs ``pip install 'pyterrier_graph[demo]'``. ``config=ptg.HGATConfig.paper()`` is the paper's network, and
``training=ptg.HGATTraining.paper()`` its training, which need thousands of queries.
"""

from __future__ import annotations

import sys
from typing import Any

import pyterrier as pt
from ir_measures import RR, nDCG
from pyterrier_pisa import PisaIndex

import pyterrier_graph as ptg

NUMPY = "irds:pyterrier-graph/numpydoc/numpy"


def main(folder: str = "hgat", queries: int | None = None) -> None:
    """Trains the reranker on the passages that BM25 finds, and compares.

    Args:
        folder: Folder of all indexes and models.
        queries: Number of queries of each split; None takes all.
    """
    corpus = pt.get_dataset(NUMPY)
    parts = [pt.get_dataset(f"{NUMPY}/{split}") for split in ("train", "dev", "test")]
    train, dev, test = (
        (part.get_topics().head(queries or 10_000), part.get_qrels()) for part in parts
    )
    index = PisaIndex(f"{folder}/index", stemmer="porter2")
    if not index.built():
        index.index(
            {"docno": doc["docno"], "text": doc["text"]}
            for doc in corpus.get_corpus_iter(verbose=False)
        )
    graph = ptg.DocumentGraph(f"{folder}/graph")
    if not graph.built():
        graph.index(corpus.get_corpus_iter(verbose=False))
    # the token vectors of all passages and titles, stored once
    tokens = ptg.TokenStore(f"{folder}/tokens")
    if not tokens.built():
        tokens.build(graph)

    bm25 = index.bm25(num_results=10) >> graph.passages()
    hgat = ptg.HGATReranker(graph, tokens=tokens)
    (bm25 >> hgat).fit(*train, *dev)
    hgat.save(f"{folder}/model")
    # from now on, reranking is a look-up and a MaxSim
    hgat.contextualized = hgat.contextualize(f"{folder}/contextualized")

    systems = [bm25, bm25 >> ptg.GraphMaxSim(graph, weights={}, tokens=tokens), bm25 >> hgat]
    options: Any = {
        "names": ["BM25", "MaxSim", "HGAT"],
        "baseline": 1,
        "plan": "tree",  # BM25 runs once
        "verbose": False,
    }
    print(pt.Experiment(systems, *test, [nDCG @ 10, RR @ 10], **options))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "hgat")
