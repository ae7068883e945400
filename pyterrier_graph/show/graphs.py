"""Plots of graphs of documents and of words."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, to_rgba
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator

from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.graphs.relations import TITLE
from pyterrier_graph.html import COLORS, NEUTRAL, TEXT, colors_of, shortened
from pyterrier_graph.show.axes import label, new_axes, right_legend, titled, with_path

SCALE = (0.001, 1.0)  # the weights at both ends of the color scale of a word graph

if TYPE_CHECKING:
    from pyterrier_graph.lgre.reranker import LearnedWordGraph


def document_graph(
    graph: HeteroGraph, docno: str, *, ax: Axes | None = None, most: int = 30
) -> Axes:
    """Draws the graph of one document: sections as circles, passages as squares (HGAT, Fig. 3).

    Reading order runs downwards, depth to the right. Referenced nodes of other documents are at the right margin. A
    relation and its inverse are one line. ``most`` is the maximum number of nodes of the document, and of other
    documents. Raises KeyError if the document is not in the graph.
    """
    document = int(graph.document_of([docno])[0])
    start, end = (int(number) for number in graph.node_offsets[document : document + 2])
    nodes = np.arange(start, min(end, start + most))
    edges = [
        (name, source, target)
        for name in graph.relations[::2]  # each is followed by its inverse
        if name != TITLE  # which repeats structural where sections have titles
        for rows, targets in [graph.neighbors(nodes, name)]
        for source, target in zip(nodes[rows].tolist(), targets.tolist(), strict=True)
    ]
    references = list(dict.fromkeys(target for *_, target in edges if not start <= target < end))
    outside = np.array(references[:most], dtype=np.int64)
    depth = _depths(graph.parent[nodes], start)
    margin, lines = max(depth) + 4, max(len(nodes), len(outside))
    distance = min(1.5, lines / max(1, len(outside)))
    position = {node: (float(depth[row]), -float(row)) for row, node in enumerate(nodes.tolist())}
    position |= {node: (margin, -distance * row) for row, node in enumerate(outside.tolist())}
    edges = [edge for edge in edges if edge[2] in position]
    ax = ax if ax is not None else new_axes(9, 1.5 + 0.3 * lines)
    colors = colors_of(graph.relations[::2])
    for relation, source, target in edges:
        straight = relation == "structural"
        bend = 0.0 if straight else _bend(position[source], position[target], margin)
        curve = {"arrowstyle": "->", "shrinkB": 5, "connectionstyle": f"arc3,rad={bend}"}
        arrow = curve | {"color": colors[relation]}
        ax.annotate("", position[target], position[source], arrowprops=arrow, zorder=2)
    is_passage = (graph.node_type[nodes] == 0).tolist()
    for node, text, square in zip(nodes.tolist(), graph.texts(nodes), is_passage, strict=True):
        name = textwrap.shorten(text[:200], 60, placeholder=" …") or "(no title)"
        _draw_node(ax, position[node], name, "s" if square else "o", bold=not square)
    for node, name in zip(outside.tolist(), _names(graph, outside), strict=True):
        _draw_node(ax, position[node], shortened(name), "o", fillstyle="none")
    drawn = {relation for relation, *_ in edges}
    handles = [
        Line2D([], [], color=color, label=with_path(name))
        for name, color in colors.items()
        if name in drawn
    ]
    handles += [
        Line2D([], [], color=NEUTRAL, marker=marker, linestyle="", label=kind)
        for kind, marker in {"section": "o", "passage": "s"}.items()
    ]
    right_legend(ax, handles=handles)
    cut = f", first {len(nodes)} of {end - start} nodes" if end - start > len(nodes) else ""
    if len(references) > len(outside):
        cut += f", {len(outside)} of {len(references)} references"
    titled(ax, f"{docno}{cut}")
    ax.set(xlim=(-0.7, margin + (3 if references else 1.5)), ylim=(-lines - 0.5, 1))
    ax.axis("off")
    return ax


def _depths(parents: np.ndarray, start: int) -> list[int]:
    """The number of sections that contain each node."""
    depth: list[int] = []
    for parent in parents.tolist():
        depth.append(0 if parent < 0 else depth[parent - start] + 1)
    return depth


def _names(graph: HeteroGraph, nodes: np.ndarray) -> list[str]:
    """The ids of nodes; the docno where a node is the root of its document."""
    roots = (graph.parent[nodes] < 0).tolist()
    docnos, ids = graph.docnos_of(graph.document[nodes]), graph.ids_of(nodes)
    return [docno if root else name for docno, name, root in zip(docnos, ids, roots, strict=True)]


def word_graph(
    explanation: LearnedWordGraph,
    *,
    layer: int = -1,
    ax: Axes | None = None,
    title: str = "",
    most: int = 40,
) -> Axes:
    """Draws a learned word graph as a matrix: the weight of each edge from a source (column) to a target (row).

    Lines divide query and document, words of both are framed, and words without an edge are gray (LGRe, Fig. 4). The
    color scale is logarithmic, since a query word has many more neighbors than a document word, and the same for all
    pictures, so that they can be compared.

    Args:
        explanation: What ``LGReReranker.word_graph()`` returns.
        layer: Position in ``explanation.layers``; without a ``title`` the title names the layer and the score.
        most: Maximum number of document words: those that query words attend to most.
    """
    adjacency, segments = explanation.adjacency[layer], explanation.segments
    query, words = np.flatnonzero(segments == 0), np.flatnonzero(segments == 1)
    largest_weights = adjacency[np.ix_(query, words)].max(0, initial=0.0)
    shown = np.sort(words[np.argsort(-largest_weights, kind="stable")[:most]])
    chosen = np.concatenate([query, shown])
    weights = np.ma.masked_equal(adjacency[np.ix_(chosen, chosen)], 0)
    size = 2.5 + 0.22 * len(chosen)
    ax = ax if ax is not None else new_axes(size + 1, size)
    colors = plt.get_cmap("viridis").with_extremes(bad=to_rgba(NEUTRAL, 0.25))
    image = ax.imshow(weights, cmap=colors, norm=LogNorm(*SCALE, clip=True))
    names = [explanation.tokens[place] for place in chosen]
    ax.set_xticks(range(len(chosen)), names, rotation=90, fontsize=TEXT, parse_math=False)
    ax.set_yticks(range(len(chosen)), names, fontsize=TEXT, parse_math=False)
    border, color = len(query) - 0.5, plt.rcParams["axes.edgecolor"]
    ax.axhline(border, color=color)
    ax.axvline(border, color=color)
    same = np.array(names[: len(query)])[:, None] == np.array(names[len(query) :])
    for row, column in np.argwhere(same):
        for corner in ((border + column, row - 0.5), (row - 0.5, border + column)):
            ax.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=COLORS[4], linewidth=2))
    ax.set(xlabel="source word", ylabel="target word")
    scale: dict[str, Any] = {"label": "weight", "ticks": LogLocator(), "format": "{x:g}"}
    ax.figure.colorbar(image, ax=ax, shrink=0.7, **scale).minorticks_off()
    cut = f", {len(shown)} of {len(words)} document words" if len(shown) < len(words) else ""
    titled(ax, (title or f"layer {explanation.layers[layer]}, score {explanation.score:.3g}") + cut)
    return ax


def _bend(source: tuple[float, float], target: tuple[float, float], margin: float) -> float:
    """Curvature of an edge: away from the texts, which are to the right of their nodes."""
    rows = source[1] - target[1]
    return -0.08 if target[0] == margin else float(np.copysign(0.35 / (1 + abs(rows) / 8), rows))


def _draw_node(
    ax: Axes,
    place: tuple[float, float],
    name: str,
    marker: str,
    *,
    bold: bool = False,
    fillstyle: Any = "full",
) -> None:
    """Draws a node and its name over the lines that cross it."""
    ax.plot(*place, marker=marker, color=NEUTRAL, fillstyle=fillstyle, markersize=8, zorder=3)
    box = {"facecolor": plt.rcParams["axes.facecolor"], "edgecolor": "none", "pad": 1}
    label(ax, name, place, 9, fontweight="bold" if bold else "normal", bbox=box, zorder=4)
