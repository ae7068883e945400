"""Collections as bare passages, with BM25 over them and the stored token vectors of an encoder."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import pandas as pd
import pyterrier as pt

import pyterrier_graph as ptg
from experiments.harness.collection import ALL, SPLITS, Collection, Queries
from experiments.harness.first_stage import bm25
from pyterrier_graph.training.validation import documents_of

DEPTH = 100
WHOLE = ("cranfield", "cacm", "vaswani")  # collections of abstracts, each of which is one passage


def judged_passages(name: str, collection: Collection) -> Collection:
    """A collection whose passages are what is judged: abstracts, and records without parts, are one passage each.

    Args:
        name: Name of the collection on the command line.
        collection: The collection.
    """
    return collection.whole() if name in WHOLE or not collection.structured else collection


class PassageCorpus:
    """The passages of a collection without their titles; abstracts are taken with theirs.

    Args:
        name: Name of the collection on the command line.
        collection: The collection.
        folder: For graph, index and token vectors, which are made where they are missing.
        queries: Test queries, drawn at random; None for all.
        dev_queries: Likewise for validation.
        engine: What BM25 runs on.
    """

    def __init__(
        self,
        name: str,
        collection: Collection,
        folder: Path,
        *,
        queries: int | None = None,
        dev_queries: int = 150,
        engine: str = "pisa",
    ) -> None:
        self.name, self.folder, self.engine = name, folder, engine
        self.collection = judged_passages(name, collection)
        self.trains = ALL not in self.collection.queries
        splits = (
            self.collection.split(dev_queries=dev_queries) if self.trains else {"test": self.collection.all_queries}
        )
        splits["test"] = splits["test"].sample(queries)
        self._relevant: dict[str, list[set[int]]] = {}
        self.queries: dict[str, Queries] = {name: splits[name] for name in SPLITS if name in splits}

    @cached_property
    def graph(self) -> ptg.DocumentGraph:
        """The documents; of a collection without training queries, only those that BM25 finds."""
        graph = ptg.DocumentGraph(self.folder / "graph")
        if graph.built():
            return graph
        found = None if self.trains else set(documents_of(self.candidates["test"]["docno"]))
        records = self.collection.get_corpus_iter()
        return graph.index(record for record in records if found is None or record["docno"] in found)

    @cached_property
    def bm25(self) -> pt.Transformer:
        """BM25 over passages."""
        return bm25(self.collection.passages(), self.folder / self.engine, self.engine)

    @cached_property
    def candidates(self) -> dict[str, pd.DataFrame]:
        """The first 100 passages of BM25 for the queries of each split."""
        return {split: (self.bm25 % DEPTH)(queries.topics) for split, queries in self.queries.items()}

    def relevant_nodes(self, split: str) -> list[set[int]]:
        """The nodes of the relevant passages of each query of a split; computed once."""
        if split not in self._relevant:
            queries = self.queries[split]
            judged = queries.qrels[queries.qrels["label"] > 0].groupby("qid")["docno"].apply(list)
            nodes = [self.graph.nodes_of(judged.get(qid, [])) for qid in queries.topics["qid"]]
            self._relevant[split] = [set(part.tolist()) for part in nodes]
        return self._relevant[split]

    def tokens(self, encoder: ptg.TokenEncoder, name: str) -> ptg.TokenStore:
        """Stored token vectors of all nodes, in a folder of that name."""
        store = ptg.TokenStore(self.folder / name)
        return store if store.built() else store.build(self.graph, encoder)
