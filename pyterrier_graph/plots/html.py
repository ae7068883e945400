"""HTML of objects in notebooks: a table, a small picture, and code to call next."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyterrier as pt

# Readable on white and on black, and distinct for color-blind readers (after Okabe and Ito).
COLORS = ("#1F83C8", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#999933", "#AA4499")
NEUTRAL = "#808080"

_CELL = "padding: 1px 10px 1px 0; text-align: left; vertical-align: top"


def value(title: str, sizes: Mapping[str, Any], *, calls: Sequence[str] = (), picture: str = "") -> str:
    """Makes HTML that needs neither a network nor a style sheet, and has the colors of the page around it.

    ``sizes`` are rows of a table: whole numbers get thousands separators, a dictionary has the weights of relations.
    ``calls`` is code that the user can call next. ``picture`` is HTML, which is not escaped; everything else is.
    """
    rows = "".join(
        f'<tr><th style="{_CELL}; font-weight: normal; opacity: 0.7">{escape(name)}</th>'
        f'<td style="{_CELL}">{escape(_formatted(size))}</td></tr>'
        for name, size in sizes.items()
    )
    following = "".join(
        f'<code style="display: block; background: none; color: inherit">{escape(call)}</code>' for call in calls
    )
    return (
        f'<div><div style="font-weight: bold">{escape(title)}</div>'
        '<div style="display: flex; flex-wrap: wrap; gap: 24px; align-items: flex-start">'
        f'<table style="margin: 4px 0; width: auto; color: inherit"><tbody>{rows}</tbody></table>'
        f'<div style="max-width: 100%; overflow-x: auto">{picture}</div></div>'
        + (f'<div><div style="opacity: 0.7">next:</div>{following}</div>' if calls else "")
        + "</div>"
    )


def schematic(transformer: pt.Transformer) -> str:
    """PyTerrier's drawing of a transformer; an empty text if PyTerrier cannot draw it."""
    import pyterrier as pt

    if os.environ.get("PYTERRIER_DISABLE_NOTEBOOK_SCHEMATIC", "0") == "1":
        return ""
    try:
        return pt.schematic.draw(transformer, outer_class="repr_html")
    except Exception:  # showing an object must not raise, whatever fails when PyTerrier inspects it
        return ""


def _formatted(size: Any) -> str:
    if isinstance(size, Mapping):  # weights of relations
        return ", ".join(f"{name}: {number:.3g}" for name, number in size.items()) or "none"
    return f"{size:,}" if isinstance(size, int) and not isinstance(size, bool) else str(size)
