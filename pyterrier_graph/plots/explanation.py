"""What an explained score looks like: as HTML, as text, as a frame, and with a box for other queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from importlib import import_module
from typing import Any

import pandas as pd

from pyterrier_graph.graphs.relations import in_words
from pyterrier_graph.plots.html import bar, marked, relation, styled
from pyterrier_graph.plots.style import COLORS, NEUTRAL, colors_of
from pyterrier_graph.plots.words import Spans

SHOWN = 3  # sources of one part
LENGTH = 400  # characters of a neighbor's text; the passage itself is shown in full
SELF = "SELF"
NO_TEXT = "(no text)"
KEY = (
    "The stronger the color of a word, the more it adds; words that are underlined with dots take from the score. "
    "Punctuation and special tokens are in the numbers of the parts, and not marked."
)
KEY_WORDS = "The words that are marked are those of the query."


@dataclass(frozen=True)
class Source:
    """A text that a score comes from, with what its words add; words of the query only, if there are no numbers."""

    node: str
    text: str
    words: Spans = field(default_factory=list)
    numbers: bool = True


@dataclass(frozen=True)
class Part:
    """What one relation, one node of a relation, or one pipeline adds to a score."""

    relation: str
    number: float
    sources: tuple[Source, ...] = ()
    name: str = ""  # of a pipeline


class Explanation:
    """Why a passage has its score, which :func:`~pyterrier_graph.explain` returns; a notebook shows it.

    Where ipywidgets is installed, a notebook also has a box for another query.

    Attributes:
        query: The query.
        docno: The passage, or the document that was asked for.
        model: What the score is of.
        titles: The titles of the passage's sections.
        parts: The parts of the score.
        notes: What has to be known to read them.
        inner: Explanations of the pipelines that a hybrid combines.
    """

    def __init__(
        self,
        query: str,
        docno: str,
        model: str,
        parts: list[Part],
        *,
        titles: str = "",
        notes: tuple[str, ...] = (),
        inner: tuple[Explanation, ...] = (),
    ) -> None:
        self.query, self.docno, self.model, self.titles = query, docno, model, titles
        self.parts, self.notes, self.inner = parts, notes, inner
        self._again: Callable[[str], Explanation] | None = None

    @property
    def score(self) -> float:
        """The sum of the parts."""
        return float(sum(part.number for part in self.parts))

    @property
    def frame(self) -> pd.DataFrame:
        """A row per part: ``relation``, ``label`` (the relation in words), ``part``, ``node`` (ids) and ``text``."""
        rows = [
            {
                "relation": part.relation,
                "label": part.name or in_words(part.relation),
                "part": part.number,
                "node": " ".join(source.node for source in part.sources),
                "text": "\n".join(source.text for source in part.sources),
            }
            for part in self.parts
        ]
        return pd.DataFrame(rows, columns=["relation", "label", "part", "node", "text"])

    @property
    def html(self) -> str:
        """The explanation as HTML, which needs no network and no script."""
        return styled(self._html())

    def __repr__(self) -> str:
        lines = [f"{self.query} → {self.docno}: {self.score:.3f} ({self.model})"]
        lines += [f"  {self.titles}"] * bool(self.titles)
        for part in self.parts:
            lines.append(f"  {part.number:+.3f}  {part.name or in_words(part.relation)}")
            for source in part.sources[:SHOWN]:
                strongest = sorted(source.words, key=lambda word: -abs(word[2]))[:5]
                words = ", ".join(dict.fromkeys(source.text[start:end] for start, end, _ in strongest))
                text = " ".join(source.text.split())
                lines.append(f"          {text[:100]}{'…' * (len(text) > 100)}{f' [{words}]' if words else ''}")
        return "\n".join([*lines, *(str(one) for one in self.inner)])

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return self.html

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The HTML and the text, and the box for queries where there are widgets."""
        bundle: dict[str, Any] = {"text/html": self.html, "text/plain": repr(self)}
        try:
            widget = self.widget()
        except ImportError:
            return bundle
        made = widget._repr_mimebundle_() if hasattr(widget, "_repr_mimebundle_") else {}
        return {**(made or {}), **bundle}

    def widget(self) -> Any:
        """The explanation with a box for another query; needs ipywidgets."""
        ipywidgets: Any = import_module("ipywidgets")
        box = ipywidgets.Text(value=self.query, description="query", continuous_update=False)
        shown = ipywidgets.HTML(self.html)

        def ask(change: dict[str, Any]) -> None:
            try:
                shown.value = self._again(change["new"]).html if self._again else self.html
            except (KeyError, ValueError) as error:
                shown.value = styled(f"<div>{escape(str(error.args[0]))}</div>")

        box.observe(ask, "value")
        return ipywidgets.VBox([box, shown])

    def _html(self) -> str:
        largest = max((abs(part.number) for part in self.parts), default=0.0)
        strongest = max(
            (abs(word[2]) for part in self.parts for one in part.sources if one.numbers for word in one.words),
            default=0.0,
        )
        colors = colors_of(part.relation for part in self.parts if part.relation != SELF)
        blocks = "".join(_block(part, colors.get(part.relation, NEUTRAL), largest, strongest) for part in self.parts)
        marks = [source.numbers for part in self.parts for source in part.sources if source.words]
        keys = [KEY] * any(marks) + [KEY_WORDS] * (not all(marks))
        notes = "".join(f'<div class="quiet">{escape(note)}</div>' for note in (*keys, *self.notes))
        return (
            f'<div class="title">{escape(self.query)} → {escape(self.docno)}</div>'
            f"<div>{escape(self.model)}: {self.score:.3f}</div>"
            f'<div class="quiet">{escape(self.titles)}</div>{blocks}{notes}'
            + "".join(f'<div class="block" style="border-color: {COLORS[1]}">{one._html()}</div>' for one in self.inner)
        )


def _block(part: Part, color: str, largest: float, strongest: float) -> str:
    name = escape(part.name) if part.name else relation(part.relation, color)
    texts = "".join(_source(source, strongest, part.relation == SELF) for source in part.sources[:SHOWN])
    more = f'<div class="quiet">and {len(part.sources) - SHOWN} more</div>' if len(part.sources) > SHOWN else ""
    head = f"<div>{bar(part.number, largest)} {name}</div>"
    return f'<div class="block" style="border-color: {color}">{head}{texts}{more}</div>'


def _source(source: Source, strongest: float, whole: bool) -> str:
    end = len(source.text) if whole else LENGTH
    words = [word for word in source.words if word[1] <= end]
    drawn = marked(source.text[:end], words, strongest if source.numbers else 2.0, numbers=source.numbers)
    drawn += "…" * (end < len(source.text))
    return f'<div title="{escape(source.node)}">{drawn or NO_TEXT}</div>'
