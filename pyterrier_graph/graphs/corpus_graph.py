"""Relations as a corpus graph, for adaptive retrieval (GAR, LADR)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyterrier as pt

from pyterrier_graph.artifacts import writing
from pyterrier_graph.checks import check_choice, check_count
from pyterrier_graph.graphs.ids import writing_ids
from pyterrier_graph.graphs.relations import check_relations, follow

if TYPE_CHECKING:
    from pyterrier_adaptive import NpTopKCorpusGraph

    from pyterrier_graph.graphs.hetero_graph import HeteroGraph

CHUNK = 1 << 16


def write_corpus_graph(
    graph: HeteroGraph,
    relations: str | Sequence[str],
    k: int,
    path: str | os.PathLike[str],
    *,
    over: Literal["passages", "documents"] = "passages",
    verbose: bool = True,
) -> NpTopKCorpusGraph:
    """Writes relations as a corpus graph with k neighbors each, as ``pyterrier_adaptive`` has them.

    Passages or documents have the order of ``graph.get_corpus_iter(over)``. Every edge has weight 1. Where there are
    fewer than k neighbors, the same passage or document fills the other places, with weight 0. Where there are more,
    those of the first relations are taken, in the order of the graph.

    Args:
        graph: The graph.
        relations: One relation, or several, such as ``['order', 'order_i']`` for the passages before and after. Paths
            such as ``'title/title_i'`` are relations, too.
        k: Neighbors per passage or document.
        path: Folder of the corpus graph, which must not exist yet.
        over: ``'passages'``: edges between passages. ``'documents'``: edges between nodes of different documents, as
            edges between these documents (``'external'``, say).
        verbose: Whether to show progress.

    Returns:
        The corpus graph, opened.

    Raises:
        ImportError: If ``pyterrier_adaptive`` is not installed.
        FileExistsError: If there is something at ``path``.
        ValueError: If the graph has no such relation, k is less than 1, or there are no edges.
    """
    try:
        from pyterrier_adaptive import NpTopKCorpusGraph
    except ImportError as error:
        raise ImportError("a corpus graph needs pyterrier_adaptive: pip install pyterrier-adaptive") from error
    relations = [relations] if isinstance(relations, str) else [*relations]
    check_relations(graph, relations)
    check_count("k", k)
    check_choice("over", over, ("passages", "documents"))
    count = len(graph.passage_nodes) if over == "passages" else len(graph)
    meta = {
        "type": "corpus_graph",
        "format": "np_topk",
        "package_hint": "pyterrier-adaptive",
        "doc_count": count,
        "k": k,
        "relations": relations,
        "over": over,
    }
    edges_found = 0
    with writing(path, meta) as folder:
        with (
            open(folder / "edges.u32.np", "wb") as edges,
            open(folder / "weights.f16.np", "wb") as weights,
            writing_ids(folder / "docnos.npids") as ids,
            pt.tqdm(total=count, desc="corpus graph", unit=over[:-1], disable=not verbose) as progress,
        ):
            for start in range(0, count, CHUNK):
                numbers = np.arange(start, min(start + CHUNK, count))
                row, neighbor = _top(graph, numbers, relations, k, over)
                place = np.arange(len(row)) - np.searchsorted(row, row)
                table = np.repeat(numbers[:, None], k, axis=1)
                table[row, place] = neighbor
                table.astype("<u4").tofile(edges)
                weight = np.zeros(table.shape, dtype="<f2")
                weight[row, place] = 1
                weight.tofile(weights)
                names = graph.ids_of(graph.passage_nodes[numbers]) if over == "passages" else graph.docnos_of(numbers)
                for name in names:
                    ids.add(name)
                edges_found += len(row)
                progress.update(len(numbers))
            if not edges_found:
                raise ValueError(f"no edge of {', '.join(relations)} joins two {over}")
    return NpTopKCorpusGraph(path)


def _top(
    graph: HeteroGraph, numbers: np.ndarray, relations: Sequence[str], k: int, over: str
) -> tuple[np.ndarray, np.ndarray]:
    """The first k neighbors of some passages or documents; rows ascend."""
    found = []
    for priority, relation in enumerate(relations):
        if over == "passages":
            row, node = follow(graph, graph.passage_nodes[numbers], relation)
            neighbor = np.searchsorted(graph.passage_nodes, node)
            joins = graph.node_type[node] == 0
        else:
            document_row, nodes = graph.nodes_of_documents(numbers)
            node_row, node = follow(graph, nodes, relation)
            row, neighbor = document_row[node_row], graph.document[node]
            joins = neighbor != numbers[row]
        row, neighbor = row[joins], neighbor[joins]
        found.append(np.stack([row, np.full(len(row), priority), neighbor]))
    row, priority, neighbor = np.concatenate(found, axis=1)
    # each neighbor once, under the first relation that leads to it
    order = np.lexsort((priority, neighbor, row))
    row, priority, neighbor = row[order], priority[order], neighbor[order]
    first = np.ones(len(row), dtype=bool)
    first[1:] = (row[1:] != row[:-1]) | (neighbor[1:] != neighbor[:-1])
    row, priority, neighbor = row[first], priority[first], neighbor[first]
    order = np.lexsort((neighbor, priority, row))
    row, neighbor = row[order], neighbor[order]
    top = np.arange(len(row)) - np.searchsorted(row, row) < k
    return row[top], neighbor[top]
