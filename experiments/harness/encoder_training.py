"""Token encoders that are trained by MaxSim as a whole, with the same examples and loss as projections."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers.base.modules.dense import Dense
from torch import Tensor, nn

import pyterrier_graph as ptg
from experiments.harness.passage_corpus import PassageCorpus
from experiments.harness.projections import MEASURE, Batches, Example, ignored, maxsim_loss, padded
from pyterrier_graph.models.maxsim import maxsim
from pyterrier_graph.training.options import TrainerOptions
from pyterrier_graph.training.trainer import train
from pyterrier_graph.training.validation import RunEvaluator

DEV_QUERIES, DEV_DEPTH = 15, 20  # of each corpus: all their passages are encoded at each validation
EVALUATIONS = 2  # per epoch


class EncoderLoss(nn.Module):
    """A token encoder with the loss that it is trained by."""

    def __init__(self, encoder: ptg.TokenEncoder, scale: float) -> None:
        super().__init__()
        self.encoder, self.network, self.scale = encoder, encoder.network, scale

    def forward(self, queries: list[str], passages: list[str], ignored: Tensor) -> dict[str, Tensor]:
        """The loss of a batch."""
        asked, found = padded(self.encoder.forward_queries(queries)), padded(self.encoder.forward_passages(passages))
        return {"loss": maxsim_loss(*asked, *found, ignored, self.scale)}


def text_batch(corpus: PassageCorpus, examples: Sequence[Example]) -> dict[str, Any]:
    """The texts of queries and of their passages, and which of them belong to other queries as well."""
    queries = corpus.queries["train"].topics["query"]
    nodes = [node for one in examples for node in one.passages]
    return {
        "queries": [queries.iloc[one.query] for one in examples],
        "passages": corpus.graph.texts(np.array(nodes)),
        "ignored": ignored(corpus, examples, nodes),
    }


def train_encoder(
    corpora: Sequence[PassageCorpus], start: ptg.TokenEncoder, options: argparse.Namespace, seed: int, folder: Path
) -> None:
    """Trains an encoder in place, and saves it.

    Args:
        corpora: Their training queries are learned from, and some of their validation queries choose the weights.
        start: The encoder.
        options: ``encoder_epochs``, ``encoder_learning_rate``, ``learning_rate`` (of the projection), ``scale``.
        seed: Of examples and their order.
        folder: Where the encoder is saved; checkpoints are beside it.
    """
    measures = []
    for corpus in corpora:
        run, dev = corpus.candidates["dev"], corpus.queries["dev"].sample(DEV_QUERIES)
        run = run[run["qid"].isin(dev.topics["qid"]) & (run["rank"] < DEV_DEPTH)].reset_index(drop=True)
        measures.append((corpus, dev, run, RunEvaluator(MEASURE, dev.qrels)))

    def validate() -> float:
        values = []
        for corpus, dev, run, evaluate in measures:
            nodes, place = np.unique(corpus.graph.nodes_of(run["docno"].tolist()), return_inverse=True)
            passages = start.encode_passages(corpus.graph.texts(nodes))
            queries = start.encode_queries(dev.topics["query"].tolist())
            scores = np.zeros(len(run))
            numbers = {qid: number for number, qid in enumerate(dev.topics["qid"])}
            for qid, rows in run.groupby("qid").indices.items():
                found = passages.select(torch.from_numpy(place[rows]))
                scores[rows] = maxsim(queries[numbers[qid]], found).numpy()
            values.append(evaluate(run.assign(score=scores)))
        return float(np.mean(values))

    model = EncoderLoss(start, options.scale)
    heads = [module for module in start.network if isinstance(module, Dense)]
    projection = [parameter for module in heads for parameter in module.parameters()]
    own = {id(parameter) for parameter in projection}
    others = [parameter for parameter in start.network.parameters() if id(parameter) not in own]
    settings = TrainerOptions(
        epochs=options.encoder_epochs,
        batch_size=1,
        learning_rate=options.encoder_learning_rate,
        measure=MEASURE,
        evaluations=EVALUATIONS,
        patience=None,
        output_dir=str(folder.with_name(f"{folder.name}-checkpoints")),
        seed=seed,
    )
    train(
        model,
        Batches(corpora, seed, single=True),
        lambda one: text_batch(corpora[one[0][0]], one[0][1]),
        settings,
        rates=[(others, options.encoder_learning_rate), (projection, options.learning_rate)],
        validate=validate,
        identity={"corpora": [corpus.name for corpus in corpora], "scale": options.scale},
        device=torch.device("cpu"),
        dtype="auto",
        verbose=True,
    )
    start.network.save(str(folder), create_model_card=False)
