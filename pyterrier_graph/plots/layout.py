"""Positions of the nodes of one document in a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pyterrier_graph.graphs.relations import TITLE

if TYPE_CHECKING:
    from pyterrier_graph.graphs.hetero_graph import HeteroGraph


class DocumentLayout(NamedTuple):
    """One document's nodes and edges: reading order runs downwards, depth to the right.

    Attributes:
        nodes: The drawn nodes, in document order.
        depth: Number of sections that contain each node.
        outside: Referenced nodes of other documents, in order of appearance.
        names: Name of each node in ``outside``: the docno, or the id of a passage.
        edges: Relation, source and target of each drawn edge; a relation and its inverse are one edge.
        cut: Number of nodes of the document, and of other documents, that are not drawn.
    """

    nodes: list[int]
    depth: list[int]
    outside: list[int]
    names: list[str]
    edges: list[tuple[str, int, int]]
    cut: tuple[int, int]


def document_layout(graph: HeteroGraph, document: int, most: int) -> DocumentLayout:
    """Lays out one document.

    Args:
        graph: The graph.
        document: Number of the document.
        most: Maximum number of nodes of the document, and of other documents.
    """
    start, end = (int(number) for number in graph.node_offsets[document : document + 2])
    nodes = np.arange(start, min(end, start + most))
    depth: list[int] = []
    for parent in graph.parent[nodes].tolist():
        depth.append(0 if parent < 0 else depth[parent - start] + 1)
    found = [
        (relation, source, target)
        for relation in graph.relations[::2]  # each is followed by its inverse
        if relation != TITLE  # which repeats structural where sections have titles
        for rows, targets in [graph.neighbors(nodes, relation)]
        for source, target in zip(nodes[rows].tolist(), targets.tolist(), strict=True)
    ]
    others = list(dict.fromkeys(target for _, _, target in found if not start <= target < end))
    outside = np.array(others[:most], dtype=np.int64)
    names: list[str] = []
    if len(outside):
        docnos, ids = graph.docnos_of(graph.document[outside]), graph.ids_of(outside)
        is_root = (graph.parent[outside] < 0).tolist()
        names = [docno if root else name for docno, name, root in zip(docnos, ids, is_root, strict=True)]
    drawn = {*nodes.tolist(), *outside.tolist()}
    edges = [edge for edge in found if edge[2] in drawn]
    cut = (end - start - len(nodes), len(others) - len(outside))
    return DocumentLayout(nodes.tolist(), depth, outside.tolist(), names, edges, cut)
