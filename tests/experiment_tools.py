"""A small collection and a small first stage, for tests of the experiments."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyterrier as pt
import tiny

from experiments.harness.collection import ALL, Collection, Queries, Query, queries_by_split
from pyterrier_graph.documents.document import Node

WORDS = tiny.WORDS


class Matches(pt.Transformer):
    """Finds all documents, those first that have a word of the query, else in the order of the collection."""

    def __init__(self, collection: Collection, *_: Any) -> None:
        self.documents = pd.DataFrame(collection.get_corpus_iter(verbose=False))[["docno", "text"]]

    def transform(self, topics: pd.DataFrame) -> pd.DataFrame:
        found = topics.merge(self.documents, how="cross")
        shared = [
            len(set(q.split()) & set(t.split()))
            for q, t in zip(found["query"], found["text"], strict=True)
        ]
        return pt.model.add_ranks(found.assign(score=shared)).drop(columns="text")


def texts(queries_per_word: int = 2) -> Collection:
    """Two texts for each word; the word's queries look for the first one."""
    records = [
        {"docno": f"{word}{n}", "title": word, "text": f"{word} {other}"}
        for word in WORDS
        for n, other in enumerate(("mu", "nu"))
    ]
    asked = [
        (f"{word}-{other}", f"{word} {other}", f"{word}0")
        for word in WORDS
        for other in WORDS[:queries_per_word]
    ]
    frame = pd.DataFrame(asked, columns=["qid", "query", "docno"])
    queries = Queries(frame[["qid", "query"]], frame[["qid", "docno"]].assign(label=1))
    return Collection.in_memory("texts", records, {ALL: queries})


def pages() -> Collection:
    """A page for each word, which only its title names, and two queries for its first passage."""
    records = [
        {
            "docno": word,
            "title": word,
            "text": "mu nu nu",
            "nodes": [
                Node("section", word, -1),
                Node("passage", "mu nu", 0),
                Node("passage", "nu " * number, 0),
            ],
        }
        for number, word in enumerate(
            WORDS, start=5
        )  # sentences of at least five words, all different
    ]
    splits = ["train"] * 8 + ["dev", "test"] * 2
    queries = [
        Query(f"{word}-{n}", f"{word} {other}", split, (f"{word}%p0",))
        for word, split in zip(WORDS, splits, strict=True)
        for n, other in enumerate(("mu", "nu"))
    ]
    return Collection.in_memory("pages", records, queries_by_split(queries))
