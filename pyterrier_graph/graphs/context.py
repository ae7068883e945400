"""Passages and documents as records for any indexer, with the texts of their neighbors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pyterrier_graph.checks import check_choice
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.hetero_graph import PASSAGE_TYPE, HeteroGraph, Kind, check_relations
from pyterrier_graph.graphs.relations import QUERY_RELATIONS
from pyterrier_graph.storage.arrays import blocks, numbers_of

if TYPE_CHECKING:
    from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph

BLOCK = 1024  # nodes whose texts are read together
MOST = 100  # texts per record and relation
COMPARED = 256  # passages of a query graph that are looked up before the first record


def check_graphs(
    relations: Sequence[str], graph: HeteroGraph | None, query_graph: QueryPassageGraph | None
) -> None:
    """Raises ValueError if a relation lacks its graph, or the graph does not have the relation."""
    queries = [name for name in relations if name in QUERY_RELATIONS]
    paths = [name for name in relations if name not in QUERY_RELATIONS]
    if queries and query_graph is None:
        raise ValueError(
            f"{', '.join(queries)} are relations of queries: give query_graph=QueryPassageGraph(...)"
        )
    for name in queries:
        if query_graph is not None and name not in query_graph.edge_types:
            raise ValueError(
                f"{query_graph!r} has no {name!r} edges: build it with {QUERY_RELATIONS[name]}"
            )
    if paths and graph is None:
        raise ValueError(
            f"{', '.join(paths)} are relations of documents: give graph=DocumentGraph(...)"
        )
    if graph is not None:
        check_relations(graph, paths)


def records(
    graph: HeteroGraph,
    kind: Kind,
    context: Sequence[str] | str,
    query_graph: QueryPassageGraph | None,
    fields: bool,
) -> Iterator[dict[str, str]]:
    """The records of :meth:`DocumentGraph.get_corpus_iter`. Memory holds a block of nodes and their neighbors."""
    check_choice("kind", kind, ("passages", "documents"))
    relations = [*dict.fromkeys([context] if isinstance(context, str) else context)]
    check_graphs(relations, graph, query_graph)
    if query_graph is not None and not {*relations}.isdisjoint(QUERY_RELATIONS):
        _check_passages(graph, query_graph)
    if not relations:
        return _without_context(graph, kind)
    return _with_context(graph, kind, relations, query_graph, fields)


def _check_passages(graph: HeteroGraph, query_graph: QueryPassageGraph) -> None:
    """Raises ValueError if a query graph was built for other passages than the document graph's."""
    numbers = np.arange(0, query_graph.num_passages, max(1, query_graph.num_passages // COMPARED))
    docnos = query_graph.docnos_of(numbers)
    missing = np.flatnonzero(graph.find(docnos) < 0)
    if len(missing):
        raise ValueError(
            f"{query_graph!r} was built for other passages: {docnos[missing[0]]!r} is not in {graph!r}"
        )


def _blocks(graph: HeteroGraph, kind: Kind) -> Iterator[tuple[list[str], CSR]]:
    """Docnos of a block of records, and a row for each with the nodes whose texts are its own."""
    if kind == "passages":
        for numbers in blocks(len(graph.passage_nodes), BLOCK):
            nodes = graph.passage_nodes[numbers]
            yield graph.ids_of(nodes), CSR(np.arange(len(nodes) + 1), nodes)
        return
    first, offsets = 0, graph.node_offsets
    while first < len(graph):
        end = int(np.searchsorted(offsets, offsets[first] + BLOCK, side="right")) - 1
        end = max(first + 1, end)
        nodes = np.arange(offsets[first], offsets[end])
        rows = CSR(offsets[first : end + 1] - offsets[first], nodes)
        yield graph.docnos_of(np.arange(first, end)), rows
        first = end


def _without_context(graph: HeteroGraph, kind: Kind) -> Iterator[dict[str, str]]:
    for docnos, nodes in _blocks(graph, kind):
        if kind == "passages":
            titles = graph.titles(nodes.indices)
        else:
            is_root = graph.parent[nodes.indices] < 0
            titles, nodes = graph.texts(nodes.indices[is_root]), nodes.filter(~is_root)
        for docno, title, texts in zip(docnos, titles, _texts(graph, nodes), strict=True):
            yield {"docno": docno, "title": title, "text": _joined(texts)}


def _with_context(
    graph: HeteroGraph,
    kind: Kind,
    relations: list[str],
    query_graph: QueryPassageGraph | None,
    fields: bool,
) -> Iterator[dict[str, str]]:
    for docnos, nodes in _blocks(graph, kind):
        keys = nodes.row_index * graph.num_nodes + nodes.indices
        in_context = np.zeros(len(keys), dtype=bool)  # a node of the record itself may be, too
        context = []  # per relation the texts of each record
        for relation in relations:
            if query_graph is not None and relation in QUERY_RELATIONS:
                queries = _queries(graph, query_graph, nodes, relation)
                context.append(_texts(query_graph, queries))
            else:
                neighbors = _neighbors(graph, nodes, relation)
                context.append(_texts(graph, neighbors))
                reached = neighbors.row_index * graph.num_nodes + neighbors.indices
                in_context |= np.isin(keys, reached)
        own = _texts(graph, nodes.filter(~in_context))
        for docno, texts, *related in zip(docnos, own, *context, strict=True):
            if fields:
                columns = dict(zip(relations, map(_distinct, related), strict=True))
                yield {"docno": docno, "text": _joined(texts), **columns}
            else:
                yield {"docno": docno, "text": _distinct(chain(*related, texts))}


def _neighbors(graph: HeteroGraph, nodes: CSR, relation: str) -> CSR:
    """The nodes that each record's nodes lead to, the first ones in document order."""
    position, reached = graph.neighbors(nodes.indices, relation)
    return _best(nodes.row_index[position], reached, np.zeros(len(reached)), len(nodes))


def _queries(graph: HeteroGraph, query_graph: QueryPassageGraph, nodes: CSR, relation: str) -> CSR:
    """The queries of each record's passages, the ones with the highest scores."""
    is_passage = graph.node_type[nodes.indices] == PASSAGE_TYPE
    passages = numbers_of(query_graph.docnos, graph.ids_of(nodes.indices[is_passage]))
    known = passages >= 0
    edges = query_graph.edges_of_passages(passages[known], relation)
    row = nodes.row_index[is_passage][known][edges.row_index]
    return _best(row, edges.indices, edges.data["scores"], len(nodes))


def _best(rows: np.ndarray, elements: np.ndarray, scores: np.ndarray, count: int) -> CSR:
    """Groups pairs of a row and an element: up to ``MOST`` elements per row, distinct, the best first."""
    order = np.lexsort((elements, -scores, rows))
    pairs = pd.DataFrame({"row": rows[order], "element": elements[order]}).drop_duplicates()
    pairs = pairs.groupby("row").head(MOST)
    return CSR.group(pairs["row"].to_numpy(), pairs["element"].to_numpy(), count)


def _texts(graph: HeteroGraph | QueryPassageGraph, rows: CSR) -> list[list[str]]:
    texts = graph.texts(rows.indices)
    return [texts[start:end] for start, end in pairwise(rows.indptr.tolist())]


def _joined(texts: Iterable[str]) -> str:
    return "\n".join(filter(None, texts))


def _distinct(texts: Iterable[str]) -> str:
    return _joined(dict.fromkeys(texts))
