"""What trained transformers with one network have in common: writing, reading, copies."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from abc import abstractmethod
from pathlib import Path
from typing import Any, Self

import pyterrier as pt
from safetensors import SafetensorError

from pyterrier_graph.artifacts import OwnArtifact, kind_of, read_meta, versions, weights_sha256, writing
from pyterrier_graph.encoders.checkpoints import checkpoint_name
from pyterrier_graph.encoders.devices import device_of
from pyterrier_graph.training.trainer import METRIC


def origin_of(model: Any) -> dict[str, Any]:
    """What ``pt_meta.json`` says of how a model came about: versions, and its training, if that was in this process.

    Args:
        model: One with ``training`` and, once it is trained, ``training_log``; likewise for a stage before.
    """
    origin: dict[str, Any] = {"versions": versions()}
    for stage in ("pretraining", "training"):
        if log := getattr(model, f"{stage}_log", None):
            options = dataclasses.asdict(getattr(model, stage))
            del options["output_dir"]  # a path of this machine
            origin[stage] = {"steps": max(entry["step"] for entry in log), "options": options}
            if measured := [entry[METRIC] for entry in log if METRIC in entry]:
                origin[stage]["best"] = {options["measure"]: max(measured)}
    return json.loads(json.dumps(origin, default=str))


class LearnedModel(OwnArtifact, pt.Estimator):
    """Base of Estimators that are artifacts: weights in safetensors, configuration in JSON.

    Attributes:
        model: The checkpoint that the network started at.
        network: What is trained and saved.
        WRITTEN: Options of the constructor that are saved, and given to it again by :meth:`load`.
        KEEP_WEIGHTS: The attributes that a copy may have others of, without starting anew.
    """

    ARTIFACT_SCHEMATIC_SHOW_AS_TRANSFORMER = True
    WRITTEN: tuple[str, ...]
    KEEP_WEIGHTS = frozenset({"training", "batch_size", "text_field", "device", "verbose"})

    model: str
    device: str | None
    network: Any  # a module whose attributes a subclass knows

    @abstractmethod
    def _write(self, folder: Path) -> dict[str, Any]:
        """Writes the network; returns what :meth:`_read` has to know beside it."""

    @classmethod
    @abstractmethod
    def _read(cls, folder: Path, about: dict[str, Any], options: dict[str, Any]) -> Self:
        """Makes a model of what :meth:`_write` wrote, with these options of the constructor."""

    def save(self, path: str | os.PathLike[str]) -> Self:
        """Writes the model as an artifact: weights in safetensors, configuration in JSON.

        Raises:
            FileExistsError: If something lies at ``path``.
        """
        meta = kind_of(self) | origin_of(self) | {"model": checkpoint_name(self.model)}
        meta |= {name: getattr(self, name) for name in self.WRITTEN} | {"sha256": weights_sha256(self.network)}
        with writing(path, meta) as folder:
            meta |= self._write(folder)
        self.path = Path(path)
        return self

    @classmethod
    def load(cls, path: str | os.PathLike[str], **options: Any) -> Self:
        """Reads what :meth:`save` wrote; it does as before.

        Args:
            path: The artifact's folder.
            **options: Those of the constructor that do not shape the model, such as ``device`` or ``batch_size``.

        Raises:
            FileNotFoundError: If there is no artifact.
            ValueError: If it is damaged, or of another kind.
        """
        folder = Path(path)
        meta = read_meta(folder, kind_of(cls))
        try:
            model = cls._read(folder, meta, {name: meta[name] for name in cls.WRITTEN} | options)
        except SafetensorError as error:
            raise ValueError(f"{str(folder)!r} is damaged: {error}") from error
        if weights_sha256(model.network) != meta["sha256"]:
            raise ValueError(f"{str(folder)!r} is damaged: its weights are not those that were saved")
        model.model = meta["model"]
        model.path = folder
        return model

    def apply_attributes(self, **attributes: Any) -> Self:
        """A copy with other attributes, as ``pt.inspect`` asks for; one of another shape or length starts anew."""
        if attributes.keys() <= self.KEEP_WEIGHTS:
            twin = copy.copy(self)
            vars(twin).update(attributes)
            twin.network = copy.deepcopy(self.network).to(device_of(twin.device))
            return twin
        names = [attribute.name for attribute in pt.inspect.transformer_attributes(self)]
        return type(self)(**{name: getattr(self, name) for name in names} | attributes)
