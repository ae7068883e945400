"""The results of an experiment: means with intervals and significance, and the differences per query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pyterrier_graph.evaluation.significance import check_per_query, significance_marks, values_of
from pyterrier_graph.plots.axes import described, new_grid, titled
from pyterrier_graph.plots.style import MINUS, NEUTRAL, PLUS, TEXT, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PER_QUERY = "give the result of pt.Experiment(..., perquery=True), with two systems or more"
SPREAD = 0.36  # half the height that the points of a system take


def results(
    experiment: pd.DataFrame,
    measure: Any = None,
    *,
    baseline: str | int = 0,
    axes: Sequence[Axes] | None = None,
    title: str = "",
) -> list[Axes]:
    """Draws a bar per system, and beside it the differences to the baseline, a point per query.

    A bar is the mean with its 95% confidence interval (Student's t). Its number has a ``+`` or ``-`` if the system is
    better or worse than the baseline (paired t-tests over queries, Holm-corrected, p < 0.05). Beside it, the queries
    are sorted by their difference: where the points cross 0, one sees for how many queries a system is better.

    Args:
        experiment: What ``pt.Experiment(..., perquery=True)`` returns: ``name, qid, measure, value``. With a column
            ``seed``, each query has its mean over seeds.
        measure: The measure; it may be left out if there is one.
        baseline: Name of the system that the others are compared with, or its position.
        axes: Two axes to draw into, which should share the vertical axis.
    """
    if not isinstance(experiment, pd.DataFrame):
        raise ValueError(f"{type(experiment).__name__} is no frame with a row per query: {PER_QUERY}")
    check_per_query(experiment)
    measures = [*map(str, experiment["measure"].unique())]
    if measure is None and len(measures) > 1:
        raise ValueError(f"there are several measures, give one: {', '.join(measures)}")
    measure = str(measures[0] if measure is None and measures else measure)
    if measure not in measures:
        raise ValueError(f"no values of {measure}: the frame has {', '.join(measures) or 'no rows'}")
    values = values_of(experiment, measure)
    names = [*map(str, values.index)]
    if len(names) < 2:
        raise ValueError(f"there is nothing to compare {names[0]!r} with: {PER_QUERY}")
    if values.isna().any(axis=None):
        system, query = values.stack(future_stack=True).isna().idxmax()
        raise ValueError(f"{system!r} has no value for query {query!r}: all systems need the same queries")
    if isinstance(baseline, int) and -len(names) <= baseline < len(names):
        baseline = names[baseline]
    if baseline not in names:
        raise ValueError(f"baseline must be one of {', '.join(map(repr, names))}, or a position, got {baseline!r}")
    if axes is None:
        axes = new_grid(1, 2, 9, 1.3 + 0.5 * len(names), sharey=True)
    if len(axes) != 2:
        raise ValueError(f"this plot has 2 parts, but {len(axes)} axes were given")
    means, differences = axes
    marks = significance_marks(values, baseline)
    _draw_means(means, values, marks, baseline, measure)
    counts = _draw_differences(differences, values, baseline)
    means.set_yticks(range(len(names)), [shortened(name, 40) for name in names], fontsize=TEXT, parse_math=False)
    means.set_ylim(len(names) - 0.4, -0.6)
    differences.set_ylim(means.get_ylim())
    titled(means, title)
    worded = {"+": ", significantly better", "-": ", significantly worse", "": ""}
    numbers = "; ".join(f"{name}: {values.loc[name].mean():.3f}{worded[marks[name]]}" for name in values.index)
    described(means, f"Bars of the mean {measure} of {len(values.columns)} queries. {title} {numbers}.")
    described(differences, f"Points: differences per query to {baseline}. {'; '.join(counts)}.")
    return [*axes]


def _draw_means(ax: Axes, values: pd.DataFrame, marks: dict[str, str], baseline: str, measure: str) -> None:
    from scipy.stats import ttest_1samp

    for place, (name, row) in enumerate(values.iterrows()):
        mean, color = row.mean(), NEUTRAL if name == baseline else PLUS
        interval = ttest_1samp(row, 0).confidence_interval() if row.nunique() > 1 else (mean, mean)
        low, high = interval
        ax.barh(place, mean, color=color, height=0.6)
        ax.errorbar(mean, place, xerr=[[mean - low], [high - mean]], color=ax.yaxis.label.get_color(), capsize=3, lw=1)
        style: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": TEXT, "parse_math": False}
        ax.annotate(f"{mean:.3f}{marks[str(name)]}", (max(high, 0), place), xytext=(5, 0), **style)
    ax.margins(x=0.2)
    ax.set_xlim(left=min(0.0, ax.get_xlim()[0]))
    ax.set_xlabel(f"mean {measure}, 95% interval; +/-: p < 0.05", parse_math=False)


def _draw_differences(ax: Axes, values: pd.DataFrame, baseline: str) -> list[str]:
    """Draws the points, and says how many are on each side."""
    counts = []
    ax.axvline(0, color=NEUTRAL, lw=1)
    largest = max(1e-9, float((values - values.loc[baseline]).abs().to_numpy().max()))
    for place, (name, row) in enumerate(values.iterrows()):
        if name == baseline:
            ax.annotate("baseline", (0, place), xytext=(5, 0), textcoords="offset points", va="center", fontsize=TEXT)
            continue
        difference = np.sort((row - values.loc[baseline]).to_numpy())
        y = place + np.linspace(SPREAD, -SPREAD, len(difference)) if len(difference) > 1 else np.array([place])
        color = np.where(difference > 0, PLUS, np.where(difference < 0, MINUS, NEUTRAL))
        ax.scatter(difference, y, c=color, s=9, linewidth=0, rasterized=len(difference) > 300)
        better, worse = int((difference > 0).sum()), int((difference < 0).sum())
        text = f"better {better}\nequal {len(difference) - better - worse}\nworse {worse}"
        ax.annotate(text, (1.12 * largest, place), va="center", fontsize=TEXT)
        counts.append(f"{name}: better for {better}, worse for {worse} of {len(difference)} queries")
    ax.set_xlim(-1.1 * largest, 1.75 * largest)
    ax.set_xlabel(f"difference to {shortened(baseline, 30)}, per query", parse_math=False)
    return counts
