"""PAIR's loss against the literal equations, and in the trainer of sentence-transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pair_reference as reference
import pytest
import tiny
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.util import dot_score
from torch import Tensor
from trainings import forks, in_two_processes

from pyterrier_graph.pair.losses import PAIRLoss, pair_loss

ALPHAS = [0.0, 0.1, 1.0]
QUERIES = tiny.WORDS[:5]
POSITIVES = [f"{word} mu" for word in tiny.WORDS[5:10]]
NEGATIVES = [f"{word} lambda" for word in tiny.WORDS[5:10]]


def vectors(
    batch: int, negatives: int, dimensions: int = 6, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    torch.manual_seed(batch + 10 * negatives)
    return [
        torch.randn(count, dimensions, dtype=dtype) for count in (batch, batch, batch * negatives)
    ]


def gradients(loss: Tensor, inputs: Any) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(inputs), allow_unused=True, materialize_grads=True))


def encoder(*, dropout: float = 0.0) -> list[torch.nn.Module]:
    config = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    transformer = Transformer(tiny.checkpoint(), config_kwargs=config)
    return [transformer, Pooling(transformer.get_embedding_dimension())]


def dual_encoder(*further: torch.nn.Module, dropout: float = 0.0) -> SentenceTransformer:
    return SentenceTransformer(modules=[*encoder(dropout=dropout), *further], device="cpu")


def examples(negatives: int = 1) -> dict[str, list[str]]:
    hard = {
        f"negative_{number}": np.roll(NEGATIVES, number).tolist() for number in range(negatives)
    }
    return {"anchor": QUERIES, "positive": POSITIVES} | hard


def columns(model: SentenceTransformer, negatives: int) -> list[dict[str, Tensor]]:
    return [model.preprocess(texts) for texts in examples(negatives).values()]


def step(
    loss: torch.nn.Module, model: SentenceTransformer, negatives: int
) -> tuple[Tensor, list[Tensor]]:
    """The loss and the gradients of one batch."""
    model.zero_grad()
    value = loss(columns(model, negatives), None)
    value.backward()
    return value.detach(), [
        weight.grad.clone() for weight in model.parameters() if weight.grad is not None
    ]


def assert_same_step(one: tuple[Tensor, list[Tensor]], other: tuple[Tensor, list[Tensor]]) -> None:
    assert one[0].dtype == torch.float64  # so that rounding does not hide what differs
    assert len(one[1]) == len(other[1]) > 10
    assert max(gradient.abs().max() for gradient in one[1]) > 0.01
    torch.testing.assert_close(one, other, atol=1e-9, rtol=0)


# --- the equations


@pytest.mark.parametrize("negatives", [0, 1, 4])
@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5])
def test_equations_forward_and_backward(batch: int, negatives: int) -> None:
    given = [part.requires_grad_() for part in vectors(batch, negatives)]
    for alpha in ALPHAS:
        expected = reference.combined(*given, alpha=alpha)
        loss = pair_loss(*given, alpha=alpha)
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(gradients(loss, given), gradients(expected, given))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    """Of dot products beyond 65504, with differences of 1."""
    ones = torch.full((3, 700), 10.0)
    queries, positives, negatives = ones.clone(), ones.clone(), ones.clone()
    positives[:, 0] += torch.tensor([0.25, 0.125, 0.0])
    expected = pair_loss(queries, positives, negatives)
    halves = [part.to(dtype).requires_grad_() for part in (queries, positives, negatives)]
    with torch.autocast("cpu", dtype=dtype):
        loss = pair_loss(*halves)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected)
    assert all(gradient.isfinite().all() for gradient in gradients(loss, halves))


# --- in sentence-transformers


@pytest.mark.parametrize("negatives", [0, 1, 4])
def test_alpha_0_is_the_usual_loss(negatives: int) -> None:
    model = dual_encoder().double()
    usual = MultipleNegativesRankingLoss(model, scale=1, similarity_fct=dot_score)
    assert_same_step(step(PAIRLoss(model, 0), model, negatives), step(usual, model, negatives))


@pytest.mark.parametrize("negatives", [0, 1, 4])
def test_cached_gradients_are_those_of_the_whole_batch(negatives: int) -> None:
    model = dual_encoder().double()
    whole = step(PAIRLoss(model, 0.4), model, negatives)
    for size in (2, 64):
        cached = PAIRLoss(model, 0.4, mini_batch_size=size)
        assert_same_step(step(cached, model, negatives), whole)
        with torch.no_grad():
            torch.testing.assert_close(
                cached(columns(model, negatives)), whole[0], atol=1e-9, rtol=0
            )


# --- the trainer


def train(
    model: SentenceTransformer,
    loss: torch.nn.Module,
    folder: Path,
    repeats: int = 1,
    **options: Any,
) -> list[float]:
    """Trains in place; returns the loss of each step."""
    defaults: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": True,
        "per_device_train_batch_size": 5,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "seed": 0,
    }
    data = Dataset.from_dict({name: texts * repeats for name, texts in examples().items()})
    arguments = SentenceTransformerTrainingArguments(**defaults | options)
    trainer = SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=loss)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


# --- several processes

# steps of plain gradient descent, so that weights say what gradients were
SHARED: dict[str, Any] = {
    "repeats": 4,
    "num_train_epochs": 1,
    "optim": "sgd",
    "learning_rate": 0.005,
    "max_grad_norm": 0.0,
}
SETUPS = {
    "whole": {"gather_across_devices": True},
    "cached": {"gather_across_devices": True, "mini_batch_size": 3},
    "apart": {},
}


def train_as(rank: int, folder: Path) -> None:
    for name, options in SETUPS.items():
        model = dual_encoder()
        losses = train(model, PAIRLoss(model, 0.3, **options), folder / "run", **SHARED)
        assert torch.distributed.get_world_size() == 2
        save_file(
            model.state_dict() | {"losses": torch.tensor(losses)},
            folder / f"{name}-{rank}.safetensors",
        )


@forks
@pytest.mark.slow
def test_two_processes_compute_what_one_does_with_the_doubled_batch(tmp_path: Path) -> None:
    in_two_processes(train_as, tmp_path)
    alone = dual_encoder()
    start = {name: weight.clone() for name, weight in alone.state_dict().items()}
    losses = train(
        alone, PAIRLoss(alone, 0.3), tmp_path, **SHARED | {"per_device_train_batch_size": 10}
    )
    expected = alone.state_dict() | {"losses": torch.tensor(losses)}
    assert len(losses) == 2
    distances = {}
    for name in SETUPS:
        one, other = (load_file(tmp_path / f"{name}-{rank}.safetensors") for rank in range(2))
        assert all(torch.equal(one[key], other[key]) for key in one)
        distances[name] = max((one[key] - expected[key]).abs().max().item() for key in one)
    moved = max(
        (weight - start[name]).abs().max().item() for name, weight in alone.state_dict().items()
    )
    assert max(distances["whole"], distances["cached"]) < 1e-5 < 1e-2 < moved
    assert distances["apart"] > 1e-2
