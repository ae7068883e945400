"""GraphMean and the GNN-encoder (Liu et al. 2022): an index whose passages know the queries that they answer.

    python examples/gnn_encoder.py [DATASET] [FOLDER]

DATASET is ``numpydoc`` (no download), or ``msmarco``, ``nq`` or ``triviaqa``, which ir_datasets downloads.
The tables of the papers: ``docs/papers/gnn-encoder.md``.
"""

from __future__ import annotations

import sys

import pyterrier as pt
from ir_measures import RR, R, nDCG

import pyterrier_graph as ptg

NUMPY, MSMARCO = "pyterrier-graph/numpydoc/numpy", "msmarco-passage"
NQ, TRIVIA = "dpr-w100/natural-questions", "dpr-w100/trivia-qa"
# the corpus, and the queries for training and test
DATASETS = {
    "numpydoc": (NUMPY, f"{NUMPY}/train", f"{NUMPY}/see-also/test"),
    "msmarco": (MSMARCO, f"{MSMARCO}/train/judged", f"{MSMARCO}/dev/small"),
    "nq": ("dpr-w100", f"{NQ}/train", f"{NQ}/dev"),
    "triviaqa": ("dpr-w100", f"{TRIVIA}/train", f"{TRIVIA}/dev"),
}


def main(
    name: str = "numpydoc", folder: str = "gnn_encoder", *, queries: int | None = None
) -> None:
    """Builds the graphs, tunes or trains, writes the indexes, and compares.

    Args:
        name: Key of ``DATASETS``.
        folder: A new folder for graphs and indexes.
        queries: Number of queries for training and for testing; None takes all.
    """
    corpus, *parts = (pt.get_dataset(f"irds:{part}") for part in DATASETS[name])
    topics, tested = (part.get_topics().head(queries or 1_000_000) for part in parts)
    qrels, test_qrels = (part.get_qrels() for part in parts)
    fifth = len(topics) // 5
    dev, train = topics[:fifth], topics[fifth:]

    graph = ptg.DocumentGraph(f"{folder}/graph").index(corpus.get_corpus_iter())
    encoder = ptg.DualEncoder()
    # the encoder's own vectors
    plain = ptg.GraphMean(graph, encoder, {"title": 0.0}).index(f"{folder}/plain.flex")
    # half of the training queries are in the graph; the others show in training what these are worth
    answered = ptg.QueryPassageGraph(f"{folder}/queries").build(
        train[::2], graph, plain.retriever(), qrels=qrels
    )
    mean = ptg.GraphMean(graph, encoder, query_graph=answered).fit(dev, qrels)
    gnn = ptg.GNNEncoder(graph, encoder, query_graph=answered).fit(train, qrels, dev, qrels)
    indexes = [plain, mean.index(f"{folder}/mean.flex"), gnn.index(f"{folder}/gnn.flex")]
    systems = [index.retriever() for index in indexes]
    names, measures = ["dual-encoder", "GraphMean", "GNNEncoder"], [nDCG @ 10, RR @ 10, R @ 100]
    print(pt.Experiment(systems, tested, test_qrels, measures, names=names, baseline=0))


if __name__ == "__main__":
    main(*sys.argv[1:3])
