"""Training by ``transformers.Trainer``: checkpoints, validation by a ranking measure, and the best weights."""

import dataclasses
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from safetensors import safe_open
from safetensors.torch import load_model, save_model
from torch import nn
from torch.utils.data import Dataset
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
from transformers.trainer_utils import logger as trainer_logger
from transformers.utils import SAFE_WEIGHTS_NAME

from pyterrier_graph.encoders.checkpoints import hidden_bars
from pyterrier_graph.encoders.devices import DType, dtype_name, memory_named, training_dtype
from pyterrier_graph.training.options import TrainerOptions
from pyterrier_graph.warning_categories import QualityWarning

PREFIX = "eval_"  # by which the trainer recognizes what evaluation returns
START = "start.safetensors"
MAY_DIFFER = {"epochs", "output_dir", "patience"}  # options of a training that continues from a checkpoint
Rates = list[tuple[list[nn.Parameter], float]]
# Checkpoints that were written within a second are sorted by their steps, as they should be: no news for a user.
trainer_logger.addFilter(lambda record: "mtime may not" not in record.getMessage())  # type: ignore[arg-type]


class RankingTrainer(Trainer):
    """A Trainer that is evaluated by ``validate`` (see :func:`train`) instead of the loss."""

    model: nn.Module

    def __init__(self, *, validate: Callable[[], float] | None, measure: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.validate = validate
        self.measure = measure

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """The measure on the validation queries, for early stopping."""
        assert self.validate is not None  # without validation queries, the trainer has no dataset for evaluation
        self.model.eval()
        # all processes use the value of the main process, so that they stop at the same time
        metrics = {PREFIX + self.measure: broadcast_object_list([self.validate()])[0]}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


class Patience(EarlyStoppingCallback):
    """Early stopping that, after a restart from a checkpoint, counts the evaluations before the restart, too."""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Sets the counter."""
        self.early_stopping_patience_counter = stalled(state, args.metric_for_best_model)


class Progress(ProgressCallback):
    """The bar of the steps, with the measure of the last evaluation; other logs are not shown."""

    def __init__(self, measure: str) -> None:
        super().__init__()
        self.measure = measure

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Shows the measure."""
        if self.training_bar is not None:  # in the main process
            self.training_bar.set_postfix({self.measure: f"{given['metrics'][PREFIX + self.measure]:.4f}"})

    def on_log(self, *_: Any, **__: Any) -> None:
        """Does nothing: a model keeps its log."""


class Redraw(TrainerCallback):
    """Makes a training set draw its examples anew in each epoch: calls ``draw`` with its number, from 0."""

    def __init__(self, draw: Callable[[int], None]) -> None:
        self.draw = draw

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Draws the examples of the epoch; they are the same after an interruption."""
        self.draw(int(state.epoch or 0))


def stalled(state: TrainerState, metric: str | None) -> int:
    """Number of evaluations since the best one."""
    values = [entry[metric] for entry in state.log_history if metric in entry]
    return len(values) - 1 - values.index(max(values)) if values else 0


def _unless_better_at_start(model: nn.Module, file: Path, state: TrainerState, measure: str) -> list[dict[str, float]]:
    """Restores the weights from before training if training did not improve on them; returns the whole log."""
    with safe_open(file, framework="pt") as start:
        measured = float(start.metadata()["measured"])
    if state.best_metric is not None and state.best_metric < measured:
        advice = "try a smaller learning rate, more epochs or more training queries"
        message = f"training did not improve {measure}: the weights from before training are kept; {advice}"
        warnings.warn(message, QualityWarning, stacklevel=4)
        load_model(model, file)
    log = [{measure if key == PREFIX + measure else key: entry[key] for key in entry} for entry in state.log_history]
    return [{measure: measured, "epoch": 0.0, "step": 0}, *log]


def train(
    model: nn.Module,
    examples: Dataset,
    collate: Callable[[list[Any]], Any],
    options: TrainerOptions,
    *,
    rates: Rates,
    validate: Callable[[], float] | None,
    **arguments: Any,
) -> list[dict[str, float]]:
    """Trains a model, whose ``forward(**batch)`` returns ``{'loss': ...}``, in place by a :class:`RankingTrainer`.

    A training set with a method ``draw(epoch)`` is told each epoch before it begins. ``collate`` makes a batch of
    examples, ``rates`` has the learning rate of each group of parameters. All else is as in :func:`run_trainer`.
    """
    groups = [{"params": parameters, "lr": rate} for parameters, rate in rates]

    def make(settings: TrainingArguments, callbacks: list[TrainerCallback]) -> Trainer:
        if (draw := getattr(examples, "draw", None)) is not None:
            callbacks = [*callbacks, Redraw(draw)]
        return RankingTrainer(
            model=model,
            args=settings,
            train_dataset=examples,
            eval_dataset=examples if validate is not None else None,  # required, but not used by evaluate()
            data_collator=collate,
            callbacks=callbacks,
            validate=validate,
            measure=options.measure,
            optimizers=(torch.optim.Adam(groups), None),  # the optimizer of the papers
        )

    return run_trainer(
        model,
        make,
        options,
        arguments=partial(TrainingArguments, lr_scheduler_type="constant", remove_unused_columns=False),
        load=lambda checkpoint: load_model(model, checkpoint / SAFE_WEIGHTS_NAME),
        validate=validate,
        **arguments,
    )


def run_trainer(
    model: nn.Module,
    make: Callable[[Any, list[TrainerCallback]], Trainer],
    options: TrainerOptions,
    *,
    arguments: Callable[..., TrainingArguments],
    load: Callable[[Path], Any],
    validate: Callable[[], float] | None,
    identity: dict[str, Any],
    device: torch.device,
    dtype: DType,
    verbose: bool,
) -> list[dict[str, float]]:
    """Trains a model in place and keeps the weights that are best on the validation queries.

    Args:
        model: The model.
        make: Makes the trainer from its arguments and callbacks. The trainer's evaluation returns the measure with
            :data:`PREFIX` before its name.
        options: How to train.
        arguments: Makes the trainer's arguments.
        load: Reads the model's weights from the folder of a checkpoint.
        validate: Computes the measure on the validation queries; None to train to the end and keep the last weights.
        identity: Distinguishes this training from others, whose checkpoints are refused with the names that differ.
        device: Where to train.
        dtype: The precision of the forward pass, unless ``options.arguments`` say it; weights stay in float32.
        verbose: Whether to show progress.

    A call that ends with an error, or by Ctrl-C, leaves the model with the weights that it had before.

    Returns:
        The trainer's log: losses, and the measure under its own name. With validation, its first entry is the measure
        before training; if no later value is better, the weights from before training are kept.

    Raises:
        MemoryError: If memory does not suffice; the message says what takes less.
        ValueError: If ``options.output_dir`` holds checkpoints of another training, or the new weights are not finite.
    """
    measured = validate is not None
    given = {"bf16", "fp16"} & options.arguments.keys()  # in place of dtype
    half = None if given else training_dtype(dtype, device)
    memory = memory_named(
        f"for this training, whose weights are those of before: use a smaller batch_size than {options.batch_size} "
        "(arguments={'gradient_accumulation_steps': 2} doubles the examples of a step again), shorter texts, or a "
        "smaller encoder"
    )
    with tempfile.TemporaryDirectory() as scratch, restored_on_error(model), memory:
        strategy, share = "epoch", 1.0
        if options.evaluations > 1:
            strategy, share = "steps", 1 / (options.epochs * options.evaluations)  # of all steps
        schedule: dict[str, Any] = {"save_strategy": strategy, "save_steps": share, "save_total_limit": 2}
        if options.output_dir is None:  # no later call can continue, so only the best weights are needed
            schedule = {"save_strategy": "best" if measured else "no", "save_only_model": True, "save_total_limit": 1}
        if measured:
            schedule |= {"eval_strategy": strategy, "eval_steps": share}
            schedule |= {"load_best_model_at_end": True, "metric_for_best_model": PREFIX + options.measure}
        defaults: dict[str, Any] = {
            "num_train_epochs": options.epochs,
            "per_device_train_batch_size": options.batch_size,
            "learning_rate": options.learning_rate,
            "seed": options.seed,
            "use_cpu": device.type == "cpu",
            "disable_tqdm": True,  # Progress shows a bar
            "logging_strategy": strategy,
            "logging_steps": share,
            "report_to": [],
            "dataloader_pin_memory": device.type == "cuda",
            "bf16": half == torch.bfloat16,
            "fp16": half == torch.float16,
        }
        settings = arguments(output_dir=scratch, **{**defaults, **schedule, **options.arguments})
        folder = Path(options.output_dir or broadcast_object_list([scratch])[0])
        settings.output_dir = str(folder)
        with settings.main_process_first(local=False):
            checkpoint = _checkpoint_of(folder, options, identity | {"dtype": dtype_name(dtype, device)})
        start = folder / START
        if validate is not None and (checkpoint is None or not start.exists()):
            model.eval()
            value = validate()
            if settings.process_index == 0:
                save_model(model, str(start), metadata={"measured": repr(value)})
        if checkpoint is not None and options.patience:
            state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
            if stalled(state, settings.metric_for_best_model) >= options.patience:  # this training had ended
                load(folder / f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}")
                return _unless_better_at_start(model, start, state, options.measure)
        callbacks: list[TrainerCallback] = [Progress(options.measure)] if verbose else []
        if measured and options.patience:
            callbacks.append(Patience(options.patience))
        trainer = make(settings, callbacks)
        trainer.remove_callback(PrinterCallback)
        try:
            with hidden_bars():
                trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        finally:
            for name in ("forward", "_original_forward"):  # in which accelerate has fixed the precision for ever
                vars(model).pop(name, None)
        log = trainer.state.log_history
        if measured:
            log = _unless_better_at_start(model, start, trainer.state, options.measure)
        trainer.accelerator.wait_for_everyone()  # the temporary folder is removed next
        model.to(device).eval()
        if any(not torch.isfinite(parameter).all() for parameter in model.parameters()):
            raise ValueError("training diverged: the weights are not finite; try smaller learning rates")
    return log


@contextmanager
def restored_on_error(model: nn.Module) -> Iterator[None]:
    """A block that gives a model back the weights that it had before if it ends with an error, or by Ctrl-C."""
    before = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
    try:
        yield
    except BaseException:
        model.load_state_dict(before)
        model.eval()
        raise


def _checkpoint_of(folder: Path, options: TrainerOptions, identity: dict[str, Any]) -> Path | None:
    """The last complete checkpoint of the same training, if there is one. Its length may differ."""
    given = dataclasses.asdict(options).items()
    equal = {f"training option {name}": value for name, value in given if name not in MAY_DIFFER}
    identity = identity | json.loads(json.dumps(equal, default=str))
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / "training.json"
    # the trainer's state is the last file that is written to a checkpoint
    complete = [state.parent for state in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*/{TRAINER_STATE_NAME}")]
    if not complete:
        note.write_text(json.dumps(identity, indent=1), encoding="utf-8")
        return None
    before = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {}
    if before != identity:
        differing = sorted(k for k in {*before, *identity} if before.get(k) != identity.get(k))
        raise ValueError(
            f"{str(folder)!r} holds checkpoints of another training (other: {', '.join(differing)}): "
            "choose another output_dir, or delete it"
        )
    return max(complete, key=lambda path: int(path.name.rpartition("-")[2]))
