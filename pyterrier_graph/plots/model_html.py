"""HTML of rerankers and encoders in notebooks: schematic, a table, and code to call next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyterrier_graph.plots.html import schematic, value

if TYPE_CHECKING:
    import pyterrier as pt
    from torch import nn

FIT = "reranker.fit(train_run, train_qrels, dev_run, dev_qrels)"


def reranker_html(reranker: pt.Transformer, sizes: Mapping[str, Any], calls: Sequence[str]) -> str:
    """PyTerrier's schematic of a model, with a table of ``sizes`` and code that the user can call next."""
    return schematic(reranker) + value(type(reranker).__name__, sizes, calls=calls)


def parameters(module: nn.Module) -> int:
    """Number of weights."""
    return sum(parameter.numel() for parameter in module.parameters())


def measure_of(log: Sequence[Mapping[str, float]]) -> str | None:
    """Name of the validation measure in a training log; None if the log has no measure."""
    import ir_measures

    for name in dict.fromkeys(name for entry in log for name in entry):
        try:
            ir_measures.parse_measure(name)
        except (NameError, SyntaxError, ValueError):
            continue
        return name
    return None


def training_sizes(reranker: Any) -> dict[str, Any]:
    """Rows of a table about a model's training: its steps, what it took, and the best value of the measure."""
    from pyterrier_graph.training.run_record import described

    log = getattr(reranker, "training_log", None)
    if not log:
        path = reranker.path
        return {"trained": f"loaded from {str(path)!r}" if path is not type(reranker).NO_PATH else "not yet"}
    sizes = {"trained": f"{max(entry['step'] for entry in log):,} steps"}
    if reranker.training_run:
        sizes["took"] = described(reranker.training_run)
    if measure := measure_of(log):
        best = max(entry[measure] for entry in log if measure in entry)
        sizes[f"best {measure}"] = f"{best:.4f} on the validation queries"
    return sizes


def training_calls(reranker: Any) -> list[str]:
    """Code to call before or after training."""
    trained = bool(getattr(reranker, "training_log", None))
    return ["plots.training_curves(reranker)", "reranker.save(path)"] if trained else [FIT]
