"""Plots of graphs of documents and of words."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, to_rgba
from matplotlib.patches import Rectangle

from pyterrier_graph.graphs.hetero_graph import PASSAGE_TYPE, HeteroGraph
from pyterrier_graph.graphs.relations import TITLE
from pyterrier_graph.html import COLORS, NEUTRAL, TEXT, colors_of, shortened
from pyterrier_graph.show.axes import label, new_axes, right_legend, titled, with_path

SCALE = (0.001, 1.0)  # the weights at both ends of the color scale of a word graph

Point = tuple[float, float]

if TYPE_CHECKING:
    from pyterrier_graph.lgre.reranker import LearnedWordGraph


def document_graph(graph: HeteroGraph, docno: str, *, most: int = 30) -> Axes:
    """Draws the graph of one document: sections as circles, passages as squares (HGAT, Fig. 3).

    Reading order runs downwards, depth to the right. Referenced nodes of other documents are at the right margin. A
    relation and its inverse are one line. ``most`` is the maximum number of nodes of the document, and of other
    documents. Raises KeyError if the document is not in the graph.
    """
    document = graph.document_of([docno])[0]
    start, end = graph.node_offsets[document : document + 2].tolist()
    nodes = np.arange(start, min(end, start + most))
    edges = _edges(graph, nodes)
    references = [*dict.fromkeys(target for *_, target in edges if not start <= target < end)]
    outside = np.array(references[:most], dtype=np.int64)
    lines = max(len(nodes), len(outside))

    depth = _depths(graph.parent[nodes], start)
    margin = max(depth) + 4
    spacing = min(1.5, lines / max(1, len(outside)))
    points = {node: (float(depth[row]), -float(row)) for row, node in enumerate(nodes)}
    points |= {node: (margin, -spacing * row) for row, node in enumerate(outside)}

    ax = new_axes(9, 1.5 + 0.3 * lines)
    colors = colors_of(graph.relations[::2])
    edges = [edge for edge in edges if edge[2] in points]
    for relation, source, target in edges:
        straight = relation == "structural"
        bend = 0.0 if straight else _bend(points[source], points[target], margin)
        _draw_edge(ax, points[source], points[target], colors[relation], bend)
    for node, text in zip(nodes, graph.texts(nodes), strict=True):
        name = textwrap.shorten(text[:200], 60, placeholder=" …") or "(no title)"
        if graph.node_type[node] == PASSAGE_TYPE:
            _draw_node(ax, points[node], name, marker="s")
        else:
            _draw_node(ax, points[node], name, weight="bold")
    for node, name in zip(outside, _names(graph, outside), strict=True):
        _draw_node(ax, points[node], shortened(name), fillstyle="none")

    drawn = {relation for relation, *_ in edges}
    _draw_legend(ax, {name: color for name, color in colors.items() if name in drawn})
    title = docno
    if end - start > len(nodes):
        title += f", first {len(nodes)} of {end - start} nodes"
    if len(references) > len(outside):
        title += f", {len(outside)} of {len(references)} references"
    titled(ax, title)
    ax.set(xlim=(-0.7, margin + (3 if references else 1.5)), ylim=(-lines - 0.5, 1))
    ax.axis("off")
    return ax


def _edges(graph: HeteroGraph, nodes: np.ndarray) -> list[tuple[str, int, int]]:
    """Relation, source and target of each edge that starts at one of the nodes, without inverse edges."""
    edges: list[tuple[str, int, int]] = []
    for name in graph.relations[::2]:  # each is followed by its inverse
        if name != TITLE:  # which repeats structural where sections have titles
            rows, targets = graph.neighbors(nodes, name)
            edges += [(name, *edge) for edge in zip(nodes[rows], targets, strict=True)]
    return edges


def _depths(parents: np.ndarray, start: int) -> list[int]:
    """The number of sections that contain each node."""
    depth: list[int] = []
    for parent in parents:
        depth.append(0 if parent < 0 else depth[parent - start] + 1)
    return depth


def _names(graph: HeteroGraph, nodes: np.ndarray) -> list[str]:
    """The ids of nodes; the docno where a node is the root of its document."""
    docnos = graph.docnos_of(graph.document[nodes])
    return np.where(graph.parent[nodes] < 0, docnos, graph.ids_of(nodes)).tolist()


def _bend(source: Point, target: Point, margin: float) -> float:
    """Curvature of an edge: away from the texts, which are to the right of their nodes."""
    if target[0] == margin:
        return -0.08
    rows = source[1] - target[1]
    return float(np.copysign(0.35 / (1 + abs(rows) / 8), rows))


def _draw_edge(ax: Axes, source: Point, target: Point, color: str, bend: float) -> None:
    arrow = {
        "arrowstyle": "->",
        "color": color,
        "connectionstyle": f"arc3,rad={bend}",
        "shrinkB": 5,
    }
    ax.annotate("", target, source, arrowprops=arrow, zorder=2)


def _draw_node(
    ax: Axes,
    point: Point,
    name: str,
    *,
    marker: str = "o",
    weight: str = "normal",
    fillstyle: Any = "full",
) -> None:
    """Draws a node and its name over the lines that cross it."""
    ax.plot(*point, marker=marker, color=NEUTRAL, fillstyle=fillstyle, markersize=8, zorder=3)
    box = {"facecolor": plt.rcParams["axes.facecolor"], "edgecolor": "none", "pad": 1}
    label(ax, name, point, 9, fontweight=weight, bbox=box, zorder=4)


def _draw_legend(ax: Axes, colors: Mapping[str, str]) -> None:
    """Draws a legend of relations and kinds of nodes."""
    for name, color in colors.items():
        ax.plot([], [], color=color, label=with_path(name))
    for kind, marker in (("section", "o"), ("passage", "s")):
        ax.plot([], [], color=NEUTRAL, marker=marker, linestyle="", label=kind)
    right_legend(ax)


def word_graph(explanation: LearnedWordGraph, *, title: str = "", most: int = 40) -> Axes:
    """Draws a learned word graph as a matrix: the weight of each edge from a source (column) to a target (row).

    Lines divide query and document, words of both are framed, and words without an edge are gray (LGRe, Fig. 4). The
    color scale is logarithmic, since a query word has many more neighbors than a document word, and the same for all
    pictures, so that they can be compared.

    Args:
        explanation: What ``LGReReranker.word_graph()`` returns; its last layer is drawn.
        title: By default the layer and the score.
        most: Maximum number of document words: those that query words attend to most.
    """
    adjacency, segments = explanation.adjacency[-1], explanation.segments
    query, words = np.flatnonzero(segments == 0), np.flatnonzero(segments == 1)
    largest = adjacency[np.ix_(query, words)].max(0, initial=0.0)
    shown = np.sort(words[np.argsort(-largest, kind="stable")[:most]])
    tokens = np.concatenate([query, shown])
    names = [explanation.tokens[token] for token in tokens]

    size = 2.5 + 0.22 * len(tokens)
    ax = new_axes(size + 1, size)
    weights = np.ma.masked_equal(adjacency[np.ix_(tokens, tokens)], 0)
    colors = plt.get_cmap("viridis").with_extremes(bad=to_rgba(NEUTRAL, 0.25))
    image = ax.imshow(weights, cmap=colors, norm=LogNorm(*SCALE, clip=True))
    ax.set_xticks(range(len(names)), names, rotation=90, fontsize=TEXT, parse_math=False)
    ax.set_yticks(range(len(names)), names, fontsize=TEXT, parse_math=False)
    ax.set(xlabel="source word", ylabel="target word")
    _frame_words(ax, names, len(query))
    bar = ax.figure.colorbar(image, ax=ax, label="weight", shrink=0.7, format="{x:g}")
    bar.minorticks_off()
    title = title or f"layer {explanation.layers[-1]}, score {explanation.score:.3g}"
    if len(shown) < len(words):
        title += f", {len(shown)} of {len(words)} document words"
    titled(ax, title)
    return ax


def _frame_words(ax: Axes, names: list[str], query: int) -> None:
    """Divides the ``query`` words of the query from the document's, and frames words that both have."""
    border, color = query - 0.5, plt.rcParams["axes.edgecolor"]
    ax.axhline(border, color=color)
    ax.axvline(border, color=color)
    same = np.array(names[:query])[:, None] == np.array(names[query:])
    for row, column in np.argwhere(same):
        for corner in ((border + column, row - 0.5), (row - 0.5, border + column)):
            ax.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=COLORS[4], linewidth=2))
