"""Finds the few numbers of a typed network that are not learnt: how much each channel counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyterrier as pt
import torch
from torch import Tensor

from pyterrier_graph.models.gnn_encoder import KNOWN, TypedGNNEncoderNetwork

GRID = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0)
LENGTHS = (1.0, 1.05, 1.1, 1.15, 1.2)
SWEEPS = 2


def tune(network: TypedGNNEncoderNetwork, quality: Callable[[], float], *, verbose: bool) -> float:
    """Sets the weights of a network's channels, and ``lone_length``, to the best of a grid, one after the other.

    Args:
        network: The network, whose numbers are changed.
        quality: Measures it as it is.
        verbose: Whether to show progress.

    Returns:
        The best quality.
    """
    trials: list[tuple[Sequence[Tensor], Sequence[float]]] = []
    for name, weight in zip(network.channels, network.gates(), strict=True):
        if name == KNOWN:
            pairs = [(value, length) for value in GRID for length in LENGTHS if value or length == 1]
            trials += [((weight, network.lone_length), pair) for pair in pairs]
        else:
            trials += [((weight,), (value,)) for value in GRID]
    best = quality()
    with torch.no_grad():
        for numbers, values in pt.tqdm(trials * min(SWEEPS, len(network.channels)), desc="tuning", disable=not verbose):
            before = [float(number) for number in numbers]
            _set(numbers, values)
            better = False
            try:
                reached = best if before == [*values] else quality()
                better = reached > best
            finally:  # an interrupt leaves the best so far
                if not better:
                    _set(numbers, before)
            best = max(best, reached)
    return best


def _set(numbers: Sequence[Tensor], values: Sequence[float]) -> None:
    for number, value in zip(numbers, values, strict=True):
        number.fill_(value)
