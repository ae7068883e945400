"""Axes, legends and titles that all plots share."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from pyterrier_graph.html import TEXT, WIDEST, in_words

TITLE_WIDTH = 80
DPI = 110


def new_axes(width: float, height: float) -> Axes:
    """Axes of a new figure, whose layout leaves space for texts next to them."""
    return new_grid(1, 1, width, height)[0]


def new_grid(rows: int, columns: int, width: float, height: float, **options: Any) -> list[Axes]:
    """Axes of a new figure, row by row."""
    size = min(width, WIDEST), height
    dpi = max(DPI, plt.rcParams["figure.dpi"])
    figure = plt.figure(figsize=size, dpi=dpi, layout="constrained")
    return [*figure.subplots(rows, columns, squeeze=False, **options).flat]


def with_path(relation: str) -> str:
    """A relation in words, with its path in parentheses where the words differ: for legends, which have no tooltip."""
    words = in_words(relation)
    return words if relation in ("", words) else f"{words} ({relation})"


def right_legend(ax: Axes, colors: Mapping[str, str] | None = None) -> None:
    """A legend to the right of the axes: of what was drawn with a label, and of names and their colors."""
    for name, color in (colors or {}).items():
        ax.plot([], [], color=color, linewidth=6, label=name)
    legend = ax.legend(
        fontsize=TEXT,
        loc="upper left",
        bbox_to_anchor=(1.01, 1),
        borderaxespad=0,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def label(ax: Axes, text: str, point: tuple[float, float], right: float = 0, **style: Any) -> None:
    """A text ``right`` typographic points to the right of a point of the axes."""
    ax.annotate(
        text,
        point,
        xytext=(right, 0),
        textcoords="offset points",
        va="center",
        fontsize=TEXT,
        parse_math=False,
        **style,
    )


def titled(ax: Axes, title: str) -> None:
    """A title on the left; long titles, such as queries, are wrapped."""
    ax.set_title(textwrap.fill(title, TITLE_WIDTH), loc="left", fontsize=10, parse_math=False)
