"""Ctrl-C, too little memory and kills in training, indexing and grid search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_models import MODELS, TRAINED
from trainings import stop

from pyterrier_graph.training.trainer import RankingTrainer

COMPUTED = ("_sampler", "_temporary_folder", "_idf", "_frequencies")


def stopping(after: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is interrupted when it is called once too often."""
    left = iter(range(after))

    def call(*given: Any, **options: Any) -> Any:
        if next(left, None) is None:
            stop()
        return function(*given, **options)

    return call


def attributes(model: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(model).items() if name not in COMPUTED}


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    encoder = getattr(getattr(model, "encoder", None), "network", None)
    networks = {"network": getattr(model, "network", None), "encoder": encoder}
    return {
        f"{part}.{name}": value.clone().contiguous()
        for part, network in networks.items()
        if isinstance(network, torch.nn.Module)
        for name, value in network.state_dict().items()
    }


def assert_equal(weights: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> None:
    assert weights.keys() == others.keys()
    assert all(torch.equal(value, others[name]) for name, value in weights.items())


def made(name: str, **training: Any) -> Any:
    model = MODELS[name].make()
    return model.apply_attributes(training=replace(model.training, **training))


@contextmanager
def unchanged(model: Any) -> Iterator[None]:
    """A block that fails leaves weights and attributes as they were."""
    weights, before = weights_of(model), attributes(model)
    yield
    assert_equal(weights_of(model), weights)
    assert attributes(model) == before
    assert not getattr(getattr(model, "network", None), "training", False)


@pytest.mark.parametrize("name", TRAINED)
def test_a_fit_that_fails(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Ctrl-C after an epoch, and by too little memory for the first batch."""
    model = made(name, epochs=3)
    with unchanged(model), monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RankingTrainer, "evaluate", stopping(1, RankingTrainer.evaluate))
        model.fit(*MODELS[name].fit)
    hook = torch.nn.modules.module.register_module_forward_pre_hook(lambda *_: torch.empty(1 << 50))
    with unchanged(model), hook, pytest.raises(RuntimeError, match="allocate memory"):
        model.fit(*MODELS[name].fit)
