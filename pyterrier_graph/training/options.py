"""Options of trainings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyterrier_graph.checks import check_count, check_number, check_type
from pyterrier_graph.training.negatives import Strategy, check_strategy


@dataclass(frozen=True, kw_only=True)
class TrainerOptions:
    """Options of every training. ``transformers.Trainer`` does the training itself.

    Attributes:
        epochs: Number of passes over the training examples.
        batch_size: Examples per step.
        learning_rate: Learning rate of the optimizer.
        measure: Name of the ir_measures measure that is computed on the validation queries. The weights with the
            highest value are kept, the weights before training included.
        evaluations: How often the measure is computed per epoch.
        patience: Training stops after so many evaluations without improvement; None trains to the end.
        output_dir: Folder for checkpoints. A ``fit`` that was killed continues from the last checkpoint when it is
            called again. By default nothing is kept after training.
        seed: Seed of sampling, order and dropout.
        arguments: Further ``transformers.TrainingArguments``, such as
            ``{'bf16': True, 'gradient_accumulation_steps': 4}``.

    Raises:
        ValueError: If an option has a value that makes no sense.
    """

    epochs: int = 10
    batch_size: int = 32
    learning_rate: float = 1e-3
    measure: str = "nDCG@10"
    evaluations: int = 1
    patience: int | None = 3
    output_dir: str | None = None
    seed: int = 0
    arguments: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        import ir_measures

        for name in ("epochs", "batch_size", "evaluations"):
            check_count(name, getattr(self, name))
        if self.patience is not None:
            check_count("patience", self.patience)
        check_number("learning_rate", self.learning_rate, 0)
        check_count("seed", self.seed, 0)
        check_type("measure", self.measure, str, "the name of a measure, such as 'nDCG@10'")
        ir_measures.parse_measure(self.measure)
        check_type("arguments", self.arguments, Mapping, "a dictionary of transformers.TrainingArguments")


@dataclass(frozen=True, kw_only=True)
class HeadOptions(TrainerOptions):
    """Options of trainings that can train the encoder, or only what is on top of the encoder.

    Attributes:
        learning_rate: Learning rate of what is on top of the encoder.
        encoder_learning_rate: Learning rate of the encoder; None leaves the encoder unchanged.

    For the other attributes see :class:`~pyterrier_graph.training.options.TrainerOptions`.
    """

    encoder_learning_rate: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.encoder_learning_rate is not None:
            check_number("encoder_learning_rate", self.encoder_learning_rate, 0)


@dataclass(frozen=True, kw_only=True)
class HGATTraining(HeadOptions):
    """Options of ``HGATReranker.fit()``.

    The defaults are those of Albarede et al. 2023, Sect. 5.2.3, where it says: ``learning_rate`` is 1e-3. (The paper's
    ``encoder_learning_rate`` is 3e-6; by default the encoder does not learn, so that stored token vectors serve.)

    Attributes:
        negatives: How p- is drawn: see :class:`~pyterrier_graph.training.negatives.NegativeSampler`.
        repeats: How often a negative is drawn for each pair of a query and a relevant passage (the paper: 1000).
        max_triples: So many triples, drawn at random, are used at most; None takes all.
        scalar_learning_rate: Of its relation weights, lambda and alpha; None takes ``learning_rate``, as the paper does.
            These scalars have to go a long way, which takes thousands of steps at the rate of the matrices.
        frozen_encoder_layers: The encoder's first layers, which stay as they are, embeddings included (the paper: 6).

    For the other attributes see :class:`~pyterrier_graph.training.options.HeadOptions`.
    """

    negatives: Strategy = "mixed"
    repeats: int = 1
    max_triples: int | None = None
    scalar_learning_rate: float | None = None
    frozen_encoder_layers: int = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.repeats < 1:
            raise ValueError("repeats must be positive")
        check_strategy(self.negatives)
