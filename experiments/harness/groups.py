"""Groups of test queries by the training queries for the same documents."""

from __future__ import annotations

import re

from experiments.harness.collection import Queries
from pyterrier_graph.graphs.judgments import documents_of

OVERLAP = 0.1


def groups_by_overlap(train: Queries, test: Queries) -> dict[str, list[str]]:
    """Divides test queries by the words that they share with training queries for the same documents.

    Returns:
        The qids of each group: those whose relevant documents no training query looks for, and those whose most similar
        training query shares fewer, or at least, a tenth of the words of both (Jaccard similarity).
    """
    train_qrels, test_qrels = (
        part.qrels[part.qrels["label"] > 0].assign(
            document=lambda rows: documents_of(rows["docno"])
        )
        for part in (train, test)
    )
    train_qrels = train_qrels[train_qrels["document"].isin(test_qrels["document"])].merge(
        train.topics, on="qid"
    )
    words = train_qrels.groupby("document")["query"].agg(
        lambda texts: [_words(text) for text in texts]
    )
    wanted = test_qrels.groupby("qid")["document"].agg(set)
    overlap = {}
    for query in test.topics.itertuples():
        own = _words(query.query)
        others = [other for name in wanted.get(query.qid, ()) for other in words.get(name, ())]
        overlap[query.qid] = max(
            (len(own & other) / len(own | other) for other in others), default=-1.0
        )
    return {
        "no training query": [qid for qid, value in overlap.items() if value < 0],
        f"overlap below {OVERLAP}": [qid for qid, value in overlap.items() if 0 <= value < OVERLAP],
        f"overlap from {OVERLAP}": [qid for qid, value in overlap.items() if value >= OVERLAP],
    }


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower())) or {""}
