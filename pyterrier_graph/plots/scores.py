"""The parts of a score, and of a representation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pyterrier_graph.graphs.relations import in_words
from pyterrier_graph.plots.axes import described, drawable, legend_beside, listed, new_axes, titled, with_path
from pyterrier_graph.plots.style import NEUTRAL, TEXT, colors_of, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GAP = 6  # points between a bar and its text
SPECIAL = re.compile(r"\[[^\[\]]*\]|<[^<>]*>")  # such as [CLS], [MASK] or </s>


def relation_weights(source: Any, *, ax: Axes | None = None, title: str = "Weights of relations") -> Axes:
    """Draws the weight of each relation in a graph model; for HGATReranker, per layer (Table 6 of the paper).

    ``source`` is a GraphMean, GraphMaxSim, GNNEncoder or HGATReranker, a weight per relation, or what
    ``HGATReranker.relation_weights()`` returns.
    """
    if callable(method := getattr(source, "relation_weights", None)):
        source = method()
    elif not isinstance(source, Mapping | pd.DataFrame):
        source = getattr(source, "weights", None)
    if isinstance(source, Mapping):
        source = pd.DataFrame({"weight": source}, dtype=float)
    needed = "a graph model with relations, or a weight per relation"
    if not isinstance(source, pd.DataFrame):
        raise ValueError(f"relation_weights draws a model's weights: give {needed}")
    source = drawable(source, [], needed, numbers=source.columns)
    ax = ax if ax is not None else new_axes(8, max(2.5, 1 + 0.22 * len(source) * (source.shape[1] + 1)))
    colors = colors_of(source.columns)
    table = source.iloc[::-1, ::-1]  # barh draws from bottom to top
    table = table.rename(index={name: with_path(name) for name in table.index})
    table.plot.barh(ax=ax, color=[colors[column] for column in table.columns], legend=False)
    ax.set_yticks(ax.get_yticks(), [*table.index], fontsize=TEXT, parse_math=False)
    if source.shape[1] > 1:
        legend_beside(ax, colors)
    ax.set(xlabel="weight", ylabel="")
    titled(ax, title)
    texts = (f"{column}: {listed(map(in_words, source.index), source[column])}" for column in source.columns)
    described(ax, f"Bars of the weights of relations. {' '.join(texts)}")
    return ax


def token_matches(
    explanation: pd.DataFrame, *, ax: Axes | None = None, title: str = "", most: int = 24, all_tokens: bool = False
) -> Axes:
    """Draws what ``GraphMaxSim.explain()`` returns: a bar for the match of each query token, colored by relation.

    At most ``most`` bars are drawn, of the tokens that add most, in the order of the query. One more bar has the sum of
    all other tokens, to which punctuation and special tokens such as [CLS] belong unless ``all_tokens``.
    """
    columns = ["token", "relation", "node", "match", "score"]
    explanation = drawable(
        explanation, columns, "what GraphMaxSim.explain() returns", numbers=["score"], texts=["token"]
    )
    shown = explanation[explanation["token"].map(is_word)] if not all_tokens else explanation
    shown = shown.loc[shown["score"].abs().sort_values(ascending=False, kind="stable").index[:most]].sort_index()
    others = explanation.drop(shown.index)
    names, lengths, relations = ([*shown[column]] for column in ("token", "score", "relation"))
    beside = [f"{row.match}   ({shortened(str(row.node), 32)})" for row in shown.itertuples()]
    if len(others):
        names, lengths = [*names, f"{len(others)} other tokens"], [*lengths, others["score"].sum()]
        relations, beside = [*relations, None], [*beside, shortened(" ".join(others["token"]), 32)]
    ax = _bars(ax, names, pd.Series(lengths, dtype=float), pd.Series(relations, dtype=object), beside)
    ax.set_xlabel("part of the score")
    titled(ax, title)
    described(ax, f"Bars of what each query token adds to the score. {title} {listed(names, lengths)}")
    return ax


def contributions(
    explanation: pd.DataFrame,
    *,
    ax: Axes | None = None,
    title: str = "",
    most: int = 12,
    all_tokens: bool = False,
) -> Axes:
    """Draws what ``HGATReranker.explain()`` returns: how much a passage's score comes from each node.

    At most ``most`` nodes are drawn, each with its three strongest words; ``all_tokens`` counts punctuation and special
    tokens such as [CLS] as words.
    """
    columns, source = ["node", "relation", "token", "contribution"], "what HGATReranker.explain() returns"
    explanation = drawable(explanation, columns, source, numbers=["contribution"], texts=["node", "token"])
    by_node = explanation.groupby("node", sort=False).agg(
        contribution=("contribution", "sum"), relation=("relation", "first")
    )
    by_node = by_node.reindex(by_node["contribution"].abs().sort_values(ascending=False).index)[:most]
    named = explanation if all_tokens else explanation[explanation["token"].map(is_word)]
    strongest = named.groupby("node", sort=False)["token"].unique().str[:3].map(" ".join)
    tokens = strongest.reindex(by_node.index).fillna("")
    lengths = by_node["contribution"]
    ax = _bars(ax, by_node.index.map(shortened), lengths, by_node["relation"], tokens)
    ax.set_xlabel("part of the score (gradient × input)")
    titled(ax, title)
    described(ax, f"Bars of what each node adds to the score. {title} {listed(by_node.index, lengths)}")
    return ax


def passage_queries(explanation: pd.DataFrame, *, ax: Axes | None = None, title: str = "", most: int = 20) -> Axes:
    """Draws what ``explain()`` of GraphMean or GNNEncoder returns: what a passage's vector aggregates from.

    A bar shows the weight of a query or a node, in the color of its relation. At most ``most`` rows are drawn: those
    with the largest weights.
    """
    source = "what explain() of GraphMean or GNNEncoder returns"
    columns = ["qid", "query", "weight", "relation"]
    explanation = drawable(explanation, columns, source, numbers=["weight"], texts=["query"])
    shown = explanation.sort_values("weight", ascending=False, kind="stable")[:most]
    names = [f"{shortened(row.query)}  [{row.qid}]" for row in shown.itertuples()]
    ax = _bars(ax, names, shown["weight"], shown["relation"], [f"{weight:.3f}" for weight in shown["weight"]])
    ax.set_xlabel("weight")
    cut = f"{len(shown)} of {len(explanation)}" if len(shown) < len(explanation) else ""
    titled(ax, ", ".join(part for part in (title, cut) if part))
    described(ax, f"Bars of the weights of what a passage aggregates from. {title} {listed(names, shown['weight'])}")
    return ax


def is_word(token: str) -> bool:
    """Whether a token is a word or a part of one, neither punctuation nor special."""
    return not SPECIAL.fullmatch(token) and any(character.isalnum() for character in token)


def _bars(ax: Axes | None, names: Iterable[str], lengths: pd.Series, kinds: pd.Series, beside: Iterable[str]) -> Axes:
    """Horizontal bars from top to bottom, colored by relation (no text: gray), with a text beside each."""
    ax = ax if ax is not None else new_axes(9, 1.2 + 0.32 * len(lengths))
    kinds = kinds.where([isinstance(kind, str) for kind in kinds], None)
    colors = colors_of(sorted({*kinds} - {None}))
    place = -np.arange(len(lengths))
    ax.barh(place, lengths, color=[colors.get(kind, NEUTRAL) for kind in kinds])
    ax.set_yticks(place, [*names], fontsize=TEXT, parse_math=False)
    ax.set_ylim(-len(lengths) + 0.3, 0.7)
    legend_beside(ax, {with_path(kind): color for kind, color in colors.items()})
    ends = lengths.clip(lower=0).to_numpy()
    style: dict[str, Any] = {"textcoords": "offset points", "va": "center", "parse_math": False, "in_layout": False}
    written = [
        ax.annotate(text, (x, y), xytext=(GAP, 0), fontsize=TEXT, **style)
        for text, x, y in zip(beside, ends, place, strict=True)
    ]
    # The axes are widened until all texts fit.
    figure = ax.figure.canvas.figure
    figure.draw_without_rendering()  # sets the positions in pixels
    lowest, highest = ax.get_xlim()
    width = ax.get_window_extent().width
    free = width - np.array([text.get_window_extent().width for text in written]) - 2 * GAP * figure.dpi / 72
    needed = (ends - lowest) * width / np.maximum(free, width / 4)
    ax.set_xlim(lowest, max(highest, lowest + needed.max()))
    return ax
