"""The package behind a lexical first stage: operators, rewriting, texts, learning, tuning, experiments, examples.

Without settings, on PISA and a small collection. On Terrier, for those who have its jars (or a network, from which
PyTerrier loads them)::

    VASWANI=FOLDER python -m pytest -m "" -n 0 -v tests/test_terrier.py

The folder contains the collection in TREC's format, ``doc-text.trec``, ``query-text.trec`` and ``qrels``, such as
``tests/fixtures/vaswani_npl`` in PyTerrier's repository.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
from ir_measures import AP
from sklearn.ensemble import RandomForestRegressor

import pyterrier_graph as ptg

pytestmark = pytest.mark.slow

FOLDER = os.environ.get("VASWANI")
TERRIER = FOLDER is not None
VASWANI = "irds:vaswani"
BM25_AP, TOLERANCE = 0.2965, 0.001  # Terrier 5 with its defaults on Vaswani
DOCUMENTS = 10  # of each query that are reranked
QUERIES = 10 if TERRIER else 3  # of the collection, except for BM25's effectiveness

needs_terrier = pytest.mark.skipif(not TERRIER, reason="needs Terrier")


# --- collections and first stages


@dataclass
class Collection:
    """A collection with the methods of PyTerrier's datasets."""

    documents: dict[str, str]
    topics: pd.DataFrame
    qrels: pd.DataFrame

    @classmethod
    def read(cls, folder: Path) -> Collection:
        """Reads a folder in TREC's format."""
        documents, queries = (
            re.findall(pattern, (folder / name).read_text("utf-8"), re.DOTALL)
            for name, pattern in {
                "doc-text.trec": r"<DOC>\s*<DOCNO>\s*(\S+?)\s*</DOCNO>(.*?)</DOC>",
                "query-text.trec": r"<num>\s*(\S+?)\s*</num>\s*<title>(.*?)</title>",
            }.items()
        )
        topics = pd.DataFrame(
            [{"qid": qid, "query": " ".join(text.split()).lower()} for qid, text in queries]
        )
        texts = {docno: " ".join(text.split()) for docno, text in documents}
        return cls(texts, topics, pt.io.read_qrels(str(folder / "qrels")))

    @classmethod
    def miniature(cls) -> Collection:
        subjects = ["penguins", "camels", "heaters"]
        sentences = [
            "live on {} all day",
            "store much of what {} need",
            "are made of {} and water",
            "{} like it warm",
        ]
        texts = [
            " ".join([sentence.format(subject)] * 8)
            for subject in subjects
            for sentence in sentences
        ]
        topics = pd.DataFrame(
            [{"qid": f"{n}", "query": f"what do {subjects[n]} need"} for n in range(3)]
        )
        qrels = pd.DataFrame(
            [{"qid": f"{n}", "docno": f"{4 * n + 1}", "label": 1} for n in range(3)]
        )
        return cls({str(number): text for number, text in enumerate(texts)}, topics, qrels)

    def get_corpus_iter(self, verbose: bool = False) -> Iterator[dict[str, str]]:
        return ({"docno": docno, "text": text} for docno, text in self.documents.items())

    def get_topics(self, variant: str | None = None) -> pd.DataFrame:
        return self.topics

    def get_qrels(self, variant: str | None = None) -> pd.DataFrame:
        return self.qrels

    def text_loader(self, fields: Any = "*", *, verbose: bool = False) -> pt.Transformer:
        return pt.apply.generic(lambda found: found.assign(text=found["docno"].map(self.documents)))


class TerrierStage:
    def __init__(self, folder: Path, documents: Iterable[dict[str, str]]) -> None:
        self.folder = folder
        # the positions of words are for SDM
        indexer = pt.IterDictIndexer(
            str(folder.absolute()), meta={"docno": 100, "text": 8192}, blocks=True
        )
        self.index = pt.IndexFactory.of(indexer.index(documents))

    def bm25(self, **options: Any) -> pt.Transformer:
        return pt.terrier.Retriever(self.index, wmodel="BM25", **options)

    def second(self) -> pt.Transformer:
        return pt.terrier.Retriever(self.index, wmodel="TF_IDF")

    scorer = second  # scores the documents that it is given

    def texts(self, collection: Collection) -> Any:
        return self.index


class PisaStage:
    def __init__(self, folder: Path, documents: Iterable[dict[str, str]]) -> None:
        self.folder = folder
        self.index = pytest.importorskip("pyterrier_pisa").PisaIndex(str(folder), stemmer="porter2")
        self.index.index(documents)

    def bm25(self, **options: Any) -> pt.Transformer:
        return self.index.bm25(verbose=False, **options)

    def second(self) -> pt.Transformer:
        return self.index.qld(verbose=False)

    def scorer(self) -> pt.Transformer:
        return pt.apply.doc_score(lambda row: 1 / (1 + row["rank"]))

    def texts(self, collection: Collection) -> Any:
        return collection


class Setting:
    """The collection, its first stage, and what all tests make of them once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.collection = Collection.read(Path(FOLDER)) if FOLDER else Collection.miniature()
        self.stage: Any = self.stage_of("index", self.collection.get_corpus_iter())
        self.topics = self.collection.topics.head(QUERIES)
        self.qrels = self.collection.qrels.merge(self.topics[["qid"]])
        self.bm25 = self.stage.bm25(num_results=100)
        self.graph = ptg.DocumentGraph(folder / "graph").index(self.collection.get_corpus_iter())
        # documents in, documents out, ranked by their best passage
        self.rerank = (
            self.graph.passages()
            >> ptg.GraphMaxSim(self.graph, verbose=False)
            >> pt.text.max_passage()
        )
        # documents with texts in, their passages out, scored without an index of them
        windows = pt.text.sliding(text_attr="text", length=40, stride=20, prepend_attr=None)
        self.windows = (
            windows >> ptg.CandidateGraph(verbose=False) >> ptg.GraphMaxSim(verbose=False)
        )
        self.texts = pt.text.get_text(self.stage.texts(self.collection), ["text"])

    def stage_of(self, name: str, documents: Iterable[dict[str, str]]) -> Any:
        return (TerrierStage if TERRIER else PisaStage)(self.folder / name, documents)

    @functools.cached_property
    def small(self) -> Collection:
        """The documents that are judged and a tenth of the others: encoding them takes less time."""
        judged = {*self.qrels["docno"]}
        texts = self.collection.documents.items()
        kept = {
            docno: text for n, (docno, text) in enumerate(texts) if docno in judged or n % 10 == 0
        }
        return Collection(kept, self.topics, self.collection.qrels)

    def evaluate(self, pipeline: pt.Transformer, measure: Any, topics: pd.DataFrame) -> float:
        found = pt.Experiment(
            [pipeline], topics, self.collection.qrels, [measure], filter_by_qrels=True
        )
        return float(found[str(measure)].iloc[0])


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return Setting(tmp_path_factory.mktemp("lexical"))


def is_ranking(found: pd.DataFrame, topics: pd.DataFrame) -> None:
    """Each query has documents with finite scores and ranks, and its own text."""
    assert {"qid", "query", "docno", "score", "rank"} <= {*found.columns}
    assert {*found["qid"]} == {*topics["qid"]}
    assert np.isfinite(found["score"]).all()
    assert not found.duplicated(["qid", "docno"]).any()
    queries = found.drop_duplicates("qid").set_index("qid")["query"]
    assert queries.to_dict() == topics.set_index("qid")["query"].to_dict()


# --- pipelines


@needs_terrier
def test_effectiveness_of_bm25(at: Setting) -> None:
    value = at.evaluate(at.stage.bm25(num_results=1000), AP, at.collection.topics)
    assert value == pytest.approx(BM25_AP, abs=TOLERANCE)


def test_hybrid_with_a_dense_index(at: Setting) -> None:
    graph = ptg.DocumentGraph(at.folder / "small.graph").index(at.small.get_corpus_iter())
    index = ptg.GraphMean(graph, weights={"order": 0.1}, verbose=False).index(
        at.folder / "documents.flex"
    )
    is_ranking(
        ptg.Hybrid(at.bm25, index.retriever() >> pt.text.max_passage())(at.topics), at.topics
    )


OPERATORS: dict[str, Callable[[Setting, Any, Any], Any]] = {
    ">>": lambda at, first, _: first >> (at.rerank % 5),
    "%": lambda _, first, graph: graph % 3,
    "+": lambda _, first, graph: first + graph,
    "*": lambda _, first, graph: 0.5 * graph + first * 2.0,
    "|": lambda _, first, graph: first | graph,
    "&": lambda _, first, graph: first & graph,
    "^": lambda at, first, graph: (graph % 3) ^ at.stage.second() % DOCUMENTS,
    "**": lambda at, first, graph: first >> (at.rerank ** at.stage.scorer()),
}


@pytest.mark.parametrize("sign", OPERATORS)
def test_operators(at: Setting, sign: str) -> None:
    first = at.bm25 % DOCUMENTS
    found = OPERATORS[sign](at, first, first >> at.rerank)(at.topics)
    assert {*found["qid"]} == {*at.topics["qid"]} and ("features" in found) == (sign == "**")
    assert "score" not in found or np.isfinite(found["score"]).all()


REWRITINGS: dict[str, Callable[[Setting], pt.Transformer]] = {
    "another word": lambda at: pt.apply.query(lambda row: f"{row['query']} system"),
    "RM3": lambda at: at.bm25 >> pt.rewrite.RM3(at.stage.index),
    "Bo1": lambda at: at.bm25 >> pt.rewrite.Bo1QueryExpansion(at.stage.index),
    "SDM": lambda at: pt.rewrite.SDM(),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=needs_terrier if name.isalnum() else ()) for name in REWRITINGS],
)
def test_rewriting(at: Setting, name: str) -> None:
    """The results of a rewritten query are reranked with the original query."""
    pipeline = REWRITINGS[name](at) >> at.bm25
    is_ranking((pipeline >> pt.rewrite.reset())(at.topics), at.topics)
    is_ranking((pipeline % DOCUMENTS >> pt.rewrite.reset() >> at.rerank)(at.topics), at.topics)


def test_texts(at: Setting) -> None:
    first = at.bm25 % DOCUMENTS
    passages: Any = (first >> at.texts >> at.windows)(at.topics)
    assert passages["docno"].str.contains("%p").all()
    is_ranking((first >> at.texts >> at.windows >> pt.text.max_passage())(at.topics), at.topics)
    found: Any = (first >> at.graph.passages() >> pt.text.get_text(at.graph, ["text"]))(at.topics)
    assert found["text"].str.len().gt(0).all()
    found = (at.bm25 % 3 >> at.texts >> pt.text.snippets(at.windows, num_psgs=1))(at.topics.head(2))
    assert found["summary"].str.len().gt(0).all()
    assert all(
        summary in text for summary, text in zip(found["summary"], found["text"], strict=True)
    )


@pytest.mark.parametrize("terrier", [False, pytest.param(True, marks=needs_terrier)])
def test_learning_to_rank(at: Setting, terrier: bool) -> None:
    features = at.rerank ** at.stage.scorer()
    if terrier:
        own = pt.terrier.FeaturesRetriever(
            at.stage.index, ["WMODEL:TF_IDF", "WMODEL:DPH"], wmodel="BM25"
        )
        assert {len(row) for row in (own % DOCUMENTS)(at.topics)["features"]} == {2}
        features = features ** pt.terrier.Retriever(at.stage.index, wmodel="DPH")
    forest = RandomForestRegressor(n_estimators=10, random_state=0)
    pipeline: Any = at.bm25 % DOCUMENTS >> features >> pt.ltr.apply_learned_model(forest)
    pipeline.fit(at.topics, at.qrels)
    is_ranking(pipeline(at.topics), at.topics)


# --- examples
