r"""Contextual indexes against the dual-encoder's own: the tables and curves of Liu et al. 2022, and what they lack.

    python -m experiments.contextual_indexes numpydoc --seeds 0 1 2 --output OUTPUT
    python -m experiments.contextual_indexes medquad PATH --relations structural order order_i --output OUTPUT
    python -m experiments.contextual_indexes cranfield PATH --folds 0 1 2 3 4 --output OUTPUT
    python -m experiments.contextual_indexes irds:dpr-w100 --train irds:dpr-w100/natural-questions/train \
        --test irds:dpr-w100/natural-questions/dev --measures Success@5 Success@20 RR@10 --output OUTPUT

The systems are BM25; the dual-encoder; GraphMean, tuned on the validation queries; the GNN-encoder's network without
edges; the same with GraphMean's numbers tuned on top of it; the GNN-encoder; and the papers' network with its ablations
(Table 3 of 001, with ``--joint``; Tables 4 and 5 of the preprint, 000, with ``--preprint``), which include sweeps of a
constant in place of the gate, and of the average in place of the network. With ``--teacher`` joint training and the
re-trained query encoder learn from denoised positives and hard negatives. Several values of ``--k`` and ``--masked``
give the curves of Fig. 3 to 6.

The graph has the training queries. Those of numpydoc are the summary lines of all objects; validation and test queries
are the descriptions in other objects' "See Also" lists. Vaswani's and Cranfield's queries have no splits: three fifths
are in the graph, and ``--folds 0 1 2 3 4`` tests all of them, a fifth at a time.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
from datasets import Dataset
from ir_measures import parse_measure
from matplotlib.figure import Figure
from pyterrier_dr import FlexIndex

import pyterrier_graph as ptg
from experiments.collections.numpydoc import read_see_also
from experiments.harness.checkpoints import trained_cross_encoder
from experiments.harness.collection import Collection, joined
from experiments.harness.command import add_options, parse, parser
from experiments.harness.first_stage import bm25
from experiments.harness.groups import groups_by_overlap
from experiments.harness.judgments import judged_ranking, relevant_passages
from experiments.harness.results import Results, choice, claim, deepest, slug, tabulate
from pyterrier_graph.encoders.names import DEFAULT
from pyterrier_graph.encoders.sentence_encoder import scale_of
from pyterrier_graph.encoders.stored_vectors import base_vectors
from pyterrier_graph.graphs.relations import RELEVANT, RETRIEVED
from pyterrier_graph.storage.arrays import ids_of
from pyterrier_graph.storage.artifact import META

MEASURES = ["nDCG@10", "RR@10", "R@5", "R@20", "R@100"]
DEPTH, KEPT = 1000, 100  # passages of a query that are found, and at least as many results stored
BM25, DUAL, MEAN, GNN = "BM25", "dual-encoder", "GraphMean", "GNNEncoder"
WITHOUT_EDGES = "network without edges"
WITHOUT_EDGES_MEAN = f"{WITHOUT_EDGES} + {MEAN}"
PAPERS = "papers' network"
WITHOUT_FEATURES = f"{PAPERS}, w/o edge features"
WITHOUT_RETRAINING = f"{PAPERS}, w/o re-training"
WITHOUT_GNN = (
    f"{PAPERS}, w/o GNN"  # the dual-encoder alone, trained with --joint as long as the others
)
# ablations of Tables 3 and 4: changes of the network and of its training
ABLATIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    PAPERS: ({}, {}),
    f"{PAPERS}, w/o mask": ({}, {"masked": None}),
    f"{PAPERS}, one layer": ({"layers": 1}, {}),
    f"{PAPERS}, one W": ({"shared_weights": True, "edge_features": None}, {}),  # the preprint's
    WITHOUT_FEATURES: ({"edge_features": None}, {}),
    WITHOUT_RETRAINING: ({}, {}),
    WITHOUT_GNN: ({"average": 0.0, "edges": False}, {}),
}
TENTHS = [number / 10 for number in range(1, 11)]
# the sweeps of a constant in place of the gate, and of "GNN or average?" (000, Sect. 5.3 and 5.4)
ABLATIONS |= {f"{PAPERS}, gate {alpha}": ({"gate": alpha}, {}) for alpha in TENTHS}
ABLATIONS |= {f"{PAPERS}, average {beta}": ({"average": beta}, {}) for beta in TENTHS}
MAIN = (BM25, DUAL, MEAN, WITHOUT_EDGES, WITHOUT_EDGES_MEAN, GNN, PAPERS)
AVERAGES = [name for name in ABLATIONS if "average" in name]
NOT_MASKED = {BM25, DUAL, MEAN, WITHOUT_EDGES, WITHOUT_EDGES_MEAN, f"{PAPERS}, w/o mask"}
NOT_MASKED |= {WITHOUT_GNN, *AVERAGES}
CHOICES = {choice(name): name for name in (*MAIN, *[*ABLATIONS][1:])}
# weights that tuning and training start at; all others start at 0.1, since what starts with 0 stays without effect
START = {
    RELEVANT: 1.0,
    RETRIEVED: 0.3,
    "title": 1.0,
    "structural": 1.0,
    "structural/structural": 1.0,
}
K, MASKED = 25, 0.05  # the papers'
QUERY_TOKENS = 32
HEADS, UNMASKED_LEARNING_RATE = 4, 1e-3
TIMED = 1000  # documents whose encoding is timed
IN_PASSAGES = ("numpydoc", "numpydoc-numpy")  # their plain texts are cut; of others, each is one

logger = logging.getLogger(__name__)


def command_line() -> argparse.ArgumentParser:
    """The command line."""
    command = parser(__doc__, CHOICES, [*CHOICES][: len(MAIN)])
    add_options(
        command,
        "graph",
        folds=([-1], "several divisions of a collection's own queries; -1: the first"),
        relations=([RELEVANT, RETRIEVED], "of GraphMean and our network"),
        k=([K], "passages of a query in the graph"),
        cross_encoder=(str, "whose states are edge features of the papers' network (it has none)"),
    )
    add_options(
        command,
        "models",
        encoder=(DEFAULT, "a saved DualEncoder or any encoder"),
        max_tokens=(160, "tokens of a passage"),
        baseline=(str, "what the others are tested against (dual-encoder)", [*CHOICES]),
        measures=(MEASURES, "AnswerRecall@k or Success@k is the papers' Recall@k"),
    )
    add_options(
        command,
        "training",
        masked=([MASKED], "share of the queries that are masked in an epoch"),
        epochs=(40, "epochs"),
        unmasked_epochs=(
            10,
            "epochs of networks without edges, which learn from all queries in each",
        ),
        batch=(64, "queries at a time"),
        negatives=(8, "hard negatives of a query"),
        learning_rate=(3e-4, "of networks"),
        encoder_learning_rate=(2e-6, "of the dual-encoder in joint training"),
        joint=(False, "train the dual-encoder with the papers' network and its ablations (001)"),
        preprint=(False, "one W, batches of passages, and a re-trained query encoder (000)"),
        passage_batch=(512, "passages at a time, with --preprint"),
        retraining_learning_rate=(2e-5, "of the query encoder, with --preprint"),
        teacher=(str, "a trained cross-encoder that denoises examples (they are not denoised)"),
        times=(False, "write times.csv as well: how long a document and a question take"),
    )
    return command


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Runs the comparison, and returns its table."""
    collection, options = parse(command_line(), {}, arguments)
    if options.collection.startswith("numpydoc"):
        collection = read_see_also("numpy" if options.collection.endswith("numpy") else "all")
    if options.joint and options.preprint:
        raise SystemExit(
            "--joint is the paper's training, --preprint is the preprint's: leave one out"
        )
    if options.folds != [-1] and "test" in collection.queries:
        raise SystemExit("--folds divides a collection's own queries: this one has test queries")
    return run(collection, options)


def run(collection: Collection, options: argparse.Namespace) -> pd.DataFrame:
    """Compares the systems, for each fold in a folder of its own.

    Writes the table; ``groups.csv``: a table for test queries whose relevant passages no training query has, and by how
    many words those of the training queries share with the test query; and, for several values of ``--k`` or
    ``--masked``, their curves.

    Args:
        collection: What is searched.
        options: See :func:`command_line`.

    Returns:
        The table.
    """
    output = options.output
    options.results = deepest(map(parse_measure, options.measures), least=KEPT)
    claim(output, options, ("systems", "seeds", "k", "masked", "folds", "baseline", "measures"))
    if not collection.structured and options.collection not in IN_PASSAGES:
        collection = collection.whole()
    parts: list[pd.DataFrame] = []
    groups: dict[str, list[str]] = {}
    for fold in options.folds:
        bench = Bench(
            collection, options, max(fold, 0), output if fold < 0 else output / f"fold-{fold}"
        )
        parts.append(evaluated(bench, options).assign(fold=fold))
        for group, qids in groups_by_overlap(bench.in_graph, bench.test).items():
            groups.setdefault(group, []).extend(qids)
    per_query = pd.concat(parts, ignore_index=True)
    baseline = CHOICES.get(options.baseline)
    if baseline is None:
        baseline = DUAL if DUAL in set(per_query["name"]) else per_query["name"].iloc[0]
    measures = [parse_measure(name) for name in options.measures]
    tables = {
        group: ptg.summarize(per_query[per_query["qid"].isin(qids)], baseline).assign(
            queries=len(qids)
        )
        for group, qids in groups.items()
        if len(qids) > 1
    }
    if tables:
        pd.concat(tables, names=["group"]).to_csv(output / "groups.csv")
    for option in ("k", "masked"):
        if per_query[option].nunique() > 1:
            figure = Figure(figsize=(8, 4), layout="constrained")
            shown = per_query[per_query["measure"].map(str) == str(measures[0])]
            means = shown.pivot_table("value", option, "system", sort=False).sort_index()
            means.plot(ax=figure.subplots(), marker=".", ylabel=str(measures[0]))
            figure.savefig(output / f"{option}.svg", bbox_inches="tight")
    return tabulate(per_query, output, measures, baseline)


def evaluated(bench: Bench, options: argparse.Namespace) -> pd.DataFrame:
    """The measures of all systems on the test queries of a fold."""
    bench.output.mkdir(parents=True, exist_ok=True)
    measures = [parse_measure(name) for name in options.measures]
    results = Results(bench.output, bench.test, measures, bench.texts)
    for seed, chosen, k, masked in itertools.product(
        options.seeds, options.systems, options.k, options.masked
    ):
        system = CHOICES[chosen]
        has_graph, masks = system not in (BM25, DUAL), system not in NOT_MASKED
        if system in (BM25, DUAL, MEAN) and seed != options.seeds[0]:
            continue
        if (not has_graph and k != options.k[0]) or (not masks and masked != options.masked[0]):
            continue
        # runs of several calls lie together, so names do not depend on what else is run
        name = system + f", k = {k}" * (has_graph and k != K)
        name += f", {100 * masked:g}% masked" * (masks and masked != MASKED)
        logger.info("%s, seed %d", name, seed)
        path = bench.output / f"{slug(name)}-{seed}.flex"
        swept: dict[str, Any] = {
            "k": k if has_graph else np.nan,
            "masked": masked if masks else np.nan,
        }
        results.add(
            name,
            partial(bench.ranking, system, seed, k, masked, path),
            seed,
            system=system,
            **swept,
        )
    return results.per_query


def milliseconds(work: Callable[[], Any], count: int) -> float:
    """How long a piece of work takes per unit, of which it has ``count``."""
    start = time.perf_counter()
    work()
    return round(1000 * (time.perf_counter() - start) / count, 3)


class Bench:
    """The data that all systems share: queries, passages, their vectors, the graphs.

    Args:
        collection: Of documents with nodes, or of texts that are cut into passages.
        options: See :func:`command_line`.
        fold: Which division of the collection's own queries.
        output: Folder of its graphs and runs; documents and vectors are in ``options.output``, for all folds.
    """

    def __init__(
        self, collection: Collection, options: argparse.Namespace, fold: int, output: Path
    ) -> None:
        self.options, self.output = options, output
        splits = collection.split(fold=fold, dev_queries=options.dev_queries)
        self.in_graph, self.dev = splits["train"].sample(options.train_queries), splits["dev"]
        self.test = splits["test"].sample(options.queries)
        # all training queries, in the graph or not
        self.train = joined(
            [self.in_graph, splits["extra"]] if "extra" in splits else [self.in_graph]
        )
        documents = options.output / "documents"
        self.documents = collection.graph(documents)
        self.texts, self.vectors = self.documents.text_loader(), options.output / "vectors"
        self.graph = cache(self._graph)
        self.without_edges = cache(self._without_edges)

    @cached_property
    def encoder(self) -> ptg.DualEncoder:
        """The dual-encoder that all systems start at."""
        options = self.options
        if (Path(options.encoder) / META).exists():
            return ptg.DualEncoder.load(options.encoder)
        return ptg.DualEncoder(
            options.encoder, max_query_tokens=32, max_passage_tokens=options.max_tokens
        )

    @cached_property
    def index(self) -> FlexIndex:
        """The dual-encoder's vectors."""
        return base_vectors(self.vectors, self.documents, self.encoder).flex

    @cached_property
    def bm25(self) -> pt.Transformer:
        """BM25 over the passages."""
        passages = Collection("passages", self.documents.get_corpus_iter, {})
        engine = self.options.first_stage
        return bm25(passages, self.options.output / engine, engine)

    def _graph(self, k: int) -> ptg.QueryPassageGraph:
        """The graph of the training queries, with k retrieved passages of each."""
        graph = ptg.QueryPassageGraph(self.output / f"queries-{k}")
        if not graph.built():
            qrels = relevant_passages(self.documents, self.in_graph.qrels)
            retriever = self.encoder.query_encoder() >> self.index.np_retriever()
            graph.build(self.in_graph.topics, self.index, retriever, k=k, qrels=qrels)
        checkpoint = self.options.cross_encoder
        if checkpoint is not None and "features" not in graph.meta:
            length = self.options.max_tokens + QUERY_TOKENS
            cross_encoder = ptg.CrossEncoderReranker(checkpoint, max_tokens=length)
            graph.add_edge_features(cross_encoder.encode_pairs, self.texts)
        return graph

    @property
    def _start(self) -> dict[str, float]:
        return {name: START.get(name, 0.1) for name in self.options.relations}

    def mean(self, k: int) -> ptg.GraphMean:
        """GraphMean, tuned on the validation queries."""
        mean = ptg.GraphMean(self.documents, self.encoder, self._start, **self._shared(k))
        logger.info("%r", mean.fit(*self.dev))
        return mean

    def _without_edges(self, seed: int, k: int) -> ptg.GNNEncoder:
        """Our network without edges, trained. Passages do not aggregate from queries, so all queries give the loss."""
        return self._fit(self._gnn(seed, k, self._unmasked(seed), edges=False))

    def without_edges_mean(self, seed: int, k: int) -> ptg.GNNEncoder:
        """The network that was trained without edges, with GraphMean's numbers tuned on top of it."""
        return self._tuned(self._with_edges(seed, k, self._unmasked(seed)))

    def gnn(self, seed: int, k: int, masked: float) -> ptg.GNNEncoder:
        """The GNN-encoder, which starts at the network without edges. Its weights are tuned afterwards: see START."""
        if {RELEVANT, RETRIEVED} & {*self.options.relations}:
            training = self._training(seed, masked=masked)
        else:  # without edges of queries, none is masked
            training = self._unmasked(seed, learning_rate=self.options.learning_rate)
        return self._tuned(self._fit(self._with_edges(seed, k, training)))

    def _tuned(self, model: ptg.GNNEncoder) -> ptg.GNNEncoder:
        """A model whose weights of relations are tuned on the validation queries."""
        logger.info("%s", model.tune(*self.dev).network.weights)
        return model

    def _with_edges(self, seed: int, k: int, training: ptg.GNNEncoderTraining) -> ptg.GNNEncoder:
        """The network that was trained without edges, with edges."""
        model = self._gnn(seed, k, training)
        model.network.load_state_dict(self.without_edges(seed, k).network.state_dict())
        return model

    def papers(self, system: str, seed: int, k: int, masked: float) -> ptg.GNNEncoder:
        """The papers' network, or an ablation of it."""
        if system == WITHOUT_FEATURES and self.options.cross_encoder is None:
            raise SystemExit(
                f"{WITHOUT_FEATURES!r} needs --cross-encoder: there are no edge features to leave out"
            )
        network, changes = ABLATIONS[system]
        rate = self.options.encoder_learning_rate if self.options.joint else None
        if self.options.preprint:
            network = {"shared_weights": True, "edge_features": None} | network
            batches = {"batches": "passages", "batch_size": self.options.passage_batch}
            changes = {"negatives": 0} | batches | changes
        training = self._training(
            seed, masked=masked, scale=self._scale, encoder_learning_rate=rate
        )
        training = replace(training, **changes)
        model = self._gnn(seed, k, training, config=self._config(k, **network))
        # an average has nothing to learn, but with --joint its encoder does
        learns = rate is not None or "average" not in network
        return (
            self._fit(model, self.examples if self.options.teacher else None) if learns else model
        )

    @cached_property
    def examples(self) -> Dataset:
        """Positives and hard negatives among the dual-encoder's candidates, denoised if there is a teacher."""
        teacher = None
        if self.options.teacher:
            checkpoint = trained_cross_encoder(self.options.teacher, "--teacher")
            length = self.options.max_tokens + QUERY_TOKENS
            teacher = ptg.CrossEncoderReranker(checkpoint, max_tokens=length, probabilities=True)
        miner = ptg.HardNegativeMiner(
            self._retriever(self.index),
            self.texts,
            teacher=teacher,
            config=ptg.MiningConfig(hard_negatives=self.options.negatives),
            folder=self.output / "examples",
        )
        return (miner.denoised if teacher else miner.labeled)(*self.train)

    def retrained(self, index: FlexIndex, seed: int) -> ptg.DualEncoder:
        """The query encoder after training for an index (000, Sect. 4.3)."""
        training = ptg.DualEncoderTraining.paper(
            "query-encoder",
            batch_size=self.options.batch,
            learning_rate=self.options.retraining_learning_rate,
            measure="nDCG@10",
            seed=seed,
        )
        encoder = self.encoder.apply_attributes(training=training)
        return encoder.fit_query_encoder(index, self.examples, *self.dev)

    def _config(self, k: int, **changes: Any) -> Any:
        features = (
            None if self.options.cross_encoder is None else self.graph(k).edge_features().shape[1]
        )
        return ptg.GNNEncoderConfig.paper(**{"heads": HEADS, "edge_features": features} | changes)

    def _shared(self, k: int) -> dict[str, Any]:
        return {"query_graph": self.graph(k), "folder": self.vectors}

    def _gnn(
        self,
        seed: int,
        k: int,
        training: ptg.GNNEncoderTraining,
        config: Any = None,
        **network: Any,
    ) -> ptg.GNNEncoder:
        """An untrained network: by a configuration, or ours with options, which starts at the weights of START."""
        ours = {"heads": HEADS} | network
        config = config or ptg.GNNEncoderConfig(self._start, **ours)
        config = replace(config, seed=seed)
        return ptg.GNNEncoder(
            self.documents, self.encoder, config=config, training=training, **self._shared(k)
        )

    @property
    def _scale(self) -> float:
        """Of dot products: the papers' vectors are long and need none; similarities of short vectors need one."""
        return scale_of(None, self.encoder.similarity == "cosine")

    def _training(self, seed: int, **changes: Any) -> ptg.GNNEncoderTraining:
        options = self.options
        common = {
            "epochs": options.epochs,
            "batch_size": options.batch,
            "learning_rate": options.learning_rate,
            "negatives": options.negatives,
            "patience": 5,
            "seed": seed,
        }
        return ptg.GNNEncoderTraining(**common | changes)

    def _unmasked(self, seed: int, **changes: Any) -> ptg.GNNEncoderTraining:
        options = self.options
        common = {
            "epochs": options.unmasked_epochs,
            "learning_rate": UNMASKED_LEARNING_RATE,
        }
        return self._training(seed, masked=None, **common | changes)

    def _fit(self, model: ptg.GNNEncoder, examples: Dataset | None = None) -> ptg.GNNEncoder:
        return model.fit(*self.train, *self.dev, examples=examples)

    def ranking(self, system: str, seed: int, k: int, masked: float, path: Path) -> pd.DataFrame:
        """Ranks the test queries by a system: documents by their best passage, where documents are judged.

        Args:
            system: Its name.
            seed: Of training.
            k: Retrieved passages of a query in the graph.
            masked: Share of the queries that are masked in an epoch.
            path: Folder of its index, which is deleted afterwards.
        """
        if system == BM25:
            run = self.bm25(self.test.topics)
            return judged_ranking(run, self.test.qrels, self.options.results)
        index, queries = self.index, self.encoder.query_encoder()(self.test.topics)
        if system != DUAL:
            model = self._system(system, seed, k, masked)
            shutil.rmtree(path, ignore_errors=True)
            index = model.index(path).flex
            if system in ABLATIONS:
                queries = model.query_encoder()(self.test.topics)
            if self.options.preprint and system in {*ABLATIONS} - {WITHOUT_RETRAINING}:
                queries = self.retrained(index, seed).query_encoder()(self.test.topics)
            if self.options.times:
                self.write_times(system, model, index)
        depth = max(DEPTH, self.options.results)
        run = index.np_retriever(num_results=depth, drop_query_vec=True)(queries)
        shutil.rmtree(path, ignore_errors=True)
        return judged_ranking(run, self.test.qrels, self.options.results)

    def write_times(self, system: str, model: Any, index: FlexIndex) -> None:
        """Adds milliseconds per document and question, also the dual-encoder's, to ``times.csv`` (Table 4 of 001)."""
        topics, (lookup, _, meta) = self.test.topics, index.payload()
        docnos = ids_of(lookup, np.arange(min(TIMED, meta["doc_count"])))
        texts = self.texts.transform(pd.DataFrame({"docno": docnos}))["text"].tolist()
        encoding = milliseconds(partial(self.encoder.encode_docs, texts), len(texts))
        own = milliseconds(partial(model.vectors_of, docnos), len(docnos))
        rows = [(DUAL, encoding, self.index), (system, encoding + own, index)]
        table = [
            (name, document, milliseconds(partial(self._retriever(flex), topics), len(topics)))
            for name, document, flex in rows
        ]
        file = self.options.output / "times.csv"
        before = pd.read_csv(file) if file.exists() else pd.DataFrame()
        times = pd.DataFrame(table, columns=["system", "document", "question"])
        pd.concat([before, times]).drop_duplicates("system").to_csv(file, index=False)

    def _retriever(self, index: FlexIndex) -> pt.Transformer:
        return self.encoder.query_encoder() >> index.np_retriever(num_results=KEPT)

    def _system(self, system: str, seed: int, k: int, masked: float) -> Any:
        if system == MEAN:
            return self.mean(k)
        if system == WITHOUT_EDGES:
            return self.without_edges(seed, k)
        if system == WITHOUT_EDGES_MEAN:
            return self.without_edges_mean(seed, k)
        if system == GNN:
            return self.gnn(seed, k, masked)
        return self.papers(system, seed, k, masked)


if __name__ == "__main__":
    main()
