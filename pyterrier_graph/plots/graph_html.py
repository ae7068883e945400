"""HTML of graphs in notebooks: sizes, and an outline of one small document, or of one passage and its queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyterrier_graph.graphs.relations import TITLE, in_words, inverse
from pyterrier_graph.plots.html import legend, value
from pyterrier_graph.plots.style import colors_of, shortened

if TYPE_CHECKING:
    from pyterrier_graph.graphs.hetero_graph import HeteroGraph
    from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph

SEARCHED = 100  # number of documents, or queries, that are searched for a good outline
NODES = 14
OVER = {"external": ', over="documents"', "order": ""}  # external edges are between documents, mostly


def graph_html(graph: HeteroGraph, title: str, calls: Sequence[str]) -> str:
    """A graph's title, sizes, the outline of a document, and code to call next; fast for graphs of any size."""
    summary = graph.summary()
    counted = ["documents", "sections", "passages", *(["codes"] if summary["codes"] else [])]
    sizes: dict[str, Any] = {name: summary[name] for name in counted}
    for name in graph.relations[::2]:  # each is followed by its inverse, which has as many edges
        lost = summary["unresolved"].get(name, 0)
        words = "" if in_words(name) == name else f", to the {in_words(name)}"
        sizes[f"{name} edges"] = f"{summary['edges'][name]:,}{words}{f' ({lost:,} unresolved)' if lost else ''}"
    try:
        document = small_document(graph)
        docno = graph.docnos_of(np.array([document]))[0]
        outline = document_outline(graph, document)
        calls = [*calls, *_corpus_graph(graph, summary["edges"]), f"plots.document_graph(graph, {docno!r})"]
    except Exception:  # the sizes are useful without the outline
        outline = ""
    return value(title, sizes, calls=calls, picture=outline)


def _corpus_graph(graph: HeteroGraph, edges: Mapping[str, int]) -> list[str]:
    """A call that writes a corpus graph of relations between passages, of which the graph has edges."""
    if not hasattr(graph, "corpus_graph"):
        return []
    named = [name for name in ("external", "order") if edges[name]]
    return [f"graph.corpus_graph({[name, inverse(name)]}, 16, path{OVER[name]})" for name in named[:1]]


def small_document(graph: HeteroGraph) -> int:
    """Number of the document with most links and references among the first ones that fit into an outline."""
    offsets = graph.node_offsets[: SEARCHED + 1]
    sizes = np.diff(offsets)
    if sizes.min() > NODES:
        return int(sizes.argmin())
    nodes = np.arange(offsets[0], offsets[-1])
    links = np.zeros(len(sizes))
    for name in graph.relations[4::2]:
        if name != TITLE:
            rows, _ = graph.neighbors(nodes, name)
            links += np.bincount(graph.document[nodes[rows]], minlength=len(sizes))
    interest = np.minimum(links, 4) + sizes / (NODES + 1)
    return int(np.where(sizes <= NODES, interest, -1).argmax())


def document_outline(graph: HeteroGraph, document: int) -> str:
    """A document's first nodes as an outline: sections are bold, links and references follow their source."""
    layout = document_layout(graph, document, NODES)
    texts = graph.texts(np.array(layout.nodes))
    names = dict(zip([*layout.nodes, *layout.outside], [*texts, *layout.names], strict=True))
    drawn = {relation for relation, _, _ in layout.edges} - {"order", "structural"}  # the outline shows these two
    colors = {name: color for name, color in colors_of(graph.relations[::2]).items() if name in drawn}
    lines = []
    for node, depth in zip(layout.nodes, layout.depth, strict=True):
        label = escape(shortened(names[node]) or "(no title)")
        line = label if graph.node_type[node] == 0 else f"<b>{label}</b>"
        for name, color in colors.items():
            targets = [names[target] for kind, source, target in layout.edges if (kind, source) == (name, node)]
            if targets:
                line += _arrow("→", name, color, shortened(", ".join(targets), 36))
        lines.append(_line(line, depth))
    cut = f"first {len(layout.nodes)} nodes" if layout.cut[0] else ""
    return _outline(lines, colors, cut)


def query_passage_html(graph: QueryPassageGraph, title: str, calls: Sequence[str]) -> str:
    """As :func:`graph_html`, for a graph of queries and passages."""
    sizes = {"queries": graph.num_queries, "passages": graph.num_passages}
    sizes |= {f"{edge_type} edges": edges for edge_type, edges in graph.num_edges.items()}
    try:
        outline = passage_outline(graph, small_passage(graph))
    except Exception:  # as above
        outline = ""
    return value(title, sizes, calls=calls, picture=outline)


def small_passage(graph: QueryPassageGraph) -> int:
    """Number of the passage with most queries that fits into an outline, among those of the first queries."""
    first = np.arange(min(SEARCHED, graph.num_queries))
    passages = np.unique(np.concatenate([graph.edges_of_queries(first, kind).indices for kind in graph.edge_types]))
    degrees = sum(np.diff(graph.edges_of_passages(passages, kind).indptr) for kind in graph.edge_types)
    return int(passages[np.where(degrees <= NODES, degrees, -degrees).argmax()])


def passage_outline(graph: QueryPassageGraph, passage: int) -> str:
    """A passage and its queries with their scores; a query with edges of two relations is there twice."""
    colors = colors_of(sorted(graph.edge_types))  # as in plots.passage_queries
    lines = [_line(f"<b>{escape(shortened(graph.docnos_of(np.array([passage]))[0]))}</b>", 0)]
    for kind in graph.edge_types:
        edges = graph.edges_of_passages(np.array([passage]), kind)
        for text, score in zip(graph.texts(edges.indices[:NODES]), edges.data["scores"].tolist(), strict=False):
            lines.append(_line(f"{_arrow('←', kind, colors[kind], shortened(text))}  {score:.3g}", 1))
    return _outline(lines[: NODES + 1], colors)


def _line(html: str, depth: int) -> str:
    return f'<div style="padding-left: {20 * depth}px; white-space: pre">{html}</div>'


def _arrow(arrow: str, name: str, color: str, text: str) -> str:
    """A text behind an arrow in the color of a relation; the text has the color of the page."""
    swatch = f'<span class="swatch" style="background: {color}; margin: 0 4px"></span>'
    return f' <span title="{escape(name)}">{swatch}{arrow} {escape(text)}</span>'


def _outline(lines: Sequence[str], colors: dict[str, str], cut: str = "") -> str:
    """The lines, and below them a legend of the relations."""
    below = f'<div class="quiet">{cut}</div>' if cut else ""
    return f'<div style="font-size: 13px; line-height: 1.6">{"".join(lines)}{below}{legend(colors)}</div>'


class DocumentLayout(NamedTuple):
    """One document's nodes and edges."""

    nodes: list[int]  # in document order
    depth: list[int]  # number of sections that contain each node
    outside: list[int]  # referenced nodes of other documents, in order of appearance
    names: list[str]  # docno of each node in outside, or id of a passage
    edges: list[tuple[str, int, int]]  # relation, source and target; a relation and its inverse are one edge
    cut: tuple[int, int]  # number of nodes of the document, and of other documents, that are left out


def document_layout(graph: HeteroGraph, document: int, most: int) -> DocumentLayout:
    """Lays out a document with at most ``most`` nodes of its own and ``most`` nodes of other documents."""
    start, end = (int(number) for number in graph.node_offsets[document : document + 2])
    nodes = np.arange(start, min(end, start + most))
    depth: list[int] = []
    for parent in graph.parent[nodes].tolist():
        depth.append(0 if parent < 0 else depth[parent - start] + 1)
    found = [
        (name, source, target)
        for name in graph.relations[::2]  # each is followed by its inverse
        if name != TITLE  # which repeats structural where sections have titles
        for rows, targets in [graph.neighbors(nodes, name)]
        for source, target in zip(nodes[rows].tolist(), targets.tolist(), strict=True)
    ]
    others = list(dict.fromkeys(target for _, _, target in found if not start <= target < end))
    outside = np.array(others[:most], dtype=np.int64)
    docnos, ids = graph.docnos_of(graph.document[outside]), graph.ids_of(outside)
    is_root = (graph.parent[outside] < 0).tolist()
    names = [docno if root else name for docno, name, root in zip(docnos, ids, is_root, strict=True)]
    drawn = {*nodes.tolist(), *outside.tolist()}
    edges = [edge for edge in found if edge[2] in drawn]
    cut = (end - start - len(nodes), len(others) - len(outside))
    return DocumentLayout(nodes.tolist(), depth, outside.tolist(), names, edges, cut)
