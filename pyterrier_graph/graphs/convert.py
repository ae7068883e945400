"""Graphs for other libraries: PyTorch Geometric, networkx, and adaptive retrieval (GAR, LADR)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.artifacts import writing
from pyterrier_graph.checks import check_choice, check_count
from pyterrier_graph.graphs.extraction import NODE_TYPES
from pyterrier_graph.graphs.ids import writing_ids
from pyterrier_graph.graphs.relations import check_relations, follow

if TYPE_CHECKING:
    import networkx
    from pyterrier_adaptive import NpTopKCorpusGraph
    from torch_geometric.data import HeteroData

    from pyterrier_graph.graphs.hetero_graph import HeteroGraph

CHUNK = 1 << 16


def to_hetero_data(graph: HeteroGraph, documents: Sequence[str] | np.ndarray | None = None) -> HeteroData:
    """The graph for PyTorch Geometric.

    Node types are ``'passage'`` and ``'section'``; ``data[type].node`` has the graph's node numbers. Messages of
    PyTorch Geometric go from ``edge_index[0]`` to ``edge_index[1]``. Along an edge i -> j of this graph, node i
    aggregates from j. So the edge becomes a column (j, i) of the edge type ``(type of j, relation, type of i)``. Edge
    types without edges are left out.

    Of ``documents``, docnos or document numbers, nodes and edges between them are taken; None stands for all.
    """
    import torch
    from torch_geometric.data import HeteroData

    nodes = _nodes(graph, documents)
    types = graph.node_type[nodes]
    number = np.zeros(len(nodes), dtype=np.int64)  # of a node among those of its type
    data = HeteroData()
    for kind, name in enumerate(NODE_TYPES):
        of_kind = np.flatnonzero(types == kind)
        number[of_kind] = np.arange(len(of_kind))
        data[name].node = torch.from_numpy(nodes[of_kind])
        data[name].num_nodes = len(of_kind)
    for relation in graph.relations:
        i, j = _edges(graph, nodes, relation)
        for type_i, name_i in enumerate(NODE_TYPES):
            for type_j, name_j in enumerate(NODE_TYPES):
                chosen = (types[i] == type_i) & (types[j] == type_j)
                if chosen.any():
                    edges = np.stack([number[j[chosen]], number[i[chosen]]])
                    data[name_j, relation, name_i].edge_index = torch.from_numpy(edges)
    return data


def to_networkx(graph: HeteroGraph, documents: Sequence[str] | np.ndarray | None = None) -> networkx.MultiDiGraph:
    """The graph for networkx.

    Nodes are ids (``docno%pN``, ``docno%sN``) with the attributes ``type`` (``'passage'`` or ``'section'``), ``text``
    and ``document`` (its docno). Edges have the directions of :class:`~pyterrier_graph.graphs.HeteroGraph`; the key
    of an edge, and its attribute ``relation``, is the name of the relation. Inverse relations are left out. Arguments
    are those of :func:`to_hetero_data`.
    """
    import networkx

    nodes = _nodes(graph, documents)
    names = graph.ids_of(nodes)
    types = [NODE_TYPES[kind] for kind in graph.node_type[nodes]]
    attributes = zip(names, types, graph.texts(nodes), graph.docnos_of(graph.document[nodes]), strict=True)
    converted = networkx.MultiDiGraph()
    converted.add_nodes_from(
        (name, {"type": kind, "text": text, "document": docno}) for name, kind, text, docno in attributes
    )
    for relation in graph.relations[::2]:
        i, j = _edges(graph, nodes, relation)
        converted.add_edges_from(
            ((names[a], names[b], relation) for a, b in zip(i.tolist(), j.tolist(), strict=True)), relation=relation
        )
    return converted


def write_corpus_graph(
    graph: HeteroGraph,
    relations: str | Sequence[str],
    k: int,
    path: str | os.PathLike[str],
    *,
    over: Literal["passages", "documents"] = "passages",
    verbose: bool = True,
) -> NpTopKCorpusGraph:
    """Writes relations as a corpus graph with k neighbors each, for adaptive retrieval by ``pyterrier_adaptive``.

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
            pt.tqdm(total=count, desc="corpus graph", unit=over[:-1], delay=1, disable=not verbose) as progress,
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


def _nodes(graph: HeteroGraph, documents: Sequence[str] | np.ndarray | None) -> np.ndarray:
    """Nodes of some documents, ascending."""
    if documents is None:
        return np.arange(graph.num_nodes)
    if not isinstance(documents, np.ndarray) or documents.dtype.kind not in "iu":
        documents = graph.document_of(list(documents))
    return graph.nodes_of_documents(np.unique(documents))[1]


def _edges(graph: HeteroGraph, nodes: np.ndarray, relation: str) -> tuple[np.ndarray, np.ndarray]:
    """Edges i -> j between nodes (ascending), as positions in them."""
    i, neighbor = graph.neighbors(nodes, relation)
    if not len(i):
        return i, neighbor
    j = np.minimum(np.searchsorted(nodes, neighbor), len(nodes) - 1)
    inside = nodes[j] == neighbor
    return i[inside], j[inside]


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
        found.append(pd.DataFrame({"row": row, "priority": priority, "neighbor": neighbor})[joins])
    edges = pd.concat(found).sort_values(["row", "priority", "neighbor"])
    edges = edges.drop_duplicates(["row", "neighbor"])  # the first relation that leads to a neighbor decides its place
    edges = edges[edges.groupby("row").cumcount() < k]
    return edges["row"].to_numpy(), edges["neighbor"].to_numpy()
