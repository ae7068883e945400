"""The systems on one division of a collection's queries."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pyterrier as pt
from pyterrier_dr import FlexIndex

import pyterrier_graph as ptg
from experiments.harness.collection import Queries, joined
from experiments.harness.judgments import relevant_passages
from experiments.left_out import names
from experiments.left_out.corpus import Corpus
from pyterrier_graph.search.fitting import SETTINGS

DEPTH = 1000
RERANKED, VALIDATED = (
    100,
    50,
)  # candidates of rerankers, and those on which validation queries measure them
PAIRS, PAIR_TOKENS = (
    20,
    128,
)  # candidates of cross-encoders, and tokens of query and passage together

logger = logging.getLogger(__name__)
Weights = Mapping[str, float]


class Fold:
    """Training queries are in the query graph, tuning is on validation queries, and the test is on the others.

    Args:
        corpus: The collection.
        number: Which division of a collection's own queries; None where the collection divides them.
        train_queries: Training queries at most.
        dev_queries: Validation queries at most.
        test_queries: Test queries at most.
    """

    def __init__(
        self,
        corpus: Corpus,
        number: int | None,
        *,
        train_queries: int | None,
        dev_queries: int,
        test_queries: int | None,
    ) -> None:
        self.corpus, self.number = corpus, number
        self.output = corpus.output if number is None else corpus.output / f"fold-{number}"
        self.output.mkdir(parents=True, exist_ok=True)
        splits = corpus.collection.split(fold=number or 0, dev_queries=dev_queries)
        self.in_graph, self.dev = splits["train"].sample(train_queries), splits["dev"]
        self.test = splits["test"].sample(test_queries)
        # all training queries, in the graph or not
        self.train = joined(
            [self.in_graph, splits["extra"]] if "extra" in splits else [self.in_graph]
        )
        self._pipelines: dict[tuple[str, int], pt.Transformer] = {}
        self._hgats: dict[tuple[int, int, str], ptg.HGATReranker] = {}
        self._indexes = TemporaryDirectory(prefix="indexes-", dir=self.output)

    @cached_property
    def query_graph(self) -> ptg.QueryPassageGraph:
        """The training queries with their relevant passages."""
        graph = ptg.QueryPassageGraph(self.output / "queries")
        if not graph.built():
            qrels = relevant_passages(self.corpus.graph, self.in_graph.qrels)
            graph.build(self.in_graph.topics, self.corpus.graph, qrels=qrels)
        return graph

    def pipeline(self, system: str, seed: int = 0) -> pt.Transformer:
        """A system that needs nothing from elsewhere: ``qid, query`` to passages with scores."""
        if (system, seed) not in self._pipelines:
            logger.info("%s: %s", self.output, system)
            self._pipelines[system, seed] = self._made(system, seed)
        return self._pipelines[system, seed]

    def _made(self, system: str, seed: int) -> pt.Transformer:
        if system in names.FUSED:
            parts = self.pipeline(names.HYBRID_CONTEXT), self.pipeline(names.FUSED[system], seed)
            return ptg.Hybrid(*parts, verbose=False)
        if system == names.GNN_HOME:
            return self._searched(self.gnn(seed))
        if system == names.GNN_TUNED:
            return self._searched(self.gnn(seed).tune(*self.dev))
        if system == names.HYBRID_GNN:
            parts = self.pipeline(names.BM25_CONTEXT), self.pipeline(names.GNN_TUNED, seed)
            return ptg.Hybrid(*parts, verbose=False)
        if system == names.GNN_PSEUDO:
            return self._titles_alone(self._searched(self._pseudo_gnn(seed)))
        if system in (names.HGAT, names.HYBRID_HGAT, names.HYBRID_MATCHES, names.HGAT_PSEUDO):
            pseudo = system == names.HGAT_PSEUDO
            hybrid = names.HYBRID_UNANSWERED if pseudo else names.HYBRID_CONTEXT
            epochs = 2 if system in (names.HGAT, names.HYBRID_HGAT) else 0
            hgat = self.hgat(
                seed, epochs, hybrid, *(self.pseudo if pseudo else (self.train, self.dev))
            )
            return self.pipeline(names.BM25 if system == names.HGAT else hybrid) % RERANKED >> hgat
        if system in (names.CROSS_ENCODER, names.LGRE):
            return self._text_reranker(
                ptg.LGReReranker if system == names.LGRE else ptg.CrossEncoderReranker, seed
            )
        return self._makers[system]()

    @cached_property
    def _makers(self) -> dict[str, Callable[[], pt.Transformer]]:
        return {
            names.BM25: lambda: self.corpus.bm25,
            names.BM25_CONTEXT: self._bm25_context,
            names.DUAL: lambda: self._retriever(self.corpus.untitled_index),
            names.TITLE_IN_TEXT: lambda: self._retriever(self.corpus.titled_index),
            names.LATE: lambda: (
                self._retriever(self.corpus.late_index)
                >> pt.apply.generic(
                    lambda run: run.assign(docno=run["docno"].str.removesuffix("."))
                )
            ),
            names.MEAN: lambda: self._searched(self.mean()),
            names.MEAN_FIXED: lambda: self._searched(self.mean()),
            names.MEAN_HOME: lambda: self._searched(self.mean().fit(*self.dev)),
            names.MAXSIM: lambda: self.corpus.bm25 % RERANKED >> self.corpus.maxsim,
            names.HYBRID_MAXSIM: lambda: (
                self.pipeline(names.HYBRID_CONTEXT) % RERANKED >> self.corpus.maxsim
            ),
            names.MAXSIM_UNANSWERED: lambda: (
                self.pipeline(names.HYBRID_UNANSWERED) % RERANKED >> self.corpus.maxsim
            ),
            names.HYBRID: partial(self._hybrid, names.BM25),
            names.HYBRID_CONTEXT: partial(self._hybrid, names.BM25_CONTEXT),
            names.HYBRID_HOME: lambda: self._hybrid(names.BM25).fit(*self.dev),
            names.HYBRID_PLAIN: partial(self._hybrid, names.BM25, names.DUAL),
            names.HYBRID_UNTITLED: partial(self._hybrid, names.BM25_CONTEXT, names.DUAL),
            names.HYBRID_TITLED: partial(self._hybrid, names.BM25_CONTEXT, names.TITLE_IN_TEXT),
            names.HYBRID_LATE: partial(self._hybrid, names.BM25_CONTEXT, names.LATE),
            names.HYBRID_EVIDENCE: lambda: (
                self.pipeline(names.HYBRID_CONTEXT) >> ptg.DocumentEvidence()
            ),
            names.TITLED_EVIDENCE: lambda: (
                self.pipeline(names.HYBRID_TITLED) >> ptg.DocumentEvidence()
            ),
            names.TITLED_HOME: self._titled_home,
            names.HYBRID_UNANSWERED: lambda: self._titles_alone(
                self._searched(self.mean(query_graph=None))
            ),
            names.TITLED_UNANSWERED: lambda: self._titles_alone(self.pipeline(names.TITLE_IN_TEXT)),
            names.LATE_UNANSWERED: lambda: self._titles_alone(self.pipeline(names.LATE)),
            names.HYBRID_FIELD: lambda: self._titles_alone(
                self._searched(self.mean(query_graph=None)), 3
            ),
            names.INDEX: lambda: self._graph_index().hybrid(DEPTH),
            names.INDEX_DEFAULT: self._default_index,
            names.INDEX_BM25: lambda: self._graph_index().bm25(DEPTH),
        }

    def fixed(self, weights: Weights) -> pt.Transformer:
        """GraphMean with given weights."""
        return self._searched(self.mean(weights=weights))

    def transferred(self, model: Path) -> pt.Transformer:
        """A saved GNN-encoder, over this collection."""
        return self._searched(ptg.GNNEncoder.load(model, graph=self.corpus.graph, **self._shared()))

    def mean(self, **options: Any) -> ptg.GraphMean:
        """GraphMean, by default with its own weights."""
        return ptg.GraphMean(self.corpus.graph, **self._shared() | options)

    def gnn(self, seed: int) -> ptg.GNNEncoder:
        """A GNN-encoder trained on this collection; that of the first fold is saved, for other collections."""
        path = self.model_path(seed)
        if path.exists():
            return ptg.GNNEncoder.load(path, graph=self.corpus.graph, **self._shared())
        gnn = self._untrained(ptg.GNNEncoderTraining(seed=seed, masked=self.corpus.masked))
        timed(gnn, *self.train, *self.dev)
        if not self.number:
            path.parent.mkdir(exist_ok=True)
            gnn.save(path)
        return gnn

    def _untrained(self, training: ptg.GNNEncoderTraining, **changes: Any) -> ptg.GNNEncoder:
        config = ptg.GNNEncoderConfig(seed=training.seed)
        options: dict[str, Any] = (
            {"training": training, "config": config} | self._shared() | changes
        )
        return ptg.GNNEncoder(self.corpus.graph, **options)

    def hgat(
        self, seed: int, epochs: int, hybrid: str, train: Queries, dev: Queries
    ) -> ptg.HGATReranker:
        """An HGAT with the token vectors of GraphMaxSim, trained behind a hybrid; it reranks BM25 as well."""
        if (key := (seed, epochs, hybrid)) not in self._hgats:
            start, training = self.corpus.maxsim, ptg.HGATTraining(seed=seed, epochs=epochs)
            shared: dict[str, Any] = {
                "tokens": start.tokens,
                "training": training,
                "verbose": False,
            }
            hgat = ptg.HGATReranker(
                self.corpus.graph, start.encoder, config=ptg.HGATConfig(seed=seed), **shared
            )
            first = self.pipeline(hybrid)
            self._hgats[key] = fitted(hgat, first % RERANKED, train, first % VALIDATED, dev)
        return self._hgats[key]

    @cached_property
    def pseudo(self) -> tuple[Queries, Queries]:
        """Pseudo queries for training and validation. Models read titles, so queries are sentences."""
        topics, qrels = self.corpus.graph.pseudo_queries("sentence", count=300)
        dev = Queries(topics, qrels).sample(len(topics) // 5)
        return Queries(topics, qrels).without(dev), dev

    def _pseudo_gnn(self, seed: int) -> ptg.GNNEncoder:
        """A GNN-encoder trained on pseudo queries: other queries' passages are negatives, since a source is none."""
        gnn = self._untrained(ptg.GNNEncoderTraining(seed=seed, negatives=0), query_graph=None)
        return timed(gnn, *self.pseudo[0], *self.pseudo[1])

    def _text_reranker(self, kind: Any, seed: int) -> pt.Transformer:
        """A cross-encoder or LGRe behind the hybrid, trained there; both start at the same checkpoint."""
        candidates = self.pipeline(names.HYBRID_CONTEXT) % PAIRS >> self.corpus.graph.text_loader()
        shared = {"max_tokens": min(PAIR_TOKENS, self.corpus.max_tokens), "verbose": False}
        reranker = kind(self.corpus.cross_encoder, training=kind.TRAINING(seed=seed), **shared)
        return candidates >> fitted(reranker, candidates, self.train, candidates, self.dev)

    def model_path(self, seed: int) -> Path:
        """The folder of the GNN-encoder."""
        return self.output / "models" / f"gnn-{seed}"

    def _shared(self) -> dict[str, Any]:
        corpus = self.corpus
        return {
            "encoder": corpus.encoder,
            "query_graph": self.query_graph,
            "folder": corpus.vectors,
            "verbose": False,
        }

    def _searched(self, model: Any) -> pt.Transformer:
        path = Path(self._indexes.name) / f"{len([*Path(self._indexes.name).iterdir()])}.flex"
        index = model.index(path)
        index.graph = None  # no texts are needed
        return index.retriever(DEPTH)

    def _retriever(self, index: FlexIndex) -> pt.Transformer:
        return self.corpus.encoder.query_encoder() >> index.np_retriever(
            num_results=DEPTH, drop_query_vec=True
        )

    def _bm25_context(self) -> pt.Transformer:
        """Titles and the answered training queries stand in the text of a passage."""
        path = self.output / f"context.{self.corpus.engine}"
        shutil.rmtree(path, ignore_errors=True)
        answered = relevant_passages(self.corpus.graph, self.in_graph.qrels).merge(
            self.in_graph.topics, on="qid"
        )
        texts = answered.groupby("docno")["query"].agg("\n".join).to_dict()
        return self.corpus.bm25_over("context", path, texts)

    def _hybrid(self, lexical: str, dense: str = names.MEAN) -> ptg.Hybrid:
        return ptg.Hybrid(self.pipeline(lexical), self.pipeline(dense), verbose=False)

    def _titled_home(self) -> pt.Transformer:
        """The hybrid that anyone can build, fitted on the validation queries."""
        hybrid = self._hybrid(names.BM25_CONTEXT, names.TITLE_IN_TEXT).fit(*self.dev)
        evidence = ptg.DocumentEvidence(0.0).fit(hybrid(self.dev.topics), self.dev.qrels)
        logger.info("%s: rival %r, %r", self.output, hybrid.alpha, evidence)
        return hybrid >> evidence

    def _titles_alone(self, dense: pt.Transformer, titles: int = 1) -> ptg.Hybrid:
        """A hybrid with BM25 over passages with their titles, for which no queries have been answered."""
        return ptg.Hybrid(self.corpus.titled_bm25(titles), dense, verbose=False)

    def _graph_index(self) -> ptg.GraphIndex:
        """The collection's index, with the training queries of this fold."""
        qrels = relevant_passages(self.corpus.graph, self.in_graph.qrels)
        return self.corpus.graph_index.update([], answered=(self.in_graph.topics, qrels))

    def _default_index(self) -> pt.Transformer:
        """The same index with the default numbers in place of those that the training queries support."""
        index = self._graph_index()
        logger.info("%s: numbers %s", self.output, index.meta["settings"])
        index.meta["settings"] = dict(SETTINGS)
        return index.hybrid(DEPTH)


def fitted(
    model: Any, first: pt.Transformer, train: Queries, first_dev: pt.Transformer, dev: Queries
) -> Any:
    """Trains a reranker behind a first stage, which is not fitted itself. A sentence's source is not a candidate."""
    runs = []
    for stage, queries in ((first, train), (first_dev, dev)):
        run = stage.transform(queries.topics[["qid", "query"]])
        sources = queries.topics.set_index("qid").get("source", pd.Series(dtype=object))
        runs.append(run[run["docno"] != run["qid"].map(sources)])
    return timed(model, runs[0], train.qrels, runs[1], dev.qrels)


def timed(model: Any, *queries: pd.DataFrame) -> Any:
    """Trains a model, and logs how long it took, and its measure before and after."""
    began = time.process_time()
    model.fit(*queries)
    measures = [entry for entry in model.training_log if model.training.measure in entry]
    logger.info("%s: %.0f s of CPU, %s", model, time.process_time() - began, measures)
    return model
