"""Axes, colors, legends and titles that all plots share."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
from matplotlib.lines import Line2D

from pyterrier_graph.plots.html import COLORS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

TITLE_WIDTH = 80
NAME_WIDTH = 48
MARKERS = "^osDvPX"


def new_axes(width: float, height: float) -> Axes:
    """Axes of a new figure, whose layout leaves space for texts beside them."""
    return plt.subplots(figsize=(width, height), layout="constrained")[1]


def rows_of_axes(axes: Sequence[Axes] | None, count: int, *, sharey: bool = False) -> list[Axes]:
    """The given axes, or new axes one below the other with the same x; raises ValueError if the number is wrong."""
    if axes is None:
        options: dict[str, Any] = {"figsize": (8, 2.6 * count), "layout": "constrained", "squeeze": False}
        return [*plt.subplots(count, sharex=True, sharey=sharey, **options)[1][:, 0]]
    if len(axes) != count:
        raise ValueError(f"this plot has {count} parts, but {len(axes)} axes were given")
    return [*axes]


def check_frame(frame: pd.DataFrame, columns: Iterable[str], source: str) -> None:
    """Raises ValueError if a frame is empty or lacks a column; ``source`` says where such a frame comes from."""
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise ValueError(f"no column {', '.join(map(repr, missing))} in {list(frame.columns)}: give {source}")
    if not len(frame):
        raise ValueError(f"the frame is empty, there is nothing to draw: give {source}")


def colors_of(names: Iterable[str]) -> dict[str, str]:
    """A color for each distinct name, in order of appearance; colors repeat if there are more names than colors."""
    return {name: COLORS[number % len(COLORS)] for number, name in enumerate(dict.fromkeys(names))}


def look_of(number: int) -> tuple[str, str]:
    """The marker and the color of one of several groups, which are distinct for many groups."""
    return MARKERS[number % len(MARKERS)], COLORS[number % len(COLORS)]


def legend_beside(ax: Axes, colors: Mapping[str, str] | None = None, handles: Any = None) -> None:
    """A legend to the right of the axes: of names and their colors, of given handles, or of what was drawn."""
    if colors is not None:
        handles = [Line2D([], [], color=color, lw=6, label=name) for name, color in colors.items()]
    legend = ax.legend(handles=handles, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    for text in legend.get_texts():
        text.set_parse_math(False)


def titled(ax: Axes, title: str) -> None:
    """A title on the left; long titles, such as queries, are wrapped."""
    ax.set_title(textwrap.fill(title, TITLE_WIDTH), loc="left", fontsize=10, parse_math=False)


def shortened(text: str, width: int = NAME_WIDTH) -> str:
    """A text without its middle, since ids differ at their ends."""
    text = " ".join(text.split())
    return text if len(text) <= width else f"{text[: (width - 1) * 2 // 3]}…{text[-((width - 1) // 3) :]}"
