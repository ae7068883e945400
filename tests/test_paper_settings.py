"""The settings of the publications, as their experiments' sections state them."""

from __future__ import annotations

from typing import Any

import pytest

import pyterrier_graph as ptg

PUBLISHED: dict[str, tuple[Any, dict[str, Any]]] = {
    "Albarede et al. 2023, Sect. 5.2.3": (
        ptg.HGATTraining.paper(),
        {"learning_rate": 1e-3, "encoder_learning_rate": 3e-6, "frozen_encoder_layers": 6},
    ),
    "Liu et al. 2022, Sect. 4.3": (
        ptg.GNNEncoderTraining.paper(),
        {"epochs": 5, "learning_rate": 5e-5, "encoder_learning_rate": 2e-6, "masked": 0.05},
    ),
    "the preprint of Liu et al., Sect. 5.1.4": (
        ptg.GNNEncoderTraining.preprint(),
        {"batch_size": 8192, "batches": "passages", "encoder_learning_rate": None},
    ),
    "Ren et al. 2021, Sect. 4.2 and Table 5": (
        ptg.MiningConfig.paper(),
        {"hard_negatives": 4, "positive_threshold": 0.9, "negative_threshold": 0.1},
    ),
}


@pytest.mark.parametrize("source", PUBLISHED)
def test_settings_of(source: str) -> None:
    settings, published = PUBLISHED[source]
    assert {name: getattr(settings, name) for name in published} == published
