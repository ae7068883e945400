"""What a reranker shows in a notebook: its place in a pipeline, its sizes, and what to call next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyterrier as pt
from torch import nn

from pyterrier_graph.plots.html import schematic, value

FIT = "reranker.fit(train_run, train_qrels, dev_run, dev_qrels)"


def reranker_html(reranker: pt.Transformer, sizes: Mapping[str, Any], calls: Sequence[str]) -> str:
    """PyTerrier's schematic, a table, and code.

    Args:
        reranker: The reranker.
        sizes: Rows of the table.
        calls: Code that can be called next.
    """
    return schematic(reranker) + value(type(reranker).__name__, sizes, calls=calls)


def parameters(module: nn.Module) -> int:
    """Number of weights."""
    return sum(parameter.numel() for parameter in module.parameters())


def training_sizes(reranker: Any) -> dict[str, Any]:
    """Rows about the training of a reranker: whether it was trained here, for how long, and how good it became.

    Args:
        reranker: One with ``path`` and ``training``, and ``training_log`` if it was trained here.
    """
    log = getattr(reranker, "training_log", None)
    if not log:
        loaded = reranker.path is not pt.Artifact.NO_PATH
        return {"trained": f"loaded from {str(reranker.path)!r}" if loaded else "not here"}
    measure = reranker.training.measure
    measured = [entry[measure] for entry in log if measure in entry]
    best = {f"best {measure}": f"{max(measured):.4f} on the validation topics"} if measured else {}
    return {"trained": f"{max(entry['step'] for entry in log):,} steps"} | best


def training_calls(reranker: Any) -> list[str]:
    """What can be called before and after training."""
    trained = bool(getattr(reranker, "training_log", None))
    return ["plots.training_curves(reranker)", "reranker.save(path)"] if trained else [FIT]
