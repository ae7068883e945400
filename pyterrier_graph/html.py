"""HTML in notebooks: cards of objects, and the names and colors that explanations and plots share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from html import escape
from typing import Any, NamedTuple

PLUS, MINUS = "#1F83C8", "#D55E00"  # what adds to a score, and what takes from it

# Texts have the color of the page around them, so that a page may be light or dark.
CSS = """
.ptg { font-size: 14px; line-height: 1.5; overflow-wrap: anywhere; }
.ptg table { margin: 4px 0; width: auto; border-collapse: collapse; }
.ptg th, .ptg td { padding: 1px 10px 1px 0; text-align: left; vertical-align: top; font-weight: normal; }
""".strip()

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
    """

    facts: Mapping[str, Any]


class HtmlDisplay:
    """Base of classes that notebooks display as a table."""

    @abstractmethod
    def _view(self) -> HtmlCard:
        """Returns the content of the card."""

    def _repr_html_(self) -> str:
        return card(self._view().facts, repr(self))


def card(facts: Mapping[str, Any], title: str) -> str:
    """A table of facts about an object, which needs no network."""
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(_formatted(fact))}</td></tr>"
        for name, fact in facts.items()
    )
    table = f"<b>{escape(title)}</b><table><tbody>{rows}</tbody></table>"
    return f'<div class="ptg"><style>{CSS}</style>{table}</div>'


def _formatted(fact: Any) -> str:
    if isinstance(fact, Mapping):  # weights of relations
        weights = [f"{in_words(name)}: {weight:.3g}" for name, weight in fact.items()]
        return ", ".join(weights) or "none"
    if isinstance(fact, tuple):  # relations
        return ", ".join(map(in_words, fact)) or "none"
    if type(fact) is int:  # no bool
        return f"{fact:,}"
    return str(fact)


def in_words(path: str) -> str:
    """Describes a relation or path by what a passage reaches along it; relations of other names keep their names.

    ``'order_i'`` is "previous passage", ``'external/order'`` "next passage of cited document".
    """
    if path in LABELS:
        return LABELS[path]
    if "/" in path:
        steps = reversed(path.split("/"))
        return " of ".join(in_words(step) for step in steps)
    if path.endswith("_i"):
        return f"{path.removesuffix('_i')}, inverse"
    return path
