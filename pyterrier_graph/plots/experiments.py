"""Trainings and experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from matplotlib.ticker import LogLocator, NullFormatter

from pyterrier_graph.plots.html import COLOURS, NEUTRAL
from pyterrier_graph.plots.labels import place_labels
from pyterrier_graph.plots.style import check_axes, check_frame, colors_of, legend_beside, new_axes, new_rows, titled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOSS, VALIDATION = "loss", "validation"
TRAINER = ("loss", "grad_norm", "learning_rate", "epoch", "step", "total_flos")  # what logs have beside the measure
OPTIONS = {"k": "passages per query in the graph (k)", "masked": "share of queries that are masked in an epoch"}
WIDE = 10  # times that differ by more than this factor are drawn on a logarithmic scale


def training_curves(
    trainings: Any,
    *,
    by: Literal["step", "epoch"] = "step",
    axes: Sequence[Axes] | None = None,
    title: str = "",
) -> list[Axes]:
    """Draws losses and, where there are validation topics, the measure on them: a star where the kept weights were.

    Args:
        trainings: A trained reranker or its ``training_log``, or several of either by name.
        by: What runs to the right.
        axes: Where to draw, one for each part.
        title: Title.

    Returns:
        The axes of the losses, and those of the measure if it was computed.

    Raises:
        ValueError: If something was not trained, or not as many axes are given as there are parts.
    """
    several = isinstance(trainings, Mapping)
    logs = {str(name): _log(training) for name, training in (trainings if several else {"": trainings}).items()}
    curves = {
        key: {name: points for name, log in logs.items() if len(points := _points(log, by, key))}
        for key in (LOSS, VALIDATION)
    }
    parts = [key for key in curves if curves[key]]
    if not parts:
        raise ValueError("there is nothing to draw: the logs hold neither losses nor a measure")
    axes = list(axes) if axes is not None else new_rows(len(parts))
    check_axes(axes, len(parts))
    colors = colors_of(logs)
    for key, ax in zip(parts, axes, strict=True):
        for name, (x, y) in curves[key].items():
            ax.plot(x, y, color=colors[name], marker="." if len(x) < 50 else "")
            if key == VALIDATION:
                best = y.argmax()
                ax.plot(x[best], y[best], "*", color=colors[name], markersize=14)
        ax.set_ylabel("loss" if key == LOSS else _measure(trainings))
        ax.margins(y=0.1)
    axes[-1].set_xlabel(by)
    if several:
        legend_beside(axes[0], colors)
    titled(axes[0], title)
    return axes


def effectiveness_latency(
    experiment: pd.DataFrame, measure: Any, *, time: str = "mrt", ax: Axes | None = None, title: str = ""
) -> Axes:
    """Draws effectiveness against time, and the systems that no other one beats in both.

    Args:
        experiment: What ``pt.Experiment`` returns, for an evaluation that has ``'mrt'`` beside other measures.
        measure: The column of the measure, or the measure.
        time: The column of the time: ``'mrt'`` is milliseconds per query.
        ax: Where to draw.
        title: Title.

    Raises:
        ValueError: If a column is missing, there are no systems, or one of their numbers is missing.
    """
    source = f"what pt.Experiment(..., eval_metrics=[{str(measure)!r}, {time!r}]) returns"
    check_frame(experiment, ["name", str(measure), time], source)
    x, y = (experiment[column].to_numpy(dtype=float) for column in (time, str(measure)))
    names = experiment["name"].astype(str).to_numpy()
    if not np.isfinite(x + y).all():
        raise ValueError(f"{names[~np.isfinite(x + y)][0]!r} has no {measure} or no {time}: leave it out")
    order = np.lexsort((-y, x))
    best_before = np.concatenate([[-np.inf], np.maximum.accumulate(y[order])[:-1]])
    front = order[y[order] > best_before]
    ax = ax if ax is not None else new_axes(8, 5)
    ax.plot(x[front], y[front], color=NEUTRAL, linestyle="--", linewidth=1, label="not beaten in both", zorder=1)
    unbeaten = np.isin(np.arange(len(x)), front)
    for chosen, color in ((unbeaten, COLOURS[4]), (~unbeaten, NEUTRAL)):
        ax.scatter(x[chosen], y[chosen], color=color, s=40, zorder=3)
    _log_if_wide(ax, x)
    ax.margins(0.15)
    ax.set_xlabel("mean response time (ms per query)" if time == "mrt" else time)
    ax.set_ylabel(str(measure))
    ax.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    titled(ax, title)
    place_labels(ax, x, y, names)
    return ax


def measure_curve(per_query: pd.DataFrame, measure: Any, *, x: str, ax: Axes | None = None, title: str = "") -> Axes:
    """Draws a measure against an option, a line per system, with a band of the standard deviation over seeds.

    A system without a value of the option, which does not depend on it, is a level line.

    Args:
        per_query: ``system, measure, value, seed`` and the option, a row per query: ``per_query.csv`` of
            ``experiments.fused_retrieval``, or ``pt.Experiment(..., perquery=True)`` with these columns added.
        measure: The measure: one of those in ``measure``.
        x: The column of the option: ``'k'``, passages per query, or ``'masked'``, share of the queries.
        ax: Where to draw.
        title: Title.

    Raises:
        ValueError: If a column is missing, the measure was not computed, or no system has a value of the option.
    """
    source = "a row per system, value of the option, seed and query"
    check_frame(per_query, ["system", "measure", "value", "seed", x], source)
    rows = per_query[per_query["measure"].astype(str) == str(measure)]
    if not len(rows):
        known = ", ".join(dict.fromkeys(map(str, per_query["measure"])))
        raise ValueError(f"no values of {measure}: the frame has {known}")
    if rows[x].isna().all():
        raise ValueError(f"no system has a value of {x!r}: there is nothing to draw it against")
    by_seed = rows.groupby(["system", x, "seed"], sort=False, dropna=False)["value"].mean()
    points = by_seed.groupby(["system", x], sort=False, dropna=False).agg(["mean", "std"]).fillna({"std": 0.0})
    ax = ax if ax is not None else new_axes(8, 5)
    _log_if_wide(ax, rows[x].to_numpy(dtype=float))
    colors = colors_of(rows["system"])
    for system, color in colors.items():
        values = points.xs(system).sort_index()
        place = values.index.to_numpy(dtype=float)
        if level := bool(np.isnan(place).any()):
            place, values = np.array([rows[x].min(), rows[x].max()]), values.iloc[[0, 0]]
        mean, deviation = values["mean"].to_numpy(), values["std"].to_numpy()
        ax.plot(place, mean, color=color, linestyle="--" if level else "-", marker="" if level else "o", markersize=4)
        ax.fill_between(place, mean - deviation, mean + deviation, color=color, alpha=0.2, linewidth=0)
    legend_beside(ax, colors)
    ax.margins(y=0.1)
    ax.set_xlabel(OPTIONS.get(x, x))
    ax.set_ylabel(str(measure))
    titled(ax, title)
    return ax


def similarity_shift(
    before: pd.DataFrame, after: pd.DataFrame, *, axes: Sequence[Axes] | None = None, title: str = ""
) -> list[Axes]:
    """Draws how similar a relevant passage is to its query and to other passages (PAIR, Fig. 4).

    Training shall make s(p+, q) larger than s(p+, p-). The share of rows where it is stands above each part.

    Args:
        before: A row per query: ``positive_query``, the similarity of its relevant passages to it, and
            ``positive_negative``, that of its relevant passages to others.
        after: Likewise, after training.
        axes: Where to draw, one each.
        title: Title.

    Returns:
        The axes of before and after.

    Raises:
        ValueError: If a column is missing, there are no rows, a value is missing, or there are not two axes.
    """
    kinds = {"positive_query": "s(p+, q)", "positive_negative": "s(p+, p-)"}
    parts = {"before": before, "after": after}
    for name, frame in parts.items():
        check_frame(frame, kinds, f"as {name!r} a row per query with {' and '.join(kinds)}")
        if not np.isfinite(frame[[*kinds]].to_numpy(dtype=float)).all():
            raise ValueError(f"{name!r} has similarities that are missing or not finite")
    axes = list(axes) if axes is not None else new_rows(2, sharey=True)
    check_axes(axes, 2)
    together = pd.concat([frame[[*kinds]] for frame in parts.values()]).to_numpy(dtype=float)
    bins = np.linspace(together.min(), max(together.max(), together.min() + 1e-6), 31)
    for ax, (name, frame) in zip(axes, parts.items(), strict=True):
        for (column, label), color in zip(kinds.items(), COLOURS, strict=False):
            mean, deviation = frame[column].mean(), frame[column].std(ddof=0)
            ax.hist(
                frame[column], bins.tolist(), color=color, alpha=0.6, label=f"{label}: {mean:.3g} ± {deviation:.2g}"
            )
            ax.axvline(mean, color=color, linewidth=2)
        share = (frame["positive_query"] > frame["positive_negative"]).mean()
        titled(ax, f"{f'{title}, ' if title else ''}{name}: s(p+, q) is larger for {share:.0%}")
        ax.set_ylabel("queries")
        ax.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    axes[-1].set_xlabel("similarity")
    return axes


def _log_if_wide(ax: Axes, x: np.ndarray) -> None:
    """A logarithmic scale for what differs by much; that of the axes has to be set before it is drawn on."""
    if np.nanmin(x) > 0 and np.nanmax(x) / np.nanmin(x) > WIDE:
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_formatter(NullFormatter())


def _log(training: Any) -> list[dict[str, float]]:
    log = getattr(training, "training_log", training)
    if not isinstance(log, Sequence) or not all(isinstance(entry, Mapping) for entry in log):
        raise ValueError(f"{training!r:.80} was not trained here: give what fit() was called on, or its training_log")
    return [{_part(key): value for key, value in entry.items()} for entry in log]


def _part(key: str) -> str:
    """:data:`VALIDATION` for the measure, which logs have under its own name, such as ``nDCG@10``."""
    return key if key in TRAINER or key.startswith(("train_", "eval_")) else VALIDATION


def _points(log: list[dict[str, float]], by: str, key: str) -> np.ndarray:
    """Where a curve runs, shape (2, points); nothing if the log has none."""
    points = [(entry[by], entry[key]) for entry in log if by in entry and key in entry]
    return np.array(points).T


def _measure(trainings: Any) -> str:
    """What the measure on the validation topics is called, as far as it is known and the same."""
    rerankers = trainings.values() if isinstance(trainings, Mapping) else [trainings]
    measures = {getattr(getattr(reranker, "training", None), "measure", "measure") for reranker in rerankers}
    return f"validation {measures.pop() if len(measures) == 1 else 'measure'}"
