"""Pictures: a document's graph, relation weights, and where a score came from.

Every function draws into the axes that it is given, or into new ones, and returns them; none needs a display.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from pyterrier_graph.graphs import TypedGraph

# Readable on white and on black, and told apart by people who do not see all colours (after Okabe and Ito).
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#999933", "#882255")
NEUTRAL = "#808080"


def document_graph(graph: TypedGraph, docno: str, *, ax: Axes | None = None, most: int = 30) -> Axes:
    """Draws the graph of one document: sections as circles, passages as squares (paper 003, Fig. 3).

    Reading order runs downwards, depth to the right; what the document refers to stands at the right margin.
    A relation and its inverse are one line.

    Args:
        graph: The graph.
        docno: The document.
        ax: Where to draw.
        most: Number of nodes after which the document is cut, so that texts can be read.

    Raises:
        KeyError: If the document is not in the graph.
    """
    document = int(graph.document_of([docno])[0])
    start, end = (int(number) for number in graph.node_offsets[document : document + 2])
    nodes = np.arange(start, min(end, start + most))
    depth = np.zeros(len(nodes))
    for place, parent in enumerate(graph.parent[nodes]):
        depth[place] = 0 if parent < 0 else depth[parent - start] + 1
    position = {int(node): (float(depth[place]), -float(place)) for place, node in enumerate(nodes)}
    margin = depth.max() + 4
    ax = ax if ax is not None else plt.subplots(figsize=(10, 1.5 + 0.3 * len(nodes)), layout="constrained")[1]
    relations = graph.relations[::2]  # each is followed by its inverse
    drawn = []
    abroad: dict[int, int] = {}
    for relation, colour in zip(relations, _cycle(COLOURS, len(relations)), strict=True):
        rows, targets = graph.neighbours(nodes, relation)
        for source, target in zip(nodes[rows].tolist(), targets.tolist(), strict=True):
            if target not in position:
                if start <= target < end:
                    continue
                place = abroad.setdefault(target, len(abroad))
                position[target] = (margin, -1.5 * place)
            _arrow(ax, position[source], position[target], colour, bend=0.0 if relation == "structural" else 0.35)
        if len(rows):
            drawn.append(Line2D([], [], color=colour, label=relation))
    own = graph.texts(nodes)
    for node, text in zip(nodes.tolist(), own, strict=True):
        passage = graph.node_type[node] == 0
        ax.plot(*position[node], marker="s" if passage else "o", color=NEUTRAL, markersize=8, zorder=3)
        ax.annotate(
            textwrap.shorten(text, 60, placeholder=" …") or "(no title)",
            position[node],
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            fontweight="normal" if passage else "bold",
            zorder=4,
        )
    for node, label in zip(abroad, graph.docnos_of(graph.document[list(abroad)]) if abroad else [], strict=True):
        ax.plot(*position[node], marker="o", color=NEUTRAL, fillstyle="none", markersize=8, zorder=3)
        ax.annotate(label, position[node], xytext=(9, 0), textcoords="offset points", va="center", fontsize=8)
    drawn += [
        Line2D([], [], color=NEUTRAL, marker="o", linestyle="", label="section"),
        Line2D([], [], color=NEUTRAL, marker="s", linestyle="", label="passage"),
    ]
    ax.legend(handles=drawn, loc="lower right", fontsize=8)
    cut = f", first {len(nodes)} of {end - start} nodes" if end - start > len(nodes) else ""
    ax.set_title(f"{docno}{cut}")
    ax.set_xlim(-0.5, margin + 2.5)
    ax.set_ylim(-max(len(nodes), 1.5 * len(abroad)) - 0.5, 1)
    ax.axis("off")
    return ax


def relation_weights(table: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draws the importance of each relation per layer (the paper's Table 6).

    Args:
        table: What ``HGATReranker.relation_weights()`` returns.
        ax: Where to draw.
    """
    ax = ax if ax is not None else plt.subplots(figsize=(8, 4), layout="constrained")[1]
    table[::-1].plot.barh(ax=ax, color=COLOURS[: table.shape[1]])
    ax.set_xlabel("share")
    ax.set_ylabel("")
    ax.set_title("What a node listens to")
    return ax


def token_matches(explanation: pd.DataFrame, *, ax: Axes | None = None, title: str = "") -> Axes:
    """Draws where each query token found its match, one bar per token, coloured by relation.

    Args:
        explanation: What ``GraphMaxSim.explain()`` returns.
        ax: Where to draw.
        title: Title, the query for example.
    """
    ax = ax if ax is not None else plt.subplots(figsize=(9, 1.2 + 0.32 * len(explanation)), layout="constrained")[1]
    relations = list(dict.fromkeys(explanation["relation"]))
    colour = dict(zip(relations, _cycle(COLOURS, len(relations)), strict=True))
    place = -np.arange(len(explanation))
    ax.barh(place, explanation["score"], color=[colour[relation] for relation in explanation["relation"]])
    ax.set_yticks(place, explanation["token"])
    widest = max(float(explanation["score"].max()), 0.1)
    for y, row in zip(place, explanation.itertuples(), strict=True):
        ax.annotate(f" {row.match}   ({row.node})", (max(row.score, 0), y), va="center", fontsize=8)
    ax.set_xlim(min(0, float(explanation["score"].min())), widest * 1.6)
    ax.set_xlabel("part of the score")
    ax.set_title(title, loc="left", fontsize=10)
    handles = [Line2D([], [], color=colour[r], lw=6, label=r) for r in relations]
    ax.legend(handles=handles, fontsize=8, loc="lower right")
    return ax


def contributions(explanation: pd.DataFrame, *, ax: Axes | None = None, title: str = "", most: int = 12) -> Axes:
    """Draws which nodes a contextualised passage's score came from, with the tokens that said most.

    Args:
        explanation: What ``HGATReranker.explain()`` returns.
        ax: Where to draw.
        title: Title, the query for example.
        most: Number of nodes shown.
    """
    by_node = explanation.groupby("node", sort=False).agg(
        contribution=("contribution", "sum"), relation=("relation", "first"), tokens=("token", _first_three)
    )
    by_node = by_node.reindex(by_node["contribution"].abs().sort_values(ascending=False).index)[:most]
    ax = ax if ax is not None else plt.subplots(figsize=(9, 1.2 + 0.35 * len(by_node)), layout="constrained")[1]
    relations = list(dict.fromkeys(by_node["relation"]))
    colour = dict(zip(relations, _cycle(COLOURS, len(relations)), strict=True))
    place = -np.arange(len(by_node))
    ax.barh(place, by_node["contribution"], color=[colour[relation] for relation in by_node["relation"]])
    ax.set_yticks(place, by_node.index)
    for y, row in zip(place, by_node.itertuples(), strict=True):
        ax.annotate(f" {row.tokens}", (max(row.contribution, 0), y), va="center", fontsize=8)
    ax.margins(x=0.3)
    ax.set_xlabel("part of the score (gradient × input)")
    ax.set_title(title, loc="left", fontsize=10)
    names = {relation: relation or "further away" for relation in relations}
    handles = [Line2D([], [], color=colour[r], lw=6, label=names[r]) for r in relations]
    ax.legend(handles=handles, fontsize=8, loc="lower right")
    return ax


def _first_three(tokens: pd.Series) -> str:
    return " ".join(list(dict.fromkeys(tokens))[:3])


def _cycle(colours: tuple[str, ...], count: int) -> Iterable[str]:
    return (colours[number % len(colours)] for number in range(count))


def _arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], colour: str, bend: float) -> None:
    style = {"arrowstyle": "->", "color": colour, "alpha": 0.7, "connectionstyle": f"arc3,rad={bend}", "shrinkB": 5}
    ax.annotate("", end, start, arrowprops=style, zorder=2)
