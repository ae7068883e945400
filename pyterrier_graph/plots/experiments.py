"""Plots of trainings and experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from matplotlib.ticker import LogLocator, NullFormatter

from pyterrier_graph.plots.axes import (
    described,
    drawable,
    legend_beside,
    listed,
    look_of,
    new_axes,
    rows_of_axes,
    titled,
)
from pyterrier_graph.plots.model_html import measure_of
from pyterrier_graph.plots.style import COLORS, NEUTRAL, colors_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OPTIONS = {"k": "passages per query in the graph (k)", "masked": "share of queries that are masked in an epoch"}
WIDE = 10  # ratio of the largest to the smallest value above which a scale is logarithmic


def training_curves(
    trainings: Any,
    *,
    by: Literal["step", "epoch"] = "step",
    axes: Sequence[Axes] | None = None,
    title: str = "",
) -> list[Axes]:
    """Draws losses and, if there were validation queries, the validation measure; a star marks the kept weights.

    Args:
        trainings: A trained model or its ``training_log``, or several of them by name.
        by: Unit of the horizontal axis.
        axes: Axes to draw into: one for the loss, and one for the measure if there is one.
    """
    several = isinstance(trainings, Mapping)
    logs = {str(name): _log(training) for name, training in (trainings if several else {"": trainings}).items()}
    measures = {name: measure for name, log in logs.items() if (measure := measure_of(log))}
    losses = {name: points for name, log in logs.items() if len(points := _points(log, by, "loss"))}
    measured = {name: _points(logs[name], by, measure) for name, measure in measures.items()}
    validation = f"validation {' and '.join(dict.fromkeys(measures.values()))}"
    parts = {label: curves for label, curves in (("loss", losses), (validation, measured)) if curves}
    if not parts:
        raise ValueError("there is nothing to draw: the logs have neither losses nor a measure")
    axes = rows_of_axes(axes, len(parts))
    colors = colors_of(logs)
    for ax, (label, curves) in zip(axes, parts.items(), strict=True):
        for name, (x, y) in curves.items():
            ax.plot(x, y, color=colors[name], marker="." if len(x) < 50 else "")
            if label == validation:
                ax.plot(x[y.argmax()], y.max(), "*", color=colors[name], markersize=14)
        ax.set_ylabel(label)
        ax.margins(y=0.1)
        best = max if label == validation else min
        named = {name or label: best(y) for name, (_, y) in curves.items()}
        described(ax, f"Curves of the {label} by {by}; {best.__name__}imum of {listed(named, named.values())}")
    axes[-1].set_xlabel(by)
    if several:
        legend_beside(axes[0], colors)
    titled(axes[0], title)
    return axes


def effectiveness_latency(
    experiment: pd.DataFrame, measure: Any, *, time: str = "mrt", ax: Axes | None = None, title: str = ""
) -> Axes:
    """Draws effectiveness against time; filled, and joined by a line, are the systems that no system beats in both.

    Args:
        experiment: What ``pt.Experiment`` returns if ``'mrt'`` is one of its measures.
        measure: The measure, or the name of its column.
        time: Name of the column of the time: ``'mrt'`` is milliseconds per query.
    """
    source = f"what pt.Experiment(..., eval_metrics=[{str(measure)!r}, {time!r}]) returns"
    experiment = drawable(experiment, ["name", str(measure), time], source, numbers=[str(measure), time])
    x, y = (experiment[column].to_numpy(dtype=float) for column in (time, str(measure)))
    names = experiment["name"].map(str).to_numpy()
    order = np.lexsort((-y, x))
    best_before = np.concatenate([[-np.inf], np.maximum.accumulate(y[order])[:-1]])
    front = order[y[order] > best_before]
    ax = ax if ax is not None else new_axes(8, 5)
    for number, name in enumerate(names):
        marker, color = look_of(number)
        style = "full" if number in front else "none"
        ax.plot(x[number], y[number], marker, color=color, fillstyle=style, label=name)
    ax.plot(x[front], y[front], color=NEUTRAL, linestyle="--", linewidth=1, label="not beaten in both", zorder=1)
    _log_if_wide(ax, x)
    ax.margins(0.15)
    ax.set(xlabel="mean response time (ms per query)" if time == "mrt" else time, ylabel=str(measure))
    legend_beside(ax)
    titled(ax, title)
    described(ax, f"Effectiveness against time. {title} {measure} of {listed(names, y)} {time} of {listed(names, x)}")
    return ax


def measure_curve(per_query: pd.DataFrame, measure: Any, *, x: str, ax: Axes | None = None, title: str = "") -> Axes:
    """Draws a measure against an option: a line per system, and a band of the standard deviation over seeds.

    A system without a value of the option is a horizontal line.

    Args:
        per_query: A row per query with ``system, measure, value, seed`` and the option, such as
            ``pt.Experiment(..., perquery=True)`` with these columns added.
        measure: One of the measures in the column ``measure``.
        x: Column of the option, such as ``'k'`` (passages per query) or ``'masked'`` (share of masked queries).
    """
    source = "a row per system, value of the option, seed and query"
    columns, numbers = ["system", "measure", "value", "seed", x], ["value", "seed"]
    per_query = drawable(per_query, columns, source, numbers=numbers, texts=["system"])
    measures = per_query["measure"].map(str)
    rows = per_query[measures == str(measure)]
    if not len(rows):
        raise ValueError(f"no values of {measure}: the frame has {', '.join(measures.unique())}")
    if rows[x].isna().all():
        raise ValueError(f"no system has a value of {x!r}: there is nothing to draw it against")
    known = drawable(rows[rows[x].notna()], [x], source, numbers=[x])[x]
    rows = rows.assign(**{x: known.reindex(rows.index)})
    by_seed = rows.groupby(["system", x, "seed"], sort=False, dropna=False)["value"].mean()
    points = by_seed.groupby(["system", x], sort=False, dropna=False).agg(["mean", "std"]).fillna({"std": 0.0})
    ax = ax if ax is not None else new_axes(8, 5)
    _log_if_wide(ax, rows[x].to_numpy(dtype=float))
    colors = colors_of(rows["system"])
    for system, color in colors.items():
        values = points.xs(system).sort_index()
        position, style = values.index.to_numpy(dtype=float), "o-"
        if np.isnan(position).any():
            position, style, values = np.array([rows[x].min(), rows[x].max()]), "--", values.iloc[[0, 0]]
        mean, deviation = values["mean"].to_numpy(), values["std"].to_numpy()
        ax.plot(position, mean, style, color=color, markersize=4)
        ax.fill_between(position, mean - deviation, mean + deviation, color=color, alpha=0.2, linewidth=0)
    legend_beside(ax, colors)
    ax.margins(y=0.1)
    ax.set(xlabel=OPTIONS.get(x, x), ylabel=str(measure))
    titled(ax, title)
    best = points["mean"].groupby("system", sort=False).max()
    described(ax, f"Curves of {measure} by {OPTIONS.get(x, x)}. {title} Maximum of {listed(best.index, best)}")
    return ax


def similarity_shift(
    before: pd.DataFrame, after: pd.DataFrame, *, axes: Sequence[Axes] | None = None, title: str = ""
) -> list[Axes]:
    """Draws similarities of a relevant passage to its query and to other passages, before and after training.

    Training should make s(p+, q) larger than s(p+, p-) (PAIR, Fig. 4). Each title has the share of pairs where it is.
    Both frames have a row per pair of a query and a relevant passage: ``positive_query``, the similarity of the passage
    to the query, and ``positive_negative``, its similarity to another passage.
    """
    kinds = {"positive_query": "s(p+, q)", "positive_negative": "s(p+, p-)"}
    parts = {
        name: drawable(frame, kinds, f"as {name!r} a row per query with {' and '.join(kinds)}", numbers=kinds)
        for name, frame in (("before", before), ("after", after))
    }
    axes = rows_of_axes(axes, 2, sharey=True)
    values = pd.concat(parts.values())[[*kinds]].to_numpy(dtype=float)
    bins = np.linspace(values.min(), max(values.max(), values.min() + 1e-6), 31).tolist()
    for ax, (name, frame) in zip(axes, parts.items(), strict=True):
        for (column, label), color in zip(kinds.items(), COLORS, strict=False):
            mean, deviation = frame[column].mean(), frame[column].std(ddof=0)
            ax.hist(frame[column], bins, color=color, alpha=0.6, label=f"{label}: {mean:.3g} ± {deviation:.2g}")
            ax.axvline(mean, color=color, linewidth=2)
        share = (frame["positive_query"] > frame["positive_negative"]).mean()
        titled(ax, f"{f'{title}, ' if title else ''}{name}: s(p+, q) is larger for {share:.0%}")
        ax.set_ylabel("pairs")
        described(
            ax,
            f"Histograms of similarities {name} training; mean of "
            + listed(kinds.values(), (frame[column].mean() for column in kinds)),
        )
        legend_beside(ax)
    axes[-1].set_xlabel("similarity")
    return axes


def _log_if_wide(ax: Axes, x: np.ndarray) -> None:
    """Sets a logarithmic scale if the largest value is more than ``WIDE`` times the smallest; call before drawing."""
    if np.nanmin(x) > 0 and np.nanmax(x) / np.nanmin(x) > WIDE:
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_formatter(NullFormatter())


def _log(training: Any) -> list[dict[str, float]]:
    log = getattr(training, "training_log", training)
    if not isinstance(log, Sequence) or not all(isinstance(entry, Mapping) for entry in log):
        raise ValueError(f"{training!r:.80} was not trained: give a model after fit(), or its training_log")
    return [dict(entry) for entry in log]


def _points(log: list[dict[str, float]], by: str, key: str) -> np.ndarray:
    """The points of a curve, shape (2, points); an empty array if the log has none."""
    rows = [entry for entry in log if by in entry and key in entry]
    return np.array([(_number(entry, by), _number(entry, key)) for entry in rows]).T


def _number(entry: Mapping[str, Any], key: str) -> float:
    value = entry[key]
    with suppress(OverflowError, TypeError, ValueError):
        if not isinstance(value, str):
            return float(value)
    raise ValueError(f"{key} in a training log must be a number, got {value!r:.60}")
