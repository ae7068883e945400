"""Late interaction as the first stage beside reranking: what is found, CPU time, and size on disk.

    python -m experiments.late_interaction_index medquad PATH --passages 4000 --queries 150 --output OUTPUT
    python -m experiments.late_interaction_index numpydoc-numpy --projection PROJECTION.safetensors --output OUTPUT

MaxSim and GraphMaxSim, with its default weights, rerank the first 100 and 1,000 passages of BM25, or find passages by
their token vectors themselves. BM25 runs over bare passages, and over passages with their titles. ``--projection`` is
one that ``experiments.token_encoders`` has trained; without it token vectors are cut to their principal directions.
``--hgat`` trains an HGAT and retrieves with what it has stored. ``cost.csv`` has CPU milliseconds per query, those of
encoding the query included, and the bytes per passage of token vectors and index.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
import pyterrier as pt
import torch
from ir_measures import RR, R, nDCG
from ir_measures.measures import Measure
from safetensors.torch import load_file

import pyterrier_graph as ptg
from experiments.harness.collection import Collection, Record
from experiments.harness.command import add_options, parse, parser
from experiments.harness.first_stage import bm25
from experiments.harness.passage_corpus import judged_passages
from experiments.harness.projections import projected_store
from experiments.harness.results import Results, claim, slug, write
from experiments.token_encoders import frozen_encoder
from pyterrier_graph.encoders.principal_directions import principal_directions, vocabulary_sample

MEASURES: tuple[Measure, ...] = (nDCG @ 10, RR @ 10, R @ 100)
SYSTEMS = ("bm25", "rerank", "index", "hgat")
DEPTHS = (100, 1000)
KEPT = 100
TIMED = 20  # queries, one at a time

logger = logging.getLogger(__name__)


def command_line() -> argparse.ArgumentParser:
    """The command line."""
    command = parser(__doc__, SYSTEMS, SYSTEMS[:3])
    add_options(
        command,
        "index",
        projection=(str, "file of a projection of token vectors"),
        max_tokens=(96, "tokens of a passage"),
        dimension=(128, "of token vectors"),
        nearest=(1000, "token vectors that are looked for per query token"),
        candidates=([100, 300, 1000], "passages that are scored exactly"),
        factory=(str, "kind of the FAISS index (the package's default)"),
        triples=(600, "training triples of an HGAT"),
    )
    return command


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Runs the comparison, and returns its table."""
    collection, options = parse(command_line(), {"medquad": {"passages": 4000}}, arguments)
    return run(judged_passages(options.collection, collection), options)


def run(collection: Collection, options: argparse.Namespace) -> pd.DataFrame:
    """Compares the systems.

    Args:
        collection: What is searched; its documents are structured.
        options: See :func:`command_line`.

    Returns:
        The table of measures.
    """
    claim(options.output, options, ("systems", "candidates"))
    torch.set_num_threads(1)
    bench = Bench(collection, options)
    if "bm25" in options.systems:
        for name, first in bench.first_stages.items():
            bench.add(name, first % KEPT)
    if "rerank" in options.systems:
        for depth in DEPTHS:
            for name, first in bench.first_stages.items():
                for system, reranker in bench.rerankers.items():
                    bench.add(f"{name} % {depth} >> {system}", first % depth >> reranker)
    if "index" in options.systems:
        index = bench.index(bench.tokens, "tokens")
        for candidates in options.candidates:
            for system, reranker in bench.rerankers.items():
                shape = {"nearest": options.nearest, "candidates": candidates}
                retriever = index.retriever(reranker, min(KEPT, candidates), **shape)
                bench.add(f"{system}, index, {candidates} candidates", retriever)
    if "hgat" in options.systems:
        bench.add_hgat()
    costs = pd.DataFrame(bench.costs)
    write(costs, options.output / "cost.csv")
    print(costs.round(2).to_string(index=False))
    return bench.results.table("BM25, titles in text % 100 >> GraphMaxSim" if "rerank" in options.systems else None)


class Bench:
    """What all systems share.

    Args:
        collection: What is searched.
        options: See :func:`command_line`.
    """

    def __init__(self, collection: Collection, options: argparse.Namespace) -> None:
        self.options, self.output = options, options.output
        self.costs: list[dict[str, Any]] = []
        self.graph = collection.graph(self.output / "graph")
        self.splits = collection.split(dev_queries=options.dev_queries)
        self.splits["test"] = self.splits["test"].sample(options.queries)
        frozen = frozen_encoder(options)
        projection = self._projection(frozen)
        self.encoder = frozen.projected(projection)
        self.tokens = projected_store(self._frozen(frozen), self.encoder, projection, self.output / "tokens")
        self.first_stages = {
            "BM25": self._bm25("bare", titles=False),
            "BM25, titles in text": self._bm25("titled", titles=True),
        }
        self.rerankers = {
            "MaxSim": ptg.GraphMaxSim(self.graph, self.encoder, {}, tokens=self.tokens, verbose=False),
            "GraphMaxSim": ptg.GraphMaxSim(self.graph, self.encoder, tokens=self.tokens, verbose=False),
        }
        self.results = Results(self.output, self.splits["test"], MEASURES)

    def _projection(self, encoder: ptg.TokenEncoder) -> torch.Tensor:
        if self.options.projection:
            return load_file(self.options.projection)["weight"]
        sample = encoder.encode_passages(vocabulary_sample(encoder)).values
        return principal_directions(sample, self.options.dimension)

    def _frozen(self, encoder: ptg.TokenEncoder) -> ptg.TokenStore:
        """The token vectors before they are projected."""
        store = ptg.TokenStore(self.output / "frozen")
        return store if store.built() else store.build(self.graph, encoder)

    def _bm25(self, name: str, *, titles: bool) -> pt.Transformer:
        def records() -> Iterator[Record]:
            for record in self.graph.get_corpus_iter(verbose=False):
                yield record if titles else record | {"title": ""}

        return bm25(Collection(name, records, {}), self.output / name, self.options.first_stage)

    def index(self, tokens: ptg.TokenStore, name: str) -> ptg.LateInteractionIndex:
        """The index of some token vectors; its size becomes a row of the costs."""
        index = ptg.LateInteractionIndex(self.output / f"{name}.nearest")
        if not index.built():
            index.index(tokens, factory=self.options.factory)
        passages = len(self.graph.passage_nodes)
        sizes = {
            part: sum(file.stat().st_size for file in path.iterdir()) / passages
            for part, path in (("token vectors", tokens.path), ("index", index.path))
        }
        self.costs += [{"what": f"{name}: bytes a passage, {part}", "value": size} for part, size in sizes.items()]
        return index

    def add(self, name: str, system: pt.Transformer) -> None:
        """Adds a system to the table, and its time per query to the costs."""
        file = self.output / "times" / f"{slug(name)}.csv"
        topics = self.splits["test"].topics

        def timed() -> pd.DataFrame:
            found: Any = system(topics)
            start = time.process_time()
            for row in range(TIMED):
                system(topics.iloc[[row % len(topics)]])
            write(pd.DataFrame([{"ms": 1000 * (time.process_time() - start) / TIMED}]), file)
            return found[found["rank"] < KEPT]

        self.results.add(name, timed)
        self.costs.append({"what": f"{name}: CPU ms a query", "value": pd.read_csv(file)["ms"].iloc[0]})

    def add_hgat(self) -> None:
        """Adds an HGAT that is trained on the collection, as a reranker and by its index."""
        graph, options = self.graph, self.options
        config = ptg.HGATConfig(dimension=None)
        training = ptg.HGATTraining(max_triples=options.triples, learning_rate=1e-3, seed=options.seeds[0])
        hgat = ptg.HGATReranker(graph, self.encoder, config=config, tokens=self.tokens, training=training)
        first = self.first_stages["BM25, titles in text"] % 100
        folder, stored = self.output / "hgat", self.output / "hgat.tokens"
        if folder.exists():
            hgat = ptg.HGATReranker.load(folder, graph=graph, encoder=self.encoder, tokens=self.tokens)
        else:
            hgat.fit(first(self.splits["train"].topics), self.splits["train"].qrels)
            hgat.save(folder)
        store = ptg.TokenStore(stored)
        hgat.contextualized = store if store.built() else hgat.contextualize(stored)
        for depth in DEPTHS:
            self.add(f"BM25, titles in text % {depth} >> HGAT", first % depth >> hgat)
        index = self.index(hgat.contextualized, "hgat")
        for candidates in options.candidates:
            shape = {"nearest": options.nearest, "candidates": candidates}
            retriever = index.retriever(hgat, min(KEPT, candidates), **shape)
            self.add(f"HGAT, index, {candidates} candidates", retriever)


if __name__ == "__main__":
    main()
