r"""Dual-encoders trained step by step: Tables 2, 3 and 5 of Ren et al. 2021 (PAIR).

    python -m experiments.dual_encoders medquad PATH --seeds 0 1 2 --output OUTPUT
    python -m experiments.dual_encoders irds:msmarco-passage --train irds:msmarco-passage/train/judged \
        --test irds:msmarco-passage/dev/small --unlabeled QUESTIONS --output OUTPUT

All systems start at the same checkpoint. The default systems give Table 2, the variants of PAIR Table 3, several values
of ``--thresholds`` Table 5. The teacher scores each pair once, for all systems.

Unlike in the paper, candidates for negatives and pseudo-labels come from BM25, not from DPR, and the optimizer is
AdamW, not LAMB. The paper's recall is AnswerRecall@k where questions have answers (``--test nq-test.qa.csv``, a file of
DPR), and else Success@k, since R@k is a share of passages.

With ``--hide`` there are false negatives among the candidates, as there are where few documents are judged;
``negatives.csv`` says how many of them each system takes for negatives.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyterrier as pt
from datasets import Dataset, concatenate_datasets
from ir_measures import parse_measure
from pyterrier_dr import FlexIndex

import pyterrier_graph as ptg
from experiments.harness.collection import Collection, Queries, text_of
from experiments.harness.command import add_options, parse, parser
from experiments.harness.first_stage import bm25
from experiments.harness.judgments import false_negatives, with_hidden
from experiments.harness.results import Results, choice, claim, deepest, slug, write
from pyterrier_graph.encoders.names import DEFAULT

MEASURES = ["RR@10", "R@5", "R@20", "R@50", "R@100", "R@1000", "nDCG@10"]
BM25, START = "BM25", "off the shelf"
QUERY_TOKENS = 32
CORPUS_BATCH = 4096
SIMILARITIES = 500


@dataclass(frozen=True)
class System:
    """How a dual-encoder is trained.

    Attributes:
        hard_negatives: Whether it has any.
        teacher: Whether a teacher denoises the hard negatives.
        pseudo_labels: Whether a teacher's pseudo-labels are positives, too: of unlabeled queries in the first stage,
            of labeled queries in the second.
        pretraining: Alpha of the first stage; None omits the stage.
        alpha: Alpha of the second stage.
        separate_encoders: Whether queries and passages have an encoder each.
    """

    hard_negatives: bool = True
    teacher: bool = True
    pseudo_labels: bool = True
    pretraining: float | None = 0.1
    alpha: float = 0.0
    separate_encoders: bool = False


PAIR = System()
SYSTEMS = {
    "in-batch negatives": System(
        hard_negatives=False, teacher=False, pseudo_labels=False, pretraining=None
    ),
    "+ hard negatives": System(teacher=False, pseudo_labels=False, pretraining=None),
    "+ denoising": System(pseudo_labels=False, pretraining=None),
    "PAIR": PAIR,
    "PAIR, w/o PSR": replace(PAIR, pretraining=0.0),
    "PAIR, w/o KD": replace(PAIR, teacher=False, pseudo_labels=False),
    "PAIR, w/ PSR in fine-tuning": replace(PAIR, alpha=0.1),
    "PAIR, w/o SP": replace(PAIR, separate_encoders=True),
    "PAIR, w/o pre-training": replace(PAIR, pretraining=None),
}
CHOICES = {choice(name): name for name in SYSTEMS}
SMALL: dict[str, Any] = {
    "encoder": DEFAULT,
    "pooling": None,
    "passages": 2000,
    "train_queries": 500,
    "unlabeled_share": 0.7,
    "dev_queries": 30,
    "max_tokens": 96,
    "negatives": 1,
    "depth": 20,
    "epochs": 2,
    "batch": 32,
    "learning_rate": 1e-4,
    "teacher_pairs": 512,
}

logger = logging.getLogger(__name__)


def command_line(*more: str) -> argparse.ArgumentParser:
    """The command line, with further systems; the defaults are the paper's, but for MedQuAD (20 minutes a seed)."""
    command = parser(__doc__, [*CHOICES, *more], [*CHOICES][:4])
    add_options(
        command,
        "queries",
        unlabeled=(str, "queries without judgments: a dataset, or a file with one query a line"),
        unlabeled_share=(0.0, "share of the training queries whose judgments are not used"),
        hide=(0.0, "share of the training queries' judgments that are not used; a query keeps one"),
    )
    add_options(
        command,
        "examples",
        negatives=(4, "hard negatives of a positive"),
        depth=(50, "candidates per query"),
        thresholds=(["0.9/0.1"], "s_pos/s_neg"),
        teacher_encoder=(str, "where its training starts (--encoder)"),
        teacher_epochs=(2, "epochs"),
        teacher_pairs=(10_000, "pairs per epoch"),
        teacher_learning_rate=(3e-5, "learning rate"),
    )
    add_options(
        command,
        "training",
        encoder=("bert-base-uncased", "where all systems start (the paper: ERNIE 2.0 base)"),
        pooling=("cls", "vector of a text (checkpoint's own for MedQuAD)", ["cls", "mean"]),
        max_tokens=(128, "tokens of a passage"),
        epochs=(10, "epochs of each stage"),
        batch=(512, "queries at a time"),
        learning_rate=(3e-5, "learning rate"),
        alpha=(
            [0.1],
            "weight of the passage-centric loss in the first stage; the paper tries 0 to 1",
        ),
        measures=(MEASURES, "AnswerRecall@k or Success@k is the papers' Recall@k"),
    )
    return command


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Runs the comparison, and returns its table."""
    collection, options = parse(command_line(), {"medquad": SMALL}, arguments)
    return run(collection, options)


def run(collection: Collection, options: argparse.Namespace) -> pd.DataFrame:
    """Compares the systems.

    Writes the table and ``similarities/`` (the paper's Fig. 4,
    for :func:`pyterrier_graph.show.plots.similarity_shift`).

    Args:
        collection: What is searched.
        options: See :func:`command_line`.

    Returns:
        The table.
    """
    measures = [parse_measure(name) for name in options.measures]
    options.results = deepest(measures, least=100)  # of a query, per stored run
    claim(options.output, options, ("systems", "seeds", "thresholds", "alpha", "measures"))
    bench = Bench(collection, options)
    results = Results(options.output, bench.test, measures, bench.corpus.with_texts)
    results.add(BM25, lambda: bench.bm25(bench.test.topics))
    results.add(START, lambda: bench.ranking(START, 0, lambda: bench.dual_encoder(PAIR, 0)))
    chosen = [CHOICES[name] for name in options.systems]
    for seed, name, thresholds, alpha in itertools.product(
        options.seeds, chosen, options.thresholds, options.alpha
    ):
        system = SYSTEMS[name]
        if not system.teacher and thresholds != options.thresholds[0]:
            continue
        if not system.pretraining and alpha != options.alpha[0]:
            continue
        if system.teacher and thresholds != "0.9/0.1":
            name = f"{name}, {thresholds}"
        if system.pretraining and alpha != system.pretraining:
            name, system = f"{name}, alpha = {alpha:g}", replace(system, pretraining=alpha)
        logger.info("%s, seed %d", name, seed)

        def ranking(
            name: str = name,
            seed: int = seed,
            system: System = system,
            thresholds: str = thresholds,
        ) -> pd.DataFrame:
            return bench.ranking(
                name, seed, lambda: bench.trained(system, thresholds, seed, f"{slug(name)}-{seed}")
            )

        results.add(name, ranking, seed)
    return results.table(START)


class Bench:
    """The data that all systems share: queries, first stage, teacher, mined examples.

    Args:
        collection: What is searched.
        options: See :func:`command_line`.
    """

    def __init__(self, collection: Collection, options: argparse.Namespace) -> None:
        self.options, self.output, self.collection = options, options.output, collection
        self.corpus = collection.passages()
        self.bm25 = bm25(self.corpus, self.output / options.first_stage, options.first_stage) % 1000
        self.texts = pt.apply.generic(self.corpus.with_texts)
        splits = collection.split(dev_queries=options.dev_queries)
        self.train, self.dev = splits["train"].sample(options.train_queries), splits["dev"]
        self.test = splits["test"].sample(options.queries)
        if options.unlabeled is None:
            unlabeled = self.train.sample(round(options.unlabeled_share * len(self.train.topics)))
            self.train, self.unlabeled = self.train.without(unlabeled), unlabeled.topics
        elif Path(options.unlabeled).exists():
            self.unlabeled = pt.io.read_topics(options.unlabeled, "singleline", tokenise=False)
        else:
            self.unlabeled = pt.get_dataset(options.unlabeled).get_topics()
        self.train, self.hidden = with_hidden(self.train, options.hide)
        self._mined: dict[tuple[str, ...], Dataset] = {}

    @cached_property
    def validation(self) -> pd.DataFrame:
        """Candidates of the validation queries."""
        return self.candidates(self.dev)

    @cached_property
    def teacher(self) -> pt.Transformer:
        """The model that denoises: ``qid, query, docno, text`` to a probability as ``score``."""
        options, folder = self.options, self.output / "teacher"
        shape = {"max_tokens": options.max_tokens + QUERY_TOKENS}
        if not folder.exists():
            training = ptg.CrossEncoderTraining.paper(
                epochs=options.teacher_epochs,
                learning_rate=options.teacher_learning_rate,
                encoder_learning_rate=options.teacher_learning_rate,
                pairs_per_epoch=options.teacher_pairs,
                ranking="pointwise",
                measure="nDCG@10",
                patience=3,
            )
            logger.info("training the teacher")
            encoder = options.teacher_encoder or options.encoder
            teacher = ptg.CrossEncoderReranker(
                encoder, training=training, **shape, probabilities=True
            )
            teacher.fit(
                self.candidates(self.train), self.train.qrels, self.validation, self.dev.qrels
            ).save(folder)
        return ptg.CrossEncoderReranker.load(folder)

    def candidates(self, queries: Queries) -> pd.DataFrame:
        """The results of BM25, and the relevant passages that it does not find."""
        found = (self.bm25 % self.options.depth)(queries.topics)
        relevant = queries.qrels[["qid", "docno"]].merge(queries.topics, on="qid")
        relevant = relevant.assign(score=0.0, rank=0)
        return self.corpus.with_texts(
            pd.concat([found, relevant]).drop_duplicates(["qid", "docno"])
        )

    def mined(self, kind: str, system: System, thresholds: str) -> Dataset:
        """Examples of a kind: ``labeled``, ``pseudo-labeled``, or ``unlabeled``."""
        key = (kind, str(system.hard_negatives), thresholds if system.teacher else "no teacher")
        if key not in self._mined:
            positive, negative = map(float, thresholds.split("/"))
            miner = ptg.HardNegativeMiner(
                self.bm25,
                self.texts,
                teacher=self.teacher if system.teacher else None,
                config=ptg.MiningConfig(
                    hard_negatives=self.options.negatives if system.hard_negatives else 0,
                    depth=self.options.depth,
                    positive_threshold=positive,
                    negative_threshold=negative,
                ),
                folder=self.output / "examples",
            )
            if kind == "labeled":
                self._mined[key] = miner.labeled(*self.train)
            else:
                given = (self.unlabeled,) if kind == "unlabeled" else self.train
                self._mined[key] = miner.pseudo_labeled(*given)
            wrong = [
                (" ".join(key), *false_negatives(made, self.hidden))
                for key, made in self._mined.items()
            ]
            pd.DataFrame(wrong, columns=["examples", "negatives", "hidden"]).to_csv(
                self.output / "negatives.csv", index=False
            )
        return self._mined[key]

    def dual_encoder(self, system: System, seed: int, folder: str | None = None) -> ptg.DualEncoder:
        """An untrained dual-encoder, whose checkpoints will be in the folder."""
        options = self.options

        def stage(alpha: float) -> ptg.DualEncoderTraining:
            return ptg.DualEncoderTraining.paper(
                epochs=options.epochs,
                batch_size=options.batch,
                learning_rate=options.learning_rate,
                alpha=alpha,
                patience=None,
                seed=seed,
                output_dir=None if folder is None else str(self.output / "checkpoints" / folder),
            )

        return ptg.DualEncoder(
            options.encoder,
            pooling=options.pooling,
            separate_encoders=system.separate_encoders,
            training=replace(
                stage(system.alpha),
                pretraining=stage(system.pretraining or 0.0),
            ),
            max_query_tokens=QUERY_TOKENS,
            max_passage_tokens=options.max_tokens,
        )

    def trained(self, system: System, thresholds: str, seed: int, folder: str) -> ptg.DualEncoder:
        """A trained dual-encoder."""
        examples, first = self.mined("labeled", system, thresholds), None
        if system.pretraining is not None:
            first = examples
            if system.pseudo_labels:
                first = self.mined("unlabeled", system, thresholds)
        if system.pseudo_labels:
            pseudo_labeled = self.mined("pseudo-labeled", system, thresholds)
            examples = concatenate_datasets([examples, pseudo_labeled])
        model = self.dual_encoder(system, seed, folder)
        return model.fit_examples(
            examples, self.validation, self.dev.qrels, pretraining_examples=first
        )

    def ranking(self, name: str, seed: int, make: Callable[[], ptg.DualEncoder]) -> pd.DataFrame:
        """The ranking of the test queries by a dual-encoder, which is saved with its similarities."""
        model, path = make(), self.output / "models" / f"{slug(name)}-{seed}"
        if model.training_log and not path.exists():
            path.parent.mkdir(exist_ok=True)
            model.save(path)
        with tempfile.TemporaryDirectory() as folder:
            index = FlexIndex(f"{folder}/passages.flex", verbose=False)
            (model.doc_encoder() >> index).index(self._passages(), batch_size=CORPUS_BATCH)
            retriever = index.np_retriever(num_results=self.options.results)
            run = (model.query_encoder() >> retriever)(self.test.topics)
            similarities = self.similarities(run, index)
        write(similarities, self.output / "similarities" / f"{slug(name)}-{seed}.csv.gz")
        return run

    def _passages(self) -> Iterator[dict[str, str]]:
        for record in self.corpus.get_corpus_iter():
            yield {"docno": record["docno"], "text": text_of(record)}

    def similarities(self, run: pd.DataFrame, index: FlexIndex) -> pd.DataFrame:
        """s(p+, q) and the mean s(p+, p-) over the 100 best passages of each test query (Fig. 4)."""
        docnos, vectors, _ = index.payload()
        relevant = self.test.qrels[self.test.qrels["label"] > 0].groupby("qid")["docno"].agg(list)
        rows: list[tuple[Any, ...]] = []
        for qid, best in run[run["rank"] < 100].head(100 * SIMILARITIES).groupby("qid"):
            if qid not in relevant:
                continue
            others = best.loc[~best["docno"].isin(relevant[qid]), "docno"].tolist()
            positives = vectors[docnos.inv[relevant[qid]]]
            to_query = positives @ best["query_vec"].iloc[0]
            rows += zip(to_query, (positives @ vectors[docnos.inv[others]].T).mean(1), strict=True)
        return pd.DataFrame(rows, columns=["positive_query", "positive_negative"])


if __name__ == "__main__":
    main()
