"""Where a score, and a representation, came from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from pyterrier_graph.plots.labels import write_beside
from pyterrier_graph.plots.style import check_frame, colors_of, legend_beside, new_axes, shortened, titled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def relation_weights(table: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draws the importance of each relation per layer (the paper's Table 6).

    Args:
        table: What ``HGATReranker.relation_weights()`` returns.
        ax: Where to draw.

    Raises:
        ValueError: If the table is empty.
    """
    check_frame(table, [], "what HGATReranker.relation_weights() returns")
    bars = 0.2 * len(table) * (table.shape[1] + 1)
    ax = ax if ax is not None else new_axes(8, max(2.5, 1 + bars))
    colors = colors_of(table.columns)
    turned = table.iloc[::-1, ::-1]  # bars are drawn from below to above
    turned.plot.barh(ax=ax, color=[colors[layer] for layer in turned.columns], legend=False)
    legend_beside(ax, colors)
    ax.set_xlabel("share")
    ax.set_ylabel("")
    titled(ax, "What a node listens to")
    return ax


def token_matches(explanation: pd.DataFrame, *, ax: Axes | None = None, title: str = "") -> Axes:
    """Draws where each query token found its match, one bar per token, colored by relation.

    Args:
        explanation: What ``GraphMaxSim.explain()`` returns.
        ax: Where to draw.
        title: Title, the query for example.

    Raises:
        ValueError: If a column is missing, or there are no rows.
    """
    check_frame(explanation, ["token", "relation", "node", "match", "score"], "what GraphMaxSim.explain() returns")
    beside = [f"{row.match}   ({shortened(row.node)})" for row in explanation.itertuples()]
    ax = _bars(ax, explanation["token"], explanation["score"], explanation["relation"], beside)
    ax.set_xlabel("part of the score")
    titled(ax, title)
    return ax


def contributions(explanation: pd.DataFrame, *, ax: Axes | None = None, title: str = "", most: int = 12) -> Axes:
    """Draws which nodes a contextualized passage's score came from, with the tokens that said most.

    Args:
        explanation: What ``HGATReranker.explain()`` returns.
        ax: Where to draw.
        title: Title, the query for example.
        most: Number of nodes shown.

    Raises:
        ValueError: If a column is missing, or there are no rows.
    """
    check_frame(explanation, ["node", "relation", "token", "contribution"], "what HGATReranker.explain() returns")
    by_node = explanation.groupby("node", sort=False).agg(
        contribution=("contribution", "sum"), relation=("relation", "first"), tokens=("token", _first_three)
    )
    by_node = by_node.reindex(by_node["contribution"].abs().sort_values(ascending=False).index)[:most]
    relations = by_node["relation"].replace("", "further away")
    ax = _bars(ax, by_node.index.map(shortened), by_node["contribution"], relations, by_node["tokens"])
    ax.set_xlabel("part of the score (gradient × input)")
    titled(ax, title)
    return ax


def passage_queries(explanation: pd.DataFrame, *, ax: Axes | None = None, title: str = "", most: int = 20) -> Axes:
    """Draws which training queries a passage's representation listened to, by attention weight.

    Args:
        explanation: ``qid, query, weight, edge``: a row per query of the passage, ``edge`` being ``'relevant'`` where the
            passage is judged relevant to it and ``'retrieved'`` where it was found for it.
        ax: Where to draw.
        title: Title, the passage for example.
        most: Number of queries shown: those with the largest weights.

    Raises:
        ValueError: If a column is missing, or there are no rows.
    """
    check_frame(explanation, ["qid", "query", "weight", "edge"], "a row per query that the passage has")
    shown = explanation.sort_values("weight", ascending=False, kind="stable")[:most]
    names = [f"{shortened(row.query)}  [{row.qid}]" for row in shown.itertuples()]
    ax = _bars(ax, names, shown["weight"], shown["edge"], [f"{weight:.3f}" for weight in shown["weight"]])
    ax.set_xlabel("attention weight")
    cut = f"{len(shown)} of {len(explanation)} queries" if len(shown) < len(explanation) else ""
    titled(ax, ", ".join(part for part in (title, cut) if part))
    return ax


def _bars(ax: Axes | None, names: Iterable[str], lengths: pd.Series, kinds: pd.Series, beside: Iterable[str]) -> Axes:
    """Horizontal bars from above to below, colored by their kind, with a text beside each."""
    ax = ax if ax is not None else new_axes(10, 1.2 + 0.32 * len(lengths))
    colors = colors_of(sorted(set(kinds)))
    place = -np.arange(len(lengths))
    ax.barh(place, lengths, color=[colors[kind] for kind in kinds])
    ax.set_yticks(place, [*names], parse_math=False)
    ax.set_ylim(-len(lengths) + 0.3, 0.7)
    legend_beside(ax, colors)
    write_beside(ax, lengths.clip(lower=0).to_numpy(), place, [*beside])
    return ax


def _first_three(tokens: pd.Series) -> str:
    return " ".join(list(dict.fromkeys(tokens))[:3])
