"""The passages of an index with their neighbors: queries, and parts of their documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pyterrier_graph.encoders.vector_files import VECTORS, encode_once
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.hetero_graph import SECTION_TYPE, HeteroGraph
from pyterrier_graph.graphs.ids import ids_of, numbers_of
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.graphs.relations import RELEVANT, RETRIEVED, check_relations, follow
from pyterrier_graph.models.bipartite_attention import FEATURES
from pyterrier_graph.models.passage_network import NeighborBatch
from pyterrier_graph.retrieve.index_identity import encoder_name, file_sha256, query_digests

if TYPE_CHECKING:
    from npids.lookup import Lookup
    from pyterrier_dr import BiEncoder, FlexIndex

IDS_AT_ONCE = 65_536
COMPARED = 256  # passages whose ids tell whether an index and a graph are of the same passages
QUERY_RELATIONS = (RETRIEVED, RELEVANT)
NEEDED = {RETRIEVED: "a retriever", RELEVANT: "qrels="}


class NeighborSampler:
    """Assembles neighborhoods: the vectors of an index's passages and of their sources, and the edges between them.

    Args:
        index: The vectors of the passages.
        encoder: Encodes the queries of the query graph, and titles, once.
        relations: What passages aggregate from: ``'retrieved'`` and ``'relevant'`` queries, and relations of the
            document graph, or paths of them, such as ``'title'`` and ``'order/order'``.
        graph: The document graph, for its relations.
        query_graph: The graph of queries, for these.
        two_hops: Whether queries aggregate from passages.
        edge_features: Whether the features of the query graph's edges are used.
        folder: Where vectors are kept; None for a temporary file.
        verbose: Whether to show progress.

    Raises:
        ValueError: If a relation lacks its graph, or a graph has other passages than the index.
    """

    def __init__(
        self,
        index: FlexIndex,
        encoder: BiEncoder,
        relations: Sequence[str],
        graph: HeteroGraph | None,
        query_graph: QueryPassageGraph | None,
        *,
        two_hops: bool,
        edge_features: bool,
        folder: Path | None,
        verbose: bool,
    ) -> None:
        self.docnos, self.vectors, _ = index.payload()
        self.index, self.encoder, self.graph, self.query_graph = index, encoder, graph, query_graph
        self.two_hops, self.edge_features, self.folder, self.verbose = two_hops, edge_features, folder, verbose
        check_graphs(relations, graph, query_graph)
        self.query_relations = [name for name in relations if name in QUERY_RELATIONS]
        self.document_relations = [name for name in relations if name not in QUERY_RELATIONS]
        if query_graph is not None and self.query_relations:
            sample = some_of(len(self))
            if query_graph.num_passages != len(self) or ids_of(query_graph.docnos, sample) != self.docnos_of(sample):
                raise ValueError(f"{query_graph!r} was built for the passages of another index, or in another order")

    def __len__(self) -> int:
        """Number of passages."""
        return len(self.vectors)

    def sample(
        self,
        passages: np.ndarray,
        query_graph: QueryPassageGraph | None = None,
        prepared: Mapping[str, Any] | None = None,
    ) -> NeighborBatch:
        """Some passages with all their neighbors.

        Args:
            passages: Numbers of passages, shape (n,).
            query_graph: The graph of queries, some of them masked; by default with all queries.
            prepared: Per query relation the sources, with a row for each query of the graph: the states of queries,
                prepared by the network. Without them the sources are the vectors of the passages' queries, and the
                second hop is part of the batch.
        """
        query_graph = self.query_graph if query_graph is None else query_graph
        sources: dict[str, Any] = {} if prepared is None else {name: prepared[name] for name in self.query_relations}
        edges: dict[str, CSR] = {}
        nodes: dict[str, np.ndarray] = {}
        queries, second_hop, to_queries = np.empty(0, dtype=np.int64), None, None
        if query_graph is not None and self.query_relations:
            found = {name: query_graph.edges_of_passages(passages, name) for name in self.query_relations}
            if prepared is None:
                queries, rows = _joined([of.indices for of in found.values()])
                sources = dict.fromkeys(found, torch.from_numpy(self.query_vectors[queries]))
                if self.two_hops:
                    second_hop, to_queries = self.passages_of_queries(queries, query_graph)
            else:
                rows = [of.indices for of in found.values()]
            for (name, of), indices in zip(found.items(), rows, strict=True):
                edges[name] = self._edges(query_graph, name, of, indices)
        for relation in self.document_relations:
            nodes[relation], sources[relation], edges[relation] = self._related(passages, relation)
        return NeighborBatch(self.vectors_of(passages), sources, edges, second_hop, to_queries, queries, nodes)

    def passages_of_queries(self, queries: np.ndarray, query_graph: QueryPassageGraph) -> tuple[Tensor, CSR]:
        """The vectors of the passages that were retrieved for queries, and for each query the rows of its own."""
        found = query_graph.edges_of_queries(queries, RETRIEVED)
        passages, (rows,) = _joined([found.indices])
        return self.vectors_of(passages), self._edges(query_graph, RETRIEVED, found, rows)

    def vectors_of(self, passages: np.ndarray) -> Tensor:
        """Vectors of passages, shape (n, d)."""
        return torch.from_numpy(np.asarray(self.vectors[passages], dtype=np.float32))

    def encode(self) -> None:
        """Encodes queries and titles now, so that processes which share a folder need not do it at the same time."""
        if self.query_relations:
            _ = self.query_vectors
        if self.document_relations:
            _ = self.section_vectors

    @cached_property
    def query_vectors(self) -> np.ndarray:
        """Vectors of the query graph's queries, shape (queries, d), float32, memory-mapped."""
        graph = self.query_graph
        assert graph is not None
        texts = query_digests(graph, (), graph.num_queries)["texts"]
        return self._encoded("queries", texts, graph.num_queries, graph.texts)

    @cached_property
    def sections(self) -> np.ndarray:
        """Numbers of the sections with a title."""
        graph = self.graph
        assert graph is not None
        sections = np.flatnonzero(graph.node_type == SECTION_TYPE)
        parts = (sections[start : start + IDS_AT_ONCE] for start in range(0, len(sections), IDS_AT_ONCE))
        titled = [bool(text.strip()) for part in parts for text in graph.texts(part)]
        return sections[np.array(titled, dtype=bool)]

    @cached_property
    def section_vectors(self) -> np.ndarray:
        """Vectors of their titles, shape (sections, d), float32, memory-mapped."""
        graph, sections = self.graph, self.sections
        assert graph is not None
        return self._encoded(
            "titles", graph.fingerprint(), len(sections), lambda numbers: graph.texts(sections[numbers])
        )

    @cached_property
    def nodes(self) -> np.ndarray:
        """Node of each passage in the document graph, shape (passages,)."""
        assert self.graph is not None
        parts = [self.graph.nodes_of(docnos) for docnos in self.docnos_in_parts()]
        return np.concatenate([np.empty(0, dtype=np.int64), *parts])

    @cached_property
    def rows(self) -> np.ndarray:
        """Per node its passage's number, or the number of passages plus its place among titles; -1 for neither."""
        assert self.graph is not None
        rows = np.full(self.graph.num_nodes, -1, dtype=np.int64)
        rows[self.nodes] = np.arange(len(self))
        rows[self.sections] = len(self) + np.arange(len(self.sections))
        return rows

    def docnos_in_parts(self) -> Iterator[list[str]]:
        """All docnos, some at a time."""
        for start in range(0, len(self), IDS_AT_ONCE):
            yield self.docnos_of(np.arange(start, min(start + IDS_AT_ONCE, len(self))))

    def docnos_of(self, passages: np.ndarray) -> list[str]:
        """Docnos by number of the passage."""
        return ids_of(self.docnos, passages)

    def numbers_of(self, docnos: Sequence[str]) -> np.ndarray:
        """Numbers of passages, -1 for unknown ones, shape (n,)."""
        try:
            return numbers_of(self.docnos, docnos)
        except ValueError:  # npids raises at an id that does not look like those of an index
            return np.array([_number_of(self.docnos, docno) for docno in docnos], dtype=np.int64)

    def in_query_graph(self, qids: Sequence[str], texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Which queries are in the query graph under their qid, and which have the text of another query there.

        Args:
            qids: Ids of queries.
            texts: Their texts, which are compared without regard to case and white space.

        Returns:
            Numbers of the queries in the graph by qid (-1 for unknown qids), and whether the text of an unknown qid is
            there; both of shape (queries,).
        """
        graph = self.query_graph
        if graph is None:
            return np.full(len(qids), -1), np.zeros(len(qids), dtype=bool)
        numbers = numbers_of(graph.qids, qids)
        keys = [_folded(text) for text in texts]
        wanted = {key for key, number in zip(keys, numbers.tolist(), strict=True) if number < 0}
        there: set[str] = set()
        for start in range(0, graph.num_queries if wanted else 0, IDS_AT_ONCE):
            part = np.arange(start, min(start + IDS_AT_ONCE, graph.num_queries))
            there |= wanted & {_folded(text) for text in graph.texts(part)}
        twins = [number < 0 and key in there for key, number in zip(keys, numbers.tolist(), strict=True)]
        return numbers, np.array(twins, dtype=bool)

    @cached_property
    def vectors_sha256(self) -> str:
        """SHA-256 of the passages' vectors."""
        return file_sha256(self.index.index_path / VECTORS)

    def _related(self, passages: np.ndarray, relation: str) -> tuple[np.ndarray, Tensor, CSR]:
        """The nodes that passages reach by a relation: their numbers, vectors, and for each passage their rows."""
        assert self.graph is not None
        row, reached = follow(self.graph, self.nodes[passages], relation)
        kept = self.rows[reached] >= 0
        edges = CSR.group(row[kept], reached[kept], len(passages))
        nodes, (rows,) = _joined([edges.indices])
        place = self.rows[nodes]
        passage = place < len(self)
        vectors = np.empty((len(place), self.vectors.shape[1]), dtype=np.float32)
        vectors[passage] = self.vectors[place[passage]]
        if not passage.all():
            vectors[~passage] = self.section_vectors[place[~passage] - len(self)]
        return nodes, torch.from_numpy(vectors), CSR(edges.indptr, rows).torch()

    def _edges(self, graph: QueryPassageGraph, edge_type: str, edges: CSR, rows: np.ndarray) -> CSR:
        """Edges of the query graph, with the rows of their sources and, where wanted, their features."""
        data = {}
        if self.edge_features:
            data[FEATURES] = graph.edge_features(edge_type)[edges.data["edges"]].astype(np.float32)
        return CSR(edges.indptr, rows, data).torch()

    def _encoded(self, name: str, digest: str, count: int, texts: Callable[[np.ndarray], list[str]]) -> np.ndarray:
        encode = self.encoder.encode_queries if name == "queries" else self.encoder.encode_docs
        identity = {"encoder": encoder_name(self.encoder), "texts": digest}
        return encode_once(self.folder, name, identity, count, texts, encode, verbose=self.verbose)


def check_graphs(relations: Sequence[str], graph: HeteroGraph | None, query_graph: QueryPassageGraph | None) -> None:
    """Raises ValueError if a relation lacks its graph, or the graph does not have the relation."""
    queries = [name for name in relations if name in QUERY_RELATIONS]
    others = [name for name in relations if name not in QUERY_RELATIONS]
    if queries and query_graph is None:
        raise ValueError(f"{', '.join(queries)} are relations of queries: give query_graph=QueryPassageGraph(...)")
    if query_graph is not None and (missing := [name for name in queries if name not in query_graph.edge_types]):
        raise ValueError(f"{query_graph!r} has no {missing[0]!r} edges: build it with {NEEDED[missing[0]]}")
    if others and graph is None:
        raise ValueError(f"{', '.join(others)} are relations of documents: give graph=DocumentGraph(...)")
    if graph is not None:
        check_relations(graph, others)


def some_of(count: int) -> np.ndarray:
    """Some numbers below a count, from all over."""
    return np.linspace(0, count - 1, min(count, COMPARED)).astype(np.int64)


def _folded(text: str) -> str:
    """A text without regard to case and white space."""
    return " ".join(text.casefold().split())


def _number_of(lookup: Lookup, docno: str) -> int:
    try:
        return int(numbers_of(lookup, [docno])[0])
    except ValueError:
        return -1


def _joined(lists: Sequence[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """All numbers that occur, ascending, and the lists as rows among these."""
    numbers, rows = np.unique(np.concatenate(lists), return_inverse=True)
    return numbers, np.split(rows.reshape(-1), np.cumsum([len(part) for part in lists])[:-1])
