"""The common part of trained transformers: saving, loading, copies, and warnings about the state of training."""

import copy
import dataclasses
import json
import os
import warnings
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, get_args

import pyterrier as pt
from safetensors import SafetensorError
from torch import nn

from pyterrier_graph.artifacts import OwnArtifact, kind_of, read_meta, versions, weights_sha256, writing
from pyterrier_graph.checks import WithSignature, check_choice, check_count, check_type
from pyterrier_graph.encoders.checkpoints import checkpoint_name, hidden_bars
from pyterrier_graph.encoders.devices import DType, device_of
from pyterrier_graph.training.options import TrainerOptions
from pyterrier_graph.training.run_record import recorded
from pyterrier_graph.warning_categories import QualityWarning

Options = TypeVar("Options")


def options_from(kind: type[Options], values: Mapping[str, Any]) -> Options:
    """A dataclass from its JSON form, in which tuples are lists and dataclasses are dictionaries."""
    default: Any = kind()
    options = dict(values)
    for name, value in options.items():
        inner = getattr(default, name, None)
        if dataclasses.is_dataclass(inner):
            options[name] = options_from(type(inner), value)
        elif isinstance(value, list):
            options[name] = tuple(value)
    try:
        return kind(**options)
    except TypeError as error:
        raise ValueError(f"{kind.__name__} cannot be restored: {error}") from error


class LearnedModel(WithSignature, OwnArtifact, pt.Estimator):
    """Base of the Estimators that are artifacts: weights in safetensors, configuration in JSON.

    A subclass calls :meth:`_start_fit` in ``fit`` and :meth:`_warn_if_random` in ``transform``.

    Attributes:
        encoder: The encoder, or the name of the checkpoint that the network started from.
        training_log: Losses, and the validation measure under its own name, of the last training; empty before.
        training_run: Versions, seeds, device, precision, seconds and peak memory of the last training; empty before.
    """

    ARTIFACT_SCHEMATIC_SHOW_AS_TRANSFORMER = True
    # arguments of the constructor: options of training stages with their classes, those that are saved, and those that
    # may change in a copy with the same weights
    STAGES: ClassVar[Mapping[str, type[TrainerOptions]]] = {}
    WRITTEN: tuple[str, ...]
    KEEP_WEIGHTS = frozenset({"training", "batch_size", "text_field", "device", "dtype", "verbose"})

    encoder: Any = None
    device: str | None
    network: Any = None  # the module that is trained and saved, if there is one
    training_log: list[dict[str, float]] = []  # noqa: RUF012, replaced as a whole
    training_run: dict[str, Any] = {}  # noqa: RUF012, replaced as a whole
    random_start: bool = False  # whether the scores of the untrained model are random
    _warned_of: frozenset[str] = frozenset()

    def __init_subclass__(cls, **options: Any) -> None:
        """Has each method that trains record what the training took."""
        super().__init_subclass__(**options)
        for name in {"fit", "fit_examples"} & {*vars(cls)}:
            setattr(cls, name, recorded(vars(cls)[name]))

    def __setattr__(self, name: str, value: Any) -> None:
        """Checks the arguments that all models share, also when they are set later, as by ``pt.GridSearch``."""
        if (kind := self.STAGES.get(name)) is not None:
            check_type(name, value, kind, f"a {kind.__name__}, such as {kind.__name__}(epochs=3)")
        elif name == "batch_size":
            check_count(name, value)
        elif name == "device":
            device_of(value)
        elif name == "dtype":
            check_choice(name, value, get_args(DType))
        super().__setattr__(name, value)

    @abstractmethod
    def _write(self, folder: Path) -> dict[str, Any]:
        """Writes the network into a folder, and returns further entries of ``pt_meta.json`` for :meth:`_read`."""

    @classmethod
    @abstractmethod
    def _read(cls, folder: Path, about: dict[str, Any], options: dict[str, Any]) -> Self:
        """Makes a model from a folder, the content of ``pt_meta.json``, and arguments of the constructor."""

    def _digest(self) -> str:
        """SHA-256 of the weights; :meth:`load` compares it with the saved one."""
        return weights_sha256(self.network)

    def save(self, path: str | os.PathLike[str]) -> Self:
        """Writes the model with the options and the log of its training as an artifact.

        Raises:
            FileExistsError: If something lies at ``path``.
        """
        meta = kind_of(self) | self._origin() | {"random_start": self.random_start, "sha256": self._digest()}
        meta |= {name: getattr(self, name) for name in self.WRITTEN}
        if isinstance(self.encoder, str):
            meta["encoder"] = checkpoint_name(self.encoder)
        with writing(path, meta) as folder, hidden_bars():
            meta |= self._write(folder)
        self.path = Path(path)
        return self

    def _origin(self) -> dict[str, Any]:
        """Entries of ``pt_meta.json``: versions, and the options and logs of each stage of training."""
        origin: dict[str, Any] = {"versions": versions(), "options": {}}
        for stage in self.STAGES:
            given = getattr(self, stage)
            options = origin["options"][stage] = dataclasses.asdict(given)
            del options["output_dir"]  # a path of this machine
            if log := getattr(self, f"{stage}_log", None):
                origin[stage] = {"steps": max(entry["step"] for entry in log), "options": options, "log": log}
                if measured := [entry[given.measure] for entry in log if given.measure in entry]:
                    origin[stage]["best"] = {given.measure: max(measured)}
        if self.training_run:
            origin["run"] = self.training_run
        return json.loads(json.dumps(origin, default=str))

    @classmethod
    def load(cls, path: str | os.PathLike[str], **options: Any) -> Self:
        """Reads what :meth:`save` wrote; ``options`` replace saved arguments, such as ``training``, or add ``device``.

        Raises:
            FileNotFoundError: If there is no artifact.
            ValueError: If the artifact is damaged, or of another kind.
        """
        folder = Path(path)
        meta = read_meta(folder, kind_of(cls))
        stages = {name: options_from(kind, meta["options"][name]) for name, kind in cls.STAGES.items()}
        written = {name: meta[name] for name in cls.WRITTEN if name in meta}  # an older version may not have had all
        try:
            model = cls._read(folder, meta, stages | written | options)
        except SafetensorError as error:
            raise ValueError(f"{str(folder)!r} is damaged: {error}") from error
        if model._digest() != meta["sha256"]:
            raise ValueError(f"{str(folder)!r} is damaged: its weights are not those that were saved")
        if isinstance(meta.get("encoder"), str):
            model.encoder = meta["encoder"]
        for name in cls.STAGES:
            setattr(model, f"{name}_log", meta.get(name, {}).get("log", []))
        model.training_run = meta.get("run", {})
        model.random_start = meta["random_start"]
        model.path = folder
        return model

    def apply_attributes(self, **attributes: Any) -> Self:
        """A copy with other arguments of the constructor, as ``pt.inspect.transformer_apply_attributes`` makes it.

        The copy has its own copy of the weights if only arguments in :attr:`KEEP_WEIGHTS` change. After other changes
        (of the encoder, the configuration, the seed) it is untrained, with a warning if this model is trained.
        """
        present = {attribute.name: attribute.value for attribute in pt.inspect.transformer_attributes(self)}
        attributes = {name: value for name, value in attributes.items() if value is not present.get(name, self)}
        lost = sorted(attributes.keys() - self.KEEP_WEIGHTS - self.STAGES.keys())
        if not lost:
            twin = copy.copy(self)
            if isinstance(self.network, nn.Module):
                twin.network = copy.deepcopy(self.network).to(device_of(attributes.get("device", self.device)))
            for name, value in attributes.items():
                setattr(twin, name, value)
            twin._check_attributes()
            return twin
        if self.training_log:
            reason = f"with another {', '.join(lost)} the trained weights do not fit"
            warnings.warn(f"the copy of {self!r} is not trained: {reason}", QualityWarning, stacklevel=2)
        return type(self)(**present | attributes)

    def _check_attributes(self) -> None:
        """Raises an error if the arguments of the constructor do not fit each other; called for copies."""

    def _start_fit(self) -> None:
        """Warns that ``fit`` continues from trained weights, if there are any."""
        self._warned_of |= {"random"}  # measuring the untrained model is part of training
        if self.training_log:
            advice = f"fit continues from the trained weights. To start anew, call fit of a new {type(self).__name__}"
            warnings.warn(f"{self!r} is trained already: {advice}", QualityWarning, stacklevel=4)

    def _warn_if_random(self) -> None:
        """Warns once that the scores of this model are random, if they are."""
        if self.random_start and not self.training_log:
            advice = "call fit, load a trained model, or choose a start that ranks without training"
            self._warn_once("random", f"{self!r} is not trained and ranks at random: {advice}")

    def _warn_once(self, topic: str, message: str, category: type[Warning] = QualityWarning) -> None:
        """Warns of a topic, unless this model has done so already."""
        if topic not in self._warned_of:
            self._warned_of |= {topic}
            warnings.warn(message, category, stacklevel=4)
