"""Processor time of trainings: their steps, their validation, and all of them.

``OMP_NUM_THREADS=1 python -m experiments.training_costs PATH`` with the folder of MedQuAD's archive

Token vectors and vectors are stored before. sentence-transformers' trainer gets the examples, the batches and the
precision of the DualEncoder, and no validation queries.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pandas as pd
import pyterrier as pt
import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from transformers import Trainer

import pyterrier_graph as ptg
from experiments.collections.medquad import read_medquad
from experiments.harness.command import add_options
from pyterrier_graph.encoders.checkpoints import dtype_of
from pyterrier_graph.encoders.names import resolve
from pyterrier_graph.pair.training import text_columns
from pyterrier_graph.training import trainer

PEER = "sentence-transformers' trainer"
HGATS: dict[str, dict[str, Any]] = {
    "HGAT, direct matches (the default)": {},
    "HGAT, layers": {"training": ptg.HGATTraining(epochs=2)},
    "HGAT, layers of the paper": {
        "config": ptg.HGATConfig.paper(),
        "training": ptg.HGATTraining(epochs=2),
    },
}


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Prints a table with a row per training."""
    command = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument("path", type=Path, help="the folder of MedQuAD's archive")
    add_options(
        command,
        "sizes",
        encoder=("all-MiniLM-L6-v2", "of all models"),
        passages=(500, "passages of the sample"),
        train=(60, "training queries"),
        dev=(25, "validation queries"),
        candidates=(60, "candidates of a query"),
        tokens=(64, "tokens of a passage"),
    )
    options = command.parse_args(arguments)
    with TemporaryDirectory() as folder:
        rows = {name: measured(fit) for name, fit in trainings(options, Path(folder)).items()}
    table = pd.DataFrame(rows).T
    print(f"{table.round(2).to_string()}\nload of the machine: {os.getloadavg()[1]:.1f}")
    return table


def trainings(options: argparse.Namespace, folder: Path) -> dict[str, Callable[[], Any]]:
    """The trainings by name."""
    collection = read_medquad(options.path, passages=options.passages, verbose=False)
    topics, qrels = collection.all_queries
    topics = topics.sample(options.train + options.dev, random_state=0)
    train, dev = topics.head(options.train), topics.tail(options.dev)
    limit: dict[str, Any] = {"max_passage_tokens": options.tokens}
    encoder = ptg.DualEncoder(options.encoder, verbose=False, **limit)
    index = ptg.GraphIndex(folder / "index", encoder=encoder, verbose=False)
    index.index(collection.get_corpus_iter())
    graph, candidates = index.graph, index.bm25(options.candidates)

    tokens = ptg.TokenEncoder(options.encoder, **limit)
    store = ptg.TokenStore(folder / "tokens", verbose=False).build(graph, tokens)
    fits: dict[str, Callable[[], Any]] = {}
    for name, arguments in HGATS.items():
        hgat = ptg.HGATReranker(graph, tokens, tokens=store, verbose=False, **arguments)
        pipeline: Any = candidates >> hgat
        fits[name] = partial(pipeline.fit, train, qrels, dev, qrels)

    query_graph = ptg.QueryPassageGraph(folder / "queries", verbose=False)
    query_graph.build(train, graph, candidates, qrels=qrels[qrels["qid"].isin(train["qid"])])
    gnn_encoder = ptg.GNNEncoder(graph, encoder, query_graph=query_graph, verbose=False)
    fits["GNNEncoder"] = partial(gnn_encoder.fit, train, qrels, dev, qrels)

    miner = ptg.HardNegativeMiner(candidates, pt.text.get_text(graph), verbose=False)
    dual_encoder = ptg.DualEncoder(options.encoder, miner=miner, verbose=False, **limit)
    examples = miner.labeled(train, qrels)
    fits["DualEncoder"] = partial(dual_encoder.fit_examples, examples, dev, qrels)
    fits[PEER] = partial(train_by_peer, options, examples, dual_encoder.training, folder)
    return fits


def measured(fit: Callable[[], Any]) -> dict[str, float]:
    """Seconds of processor time of a training and of its parts."""
    steps: list[float] = []
    validations: list[float] = []
    start = time.process_time()
    with (
        patch.object(Trainer, "training_step", timed(Trainer.training_step, steps)),
        patch.object(trainer, "measured", timed(trainer.measured, validations)),
    ):
        fit()
    everything = time.process_time() - start
    return {
        "steps": sum(steps),
        "of them": len(steps),
        "a step": sum(steps) / len(steps),
        "validation": sum(validations),
        "all": everything,
    }


def timed(function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    """The function, which also appends the processor time of each call to ``seconds``."""

    def call(*arguments: Any, **options: Any) -> Any:
        start = time.process_time()
        result = function(*arguments, **options)
        seconds.append(time.process_time() - start)
        return result

    return call


def train_by_peer(
    options: argparse.Namespace,
    examples: Dataset,
    training: ptg.DualEncoderTraining,
    folder: Path,
) -> None:
    """Trains the checkpoint by sentence-transformers."""
    network = SentenceTransformer(resolve(options.encoder), device="cpu")
    network.max_seq_length = options.tokens
    settings = SentenceTransformerTrainingArguments(
        f"{folder}/peer",
        num_train_epochs=training.epochs,
        per_device_train_batch_size=training.batch_size,
        bf16=dtype_of("auto", network.device) == torch.bfloat16,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    loss = MultipleNegativesRankingLoss(network)
    texts = text_columns(examples)
    SentenceTransformerTrainer(network, settings, train_dataset=texts, loss=loss).train()


if __name__ == "__main__":
    main()
