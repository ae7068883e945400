"""How a model is trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyterrier_graph.training.negatives import Strategy, check_strategy


@dataclass(frozen=True, kw_only=True)
class TrainerOptions:
    """What all trainings have in common; training itself is done by ``transformers.Trainer``.

    Attributes:
        epochs: Passes over the examples.
        batch_size: Examples per step.
        learning_rate: The optimizer's.
        measure: An ir_measures measure on the validation topics; the weights that were best by it are kept.
        evaluations: How often it is computed per epoch.
        patience: Training stops after so many evaluations without improvement; None lets it run to the end.
        output_dir: Where checkpoints are kept. A ``fit`` that was killed goes on from the last one there.
            By default a temporary folder.
        seed: Seed of sampling, order, and dropout.
        arguments: Further ``transformers.TrainingArguments``, such as
            ``{'bf16': True, 'gradient_accumulation_steps': 4}``.
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

        if min(self.epochs, self.batch_size, self.evaluations) < 1:
            raise ValueError("epochs, batch_size and evaluations must be positive")
        ir_measures.parse_measure(self.measure)


@dataclass(frozen=True, kw_only=True)
class HeadOptions(TrainerOptions):
    """Options of trainings of what is on top of an encoder.

    Attributes:
        learning_rate: Of what is on top of the encoder.
        encoder_learning_rate: Of the encoder; None leaves it as it is.

    For the other attributes see :class:`~pyterrier_graph.training.options.TrainerOptions`.
    """

    encoder_learning_rate: float | None = None


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
