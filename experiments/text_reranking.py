"""LGRe against cross-encoders, cross-validated on a collection of texts: Tables 2 to 5 of Dong and Niu 2021.

All systems rerank the same candidates. All that are trained start at the same checkpoint and see the same pairs, for
the same loss and budget. The run of every fold is written when it is complete: killed, an experiment goes on with the
next. Several values of ``--words`` give Table 3, of ``--distances`` Table 4; ``--within-groups`` gives Table 5.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import logging
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, get_args

import pandas as pd
import pyterrier as pt
from ir_measures import AP, P, nDCG
from ir_measures.measures import Measure
from transformers import AutoTokenizer

from pyterrier_graph.demo import index_bm25
from pyterrier_graph.documents import StructuredDocument, passage_id, split_passage_id
from pyterrier_graph.evaluation.cross_validation import cross_validate
from pyterrier_graph.evaluation.folds import by_query_length, folds_of, query_folds
from pyterrier_graph.evaluation.significance import summarize
from pyterrier_graph.models.lgre import Init, WordGraph
from pyterrier_graph.models.lgre_losses import Distance, LGReLoss, Ranking
from pyterrier_graph.rerank.cross_encoder import CHECKPOINT, CrossEncoderReranker
from pyterrier_graph.rerank.lgre import LGReReranker
from pyterrier_graph.training.pairs import CrossEncoderTraining, LGReTraining
from pyterrier_graph.training.validation import PASSAGE_NUMBER

MEASURES: tuple[Measure, ...] = (P @ 20, nDCG @ 20, nDCG @ 10, AP @ 100)
BM25, START, CROSS_ENCODER, MAX_PASSAGE, LGRE = "BM25", "start", "cross-encoder", "cross-encoder, max passage", "LGRe"
SYSTEMS = {"start": START, "cross-encoder": CROSS_ENCODER, "max-passage": MAX_PASSAGE, "lgre": LGRE}
# ir_datasets hands out the codes of Cleverdon, of which 1 is the best, as if they were grades
CRANFIELD_GRADES = {1: 4, 2: 3, 3: 2, 4: 1, -1: 0}
PASSAGE_WORDS, PASSAGE_STRIDE = 150, 75
GROUP_QUERIES, GROUP_FOLDS = 100, 10
Folds = Sequence[Collection[str]]

logger = logging.getLogger(__name__)


class Texts(Protocol):
    """A collection of texts, queries and judgments."""

    def get_corpus_iter(self, *, verbose: bool) -> Iterable[dict[str, Any]]:
        """Documents with ``docno``, ``title`` and ``text``."""

    def get_topics(self) -> pd.DataFrame:
        """``qid, query``."""

    def get_qrels(self) -> pd.DataFrame:
        """``qid, docno, label``."""

    def texts(self, docnos: Iterable[str]) -> dict[str, str]:
        """What is reranked, by docno."""


class DatasetTexts:
    """Datasets of ir_datasets over the same documents, or over their passages, where the documents are structured.

    Args:
        ids: Of the datasets, with or without ``irds:``. All of the first one's documents are indexed.
    """

    def __init__(self, *ids: str) -> None:
        import ir_datasets

        self.ids = [name.removeprefix("irds:") for name in ids]
        self.datasets = [ir_datasets.load(name) for name in self.ids]
        self.structured = "nodes" in self.datasets[0].docs_cls()._fields

    def get_corpus_iter(self, *, verbose: bool) -> Iterator[dict[str, str]]:
        """The documents; the title is in the text."""
        documents = pt.tqdm(self.datasets[0].docs_iter(), desc=self.ids[0], unit="d", disable=not verbose)
        for document in documents:
            for docno, text in self._texts_of(document).items():
                yield {"docno": docno, "title": "", "text": text}

    def get_topics(self) -> pd.DataFrame:
        """The queries of all datasets; of TREC topics, the titles."""
        rows = [(query.query_id, query.default_text()) for dataset in self.datasets for query in dataset.queries_iter()]
        return pd.DataFrame(rows, columns=["qid", "query"])

    def get_qrels(self) -> pd.DataFrame:
        """The judgments of all datasets."""
        rows = [(j.query_id, j.doc_id, j.relevance) for dataset in self.datasets for j in dataset.qrels_iter()]
        qrels = pd.DataFrame(rows, columns=["qid", "docno", "label"])
        return qrels.replace({"label": CRANFIELD_GRADES}) if self.ids[0] == "cranfield" else qrels

    def texts(self, docnos: Iterable[str]) -> dict[str, str]:
        """Texts from the dataset's store."""
        wanted = set(docnos)
        documents = {split_passage_id(docno)[0] for docno in wanted} if self.structured else wanted
        found = self.datasets[0].docs_store().get_many(documents)
        return {
            docno: text
            for document in found.values()
            for docno, text in self._texts_of(document).items()
            if docno in wanted
        }

    def _texts_of(self, document: Any) -> dict[str, str]:
        if not self.structured:
            return {document.doc_id: document.default_text()}
        passages = StructuredDocument.from_record(document._asdict() | {"docno": document.doc_id}).passages()
        return {passage_id(document.doc_id, number): text for number, text in enumerate(passages)}


@dataclass(frozen=True)
class Task:
    """What is compared on.

    Attributes:
        candidates: What is reranked: ``qid, query, docno, score, rank, text``.
        qrels: Judgments.
        folds: The qids of each fold.
    """

    candidates: pd.DataFrame
    qrels: pd.DataFrame
    folds: Folds

    @property
    def topics(self) -> pd.DataFrame:
        """The queries that have candidates."""
        return self.candidates[["qid", "query"]].drop_duplicates("qid")


def main(defaults: Sequence[str] = (), arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Runs the experiment from the command line.

    Args:
        defaults: Arguments that those of the command line override.
        arguments: Those; by default the program's.
    """
    options = parsed(parser(), defaults, arguments)
    collection = DatasetTexts(*options.dataset)
    try:
        folds = folds_of(options.dataset[0]) if len(options.dataset) == 1 and options.folds is None else None
    except KeyError:  # it has none
        folds = None
    return run(collection, options, folds)


def parsed(
    command: argparse.ArgumentParser, defaults: Sequence[str], arguments: Sequence[str] | None
) -> argparse.Namespace:
    """The options; without a dataset there is nothing to do."""
    options = command.parse_args([*defaults, *(sys.argv[1:] if arguments is None else arguments)])
    if not options.dataset:
        raise SystemExit("name a dataset: --dataset irds:vaswani")
    return options


def parser() -> argparse.ArgumentParser:
    """The command line; the defaults are the paper's."""
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, shown = command.add_argument, "%(default)s"
    data = command.add_argument_group("collection")
    data.add_argument("--dataset", nargs="+", help="ids of ir_datasets, over the same documents")
    data.add_argument("--first-stage", choices=["pisa", "terrier"], default="pisa", help="what BM25 runs on")
    data.add_argument("--run", help="a run in TREC's format instead of BM25's; nothing is indexed")
    data.add_argument("--candidates", type=int, default=150, help=f"documents per query that are reranked ({shown})")
    data.add_argument("--queries", type=int, help="so many, drawn at random (all)")
    data.add_argument("--folds", type=int, help="divide the queries at random (5, or the folds of the dataset)")
    models = command.add_argument_group("systems")
    models.add_argument("--systems", nargs="+", choices=[*SYSTEMS], default=["cross-encoder", "max-passage", "lgre"])
    models.add_argument("--checkpoint", default="bert-base-uncased", help=f"where all start ({shown})")
    models.add_argument("--words", nargs="+", choices=get_args(WordGraph), default=["bipartite+neighbor"])
    models.add_argument("--distances", nargs="+", choices=get_args(Distance), default=["triangle"])
    models.add_argument("--layers", nargs="+", default=["all"], help="of LGRe: all, or how many of the last")
    models.add_argument("--steps", nargs="+", type=int, default=[2], help="T of LGRe")
    models.add_argument("--init", nargs="+", choices=get_args(Init), default=["random"], help="of LGRe")
    models.add_argument("--max-length", type=int, default=512, help=f"tokens of query and document ({shown})")
    models.add_argument("--score-batch", type=int, default=32, help=f"documents scored at once ({shown})")
    training = command.add_argument_group("training")
    training.add_argument("--seeds", nargs="+", type=int, default=[0])
    training.add_argument("--ranking", choices=get_args(Ranking), default="hinge", help="loss of all systems")
    training.add_argument("--epochs", type=int, default=20, help=f"({shown})")
    training.add_argument("--pairs", type=int, default=512, help=f"per epoch ({shown})")
    training.add_argument("--batch", type=int, default=32, help=f"pairs ({shown})")
    training.add_argument("--learning-rate", type=float, default=5e-5, help=f"on top of the encoder ({shown})")
    training.add_argument("--encoder-learning-rate", type=float, default=1e-5, help=f"({shown})")
    training.add_argument("--patience", type=int, help="epochs without improvement before it stops (never)")
    training.add_argument("--adapt", metavar="DATASET", help="train the checkpoint on it first ('': do not)")
    training.add_argument("--adapt-queries", type=int, default=2000, help=f"of it ({shown})")
    training.add_argument("--adapt-candidates", type=int, default=100, help=f"negatives are from these ({shown})")
    training.add_argument("--adapt-pairs", type=int, default=10_000, help=f"({shown})")
    training.add_argument("--adapt-learning-rate", type=float, default=1e-5, help=f"of all weights ({shown})")
    add("--query-length", nargs="+", type=int, metavar="BOUND", help="tables by numbers of word pieces as well")
    add("--within-groups", action="store_true", help="train, too, within the groups of --query-length (default: 3)")
    add("--output", default="text-reranking", help=f"folder for indexes, runs and tables ({shown})")
    return command


def run(collection: Texts, options: argparse.Namespace, folds: Folds | None = None) -> pd.DataFrame:
    """Runs the experiment on a collection.

    Writes ``per_query.csv`` and ``results.csv`` to ``options.output``.

    Args:
        collection: The collection.
        options: As :func:`parser` makes them.
        folds: Of its queries; by default they are divided at random.

    Returns:
        The table.
    """
    output = Path(options.output)
    output.mkdir(parents=True, exist_ok=True)
    task = prepare(collection, options, folds)
    checkpoint = adapted(options, output) if options.adapt else options.checkpoint
    tokenize = AutoTokenizer.from_pretrained(checkpoint).tokenize
    groups = by_query_length(task.topics, options.query_length or (3,), tokenize=tokenize)
    if options.within_groups:
        parts = [
            compare(within(task, group), options, checkpoint, output / "runs" / slug(name))
            for name, group in groups.items()
        ]
        per_query = pd.concat(parts, ignore_index=True)
    else:
        per_query = compare(task, options, checkpoint, output / "runs")
    per_query.to_csv(output / "per_query.csv", index=False)
    baseline = CROSS_ENCODER if "cross-encoder" in options.systems else BM25
    chosen = {} if options.within_groups else {"all": task.topics}
    if options.query_length or options.within_groups:
        chosen |= groups
    tables = []
    for name, group in chosen.items():
        values = per_query[per_query["qid"].isin(group["qid"])]
        if len(values):
            table = summarize(values, baseline).reset_index()
            table.insert(0, "queries", f"{name} ({values['qid'].nunique()})")
            tables.append(table)
    results = pd.concat(tables, ignore_index=True)[["queries", "system", *map(str, MEASURES)]]
    results.to_csv(output / "results.csv", index=False)
    print(f"+ and -: better and worse than {baseline}")
    print(results.to_string(index=False))
    return results


def prepare(collection: Texts, options: argparse.Namespace, folds: Folds | None) -> Task:
    """Finds candidates for the judged queries, and divides them into folds."""
    topics, qrels = judged(collection, options.queries)
    if options.run:
        candidates = pt.io.read_results(options.run).merge(topics, on="qid")
        candidates = pt.model.add_ranks(candidates)
        candidates = candidates[candidates["rank"] < options.candidates]
    else:
        bm25 = index_bm25(collection, Path(options.output) / options.first_stage, options.first_stage)
        candidates = (bm25 % options.candidates)(topics)
    candidates = with_texts(candidates, collection)
    qids = set(candidates["qid"])
    if folds is None:
        folds = query_folds(candidates, options.folds or 5)
    folds = [set(fold) & qids for fold in folds]
    return Task(candidates, qrels[qrels["qid"].isin(qids)].reset_index(drop=True), folds)


def judged(collection: Texts, count: int | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """So many of the judged queries, and their judgments."""
    topics, qrels = collection.get_topics(), collection.get_qrels()
    topics = sampled(topics[topics["qid"].isin(qrels["qid"])].reset_index(drop=True), count)
    return topics, qrels[qrels["qid"].isin(topics["qid"])].reset_index(drop=True)


def sampled(topics: pd.DataFrame, count: int | None) -> pd.DataFrame:
    """So many of the topics, in the same order; all, if there are no more."""
    if count is None or count >= len(topics):
        return topics
    return topics.sample(count, random_state=0).sort_index().reset_index(drop=True)


def with_texts(candidates: pd.DataFrame, collection: Texts) -> pd.DataFrame:
    """Candidates with their texts.

    Raises:
        KeyError: If the collection lacks a document.
    """
    texts = collection.texts(candidates["docno"])
    if missing := sorted(set(candidates["docno"]) - texts.keys()):
        raise KeyError(f"{len(missing)} candidates are not in the collection: {', '.join(missing[:5])}")
    columns = ["qid", "query", "docno", "score", "rank"]
    return candidates[columns].assign(text=candidates["docno"].map(texts)).reset_index(drop=True)


def within(task: Task, group: pd.DataFrame) -> Task:
    """A hundred queries of a group in ten folds (the paper's Table 5, which tests on one of them)."""
    chosen = sampled(group, GROUP_QUERIES)
    candidates, qrels = (f[f["qid"].isin(chosen["qid"])].reset_index(drop=True) for f in (task.candidates, task.qrels))
    return Task(candidates, qrels, query_folds(chosen, min(GROUP_FOLDS, len(chosen))))


def adapted(options: argparse.Namespace, output: Path) -> str:
    """Folder of the checkpoint after training on another collection; trained once for the same options."""
    made_with = {name: value for name, value in vars(options).items() if name.startswith("adapt")}
    made_with |= {name: getattr(options, name) for name in ("checkpoint", "batch", "ranking", "max_length")}
    folder = output / f"adapted-{hashlib.sha256(json.dumps(made_with).encode()).hexdigest()[:8]}"
    if not folder.exists():
        collection = DatasetTexts(options.adapt)
        topics, qrels = judged(collection, options.adapt_queries)
        index = output / f"adapt.{options.first_stage}"
        found = (index_bm25(collection, index, options.first_stage) % options.adapt_candidates)(topics)
        # what BM25 does not find is among what is to be told apart, too
        relevant = qrels[["qid", "docno"]].merge(topics, on="qid").assign(score=0.0, rank=0)
        examples = pd.concat([found, relevant]).drop_duplicates(["qid", "docno"])
        training = CrossEncoderTraining(
            epochs=1,
            learning_rate=options.adapt_learning_rate,
            encoder_learning_rate=options.adapt_learning_rate,
            batch_size=options.batch,
            pairs_per_epoch=options.adapt_pairs,
            ranking=options.ranking,
        )
        logger.info("training %s on %s", options.checkpoint, options.adapt)
        reranker = CrossEncoderReranker(
            options.checkpoint, training=training, max_length=options.max_length, verbose=True
        )
        reranker.fit(with_texts(examples, collection), qrels).save(folder)
    return str(folder / CHECKPOINT)


def compare(task: Task, options: argparse.Namespace, checkpoint: str, folder: Path) -> pd.DataFrame:
    """Cross-validates all systems with all seeds.

    Args:
        task: What they are compared on.
        options: As :func:`parser` makes them.
        checkpoint: Where they start.
        folder: For the runs; those that are there are not made again.

    Returns:
        ``name, qid, measure, value, seed``.
    """
    found: list[pd.DataFrame] = []

    def evaluate(name: str, seed: int, ranking: pd.DataFrame) -> None:
        values = pt.Experiment([ranking], task.topics, task.qrels, [*MEASURES], names=[name], perquery=True)
        found.append(values.assign(seed=seed))

    evaluate(BM25, 0, task.candidates)
    if "start" in options.systems:
        evaluate(START, 0, started(task, options, checkpoint, folder / "start.csv.gz"))

    def ranked(name: str, seed: int, make: Callable[[int], pt.Transformer]) -> pd.DataFrame:
        topics = passages_of(task) if name == MAX_PASSAGE else task.candidates
        kept = folder / f"{slug(name)}-{seed}"
        return cross_validate(lambda _: make(seed), topics, task.qrels, task.folds, output_dir=kept)

    for seed, (name, make) in itertools.product(options.seeds, systems(options, checkpoint).items()):
        logger.info("%s, seed %d", name, seed)
        evaluate(name, seed, ranked(name, seed, make))
    return pd.concat(found, ignore_index=True)


def started(task: Task, options: argparse.Namespace, checkpoint: str, file: Path) -> pd.DataFrame:
    """The candidates as the checkpoint ranks them before it is trained on the collection."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        ranked = CrossEncoderReranker(checkpoint, **_common(options)).transform(task.candidates)
        with pt.io.finalized_autoopen(str(file), "b") as out:
            out.write(ranked[["qid", "docno", "score", "rank"]].to_csv(index=False).encode())
    return pd.read_csv(file, dtype={"qid": str, "docno": str})


def passages_of(task: Task) -> pd.DataFrame:
    """Windows of the candidates.

    Raises:
        SystemExit: If they are passages themselves.
    """
    if task.qrels["docno"].str.contains(PASSAGE_NUMBER).any():
        raise SystemExit("there is nothing to cut: this collection's judgments are of passages; leave out max-passage")
    cut = pt.text.sliding(text_attr="text", length=PASSAGE_WORDS, stride=PASSAGE_STRIDE, prepend_attr=None)
    return cut.transform(task.candidates)


def systems(options: argparse.Namespace, checkpoint: str) -> dict[str, Callable[[int], pt.Transformer]]:
    """What is trained, by name: a seed makes an untrained pipeline."""
    shared = {
        "epochs": options.epochs,
        "batch_size": options.batch,
        "pairs_per_epoch": options.pairs,
        "learning_rate": options.learning_rate,
        "encoder_learning_rate": options.encoder_learning_rate,
        "patience": options.patience,
    }

    def cross_encoder(seed: int) -> CrossEncoderReranker:
        training = CrossEncoderTraining(**shared, ranking=options.ranking, seed=seed)
        return CrossEncoderReranker(checkpoint, training=training, seed=seed, **_common(options))

    def lgre(seed: int, words: WordGraph, distance: Distance, layers: str, steps: int, init: Init) -> LGReReranker:
        loss = LGReLoss(ranking=options.ranking, distance=distance)
        return LGReReranker(
            checkpoint,
            words,
            layers=None if layers == "all" else range(-int(layers), 0),
            steps=steps,
            init=init,
            training=LGReTraining(**shared, loss=loss, seed=seed),
            seed=seed,
            **_common(options),
        )

    made: dict[str, Callable[[int], pt.Transformer]] = {}
    if "cross-encoder" in options.systems:
        made[CROSS_ENCODER] = cross_encoder
    if "max-passage" in options.systems:
        made[MAX_PASSAGE] = lambda seed: cross_encoder(seed) >> pt.text.max_passage()
    if "lgre" in options.systems:
        choices: dict[str, list[Any]] = {
            "words": options.words,
            "distance": options.distances,
            "layers": options.layers,
            "steps": options.steps,
            "init": options.init,
        }
        for values in itertools.product(*choices.values()):
            chosen = dict(zip(choices, values, strict=True))
            varied = [f"{name} {value}" for name, value in chosen.items() if len(choices[name]) > 1]
            made[", ".join([LGRE, *varied])] = functools.partial(lgre, **chosen)
    return made


def _common(options: argparse.Namespace) -> dict[str, Any]:
    return {"max_length": options.max_length, "batch_size": options.score_batch}


def slug(name: str) -> str:
    """A name for a folder."""
    return re.sub(r"[^\w+.]+", "-", name.replace("<=", "to").replace(">", "over")).strip("-")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
