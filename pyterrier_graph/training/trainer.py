"""Training by ``transformers.Trainer``: checkpoints, validation by a ranking measure, and the best weights."""

import dataclasses
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pydantic
import torch
from accelerate.utils import broadcast_object_list
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from safetensors.torch import load_model
from torch import Tensor, nn
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
from transformers.utils import SAFE_WEIGHTS_NAME

from pyterrier_graph.checks import QualityWarning
from pyterrier_graph.configuration import STRICT
from pyterrier_graph.encoders.checkpoints import DType, dtype_name, dtype_of, hidden_bars
from pyterrier_graph.storage.artifact import check_identity
from pyterrier_graph.training.validation import as_good, check_measure

# the log, and the measure of each query, if it is known
Trained = tuple[list[dict[str, float]], np.ndarray | None]
PREFIX = "eval_"  # by which the trainer recognizes what evaluation returns
PENALTY = 0.1
SHARES = (0.25, 0.5, 0.75, 1.0)  # of the way from the weights before training to the trained ones
# options that may differ when a training continues from a checkpoint
MAY_DIFFER = {"epochs", "output_dir", "patience"}


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=STRICT)
class TrainerOptions:
    """Options of every training, which ``transformers.Trainer`` runs.

    Attributes:
        epochs: Passes over the training examples.
        batch_size: Examples per step.
        learning_rate: Learning rate of the optimizer.
        measure: Name of the ir_measures measure that is computed on the validation queries. The weights with the
            highest value are kept, the weights before training included.
        evaluations: How often the measure is computed per epoch.
        patience: Number of evaluations without improvement after which training stops; None trains to the end.
        output_dir: Folder for checkpoints, from which a ``fit`` that was killed continues when it is called again.
        seed: Seed of sampling, order and dropout.
        attention_dropout: Whether an encoder that learns drops attention weights, as its checkpoint does. Without, a
            CPU takes half the time for texts of 480 tokens, and no less for 128; dropout of hidden states stays.
        arguments: Further ``transformers.TrainingArguments``, such as ``{'gradient_accumulation_steps': 4}``.
    """

    epochs: PositiveInt = 10
    batch_size: PositiveInt = 32
    learning_rate: NonNegativeFloat = 1e-3
    measure: str = "nDCG@10"
    evaluations: PositiveInt = 1
    patience: PositiveInt | None = 3
    output_dir: str | None = None
    seed: NonNegativeInt = 0
    attention_dropout: bool = True
    arguments: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_measure(self.measure)


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=STRICT)
class HeadOptions(TrainerOptions):
    """:class:`TrainerOptions` of trainings that can train the encoder, or only what is on top of it.

    Attributes:
        learning_rate: Learning rate of what is on top of the encoder.
        encoder_learning_rate: Learning rate of the encoder; None leaves the encoder unchanged.
    """

    encoder_learning_rate: NonNegativeFloat | None = None


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=STRICT)
class StartOptions(HeadOptions):
    """:class:`HeadOptions` of trainings that start at a model which already ranks well, and stay close to it.

    Validation queries decide how far the weights w move from the weights w0 before training: of ``w0 + share * (w -
    w0)`` with shares 0, 0.25, 0.5, 0.75 and 1, the smallest share within one standard error of the best is kept and
    logged. Interpolated weights often rank better than both ends, also on other data (Wortsman et al., Robust
    fine-tuning of zero-shot models, CVPR 2022). Networks that start at random have neither penalty nor interpolation.

    Attributes:
        l2_sp: Factor of the penalty ``l2_sp / 2 * |w - w0|^2`` for leaving w0 (L2-SP: Li et al., Explicit inductive
            bias for transfer learning with convolutional networks, ICML 2018). With 0 a network suits its training
            queries best, and may rank worse than the untrained one on other collections. None is 0.1.
    """

    l2_sp: NonNegativeFloat | None = None


class L2SP(nn.Module):
    """The penalty of :class:`StartOptions` for a network whose weights w0 are its present ones."""

    def __init__(self, network: nn.Module, factor: float | None) -> None:
        super().__init__()
        self.factor = PENALTY if factor is None else factor
        self.register_buffer("first", self._weights(network).detach().clone(), persistent=False)

    def forward(self, network: nn.Module) -> Tensor:
        """``factor / 2 * |w - w0|^2``."""
        first = self.get_buffer("first")
        return self.factor / 2 * (self._weights(network).to(first.device) - first).square().sum()

    @staticmethod
    def _weights(network: nn.Module) -> Tensor:
        weights = [weight.flatten() for weight in network.parameters()]
        return torch.cat(weights) if weights else torch.zeros(0)


class RankingTrainer(Trainer):
    """A Trainer that is evaluated by ``validate`` (see :func:`train`) instead of the loss."""

    model: Any

    def __init__(self, *, validate: Callable[[], np.ndarray] | None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.validate = validate
        self.measured: list[np.ndarray] = []  # the measure of each query, by evaluation

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """The measure on the validation queries, for early stopping."""
        assert (
            self.validate is not None
        )  # without validation queries, the trainer has no dataset for evaluation
        self.model.eval()
        # all processes use the value of the main process, so that they stop at the same time
        self.measured.append(_everywhere(self.validate))
        metrics = {str(self.args.metric_for_best_model): float(self.measured[-1].mean())}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics


class Patience(EarlyStoppingCallback):
    """Early stopping that, after a restart from a checkpoint, counts the evaluations before the restart, too."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Sets the counter."""
        self.early_stopping_patience_counter = stalled(state, args.metric_for_best_model)


class Progress(ProgressCallback):
    """Shows a bar of the steps, with their time and the measure of the last evaluation; other logs are not shown."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **options: Any
    ) -> None:
        """Opens the bar; from the first step on it shows the time of a step, which depends on its examples."""
        super().on_train_begin(args, state, control, **options)
        if self.training_bar is not None:
            self.training_bar.set_description(f"training, {args.train_batch_size} examples a step")

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **options: Any
    ) -> None:
        """Shows the measure."""
        name = str(args.metric_for_best_model)
        if self.training_bar is not None:  # in the main process
            self.training_bar.set_postfix(
                {name.removeprefix(PREFIX): f"{options['metrics'][name]:.4f}"}
            )

    def on_log(self, *_: Any, **__: Any) -> None:
        """Does nothing: a model keeps its log."""


class Redraw(TrainerCallback):
    """Makes a training set draw its examples for each epoch: calls ``draw`` with its number, from 0."""

    def __init__(self, draw: Callable[[int], None]) -> None:
        self.draw = draw

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Draws the examples of the epoch; they are the same after an interruption."""
        self.draw(int(state.epoch or 0))


def stalled(state: TrainerState, metric: str | None) -> int:
    """Number of evaluations since the best one."""
    values = [entry[metric] for entry in state.log_history if metric in entry]
    return len(values) - 1 - values.index(max(values)) if values else 0


def _everywhere(validate: Callable[[], np.ndarray]) -> np.ndarray:
    """The measure of each query, by the main process, in all processes."""
    return broadcast_object_list([validate()])[0]


class Run(NamedTuple):
    """The parts of a training besides its options."""

    validate: Callable[[], np.ndarray] | None  # the measure of each validation query
    identity: dict[str, Any]  # of this training; checkpoints with another identity are refused
    device: torch.device
    dtype: DType  # of the forward pass, unless options.arguments set it; weights stay in float32
    verbose: bool
    interpolate_to_start: bool = False  # see StartOptions; otherwise the best weights are kept


def train(
    model: nn.Module,
    examples: Dataset,
    collate: Callable[[list[Any]], Any],
    options: TrainerOptions,
    *,
    rates: list[tuple[list[nn.Parameter], float]],
    **run: Any,
) -> list[dict[str, float]]:
    """Trains a model, whose ``forward(**batch)`` returns ``{'loss': ...}``, in place with a :class:`RankingTrainer`.

    Calls ``examples.draw(epoch)`` before each epoch, if there is such a method. ``run`` has the fields of :class:`Run`,
    and :func:`run_trainer` describes the log.
    """
    settings = Run(**run)

    def make(arguments: TrainingArguments, callbacks: list[TrainerCallback]) -> Trainer:
        if (draw := getattr(examples, "draw", None)) is not None:
            callbacks = [*callbacks, Redraw(draw)]
        groups = [{"params": parameters, "lr": rate} for parameters, rate in rates]
        return RankingTrainer(
            model=model,
            args=arguments,
            train_dataset=examples,
            # required for validation, but evaluate() does not use it
            eval_dataset=None if settings.validate is None else examples,
            data_collator=collate,
            callbacks=callbacks,
            validate=settings.validate,
            optimizers=(torch.optim.Adam(groups), None),  # the optimizer of the papers
        )

    arguments = partial(
        TrainingArguments, lr_scheduler_type="constant", remove_unused_columns=False
    )
    load = lambda checkpoint: load_model(model, checkpoint / SAFE_WEIGHTS_NAME)  # noqa: E731
    return run_trainer(model, make, arguments, load, options, settings)[0]


def run_trainer(
    model: nn.Module,
    make: Callable[[Any, list[TrainerCallback]], Trainer],
    arguments: Callable[..., TrainingArguments],
    load: Callable[[Path], Any],
    options: TrainerOptions,
    run: Run,
) -> Trained:
    """Trains a model in place and keeps the weights that are best on the validation queries.

    A call that ends with an error, or with Ctrl-C, leaves the model with the weights that it had before. ``make`` makes
    the trainer from its arguments and callbacks; its evaluation returns the measure with :data:`PREFIX` before its
    name. ``load`` reads the model's weights from the folder of a checkpoint.

    The log has losses, and the measure under its own name. With validation, its first entry is the measure before
    training; if no later value is better, the weights from before training are kept. Raises ValueError if
    ``options.output_dir`` holds checkpoints of another training, or the new weights are not finite.
    """
    with (
        tempfile.TemporaryDirectory() as scratch,
        restored_on_error(model) as start,
        nullcontext() if options.attention_dropout else no_attention_dropout(model),
    ):
        settings = arguments(output_dir=scratch, **trainer_arguments(options, run))
        folder = Path(options.output_dir or broadcast_object_list([scratch])[0])
        settings.output_dir = str(folder)
        with settings.main_process_first(local=False):
            identity = run.identity | {"dtype": dtype_name(run.dtype, run.device)}
            checkpoint = _checkpoint_of(folder, options, identity)
        selection = None
        if run.validate is not None:
            selection = WeightSelection(model, start, run, options.measure)
        if selection is not None and checkpoint is not None and options.patience:
            state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
            if stalled(state, settings.metric_for_best_model) >= options.patience:  # it had ended
                load(folder / f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}")
                return selection.select(state)
        trainer: Any = make(settings, _callbacks(options, run))
        trainer.remove_callback(PrinterCallback)
        _run(trainer, model, checkpoint)
        trained: Trained = trainer.state.log_history, None
        if selection is not None:
            trained = selection.select(trainer.state, trainer.measured)
        trainer.accelerator.wait_for_everyone()  # the temporary folder is removed next
        model.to(run.device).eval()
        if any(not torch.isfinite(parameter).all() for parameter in model.parameters()):
            raise ValueError(
                "training diverged: the weights are not finite; try smaller learning rates"
            )
    return trained


def _callbacks(options: TrainerOptions, run: Run) -> list[TrainerCallback]:
    callbacks: list[TrainerCallback] = [Progress()] if run.verbose else []
    if run.validate is not None and options.patience:
        callbacks.append(Patience(options.patience))
    return callbacks


def _run(trainer: Any, model: nn.Module, checkpoint: Path | None) -> None:
    """Runs a trainer from a checkpoint, or from the start."""
    try:
        with hidden_bars():
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    finally:
        for name in ("forward", "_original_forward"):  # where accelerate has fixed the precision
            vars(model).pop(name, None)


class WeightSelection:
    """Chooses between initial and trained weights on the validation queries, with the one-standard-error rule.

    ``start`` are the weights before training, which the model still has.
    """

    def __init__(self, model: nn.Module, start: dict[str, Tensor], run: Run, measure: str) -> None:
        self.model, self.start, self.measure = model, start, measure
        self.validate = cast(Callable[[], np.ndarray], run.validate)
        self.interpolate = run.interpolate_to_start
        self.at_start = self._measured()

    def _measured(self) -> np.ndarray:
        self.model.eval()
        return _everywhere(self.validate)

    def select(self, state: TrainerState, evaluations: Sequence[np.ndarray] = ()) -> Trained:
        """Gives the model the selected weights; returns the log, and the measure of each query if it is known.

        The model has the best weights of the training. ``evaluations`` are the measures of its queries, which lack the
        best one if that is of an earlier call.
        """
        rename = {PREFIX + self.measure: self.measure}
        log = [{self.measure: float(self.at_start.mean()), "epoch": 0.0, "step": 0}]
        log += [{rename.get(k, k): v for k, v in entry.items()} for entry in state.log_history]
        values = {0.0: self.at_start}  # by share of the way from the initial to the trained weights
        best = (value for value in evaluations if float(value.mean()) == state.best_metric)
        if (value := next(best, None)) is not None:
            values[1.0] = value
        share = float(state.best_metric is None or state.best_metric >= self.at_start.mean())
        if self.interpolate:
            share = self._best_share(values)
            last = {name: log[-1][name] for name in ("epoch", "step")}
            log.append({self.measure: float(values[share].mean()), "share": share} | last)
        if not share:
            advice = "try a smaller learning rate, more epochs or more training queries"
            message = f"training did not improve {self.measure}: the weights from before training are kept; {advice}"
            warnings.warn(message, QualityWarning, stacklevel=4)
            self.model.load_state_dict(self.start)
        return log, values.get(share)

    def _best_share(self, values: dict[float, np.ndarray]) -> float:
        """The smallest share within one standard error of the best; gives the model these weights."""
        trained = _copied(self.model)
        for share in SHARES:
            self._load(trained, share)
            if share not in values:
                values[share] = self._measured()
        best = max(values.values(), key=np.mean)
        selected = min(share for share, value in values.items() if as_good(value, best))
        self._load(trained, selected)
        return selected

    def _load(self, trained: dict[str, Tensor], share: float) -> None:
        weights = {
            name: self.start[name].lerp(end, share) if end.is_floating_point() else end
            for name, end in trained.items()
        }
        self.model.load_state_dict(weights)


def _copied(model: nn.Module) -> dict[str, Tensor]:
    """A copy of a model's weights."""
    return {name: weights.detach().cpu().clone() for name, weights in model.state_dict().items()}


def trainer_arguments(options: TrainerOptions, run: Run) -> dict[str, Any]:
    """The arguments of ``TrainingArguments``: steps, precision, and when to evaluate and to write a checkpoint."""
    own_precision = {"bf16", "fp16"} & options.arguments.keys()  # instead of dtype
    half = None if own_precision else dtype_of(run.dtype, run.device)
    if half == torch.float16 and run.device.type == "cpu":  # where gradients are not scaled
        raise ValueError(
            "training in dtype='float16' needs a GPU: on a CPU use 'auto', 'bfloat16' or 'float32'"
        )
    strategy, share = "epoch", 1.0
    if options.evaluations > 1:
        strategy, share = "steps", 1 / (options.epochs * options.evaluations)  # of all steps
    schedule = {"save_strategy": strategy, "save_steps": share, "save_total_limit": 2}
    if options.output_dir is None:  # no later call can continue, so only the best weights are saved
        best = "no" if run.validate is None else "best"
        schedule = {"save_strategy": best, "save_only_model": True, "save_total_limit": 1}
    if run.validate is not None:
        schedule |= {
            "eval_strategy": strategy,
            "eval_steps": share,
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
        "logging_strategy": strategy,
        "logging_steps": share,
        "report_to": [],
        "dataloader_pin_memory": run.device.type == "cuda",
        "bf16": half == torch.bfloat16,
        "fp16": half == torch.float16,
    }
    return {**defaults, **schedule, **options.arguments}


@contextmanager
def restored_on_error(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """A block that restores the weights of a model, which it provides, if it ends with an error, or with Ctrl-C."""
    start = _copied(model)
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
        inner = type(module).__name__.endswith("SelfAttention")
        dropout = getattr(module, "dropout" if inner else "attention_dropout", None)  # as in ALBERT
        if isinstance(dropout, nn.Dropout):
            rates[dropout] = dropout.p
    try:
        for dropout in rates:
            dropout.p = 0.0
        yield
    finally:
        for dropout, p in rates.items():
            dropout.p = p


def _checkpoint_of(folder: Path, options: TrainerOptions, identity: dict[str, Any]) -> Path | None:
    """The last complete checkpoint of the same training, if there is one. Its length may differ."""
    equal = {
        f"training option {name}": value
        for name, value in dataclasses.asdict(options).items()
        if name not in MAY_DIFFER
    }
    # the trainer's state is the last file that is written to a checkpoint
    complete = [
        state.parent for state in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*/{TRAINER_STATE_NAME}")
    ]
    check_identity(
        folder / "training.json",
        identity | equal,
        "checkpoints of another training",
        begun=bool(complete),
    )
    if not complete:
        return None
    return max(complete, key=lambda path: int(path.name.rpartition("-")[2]))
