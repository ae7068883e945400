"""All ways to use the graph in retrieval, and their rivals, on one collection: see :mod:`experiments.transfer`."""

from __future__ import annotations

import argparse
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pyterrier as pt

import pyterrier_graph as ptg
from experiments.harness.collection import Collection, Record, joined
from experiments.harness.first_stage import bm25
from experiments.harness.judgments import relevant_passages
from pyterrier_graph.encoders.sentence_encoder import SentenceEncoder
from pyterrier_graph.encoders.stored_vectors import base_vectors
from pyterrier_graph.pair.dual_encoder import NETWORK
from pyterrier_graph.search.versions import ENCODED

WHOLE = ("cranfield", "vaswani")  # collections of abstracts, each of which is one passage
POOLED = ("cranfield", "cacm", "vaswani")
NO_LIMIT = 1_000_000
QUERY_TOKENS = 128  # nothing of a query is cut: CACM's have up to a hundred words
DEPTH = 1000
RERANKED, VALIDATED = 100, 50  # candidates of rerankers, of test and of validation queries
PAIRS, PAIR_TOKENS = 20, 128  # candidates of cross-encoders; tokens of query and passage

BM25, BM25_CONTEXT = "BM25", "BM25, context in the text"
DUAL, TITLE_IN_TEXT = "dual-encoder", "title in the text"
MEAN, MEAN_HOME = "GraphMean", "GraphMean, fitted at home"
MEAN_ELSEWHERE = "GraphMean, weights from elsewhere"
GNN_HOME, GNN_ELSEWHERE = "GNNEncoder, trained at home", "GNNEncoder, trained elsewhere"
HYBRID_CONTEXT = "Hybrid, BM25 with context"
HYBRID_TITLED = "Hybrid, BM25 with context and title in the text"  # what anyone can build
HYBRID_GNN = "Hybrid, BM25 with context and GNNEncoder"
HYBRID_MAXSIM, HYBRID_HGAT = (
    f"{HYBRID_CONTEXT}, @100 >> GraphMaxSim",
    f"{HYBRID_CONTEXT}, @100 >> HGAT",
)
CROSS_ENCODER, LGRE = f"{HYBRID_CONTEXT}, @20 >> CrossEncoder", f"{HYBRID_CONTEXT}, @20 >> LGRe"
HGAT = "BM25@100 >> HGAT"

logger = logging.getLogger(__name__)


class Corpus:
    """A collection, with what all its folds share; each part is made when it is needed, and kept in a folder.

    Args:
        name: Name of the collection on the command line.
        collection: The collection.
        output: Folder.
        options: Of the command line: see :func:`experiments.transfer.command_line`.
    """

    def __init__(
        self, name: str, collection: Collection, output: Path, options: argparse.Namespace
    ) -> None:
        self.name, self.collection, self.output = name, collection, output
        self.options = options
        self.vectors = output / "vectors"
        self.passage_words = NO_LIMIT if name in WHOLE else 120
        self.graph = collection.graph(output / "documents", passage_words=self.passage_words)

    @property
    def pooled(self) -> bool:
        """Whether the judgments are pooled, and name documents that are less or not relevant.

        CACM and Vaswani judge relevant documents only, all with the same grade: any order of the judged documents is
        right.
        """
        return self.name in POOLED and self.collection.all_queries.qrels["label"].nunique() > 1

    @property
    def family(self) -> str:
        """Collections with the same documents are never "elsewhere" for one another."""
        return self.name.partition("-")[0]

    @cached_property
    def encoder(self) -> SentenceEncoder:
        """The dual-encoder."""
        return SentenceEncoder(self._checkpoint, verbose=False, **self._lengths)

    @property
    def _checkpoint(self) -> str | Path:
        saved = Path(self.options.encoder) / NETWORK
        return saved if saved.exists() else self.options.encoder

    @property
    def _lengths(self) -> dict[str, Any]:
        longest = self.options.max_tokens
        return {"max_passage_tokens": longest, "max_query_tokens": min(QUERY_TOKENS, longest)}

    def bm25(self, name: str, path: Path, context: dict[str, str] | None = None) -> pt.Transformer:
        """BM25 over passages or, with a ``context`` by docno, over passages with their titles and that text."""

        def records() -> Iterator[Record]:
            for record in self.graph.get_corpus_iter():
                if context is None:
                    yield record | {"title": ""}
                else:
                    more = context.get(record["docno"], "")
                    yield record | {"text": f"{record['text']}\n{more}"}

        passages = Collection(f"{self.name}, {name}", records, {})
        return bm25(passages, path, self.options.first_stage)

    @cached_property
    def graph_index(self) -> ptg.GraphIndex:
        """All of it in one index, which has no answered queries yet."""
        index = ptg.GraphIndex(self.output / "index", encoder=self.encoder)
        if not index.built():
            self.vectors.mkdir(parents=True, exist_ok=True)
            # texts are not encoded twice
            shutil.copytree(self.vectors, index.path / ENCODED, dirs_exist_ok=True)
            index.index(self.collection.get_corpus_iter(), passage_words=self.passage_words)
        return index

    @cached_property
    def maxsim(self) -> ptg.GraphMaxSim:
        """GraphMaxSim over stored token vectors."""
        encoder = ptg.TokenEncoder(self._checkpoint, dtype="auto", **self._lengths)
        store = ptg.TokenStore(self.output / "tokens")
        if not store.built():
            store.build(self.graph, encoder)
        return ptg.GraphMaxSim(self.graph, encoder, tokens=store, verbose=False)


class Fold:
    """Training queries are in the query graph, tuning is on validation queries, and the test is on the others.

    Args:
        corpus: The collection.
        number: Which division of a collection's own queries; None where the collection divides them.
    """

    def __init__(self, corpus: Corpus, number: int | None) -> None:
        self.corpus, self.number, options = corpus, number, corpus.options
        self.output = corpus.output if number is None else corpus.output / f"fold-{number}"
        self.output.mkdir(parents=True, exist_ok=True)
        splits = corpus.collection.split(fold=number or 0, dev_queries=options.dev_queries)
        self.in_graph, self.dev = splits["train"].sample(options.train_queries), splits["dev"]
        self.test = splits["test"].sample(options.queries)
        # all training queries, in the graph or not
        self.train = joined([self.in_graph, *([splits["extra"]] if "extra" in splits else [])])
        self._pipelines: dict[tuple[str, int], pt.Transformer] = {}
        self._indexes = TemporaryDirectory(prefix="indexes-", dir=self.output)

    def forget(self, system: str) -> None:
        """Deletes the runs of a system, which is named as their files are, and the models if it is a GNN-encoder."""
        for file in (self.output / "runs").glob(f"{system}-[0-9]*.csv.gz"):
            file.unlink()
        if system.startswith("GNNEncoder"):
            shutil.rmtree(self.output / "models", ignore_errors=True)

    def pipeline(self, system: str, seed: int = 0) -> pt.Transformer:
        """A system that needs nothing from elsewhere: ``qid, query`` to passages with scores."""
        if (system, seed) not in self._pipelines:
            logger.info("%s: %s", self.output, system)
            self._pipelines[system, seed] = SYSTEMS[system](self, seed)
        return self._pipelines[system, seed]

    @cached_property
    def query_graph(self) -> ptg.QueryPassageGraph:
        """The training queries with their relevant passages."""
        graph = ptg.QueryPassageGraph(self.output / "queries")
        if not graph.built():
            qrels = relevant_passages(self.corpus.graph, self.in_graph.qrels)
            graph.build(self.in_graph.topics, self.corpus.graph, qrels=qrels)
        return graph

    def bm25_context(self) -> pt.Transformer:
        """Titles and the answered training queries stand in the text of a passage."""
        path = self.output / f"context.{self.corpus.options.first_stage}"
        shutil.rmtree(path, ignore_errors=True)
        answered = relevant_passages(self.corpus.graph, self.in_graph.qrels)
        answered = answered.merge(self.in_graph.topics, on="qid")
        texts = answered.groupby("docno")["query"].agg("\n".join).to_dict()
        return self.corpus.bm25("context", path, texts)

    def dual_encoder(self, *, titles: bool) -> pt.Transformer:
        """The dual-encoder over passages or, with ``titles``, over passages with their titles in front."""
        corpus = self.corpus
        vectors = base_vectors(corpus.vectors, corpus.graph, corpus.encoder, titles=titles)
        retriever = vectors.flex.np_retriever(num_results=DEPTH, drop_query_vec=True)
        return corpus.encoder.query_encoder() >> retriever

    def mean(self, **options: Any) -> ptg.GraphMean:
        """GraphMean, by default with its own weights."""
        return ptg.GraphMean(self.corpus.graph, **self._shared | options)

    def mean_like(self, source: Fold) -> pt.Transformer:
        """GraphMean with the weights that are fitted on another collection."""
        weights = source.mean().fit(*source.dev).weights
        logger.info("%s: weights from %s: %s", self.output, source.corpus.name, weights)
        return self.searched(self.mean(weights=weights))

    def gnn(self, seed: int) -> ptg.GNNEncoder:
        """A GNN-encoder trained on this collection; the one of the first fold is saved, for other collections."""
        path = self.output / "models" / f"gnn-{seed}"
        if path.exists():
            return ptg.GNNEncoder.load(path, graph=self.corpus.graph, **self._shared)
        training = ptg.GNNEncoderTraining(seed=seed, masked=self.corpus.options.masked)
        config = ptg.GNNEncoderConfig(seed=seed)
        gnn = ptg.GNNEncoder(self.corpus.graph, config=config, training=training, **self._shared)
        timed(gnn, *self.train, *self.dev)
        if not self.number:
            path.parent.mkdir(exist_ok=True)
            gnn.save(path)
        return gnn

    def gnn_like(self, source: Fold, seed: int) -> pt.Transformer:
        """The GNN-encoder of another collection, over this one."""
        source.gnn(seed)
        path = source.output / "models" / f"gnn-{seed}"
        gnn = ptg.GNNEncoder.load(path, graph=self.corpus.graph, **self._shared)
        return self.searched(gnn)

    def hgat(self, first: str, seed: int) -> pt.Transformer:
        """An HGAT with the token vectors of GraphMaxSim, trained behind a first stage."""
        start, stage = self.corpus.maxsim, self.pipeline(first)
        hgat = ptg.HGATReranker(
            self.corpus.graph,
            start.encoder,
            config=ptg.HGATConfig(seed=seed),
            tokens=start.tokens,
            training=ptg.HGATTraining(seed=seed, epochs=2),
            verbose=False,
        )
        train, dev = (
            (stage % depth)(queries.topics)
            for depth, queries in ((RERANKED, self.train), (VALIDATED, self.dev))
        )
        return stage % RERANKED >> timed(hgat, train, self.train.qrels, dev, self.dev.qrels)

    def text_reranker(self, kind: Any, seed: int) -> pt.Transformer:
        """A cross-encoder or LGRe behind the hybrid, trained there; both start at the same checkpoint."""
        stage = self.pipeline(HYBRID_CONTEXT) % PAIRS >> self.corpus.graph.text_loader()
        reranker = kind(
            self.corpus.options.cross_encoder,
            training=kind.TRAINING(seed=seed),
            max_tokens=min(PAIR_TOKENS, self.corpus.options.max_tokens),
            verbose=False,
        )
        train, dev = (stage(queries.topics) for queries in (self.train, self.dev))
        return stage >> timed(reranker, train, self.train.qrels, dev, self.dev.qrels)

    def graph_index(self) -> ptg.GraphIndex:
        """The collection's index, with the training queries of this fold."""
        qrels = relevant_passages(self.corpus.graph, self.in_graph.qrels)
        return self.corpus.graph_index.update([], answered=(self.in_graph.topics, qrels))

    def hybrid(self, lexical: str, dense: str = MEAN, seed: int = 0) -> ptg.Hybrid:
        """Two systems together."""
        return ptg.Hybrid(self.pipeline(lexical), self.pipeline(dense, seed), verbose=False)

    def fused(self, reranked: str, seed: int) -> ptg.Hybrid:
        """The hybrid and a reranking of its first results together."""
        return self.hybrid(HYBRID_CONTEXT, reranked, seed)

    def searched(self, model: Any) -> pt.Transformer:
        """A retriever in the index of a GraphMean or GNN-encoder."""
        folder = Path(self._indexes.name)
        path = folder / f"{len([*folder.iterdir()])}.flex"
        index = model.index(path)
        index.graph = None  # no texts are needed
        return index.retriever(DEPTH)

    @property
    def _shared(self) -> dict[str, Any]:
        shared: dict[str, Any] = {"encoder": self.corpus.encoder, "query_graph": self.query_graph}
        return shared | {"folder": self.corpus.vectors, "verbose": False}


def timed(model: Any, *queries: pd.DataFrame) -> Any:
    """Trains a model, and logs how long it took, and its measure before and after."""
    began = time.process_time()
    model.fit(*queries)
    measures = [entry for entry in model.training_log if model.training.measure in entry]
    logger.info("%s: %.0f s of CPU, %s", model, time.process_time() - began, measures)
    return model


SYSTEMS: dict[str, Callable[[Fold, int], pt.Transformer]] = {
    BM25: lambda fold, _: fold.corpus.bm25(
        "passages", fold.corpus.output / fold.corpus.options.first_stage
    ),
    BM25_CONTEXT: lambda fold, _: fold.bm25_context(),
    DUAL: lambda fold, _: fold.dual_encoder(titles=False),
    TITLE_IN_TEXT: lambda fold, _: fold.dual_encoder(titles=True),
    MEAN: lambda fold, _: fold.searched(fold.mean()),
    MEAN_HOME: lambda fold, _: fold.searched(fold.mean().fit(*fold.dev)),
    GNN_HOME: lambda fold, seed: fold.searched(fold.gnn(seed)),
    "Hybrid, BM25 and dual-encoder": lambda fold, _: fold.hybrid(BM25, DUAL),
    "Hybrid, BM25 with context and dual-encoder": lambda fold, _: fold.hybrid(BM25_CONTEXT, DUAL),
    HYBRID_TITLED: lambda fold, _: fold.hybrid(BM25_CONTEXT, TITLE_IN_TEXT),
    f"{HYBRID_TITLED}, and DocumentEvidence": lambda fold, _: (
        fold.pipeline(HYBRID_TITLED) >> ptg.DocumentEvidence()
    ),
    "Hybrid": lambda fold, _: fold.hybrid(BM25),
    "Hybrid, fitted at home": lambda fold, _: fold.hybrid(BM25).fit(*fold.dev),
    HYBRID_CONTEXT: lambda fold, _: fold.hybrid(BM25_CONTEXT),
    f"{HYBRID_CONTEXT}, and DocumentEvidence": lambda fold, _: (
        fold.pipeline(HYBRID_CONTEXT) >> ptg.DocumentEvidence()
    ),
    HYBRID_GNN: lambda fold, seed: fold.hybrid(BM25_CONTEXT, GNN_HOME, seed),
    "BM25@100 >> GraphMaxSim": lambda fold, _: fold.pipeline(BM25) % RERANKED >> fold.corpus.maxsim,
    HGAT: lambda fold, seed: fold.hgat(BM25, seed),
    HYBRID_MAXSIM: lambda fold, _: fold.pipeline(HYBRID_CONTEXT) % RERANKED >> fold.corpus.maxsim,
    HYBRID_HGAT: lambda fold, seed: fold.hgat(HYBRID_CONTEXT, seed),
    CROSS_ENCODER: lambda fold, seed: fold.text_reranker(ptg.CrossEncoderReranker, seed),
    LGRE: lambda fold, seed: fold.text_reranker(ptg.LGReReranker, seed),
    f"{HYBRID_MAXSIM}, fused": lambda fold, seed: fold.fused(HYBRID_MAXSIM, 0),
    f"{HYBRID_HGAT}, fused": lambda fold, seed: fold.fused(HYBRID_HGAT, seed),
    f"{CROSS_ENCODER}, fused": lambda fold, seed: fold.fused(CROSS_ENCODER, seed),
    f"{LGRE}, fused": lambda fold, seed: fold.fused(LGRE, seed),
    "GraphIndex": lambda fold, _: fold.graph_index().hybrid(DEPTH),
    "GraphIndex, BM25": lambda fold, _: fold.graph_index().bm25(DEPTH),
}
NAMES = (*SYSTEMS, MEAN_ELSEWHERE, GNN_ELSEWHERE)
# there is a run for each seed
TRAINED = {name for name in NAMES if any(kind in name for kind in ("GNN", "HGAT", "Cross", "LGRe"))}
