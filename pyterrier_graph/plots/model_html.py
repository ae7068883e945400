"""HTML of rerankers and encoders in notebooks: schematic, a table, and code to call next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyterrier_graph.plots.html import schematic, value

if TYPE_CHECKING:
    import pyterrier as pt
    from torch import nn

FIT = "fit(train_run, train_qrels, dev_run, dev_qrels)"


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


def training_calls(model: Any, name: str = "reranker", fit: str = FIT) -> list[str]:
    """Code to call before or after training; ``name`` is that of the variable."""
    trained = bool(getattr(model, "training_log", None))
    return [f"plots.training_curves({name})", f"{name}.save(path)"] if trained else [f"{name}.{fit}"]


def encoder_calls(encoder: Any) -> list[str]:
    """Code to call next with a DualEncoder, which needs a miner to make examples of judgments."""
    fit = "fit(topics, qrels, dev_topics, dev_qrels)" if encoder.miner is not None else "fit_examples(examples)"
    return [*training_calls(encoder, "encoder", fit), "ptg.GraphMean(graph, encoder).index(path)"]


def contextual_calls(model: Any, name: str, fit: str) -> list[str]:
    """Code to call next with a GraphMean or GNNEncoder; one that has no passages can do no more than encode queries."""
    if model.graph is None and model.query_graph is None and model._vectors is None:
        return [f"{name}.query_encoder()"] if model.weights != "auto" else []
    curves = [f"plots.training_curves({name})"] if getattr(model, "training_log", None) else []
    calls = [*curves, fit, f"{name}.index(path).retriever()", f"{name}.explain(docno)"]
    return calls + [f"ptg.explain({name}, query, docno)"] * (model.graph is not None)
