"""What all trained transformers have in common: saving, loading, copies, and warnings about their state of training."""

from __future__ import annotations

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
from pyterrier_graph.encoders.checkpoints import checkpoint_name
from pyterrier_graph.encoders.devices import DType, device_of
from pyterrier_graph.training.options import TrainerOptions

Options = TypeVar("Options")
STAGES = ("pretraining", "training")


def origin_of(model: Any) -> dict[str, Any]:
    """What ``pt_meta.json`` says about the origin of a model: versions, and what is known of each stage of training.

    Args:
        model: A model with ``training`` (or ``pretraining``), and with ``training_log`` once it is trained.
    """
    origin: dict[str, Any] = {"versions": versions(), "options": {}}
    for stage in STAGES:
        if (given := getattr(model, stage, None)) is None:
            continue
        options = origin["options"][stage] = dataclasses.asdict(given)
        del options["output_dir"]  # a path of this machine
        if log := getattr(model, f"{stage}_log", None):
            origin[stage] = {"steps": max(entry["step"] for entry in log), "options": options, "log": log}
            if measured := [entry[given.measure] for entry in log if given.measure in entry]:
                origin[stage]["best"] = {given.measure: max(measured)}
    return json.loads(json.dumps(origin, default=str))


def options_from(kind: type[Options], values: Mapping[str, Any]) -> Options:
    """A dataclass from its JSON form; dataclasses and tuples inside are restored like those of the defaults.

    Raises:
        ValueError: If there is no such option, or its value is not allowed.
    """
    default: Any = kind()
    options = dict(values)
    for name, value in options.items():
        kept = getattr(default, name, None)
        if dataclasses.is_dataclass(kept) and isinstance(value, Mapping):
            options[name] = options_from(type(kept), value)
        elif isinstance(kept, tuple):
            options[name] = tuple(value)
    try:
        return kind(**options)
    except TypeError as error:
        raise ValueError(f"{kind.__name__} cannot be restored: {error}") from error


class LearnedModel(WithSignature, OwnArtifact, pt.Estimator):
    """Base of the Estimators that are artifacts: weights in safetensors, configuration in JSON.

    A subclass sets :attr:`training_log` in ``fit``, and calls :meth:`_start_fit` first. It sets :attr:`random_start`
    in its constructor, and calls :meth:`_warn_if_random` in ``transform``.

    Attributes:
        encoder: The encoder, or the name of the checkpoint that the network started from.
        network: The module that is trained and saved; None in a model that has only weights of relations.
        training_log: Losses, and the validation measure under its own name, of the last training; empty before.
        random_start: Whether the scores of the untrained model are random.
        STAGES: The class of the options of each training stage, by the name of the constructor's argument.
        WRITTEN: Arguments of the constructor that are saved, and given to the constructor again by :meth:`load`.
        KEEP_WEIGHTS: Arguments of the constructor that a copy may have other values of without losing its weights.
    """

    ARTIFACT_SCHEMATIC_SHOW_AS_TRANSFORMER = True
    STAGES: ClassVar[Mapping[str, type[TrainerOptions]]] = {}
    WRITTEN: tuple[str, ...]
    KEEP_WEIGHTS = frozenset({"training", "batch_size", "text_field", "device", "dtype", "verbose"})

    encoder: Any = None
    device: str | None
    network: Any = None
    training_log: list[dict[str, float]] = []  # noqa: RUF012, replaced as a whole
    random_start: bool = False
    _warned: bool = False

    def __setattr__(self, name: str, value: Any) -> None:
        """Checks the arguments that all models share, also when they are set later, as by ``pt.GridSearch``."""
        if (kind := self.STAGES.get(name)) is not None:
            check_type(name, value, kind, f"a {kind.__name__}, such as {kind.__name__}(epochs=3)")
        elif name == "batch_size":
            check_count(name, value)
        elif name == "dtype":
            check_choice(name, value, get_args(DType))
        super().__setattr__(name, value)

    @abstractmethod
    def _write(self, folder: Path) -> dict[str, Any]:
        """Writes the network into a folder, and returns what :meth:`_read` needs to know besides."""

    @classmethod
    @abstractmethod
    def _read(cls, folder: Path, about: dict[str, Any], options: dict[str, Any]) -> Self:
        """Makes a model from what :meth:`_write` wrote.

        Args:
            folder: The artifact's folder.
            about: The content of ``pt_meta.json``, with what :meth:`_write` returned.
            options: Arguments of the constructor: those that were saved, and those of the caller.
        """

    def _digest(self) -> str:
        """SHA-256 of the weights; :meth:`load` compares it with the saved one."""
        return weights_sha256(self.network)

    def save(self, path: str | os.PathLike[str]) -> Self:
        """Writes the model as an artifact, with the options and the log of its training.

        Args:
            path: Folder of the artifact; it must not exist yet.

        Raises:
            FileExistsError: If something lies at ``path``.
        """
        meta = kind_of(self) | origin_of(self) | {"random_start": self.random_start, "sha256": self._digest()}
        meta |= {name: getattr(self, name) for name in self.WRITTEN}
        if isinstance(self.encoder, str):
            meta["encoder"] = checkpoint_name(self.encoder)
        with writing(path, meta) as folder:
            meta |= self._write(folder)
        self.path = Path(path)
        return self

    @classmethod
    def load(cls, path: str | os.PathLike[str], **options: Any) -> Self:
        """Reads what :meth:`save` wrote. The model scores as before, and has the same options of training.

        Args:
            path: The artifact's folder.
            **options: Arguments of the constructor that do not shape the model, such as ``device``, ``batch_size`` or
                ``training``; they replace the saved ones.

        Raises:
            FileNotFoundError: If there is no artifact.
            ValueError: If the artifact is damaged, or of another kind.
        """
        folder = Path(path)
        meta = read_meta(folder, kind_of(cls))
        stages = {name: options_from(kind, meta["options"][name]) for name, kind in cls.STAGES.items()}
        try:
            model = cls._read(folder, meta, stages | {name: meta[name] for name in cls.WRITTEN} | options)
        except SafetensorError as error:
            raise ValueError(f"{str(folder)!r} is damaged: {error}") from error
        if model._digest() != meta["sha256"]:
            raise ValueError(f"{str(folder)!r} is damaged: its weights are not those that were saved")
        if isinstance(meta.get("encoder"), str):
            model.encoder = meta["encoder"]
        for name in cls.STAGES:
            setattr(model, f"{name}_log", meta.get(name, {}).get("log", []))
        model.random_start = meta["random_start"]
        model.path = folder
        return model

    def apply_attributes(self, **attributes: Any) -> Self:
        """A copy with other arguments of the constructor, as ``pt.inspect.transformer_apply_attributes`` makes it.

        The copy has weights of its own, equal to those of this model, if only arguments in :attr:`KEEP_WEIGHTS` change.
        Any other change (of the encoder, the configuration, the seed) makes a new, untrained model.

        Warns:
            UserWarning: If the weights of a trained model are lost.
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
            warnings.warn(
                f"the copy of {self!r} is not trained: with another {', '.join(lost)} the trained weights do not fit",
                stacklevel=2,
            )
        return type(self)(**present | attributes)

    def _check_attributes(self) -> None:
        """Raises an error if the arguments of the constructor do not fit each other; called for copies."""

    def _start_fit(self) -> None:
        """Warns that ``fit`` continues from trained weights, if there are any."""
        self._warned = True  # measuring the untrained model is part of training
        if self.training_log:
            name = type(self).__name__
            warnings.warn(
                f"{self!r} is trained already: fit continues from the trained weights. To start anew, call fit of a "
                f"new {name}",
                stacklevel=3,
            )

    def _warn_if_random(self) -> None:
        """Warns once that the scores of this model are random, if they are."""
        if self.random_start and not self.training_log and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self!r} is not trained and ranks at random: call fit, load a trained model, or choose a start that "
                "ranks without training",
                stacklevel=3,
            )
