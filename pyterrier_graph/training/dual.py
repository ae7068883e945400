"""Training of a dual-encoder on queries, positives and hard negatives, by the trainer of sentence-transformers."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import pandas as pd
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.evaluation import SentenceEvaluator
from sentence_transformers.sentence_transformer.training_args import BatchSamplers
from transformers import TrainerCallback

from pyterrier_graph.checks import check_fields, check_number
from pyterrier_graph.encoders.sentence_encoder import is_normalized, load_sentence_transformer, prompts_of
from pyterrier_graph.models.losses import InBatch, PAIRLoss, check_options
from pyterrier_graph.training.mining import QUERY, example_columns
from pyterrier_graph.training.options import TrainerOptions
from pyterrier_graph.training.trainer import Redraw, run_trainer

NORMALIZED_SCALE = 20.0
FEW_STEPS = 10


@dataclass(frozen=True, kw_only=True)
class DualEncoderTraining(TrainerOptions):
    """Options of one stage of ``DualEncoder.fit()``. The defaults take minutes for a hundred queries on two cores.

    For the other attributes see :class:`~pyterrier_graph.training.options.TrainerOptions`; ``batch_size`` is that of
    each process, and ``arguments`` are further ``SentenceTransformerTrainingArguments``.

    Attributes:
        learning_rate: The highest learning rate. It rises from 0 during the warm-up, and falls to 0 in the end.
        alpha: Weight of the passage-centric loss: see :func:`~pyterrier_graph.models.losses.pair_loss`.
        in_batch: Which texts of the other queries of a batch a positive ranks: see ``pair_loss``.
        scale: Factor of the dot products. None is 1, as in the paper, or 20 where vectors are normalized.
        mini_batch_size: Number of texts that are encoded at once, in a batch of any size (GradCache). None encodes a
            column of the batch at once.
        gather_across_devices: With several processes, whether the passages of all processes are negatives of each query
            (the paper's cross-batch negatives).
        warmup: Share of the steps in which the learning rate rises. If there are fewer than ten steps it does not rise:
            the first step of a warm-up, whose rate is 0, changes nothing.
    """

    epochs: int = 2
    learning_rate: float = 3e-5
    alpha: float = 0.0
    in_batch: InBatch = "queries"
    scale: float | None = None
    mini_batch_size: int | None = None
    gather_across_devices: bool = True
    warmup: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self.alpha, self.in_batch, 1.0 if self.scale is None else self.scale)
        check_fields(self, mini_batch_size=1)
        check_number("warmup", self.warmup, 0, 1, below=True)

    @classmethod
    def paper(cls, **options: Any) -> Self:
        """The options of Ren et al. 2021 (PAIR), Sect. 4.2, for fine-tuning; pre-training has ``alpha=0.1`` besides.

        The paper has batches of 512 on up to 8 GPUs. On MSMARCO it uses LAMB, else Adam; the trainer uses AdamW without
        weight decay.
        """
        settings = {"epochs": 10, "batch_size": 512, "learning_rate": 3e-5, "warmup": 0.1, "patience": None}
        return cls(**{**settings, "measure": "RR@10", **options})


class ValidationEvaluator(SentenceEvaluator):
    """Has the trainer evaluate by a function, which measures the model in its present state."""

    def __init__(self, validate: Callable[[], float], measure: str) -> None:
        super().__init__()
        self.validate = validate
        self.primary_metric = measure

    def __call__(self, *_: Any, **__: Any) -> dict[str, float]:
        """The measure by its name."""
        return {self.primary_metric: self.validate()}


def scale_of(scale: float | None, normalized: bool) -> float:
    """The factor of dot products: the given one, or else 1, or 20 for vectors of length 1."""
    return scale if scale is not None else NORMALIZED_SCALE if normalized else 1.0


def check_examples(examples: Dataset) -> str:
    """Returns a digest of training examples; a ValueError unless all columns are there and hold texts."""
    names = examples.column_names
    if names != example_columns(len(names) - 2):
        raise ValueError(
            "training examples must have the columns query, positive, negative_1 .. negative_n, in this order, "
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
        rows, columns = frame.isna().to_numpy().nonzero()
        if len(rows):
            raise ValueError(
                f"training example {seen + rows[0]} has no text in column {names[columns[0]]!r}: "
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
    **arguments: Any,
) -> list[dict[str, float]]:
    """Trains a dual-encoder in place by the trainer of sentence-transformers, and keeps the best weights.

    No text is twice in a batch, where the batches of all processes count as one. So a query's positive is never among
    its negatives. For the last two arguments, and the returned log, see
    :func:`~pyterrier_graph.training.trainer.run_trainer`.
    """
    tasks = {name: "query" if name == QUERY else "document" for name in examples.column_names}
    prompts = dict(zip(("query", "document"), prompts_of(network), strict=True))

    def make(settings: Any, callbacks: list[TrainerCallback]) -> SentenceTransformerTrainer:
        processes = settings.world_size
        if getattr(settings.accelerator_config, "split_batches", False):
            settings.per_device_train_batch_size *= processes
        if settings.num_train_epochs * len(examples) < FEW_STEPS * settings.train_batch_size:
            settings.warmup_steps = 0
        needed = settings.train_batch_size if settings.dataloader_drop_last else 1
        if len(examples) < needed:
            raise ValueError(f"{len(examples)} training examples are fewer than a batch of {needed}: lower batch_size")
        trainer = SentenceTransformerTrainer(
            model=network,
            args=settings,
            train_dataset=examples,
            loss=PAIRLoss(
                network,
                options.alpha,
                in_batch=options.in_batch,
                scale=scale_of(options.scale, is_normalized(network)),
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

        # else an epoch that is resumed in its middle would have the batches of the first epoch, with several processes
        trainer.add_callback(Redraw(shuffle))
        return trainer

    return run_trainer(
        network,
        make,
        options,
        arguments=partial(
            SentenceTransformerTrainingArguments,
            batch_sampler=BatchSamplers.NO_DUPLICATES,
            accelerator_config={"split_batches": True},  # else only the batch of each process is without duplicates
            warmup_steps=options.warmup,
            router_mapping=tasks,
            prompts={name: prompts[task] for name, task in tasks.items() if prompts[task]},
        ),
        load=lambda folder: network.load_state_dict(load_sentence_transformer(str(folder), "cpu", 0).state_dict()),
        validate=validate,
        **arguments,
    )
