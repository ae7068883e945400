"""The base of trained transformers: saving, loading, copies, and the record of a training."""

import copy
import dataclasses
import os
import warnings
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pandas as pd
import pyterrier as pt
import torch

from pyterrier_graph.checks import QualityWarning, WithSignature
from pyterrier_graph.encoders.checkpoints import DType, device_of, dtype_of, hidden_bars
from pyterrier_graph.encoders.names import checkpoint_name
from pyterrier_graph.html import HtmlCard, HtmlDisplay
from pyterrier_graph.storage.artifact import (
    OwnArtifact,
    atomic_folder,
    kind_of,
    read_meta,
    versions,
    weights_sha256,
)
from pyterrier_graph.training.validation import JudgedRun

Log = list[dict[str, float]]  # of a training: what was measured at some steps


class Run(NamedTuple):
    """What a training depends on besides its options."""

    validate: Callable[[], np.ndarray] | None  # the measure of each validation query
    identity: dict[str, Any]  # of this training; checkpoints with another identity are refused
    device: torch.device
    dtype: DType  # of the forward pass, unless options.arguments set it; weights stay in float32
    verbose: bool
    random_start: bool  # such a start is never kept


def _without_paths(options: list[tuple[str, Any]]) -> dict[str, Any]:
    """The options of a training without paths of this machine."""
    return {name: value for name, value in options if name != "output_dir"}


class LearnedModel(HtmlDisplay, WithSignature, OwnArtifact, pt.Estimator):
    """Base of the Estimators that are artifacts: weights in safetensors, configuration in JSON.

    A subclass calls :meth:`_check` at the end of its constructor, :meth:`_start_fit` in ``fit``, and
    :meth:`_warn_if_random` in ``transform``.

    Attributes:
        encoder: The encoder, or the name of the checkpoint that the network started from.
        training_log: Losses, and the validation measure under its own name, of the last training; empty before.
    """

    ARTIFACT_SCHEMATIC_SHOW_AS_TRANSFORMER = True
    # class of the argument ``training``, if it is saved
    TRAINING: ClassVar[type[Any] | None] = None
    WRITTEN: tuple[str, ...]  # further arguments of the constructor that are saved
    # arguments of the constructor that may change in a copy with the same weights
    KEEP_WEIGHTS = frozenset({"training", "batch_size", "device", "dtype", "verbose"})

    encoder: Any = None
    training: Any = None
    device: str | None
    dtype: DType
    verbose: bool
    network: Any = None  # the module that is trained and saved, if there is one
    training_log: Log = []  # noqa: RUF012, replaced as a whole
    random_start: bool = False  # whether the scores of the untrained model are random

    def _check(self) -> None:
        """Raises an error if an argument of the constructor is not allowed, or does not fit another one.

        The constructor calls it at its end; it is also called for copies, and before training.
        """
        dtype_of(self.dtype, self._device)

    @property
    def _device(self) -> torch.device:
        return device_of(self.device)

    @abstractmethod
    def _write(self, folder: Path) -> dict[str, Any]:
        """Writes the network into a folder, and returns further entries of ``pt_meta.json`` for :meth:`_read`."""

    @classmethod
    @abstractmethod
    def _read(cls, folder: Path, about: dict[str, Any], options: dict[str, Any]) -> Self:
        """Makes a model from a folder, the content of ``pt_meta.json``, and arguments of the constructor."""

    def _digest(self) -> str:
        """SHA-256 of the weights."""
        return weights_sha256(self.network)

    def save(self, path: str | os.PathLike[str]) -> Self:
        """Writes the model, with the options and the log of its training, as an artifact to a new path."""
        meta = kind_of(self) | {
            "random_start": self.random_start,
            "training_log": self.training_log,
            "versions": versions(),
        }
        for name in self.WRITTEN:
            meta[name] = getattr(self, name)
        if self.TRAINING is not None:
            meta["training"] = dataclasses.asdict(self.training, dict_factory=_without_paths)
        if isinstance(self.encoder, str):
            meta["encoder"] = checkpoint_name(self.encoder)
        with atomic_folder(path, meta) as folder, hidden_bars():
            meta |= self._write(folder)
        self.path = Path(path)
        return self

    @classmethod
    def load(cls, path: str | os.PathLike[str], **options: Any) -> Self:
        """Reads a model that :meth:`save` wrote.

        Args:
            path: Folder of the model.
            **options: Arguments of the constructor that replace saved ones, such as ``training``, or are not saved,
                such as ``device``.

        Raises:
            FileNotFoundError: If there is no artifact.
            ValueError: If the artifact is damaged, or of another kind.
        """
        folder = Path(path)
        meta = read_meta(folder, kind_of(cls))
        saved = {name: meta[name] for name in cls.WRITTEN}
        if cls.TRAINING is not None:
            saved["training"] = cls.TRAINING(**meta["training"])
        model = cls._read(folder, meta, saved | options)
        if isinstance(meta.get("encoder"), str):
            model.encoder = meta["encoder"]
        model.training_log = meta["training_log"]
        model.random_start = meta["random_start"]
        model.path = folder
        return model

    def apply_attributes(self, **attributes: Any) -> Self:
        """A copy with other arguments of the constructor, as ``pt.inspect.transformer_apply_attributes`` makes it.

        The copy has its own copy of the weights if only arguments in :attr:`KEEP_WEIGHTS` change. After other changes
        (of the encoder, the configuration, the seed) it is untrained, with a warning if this model is trained.
        """
        arguments = pt.inspect.transformer_attributes(self)
        present = {argument.name: argument.value for argument in arguments}
        changed = {name for name in attributes if attributes[name] is not present.get(name)}
        incompatible = sorted(changed - self.KEEP_WEIGHTS)
        if incompatible:
            if self.training_log:
                names = ", ".join(incompatible)
                reason = f"with another {names} the trained weights do not fit"
                message = f"the copy of {self!r} is not trained: {reason}"
                warnings.warn(message, QualityWarning, stacklevel=2)
            return type(self)(**present | attributes)
        twin = copy.copy(self)
        for name, value in attributes.items():
            setattr(twin, name, value)
        if "network" in vars(self):
            twin.network = copy.deepcopy(self.network).to(twin._device)
        twin._check()
        return twin

    def _start_fit(self) -> None:
        """Checks the arguments, and warns that ``fit`` continues from trained weights, if there are any."""
        self._check()
        if self.training_log:
            advice = f"fit continues from the trained weights. To start over, fit a new {type(self).__name__}"
            warnings.warn(f"{self!r} is trained already: {advice}", QualityWarning, stacklevel=3)

    def _run(self, validate: Callable[[], np.ndarray] | None, identity: dict[str, Any]) -> Run:
        """What a training of this model depends on besides its options."""
        identity = {"weights at the start": self._digest()} | identity
        return Run(validate, identity, self._device, self.dtype, self.verbose, self.random_start)

    def _view(self) -> HtmlCard:
        """Arguments of the constructor that are not the default ones, number of weights, and what training did."""
        facts: dict[str, Any] = {}
        for argument in pt.inspect.transformer_attributes(self):
            value = argument.value
            is_default = value in (None, argument.init_default_value)
            if argument.name == "training" or is_default:
                continue
            if not isinstance(value, dict):
                value = repr(value)
            facts[argument.name] = value
        if self.network is not None:
            parameters = self.network.parameters()
            facts["parameters"] = sum(weights.numel() for weights in parameters)
            facts["trained"] = "not yet"
        for entry in self.training_log:
            facts["trained"] = f"{entry['step']:,} steps"
            if "kept" in entry:
                measure = self.training.measure
                facts["validation"] = f"{measure} {entry[measure]:.4f}"
        return HtmlCard(facts)

    def _warn_if_random(self) -> None:
        """Warns that the scores of this model are random, if they are."""
        if self.random_start and not self.training_log:
            advice = "call fit, load a trained model, or choose a start that ranks without training"
            message = f"{self!r} is not trained and ranks at random: {advice}"
            warnings.warn(message, QualityWarning, stacklevel=3)


class Reranker(LearnedModel):
    """Base of the models that score the rows of a run: documents or passages of queries."""

    ARTIFACT_TYPE = "reranker"

    @abstractmethod
    def _checked(self, run: pd.DataFrame) -> pd.DataFrame:
        """The run, whose columns are checked."""

    @abstractmethod
    def _scores(self, run: pd.DataFrame) -> np.ndarray:
        """The scores of the rows of a checked run, shape (rows,)."""

    @abstractmethod
    def _learn(self, training: JudgedRun, validation: JudgedRun | None) -> None:
        """Does the work of :meth:`fit`, which has checked the columns of the runs."""

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Scores the rows of a run: adds ``score`` and ``rank``, with a warning if the model ranks at random.

        Args:
            inp: A run with the columns that the description of the class lists.

        Raises:
            pt.validate.InputValidationError: If a column is missing.
            KeyError: If a passage is not in the graph.
            TypeError: If the graph of a query is missing.
            ValueError: If a query is empty, or a query or document is not a string.
        """
        inp = self._checked(inp)
        if len(inp):
            self._warn_if_random()
        scores = self._scores(inp)
        return ranked(inp, scores, self)

    def fit(
        self,
        topics_or_res_tr: pd.DataFrame,
        qrels_tr: pd.DataFrame,
        topics_or_res_va: pd.DataFrame | None = None,
        qrels_va: pd.DataFrame | None = None,
    ) -> Self:
        """Learns from judged queries; see the description of the class.

        If no passage is judged, the judgment of a document counts for all its passages, and in validation a document
        has the score of its best passage.

        Args:
            topics_or_res_tr: Training queries with their documents or passages, as for :meth:`transform`.
            qrels_tr: Judgments for them: ``qid, docno, label``, of passages or documents.
            topics_or_res_va: Validation queries, with the same columns: ``fit`` keeps the best model on them.
            qrels_va: Judgments for them.

        Raises:
            pt.validate.InputValidationError: If a column is missing.
            ValueError: If no query is judged, there is nothing to learn, training diverges, or ``training.output_dir``
                holds another training.
        """
        run = self._checked(topics_or_res_tr)
        training = JudgedRun(run, qrels_tr, self)
        validation = None
        if topics_or_res_va is not None:
            run = self._checked(topics_or_res_va)
            validation = JudgedRun(run, qrels_va, self)
        self._start_fit()
        self._learn(training, validation)
        return self


def ranked(run: pd.DataFrame, scores: np.ndarray, context: pt.Transformer) -> pd.DataFrame:
    """The rows of a run with new ``score`` and ``rank``; raises ValueError if a score is not finite."""
    if not np.isfinite(scores).all():
        raise ValueError(f"{context!r}: a score is not finite, so its weights are not finite")
    unscored = run.drop(columns=["score", "rank"], errors="ignore")
    scored = unscored.assign(score=scores)
    return pt.model.add_ranks(scored)
