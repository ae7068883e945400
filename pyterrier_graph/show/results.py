"""Plots of experiments and trainings: means and differences, curves, similarities, weights of relations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
from matplotlib.axes import Axes

from pyterrier_graph.evaluation.significance import PER_QUERY, significance_marks, values_of
from pyterrier_graph.html import COLORS, MINUS, NEUTRAL, PLUS, TEXT, colors_of, shortened
from pyterrier_graph.show.axes import label, new_axes, new_grid, right_legend, titled, with_path

SPREAD = 0.36  # half the height that the points of a system take


def results(
    experiment: pd.DataFrame,
    measure: Any = None,
    *,
    names: Sequence[str] | None = None,
    baseline: str | None = None,
    title: str = "",
) -> list[Axes]:
    """Draws the mean of each system, and next to it the differences to the baseline, a point per query.

    The baseline is drawn first, then the other systems in their order. A mean has its 95% confidence interval
    (Student's t). Its number has a ``+`` or ``-`` if the system is better or worse than the baseline (paired t-tests
    over queries, Holm-corrected, p < 0.05). The points of a system are sorted by their differences.

    Args:
        experiment: What ``pt.Experiment(..., perquery=True)`` returns: ``name, qid, measure, value``. With a column
            ``seed``, each query has its mean over seeds.
        measure: The measure; it may be left out if there is one.
        names: The systems to draw, in their order, such as the ``names`` of ``pt.Experiment``, which sorts its frame by
            name. By default all systems, as in the frame.
        baseline: Name of the system that the others are compared with; by default the first.
        title: Title of the plot.
    """
    values, measure = _values(experiment, measure, names)
    systems = [*values.index]
    if baseline is None:
        baseline = systems[0]
    if baseline not in systems:
        raise ValueError(f"baseline must be one of {systems}, got {baseline!r}")
    values = values.loc[sorted(systems, key=lambda name: name != baseline)]
    means, differences = new_grid(1, 2, 9, 1.3 + 0.5 * len(systems), sharey=True)
    _draw_means(means, values, significance_marks(values, baseline), baseline)
    _draw_differences(differences, values, baseline)
    labels = [shortened(name, 40) for name in values.index]
    means.set_yticks(range(len(labels)), labels, fontsize=TEXT, parse_math=False)
    means.set_ylim(len(labels) - 0.4, -0.6)
    means.set_xlabel(f"mean {measure}, 95% interval; +/-: p < 0.05", parse_math=False)
    titled(means, title)
    return [means, differences]


def training_curves(trainings: Any, *, title: str = "") -> list[Axes]:
    """Draws losses and, if there were validation queries, the validation measure; a star marks the weights kept.

    Args:
        trainings: A trained model or its ``training_log``, or several of them by name.
    """
    several = trainings if isinstance(trainings, Mapping) else {"": trainings}
    logs = {str(name): _log(training) for name, training in several.items()}
    losses = {name: log["loss"].dropna() for name, log in logs.items() if "loss" in log}
    validation = {}
    for name, log in logs.items():
        measure = _measure_of(log)
        if measure is not None:
            validation[name] = log[measure].dropna()
    if validation:  # a single loss is not a curve
        losses = {name: curve for name, curve in losses.items() if len(curve) > 1}
    panels = [curves for curves in (losses, validation) if curves]
    if not panels:
        raise ValueError("there is nothing to draw: the logs have neither losses nor a measure")

    axes = new_grid(len(panels), 1, 8, 2.6 * len(panels), sharex=True)
    colors = colors_of(logs)
    for ax, curves in zip(axes, panels, strict=True):
        for name, curve in curves.items():
            ax.plot(curve, color=colors[name], marker="." if len(curve) < 50 else "")
        ax.set_ylabel("loss")
        ax.margins(y=0.1)
    if validation:
        for name, curve in validation.items():
            kept = logs[name].dropna(subset="kept").iloc[-1]
            axes[-1].plot(kept.name, kept[curve.name], "*", color=colors[name], markersize=14)
        measures = dict.fromkeys(str(curve.name) for curve in validation.values())
        axes[-1].set_ylabel(f"validation {' and '.join(measures)}")
    axes[-1].set_xlabel("step")
    if isinstance(trainings, Mapping):
        right_legend(axes[0], colors)
    titled(axes[0], title)
    return axes


def similarity_shift(before: pd.DataFrame, after: pd.DataFrame) -> list[Axes]:
    """Draws similarities of a relevant passage to its query and to other passages, before and after training.

    Training should make s(p+, q) larger than s(p+, p-) (PAIR, Fig. 4). Each title has the share of pairs where it is.
    Both frames have a row per pair of a query and a relevant passage: ``positive_query``, the similarity of the passage
    to the query, and ``positive_negative``, its similarity to another passage.
    """
    kinds = {"positive_query": "s(p+, q)", "positive_negative": "s(p+, p-)"}
    axes = new_grid(2, 1, 8, 5.2, sharex=True, sharey=True)
    bins = np.histogram_bin_edges(pd.concat([before, after])[[*kinds]], 30).tolist()
    for ax, name, frame in zip(axes, ("before", "after"), (before, after), strict=True):
        for column, color in zip(kinds, COLORS, strict=False):
            values = frame[column]
            mean, deviation = values.mean(), values.std(ddof=0)
            text = f"{kinds[column]}: {mean:.3g} ± {deviation:.2g}"
            ax.hist(values, bins, color=color, alpha=0.6, label=text)
            ax.axvline(mean, color=color, linewidth=2)
        share = (frame["positive_query"] > frame["positive_negative"]).mean()
        titled(ax, f"{name}: s(p+, q) is larger for {share:.0%}")
        ax.set_ylabel("pairs")
        right_legend(ax)
    axes[-1].set_xlabel("similarity")
    return axes


def relation_weights(model: Any) -> Axes:
    """Draws the weight of each relation in a graph model; for HGATReranker, per layer (Table 6 of the paper).

    ``model`` is a GraphMean, GraphMaxSim, GNNEncoder or HGATReranker.
    """
    if hasattr(model, "relation_weights"):
        table = model.relation_weights()
    else:
        table = pd.DataFrame({"weight": model.weights}, dtype=float)
    if not len(table):
        raise ValueError(f"{model!r} has no relations")
    ax = new_axes(8, max(2.5, 1 + 0.22 * len(table) * (table.shape[1] + 1)))
    table.plot.barh(ax=ax, color=colors_of(table.columns), legend=False)
    ax.invert_yaxis()  # barh draws from bottom to top
    names = [with_path(name) for name in table.index]
    ax.set_yticks(ax.get_yticks(), names, fontsize=TEXT, parse_math=False)
    if table.shape[1] > 1:
        right_legend(ax)
    ax.set(xlabel="weight", ylabel="")
    titled(ax, "Weights of relations")
    return ax


def _values(
    experiment: pd.DataFrame, measure: Any, names: Sequence[str] | None
) -> tuple[pd.DataFrame, str]:
    """The values of systems (rows) for queries (columns), and the measure; raises ValueError if one is missing."""
    pt.validate.columns(experiment, includes=PER_QUERY)
    measures = [*map(str, experiment["measure"].unique())]
    name = str(measure)
    if measure is None and len(measures) == 1:
        name = measures[0]
    if name not in measures:
        raise ValueError(f"measure must be one of {measures}, got {measure!r}")
    values = values_of(experiment, name)
    if names:
        values = values.loc[[*names]]
    missing = values.isna().any(axis=1)
    if missing.any():
        raise ValueError(
            f"{missing.idxmax()!r} has no {name} of some queries: all systems need the same queries"
        )
    return values, name


def _draw_means(ax: Axes, values: pd.DataFrame, marks: dict[str, str], baseline: str) -> None:
    """Draws the mean and confidence interval of each system."""
    from scipy.stats import ttest_1samp

    for y, (name, row) in enumerate(values.iterrows()):
        mean = row.mean()
        low = high = mean
        if row.nunique() > 1:
            low, high = ttest_1samp(row, 0).confidence_interval()
        color = NEUTRAL if name == baseline else PLUS
        error = [[mean - low], [high - mean]]
        ax.errorbar(mean, y, xerr=error, color=color, fmt="o", capsize=4, lw=2)
        label(ax, f"{mean:.3f}{marks[str(name)]}", (high, y), 5)
    ax.margins(x=0.05)
    ax.locator_params(axis="x", nbins=5)
    low, high = ax.get_xlim()
    ax.set_xlim(low, high + 0.25 * (high - low))  # space for the last number


def _draw_differences(ax: Axes, values: pd.DataFrame, baseline: str) -> None:
    """Draws the differences of each system to the baseline, and their numbers."""
    ax.axvline(0, color=NEUTRAL, lw=1)
    label(ax, "baseline", (0, 0), 5)
    differences = (values.drop(baseline) - values.loc[baseline]).to_numpy()  # (systems, queries)
    low = min(0.0, differences.min(initial=0))
    high = differences.max(initial=0)
    width = max(1e-9, high - low)
    for number, row in enumerate(np.sort(differences, axis=1), start=1):
        spread = np.linspace(SPREAD, -SPREAD, len(row)) if len(row) > 1 else 0
        color = np.select([row > 0, row < 0], [PLUS, MINUS], NEUTRAL)
        ax.scatter(row, number + spread, c=color, s=9, linewidth=0, rasterized=len(row) > 300)
        better = (row > 0).sum()
        worse = (row < 0).sum()
        text = f"better {better}\nequal {len(row) - better - worse}\nworse {worse}"
        label(ax, text, (high + 0.08 * width, number))
    ax.set_xlim(low - 0.05 * width, high + 0.45 * width)
    ax.set_xticks([tick for tick in ax.get_xticks() if low <= tick <= high])
    ax.set_xlabel(f"difference to {shortened(baseline, 30)}, per query", parse_math=False)


def _log(training: Any) -> pd.DataFrame:
    """The training log of a model, with a row per entry, by step."""
    log = getattr(training, "training_log", training)
    if not isinstance(log, Sequence):
        raise ValueError(
            f"{training!r:.80} was not trained: give a model after fit(), or its training_log"
        )
    frame = pd.DataFrame(log)
    return frame.set_index("step") if len(frame) else frame


def _measure_of(log: pd.DataFrame) -> str | None:
    """Name of the validation measure in a training log; None if the log has no measure."""
    import ir_measures

    for name in log.columns:
        with suppress(NameError, SyntaxError, ValueError):
            ir_measures.parse_measure(name)
            return name
    return None
