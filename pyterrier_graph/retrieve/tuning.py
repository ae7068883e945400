"""The grid search for the weights of relations, on top of what a network has learned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch

from pyterrier_graph.graphs.relations import RELEVANT
from pyterrier_graph.models.gnn_encoder import GNNEncoderNetwork, Paths
from pyterrier_graph.retrieve.dense_validation import validation
from pyterrier_graph.training.grid_search import WEIGHTS, Numbers, coordinate_search

if TYPE_CHECKING:
    from pyterrier_graph.retrieve.contextual_encoder import ContextualEncoder

ISOLATED_NORM = "isolated_norm"
ISOLATED_NORMS = (1.0, 1.05, 1.1, 1.15, 1.2)


def tune_weights(model: ContextualEncoder, topics: pd.DataFrame, qrels: pd.DataFrame, measure: str) -> None:
    """Sets the weights of relations, and ``isolated_norm``, to those that are best on validation queries.

    Each weight in turn takes the best value of a grid, in two sweeps; the weight of relevant queries and
    ``isolated_norm`` as a pair, since the one changes what is best for the other. Nothing else changes.

    Raises:
        ValueError: If none of the queries is judged, or the network is the papers'.
    """
    network = model.network
    if not isinstance(network, GNNEncoderNetwork):
        raise ValueError(f"{model!r} has no weights of relations: the papers' network cannot be tuned")
    paths_of = model._computed(
        model._sampler(), lambda batch: network.paths(batch.passages, batch.sources, batch.edges)
    )
    kept: dict[int, Paths] = {}

    @torch.inference_mode()
    def vectors_of(passages: np.ndarray) -> np.ndarray:
        first = int(passages[0])
        if first not in kept:
            kept[first] = paths_of(passages)
        return network.joined(kept[first]).float().cpu().numpy()

    numbers = dict(zip(network.relations, network.scalars(), strict=True)) | {ISOLATED_NORM: network.isolated_norm}
    measured = validation(model, topics, qrels, measure, lambda: vectors_of)

    def assign(values: Numbers) -> None:
        with torch.no_grad():
            for name, value in values.items():
                numbers[name].fill_(value)

    def trial(values: Numbers) -> float:
        assign(values)
        return measured()

    grid: list[Numbers] = []
    for name in network.relations:
        if name == RELEVANT:
            grid += [{name: w, ISOLATED_NORM: n} for w in WEIGHTS for n in ISOLATED_NORMS if w or n == 1]
        else:
            grid += [{name: w} for w in WEIGHTS]
    start = {name: float(number) for name, number in numbers.items()}
    assign(coordinate_search(start, grid, trial, verbose=model.verbose))
