"""Plots: graphs, trainings, experiments, weights of relations.

Every function returns the axes that it draws on a new figure. No function needs a display. Texts and frames have the
colors of the current matplotlib style, light or dark.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from pyterrier_graph.documents.document import NO_PARENT
from pyterrier_graph.evaluation.significance import significance_marks, values_of
from pyterrier_graph.graphs.hetero_graph import PASSAGE_TYPE, HeteroGraph
from pyterrier_graph.graphs.relations import TITLE
from pyterrier_graph.html import in_words

if TYPE_CHECKING:
    from pyterrier_graph.lgre.reranker import LearnedWordGraph

__all__ = [
    "document_graph",
    "relation_weights",
    "results",
    "similarity_shift",
    "training_curves",
    "word_graph",
]

Point = tuple[float, float]

SCALE = (0.001, 1.0)  # the weights at both ends of the color scale of a word graph
# A legend outside the axes.
RIGHT: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1, 1)}

# Texts and names of systems may have dollar signs, which are no formulas.
styled = rc_context({"text.parse_math": False, "figure.constrained_layout.use": True})


@styled
def document_graph(graph: HeteroGraph, docno: str, *, most: int = 30) -> Axes:
    """Draws the graph of one document: sections as circles, passages as squares (HGAT, Fig. 3).

    Reading order runs downwards, depth to the right. Referenced nodes of other documents are at the bottom. A relation
    and its inverse are one line. ``most`` is the maximum number of nodes of the document, and of other documents.
    Raises KeyError if the document is not in the graph.
    """
    (document,) = graph.document_of([docno])
    start = graph.node_offsets[document]
    end = graph.node_offsets[document + 1]
    nodes = np.arange(start, min(end, start + most))
    edges = _edges_by_relation(graph, nodes)
    targets = {target for pairs in edges.values() for _, target in pairs}
    targets_outside = [target for target in sorted(targets) if not start <= target < end]
    outside = np.array(targets_outside[:most], dtype=np.int64)
    names = [textwrap.shorten(text, 60, placeholder=" …") for text in graph.texts(nodes)]
    names += graph.ids_of(outside)

    depth = _depths(graph, nodes)
    height = 1.5 + 0.3 * len(names)
    _, ax = plt.subplots(figsize=(9, height))
    points = {}
    all_nodes = [*nodes, *outside]
    for row, (node, name) in enumerate(zip(all_nodes, names, strict=True)):
        x = depth.get(node, 0)
        y = -row
        points[node] = x, y
        marker = "s" if graph.node_type[node] == PASSAGE_TYPE else "o"
        ax.plot(x, y, marker, color="gray")
        ax.text(x + 0.15, y, name, va="center", fontsize=9)
    for number, (relation, pairs) in enumerate(edges.items()):
        color = f"C{number}"
        if pairs:
            ax.plot([], [], color=color, label=in_words(relation))  # the legend's line
        for source, target in pairs:
            if target in points:
                _draw_edge(ax, points[source], points[target], color)
    width = max(depth.values()) + 5  # with space for the texts
    ax.set_xlim(-1, width)
    ax.axis("off")
    ax.set_title(docno)
    ax.legend(**RIGHT)
    return ax


def _depths(graph: HeteroGraph, nodes: np.ndarray) -> dict[int, int]:
    """The depth of each node in the tree of its document, from 0 for the root section."""
    depth = {NO_PARENT: -1}
    for node in nodes:
        parent = graph.parent[node]
        depth[node] = depth[parent] + 1
    return depth


def _edges_by_relation(graph: HeteroGraph, nodes: np.ndarray) -> dict[str, list[tuple[int, int]]]:
    """The edges of some nodes as pairs of source and target; a relation and its inverse count once."""
    edges = {}
    for relation in graph.relations[::2]:  # each is followed by its inverse
        if relation != TITLE:  # which repeats structural where sections have titles
            rows, targets = graph.neighbors(nodes, relation)
            sources = nodes[rows]
            edges[relation] = list(zip(sources, targets, strict=True))
    return edges


def _draw_edge(ax: Axes, source: Point, target: Point, color: str) -> None:
    """Draws an arrow that bends to the left, away from the texts."""
    _, source_y = source
    _, target_y = target
    bend = 0.5 / (source_y - target_y)
    arrow = {"arrowstyle": "->", "color": color, "connectionstyle": f"arc3,rad={bend}"}
    ax.annotate("", target, source, arrowprops=arrow)


@styled
def word_graph(explanation: LearnedWordGraph, *, title: str = "", most: int = 40) -> Axes:
    """Draws a learned word graph as a matrix: the weight of each edge from a source (column) to a target (row).

    Lines divide query and document, and words without an edge are blank (LGRe, Fig. 4). The color scale is logarithmic,
    since a query word has many more neighbors than a document word, and the same for all pictures, so that they can be
    compared.

    Args:
        explanation: What ``LGReReranker.word_graph()`` returns; its last layer is drawn.
        title: By default the layer and the score.
        most: Maximum number of document words; query words attend to these most.
    """
    adjacency = explanation.adjacency[-1]  # (tokens, tokens)
    query = np.flatnonzero(explanation.segments == 0)
    words = np.flatnonzero(explanation.segments == 1)
    from_words = adjacency[np.ix_(query, words)]  # (query tokens, words)
    largest = from_words.max(axis=0)  # (words,)
    order = np.argsort(-largest, kind="stable")
    words = np.sort(words[order[:most]])
    tokens = np.concatenate([query, words])
    weights = adjacency[np.ix_(tokens, tokens)]
    names = [explanation.tokens[token] for token in tokens]

    size = 2.5 + 0.2 * len(names)
    figure, ax = plt.subplots(figsize=(size + 1, size))
    image = ax.imshow(weights, norm=LogNorm(*SCALE))
    ax.set_xticks(range(len(names)), names, rotation=90)
    ax.set_yticks(range(len(names)), names)
    ax.axhline(len(query) - 0.5, color="gray")
    ax.axvline(len(query) - 0.5, color="gray")
    ax.set(xlabel="source word", ylabel="target word")
    ax.set_title(title or f"layer {explanation.layers[-1]}, score {explanation.score:.3g}")
    figure.colorbar(image, label="weight", shrink=0.7)
    return ax


@styled
def results(
    experiment: pd.DataFrame,
    measure: Any,
    *,
    names: Sequence[str] | None = None,
    baseline: str | None = None,
    title: str = "",
) -> list[Axes]:
    """Draws the mean of each system, and next to it the differences to the baseline, a point per query.

    A mean has its 95% confidence interval (Student's t). Its number has a ``+`` or ``-`` if the system is better or
    worse than the baseline (paired t-tests over queries, Holm-corrected, p < 0.05). The points of a system are sorted
    by their differences.

    Args:
        experiment: What ``pt.Experiment(..., perquery=True)`` returns: ``name, qid, measure, value``. With a column
            ``seed``, each query has its mean over seeds.
        measure: The measure.
        names: The systems to draw, in their order, such as the ``names`` of ``pt.Experiment``, which sorts its frame by
            name. By default all systems, as in the frame.
        baseline: Name of the system that the others are compared with; by default the first.
        title: Title of the plot.
    """
    from scipy.stats import t

    measures = experiment["measure"].astype(str).unique().tolist()
    if str(measure) not in measures:
        raise ValueError(f"measure must be one of {measures}, got {measure!r}")
    values = values_of(experiment, measure)  # (systems, queries)
    if names:
        values = values.loc[list(names)]
    if baseline is None:
        baseline = values.index[0]
    marks = significance_marks(values, baseline)
    num_systems, num_queries = values.shape
    mean = values.mean(axis=1)
    quantile = t.ppf(0.975, num_queries - 1)
    interval = quantile * values.sem(axis=1)
    labels = [f"{name}  {mean[name]:.3f}{mark}" for name, mark in marks.items()]

    rows = range(num_systems)
    height = 1.3 + 0.5 * num_systems
    _, (means, differences) = plt.subplots(1, 2, sharey=True, figsize=(9, height))
    means.errorbar(mean, rows, xerr=interval, fmt="o", capsize=4)
    means.set_yticks(rows, labels)
    means.invert_yaxis()
    means.set_xlabel(f"mean {measure}, 95% interval; +/-: p < 0.05")
    means.set_title(title)
    gains = values - values.loc[baseline]  # (systems, queries)
    spread = np.linspace(0.3, -0.3, num_queries)  # of the points around the row of a system
    for row, system_gains in zip(rows, gains.to_numpy(), strict=True):
        differences.plot(np.sort(system_gains), row + spread, ".", markersize=4)
    differences.axvline(0, color="gray", linewidth=1)
    differences.set_xlabel(f"difference to {baseline}, per query")
    return [means, differences]


@styled
def training_curves(models: Mapping[str, Any]) -> list[Axes]:
    """Draws the losses and the validation measure of trained models by name; a star marks the weights that are kept."""
    _, (losses, validation) = plt.subplots(2, 1, sharex=True, figsize=(8, 5))
    for name, model in models.items():
        log = pd.DataFrame(model.training_log).set_index("step")
        measure = model.training.measure
        loss = log["loss"].dropna()
        (line,) = losses.plot(loss, marker=".", label=name)
        color = line.get_color()
        if measure in log:
            curve = log[measure].dropna()
            validation.plot(curve, marker=".", color=color)
            best = log[measure][log["kept"].notna()]
            validation.plot(best, "*", color=color, markersize=14)
            validation.set_ylabel(f"validation {measure}")
    losses.set_ylabel("loss")
    losses.legend(**RIGHT)
    validation.set_xlabel("step")
    return [losses, validation]


@styled
def similarity_shift(before: pd.DataFrame, after: pd.DataFrame) -> list[Axes]:
    """Draws similarities of a relevant passage to its query and to other passages, before and after training.

    Training should make s(p+, q) larger than s(p+, p-) (PAIR, Fig. 4). Each title states the share of pairs where it
    is larger.
    Both frames have a row per pair of a query and a relevant passage: ``positive_query``, the similarity of the passage
    to the query, and ``positive_negative``, its similarity to another passage.
    """
    _, axes = plt.subplots(2, 1, sharex=True, sharey=True, figsize=(8, 5))
    frames = {"before": before, "after": after}
    for ax, (name, frame) in zip(axes, frames.items(), strict=True):
        query = frame["positive_query"]
        negative = frame["positive_negative"]
        ax.hist([query, negative], bins=30, label=["s(p+, q)", "s(p+, p-)"])
        is_larger = query > negative
        share = is_larger.mean()
        ax.set_title(f"{name}: s(p+, q) is larger for {share:.0%}")
        ax.set_ylabel("pairs")
    axes[0].legend(**RIGHT)
    axes[1].set_xlabel("similarity")
    return [*axes]


@styled
def relation_weights(model: Any) -> Axes:
    """Draws the weight of each relation in a graph model; for HGATReranker, per layer (Table 6 of the paper).

    ``model`` is a GraphMean, GraphMaxSim, GNNEncoder or HGATReranker.
    """
    if hasattr(model, "relation_weights"):
        table = model.relation_weights()
    else:
        table = pd.DataFrame({"weight": model.weights})
    num_relations, num_columns = table.shape
    height = 1 + 0.2 * num_relations * (num_columns + 1)
    table = table.rename(index=in_words)
    ax = table.plot.barh(figsize=(8, height), xlabel="weight")
    ax.invert_yaxis()  # barh draws from bottom to top
    ax.legend(**RIGHT)
    return ax
