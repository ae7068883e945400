"""Passages and documents as records for any indexer, with the texts of their neighbors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Literal

import numpy as np

from pyterrier_graph.graphs.hetero_graph import HeteroGraph, check_relations
from pyterrier_graph.graphs.relations import QUERY_RELATIONS
from pyterrier_graph.storage.arrays import blocks, numbers_of

if TYPE_CHECKING:
    from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph

Kind = Literal["passages", "documents"]

BLOCK = 1024  # passages or documents whose texts are read together


def check_graphs(
    relations: Sequence[str], graph: HeteroGraph | None, query_graph: QueryPassageGraph | None
) -> None:
    """Raises ValueError if a relation lacks its graph, or the graph does not have the relation."""
    for name in relations:
        if name not in QUERY_RELATIONS:
            if graph is None:
                raise ValueError(
                    f"{name!r} is a relation of documents: give graph=DocumentGraph(...)"
                )
            check_relations(graph, name)
        elif query_graph is None:
            raise ValueError(
                f"{name!r} is a relation of queries: give query_graph=QueryPassageGraph(...)"
            )
        elif name not in query_graph.edge_types:
            raise ValueError(
                f"{query_graph!r} has no {name!r} edges: build it with {QUERY_RELATIONS[name]}"
            )


def records(
    graph: HeteroGraph,
    kind: Kind,
    context: Sequence[str] | str,
    query_graph: QueryPassageGraph | None,
) -> Iterator[dict[str, str]]:
    """The records of :meth:`DocumentGraph.get_corpus_iter`. Memory holds a block of nodes and their neighbors."""
    if kind == "documents":
        return _documents(graph)
    relations = [context] if isinstance(context, str) else [*context]
    check_graphs(relations, graph, query_graph)
    return _passages(graph, relations, query_graph)


def _documents(graph: HeteroGraph) -> Iterator[dict[str, str]]:
    """A record per document, with the title of its root section."""
    for numbers in blocks(len(graph), BLOCK):
        roots = graph.roots[numbers]
        starts = graph.node_offsets[numbers]
        ends = graph.node_offsets[numbers + 1]
        docnos = graph.docnos_of(numbers)
        titles = graph.texts(roots)
        columns = docnos, titles, roots, starts, ends
        for docno, title, root, start, end in zip(*columns, strict=True):
            nodes = np.arange(start, end)
            texts = graph.texts(nodes[nodes != root])
            yield {"docno": docno, "title": title, "text": _joined(texts)}


def _passages(
    graph: HeteroGraph, relations: Sequence[str], query_graph: QueryPassageGraph | None
) -> Iterator[dict[str, str]]:
    """A record per passage, with its titles or its context."""
    for numbers in blocks(len(graph.passage_nodes), BLOCK):
        nodes = graph.passage_nodes[numbers]
        docnos = graph.ids_of(nodes)
        texts = graph.texts(nodes)
        if not relations:
            titles = graph.titles(nodes)
            for docno, title, text in zip(docnos, titles, texts, strict=True):
                yield {"docno": docno, "title": title, "text": text}
            continue
        contexts = [_context(graph, query_graph, nodes, relation) for relation in relations]
        for docno, text, *related in zip(docnos, texts, *contexts, strict=True):
            # related: along each relation, the texts of the passage's neighbors
            lines = chain(*related, [text])
            distinct = dict.fromkeys(lines)
            yield {"docno": docno, "text": _joined(distinct)}


def _context(
    graph: HeteroGraph, query_graph: QueryPassageGraph | None, nodes: np.ndarray, relation: str
) -> list[list[str]]:
    """The texts of each passage's neighbors along a relation, in the order of the graph."""
    if query_graph is not None and relation in QUERY_RELATIONS:
        passages = numbers_of(query_graph.docnos, graph.ids_of(nodes))
        known = np.flatnonzero(passages >= 0)
        edges = query_graph.edges_of_passages(passages[known], relation)
        row = known[edges.row_index]
        texts = query_graph.texts(edges.indices)
    else:
        row, neighbor = graph.neighbors(nodes, relation)
        order = np.lexsort((neighbor, row))
        row = row[order]
        texts = graph.texts(neighbor[order])
    related: list[list[str]] = [[] for _ in nodes]
    for number, text in zip(row.tolist(), texts, strict=True):
        related[number].append(text)
    return related


def _joined(texts: Iterable[str]) -> str:
    """The texts that are not empty, one per line."""
    return "\n".join(filter(None, texts))
