"""Where the nodes of one document stand in a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pyterrier_graph.graphs.relations import TITLE

if TYPE_CHECKING:
    from pyterrier_graph.graphs.hetero_graph import HeteroGraph


class DocumentLayout(NamedTuple):
    """One document's nodes and edges; reading order runs downwards, depth to the right.

    Attributes:
        nodes: The nodes that are drawn, in document order.
        depth: Per node the number of sections that hold it.
        abroad: Nodes of other documents that these nodes refer to, in order of appearance.
        edges: Relation, source and target of what is drawn; a relation and its inverse are one edge.
        cut: How many nodes of the document and how many of others are not drawn.
    """

    nodes: list[int]
    depth: list[int]
    abroad: list[int]
    edges: list[tuple[str, int, int]]
    cut: tuple[int, int]


def document_layout(graph: HeteroGraph, document: int, most: int) -> DocumentLayout:
    """Lays out one document.

    Args:
        graph: The graph.
        document: Its number.
        most: Number of nodes after which the document is cut, and after which those of other documents are.
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
    outside = list(dict.fromkeys(target for _, _, target in found if not start <= target < end))
    drawn = {*nodes.tolist(), *outside[:most]}
    return DocumentLayout(
        nodes.tolist(),
        depth,
        outside[:most],
        [edge for edge in found if edge[2] in drawn],
        (end - start - len(nodes), max(0, len(outside) - most)),
    )


def abroad_names(graph: HeteroGraph, nodes: list[int]) -> list[str]:
    """What nodes of other documents are called: the document's name, or the passage's where a passage is meant."""
    if not nodes:
        return []
    numbers = np.array(nodes)
    docnos, ids = graph.docnos_of(graph.document[numbers]), graph.ids_of(numbers)
    roots = (graph.parent[numbers] < 0).tolist()
    return [docno if root else identifier for docno, identifier, root in zip(docnos, ids, roots, strict=True)]
