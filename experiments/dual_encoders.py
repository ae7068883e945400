"""Dual-encoders trained step by step: Tables 2, 3 and 5 of Ren et al. 2021 (PAIR).

All systems start at the same checkpoint. What the teacher believes is worked out once, and serves all of them. The run
of each training is written when it is complete: killed, an experiment goes on with the next.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pyterrier as pt
from datasets import Dataset, concatenate_datasets
from ir_measures import RR, R, nDCG
from ir_measures.measures import Measure
from pyterrier_dr import FlexIndex

from experiments.text_reranking import DatasetTexts, Texts, judged, parsed, sampled, slug, with_texts
from pyterrier_graph.demo import index_bm25
from pyterrier_graph.evaluation.folds import query_folds
from pyterrier_graph.evaluation.significance import summarize
from pyterrier_graph.rerank.cross_encoder import CrossEncoderReranker
from pyterrier_graph.retrieve.dual_encoder import DualEncoder
from pyterrier_graph.training.dual import DualEncoderTraining
from pyterrier_graph.training.mining import HardNegativeMiner, TrainingExamples
from pyterrier_graph.training.pairs import CrossEncoderTraining
from pyterrier_graph.training.validation import RunEvaluator

MEASURES: tuple[Measure, ...] = (RR @ 10, R @ 5, R @ 20, R @ 100, nDCG @ 10)
BM25, START = "BM25", "start"
QUERY_LENGTH = 32
CORPUS_BATCH = 4096
SIMILARITIES = 500

logger = logging.getLogger(__name__)


class Queries(NamedTuple):
    """Queries and their judgments."""

    topics: pd.DataFrame
    qrels: pd.DataFrame


@dataclass(frozen=True)
class Task:
    """What is compared on.

    Attributes:
        corpus: The passages.
        train: Queries to learn from.
        dev: Queries that weights are chosen by.
        test: Queries that are reported.
        unlabeled: Queries to learn from that have no judgments: ``qid, query``.
    """

    corpus: Texts
    train: Queries
    dev: Queries
    test: Queries
    unlabeled: pd.DataFrame


@dataclass(frozen=True)
class System:
    """How a dual-encoder is trained.

    Attributes:
        hard_negatives: Whether it has any.
        teacher: Whether a cross-encoder denoises them, and makes pseudo labels.
        pretraining: Alpha of the first stage, on pseudo labels; None leaves the stage out.
        alpha: That of the second stage.
        separate_encoders: Whether queries and passages have an encoder each.
    """

    hard_negatives: bool = True
    teacher: bool = True
    pretraining: float | None = 0.1
    alpha: float = 0.0
    separate_encoders: bool = False


PAIR = System()
SYSTEMS = {
    "in-batch negatives": System(hard_negatives=False, teacher=False, pretraining=None),
    "+ hard negatives": System(teacher=False, pretraining=None),
    "+ denoising": System(pretraining=None),
    "PAIR": PAIR,
    "PAIR, w/o PSR": dataclasses.replace(PAIR, pretraining=0.0),
    "PAIR, w/o KD": dataclasses.replace(PAIR, teacher=False),
    "PAIR, w/ PSR in fine-tuning": dataclasses.replace(PAIR, alpha=0.1),
    "PAIR, separate encoders": dataclasses.replace(PAIR, separate_encoders=True),
    "PAIR, w/o pre-training": dataclasses.replace(PAIR, pretraining=None),
}
STEPS = tuple(SYSTEMS)[:4]
CHOICES = {slug(name.lower().replace("w/", "with").replace("witho", "without")).lstrip("+-"): name for name in SYSTEMS}


def main(defaults: Sequence[str] = (), arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Runs the experiment from the command line.

    Args:
        defaults: Arguments that those of the command line override.
        arguments: Those; by default the program's.
    """
    options = parsed(parser(), defaults, arguments)
    return run(task_of(options), options)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, shown = command.add_argument, "%(default)s"
    data = add_collection(command)
    data.add_argument("--unlabeled", help="queries without judgments: a dataset, or a file with one query a line")
    data.add_argument("--unlabeled-share", type=float, default=0.0, help="of the training queries lose their labels")
    data.add_argument("--first-stage", choices=["pisa", "terrier"], default="pisa", help="what BM25 runs on")
    systems = command.add_argument_group("systems")
    systems.add_argument("--systems", nargs="*", choices=[*CHOICES], default=[*CHOICES][: len(STEPS)])
    systems.add_argument("--model", default="bert-base-uncased", help=f"where all start ({shown})")
    systems.add_argument("--teacher", help="a cross-encoder that is trained already (one is trained on the labels)")
    systems.add_argument("--teacher-model", help="where its training starts (--model)")
    systems.add_argument("--max-length", type=int, default=128, help=f"tokens of a passage ({shown})")
    mining = command.add_argument_group("examples")
    mining.add_argument("--negatives", type=int, default=4, help=f"hard negatives of a positive ({shown})")
    mining.add_argument("--depth", type=int, default=50, help=f"candidates per query ({shown})")
    mining.add_argument("--thresholds", nargs="+", default=["0.9/0.1"], help="s_pos/s_neg; several give Table 5")
    training = command.add_argument_group("training")
    training.add_argument("--seeds", nargs="+", type=int, default=[0])
    training.add_argument("--epochs", type=int, default=10, help=f"of each stage ({shown})")
    training.add_argument("--batch", type=int, default=512, help=f"({shown})")
    training.add_argument("--mini-batch", type=int, help="texts encoded at once, in batches of any size (all)")
    training.add_argument("--learning-rate", type=float, default=3e-5, help=f"({shown})")
    training.add_argument("--teacher-epochs", type=int, default=2, help=f"({shown})")
    training.add_argument("--teacher-pairs", type=int, default=10_000, help=f"per epoch ({shown})")
    training.add_argument("--teacher-learning-rate", type=float, default=3e-5, help=f"({shown})")
    add("--output", default="dense-retrieval", help=f"folder for indexes, examples, runs and tables ({shown})")
    return command


def add_collection(command: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Adds what :func:`splits_of` and :func:`limited` read; returns the group, for further arguments."""
    data = command.add_argument_group("collection", "datasets of ir_datasets")
    data.add_argument("--dataset", help="whose documents are searched; of its queries, if there are no others, three")
    data.add_argument("--train", help="training queries (fifths of the dataset's are for training,")
    data.add_argument("--dev", help="validation queries (one is for validation,")
    data.add_argument("--test", help="test queries (and one for the test)")
    data.add_argument("--train-queries", type=int, help="so many, drawn at random (all)")
    data.add_argument("--dev-queries", type=int, default=500, help="so many, drawn at random (%(default)s)")
    command.set_defaults(fold=0)
    return data


def splits_of(
    options: argparse.Namespace, corpus: DatasetTexts, hold_out: Callable[[Queries], Sequence[Queries]]
) -> list[Queries]:
    """The queries that the command line names, for training, validation and test.

    Args:
        options: As :func:`add_collection` has them parsed.
        corpus: ``options.dataset``.
        hold_out: Divides training queries into those that stay and validation queries, where there are no others.
    """
    if options.test is None:
        return divided(*judged(corpus, None), fold=options.fold)
    if options.train is None:
        raise SystemExit("--test needs --train")
    train, test = (Queries(*judged(DatasetTexts(name), None)) for name in (options.train, options.test))
    if options.dev is None:
        return [*hold_out(train), test]
    return [train, Queries(*judged(DatasetTexts(options.dev), None)), test]


def limited(train: Queries, dev: Queries, options: argparse.Namespace) -> list[Queries]:
    """So many training and validation queries as the options ask for."""
    counts = (options.train_queries, options.dev_queries)
    return [among(queries, sampled(queries.topics, n)) for queries, n in zip((train, dev), counts, strict=True)]


def task_of(options: argparse.Namespace) -> Task:
    """The queries that the command line names."""
    corpus = DatasetTexts(options.dataset)
    splits = splits_of(options, corpus, _fifth)
    unlabeled = None
    if options.unlabeled is not None:
        if Path(options.unlabeled).exists():
            unlabeled = pt.io.read_topics(options.unlabeled, "singleline", tokenise=False)
        else:
            unlabeled = DatasetTexts(options.unlabeled).get_topics()
    return task(corpus, splits, options, unlabeled)


def _fifth(train: Queries) -> list[Queries]:
    train, dev, rest = divided(*train)
    return [Queries(*map(pd.concat, zip(train, rest, strict=True))), dev]


def task(
    corpus: Texts, splits: Sequence[Queries], options: argparse.Namespace, unlabeled: pd.DataFrame | None = None
) -> Task:
    """So many of the queries as the options ask for, some of them without labels."""
    train, dev, test = splits
    train, dev = limited(train, dev, options)
    if unlabeled is None:
        unlabeled = sampled(train.topics, round(options.unlabeled_share * len(train.topics)))
        train = among(train, train.topics[~train.topics["qid"].isin(unlabeled["qid"])].reset_index(drop=True))
    return Task(corpus, train, dev, test, unlabeled)


def divided(topics: pd.DataFrame, qrels: pd.DataFrame, *, fold: int = 0) -> list[Queries]:
    """Three fifths of the queries, one, and one; the fold says which of the five."""
    folds = query_folds(topics)
    folds = [*folds[fold:], *folds[:fold]]
    parts = [set().union(*folds[2:]), folds[0], folds[1]]
    everything = Queries(topics, qrels)
    return [among(everything, topics[topics["qid"].isin(part)].reset_index(drop=True)) for part in parts]


def among(queries: Queries, topics: pd.DataFrame) -> Queries:
    """Some of the queries."""
    return Queries(topics, queries.qrels[queries.qrels["qid"].isin(topics["qid"])].reset_index(drop=True))


def run(
    task: Task, options: argparse.Namespace, teacher: Callable[[Bench], pt.Transformer] | None = None
) -> pd.DataFrame:
    """Runs the experiment.

    Writes ``per_query.csv``, ``results.csv``, ``mined.csv`` (what became of each query and candidate) and
    ``similarities/`` (the paper's Fig. 4, for :func:`pyterrier_graph.plots.similarity_shift`) to ``options.output``.

    Args:
        task: The collection.
        options: As :func:`parser` makes them.
        teacher: See :class:`Bench`.

    Returns:
        The table.
    """
    output = Path(options.output)
    output.mkdir(parents=True, exist_ok=True)
    bench = Bench(task, options, teacher)
    logger.info("%d training queries, %d unlabeled", len(task.train.topics), len(task.unlabeled))
    found: list[pd.DataFrame] = []

    def evaluate(name: str, seed: int, ranking: pd.DataFrame) -> None:
        values = pt.Experiment([ranking], *task.test, [*MEASURES], names=[name], perquery=True)
        found.append(values.assign(seed=seed))

    evaluate(BM25, 0, bench.bm25(task.test.topics))
    evaluate(START, 0, bench.ranking(START, 0, lambda: bench.dual_encoder(PAIR, 0)))
    chosen = [CHOICES[name] for name in options.systems]
    if any(SYSTEMS[name].teacher for name in chosen):
        bench.check_teacher()
    for seed, name, thresholds in itertools.product(options.seeds, chosen, options.thresholds):
        system = SYSTEMS[name]
        if len(options.thresholds) > 1:
            if not system.teacher and thresholds != options.thresholds[0]:
                continue
            name = f"{name}, {thresholds}" if system.teacher else name
        logger.info("%s, seed %d", name, seed)
        train = bench.training(system, thresholds, seed, f"{slug(name)}-{seed}")
        evaluate(name, seed, bench.ranking(name, seed, train))
    per_query = pd.concat(found, ignore_index=True)
    per_query.to_csv(output / "per_query.csv", index=False)
    results = summarize(per_query, START).reset_index()
    results.to_csv(output / "results.csv", index=False)
    print(f"+ and -: better and worse than {START}")
    print(results.to_string(index=False))
    return results


class Bench:
    """What all systems share: first stage, teacher, mined examples.

    Args:
        task: The collection.
        options: As :func:`parser` makes them.
        teacher: Makes another teacher than a cross-encoder, once it is needed: ``qid, query, docno, text`` to
            ``score``, a probability.
    """

    def __init__(
        self, task: Task, options: argparse.Namespace, teacher: Callable[[Bench], pt.Transformer] | None = None
    ) -> None:
        self.task = task
        self.options = options
        self.make_teacher = teacher or Bench.cross_encoder
        self.output = Path(options.output)
        self.bm25 = index_bm25(task.corpus, self.output / options.first_stage, options.first_stage) % 1000
        self._mined: dict[tuple[str, bool, str], TrainingExamples] = {}

    @cached_property
    def texts(self) -> pt.Transformer:
        """Adds texts to documents."""
        return pt.apply.generic(self._with_texts)

    def _with_texts(self, run: pd.DataFrame) -> pd.DataFrame:
        texts = self.task.corpus.texts(run["docno"])
        return run.assign(text=run["docno"].map(texts))

    @cached_property
    def validation(self) -> pd.DataFrame:
        """Candidates of the validation queries."""
        return self.candidates(self.task.dev)

    @cached_property
    def teacher(self) -> pt.Transformer:
        """What believes or does not."""
        return self.make_teacher(self)

    def cross_encoder(self) -> CrossEncoderReranker:
        """A teacher: the cross-encoder that the options name, or one that is trained on the labels."""
        options = self.options
        folder = self.output / "teacher"
        if options.teacher is not None:
            return CrossEncoderReranker(
                options.teacher, max_length=options.max_length + QUERY_LENGTH, probabilities=True, verbose=True
            )
        if not folder.exists():
            training = CrossEncoderTraining(
                epochs=options.teacher_epochs,
                learning_rate=options.teacher_learning_rate,
                encoder_learning_rate=options.teacher_learning_rate,
                pairs_per_epoch=options.teacher_pairs,
                ranking="pointwise",
                measure="nDCG@10",
            )
            logger.info("training the teacher")
            teacher = CrossEncoderReranker(
                options.teacher_model or options.model,
                training=training,
                max_length=options.max_length + QUERY_LENGTH,
                probabilities=True,
                verbose=True,
            )
            train, dev = self.task.train, self.task.dev
            teacher.fit(self.candidates(train), train.qrels, self.validation, dev.qrels).save(folder)
        return CrossEncoderReranker.load(folder, verbose=True)

    def check_teacher(self) -> None:
        """Says how well the teacher ranks: one that is worse than its student has nothing to teach."""
        evaluate = RunEvaluator("nDCG@10", self.task.dev.qrels)
        rankers = (self.teacher, self.dual_encoder(PAIR, 0).text_scorer())
        teacher, student = (
            evaluate(ranker.transform(self.validation)[["qid", "docno", "score"]]) for ranker in rankers
        )
        level = logging.WARNING if teacher < student else logging.INFO
        message = "nDCG@10 on the validation candidates: %.3f the teacher, %.3f the untrained dual-encoder"
        logger.log(level, message, teacher, student)

    def candidates(self, queries: Queries) -> pd.DataFrame:
        """What BM25 finds, and the relevant passages that it does not."""
        found = (self.bm25 % self.options.depth)(queries.topics)
        relevant = queries.qrels[["qid", "docno"]].merge(queries.topics, on="qid").assign(score=0.0, rank=0)
        return with_texts(pd.concat([found, relevant]).drop_duplicates(["qid", "docno"]), self.task.corpus)

    def mined(self, kind: str, teacher: bool, thresholds: str, hard_negatives: bool = True) -> Dataset:
        """Examples of a kind: ``labeled``, ``pseudo-labeled``, or ``unlabeled``."""
        key = (f"{kind}-{int(hard_negatives)}", teacher, thresholds if teacher else "")
        if key not in self._mined:
            positive, negative = map(float, thresholds.split("/"))
            miner = HardNegativeMiner(
                self.bm25,
                self.texts,
                teacher=self.teacher if teacher else None,
                hard_negatives=self.options.negatives if hard_negatives else 0,
                depth=self.options.depth,
                positive_threshold=positive,
                negative_threshold=negative,
                folder=self.output / "examples",
                verbose=True,
            )
            if kind == "labeled":
                examples = miner.labeled(*self.task.train)
            elif kind == "pseudo-labeled":
                examples = miner.pseudo_labeled(*self.task.train)
            else:
                examples = miner.pseudo_labeled(self.task.unlabeled)
            logger.info("%s, %s:\n%s", kind, "denoised" if teacher else "as found", examples.report.to_string())
            self._mined[key] = examples
            reports = {" ".join(map(str, key)): made.report for key, made in self._mined.items()}
            pd.concat(reports, names=["examples"]).to_csv(self.output / "mined.csv")
        return self._mined[key].dataset

    def dual_encoder(self, system: System, seed: int, folder: str | None = None) -> DualEncoder:
        """An untrained dual-encoder."""
        options = self.options

        def stage(alpha: float) -> DualEncoderTraining:
            return DualEncoderTraining(
                epochs=options.epochs,
                batch_size=options.batch,
                mini_batch_size=options.mini_batch,
                learning_rate=options.learning_rate,
                alpha=alpha,
                patience=None,
                seed=seed,
                output_dir=None if folder is None else str(self.output / "checkpoints" / folder),
            )

        return DualEncoder(
            options.model,
            training=stage(system.alpha),
            pretraining=stage(system.pretraining or 0.0),
            separate_encoders=system.separate_encoders,
            max_query_length=QUERY_LENGTH,
            max_passage_length=options.max_length,
            seed=seed,
            verbose=True,
        )

    def training(self, system: System, thresholds: str, seed: int, folder: str) -> Callable[[], DualEncoder]:
        """What trains a system."""

        def train() -> DualEncoder:
            examples = self.mined("labeled", system.teacher, thresholds, system.hard_negatives)
            first = None
            if system.pretraining is not None and not system.teacher:
                first = examples  # there are no other labels
            elif system.pretraining is not None:
                first = self.mined("unlabeled", True, thresholds)
                examples = concatenate_datasets([examples, self.mined("pseudo-labeled", True, thresholds)])
            dual_encoder = self.dual_encoder(system, seed, folder)
            dev = self.task.dev.qrels
            return dual_encoder.fit_examples(examples, self.validation, dev, pretraining_examples=first)

        return train

    def ranking(self, name: str, seed: int, train: Callable[[], DualEncoder]) -> pd.DataFrame:
        """What a dual-encoder finds for the test queries; kept, with its similarities."""
        file = self.output / "runs" / f"{slug(name)}-{seed}.csv.gz"
        if not file.exists():
            dual_encoder = train()
            with tempfile.TemporaryDirectory() as folder:
                index = FlexIndex(f"{folder}/passages.flex", verbose=False)
                (dual_encoder.doc_encoder() >> index).index(self._passages(), batch_size=CORPUS_BATCH)
                retriever = dual_encoder.query_encoder() >> index.np_retriever(num_results=100)
                found = retriever(self.task.test.topics)[["qid", "docno", "score", "rank"]]
            similarities = self.output / "similarities" / file.name
            for place, frame in ((similarities, self._similarities(dual_encoder)), (file, found)):
                place.parent.mkdir(parents=True, exist_ok=True)
                with pt.io.finalized_autoopen(str(place), "b") as out:
                    out.write(frame.to_csv(index=False).encode())
        return pd.read_csv(file, dtype={"qid": str, "docno": str})

    def _passages(self) -> Iterator[dict[str, str]]:
        for document in self.task.corpus.get_corpus_iter(verbose=True):
            yield {"docno": document["docno"], "text": f"{document['title']}\n{document['text']}".strip()}

    def _similarities(self, dual_encoder: DualEncoder) -> pd.DataFrame:
        """s(p+, q) and s(p+, p-) of test queries, their relevant passages, and BM25's best others (Fig. 4)."""
        miner = HardNegativeMiner(self.bm25, self.texts, hard_negatives=1, depth=self.options.depth)
        triples = miner.labeled(*self.task.test).dataset.to_pandas().head(SIMILARITIES)
        queries = dual_encoder.encode_queries(triples["query"].tolist())
        positives, negatives = (dual_encoder.encode_docs(triples[name].tolist()) for name in ("positive", "negative_1"))
        return pd.DataFrame(
            {
                "positive_query": (positives * queries).sum(1),
                "positive_negative": (positives * negatives).sum(1),
            }
        )


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
