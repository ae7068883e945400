"""Plots of graphs of documents and of words."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm, to_rgba
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator

from pyterrier_graph.graphs.relations import in_words
from pyterrier_graph.plots.axes import described, legend_beside, new_axes, titled, with_path
from pyterrier_graph.plots.graph_html import document_layout
from pyterrier_graph.plots.style import COLORS, NEUTRAL, TEXT, colors_of, shortened

SCALE = (0.001, 1.0)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from pyterrier_graph.graphs import HeteroGraph
    from pyterrier_graph.rerank.lgre import LearnedWordGraph


def document_graph(graph: HeteroGraph, docno: str, *, ax: Axes | None = None, most: int = 30) -> Axes:
    """Draws the graph of one document: sections as circles, passages as squares (HGAT, Fig. 3).

    Reading order runs downwards, depth to the right. Referenced nodes of other documents are at the right margin. A
    relation and its inverse are one line. ``most`` is the maximum number of nodes of the document, and of other
    documents. Raises KeyError if the document is not in the graph.
    """
    layout = document_layout(graph, int(graph.document_of([docno])[0]), most)
    margin = max(layout.depth) + 4
    rows = max(len(layout.nodes), len(layout.outside))
    distance = min(1.5, rows / max(1, len(layout.outside)))
    position = {node: (float(layout.depth[row]), -float(row)) for row, node in enumerate(layout.nodes)}
    position |= {node: (margin, -distance * row) for row, node in enumerate(layout.outside)}
    ax = ax if ax is not None else new_axes(9, 1.5 + 0.3 * rows)
    colors = colors_of(graph.relations[::2])
    for relation, source, target in layout.edges:
        bend = 0.0 if relation == "structural" else _bend(position[source], position[target], margin)
        style = {"arrowstyle": "->", "color": colors[relation], "shrinkB": 5, "connectionstyle": f"arc3,rad={bend}"}
        ax.annotate("", position[target], position[source], arrowprops=style, zorder=2)
    passage = graph.node_type[np.array(layout.nodes)] == 0
    for node, text, is_passage in zip(layout.nodes, graph.texts(np.array(layout.nodes)), passage, strict=True):
        label = textwrap.shorten(text[:200], 60, placeholder=" …") or "(no title)"
        marker, weight = ("s", "normal") if is_passage else ("o", "bold")
        _draw_node(ax, position[node], label, marker, "full", weight)
    for node, name in zip(layout.outside, layout.names, strict=True):
        _draw_node(ax, position[node], shortened(name), "o", "none", "normal")
    drawn = {relation for relation, _, _ in layout.edges}
    handles = [Line2D([], [], color=color, label=with_path(name)) for name, color in colors.items() if name in drawn]
    markers = {"section": "o", "passage": "s"}
    handles += [Line2D([], [], color=NEUTRAL, marker=markers[kind], linestyle="", label=kind) for kind in markers]
    legend_beside(ax, handles=handles)
    own, others = layout.cut
    cut = f", first {len(layout.nodes)} of {len(layout.nodes) + own} nodes" if own else ""
    cut += f", {len(layout.outside)} of {len(layout.outside) + others} references" if others else ""
    titled(ax, f"{docno}{cut}")
    ax.set(xlim=(-0.7, margin + (3 if layout.outside else 1.5)), ylim=(-rows - 0.5, 1))
    ax.axis("off")
    counts = Counter(in_words(relation) for relation, _, _ in layout.edges)
    edges = ", ".join(f"{name}: {count}" for name, count in counts.items())
    described(
        ax,
        f"Graph of the document {docno}: {passage.sum()} passages, {len(passage) - passage.sum()} sections, "
        f"{len(layout.outside)} nodes of other documents. Edges per relation: {edges or 'none'}.",
    )
    return ax


def word_graph(
    explanation: LearnedWordGraph,
    *,
    layer: int = -1,
    scale: tuple[float, float] = SCALE,
    ax: Axes | None = None,
    title: str = "",
    most: int = 40,
) -> Axes:
    """Draws a learned word graph as a matrix: the weight of each edge from a source (column) to a target (row).

    Lines divide query and document, words of both are framed, and words without an edge are gray (LGRe, Fig. 4). The
    color scale is logarithmic, since a query word has many more neighbors than a document word, and the same for all
    pictures, so that they can be compared.

    Args:
        explanation: What ``LGReReranker.explain()`` returns.
        scale: The weights at both ends of the color scale; the weights of a target add up to 1.
        layer: Position in ``explanation.layers``; without a ``title`` the title names the layer and the score.
        most: Maximum number of document words: those that query words attend to most.
    """
    adjacency, segments = explanation.adjacency[layer], explanation.segments
    query, words = np.flatnonzero(segments == 0), np.flatnonzero(segments == 1)
    largest_weights = adjacency[np.ix_(query, words)].max(0, initial=0.0)
    shown = np.sort(words[np.argsort(-largest_weights, kind="stable")[:most]])
    chosen = np.concatenate([query, shown])
    part = np.ma.masked_equal(adjacency[np.ix_(chosen, chosen)], 0)
    size = 2.5 + 0.22 * len(chosen)
    ax = ax if ax is not None else new_axes(size + 1, size)
    colors = plt.get_cmap("viridis").with_extremes(bad=to_rgba(NEUTRAL, 0.25))
    image = ax.imshow(part, cmap=colors, norm=LogNorm(*scale, clip=True))
    names = [explanation.tokens[place] for place in chosen]
    ax.set_xticks(range(len(chosen)), names, rotation=90, fontsize=TEXT, parse_math=False)
    ax.set_yticks(range(len(chosen)), names, fontsize=TEXT, parse_math=False)
    border, color = len(query) - 0.5, plt.rcParams["axes.edgecolor"]
    ax.axhline(border, color=color)
    ax.axvline(border, color=color)
    for row, column in np.argwhere(np.array(names[: len(query)])[:, None] == np.array(names[len(query) :])):
        for corner in ((border + column, row - 0.5), (row - 0.5, border + column)):
            ax.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=COLORS[4], linewidth=2))
    ax.set(xlabel="source word", ylabel="target word")
    ticks = LogLocator()
    ax.figure.colorbar(image, ax=ax, shrink=0.7, label="weight", ticks=ticks, format="{x:g}").minorticks_off()
    cut = f", {len(shown)} of {len(words)} document words" if len(shown) < len(words) else ""
    titled(ax, (title or f"layer {explanation.layers[layer]}, score {explanation.score:.3g}") + cut)
    words_of = " ".join(explanation.tokens[place] for place in query)
    described(
        ax,
        f"Matrix of the weights between {len(query)} query words ({words_of}) and {len(shown)} document words, "
        f"{part.count()} of {part.size} pairs have an edge. {title}",
    )
    return ax


def _bend(source: tuple[float, float], target: tuple[float, float], margin: float) -> float:
    """Curvature of an edge: away from the texts, which are to the right of their nodes."""
    rows = source[1] - target[1]
    return -0.08 if target[0] == margin else float(np.copysign(0.35 / (1 + abs(rows) / 8), rows))


def _draw_node(ax: Axes, place: tuple[float, float], name: str, marker: str, fill: Any, weight: str) -> None:
    """Draws a node, and its name beside it, over the lines that cross it."""
    ax.plot(*place, marker=marker, color=NEUTRAL, fillstyle=fill, markersize=8, zorder=3)
    style: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": TEXT, "parse_math": False}
    box = {"facecolor": plt.rcParams["axes.facecolor"], "edgecolor": "none", "pad": 1}  # over lines and arrows
    ax.annotate(name, place, xytext=(9, 0), fontweight=weight, bbox=box, zorder=4, **style)
