"""Training by ``transformers.Trainer``: checkpoints, validation by a ranking measure, and the best weights."""

import dataclasses
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor, nn
from transformers import (
    EarlyStoppingCallback,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from pyterrier_graph.checks import QualityWarning
from pyterrier_graph.configuration import STRICT
from pyterrier_graph.encoders.checkpoints import dtype_name, dtype_of, hidden_bars
from pyterrier_graph.storage.artifact import check_identity
from pyterrier_graph.training.model import Log, Run
from pyterrier_graph.training.validation import as_good

PREFIX = "eval_"  # by which the trainer recognizes what evaluation returns
# options that may differ when a training continues from a checkpoint
MAY_DIFFER = {"epochs", "output_dir"}


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=STRICT)
class TrainerOptions:
    """Options of every training, which ``transformers.Trainer`` runs.

    Attributes:
        epochs: Passes over the training examples.
        batch_size: Examples per step.
        learning_rate: Learning rate of the optimizer.
        measure: Name of the ir_measures measure that is computed on the validation queries after each epoch. The best
            weights are kept, but if they are not better than the weights from before training by more than one standard
            error of the differences per query, training returns to the latter, unless they are random.
        patience: Number of epochs without improvement after which training stops; None trains to the end.
        output_dir: Folder for checkpoints, from which a ``fit`` that was killed continues when it is called again.
        seed: Seed of sampling, order and dropout.
        attention_dropout: Whether an encoder that learns drops attention weights, as its checkpoint does. Without this
            dropout, a CPU takes half the time for texts of 480 tokens, and the same time for 128. Dropout of hidden
            states stays.
        arguments: Further ``transformers.TrainingArguments``, such as ``{'gradient_accumulation_steps': 4}``.
    """

    epochs: PositiveInt = 10
    batch_size: PositiveInt = 32
    learning_rate: NonNegativeFloat = 1e-3
    measure: str = "nDCG@10"
    patience: PositiveInt | None = 3
    output_dir: str | None = None
    seed: NonNegativeInt = 0
    attention_dropout: bool = True
    arguments: dict[str, Any] = field(default_factory=dict)


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=STRICT)
class HeadOptions(TrainerOptions):
    """:class:`TrainerOptions` of trainings that can train the encoder, or only what is on top of it.

    Attributes:
        learning_rate: Learning rate of what is on top of the encoder.
        encoder_learning_rate: Learning rate of the encoder; None leaves the encoder unchanged.
    """

    encoder_learning_rate: NonNegativeFloat | None = None


class RankingTrainer(Trainer):
    """A Trainer that is evaluated by ``run.validate`` instead of the loss."""

    model: Any

    def __init__(self, *, run: Run, **arguments: Any) -> None:
        # with validation, a dataset for evaluation is required, but evaluate() does not use it
        unused = None if run.validate is None else arguments["train_dataset"]
        super().__init__(eval_dataset=unused, **arguments)
        self.run = run
        self.values: dict[int, np.ndarray] = {}  # by step: the measure of each validation query

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """The measure on the validation queries, for early stopping."""
        values = measured(self.model, self.run)  # (queries,)
        self.values[self.state.global_step] = values
        name = str(self.args.metric_for_best_model)
        metrics = {name: float(values.mean())}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics


class Progress(ProgressCallback):
    """Shows a bar of the steps, with the last loss or measure; a model keeps its log."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Shows the loss or the measure."""
        shown = logs.keys() & {"loss", args.metric_for_best_model}
        if self.training_bar is not None and shown:  # in the main process
            self.training_bar.set_postfix({name: logs[name] for name in shown})


class Redraw(TrainerCallback):
    """Makes a training set draw its examples for each epoch: calls ``draw`` with its number, from 0."""

    def __init__(self, draw: Callable[[int], None]) -> None:
        self.draw = draw

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Draws the examples of the epoch; they are the same after an interruption."""
        self.draw(int(state.epoch or 0))


def measured(model: nn.Module, run: Run) -> np.ndarray:
    """The measure of each validation query, with the model's present weights."""
    assert run.validate is not None
    model.eval()
    values = run.validate()
    # all processes use the values of the main process, so that they stop at the same time
    return broadcast_object_list([values])[0]


def train(
    model: nn.Module,
    examples: Any,
    collate: Callable[[list[Any]], Any],
    options: TrainerOptions,
    run: Run,
    *,
    rates: list[tuple[list[nn.Parameter], float]],
) -> Log:
    """Trains a model, whose ``forward(**batch)`` returns ``{'loss': ...}``, in place with a :class:`RankingTrainer`.

    ``examples`` are a sequence or a dataset, and ``collate`` makes a batch of some of them. If there is a method
    ``examples.draw(epoch)``, it is called before each epoch. Returns the log of :func:`run_trainer`.
    """

    def make(**arguments: Any) -> RankingTrainer:
        groups = [{"params": parameters, "lr": rate} for parameters, rate in rates]
        optimizer = torch.optim.Adam(groups)  # HGAT's optimizer (Sect. 5.2.3)
        defaults: dict[str, Any] = {"lr_scheduler_type": "constant", "remove_unused_columns": False}
        trainer = RankingTrainer(
            model=model,
            args=TrainingArguments(**defaults | arguments),
            train_dataset=examples,
            data_collator=collate,
            run=run,
            optimizers=(optimizer, None),
        )
        draw = getattr(examples, "draw", None)
        if draw is not None:
            trainer.add_callback(Redraw(draw))
        return trainer

    return run_trainer(model, make, options, run)


def run_trainer(
    model: nn.Module,
    make: Callable[..., RankingTrainer],
    options: TrainerOptions,
    run: Run,
) -> Log:
    """Trains a model in place and keeps the weights that are best on the validation queries.

    A call that ends with an error, or with Ctrl-C, restores the weights from before the call.

    Args:
        model: The model.
        make: Makes the trainer from fields of ``TrainingArguments``.
        options: The options.
        run: What the training depends on besides them.

    Returns:
        The log: losses, and the measure under its own name. With validation, its first entry is the measure before
        training, and the entry of the weights that are kept has ``kept``.

    Raises:
        ValueError: If ``options.output_dir`` holds checkpoints of another training, or the new weights are not finite.
    """
    with (
        tempfile.TemporaryDirectory() as scratch,
        restored_on_error(model) as start,
        nullcontext() if options.attention_dropout else no_attention_dropout(model),
    ):
        processes = PartialState(cpu=run.device.type == "cpu")
        folder = options.output_dir or broadcast_object_list([scratch])[0]
        with processes.main_process_first():
            checkpoint = _checkpoint_of(Path(folder), options, run)
        before = None if run.validate is None else measured(model, run)
        arguments = trainer_arguments(options, run)
        if checkpoint is not None:
            state = TrainerState.load_from_json(os.path.join(checkpoint, TRAINER_STATE_NAME))
            if _ran_out_of_patience(state):
                arguments["num_train_epochs"] = state.epoch
        trainer = make(output_dir=folder, **arguments)
        _run(trainer, options, checkpoint)
        log = trainer.state.log_history
        if before is not None:
            log = _keep_best(trainer, start, before, options.measure)
        model.to(run.device).eval()
        for parameter in model.parameters():
            if not torch.isfinite(parameter).all():
                raise ValueError(
                    "training diverged: the weights are not finite; try smaller learning rates"
                )
    return log


def _run(trainer: RankingTrainer, options: TrainerOptions, checkpoint: str | None) -> None:
    """Runs a trainer from a checkpoint, or from the start."""
    trainer.remove_callback(PrinterCallback)
    if trainer.run.verbose:
        trainer.add_callback(Progress())
    if trainer.run.validate is not None and options.patience:
        trainer.add_callback(EarlyStoppingCallback(options.patience))
    try:
        with hidden_bars():
            trainer.train(resume_from_checkpoint=checkpoint)
    finally:
        for name in ("forward", "_original_forward"):  # where accelerate has fixed the precision
            vars(trainer.model).pop(name, None)
        # fused optimizers do not count their changes, by which digests of weights are known to be old
        weights = list(trainer.model.parameters())
        torch.autograd.graph.increment_version(weights)
    trainer.accelerator.wait_for_everyone()  # a temporary folder is removed next


def _keep_best(
    trainer: RankingTrainer, start: dict[str, Tensor], before: np.ndarray, measure: str
) -> Log:
    """Restores the weights ``start`` if the best of training are not clearly better; returns the log.

    They have to be better by more than one standard error, unless the start is random. ``before`` is the measure of
    each query at the start.
    """
    best_step = trainer.state.best_global_step or 0
    log = [{measure: float(before.mean()), "epoch": 0.0, "step": 0}]
    for entry in trainer.state.log_history:
        renamed = {name.removeprefix(PREFIX): value for name, value in entry.items()}
        log.append(renamed)
    best = trainer.values.get(best_step)
    if best is None:  # it was measured before an interruption
        best = measured(trainer.model, trainer.run)
    if not trainer.run.random_start and as_good(before, best):
        message = (
            f"training did not improve {measure} by more than one standard error: the weights from before training are "
            "kept; try a smaller learning rate, more epochs or more training queries"
        )
        warnings.warn(message, QualityWarning, stacklevel=4)
        trainer.model.load_state_dict(start)
        best_step = 0
    for entry in log:
        if measure in entry and entry["step"] == best_step:
            entry["kept"] = True
    return log


def trainer_arguments(options: TrainerOptions, run: Run) -> dict[str, Any]:
    """Fields of ``TrainingArguments``: steps, precision, and when to evaluate and to write a checkpoint."""
    dtype = dtype_of(run.dtype, run.device)
    if dtype == torch.float16 and run.device.type == "cpu":  # where gradients are not scaled
        raise ValueError("training in dtype='float16' needs a GPU: on a CPU use another dtype")
    if options.output_dir is not None:
        schedule: dict[str, Any] = {"save_strategy": "epoch", "save_total_limit": 2}
    else:  # no later call can continue, so only the best weights are saved
        best = "no" if run.validate is None else "best"
        schedule = {"save_strategy": best, "save_only_model": True, "save_total_limit": 1}
    if run.validate is not None:
        schedule |= {
            "eval_strategy": "epoch",
            "load_best_model_at_end": True,
            "metric_for_best_model": PREFIX + options.measure,
        }
    defaults = {
        "num_train_epochs": options.epochs,
        "per_device_train_batch_size": options.batch_size,
        "learning_rate": options.learning_rate,
        "seed": options.seed,
        "use_cpu": run.device.type == "cpu",
        "disable_tqdm": True,  # Progress shows a bar
        "logging_strategy": "epoch",
        "report_to": [],
        "dataloader_pin_memory": run.device.type == "cuda",
        "bf16": dtype == torch.bfloat16,
        "fp16": dtype == torch.float16,
        "restore_callback_states_from_checkpoint": True,  # the counter of early stopping
    }
    return defaults | schedule | options.arguments


@contextmanager
def restored_on_error(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """A block that restores the weights of a model if it ends with an error, or with Ctrl-C; yields a copy of them."""
    start = {}
    for name, weights in model.state_dict().items():
        start[name] = weights.detach().cpu().clone()
    try:
        yield start
    except BaseException:
        model.load_state_dict(start)
        model.eval()
        raise


@contextmanager
def no_attention_dropout(model: nn.Module) -> Iterator[None]:
    """A block in which encoders of transformers drop no attention weights; dropout of their hidden states stays."""
    rates = {}
    for module in model.modules():
        dropout = getattr(module, "dropout", None)
        is_attention = type(module).__name__.endswith("SelfAttention")
        if is_attention and isinstance(dropout, nn.Dropout):
            rates[dropout] = dropout.p
            dropout.p = 0.0
    try:
        yield
    finally:
        for dropout, rate in rates.items():
            dropout.p = rate


def _checkpoint_of(folder: Path, options: TrainerOptions, run: Run) -> str | None:
    """The last complete checkpoint of the same training, if there is one. Its length may differ."""
    identity = dict(run.identity)
    identity["dtype"] = dtype_name(run.dtype, run.device)
    for name, value in dataclasses.asdict(options).items():
        if name not in MAY_DIFFER:
            identity[f"training option {name}"] = value
    # the trainer's state is the last file that is written to a checkpoint
    states = folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*/{TRAINER_STATE_NAME}")
    complete = [str(state.parent) for state in states]
    note = folder / "training.json"
    check_identity(note, identity, "checkpoints of another training", begun=bool(complete))
    return max(complete, key=_step_of, default=None)


def _step_of(checkpoint: str) -> int:
    """The number of steps before a checkpoint, ``.../checkpoint-<steps>``."""
    _, _, step = checkpoint.rpartition("-")
    return int(step)


def _ran_out_of_patience(state: TrainerState) -> bool:
    """Whether early stopping has ended a training."""
    callbacks: Any = state.stateful_callbacks
    stopping = callbacks.get(EarlyStoppingCallback.__name__)
    if stopping is None:
        return False
    evaluations = stopping["attributes"]["early_stopping_patience_counter"]
    return evaluations >= stopping["args"]["early_stopping_patience"]
