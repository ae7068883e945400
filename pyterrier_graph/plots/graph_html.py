"""HTML of graphs in notebooks: sizes, and a picture of one small document, or of one passage and its queries."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from pyterrier_graph.graphs.relations import TITLE
from pyterrier_graph.plots.html import COLORS, NEUTRAL, value
from pyterrier_graph.plots.layout import document_layout

if TYPE_CHECKING:
    from pyterrier_graph.graphs.hetero_graph import HeteroGraph
    from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph

SEARCHED = 100  # number of documents, or queries, that are searched for a good picture
NODES = 14
ROW, STEP, LEFT, WIDTH = 20, 22, 34, 620


def graph_html(graph: HeteroGraph, title: str, calls: Sequence[str]) -> str:
    """A graph's title, sizes, a small picture, and code to call next; fast for graphs of any size.

    Args:
        graph: The graph.
        title: The title.
        calls: Code that the user can call next.
    """
    summary = graph.summary()
    sizes: dict[str, Any] = {name: summary[name] for name in ("documents", "sections", "passages", "codes")}
    if not sizes["codes"]:
        del sizes["codes"]
    for relation in graph.relations[::2]:  # each is followed by its inverse, which has as many edges
        lost = summary["unresolved"].get(relation, 0)
        edges = summary["edges"][relation]
        sizes[f"{relation} edges"] = f"{edges:,} ({lost:,} unresolved)" if lost else edges
    try:
        document = small_document(graph)
        docno = graph.docnos_of(np.array([document]))[0]
        picture = document_svg(graph, document)
        calls = [*calls, f"plots.document_graph(graph, {docno!r})"]
    except Exception:  # the sizes are useful without the picture
        picture = ""
    return value(title, sizes, calls=calls, picture=picture)


def small_document(graph: HeteroGraph) -> int:
    """Number of the document with most links and references among the first ones that fit into a small picture."""
    offsets = graph.node_offsets[: SEARCHED + 1]
    sizes = np.diff(offsets)
    fitting = np.flatnonzero(sizes <= NODES)
    if not len(fitting):
        return int(np.arange(len(sizes))[sizes.argmin()])
    nodes = np.arange(offsets[0], offsets[-1])
    typed = sum(
        (np.diff(graph.adjacency(relation).indptr[: len(nodes) + 1]) > 0)
        for relation in graph.relations[4::2]
        if relation != TITLE
    )
    interest = np.minimum(np.add.reduceat(typed + np.zeros(len(nodes)), offsets[:-1]), 4) + sizes / (NODES + 1)
    return int(fitting[interest[fitting].argmax()])


def document_svg(graph: HeteroGraph, document: int, most: int = NODES) -> str:
    """A document's first ``most`` nodes as inline SVG: lines in the colors of relations, texts in the page's color."""
    layout = document_layout(graph, document, most)
    color = {relation: COLORS[number % len(COLORS)] for number, relation in enumerate(graph.relations[::2])}
    first = layout.nodes[0]
    place = [(LEFT + STEP * depth, ROW * (row + 0.7)) for row, depth in enumerate(layout.depth)]
    names = dict(zip(layout.outside, layout.names, strict=True))
    lines: list[str] = []
    references: dict[int, dict[str, list[str]]] = {}
    for relation, source, target in layout.edges:
        if target in names:
            references.setdefault(source, {}).setdefault(relation, []).append(names[target])
            continue
        (x1, y1), (x2, y2) = place[source - first], place[target - first]
        if relation == "structural":
            path = f"M{x2} {y2:.0f}V{y1:.0f}H{x1}"
        else:
            path = f"M{x1} {y1:.0f}Q{min(x1, x2) - 8 - 0.15 * abs(y2 - y1):.0f} {(y1 + y2) / 2:.0f} {x2} {y2:.0f}"
        lines.append(f'<path d="{path}" fill="none" stroke="{color[relation]}" stroke-width="1.5"/>')
    texts = graph.texts(np.array(layout.nodes))
    for node, (x, y), text in zip(layout.nodes, place, texts, strict=True):
        label = escape(_shortened(text, 48) or "(no title)")
        for relation, others in references.get(node, {}).items():
            label += f'<tspan fill="{color[relation]}"> → {escape(_shortened(", ".join(others), 36))}</tspan>'
        if graph.node_type[node] == 0:
            lines.append(f'<rect x="{x - 4}" y="{y - 4:.0f}" width="8" height="8" fill="{NEUTRAL}"/>')
            lines.append(f'<text x="{x + 9}" y="{y + 4:.0f}">{label}</text>')
        else:
            lines.append(f'<circle cx="{x}" cy="{y:.0f}" r="4" fill="{NEUTRAL}"/>')
            lines.append(f'<text x="{x + 9}" y="{y + 4:.0f}" font-weight="bold">{label}</text>')
    drawn = {relation for relation, _, _ in layout.edges}
    bottom = ROW * (len(layout.nodes) + 0.9)
    cut = f'<tspan fill="{NEUTRAL}">first {len(layout.nodes)} nodes  </tspan>' if layout.cut[0] else ""
    lines.append(_legend({relation: color[relation] for relation in color if relation in drawn}, bottom, cut))
    return _svg(lines, bottom)


def query_passage_html(graph: QueryPassageGraph, title: str, calls: Sequence[str]) -> str:
    """As :func:`graph_html`, for a graph of queries and passages."""
    sizes = {"queries": graph.num_queries, "passages": graph.num_passages}
    sizes |= {f"{edge_type} edges": edges for edge_type, edges in graph.num_edges.items()}
    try:
        picture = passage_svg(graph, small_passage(graph))
    except Exception:  # as above
        picture = ""
    return value(title, sizes, calls=calls, picture=picture)


def small_passage(graph: QueryPassageGraph) -> int:
    """Number of the passage with most queries that fits into a small picture, among those of the first queries."""
    first = np.arange(min(SEARCHED, graph.num_queries))
    passages = np.unique(np.concatenate([graph.edges_of_queries(first, kind).indices for kind in graph.edge_types]))
    degrees = sum(np.diff(graph.edges_of_passages(passages, kind).indptr) for kind in graph.edge_types)
    return int(passages[np.where(degrees <= NODES, degrees, -degrees).argmax()])


def passage_svg(graph: QueryPassageGraph, passage: int) -> str:
    """A passage and its queries as inline SVG; a query with edges of two relations is drawn twice."""
    found = [
        (kind, query, score)
        for kind in graph.edge_types
        for edges in [graph.edges_of_passages(np.array([passage]), kind)]
        for query, score in zip(edges.indices.tolist(), edges.data["scores"].tolist(), strict=True)
    ][:NODES]
    color = dict(zip(sorted(graph.edge_types), COLORS, strict=False))  # as in plots.passage_queries
    texts = graph.texts(np.array([query for _, query, _ in found]))
    middle, right = ROW * (len(found) / 2 + 0.2), WIDTH - 230
    lines = []
    for row, ((kind, _, score), text) in enumerate(zip(found, texts, strict=True)):
        y = ROW * (row + 0.7)
        path = f"M{right - 60} {y:.0f}L{right} {middle:.0f}"
        lines.append(f'<path d="{path}" stroke="{color[kind]}" stroke-width="1.5"/>')
        label = f'{escape(_shortened(text, 40))}<tspan fill="{NEUTRAL}">  {score:.3g}</tspan>'
        lines.append(f'<text x="{right - 66}" y="{y + 4:.0f}" text-anchor="end">{label}</text>')
    name = escape(_shortened(graph.docnos_of(np.array([passage]))[0], 32))
    lines.append(f'<rect x="{right - 4}" y="{middle - 4:.0f}" width="8" height="8" fill="{NEUTRAL}"/>')
    lines.append(f'<text x="{right + 9}" y="{middle + 4:.0f}">{name}</text>')
    bottom = ROW * (len(found) + 0.9)
    lines.append(_legend({kind: color[kind] for kind, _, _ in found}, bottom))
    return _svg(lines, bottom)


def _legend(colors: dict[str, str], y: float, before: str = "") -> str:
    names = "".join(f'<tspan fill="{color}">— {escape(name)}  </tspan>' for name, color in colors.items())
    return f'<text x="4" y="{y:.0f}" xml:space="preserve">{before}{names}</text>'


def _svg(lines: list[str], bottom: float) -> str:
    height = round(bottom + 8)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12" fill="currentColor">{"".join(lines)}</svg>'
    )


def _shortened(text: str, width: int) -> str:
    text = " ".join(text[: 4 * width].split())
    return text if len(text) <= width else f"{text[: width - 1]}…"
