"""Pictures: graphs of documents and of words, relation weights, states, and where a score came from.

Every function draws into the axes that it is given, or into new ones, and returns them; none needs a display.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from pyterrier_graph.graphs import TypedGraph
    from pyterrier_graph.rerank.lgre import LearntWordGraph

# Readable on white and on black, and told apart by people who do not see all colours (after Okabe and Ito).
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#999933", "#882255")
NEUTRAL = "#808080"
TITLE_WIDTH = 80


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
    ax.set_title(_lines(title), loc="left", fontsize=10)
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
    ax.set_title(_lines(title), loc="left", fontsize=10)
    names = {relation: relation or "further away" for relation in relations}
    handles = [Line2D([], [], color=colour[r], lw=6, label=names[r]) for r in relations]
    ax.legend(handles=handles, fontsize=8, loc="lower right")
    return ax


def word_graph(
    explanation: LearntWordGraph, *, layer: int = -1, ax: Axes | None = None, title: str = "", most: int = 40
) -> Axes:
    """Draws a learnt word graph as a matrix: how much each word (row) hears from each word (column; paper 004, Fig. 4).

    Lines divide query and document, words that both have are framed, and what is not linked is grey. Colours have a
    logarithmic scale, for a word of the query hears many more words than one of the document.

    Args:
        explanation: What ``LGReReranker.explain()`` returns.
        layer: Which of ``explanation.layers``, by position.
        ax: Where to draw.
        title: Title; by default the layer and the score.
        most: Number of words after which the document is cut: those that query words hear most are drawn.

    Raises:
        IndexError: If there is no such layer.
    """
    adjacency, segments = explanation.adjacency[layer], explanation.segments
    query, words = np.flatnonzero(segments == 0), np.flatnonzero(segments == 1)
    heard = adjacency[np.ix_(query, words)].max(0, initial=0.0)
    shown = np.sort(words[np.argsort(-heard, kind="stable")[:most]])
    chosen = np.concatenate([query, shown])
    part = np.ma.masked_equal(adjacency[np.ix_(chosen, chosen)], 0)
    size = 2.5 + 0.22 * len(chosen)
    ax = ax if ax is not None else plt.subplots(figsize=(size + 1, size), layout="constrained")[1]
    colours = plt.get_cmap("viridis").with_extremes(bad="#DDDDDD")
    largest = float(part.max())  # there is one: every word hears itself or all others
    image = ax.imshow(part, cmap=colours, norm=LogNorm(max(float(part.min()), largest / 1000), largest, clip=True))
    names = [explanation.tokens[place] for place in chosen]
    ax.set_xticks(range(len(chosen)), names, rotation=90, fontsize=8)
    ax.set_yticks(range(len(chosen)), names, fontsize=8)
    border = len(query) - 0.5
    ax.axhline(border, color="black")
    ax.axvline(border, color="black")
    for row, column in np.argwhere(np.array(names[: len(query)])[:, None] == np.array(names[len(query) :])):
        for corner in ((len(query) + column - 0.5, row - 0.5), (row - 0.5, len(query) + column - 0.5)):
            ax.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=COLOURS[4], linewidth=2))
    ax.set_ylabel("words")
    ax.set_xlabel("heard words")
    ticks = LogLocator(subs=(1, 2, 5))
    ax.figure.colorbar(image, ax=ax, shrink=0.7, label="share", ticks=ticks, format="{x:g}").minorticks_off()
    cut = f", {len(shown)} of {len(words)} document words" if len(shown) < len(words) else ""
    named = f"layer {explanation.layers[layer]}, score {explanation.score:.3g}"
    ax.set_title(_lines((title or named) + cut), loc="left", fontsize=10)
    return ax


def state_map(
    states: pd.DataFrame,
    qrels: pd.DataFrame,
    *,
    method: Literal["tsne", "pca"] = "tsne",
    seed: int = 0,
    ax: Axes | None = None,
    title: str = "",
) -> Axes:
    """Draws states of queries and documents in two dimensions, a star at the mean of each group (paper 004, Fig. 5).

    States are brought to length 1 first, for the distances that were learnt are between their directions.

    Args:
        states: What ``LGReReranker.states()`` returns, for the documents of one query or of several.
        qrels: ``qid, docno, label``: a document with a label above 0 is relevant.
        method: ``'tsne'`` (the paper) or ``'pca'``.
        seed: Seed of t-SNE.
        ax: Where to draw.
        title: Title, the query for example.

    Raises:
        ValueError: If there are fewer than three states, or the method is unknown.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from sklearn.preprocessing import normalize

    if len(states) < 3:
        raise ValueError(f"a map needs three states at least, there are {len(states)}")
    if method not in ("tsne", "pca"):
        raise ValueError(f"method must be 'tsne' or 'pca', got {method!r}")
    perplexity = min(30.0, (len(states) - 1) / 3)
    reduce = PCA(2) if method == "pca" else TSNE(2, perplexity=perplexity, init="pca", random_state=seed)
    points = reduce.fit_transform(normalize(np.stack(states["state"])))
    relevant = set(zip(*(qrels.loc[qrels["label"] > 0, key].astype(str) for key in ("qid", "docno")), strict=True))
    pairs = zip(states["qid"].astype(str), states["docno"].astype(str), strict=True)
    is_relevant = np.array([pair in relevant for pair in pairs])
    is_query = (states["side"] == "query").to_numpy()
    groups = {
        "query": is_query,
        "relevant document": ~is_query & is_relevant,
        "other document": ~is_query & ~is_relevant,
    }
    ax = ax if ax is not None else plt.subplots(figsize=(7, 5), layout="constrained")[1]
    for (name, rows), marker, colour in zip(groups.items(), "^os", COLOURS, strict=False):
        if not rows.any():
            continue
        x, y = points[rows].T
        ax.scatter(x, y, marker=marker, color=colour, s=22, alpha=0.6, linewidth=0, label=name)
        ax.scatter(x.mean(), y.mean(), marker="*", color=colour, s=200, edgecolor="black", zorder=3)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.legend(fontsize=8)
    ax.set_title(_lines(title), loc="left", fontsize=10)
    return ax


def _lines(title: str) -> str:
    """A query can be longer than a picture is wide."""
    return textwrap.fill(title, TITLE_WIDTH)


def _first_three(tokens: pd.Series) -> str:
    return " ".join(list(dict.fromkeys(tokens))[:3])


def _cycle(colours: tuple[str, ...], count: int) -> Iterable[str]:
    return (colours[number % len(colours)] for number in range(count))


def _arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], colour: str, bend: float) -> None:
    style = {"arrowstyle": "->", "color": colour, "alpha": 0.7, "connectionstyle": f"arc3,rad={bend}", "shrinkB": 5}
    ax.annotate("", end, start, arrowprops=style, zorder=2)
