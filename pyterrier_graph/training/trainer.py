"""The glue between pipelines and ``transformers.Trainer``."""

from __future__ import annotations

import dataclasses
import json
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import EarlyStoppingCallback, PrinterCallback, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from pyterrier_graph.training.options import Training

logger = logging.getLogger(__name__)
METRIC = "eval_quality"


class RankingTrainer(Trainer):
    """A Trainer that is evaluated by a ranking measure instead of the loss.

    Args:
        quality: Computes the measure with the model as it is.
        rates: Learning rate per group of parameters, as (parameters, rate).
        **arguments: As for ``transformers.Trainer``.
    """

    def __init__(
        self,
        *,
        quality: Callable[[], float] | None,
        rates: list[tuple[list[nn.Parameter], float]],
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self.quality = quality
        self.rates = rates

    def create_optimizer(self, *_: Any, **__: Any) -> torch.optim.Optimizer:
        """Adam, as the papers have it, with a learning rate per group."""
        if self.optimizer is None:
            groups = [{"params": parameters, "lr": rate} for parameters, rate in self.rates]
            self.optimizer = torch.optim.Adam(groups)
        return self.optimizer

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """The measure on the validation topics, for early stopping."""
        if self.quality is None:
            raise ValueError("there are no validation topics to evaluate on")
        self.model.eval()
        metrics = {METRIC: self.quality()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


def train(
    model: nn.Module,
    examples: Dataset,
    collate: Callable[[list[Any]], Any],
    options: Training,
    *,
    rates: list[tuple[list[nn.Parameter], float]],
    quality: Callable[[], float] | None,
    identity: dict[str, Any],
    device: torch.device,
    verbose: bool,
) -> list[dict[str, float]]:
    """Trains a model in place and keeps the weights that were best on the validation topics.

    Args:
        model: Its ``forward(**batch)`` returns ``{'loss': ...}``.
        examples: The training set.
        collate: Makes a batch of examples.
        options: How to train.
        rates: Learning rate per group of parameters.
        quality: Computes the measure on the validation topics; None to train to the end and keep the last weights.
        identity: Tells one training from another: a checkpoint of a training with another identity is not gone on from.
        device: Where to train.
        verbose: Whether to show progress.

    Returns:
        The trainer's log: losses, and the measure as ``eval_quality``.

    Raises:
        ValueError: If ``options.output_dir`` holds checkpoints of another training.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(options.output_dir or scratch)
        checkpoint = _checkpoint_of(folder, identity | {"options": _identity_of(options)})
        steps = -(-len(examples) // options.batch_size)  # type: ignore[arg-type]
        every = max(1, steps // options.evaluations)
        schedule: dict[str, Any] = {"save_strategy": "steps", "save_steps": every, "save_total_limit": 2}
        if quality is not None:
            schedule |= {"eval_strategy": "steps", "eval_steps": every}
            schedule |= {"load_best_model_at_end": True, "metric_for_best_model": METRIC, "greater_is_better": True}
        defaults: dict[str, Any] = {
            "num_train_epochs": options.epochs,
            "per_device_train_batch_size": options.batch_size,
            "learning_rate": options.learning_rate,
            "lr_scheduler_type": "constant",
            "seed": options.seed,
            "use_cpu": device.type == "cpu",
            "disable_tqdm": not verbose,
            "logging_steps": every,
            "report_to": [],
            "remove_unused_columns": False,
            "dataloader_pin_memory": device.type == "cuda",
        }
        trainer = RankingTrainer(
            model=model,
            args=TrainingArguments(output_dir=str(folder), **{**defaults, **schedule, **options.arguments}),
            train_dataset=examples,
            eval_dataset=examples if quality is not None else None,  # asked for, but evaluate() is our own
            data_collator=collate,
            callbacks=[EarlyStoppingCallback(options.patience)] if quality is not None and options.patience else [],
            quality=quality,
            rates=rates,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train(resume_from_checkpoint=checkpoint)
        return trainer.state.log_history


def _identity_of(options: Training) -> dict[str, Any]:
    """What must be equal for a checkpoint to be gone on from: all but how long and where."""
    identity = dataclasses.asdict(options)
    for name in ("epochs", "output_dir", "patience"):
        identity.pop(name)
    return json.loads(json.dumps(identity, default=str))


def _checkpoint_of(folder: Path, identity: dict[str, Any]) -> str | None:
    """The last checkpoint of the same training, if there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / "training.json"
    if note.exists():
        before = json.loads(note.read_text(encoding="utf-8"))
        if before != identity:
            differing = sorted(k for k in {*before, *identity} if before.get(k) != identity.get(k))
            raise ValueError(
                f"{str(folder)!r} holds checkpoints of another training (other: {', '.join(differing)}): "
                "choose another output_dir, or delete it"
            )
    else:
        note.write_text(json.dumps(identity, indent=1), encoding="utf-8")
    return get_last_checkpoint(str(folder))
