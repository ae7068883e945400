"""The passages of an index, and what they can listen to: training queries, and parts of their documents."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyterrier_graph.encoders.vector_files import encode_once
from pyterrier_graph.graphs.csr import offsets
from pyterrier_graph.graphs.hetero_graph import SECTION_TYPE, HeteroGraph
from pyterrier_graph.graphs.ids import ids_of, numbers_of
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.graphs.relations import RELEVANT, RETRIEVED, check_relations, follow
from pyterrier_graph.models.bipartite_attention import CSR
from pyterrier_graph.models.gnn_encoder import Neighborhood

if TYPE_CHECKING:
    from npids.lookup import Lookup
    from pyterrier_dr import BiEncoder, FlexIndex

IDS_AT_ONCE = 65_536
COMPARED = 256  # passages that tell whether an index and a graph, or two indexes, are of the same


class NeighborBatch(NamedTuple):
    """Some passages with what they hear.

    Attributes:
        neighborhood: Vectors and edges.
        queries: Numbers of the queries, which are the sources of ``'retrieved'`` and ``'relevant'``.
        nodes: Per relation, numbers of the nodes that are its sources.
    """

    neighborhood: Neighborhood
    queries: np.ndarray
    nodes: dict[str, np.ndarray]


class NeighborSampler:
    """Vectors of an index's passages and of all that they can hear.

    Args:
        index: The passages.
        encoder: Encodes the queries, and titles, once.
        channels: What passages hear: ``'retrieved'`` and ``'relevant'`` queries, and relations, or paths of them, of the
            document graph, such as ``'structural'``: the title of a passage's section.
        queries: The graph of queries, where they are heard.
        documents: The graph of documents, where relations are.
        two_hops: Whether queries hear passages.
        edge_features: Whether the graph's edge features are used.
        folder: Where vectors are kept; None for a temporary file.
        verbose: Whether to show progress.

    Raises:
        FileNotFoundError: If there is no index.
        ValueError: If a channel lacks its graph, or a graph has other passages than the index.
    """

    def __init__(
        self,
        index: FlexIndex,
        encoder: BiEncoder,
        channels: Sequence[str],
        queries: QueryPassageGraph | None,
        documents: HeteroGraph | None,
        *,
        two_hops: bool,
        edge_features: bool,
        folder: Path | None,
        verbose: bool,
    ) -> None:
        if not index.built():
            raise FileNotFoundError(f"no index at {str(index.index_path)!r}")
        self.docnos, self.vectors, _ = index.payload()
        self.index, self.encoder, self.queries, self.documents = index, encoder, queries, documents
        self.two_hops, self.edge_features, self.folder, self.verbose = two_hops, edge_features, folder, verbose
        self.query_channels = [name for name in channels if name in (RETRIEVED, RELEVANT)]
        self.relations = [name for name in channels if name not in (RETRIEVED, RELEVANT)]
        if self.query_channels:
            self._check_queries()
        if self.relations:
            if documents is None:
                raise ValueError(
                    f"channels {', '.join(self.relations)} are relations: give documents=DocumentGraph(...)"
                )
            check_relations(documents, self.relations)

    def __len__(self) -> int:
        """Number of passages."""
        return len(self.vectors)

    @cached_property
    def query_vectors(self) -> np.ndarray:
        """Vectors of the graph's queries, shape (queries, d), float32, memory-mapped."""
        assert self.queries is not None
        return self._encoded("queries", self.queries.fingerprint(), self.queries.num_queries, self.queries.texts)

    def encode(self) -> None:
        """Encodes what is not there yet, so that processes which share a folder need not do it at the same time."""
        if self.query_channels:
            _ = self.query_vectors
        if self.relations:
            _ = self.section_vectors

    @cached_property
    def sections(self) -> np.ndarray:
        """Numbers of the sections that have a title."""
        assert self.documents is not None
        sections = np.flatnonzero(self.documents.node_type == SECTION_TYPE)
        parts = (sections[start : start + IDS_AT_ONCE] for start in range(0, len(sections), IDS_AT_ONCE))
        titled = [bool(text.strip()) for part in parts for text in self.documents.texts(part)]
        return sections[np.array(titled, dtype=bool)]

    @cached_property
    def section_vectors(self) -> np.ndarray:
        """Vectors of their titles, shape (sections, d), float32, memory-mapped."""
        documents, sections = self.documents, self.sections
        assert documents is not None
        return self._encoded(
            "titles", documents.fingerprint(), len(sections), lambda numbers: documents.texts(sections[numbers])
        )

    @cached_property
    def nodes(self) -> np.ndarray:
        """Node of each passage in the document graph, shape (passages,)."""
        assert self.documents is not None
        parts = [self.documents.nodes_of(docnos) for docnos in self.docnos_in_parts()]
        return np.concatenate([np.empty(0, dtype=np.int64), *parts])

    @cached_property
    def rows(self) -> np.ndarray:
        """Per node its passage's number, or the number of passages plus its place among titles; -1 for neither."""
        assert self.documents is not None
        rows = np.full(self.documents.num_nodes, -1, dtype=np.int64)
        rows[self.nodes] = np.arange(len(self))
        rows[self.sections] = len(self) + np.arange(len(self.sections))
        return rows

    def docnos_in_parts(self) -> Iterator[list[str]]:
        """All docnos, some at a time."""
        for start in range(0, len(self), IDS_AT_ONCE):
            yield ids_of(self.docnos, np.arange(start, min(start + IDS_AT_ONCE, len(self))))

    def numbers_of(self, docnos: Sequence[str]) -> np.ndarray:
        """Numbers of passages, -1 for unknown ones, shape (n,)."""
        try:
            return numbers_of(self.docnos, docnos)
        except ValueError:  # npids raises at an id that does not look like those of an index
            return np.array([_number_of(self.docnos, docno) for docno in docnos], dtype=np.int64)

    def own(self, passages: np.ndarray) -> Tensor:
        """Vectors of passages, shape (n, d)."""
        return torch.from_numpy(np.asarray(self.vectors[passages], dtype=np.float32))

    def vectors_digest(self) -> str:
        """A digest of some vectors, which tells an index from one by another encoder."""
        return hashlib.sha256(np.ascontiguousarray(self.vectors[_some(len(self))]).tobytes()).hexdigest()

    def sample(self, passages: np.ndarray, graph: QueryPassageGraph | None = None) -> NeighborBatch:
        """All that some passages hear.

        Args:
            passages: Numbers of passages, shape (n,).
            graph: The graph of queries, some of them masked; by default with all.
        """
        graph = self.queries if graph is None else graph
        sources: dict[str, Tensor] = {}
        edges: dict[str, CSR] = {}
        heard, to_queries = None, None
        queries = np.empty(0, dtype=np.int64)
        if graph is not None and self.query_channels:
            lists = {name: graph.edges_of_passages(passages, name) for name in self.query_channels}
            queries, places = _joined([found.indices for found in lists.values()])
            vectors = torch.from_numpy(self.query_vectors[queries])
            for (name, found), place in zip(lists.items(), places, strict=True):
                sources[name], edges[name] = vectors, self._csr(graph, name, found, place)
            if self.two_hops:
                heard, to_queries = self.heard_by(queries, graph)
        nodes = {}
        for relation in self.relations:
            nodes[relation], sources[relation], edges[relation] = self.related(passages, relation)
        return NeighborBatch(Neighborhood(self.own(passages), sources, edges, heard, to_queries), queries, nodes)

    def query_edges(self, graph: QueryPassageGraph, passages: np.ndarray, edge_type: str) -> CSR:
        """For each passage its queries, by their numbers in the graph."""
        found = graph.edges_of_passages(passages, edge_type)
        return self._csr(graph, edge_type, found, found.indices)

    def heard_by(self, queries: np.ndarray, graph: QueryPassageGraph) -> tuple[Tensor, CSR]:
        """The passages that queries hear, shape (passages, d), and for each query which of them."""
        found = graph.edges_of_queries(queries, RETRIEVED)
        passages, (place,) = _joined([found.indices])
        return self.own(passages), self._csr(graph, RETRIEVED, found, place)

    def related(self, passages: np.ndarray, relation: str) -> tuple[np.ndarray, Tensor, CSR]:
        """The nodes that passages reach by a relation: their numbers, vectors, and for each passage which of them."""
        row, reached = self._reached(passages, relation)
        nodes, (place,) = _joined([reached])
        indptr = offsets(np.bincount(row, minlength=len(passages)))
        edges = CSR(torch.from_numpy(indptr), torch.from_numpy(place))
        return nodes, torch.from_numpy(self._vectors_of_nodes(nodes)), edges

    def _csr(self, graph: QueryPassageGraph, edge_type: str, edges: Any, places: np.ndarray) -> CSR:
        features = None
        if self.edge_features:
            features = torch.from_numpy(graph.edge_features(edge_type)[edges.data["edges"]].astype(np.float32))
        return CSR(torch.from_numpy(edges.indptr), torch.from_numpy(places), features)

    def _reached(self, passages: np.ndarray, relation: str) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of a position in ``passages`` and a node, of those that have a vector; positions ascend."""
        assert self.documents is not None
        row, reached = follow(self.documents, self.nodes[passages], relation)
        kept = self.rows[reached] >= 0
        row, reached = row[kept], reached[kept]
        order = np.argsort(row, kind="stable")
        return row[order], reached[order]

    def _vectors_of_nodes(self, nodes: np.ndarray) -> np.ndarray:
        rows = self.rows[nodes]
        passage = rows < len(self)
        vectors = np.empty((len(rows), self.vectors.shape[1]), dtype=np.float32)
        vectors[passage] = self.vectors[rows[passage]]
        if not passage.all():
            vectors[~passage] = self.section_vectors[rows[~passage] - len(self)]
        return vectors

    def _encoded(self, name: str, fingerprint: str, count: int, texts: Callable[[np.ndarray], list[str]]) -> np.ndarray:
        encoder = self.encoder
        encode = encoder.encode_queries if name == "queries" else encoder.encode_docs
        identity = {"encoder": name_of(encoder), "texts": fingerprint}
        return encode_once(self.folder, name, identity, count, texts, encode, verbose=self.verbose)

    def _check_queries(self) -> None:
        graph = self.queries
        if graph is None:
            raise ValueError(
                f"channels {', '.join(self.query_channels)} are queries: give queries=QueryPassageGraph(...)"
            )
        if missing := [name for name in self.query_channels if name not in graph.edge_types]:
            raise ValueError(f"{graph!r} has no {missing[0]!r} edges: build it with qrels=")
        sample = _some(len(self))
        if graph.num_passages != len(self) or ids_of(graph.docnos, sample) != ids_of(self.docnos, sample):
            raise ValueError(f"{graph!r} was built for the passages of another index, or in another order")


def name_of(encoder: BiEncoder) -> str:
    """What tells an encoder from others."""
    return getattr(encoder, "model_name", repr(encoder))


def _some(count: int) -> np.ndarray:
    return np.linspace(0, count - 1, min(count, COMPARED)).astype(np.int64)


def _number_of(lookup: Lookup, docno: str) -> int:
    try:
        return int(numbers_of(lookup, [docno])[0])
    except ValueError:
        return -1


def _joined(lists: Sequence[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """All numbers that occur, ascending, and the lists as places among these."""
    numbers, places = np.unique(np.concatenate(lists), return_inverse=True)
    return numbers, np.split(places.reshape(-1), np.cumsum([len(part) for part in lists])[:-1])
