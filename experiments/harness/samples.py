"""A part of a collection: whole documents, and the queries that they answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from experiments.harness.collection import ALL, Collection, Queries
from pyterrier_graph.documents.document import split_passage_id

JUDGED = 0.6  # the share of the words that documents with answers to test queries may have
LONGEST = 0.04  # the share of the words that one document may have


def sampled(collection: Collection, words: int | None) -> Collection:
    """Documents with about so many words, drawn at random.

    First come documents that answer test queries, all of a query's together, then others. A query stays, with the
    judgments of these documents, if something in the sample answers it.
    """
    if words is None:
        return collection
    records = {record["docno"]: record for record in collection.documents()}
    length = {docno: len(_words(record)) for docno, record in records.items()}
    test = collection.queries[ALL if ALL in collection.queries else "test"]
    relevant = test.qrels[test.qrels["label"] > 0]
    documents = relevant["docno"].map(lambda docno: split_passage_id(docno)[0])
    answering = documents.groupby(relevant["qid"]).agg(set)
    few = len(records) < 100  # of so few documents, none is too long
    kept: dict[str, None] = {}
    total = 0
    random = np.random.default_rng(0)
    for qid in random.permutation(sorted(answering.index)):
        new = sorted(answering[qid] - kept.keys())
        needed = sum(length[docno] for docno in new)
        fits = few or max((length[docno] for docno in new), default=0) <= LONGEST * words
        if fits and total + needed <= JUDGED * words:
            kept.update(dict.fromkeys(new))
            total += needed
    others = sorted(records.keys() - kept.keys() - set().union(*answering))
    for docno in random.permutation(others):
        if (few or length[docno] <= LONGEST * words) and total + length[docno] <= words:
            kept[docno] = None
            total += length[docno]

    def part(queries: Queries) -> Queries:
        inside = queries.qrels["docno"].map(lambda docno: split_passage_id(docno)[0]).isin(kept)
        found = Queries(queries.topics, queries.qrels[inside].reset_index(drop=True))
        among = set(found.qrels.loc[found.qrels["label"] > 0, "qid"])
        return found.among(among)

    queries = {split: part(of) for split, of in collection.queries.items()}
    return replace(
        collection, documents=lambda: [r for d, r in records.items() if d in kept], queries=queries
    )


def _words(record: dict[str, Any]) -> list[str]:
    """The words of all passages of a document."""
    return str(record["text"]).split()
