"""GNN-encoders against what they have to beat: the tables and curves of Liu et al. 2022, with the controls they lack.

Every table has the dual-encoder, the rule (a passage plus the mean of what is around it, weights from the validation
queries), the control (the same network without edges), the control with the rule on top, and the GNN-encoder. The run
of each system is written when it is complete: killed, an experiment goes on with the next.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import logging
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyterrier as pt
from ir_measures import RR, R, nDCG, parse_measure
from ir_measures.measures import Measure
from matplotlib.figure import Figure
from pyterrier_dr import FlexIndex

from experiments.dense_retrieval import (
    CORPUS_BATCH,
    QUERY_LENGTH,
    Queries,
    add_collection,
    among,
    limited,
    splits_of,
)
from experiments.text_reranking import DatasetTexts, parsed, sampled, slug
from pyterrier_graph import plots
from pyterrier_graph.artifacts import META
from pyterrier_graph.encoders.checkpoints import DEFAULT, resolve
from pyterrier_graph.evaluation.significance import summarize
from pyterrier_graph.graphs import DocumentGraph
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.models.gnn_encoder import RELEVANT, RETRIEVED, GNNEncoderNetwork, PaperGNNEncoderConfig
from pyterrier_graph.rerank.cross_encoder import CrossEncoderReranker
from pyterrier_graph.retrieve.dual_encoder import DualEncoder
from pyterrier_graph.retrieve.gnn_encoder import GNNEncoder
from pyterrier_graph.retrieve.graph_mean import GraphMean
from pyterrier_graph.training.dual import DualEncoderTraining, scale_of
from pyterrier_graph.training.masked_graph import GNNEncoderTraining
from pyterrier_graph.training.mining import HardNegativeMiner
from pyterrier_graph.training.validation import PASSAGE_NUMBER, documents_of, judged_ids

MEASURES: tuple[Measure, ...] = (nDCG @ 10, RR @ 10, R @ 5, R @ 20, R @ 100)
DUAL, RULE, CONTROL, CONTROL_RULE, GNN = "dual-encoder", "rule", "control", "control + rule", "GNN-encoder"
PAPERS = "papers' GNN"
RETRAINED, JOINT = "GNN-encoder & re-training", "joint training"
JOINT_CONTROL = f"{JOINT}, w/o GNN"  # the dual-encoder, trained as long with the same queries
JOINTLY = (JOINT, JOINT_CONTROL)
WITHOUT_FEATURES = f"{PAPERS}, w/o edge features"
# ablations of Table 3 and 4, as changes of the network's configuration and of training
ABLATIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    PAPERS: ({}, {}),
    f"{PAPERS}, w/o mask": ({}, {"masked": None}),
    f"{PAPERS}, w/o gate": ({"gate": 0.2}, {}),  # the constant that 000 found best
    f"{PAPERS}, one layer": ({"layers": 1}, {}),
    f"{PAPERS}, one W (000)": ({"shared_weights": True, "edge_features": None}, {}),
    WITHOUT_FEATURES: ({"edge_features": None}, {}),
}
MAIN = (DUAL, RULE, CONTROL, CONTROL_RULE, GNN, PAPERS)
NOT_MASKED = (DUAL, RULE, CONTROL, CONTROL_RULE, f"{PAPERS}, w/o mask")
SYSTEMS = (*MAIN, RETRAINED, JOINT, JOINT_CONTROL, *[*ABLATIONS][1:])
CHOICES = {re.sub("[^a-z0-9]+", "-", name.lower().replace("w/o", "without")).strip("-"): name for name in SYSTEMS}
EDGES, MASKED = 25, 0.05  # the papers'
DEPTH = 1000
KEPT = 100
OVERLAP = 0.1
NUMPYDOC = "irds:pyterrier-graph/numpydoc/numpy"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Task:
    """What is compared on.

    Attributes:
        documents: Records of the documents: ``docno, title, text``, or whole structured ones.
        listened: Training queries that passages listen to.
        extra: Further training queries, which are not in the graph.
        dev: Queries that weights are chosen by.
        test: Queries that are reported.
        texts: Texts of documents by docno, where they are passages; of others the document graph has them.
    """

    documents: Callable[[], Iterable[dict[str, Any]]]
    listened: Queries
    extra: Queries | None
    dev: Queries
    test: Queries
    texts: Callable[[Iterable[str]], dict[str, str]] | None = None


def main(defaults: Sequence[str] = (), arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Runs the experiment from the command line.

    Args:
        defaults: A collection, for arguments that do not name another one. ``numpydoc`` before them names docstrings
            with the packaged encoder, which need no download.
        arguments: Those of the command line; by default the program's.
    """
    given = [*(sys.argv[1:] if arguments is None else arguments)]
    if given[:1] == ["numpydoc"]:
        defaults, given = _numpydoc(), given[1:]
    elif parser().parse_args(given).dataset is not None:
        defaults = ()
    options = parsed(parser(), defaults, given)
    if options.folds and options.test is not None:
        raise SystemExit("--folds divides a dataset's own queries, each into a test set: leave out --test")
    return run_folds(lambda _: task_of(options), options) if options.folds else run(task_of(options), options)


def _numpydoc() -> list[str]:
    """Summary lines are listened to; what other objects' "See Also" lists say is asked for."""
    named = {"train": "train", "dev": "see-also/dev", "test": "see-also/test"}
    parts = [part for option, name in named.items() for part in (f"--{option}", f"{NUMPYDOC}/{name}")]
    return ["--dataset", NUMPYDOC, *parts, "--model", resolve(DEFAULT)]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, shown = command.add_argument, "%(default)s"
    data = add_collection(command)
    data.add_argument(
        "--passage-words", type=int, help="documents are cut into passages of so many words (they are not)"
    )
    data.add_argument("--folds", nargs="+", type=int, choices=range(5), help="several divisions of a dataset's queries")
    systems = command.add_argument_group("systems")
    systems.add_argument("--systems", nargs="*", choices=[*CHOICES], default=[*CHOICES][: len(MAIN)])
    systems.add_argument("--baseline", choices=[*CHOICES], help="which one the others are tested against (the first)")
    systems.add_argument("--model", default="bert-base-uncased", help=f"a DualEncoder or any encoder ({shown})")
    systems.add_argument("--max-length", type=int, default=128, help=f"tokens of a passage ({shown})")
    systems.add_argument(
        "--channels", nargs="+", default=[RELEVANT, RETRIEVED], help="of the rule and the typed network"
    )
    systems.add_argument(
        "--k", nargs="+", type=int, default=[EDGES], help=f"passages of a query in the graph ({EDGES})"
    )
    systems.add_argument("--heads", type=int, default=4, help=f"({shown})")
    systems.add_argument("--cross-encoder", help="whose states are edge features of the papers' network (it has none)")
    training = command.add_argument_group("training")
    training.add_argument("--seeds", nargs="+", type=int, default=[0])
    training.add_argument("--masked", nargs="+", type=float, default=[MASKED], help=f"share of the queries ({MASKED})")
    training.add_argument("--epochs", type=int, default=40, help=f"({shown})")
    training.add_argument("--control-epochs", type=int, default=10, help=f"of the control: all queries ({shown})")
    training.add_argument("--batch", type=int, default=64, help=f"({shown})")
    training.add_argument("--negatives", type=int, default=8, help=f"({shown})")
    training.add_argument("--learning-rate", type=float, default=3e-4, help=f"of the networks ({shown})")
    training.add_argument("--control-learning-rate", type=float, default=1e-3, help=f"of the control ({shown})")
    training.add_argument("--all-masked", action="store_true", help="loss of masked queries without another known one")
    training.add_argument("--encoder-learning-rate", type=float, default=2e-6, help=f"in joint training ({shown})")
    training.add_argument(
        "--retraining-learning-rate", type=float, default=2e-5, help=f"of the query encoder ({shown})"
    )
    training.add_argument(
        "--fine-tuning-epochs", type=int, default=0, help=f"of the dual-encoder, before all else ({shown})"
    )
    add("--measures", nargs="+", type=parse_measure, default=[*MEASURES], help=f"up to rank {KEPT}")
    add("--output", default="fused-retrieval", help=f"folder for indexes, graphs, runs and tables ({shown})")
    return command


def task_of(options: argparse.Namespace) -> Task:
    """The queries that the command line names."""
    corpus = DatasetTexts(options.dataset)

    def hold_out(train: Queries) -> list[Queries]:
        held_out = sampled(train.topics, min(options.dev_queries, len(train.topics) // 5))
        others = train.topics[~train.topics["qid"].isin(held_out["qid"])].reset_index(drop=True)
        return [among(train, others), among(train, held_out)]

    train, dev, test = splits_of(options, corpus, hold_out)
    return Task(lambda: corpus.get_corpus_iter(verbose=True), train, None, dev, test, corpus.texts)


def run(task: Task, options: argparse.Namespace) -> pd.DataFrame:
    """Runs the experiment.

    Writes ``per_query.csv``, ``results.csv``, with several values of ``--k`` or ``--masked`` a picture of what they do
    (``k.svg``, ``masked.svg``: :func:`pyterrier_graph.plots.measure_curve`), and ``groups.csv`` (by whether a relevant
    passage has a training query, and by the overlap of its words with the test query's) to ``options.output``, or to
    ``fine-tuned`` there.

    Args:
        task: The collection.
        options: As :func:`parser` makes them.

    Returns:
        The table.
    """
    listened, dev = limited(task.listened, task.dev, options)
    bench = Bench(dataclasses.replace(task, listened=listened, dev=dev), options)
    output = bench.output
    output.mkdir(parents=True, exist_ok=True)
    found = []
    for seed, chosen, k, masked in itertools.product(options.seeds, options.systems, options.k, options.masked):
        system = CHOICES[chosen]
        listens, masks = system != DUAL, system not in NOT_MASKED
        if system in (DUAL, RULE) and seed != options.seeds[0]:
            continue
        if (not listens and k != options.k[0]) or (not masks and masked != options.masked[0]):
            continue
        # runs of several calls lie together, so names do not depend on what else is run
        name = system
        name += f", k = {k}" * (listens and k != EDGES)
        name += f", {100 * masked:g}% masked" * (masks and masked != MASKED)
        logger.info("%s, seed %d", name, seed)
        ranking = bench.ranking(name, system, seed, k, masked)
        values = pt.Experiment(
            [ranking], task.test.topics, task.test.qrels, options.measures, names=[name], perquery=True
        )
        swept = {"k": k if listens else np.nan, "masked": masked if masks else np.nan}
        found.append(values.assign(system=system, seed=seed, **swept))
    per_query = pd.concat(found, ignore_index=True)
    results, first = _tabulated(per_query, options, output)
    groups = bench.groups()
    tables = {
        group: summarize(per_query[per_query["qid"].isin(qids)], first).assign(queries=len(qids))
        for group, qids in groups.items()
        if len(qids) > 1
    }
    if tables:
        pd.concat(tables, names=["group"]).to_csv(output / "groups.csv")
    for option in ("k", "masked"):
        if per_query[option].nunique() > 1:
            figure = Figure(figsize=(8, 4), layout="constrained")
            plots.measure_curve(per_query, options.measures[0], x=option, ax=figure.subplots())
            figure.savefig(output / f"{option}.svg", bbox_inches="tight")
    return results


def run_folds(task_of_fold: Callable[[int], Task], options: argparse.Namespace) -> pd.DataFrame:
    """Runs the experiment for several divisions of the queries, so that each is a test query at most once.

    Each has a folder in ``options.output``, which has the joint ``per_query.csv`` and ``results.csv``.

    Args:
        task_of_fold: The collection, by the number of the division, which is ``options.fold``, too.
        options: As :func:`parser` makes them.

    Returns:
        The table.
    """
    output = Path(options.output)
    parts = []
    for fold in options.folds:
        logger.info("fold %d", fold)
        options.fold = fold
        task = task_of_fold(fold)
        run(task, options)
        parts.append(pd.read_csv(Bench(task, options).output / "per_query.csv", dtype={"qid": str}))
    return _tabulated(pd.concat(parts, ignore_index=True), options, output)[0]


def _tabulated(per_query: pd.DataFrame, options: argparse.Namespace, output: Path) -> tuple[pd.DataFrame, str]:
    """The table, which is written and printed, and what it compares with."""
    first = per_query["name"].iloc[0] if options.baseline is None else CHOICES[options.baseline]
    results = summarize(per_query, first)[[*map(str, options.measures)]].reset_index()
    per_query.to_csv(output / "per_query.csv", index=False)
    results.to_csv(output / "results.csv", index=False)
    print(f"+ and -: better and worse than {first}")
    print(results.to_string(index=False))
    return results, first


class Bench:
    """What all systems share: passages, their vectors, the graphs.

    Args:
        task: The collection.
        options: As :func:`parser` makes them.
    """

    def __init__(self, task: Task, options: argparse.Namespace) -> None:
        self.task = task
        self.options = options
        self.start = Path(options.output)
        self.output = self.start / f"fold-{options.fold}" if options.folds else self.start
        self.output = self.output / "fine-tuned" if options.fine_tuning_epochs else self.output
        self._graphs: dict[int, QueryPassageGraph] = {}
        self._models: dict[tuple[Any, ...], GNNEncoder] = {}

    @cached_property
    def encoder(self) -> DualEncoder:
        """Where all start: what the options name, fine-tuned if they ask for it."""
        options = self.options
        folder = self.output / "encoder"
        if options.fine_tuning_epochs and (folder / META).exists():
            return DualEncoder.load(folder)
        if (Path(options.model) / META).exists():
            encoder = DualEncoder.load(options.model)
        else:
            encoder = DualEncoder(options.model, max_passage_length=options.max_length, verbose=True)
        return self._fine_tuned(encoder).save(folder) if options.fine_tuning_epochs else encoder

    def _fine_tuned(self, encoder: DualEncoder) -> DualEncoder:
        """Trained on all training queries, each with its best relevant passages, and a negative that it finds."""
        topics, qrels = self.training_queries
        relevant = qrels.loc[qrels["label"] > 0, ["qid", "docno"]].drop_duplicates()
        index = self._indexed(encoder, self.start / "base.flex")
        found = (encoder.query_encoder() >> index.np_retriever(num_results=KEPT, drop_query_vec=True))(topics)
        judged = pd.MultiIndex.from_arrays([found["qid"], judged_ids(found["docno"], qrels)])
        right = judged.isin(pd.MultiIndex.from_frame(relevant))
        positives = found[right & ~judged.duplicated()]  # results are in order
        training = DualEncoderTraining(epochs=self.options.fine_tuning_epochs, batch_size=32, patience=None)
        miner = HardNegativeMiner(pt.Transformer.from_df(found[~right]), self.texts, hard_negatives=1, verbose=True)
        encoder.training, encoder.miner = training, miner
        return encoder.fit(topics, positives[["qid", "docno"]].assign(label=1))

    @cached_property
    def documents(self) -> DocumentGraph | None:
        """The graph of the documents, where they have passages or relations are heard."""
        relations = [channel for channel in self.options.channels if channel not in (RELEVANT, RETRIEVED)]
        if self.options.passage_words is None and not relations:
            return None
        graph = DocumentGraph(self.start / "documents")
        if not graph.built():
            graph.index(self.task.documents(), passage_words=self.options.passage_words or 120)
        return graph

    @cached_property
    def index(self) -> FlexIndex:
        """The dual-encoder's vectors."""
        folder = self.output if self.options.fine_tuning_epochs else self.start  # all folds share what is not trained
        return self._indexed(self.encoder, folder / "base.flex")

    def _indexed(self, encoder: DualEncoder, path: Path) -> FlexIndex:
        """An encoder's vectors."""
        index = FlexIndex(str(path), verbose=False)
        if not (index.index_path / META).exists():  # what was killed has a folder, but not that
            pipeline = encoder.doc_encoder() >> index.indexer(mode="overwrite")
            pipeline.index(self._passages(), batch_size=CORPUS_BATCH)
        return index

    def _passages(self) -> Iterator[dict[str, str]]:
        if self.documents is not None:
            nodes = self.documents.passage_nodes
            for start in range(0, len(nodes), CORPUS_BATCH):
                part = nodes[start : start + CORPUS_BATCH]
                for docno, text in zip(self.documents.ids_of(part), self.documents.texts(part), strict=True):
                    yield {"docno": str(docno), "text": text}
        else:
            for document in self.task.documents():
                text = f"{document.get('title', '')}\n{document['text']}".strip()
                yield {"docno": document["docno"], "text": text}

    @cached_property
    def texts(self) -> pt.Transformer:
        """Adds texts to passages."""
        if self.documents is not None:
            return self.documents.text_loader()
        texts_of = self.task.texts
        if texts_of is None:
            raise ValueError("texts of passages are needed: give Task(texts=...), or --passage-words")
        return pt.apply.generic(lambda frame: frame.assign(text=frame["docno"].map(texts_of(frame["docno"]))))

    @cached_property
    def passage_qrels(self) -> pd.DataFrame:
        """What passages the queries that are listened to are known to be answered by."""
        qrels = self.task.listened.qrels
        relevant = qrels[qrels["label"] > 0]
        if self.documents is None or relevant["docno"].str.contains(PASSAGE_NUMBER).any():
            return relevant
        documents = self.documents.document_of(relevant["docno"].tolist())
        rows, nodes = self.documents.passages_of_documents(documents)
        return relevant.iloc[rows].assign(docno=self.documents.ids_of(nodes)).reset_index(drop=True)

    def graph(self, k: int) -> QueryPassageGraph:
        """The queries that are listened to, with k passages each."""
        if k not in self._graphs:
            graph = QueryPassageGraph(self.output / f"queries-{k}")
            if not graph.built():
                retriever = self.encoder.query_encoder() >> self.index.np_retriever()
                graph.build(self.task.listened.topics, retriever, self.index, k=k, qrels=self.passage_qrels)
            if self.options.cross_encoder is not None and "features" not in graph.meta:
                length = self.options.max_length + QUERY_LENGTH
                cross_encoder = CrossEncoderReranker(self.options.cross_encoder, max_length=length)
                graph.add_edge_features(cross_encoder.encode_pairs, self.texts)
            self._graphs[k] = graph
        return self._graphs[k]

    @cached_property
    def training_queries(self) -> Queries:
        """All training queries, in the graph or not."""
        parts = [self.task.listened, *([self.task.extra] if self.task.extra is not None else [])]
        return Queries(*(pd.concat(frames, ignore_index=True) for frames in zip(*parts, strict=True)))

    def rule(self, k: int) -> GraphMean:
        """The rule, tuned on the validation queries."""
        weights = dict.fromkeys(self.options.channels, 0.0)
        rule = GraphMean(
            self.encoder, self.index, self.graph(k), weights, documents=self.documents, folder=self.output / "vectors"
        )
        rule.fit(*self.task.dev)
        logger.info("%r", rule)
        return rule

    def control(self, seed: int, k: int) -> GNNEncoder:
        """The network without edges, trained."""
        key = (CONTROL, seed, k)
        if key not in self._models:
            channels = dict.fromkeys(self.options.channels, 0.0)
            # nothing listens to a query, so all of them may give the loss
            training = self._training(
                seed,
                masked=None,
                epochs=self.options.control_epochs,
                learning_rate=self.options.control_learning_rate,
            )
            control = self._encoder(channels, seed, k, training, control=True)
            self._models[key] = self._fit(control)
        return self._models[key]

    def control_rule(self, seed: int, k: int) -> GNNEncoder:
        """The trained control, with the rule's weights tuned on top of it."""
        key = (CONTROL_RULE, seed, k)
        if key not in self._models:
            model = self.control(seed, k).apply_attributes(control=False).tune(*self.task.dev)
            network = cast(GNNEncoderNetwork, model.network)
            logger.info("control + rule: %s, isolated_norm %g", network.weights, network.isolated_norm)
            self._models[key] = model
        return self._models[key]

    def gnn(self, seed: int, k: int, masked: float) -> GNNEncoder:
        """The typed network, which starts as the control with the rule."""
        key = (GNN, seed, k, masked)
        if key not in self._models:
            training = self._training(seed, masked=masked, skip_unanswerable=not self.options.all_masked)
            if not {RELEVANT, RETRIEVED} & {*self.options.channels}:  # whoever hears no queries need not mask any
                training = self._training(seed, masked=None, epochs=self.options.control_epochs)
            self._models[key] = self._fit(self.control_rule(seed, k).apply_attributes(training=training))
            logger.info("GNN-encoder: %s", self._models[key].network.weights)
        return self._models[key]

    def papers(self, system: str, seed: int, k: int, masked: float) -> GNNEncoder:
        """The papers' network, or an ablation of it."""
        network, training = ABLATIONS[system]
        if system == WITHOUT_FEATURES and self.options.cross_encoder is None:
            raise ValueError(f"{WITHOUT_FEATURES!r} needs --cross-encoder: there are no edge features to leave out")
        config = self._config(k, **network)
        options = self._training(seed, masked=masked, scale=self._scale)
        return self._fit(self._encoder(config, seed, k, dataclasses.replace(options, **training)))

    def joint(self, system: str, seed: int, k: int, masked: float) -> GNNEncoder:
        """The papers' network and the dual-encoder at once (001), or the latter alone."""
        options = self._training(
            seed, masked=masked, scale=self._scale, encoder_learning_rate=self.options.encoder_learning_rate
        )
        model = self._encoder(self._config(k, gnn=system == JOINT), seed, k, options)
        return model.fit(*self.training_queries, *self.task.dev, texts=self.texts)

    def _config(self, k: int, **changes: Any) -> PaperGNNEncoderConfig:
        """The papers' network."""
        dimension = self.index.payload(return_docnos=False)[0].shape[1]
        features = None if self.options.cross_encoder is None else self.graph(k).edge_features().shape[1]
        return PaperGNNEncoderConfig(dimension, **{"heads": self.options.heads, "edge_features": features} | changes)

    def _encoder(
        self, network: Any, seed: int, k: int, training: GNNEncoderTraining, control: bool = False
    ) -> GNNEncoder:
        return GNNEncoder(
            self.encoder,
            self.index,
            self.graph(k),
            network,
            documents=self.documents,
            control=control,
            training=training,
            folder=self.output / "vectors",
            seed=seed,
            verbose=True,
        )

    @property
    def _scale(self) -> float:
        """Of dot products: the papers' vectors are long, and have none; similarities of short ones need one."""
        return scale_of(None, self.encoder.similarity == "cosine")

    def _training(self, seed: int, **changes: Any) -> GNNEncoderTraining:
        options = self.options
        common = {
            "epochs": options.epochs,
            "batch_size": options.batch,
            "learning_rate": options.learning_rate,
            "negatives": options.negatives,
            "seed": seed,
        }
        return GNNEncoderTraining(**common | changes)

    def _fit(self, model: GNNEncoder) -> GNNEncoder:
        return model.fit(*self.training_queries, *self.task.dev)

    def ranking(self, name: str, system: str, seed: int, k: int, masked: float) -> pd.DataFrame:
        """What a system finds for the test queries: documents by their best passage, where those are judged."""
        file = self.output / "runs" / f"{slug(name)}-{seed}.csv.gz"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            found = self._retrieved(system, seed, k, masked, self.output / f"{slug(name)}-{seed}.flex")
            with pt.io.finalized_autoopen(str(file), "b") as out:
                out.write(found.to_csv(index=False).encode())
        return pd.read_csv(file, dtype={"qid": str, "docno": str})

    @cached_property
    def test_queries(self) -> pd.DataFrame:
        """The test queries, encoded."""
        return self.encoder.query_encoder()(self.task.test.topics)

    def _retrieved(self, system: str, seed: int, k: int, masked: float, path: Path) -> pd.DataFrame:
        index, queries = self.index, self.test_queries
        own = path.with_suffix(".base.flex")
        if system != DUAL:
            model = self._system(system, seed, k, masked)
            base = self.index
            if system in JOINTLY:  # whose encoder has changed
                shutil.rmtree(own, ignore_errors=True)
                base = self._indexed(model.encoder, own)
            shutil.rmtree(path, ignore_errors=True)
            index = model.fuse(base, FlexIndex(str(path), verbose=False))
            if system == RETRAINED:
                rate = self.options.retraining_learning_rate
                training = GNNEncoderTraining(epochs=2, batch_size=32, encoder_learning_rate=rate, seed=seed)
                model.fit_query_encoder(index, *self.training_queries, *self.task.dev, training=training)
            if system in (RETRAINED, *JOINTLY):
                queries = model.query_encoder()(self.task.test.topics)
        found = index.np_retriever(num_results=DEPTH, drop_query_vec=True)(queries)
        for folder in (path, own):
            shutil.rmtree(folder, ignore_errors=True)
        if not self.task.test.qrels["docno"].str.contains(PASSAGE_NUMBER).any():
            found = found.assign(docno=documents_of(found["docno"]))
            found = found.sort_values("score", ascending=False, kind="stable").drop_duplicates(["qid", "docno"])
        found = pt.model.add_ranks(found[["qid", "docno", "score"]])
        return found[found["rank"] < KEPT]

    def _system(self, system: str, seed: int, k: int, masked: float) -> Any:
        if system == RULE:
            return self.rule(k)
        if system == CONTROL:
            return self.control(seed, k)
        if system == CONTROL_RULE:
            return self.control_rule(seed, k)
        if system in (GNN, RETRAINED):
            return self.gnn(seed, k, masked)
        if system in JOINTLY:
            return self.joint(system, seed, k, masked)
        return self.papers(system, seed, k, masked)

    def groups(self) -> dict[str, np.ndarray]:
        """Test queries by what the passages that they look for have listened to."""
        listened, test = self.task.listened, self.task.test
        known, asked = (
            qrels.assign(document=documents_of(qrels["docno"]))
            for qrels in (part.qrels[part.qrels["label"] > 0] for part in (listened, test))
        )
        known = known[known["document"].isin(asked["document"])].merge(listened.topics, on="qid")
        words = known.groupby("document")["query"].agg(lambda texts: [_words(text) for text in texts])
        wanted = asked.groupby("qid")["document"].agg(set)
        rows = {}
        for query in test.topics.itertuples():
            own = _words(query.query)
            others = [other for name in wanted.get(query.qid, ()) for other in words.get(name, ())]
            rows[query.qid] = max((len(own & other) / len(own | other) for other in others), default=-1.0)
        overlap = pd.Series(rows)
        return {
            "no training query": overlap.index[overlap < 0].to_numpy(),
            f"overlap below {OVERLAP}": overlap.index[(overlap >= 0) & (overlap < OVERLAP)].to_numpy(),
            f"overlap from {OVERLAP}": overlap.index[overlap >= OVERLAP].to_numpy(),
        }


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower())) or {""}


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
