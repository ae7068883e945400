"""Paths of relations: ``'structural/structural'`` leads from a passage to the section that holds its section."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pyterrier_graph.graphs.extraction import inverse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyterrier_graph.graphs.hetero_graph import HeteroGraph

STEP = "/"


def follow(graph: HeteroGraph, nodes: np.ndarray, path: str) -> tuple[np.ndarray, np.ndarray]:
    """The nodes that some nodes reach along a path of relations, themselves left out.

    Args:
        graph: The graph.
        nodes: Node numbers, shape (n,).
        path: A relation, or several joined by ``/``.

    Returns:
        Two int64 arrays, one element per pair: the position in ``nodes``, and the node reached.
        A node that is reached in two ways is listed once.
    """
    steps = path.split(STEP)
    rows, reached = graph.neighbors(nodes, steps[0])
    for relation in steps[1:]:
        step, reached = graph.neighbors(reached, relation)
        rows = rows[step]
    if len(steps) == 1:
        return rows, reached
    elsewhere = reached != nodes[rows]
    pairs = np.unique(np.stack([rows[elsewhere], reached[elsewhere]]), axis=1)
    return pairs[0], pairs[1]


def inverse_path(path: str) -> str:
    """The path that leads back."""
    return STEP.join(inverse(relation) for relation in reversed(path.split(STEP)))


def check_paths(graph: HeteroGraph, paths: Iterable[str]) -> None:
    """Raises ValueError if a path names a relation that the graph does not have."""
    for path in paths:
        for relation in path.split(STEP):
            if relation not in graph.relations:
                raise ValueError(f"{path!r}: the graph has no relation {relation!r}, only {', '.join(graph.relations)}")
