"""Fine-tuning of a dual-encoder on the negatives that it finds."""

from __future__ import annotations

import pandas as pd
import pyterrier as pt
from pyterrier_dr import FlexIndex

import pyterrier_graph as ptg
from experiments.harness.collection import Queries
from pyterrier_graph.graphs.hetero_graph import judged_ids

DEPTH = 100


def fine_tuned(
    encoder: ptg.DualEncoder, index: FlexIndex, train: Queries, texts: pt.Transformer, epochs: int
) -> ptg.DualEncoder:
    """Trains a dual-encoder on each query with its best relevant passage, and a negative that the encoder finds.

    Args:
        encoder: What is trained.
        index: Its vectors of the passages.
        train: Training queries; judgments are of passages or of documents.
        texts: Adds texts to passages.
        epochs: Number of epochs.
    """
    relevant = train.qrels.loc[train.qrels["label"] > 0, ["qid", "docno"]].drop_duplicates()
    retriever = encoder.query_encoder() >> index.np_retriever(num_results=DEPTH, drop_query_vec=True)
    found = retriever(train.topics)
    judged = pd.MultiIndex.from_arrays([found["qid"], judged_ids(found["docno"], train.qrels)])
    right = judged.isin(pd.MultiIndex.from_frame(relevant))
    positives = found[right & ~judged.duplicated()]  # results are in order
    encoder.miner = ptg.HardNegativeMiner(pt.Transformer.from_df(found[~right]), texts)
    encoder.training = ptg.DualEncoderTraining(epochs=epochs, batch_size=32, patience=None)
    return encoder.fit(train.topics, positives[["qid", "docno"]].assign(label=1))
