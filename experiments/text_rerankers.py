r"""LGRe against cross-encoders, cross-validated: Tables 2 to 5 of Dong and Niu 2021.

    python -m experiments.text_rerankers vaswani PATH --seeds 0 1 2 --output OUTPUT
    python -m experiments.text_rerankers irds:disks45/nocr/trec-robust-2004 --adapt irds:msmarco-passage/train \
        --output OUTPUT

All systems rerank the same candidates. All trained systems start at the same checkpoint and learn from the same pairs.
Several values of ``--word-graph`` give Table 3, of ``--distances`` Table 4; ``--within-groups`` gives Table 5.
The defaults for Vaswani, Cranfield and MedQuAD take about a quarter of an hour per seed on one core; the defaults for
all other collections are the paper's. On the former, all systems start at the packaged MiniLM, trained on numpydoc.

Unlike in the paper, significance is p < 0.05 with Holm's correction.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import ir_datasets
import numpy as np
import pandas as pd
import pyterrier as pt
from ir_measures import AP, P, nDCG
from ir_measures.measures import Measure
from transformers import AutoTokenizer

import pyterrier_graph as ptg
from experiments.collections import read_ir_datasets
from experiments.harness.collection import Collection, Queries
from experiments.harness.command import add_options, parse, parser
from experiments.harness.first_stage import bm25
from experiments.harness.results import Results, claim, slug, tabulate
from pyterrier_graph.encoders.names import DEFAULT, resolve
from pyterrier_graph.graphs.judgments import PASSAGE_NUMBER
from pyterrier_graph.lgre.cross_encoder import CHECKPOINT
from pyterrier_graph.lgre.equations import Init, WordGraph
from pyterrier_graph.lgre.losses import Distance, Ranking

MEASURES: tuple[Measure, ...] = (P @ 20, nDCG @ 20, nDCG @ 10, AP @ 100)
BM25, START, CROSS_ENCODER, LGRE = "BM25", "off the shelf", "cross-encoder", "LGRe"
MAX_PASSAGE = f"{CROSS_ENCODER}, max passage"
SYSTEMS = ("off-the-shelf", "cross-encoder", "max-passage", "lgre")
PASSAGE_WORDS, PASSAGE_STRIDE = 150, 75
GROUP_QUERIES, GROUP_FOLDS = 100, 10
FOLDS, LEAST_FOLDS = 5, 3  # for training, validation and test
ADAPT_QUERIES = 2000
RANKING: Ranking = "hinge"  # the loss of all systems
DEPTH, WEB_TRACK_DEPTH = 150, 100  # candidates of a query in the paper
SMALL: dict[str, Any] = {
    "systems": ["off-the-shelf", "cross-encoder", "lgre"],
    "encoder": DEFAULT,
    "stemmer": "porter2",
    "adapt": "irds:pyterrier-graph/numpydoc/all/train",
    "adapt_pairs": 2000,
    "adapt_candidates": 30,
    "adapt_learning_rate": 5e-5,
    "keep_attention": True,
    "layers": ["1"],
    "init": ["identity"],
    "depth": 30,
    "max_tokens": 96,
    "pairs": 128,
    "batch": 16,
    "epochs": 2,
    "learning_rate": 1e-3,
    "encoder_learning_rate": 3e-5,
}
SAMPLE: dict[str, Any] = {"depth": 20, "folds": 3}
PRESETS = {
    "vaswani": SMALL,
    "cranfield": SMALL | SAMPLE | {"queries": 60},
    "medquad": SMALL | SAMPLE | {"queries": 75, "passages": 4000, "max_tokens": 128},
}

logger = logging.getLogger(__name__)


class Task(NamedTuple):
    """The candidates and judgments of a comparison.

    Attributes:
        candidates: ``qid, query, docno, score, rank, text``.
        qrels: Judgments.
        folds: The qids of each fold.
    """

    candidates: pd.DataFrame
    qrels: pd.DataFrame
    folds: Sequence[set[str]]

    @property
    def queries(self) -> Queries:
        """The queries that have candidates."""
        return Queries(self.candidates[["qid", "query"]].drop_duplicates("qid"), self.qrels).among(
            self.candidates["qid"]
        )


def command_line() -> argparse.ArgumentParser:
    """The command line."""
    command = parser(__doc__, SYSTEMS, SYSTEMS[1:])
    add_options(
        command,
        "candidates",
        stemmer=("krovetz", "of PISA", ["krovetz", "porter2"]),
        depth=(int, "documents per query that are reranked (150; of the Web Tracks 100)"),
        folds=(int, "divide the queries at random (5, or the folds of the dataset)"),
        query_length=([3], "groups of queries by numbers of word pieces"),
        within_groups=(False, "train within these groups, too"),
    )
    add_options(
        command,
        "models",
        encoder=("bert-base-uncased", "where all start"),
        word_graph=(["bipartite+neighbor"], "of LGRe", get_args(WordGraph)),
        distances=(["triangle"], "of LGRe's loss", get_args(Distance)),
        layers=(["all"], "of LGRe: all, or how many of the last"),
        steps=([2], "T of LGRe"),
        init=(["random"], "of LGRe", get_args(Init)),
        max_tokens=(512, "tokens of query and document"),
    )
    add_options(
        command,
        "training",
        epochs=(20, "epochs"),
        pairs=(512, "per epoch"),
        batch=(16, "pairs, of two documents each, at a time"),
        learning_rate=(5e-5, "of what is on top of the encoder"),
        encoder_learning_rate=(1e-5, "of the encoder"),
        keep_attention=(False, "do not drop attention weights in training; the paper drops them"),
        adapt=(
            str,
            "dataset of ir_datasets that the checkpoint is trained on first ('': it is not)",
        ),
        adapt_candidates=(100, "BM25's documents, among which the negatives are"),
        adapt_pairs=(10_000, "pairs"),
        adapt_learning_rate=(1e-5, "of all weights"),
    )
    return command


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Runs the comparison, and returns its table."""
    collection, options = parse(command_line(), PRESETS, arguments)
    return run(collection, options)


def run(collection: Collection, options: argparse.Namespace) -> pd.DataFrame:
    """Compares the systems.

    Args:
        collection: What is searched.
        options: See :func:`command_line`.

    Returns:
        The table.
    """
    output = options.output
    if options.depth is None:
        options.depth = WEB_TRACK_DEPTH if "trec-web" in options.collection else DEPTH
    if not options.adapt:
        for make in systems(options, resolve(options.encoder)).values():
            make(0)  # what cannot be made is refused before anything is indexed
    claim(output, options, ("systems", "seeds", "query_length", "within_groups"))
    task = prepare(collection.passages(), options)
    encoder = adapted(options) if options.adapt else resolve(options.encoder)
    tokenize = AutoTokenizer.from_pretrained(encoder).tokenize
    shown = {"all": set(task.candidates["qid"])}
    if options.within_groups:
        groups = by_query_length(task.queries.topics, options.query_length, tokenize=tokenize)
        groups = large_enough(groups)
        shown = {name: set(group["qid"]) for name, group in groups.items()}
        parts = [
            compare(within(task, group), options, encoder, output / slug(name))
            for name, group in groups.items()
        ]
    else:
        parts = [compare(task, options, encoder, output)]
    per_query = pd.concat([part.per_query for part in parts], ignore_index=True)
    return tabulate(
        per_query,
        output,
        MEASURES,
        CROSS_ENCODER if "cross-encoder" in options.systems else BM25,
        shown,
    )


def prepare(collection: Collection, options: argparse.Namespace) -> Task:
    """Finds candidates for the judged queries, and divides the queries into folds."""
    topics, qrels = collection.all_queries.sample(options.queries)
    path = options.output / options.first_stage
    retriever = bm25(collection, path, options.first_stage, options.stemmer)
    candidates = (retriever % options.depth)(topics)
    candidates = collection.with_texts(candidates[["qid", "query", "docno", "score", "rank"]])
    qids = set(candidates["qid"])
    qrels = qrels[qrels["qid"].isin(qids)].reset_index(drop=True)
    return Task(candidates, qrels, _folds(qids, options))


def _folds(qids: set[str], options: argparse.Namespace) -> list[set[str]]:
    """The folds that come with a dataset of ir_datasets, else random ones."""
    name = re.escape(options.collection.removeprefix("irds:"))
    published = sorted(
        fold for fold in ir_datasets.registry if re.fullmatch(rf"{name}/fold\d", fold)
    )
    if options.folds is None and published:
        return [
            {query.query_id for query in ir_datasets.load(fold).queries_iter()} & qids
            for fold in published
        ]
    return ptg.query_folds(pd.DataFrame({"qid": sorted(qids)}), options.folds or FOLDS)


def by_query_length(
    topics: pd.DataFrame, bounds: Sequence[int], tokenize: Callable[[str], list[str]]
) -> dict[str, pd.DataFrame]:
    """Groups queries by their number of tokens, such as ``'length <= 3'`` and ``'length > 3'``; bounds ascend.

    The paper's Table 5 compares two groups of Robust04's titles: 144 titles have up to 3 of BERT's word pieces, 106
    have more. The authors draw 100 queries of a group, train on 80 of them and test on 10.
    """
    between = [f"{low} < length <= {high}" for low, high in itertools.pairwise(bounds)]
    names = [f"length <= {bounds[0]}", *between, f"length > {bounds[-1]}"]
    group = np.searchsorted(bounds, [len(tokenize(query)) for query in topics["query"]])
    return {
        name: topics[group == number].reset_index(drop=True) for number, name in enumerate(names)
    }


def large_enough(groups: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The groups that folds for training, validation and test can divide.

    Raises:
        SystemExit: If no group has three queries.
    """
    for name, group in groups.items():
        if len(group) < LEAST_FOLDS:
            logger.warning("%s: %d queries are too few to train on", name, len(group))
    groups = {name: group for name, group in groups.items() if len(group) >= LEAST_FOLDS}
    if not groups:
        raise SystemExit("--within-groups: no group has enough queries: change --query-length")
    return groups


def within(task: Task, group: pd.DataFrame) -> Task:
    """A hundred queries of a group in ten folds (the paper's Table 5, which tests on one of them)."""
    qids = Queries(group, task.qrels).sample(GROUP_QUERIES).topics["qid"]
    candidates, qrels = (
        f[f["qid"].isin(qids)].reset_index(drop=True) for f in (task.candidates, task.qrels)
    )
    return Task(candidates, qrels, ptg.query_folds(qids.to_frame(), min(GROUP_FOLDS, len(qids))))


def adapted(options: argparse.Namespace) -> str:
    """Folder of the checkpoint after training on another collection; it is trained once for the same options."""
    names = ("adapt", "adapt_candidates", "adapt_pairs", "adapt_learning_rate")
    made_with = {
        name: getattr(options, name) for name in (*names, "encoder", "batch", "max_tokens")
    }
    digest = hashlib.sha256(json.dumps(made_with, sort_keys=True).encode()).hexdigest()[:8]
    folder = options.output / f"adapted-{digest}"
    if not folder.exists():
        collection = read_ir_datasets(options.adapt)
        topics, qrels = collection.all_queries.sample(ADAPT_QUERIES)
        path = options.output / f"adapt.{options.first_stage}"
        retriever = bm25(collection, path, options.first_stage, options.stemmer)
        found = (retriever % options.adapt_candidates)(topics)
        # relevant documents that BM25 does not find are examples as well
        relevant = qrels[["qid", "docno"]].merge(topics, on="qid").assign(score=0.0, rank=0)
        examples = collection.with_texts(
            pd.concat([found, relevant]).drop_duplicates(["qid", "docno"])
        )
        training = ptg.CrossEncoderTraining.paper(
            epochs=1,
            learning_rate=options.adapt_learning_rate,
            encoder_learning_rate=options.adapt_learning_rate,
            batch_size=options.batch,
            pairs_per_epoch=options.adapt_pairs,
            ranking=RANKING,
        )
        logger.info("training %s on %s", options.encoder, options.adapt)
        reranker = ptg.CrossEncoderReranker(
            options.encoder, training=training, max_tokens=options.max_tokens
        )
        reranker.fit(examples, qrels).save(folder)
    return str(folder / CHECKPOINT)


def compare(task: Task, options: argparse.Namespace, encoder: str, output: Path) -> Results:
    """Trains and tests all systems with all seeds, on each fold.

    Args:
        task: What they are compared on.
        options: See :func:`command_line`.
        encoder: The checkpoint that all start at.
        output: Folder of the runs.
    """
    output.mkdir(parents=True, exist_ok=True)
    results = Results(output, task.queries, MEASURES)
    results.add(BM25, lambda: task.candidates)
    if "off-the-shelf" in options.systems:
        start = ptg.CrossEncoderReranker(encoder, max_tokens=options.max_tokens)
        results.add(START, lambda: start.transform(task.candidates))
    for seed, (name, make) in itertools.product(options.seeds, systems(options, encoder).items()):
        logger.info("%s, seed %d", name, seed)

        def ranking(
            name: str = name, seed: int = seed, make: Callable[[int], pt.Transformer] = make
        ) -> pd.DataFrame:
            topics = task.candidates
            if name == MAX_PASSAGE:
                topics = passages_of(task)(topics)
            folder = output / "folds" / f"{slug(name)}-{seed}"
            return ptg.cross_validate(
                lambda _: make(seed), topics, task.qrels, task.folds, output_dir=folder
            )

        results.add(name, ranking, seed)
    return results


def passages_of(task: Task) -> pt.Transformer:
    """Makes windows of candidates.

    Raises:
        SystemExit: If the candidates are passages already.
    """
    if task.qrels["docno"].str.contains(PASSAGE_NUMBER).any():
        raise SystemExit(
            "this collection's judgments are of passages, which are not cut: leave out max-passage"
        )
    return pt.text.sliding(
        text_attr="text", length=PASSAGE_WORDS, stride=PASSAGE_STRIDE, prepend_attr=None
    )


def systems(
    options: argparse.Namespace, encoder: str
) -> dict[str, Callable[[int], pt.Transformer]]:
    """The trained systems by name: functions that make an untrained pipeline for a seed."""
    shared = {
        "epochs": options.epochs,
        "batch_size": options.batch,
        "pairs_per_epoch": options.pairs,
        "learning_rate": options.learning_rate,
        "encoder_learning_rate": options.encoder_learning_rate,
        "attention_dropout": not options.keep_attention,
    }

    def cross_encoder(seed: int) -> pt.Transformer:
        training = ptg.CrossEncoderTraining.paper(**shared, ranking=RANKING, seed=seed)
        return ptg.CrossEncoderReranker(encoder, training=training, max_tokens=options.max_tokens)

    def lgre(seed: int, distance: Distance, layers: str, **config: Any) -> pt.Transformer:
        loss = ptg.LGReLoss(ranking=RANKING, distance=distance)
        chosen = None if layers == "all" else tuple(range(-int(layers), 0))
        return ptg.LGReReranker(
            encoder,
            config=ptg.LGReConfig.paper(layers=chosen, seed=seed, **config),
            training=ptg.LGReTraining.paper(**shared, loss=loss, seed=seed),
            max_tokens=options.max_tokens,
        )

    made: dict[str, Callable[[int], pt.Transformer]] = {}
    if "cross-encoder" in options.systems:
        made[CROSS_ENCODER] = cross_encoder
    if "max-passage" in options.systems:
        made[MAX_PASSAGE] = lambda seed: cross_encoder(seed) >> pt.text.max_passage()
    if "lgre" in options.systems:
        choices = {
            name: getattr(options, name) for name in ("word_graph", "layers", "steps", "init")
        }
        choices = {"word_graph": choices.pop("word_graph"), "distance": options.distances} | choices
        for values in itertools.product(*choices.values()):
            chosen = dict(zip(choices, values, strict=True))
            varied = [
                f"{name.replace('_', ' ')} {chosen[name]}"
                for name in chosen
                if len(choices[name]) > 1
            ]
            made[", ".join([LGRE, *varied])] = functools.partial(lgre, **chosen)
    return made


if __name__ == "__main__":
    main()
