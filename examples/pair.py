"""Trains a dual-encoder as PAIR does (Ren et al. 2021): hard negatives, denoising, pseudo labels, two stages.

    python examples/pair.py [CORPUS TRAIN TEST] [FOLDER]

For MS MARCO: ``irds:msmarco-passage irds:msmarco-passage/train/judged irds:msmarco-passage/dev/small``. The default is
Vaswani, which is downloaded, with half of its queries for training. Needs Java.
The tables of the paper: ``docs/papers/pair.md``.
"""

from __future__ import annotations

import sys
from typing import Any

import pyterrier as pt
from ir_measures import RR, R
from pyterrier_dr import FlexIndex

import pyterrier_graph as ptg


def train(
    bm25: pt.Transformer, texts: Any, topics: Any, qrels: Any, unlabeled: Any, folder: str
) -> ptg.DualEncoder:
    """Trains a teacher, mines examples that it denoises, and trains the dual-encoder on them and on pseudo labels.

    Args:
        bm25: Queries in, documents out.
        texts: Adds ``text`` to documents.
        topics: Queries with judgments.
        qrels: The judgments.
        unlabeled: Queries without judgments.
        folder: Folder for unfinished mining.
    """
    training = ptg.CrossEncoderTraining(ranking="pointwise")  # its scores are probabilities
    teacher = ptg.CrossEncoderReranker(
        "all-MiniLM-L6-v2", training=training, probabilities=True, max_tokens=160
    )
    (bm25 % 50 >> texts >> teacher).fit(topics, qrels)
    miner = ptg.HardNegativeMiner(bm25 % 200, texts, teacher=teacher, folder=folder)
    return ptg.DualEncoder(miner=miner).fit(topics, qrels, unlabeled=unlabeled)


def main(
    corpus: str = "irds:vaswani", train_name: str = "", test_name: str = "", folder: str = "pair"
) -> None:
    """Trains on one set of queries, and evaluates the dual-encoder's index on the other."""
    dataset: Any = pt.get_dataset(corpus)
    train_set, test_set = pt.get_dataset(train_name or corpus), pt.get_dataset(test_name or corpus)
    topics, tested = train_set.get_topics(), test_set.get_topics()
    topics, tested = (topics, tested) if train_name else (topics.iloc[::2], tested.iloc[1::2])
    first = pt.terrier.TerrierIndex(f"{folder}/terrier")
    if not first.built():
        first.indexer().index(dataset.get_corpus_iter())
    bm25 = pt.rewrite.tokenise() >> first.bm25() >> pt.rewrite.reset()
    half, texts = len(topics) // 2, pt.text.get_text(dataset, ["text"])
    model = train(
        bm25, texts, topics[:half], train_set.get_qrels(), topics[half:], f"{folder}/examples"
    )
    index = FlexIndex(f"{folder}/index.flex")
    (model.doc_encoder() >> index).index(dataset.get_corpus_iter())
    dense = model.query_encoder() >> index.np_retriever()
    print(
        pt.Experiment(
            [bm25, dense], tested, test_set.get_qrels(), [RR @ 10, R @ 100], names=["BM25", "PAIR"]
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:5])
