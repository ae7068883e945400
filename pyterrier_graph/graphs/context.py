"""Passages and documents as records for any indexer, with the texts of their neighbors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np

from pyterrier_graph.checks import positions
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.hetero_graph import HeteroGraph, check_relations
from pyterrier_graph.graphs.relations import QUERY_RELATIONS
from pyterrier_graph.storage.arrays import blocks, numbers_of

if TYPE_CHECKING:
    from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph

Kind = Literal["passages", "documents"]

BLOCK = 1024  # passages or documents whose texts are read together
MOST = 100  # texts per record and relation


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
    fields: bool,
) -> Iterator[dict[str, str]]:
    """The records of :meth:`DocumentGraph.get_corpus_iter`. Memory holds a block of nodes and their neighbors."""
    if kind not in ("passages", "documents"):
        raise ValueError(f"kind must be 'passages' or 'documents', got {kind!r}")
    relations = [*dict.fromkeys([context] if isinstance(context, str) else context)]
    if kind == "documents":
        if relations:
            raise ValueError("context= is for passages: it cannot be added to documents")
        return _documents(graph)
    check_graphs(relations, graph, query_graph)
    return _passages(graph, relations, query_graph, fields)


def _documents(graph: HeteroGraph) -> Iterator[dict[str, str]]:
    """A record per document, with the title of its root section."""
    for numbers in blocks(len(graph), BLOCK):
        roots = graph.roots[numbers]
        bounds = zip(graph.node_offsets[numbers], graph.node_offsets[numbers + 1], strict=True)
        rows = zip(graph.docnos_of(numbers), graph.texts(roots), roots, bounds, strict=True)
        for docno, title, root, (start, end) in rows:
            nodes = np.arange(start, end)
            texts = graph.texts(nodes[nodes != root])
            yield {"docno": docno, "title": title, "text": "\n".join(filter(None, texts))}


def _passages(
    graph: HeteroGraph, relations: list[str], query_graph: QueryPassageGraph | None, fields: bool
) -> Iterator[dict[str, str]]:
    """A record per passage, with its titles or its context."""
    for numbers in blocks(len(graph.passage_nodes), BLOCK):
        nodes = graph.passage_nodes[numbers]
        docnos, texts = graph.ids_of(nodes), graph.texts(nodes)
        if not relations:
            for docno, title, text in zip(docnos, graph.titles(nodes), texts, strict=True):
                yield {"docno": docno, "title": title, "text": text}
            continue
        context = [_context(graph, query_graph, nodes, relation) for relation in relations]
        for docno, text, *related in zip(docnos, texts, *context, strict=True):
            if fields:
                record = {"docno": docno, "text": text}
                for relation, texts_of_relation in zip(relations, related, strict=True):
                    record[relation] = _joined(texts_of_relation)
                yield record
            else:
                yield {"docno": docno, "text": _joined(chain(*related, [text]))}


def _context(
    graph: HeteroGraph, query_graph: QueryPassageGraph | None, nodes: np.ndarray, relation: str
) -> list[list[str]]:
    """The texts of each passage's neighbors along a relation."""
    if query_graph is not None and relation in QUERY_RELATIONS:
        rows = _queries(graph, query_graph, nodes, relation)
        texts = query_graph.texts(rows.indices)
    else:
        row, neighbor = graph.neighbors(nodes, relation)
        rows = _best(row, neighbor, np.zeros(len(row)), len(nodes))
        texts = graph.texts(rows.indices)
    return [texts[start:end] for start, end in pairwise(rows.indptr.tolist())]


def _queries(
    graph: HeteroGraph, query_graph: QueryPassageGraph, nodes: np.ndarray, relation: str
) -> CSR:
    """The queries of each passage with the highest scores."""
    passages = numbers_of(query_graph.docnos, graph.ids_of(nodes))
    known = np.flatnonzero(passages >= 0)
    edges = query_graph.edges_of_passages(passages[known], relation)
    return _best(known[edges.row_index], edges.indices, edges.data["scores"], len(nodes))


def _best(rows: np.ndarray, elements: np.ndarray, scores: np.ndarray, count: int) -> CSR:
    """The ``MOST`` elements of each row with the highest scores, best first."""
    order = np.lexsort((elements, -scores, rows))
    rows, elements = rows[order], elements[order]
    is_best = positions(rows) < MOST
    return CSR.group(rows[is_best], elements[is_best], count)


def _joined(texts: Iterable[str]) -> str:
    """The distinct texts, one per line."""
    return "\n".join(filter(None, dict.fromkeys(texts)))
