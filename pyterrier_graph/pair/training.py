"""Training of a dual-encoder on queries, positives and hard negatives, by the trainer of sentence-transformers."""

import hashlib
import os
from dataclasses import replace
from typing import Any, Literal, Self

import pandas as pd
import pydantic
from datasets import Dataset
from pydantic import NonNegativeFloat, PositiveInt
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.training_args import BatchSamplers

from pyterrier_graph.configuration import STRICT, DropoutRate, Share
from pyterrier_graph.encoders.sentence_encoder import is_normalized, prompts_of, scale_of
from pyterrier_graph.pair.losses import PAIRLoss
from pyterrier_graph.pair.mining import QUERY, example_columns
from pyterrier_graph.training.model import Log, Run
from pyterrier_graph.training.trainer import RankingTrainer, Redraw, TrainerOptions, run_trainer

Stage = Literal["pretraining", "training"]
Paper = Literal["pair", "gnn-encoder", "query-encoder"]
PAPERS: dict[Paper, dict[str, Any]] = {
    "pair": {"batch_size": 512, "learning_rate": 3e-5},
    "gnn-encoder": {"batch_size": 2048, "learning_rate": 2e-5},
    "query-encoder": {"batch_size": 1536, "learning_rate": 5e-6},
}


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=STRICT)
class DualEncoderTraining(TrainerOptions):
    """Options of one stage of ``DualEncoder.fit()``. The defaults take minutes for a hundred queries on two cores.

    For the other attributes see :class:`~pyterrier_graph.training.trainer.TrainerOptions`; ``batch_size`` is that of
    each process, and ``arguments`` are further ``SentenceTransformerTrainingArguments``.

    Attributes:
        learning_rate: The highest learning rate. It rises from 0 during the warm-up, and falls to 0 in the end.
        alpha: Weight of the passage-centric loss: see :func:`~pyterrier_graph.pair.losses.pair_loss`.
        scale: Factor of the dot products. None is 1, as in the paper, or 20 where vectors are normalized.
        mini_batch_size: Number of texts that are encoded at once, in a batch of any size (GradCache). None encodes a
            column of the batch at once.
        gather_across_devices: With several processes, whether the passages of all processes are negatives of each query
            (the paper's cross-batch negatives).
        warmup: Share of the steps in which the learning rate rises. If there are fewer than ten steps it does not rise:
            the first step of a warm-up, whose rate is 0, changes nothing.
        pretraining: Options of the first of two stages; by default these options with ``alpha=0.1``.
    """

    epochs: PositiveInt = 2
    learning_rate: NonNegativeFloat = 3e-5
    alpha: Share = 0.0
    scale: NonNegativeFloat | None = None
    mini_batch_size: PositiveInt | None = None
    gather_across_devices: bool = True
    warmup: DropoutRate = 0.1
    pretraining: "DualEncoderTraining | None" = None

    def of_stage(self, stage: Stage) -> "DualEncoderTraining":
        """The options of one stage, which has a folder of its own in ``output_dir``."""
        options = self
        if stage == "pretraining":
            options = self.pretraining or replace(self, alpha=0.1)
        folder = self.output_dir
        if folder is not None:
            folder = os.path.join(folder, stage)
        return replace(options, output_dir=folder, pretraining=None)

    @classmethod
    def paper(cls, stage: Paper = "pair", **options: Any) -> Self:
        """The options of a paper's training; ``options`` replace some of them.

        * ``'pair'``: both stages of PAIR (Ren et al. 2021, Sect. 4.2); the first one has ``alpha=0.1``. The paper has
          batches of 512 on up to 8 GPUs. On MSMARCO it uses LAMB, else Adam; the trainer uses AdamW without weight
          decay.
        * ``'gnn-encoder'``: the initial dual-encoder of GNN-encoder (Liu et al. 2022, Sect. 4.3). The paper has batches
          of 2048 on each of two GPUs for MSMARCO, and of 256 on each of four for NQ and TriviaQA.
        * ``'query-encoder'``: its preprint's last stage (arXiv 2204.08241, Sect. 5.1.4), for
          ``DualEncoder.fit_query_encoder``. The paper has batches of 1536 for MSMARCO and of 512 for NQ and TriviaQA.
          The number of epochs is the first stage's, since the paper does not state it.
        """
        paper = {"epochs": 10, "warmup": 0.1, "patience": None, "measure": "RR@10"}
        return cls(**paper | PAPERS[stage] | options)


class RankingSentenceTransformerTrainer(RankingTrainer, SentenceTransformerTrainer):
    """The trainer of sentence-transformers, evaluated by ``validate``; checkpoints need no card."""

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Collects nothing for a card."""

    def shuffle(self, epoch: int) -> None:
        """Makes the batches of an epoch; they are the same after an interruption."""
        sampler = self.callback_handler.train_dataloader.batch_sampler
        while hasattr(sampler, "batch_sampler"):
            sampler = sampler.batch_sampler
        sampler.set_epoch(epoch)


def text_columns(examples: Dataset) -> Dataset:
    """The texts of examples, without ids; raises ValueError unless there are examples with all columns."""
    ids = [name for name in examples.column_names if name == "qid" or name.endswith("_docno")]
    texts = examples.remove_columns(ids)
    names = texts.column_names
    negatives = len(names) - 2
    if names != example_columns(negatives):
        expected = "training examples must have the columns query, positive, negative_1 .. negative_n, in this order"
        raise ValueError(f"{expected}, got {', '.join(names)}")
    if not len(texts):
        raise ValueError("there are no training examples")
    return texts


def dataset_sha256(examples: Dataset) -> str:
    """SHA-256 of the columns and rows of a dataset."""
    digest = hashlib.sha256(repr(examples.column_names).encode())
    for batch in examples.with_format("pandas").iter(10_000):
        hashes = pd.util.hash_pandas_object(batch, index=False)
        digest.update(hashes.to_numpy().tobytes())
    return digest.hexdigest()


def train_dual_encoder(
    network: SentenceTransformer, examples: Dataset, options: DualEncoderTraining, run: Run
) -> Log:
    """Trains a dual-encoder in place by the trainer of sentence-transformers, and keeps the best weights.

    No text is twice in a batch, where the batches of all processes count as one. So a query's positive is never among
    its negatives. Returns the log of :func:`~pyterrier_graph.training.trainer.run_trainer`.
    """
    query_prompt, passage_prompt = prompts_of(network)
    tasks = dict.fromkeys(examples.column_names, "document")
    tasks[QUERY] = "query"
    prompts = dict.fromkeys(examples.column_names, passage_prompt)
    prompts[QUERY] = query_prompt
    prompts = {name: prompt for name, prompt in prompts.items() if prompt}

    def make(**arguments: Any) -> RankingTrainer:
        defaults: dict[str, Any] = {
            "batch_sampler": BatchSamplers.NO_DUPLICATES,
            # else only the batch of each process is without duplicates
            "accelerator_config": {"split_batches": True},
            "warmup_steps": options.warmup,
            "router_mapping": tasks,
            "prompts": prompts,
        }
        settings = SentenceTransformerTrainingArguments(**defaults | arguments)
        processes = settings.world_size
        settings.per_device_train_batch_size *= processes  # which split a batch
        total = settings.num_train_epochs * len(examples)  # of all epochs
        steps = total / settings.train_batch_size
        if steps < 10:
            settings.warmup_steps = 0
        scale = scale_of(options.scale, is_normalized(network))
        loss = PAIRLoss(
            network,
            options.alpha,
            scale=scale,
            gather_across_devices=options.gather_across_devices and processes > 1,
            mini_batch_size=options.mini_batch_size,
        )
        trainer = RankingSentenceTransformerTrainer(
            model=network, args=settings, train_dataset=examples, loss=loss, run=run
        )
        # else, with several processes, an epoch after a restart would have the batches of the first epoch
        trainer.add_callback(Redraw(trainer.shuffle))
        return trainer

    return run_trainer(network, make, options, run)
