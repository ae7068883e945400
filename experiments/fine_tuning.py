r"""Fine-tunes the encoder that the other experiments start at, on the training queries of a collection.

    python -m experiments.fine_tuning medquad PATH --passages 8000 --systems hard-negatives pair --output ENCODERS
    python -m experiments.collections_left_out medquad=PATH --passages 8000 --encoder ENCODERS/pair-0 \
        --trained-on medquad --output OUTPUT

The systems and options are those of :mod:`experiments.dual_encoders`, and late chunking with in-sequence negatives.
Half of the passages have their titles in front, so that encoders know both forms. Pseudo-labels are those of training
queries. The teacher is the hybrid of BM25 and GraphMean with titles alone, which has seen no training query.

With ``--pseudo sentence`` the queries are made from the documents, and no judgment is read. Passages then have no title
in front if the queries are titles.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import time
import zlib
from collections.abc import Sequence
from functools import cached_property

import pandas as pd
import pyterrier as pt
import torch
from datasets import Dataset

import pyterrier_graph as ptg
from experiments import dual_encoders
from experiments.dual_encoders import CHOICES, SMALL, SYSTEMS, System
from experiments.harness.calibration import calibrated
from experiments.harness.collection import Collection, Queries
from experiments.harness.command import add_options, parse
from experiments.harness.late_chunking import LateChunking
from experiments.harness.results import claim
from experiments.left_out import names
from experiments.left_out.corpus import Corpus
from experiments.left_out.fold import Fold
from pyterrier_graph.encoders.names import DEFAULT
from pyterrier_graph.graphs.pseudo_queries import KINDS
from pyterrier_graph.storage.artifact import META

PRESET = SMALL | {"train_queries": None, "unlabeled_share": 0.0}
IN_SEQUENCE, THRESHOLDS = "in-sequence-negatives", "0.5/0.1"
CHECKPOINT_TOKENS = 256  # of a passage that the teacher reads
PSEUDO = 2000  # pseudo queries, for training and validation together

logger = logging.getLogger(__name__)


def command_line() -> argparse.ArgumentParser:
    """The command line."""
    command = dual_encoders.command_line(IN_SEQUENCE)
    titled = False, "all passages have their titles in front, not only half of them"
    pseudo = (
        str,
        f"queries of this kind are made from the documents, {PSEUDO} at most (the collection's own)",
        KINDS,
    )
    examples = 1280, "examples of a kind at most, drawn at random"
    add_options(command, "texts", examples=examples, titled=titled, pseudo=pseudo)
    return command


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains the encoders that are missing, and saves each in a folder of its own."""
    collection, options = parse(command_line(), {"": PRESET}, arguments)
    claim(options.output, options, ("systems", "seeds"))
    bench = Bench(collection, options)
    for seed, chosen in itertools.product(options.seeds, options.systems):
        if not ((path := options.output / f"{chosen}-{seed}") / META).exists():
            began = time.process_time()
            given = THRESHOLDS, seed, path.name
            late = chosen == IN_SEQUENCE
            (bench.late(seed) if late else bench.trained(SYSTEMS[CHOICES[chosen]], *given)).save(
                path
            )
            logger.info(
                "%s: %.0f s of CPU, mining included", path.name, time.process_time() - began
            )


class Bench(dual_encoders.Bench):
    """The examples that all systems share; see :class:`experiments.dual_encoders.Bench`."""

    def __init__(self, collection: Collection, options: argparse.Namespace) -> None:
        super().__init__(collection, options)
        unused = {
            "cross_encoder": DEFAULT,
            "masked": None,
        }  # the teacher has no such models
        about = {
            **vars(options),
            "max_tokens": CHECKPOINT_TOKENS,
            **unused,
        }
        self.searched = Corpus(
            options.collection, collection, options.output / "teacher", argparse.Namespace(**about)
        )
        self.graph = self.searched.graph
        if options.pseudo:
            self._make_queries(options.pseudo)
        self.unlabeled = self.train.topics

        def titled(docno: str) -> bool:
            return options.pseudo != "title" and (
                options.titled or zlib.crc32(docno.encode()) % 2 == 1
            )

        def texts(run: pd.DataFrame) -> pd.DataFrame:
            parts = run.groupby(run["docno"].map(titled))
            return pd.concat(self.graph.passages(titles=bool(front))(part) for front, part in parts)

        self.texts = pt.apply.generic(texts)

    def _make_queries(self, kind: str) -> None:
        """Training and validation queries of a kind. Candidates do not have the passage that a sentence is from."""
        topics, qrels = self.graph.pseudo_queries(kind, count=PSEUDO)
        made, sources = Queries(topics[["qid", "query"]], qrels), topics.set_index("qid")["source"]
        self.dev = made.sample(self.options.dev_queries)
        self.train = made.without(self.dev)
        self.bm25 = self.bm25 >> pt.apply.generic(
            lambda run: run[run["docno"] != run["qid"].map(sources)]
        )

    @cached_property
    def teacher(self) -> pt.Transformer:
        """The scores that the hybrid gives its own results, as probabilities; other candidates have the least."""
        sizes = {
            "train_queries": None,
            "dev_queries": self.options.dev_queries,
            "test_queries": None,
        }
        hybrid = Fold(self.searched, None, **sizes).pipeline(names.HYBRID_UNANSWERED)
        run = hybrid.transform(pd.concat([self.train.topics, self.dev.topics]))[
            ["qid", "docno", "score"]
        ]
        scored = pt.apply.generic(
            lambda pairs: pairs.merge(run, how="left").fillna({"score": run["score"].min()})
        )
        return calibrated(scored, self.found_validation, self.dev.qrels)

    def mined(self, kind: str, system: System, thresholds: str) -> Dataset:
        """As many examples of a kind as the options say."""
        found = super().mined(kind, system, thresholds).shuffle(seed=0)
        return found.select(range(min(len(found), self.options.examples)))

    def late(self, seed: int) -> ptg.DualEncoder:
        """An encoder that is trained on windows of documents, by one of each query's relevant passages."""
        torch.manual_seed(seed)
        model, numbers = self.dual_encoder(dual_encoders.PAIR, seed), itertools.count()
        number = dict(zip(self.graph.ids_of(self.graph.passage_nodes), numbers, strict=False))
        relevant = self.train.qrels.assign(docno=self.train.qrels["docno"].map(number)).sample(
            frac=1, random_state=0
        )
        queries = relevant.groupby("qid")["docno"].agg(positive="first", relevant=set).reset_index()
        queries = queries.merge(self.train.topics).sample(
            min(len(queries), self.options.examples), random_state=0
        )
        LateChunking(model, self.graph).fit(
            queries, self.options.learning_rate, self.options.epochs
        )
        return model


if __name__ == "__main__":
    main()
