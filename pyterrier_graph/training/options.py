"""Options of trainings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import ir_measures

from pyterrier_graph.checks import check_fields, check_type
from pyterrier_graph.training.negatives import Strategy


@dataclass(frozen=True, kw_only=True)
class TrainerOptions:
    """Options of every training, which ``transformers.Trainer`` runs.

    Attributes:
        epochs: Number of passes over the training examples.
        batch_size: Examples per step.
        learning_rate: Learning rate of the optimizer.
        measure: Name of the ir_measures measure that is computed on the validation queries. The weights with the
            highest value are kept, the weights before training included.
        evaluations: How often the measure is computed per epoch.
        patience: Training stops after so many evaluations without improvement; None trains to the end.
        output_dir: Folder for checkpoints, from which a ``fit`` that was killed continues when it is called again.
        seed: Seed of sampling, order and dropout.
        arguments: Further ``transformers.TrainingArguments``, such as ``{'gradient_accumulation_steps': 4}``.

    Raises:
        ValueError: If an option has a value that is not allowed.
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
        check_fields(self, epochs=1, batch_size=1, evaluations=1, patience=1, learning_rate=0, seed=0)
        check_type("measure", self.measure, str, "the name of a measure, such as 'nDCG@10'")
        ir_measures.parse_measure(self.measure)
        check_type("arguments", self.arguments, Mapping, "a dictionary of transformers.TrainingArguments")


@dataclass(frozen=True, kw_only=True)
class HeadOptions(TrainerOptions):
    """:class:`TrainerOptions` of trainings that can train the encoder, or only what is on top of it.

    Attributes:
        learning_rate: Learning rate of what is on top of the encoder.
        encoder_learning_rate: Learning rate of the encoder; None leaves the encoder unchanged.
    """

    encoder_learning_rate: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, encoder_learning_rate=0)


@dataclass(frozen=True, kw_only=True)
class HGATTraining(HeadOptions):
    """Options of ``HGATReranker.fit()``.

    The defaults suit some hundred queries with the default :class:`~pyterrier_graph.models.hgat.HGATConfig`; training
    takes minutes on two cores. By default the encoder does not learn, so that stored token vectors can be used.

    Attributes:
        negatives: How p- is drawn: see :class:`~pyterrier_graph.training.negatives.NegativeSampler`.
        repeats: How often a negative is drawn for each pair of a query and a relevant passage.
        max_triples: At most so many triples are used, drawn at random; None takes all.
        scalar_learning_rate: Of the relation weights W, lambda and alpha; None takes ``learning_rate``. At the rate of
            the matrices these scalars need thousands of steps.
        frozen_encoder_layers: If the encoder learns, so many of its first layers, and its embeddings, do not.

    For the other attributes see :class:`~pyterrier_graph.training.options.HeadOptions`.
    """

    epochs: int = 2
    batch_size: int = 16
    patience: int | None = None
    negatives: Strategy = "candidates"
    repeats: int = 1
    max_triples: int | None = 1000
    scalar_learning_rate: float | None = 0.03
    frozen_encoder_layers: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, repeats=1, max_triples=1, frozen_encoder_layers=0)

    @classmethod
    def paper(cls, **options: Any) -> Self:
        """The publication's options (Albarede et al. 2023, Sect. 5.2.3), as far as it says them.

        One learning rate of 1e-3, one of 3e-6 for the encoder above its first six layers, ``mixed`` negatives drawn
        1000 times. It does not say how many epochs, nor the size of a batch: here 10 and 32.
        """
        published: dict[str, Any] = {"learning_rate": 1e-3, "encoder_learning_rate": 3e-6, "frozen_encoder_layers": 6}
        published |= {"negatives": "mixed", "repeats": 1000, "max_triples": None, "scalar_learning_rate": None}
        return cls(**published | {"epochs": 10, "batch_size": 32, "patience": 3} | options)
