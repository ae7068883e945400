"""A report in one HTML file: tables, pictures and code, readable without a network, in light and in dark."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import pyterrier as pt

from pyterrier_graph.plots.axes import image
from pyterrier_graph.plots.style import PAGE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def section(title: str, *parts: str) -> str:
    """A part of the report under a heading; the parts are HTML."""
    return f"<h2>{escape(title)}</h2>{''.join(parts)}"


def text(content: str) -> str:
    """A paragraph."""
    return f"<p>{escape(content)}</p>"


def code(lines: str) -> str:
    """Code to copy."""
    return f"<pre><code>{escape(lines)}</code></pre>"


def facts(rows: Mapping[str, object]) -> str:
    """A table of names and values."""
    cells = (f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in rows.items())
    return f"<table>{''.join(cells)}</table>"


def table(frame: pd.DataFrame) -> str:
    """A frame as a table; what begins with a digit is set to the right."""
    rows = f"<tr>{''.join(f'<th>{escape(str(column))}</th>' for column in frame.columns)}</tr>"
    for row in frame.astype(str).itertuples(index=False):
        cells = (f"<td{' class=number' if cell[:1].isdigit() else ''}>{escape(cell)}</td>" for cell in row)
        rows += f"<tr>{''.join(cells)}</tr>"
    return f"<table>{rows}</table>"


def picture(ax: Axes, caption: str) -> str:
    """The figure of some axes as an image in the page, with a caption; the figure is closed."""
    figure = ax.figure.canvas.figure
    shown = f"<figure>{image(figure)}<figcaption>{escape(caption)}</figcaption></figure>"
    plt.close(figure)
    return shown


def write_page(path: str | os.PathLike[str], title: str, sections: Sequence[str]) -> None:
    """Writes the report, completely or not at all; replaces a file at ``path``."""
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{PAGE}</style></head>'
        f"<body><h1>{escape(title)}</h1>{''.join(sections)}</body></html>\n"
    )
    with pt.io.finalized_open(os.fspath(path), "b") as out:
        out.write(page.encode())
