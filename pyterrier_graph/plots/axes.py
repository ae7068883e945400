"""Figures, axes, colors, legends, titles and alternative texts that all plots share."""

from __future__ import annotations

import base64
import io
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pyterrier_graph.checks import check_frame, is_unicode
from pyterrier_graph.graphs.relations import in_words
from pyterrier_graph.plots.style import COLORS, TEXT, WIDEST

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

TITLE_WIDTH = 80
MARKERS = "^osDvPX"
LARGEST = 1e30  # what is drawn: matplotlib computes with the squares of numbers
DPI = 110
SVG: Any = {"svg.fonttype": "path", "svg.hashsalt": "pyterrier_graph"}
COLORBAR = "<colorbar>"  # what matplotlib calls the axes of a color bar


class Picture(Figure):
    """A figure that a notebook shows as SVG, with an alternative text for readers who do not see it."""

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return image(self)


def image(figure: Figure) -> str:
    """A figure as an image in HTML, as large as its inches say, with its alternative text."""
    out, alt = io.BytesIO(), alt_text(figure)
    with plt.rc_context(SVG):
        figure.savefig(out, format="svg", bbox_inches="tight", metadata={"Description": alt, "Date": None})
    encoded = base64.b64encode(out.getvalue()).decode()
    return (
        f'<img alt="{escape(alt)}" src="data:image/svg+xml;base64,{encoded}" '
        'style="max-width: 100%; height: auto; border-radius: 6px">'
    )


def alt_text(drawn: Any) -> str:
    """What a picture shows, in words: of a figure, of its axes, or of several axes.

    Notebooks show it with the figures that the functions of this package make. To put a figure of your own on a page,
    take the text from here.
    """
    axes = drawn.axes if isinstance(drawn, Figure) else drawn if isinstance(drawn, Sequence) else [drawn]
    texts = (str(ax.get_label()) for ax in axes)
    return " ".join(text for text in texts if text and text != COLORBAR)


def described(ax: Axes, text: str) -> None:
    """Gives axes their part of the alternative text; ``repr(ax)`` has it, too."""
    ax.set_label(" ".join(text.split()))


def listed(names: Iterable[Any], values: Iterable[float], most: int = 8) -> str:
    """Names with their values, for an alternative text."""
    parts = [f"{name}: {value:.3g}" for name, value in zip(names, values, strict=True)]
    return ", ".join(parts[:most]) + (f", and {len(parts) - most} more" if len(parts) > most else "") + "."


def new_axes(width: float, height: float) -> Axes:
    """Axes of a new figure, whose layout leaves space for texts beside them."""
    return new_grid(1, 1, width, height)[0]


def new_grid(rows: int, columns: int, width: float, height: float, **options: Any) -> list[Axes]:
    """Axes of a new figure, row by row."""
    size: dict[str, Any] = {"figsize": (min(width, WIDEST), height), "dpi": max(DPI, plt.rcParams["figure.dpi"])}
    figure: dict[str, Any] = {"layout": "constrained", "FigureClass": Picture, "squeeze": False}
    return [*plt.subplots(rows, columns, **size, **figure, **options)[1].flat]


def rows_of_axes(axes: Sequence[Axes] | None, count: int, *, sharey: bool = False) -> list[Axes]:
    """The given axes, or new axes one below the other with the same x; raises ValueError if the number is wrong."""
    if axes is None:
        return new_grid(count, 1, 8, 2.6 * count, sharex=True, sharey=sharey)
    if len(axes) != count:
        raise ValueError(f"this plot has {count} parts, but {len(axes)} axes were given")
    return [*axes]


def drawable(
    frame: pd.DataFrame, columns: Iterable[str], source: str, *, numbers: Iterable[str] = (), texts: Iterable[str] = ()
) -> pd.DataFrame:
    """The frame, checked by :func:`~pyterrier_graph.checks.check_frame`.

    Raises ValueError if it is empty, lacks a column, or has numbers that are missing or too large, or no texts where
    there must be some; ``source`` says where such a frame comes from.
    """
    frame = check_frame(frame, source, numbers=numbers, texts=texts, largest=LARGEST)
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise ValueError(f"no column {', '.join(map(repr, missing))} in {list(frame.columns)}: give {source}")
    if not len(frame):
        raise ValueError(f"the frame is empty, there is nothing to draw: give {source}")
    for name in columns:
        wrong = (value for value in frame[name] if isinstance(value, str) and not is_unicode(value))
        if frame[name].dtype == object and (value := next(wrong, None)) is not None:
            raise ValueError(f"{source}: {name} {value!r:.60} is not valid Unicode")
    return frame


def look_of(number: int) -> tuple[str, str]:
    """The marker and the color of one of several groups, which are distinct for many groups."""
    return MARKERS[number % len(MARKERS)], COLORS[number % len(COLORS)]


def with_path(relation: str) -> str:
    """A relation in words, with its path in parentheses where the words differ: for legends, which have no tooltip."""
    words = in_words(relation)
    return words if words == relation or not relation else f"{words} ({relation})"


def legend_beside(ax: Axes, colors: Mapping[str, str] | None = None, handles: Any = None) -> None:
    """A legend to the right of the axes: of names and their colors, of given handles, or of what was drawn."""
    if colors is not None:
        handles = [Line2D([], [], color=color, lw=6, label=name) for name, color in colors.items()]
    legend = ax.legend(handles=handles, fontsize=TEXT, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    for text in legend.get_texts():
        text.set_parse_math(False)


def titled(ax: Axes, title: str) -> None:
    """A title on the left; long titles, such as queries, are wrapped."""
    ax.set_title(textwrap.fill(title, TITLE_WIDTH), loc="left", fontsize=10, parse_math=False)
