"""HTML in notebooks: cards of objects, and the colors, names and bars that explanations and plots share."""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pyterrier as pt

# Readable on white and on black, and distinct for color-blind readers (after Okabe and Ito).
COLORS = ("#1F83C8", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#999933", "#AA4499")
NEUTRAL = "#808080"
PLUS, MINUS = COLORS[0], COLORS[4]  # what adds to a score, and what takes from it
TEXT = 9  # points, of the smallest text
WIDEST = 9.0  # inches, of a picture: what a notebook shows in a window of 1100 pixels

# Texts have the color of the page around them, so that a page may be light or dark; only marks and areas have colors.
CSS = f"""
.ptg {{ font-size: 14px; line-height: 1.5; max-width: 100%; overflow-wrap: anywhere; }}
.ptg * {{ box-sizing: border-box; }}
.ptg table {{ margin: 4px 0; width: auto; color: inherit; border-collapse: collapse; }}
.ptg th, .ptg td {{ padding: 1px 10px 1px 0; text-align: left; vertical-align: top; }}
.ptg th {{ font-weight: normal; }}
.ptg code {{ display: block; background: none; color: inherit; white-space: pre-wrap; }}
.ptg .title {{ font-weight: bold; }}
.ptg .quiet {{ opacity: 0.85; font-size: 12px; }}
.ptg .block {{ border-left: 4px solid {NEUTRAL}; padding: 2px 0 2px 10px; margin: 8px 0; }}
.ptg .bar {{ display: inline-block; height: 10px; border-radius: 2px; vertical-align: middle; }}
.ptg .number {{ font-variant-numeric: tabular-nums; }}
""".strip()

BAR = 120  # pixels, of the longest bar

# Relations and paths, described by what a passage reaches along them.
LABELS = {
    "own": "the passage itself",
    "SELF": "the passage itself",
    "": "further away",
    "order": "next passage",
    "order_i": "previous passage",
    "structural": "section around it",
    "structural_i": "part of the section",
    "structural/structural_i": "sibling",
    "title": "section title",
    "title_i": "under the title",
    "title/title": "title one level up",
    "title/title_i": "under the same title",
    "title/title/title_i": "under the title one level up",
    "titles": "titles above",
    "internal": "linked passage",
    "internal_i": "passage that links here",
    "external": "cited document",
    "external_i": "citing passage",
    "retrieved": "query that found it",
    "relevant": "query that it answers",
    "document": "document",
}


class HtmlCard(NamedTuple):
    """What a notebook shows of an object.

    Attributes:
        facts: Rows of a table. A dictionary has weights by relation, a tuple has relations.
        title: By default the class of a transformer, or the ``repr`` of another object.
    """

    facts: Mapping[str, Any]
    title: str = ""


class HtmlDisplay:
    """Base of classes that notebooks display: a table, and a transformer's schematic."""

    @abstractmethod
    def _view(self) -> HtmlCard:
        """Returns the content of the card."""

    def _repr_html_(self) -> str:
        import pyterrier as pt

        facts, title = self._view()
        if isinstance(self, pt.Transformer):
            return schematic(self) + card(facts, title or type(self).__name__)
        return card(facts, title or repr(self))


def card(facts: Mapping[str, Any], title: str) -> str:
    """A table of facts about an object."""
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{_formatted(fact)}</td></tr>"
        for name, fact in facts.items()
    )
    return styled(f'<div class="title">{escape(title)}</div><table><tbody>{rows}</tbody></table>')


def styled(content: str) -> str:
    """HTML with the style sheet, which needs no network and has the text color of the page around it."""
    return f'<div class="ptg"><style>{CSS}</style>{content}</div>'


def schematic(transformer: pt.Transformer) -> str:
    """PyTerrier's drawing of a transformer, or its parts as text if drawing fails, for instance without a network."""
    import pyterrier as pt

    if os.environ.get("PYTERRIER_DISABLE_NOTEBOOK_SCHEMATIC", "0") == "1":
        return ""
    try:
        drawn = pt.schematic.draw(transformer, outer_class="repr_html")
    except Exception:  # showing an object must not raise, whatever fails when PyTerrier inspects it
        return styled(f"<code>{escape(pipeline_name(transformer))}</code>")
    # as wide as it needs, since what is centered and too wide cannot be scrolled to on the left
    return f'<div style="overflow-x: auto"><div style="min-width: max-content">{drawn}</div></div>'


def pipeline_name(transformer: Any) -> str:
    """A short name of a pipeline: the classes of its transformers, or what these are as ``str``."""
    import pyterrier as pt

    if isinstance(transformer, pt.Compose):
        stages: Any = pt.inspect.subtransformers(transformer)["transformers"]
        return " >> ".join(map(pipeline_name, stages))
    own = type(transformer).__str__ is not object.__str__
    return str(transformer) if own else type(transformer).__name__


def relation(path: str) -> str:
    """A relation in words, with its path as the tooltip."""
    return f'<span title="{escape(path)}">{escape(in_words(path))}</span>'


def bar(score: float, largest: float) -> str:
    """A number as a bar and in digits."""
    width = math.ceil(BAR * min(1.0, abs(score) / largest)) if largest else 0
    color = PLUS if score >= 0 else MINUS
    drawn = f'<span class="bar" style="width: {width}px; background: {color}"></span>'
    space = f'<span style="display: inline-block; width: {BAR}px">{drawn}</span>'
    return f'{space} <span class="number">{score:+.3f}</span>'


def _formatted(fact: Any) -> str:
    if isinstance(fact, Mapping):  # weights of relations
        weights = [f"{relation(name)}: {weight:.3g}" for name, weight in fact.items()]
        return ", ".join(weights) or "none"
    if isinstance(fact, tuple):  # relations
        return ", ".join(map(relation, fact)) or "none"
    if type(fact) is int:
        return f"{fact:,}"
    return escape(str(fact))


def in_words(path: str) -> str:
    """Describes a relation or path by what a passage reaches along it; relations of other names keep their names.

    ``'order_i'`` is "previous passage", ``'external/order'`` "next passage of cited document".
    """
    if path in LABELS:
        return LABELS[path]
    if "/" in path:
        return " of ".join(in_words(step) for step in reversed(path.split("/")))
    return f"{path.removesuffix('_i')}, inverse" if path.endswith("_i") else path


def colors_of(names: Iterable[str]) -> dict[str, str]:
    """A color for each distinct name, in order of appearance; colors repeat if there are more names than colors."""
    return {name: COLORS[number % len(COLORS)] for number, name in enumerate(dict.fromkeys(names))}


def shortened(text: str, width: int = 48) -> str:
    """A text without its middle, since ids differ at their ends."""
    text = " ".join(text.split())
    if len(text) <= width:
        return text
    return f"{text[: (width - 1) * 2 // 3]}…{text[-((width - 1) // 3) :]}"
