"""Search in HTML documentation: lexical and dense retrieval, each with and without the graph of its pages.

    python -m experiments.documentation_search html /usr/share/doc/python3.11/html --output OUTPUT
    python -m experiments.documentation_search html /usr/share/doc/postgresql-doc-15/html --output OUTPUT

The folders are those of Debian's python3.11-doc and postgresql-doc-15. A query is an entry of the documentation's
index that no page contains, see :mod:`experiments.collections.html_documentation`. Pages are ranked, by their best
passages. Fixed weights, and the numbers of what is called fitted, are tuned on validation queries, which look for other
pages than the test queries. DocumentEvidence is left out: what it adds to the passages of a page does not change the
order of pages by their best passages.
"""

from __future__ import annotations

import argparse
import logging
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
from ir_measures import RR, R, nDCG

import pyterrier_graph as ptg
from experiments.harness.collection import Collection
from experiments.harness.command import add_options, parse, parser
from experiments.harness.first_stage import bm25
from experiments.harness.results import Results, claim
from pyterrier_graph.encoders.names import DEFAULT
from pyterrier_graph.encoders.stored_vectors import base_vectors
from pyterrier_graph.search.versions import ENCODED

MEASURES = [nDCG @ 10, RR @ 10, R @ 20]
SYSTEMS = {
    "bm25-titled": "BM25 over passages, titles in the text",
    "dual-encoder": "dual-encoder",
    "titled": "dual-encoder, titles in the text",
    "graph-mean": "GraphMean",
    "graph-mean-fixed": "GraphMean, fixed weights",
    "hybrid-plain": "Hybrid: BM25, dual-encoder, fitted",
    "hybrid-titled": "Hybrid: BM25, dual-encoder, titles in the text, fitted",
    "hybrid": "Hybrid: BM25, GraphMean, fitted",
    "rival": "Hybrid: BM25 over passages, dual-encoder, titles in both texts",
    "rival-fitted": "Hybrid: BM25 over passages, dual-encoder, titles in both texts, fitted",
    "graph-index": "GraphIndex",
    "graph-index-fitted": "GraphIndex, fitted",
    "graph-maxsim": "BM25 >> GraphMaxSim",
}
WEIGHTS: dict[str, Any] = {
    "dual-encoder": {},
    "graph-mean": None,
    "graph-mean-fixed": {"title": 1.0},
}
BM25 = "BM25"
KEPT = 100
QUERY_TOKENS = 32
DIMENSIONS, SAMPLE = 128, 400  # of token vectors; passages that their projection is made from

logger = logging.getLogger(__name__)


def command_line() -> argparse.ArgumentParser:
    """The command line."""
    command = parser(__doc__, SYSTEMS, [*SYSTEMS])
    add_options(
        command,
        "systems",
        encoder=(DEFAULT, "of passages and of tokens"),
        documents=(20, "documents whose passages are reranked"),
        pages=(
            int,
            "pages that are searched: those that queries look for, and others at random (all)",
        ),
        max_tokens=(160, "tokens of a passage"),
        dtype=("auto", "precision of encoding", ["auto", "float32", "bfloat16"]),
    )
    return command


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Runs the comparison, and returns its table."""
    return run(*parse(command_line(), arguments=arguments))


def run(collection: Collection, options: argparse.Namespace) -> pd.DataFrame:
    """Compares the systems.

    Args:
        collection: What is searched; its documents are structured, and documents are judged.
        options: See :func:`command_line`.

    Returns:
        The table.
    """
    claim(options.output, options, ("systems",))
    if options.pages:
        collection = sampled(collection, options.pages)
    bench = Bench(collection, options)
    results = Results(options.output, bench.test, MEASURES)
    results.add(BM25, lambda: bench.best(bench.bm25))
    for name in options.systems:
        logger.info("%s", SYSTEMS[name])
        results.add(SYSTEMS[name], lambda name=name: bench.best(bench.system(name)))  # type: ignore[misc]
    return results.table()


def sampled(collection: Collection, pages: int) -> Collection:
    """A collection with the judged pages, and so many others that there are ``pages``."""
    records, judged = [*collection.documents()], {*collection.all_queries.qrels["docno"]}
    others = [record["docno"] for record in records if record["docno"] not in judged]
    kept = judged.union(np.random.default_rng(0).permutation(others)[: max(0, pages - len(judged))])
    return replace(
        collection, documents=lambda: [record for record in records if record["docno"] in kept]
    )


class Bench:
    """The data that all systems share: queries, first stage, graph, encoders.

    Args:
        collection: What is searched.
        options: See :func:`command_line`.
    """

    def __init__(self, collection: Collection, options: argparse.Namespace) -> None:
        self.options, self.output, self.collection = options, options.output, collection
        self.graph = collection.graph(self.output / "graph")
        self.vectors = self.graph.vectors_folder = (
            self.output / "index" / ENCODED
        )  # texts are not encoded twice
        splits = collection.split(dev_queries=options.dev_queries)
        self.dev, self.test = splits["dev"], splits["test"].sample(options.queries)
        sizes = ", ".join(f"{name} {len(part.topics)}" for name, part in splits.items())
        logger.info("queries: %s; graph: %s", sizes, self.graph.summary())
        self.bm25 = bm25(collection, self.output / options.first_stage, options.first_stage)

    @property
    def _lengths(self) -> dict[str, Any]:
        return {"max_passage_tokens": self.options.max_tokens, "max_query_tokens": QUERY_TOKENS}

    @cached_property
    def encoder(self) -> ptg.DualEncoder:
        """The dual-encoder."""
        options = self.options
        return ptg.DualEncoder(options.encoder, **self._lengths, dtype=options.dtype)

    @cached_property
    def token_encoder(self) -> ptg.TokenEncoder:
        """The same encoder for tokens, with the vectors' length that late-interaction models have."""
        sample = np.random.default_rng(0).permutation(self.graph.passage_nodes)[:SAMPLE]
        options = self.options
        made = ptg.TokenEncoder(options.encoder, **self._lengths, dtype=options.dtype)
        return made.reduced(self.graph.texts(np.sort(sample)), DIMENSIONS)

    def best(self, system: pt.Transformer) -> pd.DataFrame:
        """The ranking of the test queries by a system."""
        found = system.transform(self.test.topics)
        return found[found["rank"] < KEPT]

    def system(self, name: str) -> pt.Transformer:
        """A system, tuned on the validation queries; it ranks documents."""
        if name.startswith("hybrid"):
            other = {
                "hybrid-plain": "dual-encoder",
                "hybrid-titled": "titled",
                "hybrid": "graph-mean",
            }[name]
            return ptg.Hybrid(self.bm25, self.system(other)).fit(*self.dev)
        if name.startswith("rival"):
            rival = ptg.Hybrid(self._index.bm25(), self._retriever("titled"))
            return (
                rival.fit(*self.dev) if name == "rival-fitted" else rival
            ) >> pt.text.max_passage()
        if name == "bm25-titled":
            return self._index.bm25(per="document")
        if name == "graph-index":
            return self._index.hybrid(per="document")
        if name == "graph-index-fitted":
            copied = shutil.copytree(self._index.path, self.output / name, dirs_exist_ok=True)
            index = ptg.GraphIndex(copied, encoder=self.encoder).fit(*self.dev)
            logger.info("%s", index.meta["settings"])
            return index.hybrid(per="document")
        if name == "graph-maxsim":
            return self._reranker()
        return self._retriever(name) >> pt.text.max_passage()

    @cached_property
    def _index(self) -> ptg.GraphIndex:
        """All of the default in one index."""
        index = ptg.GraphIndex(self.output / "index", encoder=self.encoder)
        if not index.built():
            index.index(self.collection.get_corpus_iter())
        return index

    def _retriever(self, name: str) -> pt.Transformer:
        if name == "titled":
            index = base_vectors(self.vectors, self.graph, self.encoder, titles=True).flex
            return self.encoder.query_encoder() >> index.np_retriever(
                num_results=1000, drop_query_vec=True
            )
        path = self.output / f"{name}.flex"
        shutil.rmtree(path, ignore_errors=True)
        mean = ptg.GraphMean(self.graph, self.encoder, WEIGHTS[name])
        if name == "graph-mean-fixed":
            mean.fit(*self.dev)
        logger.info("%r", mean)
        return mean.index(path).retriever(num_results=1000)

    def _reranker(self) -> pt.Transformer:
        tokens = ptg.TokenStore(self.output / "graph-maxsim.tokens")
        if not tokens.built():
            tokens.build(self.graph, self.token_encoder)
        reranker = ptg.GraphMaxSim(self.graph, self.token_encoder, tokens=tokens)
        first = self.bm25 % self.options.documents >> self.graph.passages()
        (first >> reranker).fit(*self.dev)
        logger.info("%r", reranker)
        return first >> reranker >> pt.text.max_passage()


if __name__ == "__main__":
    main()
