"""What the checks of Terrier share: the collection, the first stages, and what is made of them once."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyterrier as pt

import pyterrier_graph as ptg


class Skipped(Exception):  # noqa: N818  # it is no error
    """Says why a check cannot be run here."""


@dataclass
class Collection:
    """A collection in TREC's format, with what PyTerrier's datasets have."""

    documents: dict[str, str]
    topics: pd.DataFrame
    qrels: pd.DataFrame

    @classmethod
    def read(cls, folder: Path) -> Collection:
        """Reads a folder."""
        missing = [name for name in ("doc-text.trec", "query-text.trec", "qrels") if not (folder / name).exists()]
        if missing:
            raise SystemExit(
                f"{folder} has no {', '.join(missing)}: give a folder with the collection in TREC's format"
            )
        texts = re.findall(
            r"<DOC>\s*<DOCNO>\s*(\S+?)\s*</DOCNO>(.*?)</DOC>", (folder / "doc-text.trec").read_text("utf-8"), re.DOTALL
        )
        queries = re.findall(
            r"<num>\s*(\S+?)\s*</num>\s*<title>(.*?)</title>",
            (folder / "query-text.trec").read_text("utf-8"),
            re.DOTALL,
        )
        topics = pd.DataFrame([{"qid": qid, "query": " ".join(text.split()).lower()} for qid, text in queries])
        documents = {docno: " ".join(text.split()) for docno, text in texts}
        return cls(documents, topics, pt.io.read_qrels(str(folder / "qrels")))

    def get_corpus_iter(self, verbose: bool = False) -> Iterator[dict[str, str]]:
        """The documents."""
        return ({"docno": docno, "text": text} for docno, text in self.documents.items())

    def get_topics(self, variant: str | None = None) -> pd.DataFrame:
        """The queries."""
        return self.topics

    def get_qrels(self, variant: str | None = None) -> pd.DataFrame:
        """The judgments."""
        return self.qrels

    def text_loader(self, fields: Any = "*", *, verbose: bool = False) -> pt.Transformer:
        """Adds texts to documents."""
        return pt.apply.generic(lambda found: found.assign(text=found["docno"].map(self.documents)))


class TerrierStage:
    """A first stage on Terrier."""

    name = "terrier"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index: Any = None

    def build(self, documents: Iterable[dict[str, str]]) -> None:
        """Indexes documents with their texts, and the positions of words, which SDM needs."""
        indexer = pt.IterDictIndexer(str(self.folder.absolute()), meta={"docno": 100, "text": 8192}, blocks=True)
        self.index = pt.IndexFactory.of(indexer.index(documents))

    def bm25(self, **options: Any) -> pt.Transformer:
        """Queries in, documents out."""
        return pt.terrier.Retriever(self.index, wmodel="BM25", **options)

    def second(self) -> pt.Transformer:
        """Another weighting model."""
        return pt.terrier.Retriever(self.index, wmodel="TF_IDF")

    scorer = second  # scores the documents that it is given

    def texts(self, collection: Collection) -> Any:
        """What has the texts."""
        return self.index


class PisaStage:
    """A first stage on PISA, whose interface the examples use, too."""

    name = "pisa"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def build(self, documents: Iterable[dict[str, str]]) -> None:
        """Indexes documents."""
        from pyterrier_pisa import PisaIndex

        self.index = PisaIndex(str(self.folder), stemmer="porter2")
        self.index.index(documents)

    def bm25(self, **options: Any) -> pt.Transformer:
        """Queries in, documents out."""
        return self.index.bm25(verbose=False, **options)

    def second(self) -> pt.Transformer:
        """Another weighting model."""
        return self.index.qld(verbose=False)

    def scorer(self) -> pt.Transformer:
        """Scores the documents that it is given, which PISA does not."""
        return pt.apply.doc_score(lambda row: 1 / (1 + row["rank"]))

    def texts(self, collection: Collection) -> Any:
        """What has the texts."""
        return collection


class IndexOfExamples:
    """Stands for ``pyterrier_pisa.PisaIndex`` in the examples: the same calls, on a Terrier index."""

    def __init__(self, folder: str, *, stemmer: str | None = None) -> None:
        self._index = pt.terrier.TerrierIndex(os.path.abspath(folder))

    def built(self) -> bool:
        """Whether the index is there."""
        return self._index.built()

    def index(self, documents: Iterable[dict[str, str]]) -> None:
        """Indexes documents; their names are long."""
        self._index.indexer(meta={"docno": 200}).index(documents)

    def bm25(self, *, num_results: int = 1000, verbose: bool = True) -> pt.Transformer:
        """Queries in, documents out."""
        return pt.rewrite.tokenise() >> self._index.bm25(num_results=num_results) >> pt.rewrite.reset()


@dataclass
class Setting:
    """What the checks share: the collection, the first stage, and what is made of them once."""

    collection: Collection
    stage: Any
    folder: Path
    queries: int

    @functools.cached_property
    def topics(self) -> pd.DataFrame:
        """The first queries."""
        return self.collection.topics.head(self.queries)

    @functools.cached_property
    def qrels(self) -> pd.DataFrame:
        """Their judgments."""
        return self.collection.qrels.merge(self.topics[["qid"]])

    @functools.cached_property
    def bm25(self) -> pt.Transformer:
        """The first stage."""
        return self.stage.bm25(num_results=100)

    @functools.cached_property
    def small(self) -> Collection:
        """The documents that are judged and a tenth of the others: encoding them takes less time."""
        judged = {*self.qrels["docno"]}
        texts = self.collection.documents.items()
        kept = {docno: text for n, (docno, text) in enumerate(texts) if docno in judged or n % 10 == 0}
        return Collection(kept, self.topics, self.collection.qrels)

    @functools.cached_property
    def graph(self) -> ptg.DocumentGraph:
        """The graph of the collection."""
        return ptg.DocumentGraph(self.folder / "graph").index(self.collection.get_corpus_iter(), verbose=False)

    @functools.cached_property
    def rerank(self) -> pt.Transformer:
        """Documents in, documents out, ranked by their best passage."""
        maxsim = ptg.GraphMaxSim(self.graph, verbose=False)
        return self.graph.passages() >> maxsim >> pt.text.max_passage()

    @functools.cached_property
    def windows(self) -> pt.Transformer:
        """Documents with texts in, their passages out, scored without an index of them."""
        windows = pt.text.sliding(text_attr="text", length=40, stride=20, prepend_attr=None)
        return windows >> ptg.CandidateGraph(verbose=False) >> ptg.GraphMaxSim(verbose=False)

    @functools.cached_property
    def texts(self) -> pt.Transformer:
        """Adds the texts that the index stores."""
        return pt.text.get_text(self.stage.texts(self.collection), ["text"])

    def terrier(self) -> None:
        """Skips a check that needs Terrier."""
        if self.stage.name != "terrier":
            raise Skipped("needs Terrier")

    def evaluate(self, pipeline: pt.Transformer, measure: Any, topics: pd.DataFrame | None = None) -> float:
        """The mean of a measure."""
        topics = self.topics if topics is None else topics
        found = pt.Experiment([pipeline], topics, self.collection.qrels, [measure], filter_by_qrels=True)
        return float(found[str(measure)].iloc[0])
