"""BM25, MaxSim, GraphMaxSim and HGAT on structured collections.

    python -m experiments.graph_rerankers numpydoc-numpy --triples 1500 --seeds 0 1 2 --output OUTPUT
    python -m experiments.graph_rerankers medquad PATH --passages 4000 --seeds 0 1 2 --output OUTPUT

All systems rerank the passages of the same documents. ``titled`` systems encode passages together with the titles of
their sections; ``+ document`` adds the score of a document's best passage.
``--encoder`` is a late-interaction encoder to take instead of the default encoder's principal directions.
"""

from __future__ import annotations

import argparse
import functools
import logging
import shutil
from collections.abc import Callable, Sequence
from typing import Any, get_args

import numpy as np
import pandas as pd
import pyterrier as pt
import torch
from ir_measures import AP, RR, R, nDCG
from ir_measures.measures import Measure

import pyterrier_graph as ptg
from experiments.harness.collection import SPLITS, Collection, Queries
from experiments.harness.command import add_options, parse, parser
from experiments.harness.first_stage import bm25
from experiments.harness.results import Results, claim, slug
from pyterrier_graph.evaluation.measures import on_documents
from pyterrier_graph.hgat.equations import Variant

MEASURES: tuple[Measure, ...] = (nDCG @ 10, RR @ 10, R @ 100, AP @ 100, on_documents(RR @ 10))
SYSTEMS = ("maxsim", "graph-maxsim", "hgat")
TEXTS = {"bare": "", "titled": ", titled"}
BASELINE = "MaxSim"
PASSAGE_TOKENS = 96
SAMPLE = 400  # passages that the encoder's projection is made from
# titles, neighbors, and the passages of the same section and of the section around it, each in one hop
RELATIONS = (
    "structural",
    "structural/structural",
    "order",
    "order_i",
    "structural/structural_i",
    "structural/structural/structural_i",
)
CAR_RELATIONS = ("structural/structural/structural", "same_entity", "same_entity_i")
SHAPE: dict[str, Any] = {
    "layers": 1,
    "heads": 4,
    "dropout": 0.0,
    "init": "identity",
    "aggregation": "sum",
    "matches": {},
}
TRAINING: dict[str, Any] = {
    "negatives": "candidates",
    "epochs": 2,
    "batch_size": 16,
    "learning_rate": 1e-3,
    "scalar_learning_rate": 0.03,
    "patience": None,
}
logger = logging.getLogger(__name__)


def command_line() -> argparse.ArgumentParser:
    """The command line."""
    command = parser(__doc__, SYSTEMS, SYSTEMS)
    command.set_defaults(dev_queries=100_000)  # all
    add_options(
        command,
        "systems",
        documents=(20, "documents whose passages are reranked"),
        triples=(1000, "training triples of an HGAT"),
        variants=(["NO_LB", "NO_LB_NS"], "of HGAT", get_args(Variant)),
        texts=(
            [*TEXTS],
            "of the passages that are encoded: bare, and with the titles of their sections",
            [*TEXTS],
        ),
        encoder=(
            str,
            "a token encoder that is taken as it is (principal directions of the default one)",
        ),
    )
    return command


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Runs the comparison, and returns its table."""
    presets = {"trec-car": {"documents": 8}, "medquad": {"passages": 2000}}
    collection, options = parse(command_line(), presets, arguments)
    return run(collection, options)


def run(collection: Collection, options: argparse.Namespace) -> pd.DataFrame:
    """Compares the systems.

    Args:
        collection: What is searched; its documents are structured.
        options: See :func:`command_line`.

    Returns:
        The table.
    """
    claim(options.output, options, ("systems", "seeds", "variants"))
    bench = Bench(collection, options)
    torch.set_num_threads(
        1
    )  # for the small products from here on, several threads mostly wait for one another
    bench.add("BM25", lambda: pt.Transformer.identity())
    stores = {TEXTS[texts]: bench.tokens(titles=texts == "titled") for texts in options.texts}
    first = next(iter(stores.items()))
    for suffix, store in stores.items():
        plain = functools.partial(bench.graph_maxsim, store)
        if "maxsim" in options.systems:
            bench.add(f"MaxSim{suffix}", functools.partial(plain, {}), document=True)
        if "graph-maxsim" in options.systems:
            tuned = functools.partial(bench.tuned, store)
            bench.add(f"GraphMaxSim{suffix}", tuned, document=True)
            bench.add(f"GraphMaxSim, default weights{suffix}", functools.partial(plain, None))
    for seed in options.seeds if "hgat" in options.systems else []:
        for number, kind in enumerate(options.variants):
            config = ptg.HGATConfig(kind, **SHAPE)
            for suffix, store in stores.items() if number == 0 else [first]:
                make = functools.partial(bench.hgat, f"{config.name}{suffix}", seed, store, kind)
                bench.add(f"{config.name}{suffix}", make, seed, document=number == 0)
    names = set(bench.results.per_query["name"])
    return bench.results.table(BASELINE if BASELINE in names else None)


class Bench:
    """The data that all systems share: queries, graph, candidates, token vectors.

    Args:
        collection: What is searched.
        options: See :func:`command_line`.
    """

    def __init__(self, collection: Collection, options: argparse.Namespace) -> None:
        self.options, self.output = options, options.output
        self.relations = (*RELATIONS, *(CAR_RELATIONS if options.collection == "trec-car" else ()))
        self.graph = collection.graph(self.output / "graph")
        logger.info("graph: %s", self.graph.summary())
        splits = collection.split(dev_queries=options.dev_queries)
        splits["train"] = splits["train"].sample(options.train_queries)
        splits["test"] = splits["test"].sample(options.queries)
        first = (
            bm25(collection, self.output / options.first_stage, options.first_stage)
            % options.documents
        )
        runs = {name: (first >> self.graph.passages())(splits[name].topics) for name in SPLITS}
        self.candidates = {name: Queries(runs[name], splits[name].qrels) for name in SPLITS}
        self.results = Results(self.output, splits["test"], MEASURES)
        self.encoder = self._encoder()

    def _encoder(self) -> ptg.TokenEncoder:
        """The default encoder, cut from 384 dimensions to the 128 that late-interaction models have, or another one."""
        if self.options.encoder:
            return ptg.TokenEncoder(self.options.encoder, max_passage_tokens=PASSAGE_TOKENS)
        folder = self.output / "encoder"
        if not folder.exists():
            nodes = self.graph.passage_nodes
            sample = np.random.default_rng(0).choice(nodes, min(SAMPLE, len(nodes)), replace=False)
            encoder = ptg.TokenEncoder(max_passage_tokens=PASSAGE_TOKENS)
            encoder = encoder.reduced(self.graph.texts(sample), 128)
            encoder.network.save(str(folder), create_model_card=False)
        return ptg.TokenEncoder(str(folder), max_passage_tokens=PASSAGE_TOKENS)

    def tokens(self, titles: bool) -> ptg.TokenStore:
        """Stored token vectors of all nodes."""
        store = ptg.TokenStore(self.output / f"{'titled.' if titles else ''}tokens")
        return store if store.built() else store.build(self.graph, self.encoder, titles=titles)

    def graph_maxsim(
        self, tokens: ptg.TokenStore, weights: dict[str, float] | None
    ) -> ptg.GraphMaxSim:
        """GraphMaxSim, not tuned; None is for the class's default weights."""
        return ptg.GraphMaxSim(self.graph, self.encoder, weights, tokens=tokens)

    def tuned(self, tokens: ptg.TokenStore) -> ptg.GraphMaxSim:
        """GraphMaxSim, tuned on the dev queries from equal weights."""
        reranker = self.graph_maxsim(tokens, dict.fromkeys(self.relations, 1.0))
        reranker.fit(*self.candidates["dev"])
        logger.info("tuned: %r", reranker)
        return reranker

    def hgat(
        self,
        name: str,
        seed: int,
        tokens: ptg.TokenStore,
        variant: Variant,
    ) -> pt.Transformer:
        """A trained HGAT, with the representations of all passages, as ``name``.

        Args:
            name: Name of the folder of the representations.
            seed: Of weights, triples and order.
            tokens: Token vectors.
            variant: The paper's variant.
        """
        hgat = ptg.HGATReranker(
            self.graph,
            self.encoder,
            config=ptg.HGATConfig(variant, relations=self.relations, **SHAPE, seed=seed),
            tokens=tokens,
            training=ptg.HGATTraining(**TRAINING, max_triples=self.options.triples, seed=seed),
        )
        logger.info("training %s, seed %d", name, seed)
        hgat.fit(*self.candidates["train"], *self.candidates["dev"])
        (self.output / "training").mkdir(exist_ok=True)
        pd.DataFrame(hgat.training_log).to_csv(
            self.output / "training" / f"{slug(name)}-{seed}.csv", index=False
        )
        folder = self.output / f"{slug(name)}-{seed}.tokens"
        shutil.rmtree(folder, ignore_errors=True)
        hgat.contextualized = hgat.contextualize(folder)
        return hgat

    def add(
        self, name: str, make: Callable[[], Any], seed: int = 0, document: bool = False
    ) -> None:
        """Adds a reranker to the table, and, if asked for, with the score of the document's best passage.

        Args:
            name: Its name.
            make: Makes it.
            seed: Seed of its training.
            document: Whether it is added with :class:`~pyterrier_graph.DocumentEvidence` as well.
        """
        made = functools.cache(make)
        self.results.add(name, lambda: made()(self.candidates["test"].topics), seed)
        if document:

            def with_document() -> pd.DataFrame:
                dev, test = (made()(self.candidates[split].topics) for split in ("dev", "test"))
                return ptg.DocumentEvidence().fit(dev, self.candidates["dev"].qrels)(test)

            self.results.add(f"{name} + document", with_document, seed)


if __name__ == "__main__":
    main()
