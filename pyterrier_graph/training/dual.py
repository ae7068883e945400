"""Learning a dual-encoder from queries, positives and hard negatives: the glue to the sentence-transformers trainer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.evaluation import SentenceEvaluator
from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.training_args import BatchSamplers
from transformers import TrainerCallback

from pyterrier_graph.models.losses import Form, check_options
from pyterrier_graph.training.options import TrainerOptions
from pyterrier_graph.training.pair_loss import PAIRLoss
from pyterrier_graph.training.trainer import Redraw, run_trainer

QUERY, POSITIVE, NEGATIVE = "query", "positive", "negative_"
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
NORMALIZED_SCALE = 20.0


@dataclass(frozen=True, kw_only=True)
class DualEncoderTraining(TrainerOptions):
    """Options of a stage of ``DualEncoder.fit()``.

    The defaults are those of Ren et al. 2021 (PAIR), Sect. 4.2, but for ``batch_size`` (the paper: 512 on each of up to
    8 GPUs) and ``patience`` (the paper has no early stopping). The optimizer is Adam; on MSMARCO the paper takes LAMB.

    Attributes:
        learning_rate: The highest one; it falls to 0 after ``warmup``.
        alpha: Weight of the passage-centric loss: 0 in fine-tuning; the paper has 0.1 in pre-training.
        form: What a positive ranks: see :func:`~pyterrier_graph.models.losses.pair_loss`.
        scale: Factor of the dot products. None is 1, as in the paper, or 20 where vectors are normalized.
        mini_batch_size: So many texts are encoded at once, in a batch of any size (gradient caching); None encodes a
            column of the batch at once.
        gather_across_devices: With several processes, whether the passages of all of them are negatives of each query
            (the paper's cross-batch negatives).
        warmup: Share of the steps in which the learning rate rises.

    For the other attributes see :class:`~pyterrier_graph.training.options.TrainerOptions`; ``batch_size`` is that of
    each process, and ``arguments`` are further ``SentenceTransformerTrainingArguments``.
    """

    learning_rate: float = 3e-5
    measure: str = "RR@10"
    alpha: float = 0.0
    form: Form = "released"
    scale: float | None = None
    mini_batch_size: int | None = None
    gather_across_devices: bool = True
    warmup: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self.alpha, self.form, 1.0 if self.scale is None else self.scale)
        if self.mini_batch_size is not None and self.mini_batch_size < 1:
            raise ValueError(f"mini_batch_size must be positive or None, got {self.mini_batch_size}")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup is a share of the steps, from 0 to below 1, got {self.warmup}")


class ValidationEvaluator(SentenceEvaluator):
    """Has a ranking measure computed where the trainer evaluates.

    Args:
        validate: Computes the measure with the model as it is.
        measure: Its name.
    """

    def __init__(self, validate: Callable[[], float], measure: str) -> None:
        super().__init__()
        self.validate = validate
        self.greater_is_better = True
        self.primary_metric = measure

    def __call__(
        self, model: BaseModel, output_path: str | None = None, epoch: float = -1, steps: int = -1
    ) -> dict[str, float]:
        """The measure; ``validate`` knows the model."""
        return {self.primary_metric: self.validate()}


def is_normalized(network: SentenceTransformer) -> bool:
    """Whether vectors have length 1, so that their dot products are cosines."""
    return any(isinstance(module, Normalize) for module in network.modules())


def scale_of(scale: float | None, normalized: bool) -> float:
    """Factor of dot products: what was asked for, or else 1, or 20 of vectors that have length 1."""
    if scale is not None:
        return scale
    return NORMALIZED_SCALE if normalized else 1.0


def prompts_of(network: SentenceTransformer) -> tuple[str, str]:
    """What stands before each query and each passage where they are encoded, mostly nothing."""
    document = next((name for name in DOCUMENT_PROMPTS if name in network.prompts), "")
    return network.prompts.get("query") or "", network.prompts.get(document) or ""


def check_examples(examples: Dataset) -> str:
    """Checks training examples, and tells them from others.

    Args:
        examples: Columns ``query, positive, negative_1 .. negative_n``, in this order, of texts; n may be 0.

    Returns:
        A digest of the texts.

    Raises:
        ValueError: If there are none, a column is missing or has something else than texts, or a text is missing.
    """
    names = examples.column_names
    expected = [QUERY, POSITIVE, *(f"{NEGATIVE}{number + 1}" for number in range(len(names) - 2))]
    if names != expected:
        raise ValueError(
            f"training examples must have the columns {QUERY}, {POSITIVE}, {NEGATIVE}1 .. {NEGATIVE}n, in this order, "
            f"n being 0 or more, got {', '.join(names) or 'none'}"
        )
    if not len(examples):
        raise ValueError("there are no training examples")
    for name, feature in examples.features.items():
        if getattr(feature, "dtype", None) not in ("string", "large_string"):
            raise ValueError(f"column {name!r} of the training examples must hold texts, it holds {feature}")
    digest = hashlib.sha256("\n".join(names).encode())
    seen = 0
    for batch in examples.with_format("arrow").iter(10_000):
        frame = batch.to_pandas()
        missing = frame.isna()
        if missing.to_numpy().any():
            row, column = next(zip(*missing.to_numpy().nonzero(), strict=True))
            raise ValueError(
                f"training example {seen + row} has no text in column {names[column]!r}: "
                "all examples need the same number of negatives"
            )
        digest.update(pd.util.hash_pandas_object(frame, index=False).to_numpy().tobytes())
        seen += len(frame)
    return digest.hexdigest()


def train_dual_encoder(
    network: SentenceTransformer,
    examples: Dataset,
    options: DualEncoderTraining,
    *,
    validate: Callable[[], float] | None,
    identity: dict[str, Any],
    device: torch.device,
    verbose: bool,
) -> list[dict[str, float]]:
    """Trains a dual-encoder in place by the trainer of sentence-transformers; keeps its best weights.

    No text is in a batch twice, that of all processes together: a query's positive is never a negative, too.

    Args:
        network: The dual-encoder.
        examples: Columns ``query, positive, negative_1 .. negative_n``, as :func:`check_examples` wants them.
        options: How to train.
        validate: See :func:`~pyterrier_graph.training.trainer.train`, as for all below.
        identity: Likewise.
        device: Likewise.
        verbose: Likewise.

    Returns:
        The trainer's log, with losses, and the measure under its own name.

    Raises:
        ValueError: If ``options.output_dir`` holds checkpoints of another training, there are too few examples for the
            batches of several processes, or training diverges.
    """
    query_prompt, passage_prompt = prompts_of(network)
    prompts = {name: query_prompt if name == QUERY else passage_prompt for name in examples.column_names}
    scale = scale_of(options.scale, is_normalized(network))

    def make(
        arguments: SentenceTransformerTrainingArguments, callbacks: list[TrainerCallback]
    ) -> SentenceTransformerTrainer:
        processes = arguments.world_size
        if getattr(arguments.accelerator_config, "split_batches", False):
            arguments.per_device_train_batch_size *= processes
        needed = arguments.train_batch_size if arguments.dataloader_drop_last else 1
        if len(examples) < needed:
            raise ValueError(f"{len(examples)} training examples do not fill the batch of {needed}: take a smaller one")
        trainer = SentenceTransformerTrainer(
            model=network,
            args=arguments,
            train_dataset=examples,
            loss=PAIRLoss(
                network,
                options.alpha,
                form=options.form,
                scale=scale,
                gather_across_devices=options.gather_across_devices and processes > 1,
                mini_batch_size=options.mini_batch_size,
            ),
            evaluator=None if validate is None else ValidationEvaluator(validate, options.measure),
            callbacks=callbacks,
        )

        def shuffle(epoch: int) -> None:
            sampler = trainer.callback_handler.train_dataloader.batch_sampler
            while hasattr(sampler, "batch_sampler"):
                sampler = sampler.batch_sampler
            sampler.set_epoch(epoch)

        # with several processes, an epoch that is gone on with in its middle would have the batches of the first one
        trainer.add_callback(Redraw(shuffle))
        return trainer

    return run_trainer(
        network,
        make,
        options,
        arguments=partial(
            SentenceTransformerTrainingArguments,
            batch_sampler=BatchSamplers.NO_DUPLICATES,
            accelerator_config={"split_batches": True},  # else each process has a batch without duplicates of its own
            warmup_steps=options.warmup,
            router_mapping={name: "query" if name == QUERY else "document" for name in prompts},
            prompts={name: prompt for name, prompt in prompts.items() if prompt},
        ),
        load=lambda checkpoint: network.load_state_dict(
            SentenceTransformer(str(checkpoint), device="cpu").state_dict()
        ),
        validate=validate,
        identity=identity,
        device=device,
        verbose=verbose,
    )
