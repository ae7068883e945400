"""HTML of objects in notebooks: a table, a small picture, code to call next, bars, legends and marked words."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from pyterrier_graph.graphs.relations import in_words
from pyterrier_graph.plots.style import CSS, MINUS, PLUS, marked_color
from pyterrier_graph.warning_categories import PyTerrierGraphWarning

if TYPE_CHECKING:
    import pyterrier as pt

BAR = 120  # pixels, of the longest bar
_failed: list[str] = []  # why PyTerrier could not draw, the first time


class Page:
    """HTML that a notebook shows, and the same as text."""

    def __init__(self, html: str, text: str) -> None:
        self.html, self.text = html, text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return self.html


def styled(content: str) -> str:
    """HTML with the style sheet, which needs no network and has the text color of the page around it."""
    return f'<div class="ptg"><style>{CSS}</style>{content}</div>'


def value(title: str, sizes: Mapping[str, Any], *, calls: Sequence[str] = (), picture: str = "") -> str:
    """The card of an object.

    ``sizes`` are rows of a table: whole numbers get thousands separators, a dictionary has the weights of relations, a
    tuple has relations. ``calls`` is code that the user can call next. ``picture`` is HTML, which is not escaped;
    everything else is.
    """
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{_formatted(size)}</td></tr>" for name, size in sizes.items())
    following = "".join(f"<code>{escape(call)}</code>" for call in calls)
    return styled(
        f'<div class="title">{escape(title)}</div><div class="row"><table><tbody>{rows}</tbody></table>'
        f'<div class="wide">{picture}</div></div>'
        + (f'<div><div class="quiet">next:</div>{following}</div>' if calls else "")
    )


def schematic(transformer: pt.Transformer) -> str:
    """PyTerrier's drawing of a transformer, which scrolls where it is wide; its parts as text where drawing fails.

    PyTerrier looks up its own classes in its documentation, which needs a network or the copy that it keeps for a day.
    Without, a warning says so, once, and no further attempt is made.
    """
    from urllib.error import URLError

    import pyterrier as pt
    from requests import RequestException

    if os.environ.get("PYTERRIER_DISABLE_NOTEBOOK_SCHEMATIC", "0") == "1":
        return ""
    if not _failed:
        try:
            drawn = pt.schematic.draw(transformer, outer_class="repr_html")
            # as wide as it needs, since what is centered and too wide cannot be scrolled to on the left
            return f'<div style="overflow-x: auto"><div style="min-width: max-content">{drawn}</div></div>'
        except (URLError, RequestException, TimeoutError) as error:
            _failed.append(type(error).__name__)
            warnings.warn(
                f"pipelines are shown as text: PyTerrier could not load its documentation's index ({_failed[0]})",
                PyTerrierGraphWarning,
                stacklevel=2,
            )
        except Exception:  # showing an object must not raise, whatever fails when PyTerrier inspects it
            return ""
    return styled(f"<code>{escape(repr(transformer))}</code>")


def pipeline(transformer: pt.Transformer) -> Page:
    """Shows a pipeline: PyTerrier's schematic, which scrolls where it is wide, or text where there is no network."""
    return Page(schematic(transformer) or styled(f"<code>{escape(repr(transformer))}</code>"), repr(transformer))


def relation(path: str, color: str = "") -> str:
    """A relation in words, with its path as the tooltip and, if wanted, a swatch of its color."""
    swatch = f'<span class="swatch" style="background: {color}"></span>' if color else ""
    return f'<span title="{escape(path)}">{swatch}{escape(in_words(path))}</span>'


def legend(colors: Mapping[str, str]) -> str:
    """Relations and their colors: swatches have the colors, the words that of the page."""
    return f'<div class="legend quiet">{"".join(relation(name, color) for name, color in colors.items())}</div>'


def bar(part: float, largest: float) -> str:
    """A number as a bar and in digits."""
    width = math.ceil(BAR * min(1.0, abs(part) / largest)) if largest else 0
    color = PLUS if part >= 0 else MINUS
    drawn = f'<span class="bar" style="width: {width}px; background: {color}"></span>'
    space = f'<span style="display: inline-block; width: {BAR}px">{drawn}</span>'
    return f'{space} <span class="number">{part:+.3f}</span>'


def marked(text: str, parts: Iterable[tuple[int, int, float]], largest: float, *, numbers: bool = True) -> str:
    """A text in which some spans, which do not overlap, are marked by how much each adds: start, end and number.

    The tooltip of a span has its number, unless ``numbers`` is False.
    """
    out, place = [], 0
    for start, end, part in sorted(parts):
        share = max(-1.0, min(1.0, part / largest)) if largest else 0.0
        kind = ' class="minus"' if part < 0 else ""
        style = f'style="background: {marked_color(share)}"' + (f' title="{part:+.3f}"' if numbers else "")
        out.append(f"{escape(text[place:start])}<mark{kind} {style}>{escape(text[start:end])}</mark>")
        place = end
    return "".join([*out, escape(text[place:])])


def _formatted(size: Any) -> str:
    if isinstance(size, Mapping):  # weights of relations
        return ", ".join(f"{relation(name)}: {number:.3g}" for name, number in size.items()) or "none"
    if isinstance(size, tuple):  # relations
        return ", ".join(map(relation, size)) or "none"
    return escape(f"{size:,}" if isinstance(size, int) and not isinstance(size, bool) else str(size))
