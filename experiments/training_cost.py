"""Where the time of a training goes: steps, validation, encoding; and a step of sentence-transformers' trainer.

``OMP_NUM_THREADS=1 python -m experiments.training_cost PATH`` with the folder of MedQuAD's archive
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
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
from pyterrier_graph.encoders.checkpoints import dtype_of
from pyterrier_graph.encoders.names import resolve
from pyterrier_graph.encoders.openvino_encoder import OpenVINOEncoder
from pyterrier_graph.encoders.sentence_encoder import SentenceEncoder
from pyterrier_graph.training import trainer

STEPS, VALIDATION, ENCODING, REST, COUNT = (
    "steps",
    "validation",
    "encoding",
    "rest",
    "number of steps",
)
PEER = "sentence-transformers' trainer"
PARTS: dict[str, list[tuple[Any, str]]] = {
    STEPS: [(Trainer, "training_step")],
    VALIDATION: [(trainer, "_everywhere")],
    ENCODING: [
        *((ptg.TokenEncoder, name) for name in ("encode_passages", "encode_queries")),
        *(
            (kind, name)
            for kind in (SentenceEncoder, OpenVINOEncoder)
            for name in ("encode_docs", "encode_queries")
        ),
    ],
}


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Prints the processor time of each training in seconds, and of its parts; a part is without those inside it.

    Validation of an HGAT has no encoding. The trainer of sentence-transformers gets the examples, batches and precision
    of the DualEncoder, and no validation queries.
    """
    command = argparse.ArgumentParser(
        prog="python -m experiments.training_cost", description=main.__doc__
    )
    command.add_argument("path", type=Path, help="the folder of MedQuAD's archive")
    command.add_argument("--passages", type=int, default=500)
    command.add_argument(
        "--queries", type=int, nargs=2, default=[60, 25], help="for training and for validation"
    )
    command.add_argument("--tokens", type=int, default=64, help="of a passage, at most")
    command.add_argument("--encoder", default="all-MiniLM-L6-v2")
    options = command.parse_args(arguments)
    collection = read_medquad(options.path, passages=options.passages, verbose=False)
    topics, qrels = collection.all_queries
    topics, (train, dev) = topics.sample(sum(options.queries), random_state=0), options.queries
    learned, judged = topics.head(train), (topics.head(train), qrels, topics.tail(dev), qrels)
    rows: dict[str, Mapping[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        encoder = ptg.DualEncoder(options.encoder, max_passage_tokens=options.tokens, verbose=False)
        index = ptg.GraphIndex(f"{folder}/index", encoder=encoder, verbose=False).index(
            collection.get_corpus_iter()
        )
        graph, candidates = index.graph, index.bm25(60)
        tokens = ptg.TokenEncoder(options.encoder, max_passage_tokens=options.tokens)
        for name in ("HGATReranker", "HGATReranker, token vectors stored by the first"):
            pipeline: Any = candidates >> ptg.HGATReranker(graph, tokens, verbose=False)
            rows[name] = profile(partial(pipeline.fit, *judged))
        answered = ptg.QueryPassageGraph(f"{folder}/queries", verbose=False)
        answered.build(learned, graph, candidates, qrels=qrels[qrels["qid"].isin(learned["qid"])])
        gnn = ptg.GNNEncoder(graph, encoder, query_graph=answered, verbose=False)
        rows["GNNEncoder"] = profile(partial(gnn.fit, *judged))
        encoder.miner = ptg.HardNegativeMiner(candidates, pt.text.get_text(graph), verbose=False)
        examples = encoder.miner.labeled(learned, qrels)
        rows["DualEncoder"] = profile(partial(encoder.fit_examples, examples, *judged[2:]))
        rows[PEER] = profile(
            partial(train_by_peer, options, examples.dataset, encoder.training, folder)
        )
    table = pd.DataFrame(rows, index=[*PARTS, REST, COUNT]).T.fillna(0)
    table["all"], table["a step"] = table[[*PARTS, REST]].sum(axis=1), table[STEPS] / table[COUNT]
    print(table.round(2).to_string(), f"load of the machine: {os.getloadavg()[1]:.1f}", sep="\n")
    return table


def profile(action: Callable[[], object]) -> Mapping[str, float]:
    """Processor seconds of a call, of each of its parts without the parts inside that one, and the number of steps."""
    found, running = defaultdict[str, float](float), list[float]()

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            running.append(0.0)
            start = time.process_time()
            result = function(*given, **options)
            took = time.process_time() - start
            found[part] += took - running.pop()
            found[COUNT] += part == STEPS
            running[-1:] = [took + inside for inside in running[-1:]]
            return result

        return call

    with ExitStack() as stack:
        for part, functions in PARTS.items():
            for place, name in functions:
                stack.enter_context(patch.object(place, name, timed(part, getattr(place, name))))
        timed(REST, action)()
    return found


def train_by_peer(
    options: argparse.Namespace, examples: Dataset, like: ptg.DualEncoderTraining, folder: str
) -> None:
    """Trains the checkpoint by sentence-transformers."""
    network = SentenceTransformer(resolve(options.encoder), device="cpu")
    network.max_seq_length = options.tokens
    given: dict[str, Any] = {
        "num_train_epochs": like.epochs,
        "per_device_train_batch_size": like.batch_size,
    }
    given |= {
        "bf16": dtype_of("auto", network.device) == torch.bfloat16,
        "use_cpu": True,
        "save_strategy": "no",
    }
    settings = SentenceTransformerTrainingArguments(
        f"{folder}/peer", **given, report_to=[], disable_tqdm=True
    )
    loss = MultipleNegativesRankingLoss(network)
    SentenceTransformerTrainer(network, settings, train_dataset=examples, loss=loss).train()


if __name__ == "__main__":
    main()
