"""GraphMean and the GNN-encoder (Liu et al. 2022): an index whose passages know the queries that they answer.

    python examples/gnn_encoder.py [DATASET] [FOLDER]

DATASET is ``numpydoc`` (no download), or ``msmarco``, ``nq`` or ``triviaqa``, which ir_datasets downloads.
The tables and curves of the papers: ``python -m experiments.contextual_indexes``.
"""

from __future__ import annotations

import sys

import pyterrier as pt
from ir_measures import RR, R, nDCG

import pyterrier_graph as ptg

NUMPY, NQ, TRIVIA = "pyterrier-graph/numpydoc/numpy", "dpr-w100/natural-questions", "dpr-w100/trivia-qa"
# the corpus, and the queries for training, validation and test
DATASETS = {
    "numpydoc": (NUMPY, f"{NUMPY}/train", f"{NUMPY}/see-also/dev", f"{NUMPY}/see-also/test"),
    "msmarco": (
        "msmarco-passage",
        "msmarco-passage/train/judged",
        "msmarco-passage/train/judged",
        "msmarco-passage/dev/small",
    ),
    "nq": ("dpr-w100", f"{NQ}/train", f"{NQ}/train", f"{NQ}/dev"),
    "triviaqa": ("dpr-w100", f"{TRIVIA}/train", f"{TRIVIA}/train", f"{TRIVIA}/dev"),
}


def main(name: str = "numpydoc", folder: str = "gnn_encoder", queries: int | None = None) -> None:
    """Builds the graphs, tunes or trains, writes the indexes, and compares.

    Args:
        name: Key of ``DATASETS``.
        folder: Where everything is written.
        queries: So many queries of each split are used; by default all.
    """
    corpus, *splits = (pt.get_dataset(f"irds:{part}") for part in DATASETS[name])
    train, dev, test = ((part.get_topics(), part.get_qrels()) for part in splits)
    if DATASETS[name][1] == DATASETS[name][2]:  # some of the training queries are held out
        train, dev = (train[0].iloc[1000:], train[1]), (train[0].iloc[:1000], train[1])
    train, dev, test = ((topics.head(queries or len(topics)), qrels) for topics, qrels in (train, dev, test))

    graph = ptg.DocumentGraph(f"{folder}/graph")
    if not graph.built():
        graph.index(corpus.get_corpus_iter())
    encoder = ptg.DualEncoder()
    plain = ptg.GraphMean(graph, encoder, {"title": 0.0}).index(f"{folder}/plain.flex")  # the encoder's own vectors
    answered = ptg.QueryPassageGraph(f"{folder}/queries")
    if not answered.built():
        # half of the training queries: training on the others tells what those in the graph are worth
        answered.build(train[0].iloc[::2], graph, plain.retriever(), qrels=train[1])
    mean = ptg.GraphMean(graph, encoder, query_graph=answered).fit(*dev)
    gnn = ptg.GNNEncoder(graph, encoder, query_graph=answered).fit(*train, *dev)
    indexes = [plain, mean.index(f"{folder}/mean.flex"), gnn.index(f"{folder}/gnn.flex")]
    names, measures = ["dual-encoder", "GraphMean", "GNNEncoder"], [nDCG @ 10, RR @ 10, R @ 100]
    print(pt.Experiment([index.retriever() for index in indexes], *test, measures, names=names, baseline=0))


if __name__ == "__main__":
    main(*(sys.argv[1:] + ["numpydoc", "gnn_encoder"][len(sys.argv) - 1 :])[:2])
