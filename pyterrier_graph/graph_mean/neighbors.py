"""The passages of an index with their neighbors: queries, and parts of their documents."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pyterrier_graph.encoders.stored_vectors import (
    Mixed,
    digests_of,
    encode_once,
    encoder_name,
    without_bars,
)
from pyterrier_graph.graphs.context import check_graphs
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.hetero_graph import SECTION_TYPE, HeteroGraph
from pyterrier_graph.graphs.relations import QUERY_RELATIONS, RETRIEVED, TITLE
from pyterrier_graph.storage.arrays import IDS_AT_ONCE, Flex, blocks, ids_of, numbers_of
from pyterrier_graph.storage.writer import Workers

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder, FlexIndex

    from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph

FEATURES = "features"  # of the edges of a query graph
COMPARED = 256  # passages whose ids are compared to see whether an index and a graph have the same passages


@dataclass(frozen=True)
class NeighborBatch:
    """Some passages with their neighbors.

    Attributes:
        passages: Vectors x_p of the passages, shape (passages, d).
        sources: By relation, the vectors of the sources, shape (sources, d).
        edges: By relation, for each passage the rows of its sources.
        second_hop: For networks in which queries aggregate from passages first: the vectors of these passages.
        to_queries: For each query the rows of its passages in ``second_hop``.
        queries: Numbers of the queries in their graph, by row of the sources.
        nodes: By relation, the numbers of the sources in the document graph, by row of the sources.
    """

    passages: Tensor
    sources: Mapping[str, Tensor]
    edges: Mapping[str, CSR]
    second_hop: Tensor | None = None
    to_queries: CSR | None = None
    queries: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    nodes: Mapping[str, np.ndarray] = field(default_factory=dict)

    def to(self, device: torch.device | str) -> NeighborBatch:
        """Moves the tensors to a device."""
        return replace(
            self,
            passages=self.passages.to(device),
            sources={name: vectors.to(device) for name, vectors in self.sources.items()},
            edges={name: edges.to(device) for name, edges in self.edges.items()},
            second_hop=None if self.second_hop is None else self.second_hop.to(device),
            to_queries=None if self.to_queries is None else self.to_queries.to(device),
        )


class NeighborSampler:
    """Assembles neighborhoods: the vectors of an index's passages and of their sources, and the edges between them.

    ``titled`` are the vectors of the same passages with the titles above them in front, and ``share`` is their share in
    the vector of a passage. With ``two_hops`` queries aggregate from passages, too. The encoder encodes queries and
    titles once, into files of ``folder``.
    """

    _workers: Workers = 1

    def __init__(
        self,
        index: Flex | FlexIndex,
        encoder: BiEncoder,
        relations: Sequence[str],
        graph: HeteroGraph | None,
        query_graph: QueryPassageGraph | None,
        *,
        titled: Flex | FlexIndex | None = None,
        share: float = 0.0,
        two_hops: bool = False,
        edge_features: bool = False,
        folder: Path,
        verbose: bool,
    ) -> None:
        self.docnos, vectors, about = index.payload()
        self.vectors = vectors if titled is None else Mixed(vectors, titled.payload()[1], share)
        self.index, self.titled, self.dimension = index, titled, about["vec_size"]
        self.encoder, self.graph, self.query_graph = encoder, graph, query_graph
        self.two_hops, self.edge_features = two_hops, edge_features
        self.folder, self.verbose = folder, verbose
        check_graphs(relations, graph, query_graph)
        self.query_relations = [name for name in relations if name in QUERY_RELATIONS]
        self.document_relations = [name for name in relations if name not in QUERY_RELATIONS]
        if query_graph is not None and self.query_relations:
            sample = np.linspace(0, len(self) - 1, min(len(self), COMPARED)).astype(
                np.int64
            )  # from all over
            if query_graph.num_passages != len(self) or ids_of(
                query_graph.docnos, sample
            ) != self.docnos_of(sample):
                raise ValueError(
                    f"{query_graph!r} was built for the passages of another index, or in another order"
                )

    def __len__(self) -> int:
        """Number of passages."""
        return len(self.vectors)

    def sample(
        self,
        passages: np.ndarray,
        query_graph: QueryPassageGraph | None = None,
        states: np.ndarray | None = None,
    ) -> NeighborBatch:
        """Some passages, by number, with all their neighbors; a query graph with a mask may be given.

        The states of all queries, shape (queries, d), take the place of their vectors and of the second hop.
        """
        query_graph = self.query_graph if query_graph is None else query_graph
        sources: dict[str, Tensor] = {}
        edges: dict[str, CSR] = {}
        nodes: dict[str, np.ndarray] = {}
        queries, second_hop, to_queries = np.empty(0, dtype=np.int64), None, None
        if query_graph is not None and self.query_relations:
            found = {
                name: query_graph.edges_of_passages(passages, name) for name in self.query_relations
            }
            queries, rows = _joined([of.indices for of in found.values()])
            vectors = self.query_vectors if states is None else states
            sources = dict.fromkeys(found, torch.from_numpy(vectors[queries]))
            if self.two_hops and states is None:
                second_hop, to_queries = self.passages_of_queries(queries, query_graph)
            for (name, of), indices in zip(found.items(), rows, strict=True):
                edges[name] = self._edges(query_graph, name, of, indices)
        for relation in self.document_relations:
            nodes[relation], sources[relation], edges[relation] = self._related(passages, relation)
        return NeighborBatch(
            self.vectors_of(passages), sources, edges, second_hop, to_queries, queries, nodes
        )

    def passages_of_queries(
        self, queries: np.ndarray, query_graph: QueryPassageGraph
    ) -> tuple[Tensor, CSR]:
        """The vectors of the passages that were retrieved for queries, and for each query the rows of its own."""
        found = query_graph.edges_of_queries(queries, RETRIEVED)
        passages, (rows,) = _joined([found.indices])
        return self.vectors_of(passages), self._edges(query_graph, RETRIEVED, found, rows)

    def sources_of(self, batch: NeighborBatch, relation: str) -> tuple[list[str], list[str]]:
        """Ids and texts of the sources of a relation, by edge."""
        if relation not in batch.edges:
            return [], []
        rows, graph, query_graph = (
            batch.edges[relation].indices.cpu().numpy(),
            self.graph,
            self.query_graph,
        )
        if relation in batch.nodes:
            assert graph is not None
            return [*map(str, graph.ids_of(batch.nodes[relation][rows]))], graph.texts(
                batch.nodes[relation][rows]
            )
        assert query_graph is not None
        return query_graph.qids_of(batch.queries[rows]), query_graph.texts(batch.queries[rows])

    def vectors_of(self, passages: np.ndarray) -> Tensor:
        """Vectors of passages, shape (n, d)."""
        return torch.from_numpy(np.asarray(self.vectors[passages], dtype=np.float32))

    def encode(self, workers: Workers = 1) -> None:
        """Encodes queries and titles now, so that processes that share a folder do not do it at the same time."""
        self._workers = workers
        if self.query_relations:
            _ = self.query_vectors
        if self.document_relations:
            _ = self.section_vectors

    @cached_property
    def query_vectors(self) -> np.ndarray:
        """Vectors of the query graph's queries, shape (queries, d), float32, memory-mapped."""
        graph = self.query_graph
        assert graph is not None
        digest = hashlib.sha256()
        for queries in blocks(graph.num_queries, IDS_AT_ONCE):
            digest.update(digests_of(graph.texts(queries)).tobytes())
        return self._encoded("queries", digest.hexdigest(), graph.num_queries, graph.texts)

    @cached_property
    def sections(self) -> np.ndarray:
        """Numbers of the sections with a title."""
        graph = self.graph
        assert graph is not None
        titled = np.zeros(graph.num_nodes, dtype=bool)
        titled[graph._adjacency(TITLE).indices] = True
        others = np.flatnonzero(
            (graph.node_type == SECTION_TYPE) & ~titled
        )  # no title, or nothing below it
        for part in blocks(len(others), IDS_AT_ONCE):
            titled[others[part]] = [bool(text.strip()) for text in graph.texts(others[part])]
        return np.flatnonzero(titled)

    @cached_property
    def section_vectors(self) -> np.ndarray:
        """Vectors of their titles, shape (sections, d), float32, memory-mapped."""
        graph, nodes = self.graph, self.sections
        assert graph is not None
        return self._encoded(
            "titles", graph.fingerprint(), len(nodes), lambda numbers: graph.texts(nodes[numbers])
        )

    @cached_property
    def nodes(self) -> np.ndarray:
        """Node of each passage in the document graph, shape (passages,)."""
        assert self.graph is not None
        (about,) = self.index.payload(return_docnos=False, return_dvecs=False)
        if (
            about.get("base", {}).get("graph") == self.graph.fingerprint()
        ):  # written in the graph's order
            return np.asarray(self.graph.passage_nodes)
        parts = [
            self.graph.nodes_of(self.docnos_of(part)) for part in blocks(len(self), IDS_AT_ONCE)
        ]
        return np.concatenate([np.empty(0, dtype=np.int64), *parts])

    @cached_property
    def rows(self) -> np.ndarray:
        """Per node its passage's number, or the number of passages plus its place among titles; -1 for neither."""
        assert self.graph is not None
        rows = np.full(self.graph.num_nodes, -1, dtype=np.int64)
        rows[self.nodes] = np.arange(len(self))
        rows[self.sections] = len(self) + np.arange(len(self.sections))
        return rows

    def docnos_of(self, passages: np.ndarray) -> list[str]:
        """Docnos of passages."""
        return ids_of(self.docnos, passages)

    def numbers_of(self, docnos: Sequence[str]) -> np.ndarray:
        """Numbers of passages, -1 for unknown ones, shape (n,)."""
        return numbers_of(self.docnos, docnos)

    def known_numbers_of(self, docnos: Sequence[str]) -> np.ndarray:
        """Numbers of passages; KeyError if one is unknown."""
        numbers = self.numbers_of(docnos)
        if (numbers < 0).any():
            raise KeyError(f"{docnos[int((numbers < 0).argmax())]!r} is not a passage of the index")
        return numbers

    def _related(self, passages: np.ndarray, relation: str) -> tuple[np.ndarray, Tensor, CSR]:
        """The nodes that passages reach by a relation: their numbers, vectors, and for each passage their rows."""
        assert self.graph is not None
        row, reached = self.graph.neighbors(self.nodes[passages], relation)
        kept = self.rows[reached] >= 0
        edges = CSR.group(row[kept], reached[kept], len(passages))
        nodes, (rows,) = _joined([edges.indices])
        place = self.rows[nodes]
        passage = place < len(self)
        vectors = np.empty((len(place), self.dimension), dtype=np.float32)
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

    def _encoded(
        self, name: str, digest: str, count: int, texts: Callable[[np.ndarray], list[str]]
    ) -> np.ndarray:
        encoder = without_bars(self.encoder)
        encode = encoder.encode_queries if name == "queries" else encoder.encode_docs
        identity = {"encoder": encoder_name(self.encoder), "texts": digest}
        options: dict[str, Any] = {"workers": self._workers, "verbose": self.verbose}
        return encode_once(self.folder, name, identity, count, texts, encode, **options)


def _joined(lists: Sequence[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """All numbers that occur, ascending, and the lists as rows among these."""
    numbers, rows = np.unique(np.concatenate(lists), return_inverse=True)
    return numbers, np.split(rows.reshape(-1), np.cumsum([len(part) for part in lists])[:-1])
