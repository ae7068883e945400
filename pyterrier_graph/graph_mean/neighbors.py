"""The neighborhoods of passages: queries that they answered, titles above them, passages around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pyterrier_graph.encoders.flex import Flex
from pyterrier_graph.encoders.stored_vectors import (
    encode_once,
    encoder_name,
    without_bars,
)
from pyterrier_graph.graphs.context import check_graphs
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.hetero_graph import SECTION_TYPE, HeteroGraph
from pyterrier_graph.graphs.relations import QUERY_RELATIONS, RELEVANT, RETRIEVED
from pyterrier_graph.storage.arrays import ids_of, numbers_of
from pyterrier_graph.storage.shards import Workers

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder, FlexIndex

    from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph

FEATURES = "features"  # name of the edge features of a query graph in ``CSR.data``
COMPARED = (
    256  # ids that are compared to see whether an index and a query graph have the same passages
)


@dataclass(frozen=True)
class NeighborBatch:
    """Some passages with their neighbors: the input of a network.

    Attributes:
        passages: Vectors x_p of the passages, shape (passages, d).
        sources: By relation, the vectors of the sources, shape (sources, d).
        edges: By relation, the rows of each passage's sources.
        second_hop: Vectors of the passages that queries aggregate from, shape (second hop, d); None without this hop.
        to_queries: The rows of each query's passages in ``second_hop``.
        queries: Numbers of the queries in their graph, by row of the sources.
        nodes: By relation, numbers of the sources in the document graph, by row of the sources.
        isolated_share: Beta of :func:`isolated_share` for the query graph.
    """

    passages: Tensor
    sources: Mapping[str, Tensor]
    edges: Mapping[str, CSR]
    second_hop: Tensor | None = None
    to_queries: CSR | None = None
    queries: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    nodes: Mapping[str, np.ndarray] = field(default_factory=dict)
    isolated_share: float = 0.0

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

    def with_vectors(self, passages: Tensor, queries: Tensor | None = None) -> NeighborBatch:
        """The same neighborhood with new vectors of the passages and, unless None, of the queries."""
        sources = dict(self.sources)
        if queries is not None:
            sources |= {name: queries for name in QUERY_RELATIONS if name in sources}
        return replace(self, passages=passages, sources=sources)


class NeighborSampler:
    """Looks up the neighborhoods of an index's passages.

    Texts of queries and titles are encoded once, into files of ``folder``.

    Args:
        index: The encoder's vectors of the passages.
        encoder: Encodes queries and titles.
        relations: The relations to follow.
        graph: The document graph.
        query_graph: The graph of training queries.
        two_hops: Whether queries aggregate from passages, before passages aggregate from queries.
        edge_features: Whether edges of the query graph have features.
        initial: The neighborhoods as they were before the encoder was trained jointly with a network. The second hop
            and the sources in documents keep these vectors, as in training (Liu et al. 2022, Sect. 3.4).
        folder: Where vectors of queries and titles are stored.
        verbose: Whether to show progress.
    """

    def __init__(
        self,
        index: Flex | FlexIndex,
        encoder: BiEncoder,
        relations: Sequence[str],
        graph: HeteroGraph | None,
        query_graph: QueryPassageGraph | None,
        *,
        two_hops: bool = False,
        edge_features: bool = False,
        initial: NeighborSampler | None = None,
        folder: Path,
        verbose: bool,
    ) -> None:
        check_graphs(relations, graph, query_graph)
        self.docnos, self.vectors, about = index.payload()
        self.index, self.dimension = index, about["vec_size"]
        self.encoder = encoder
        self.graph: Any = graph
        self.query_graph: Any = query_graph
        self.two_hops, self.edge_features = two_hops, edge_features
        self.initial = self if initial is None else initial
        self.folder, self.verbose = folder, verbose
        self.workers: Workers = 1
        self.query_relations = [name for name in relations if name in QUERY_RELATIONS]
        self.document_relations = [name for name in relations if name not in QUERY_RELATIONS]
        if query_graph is not None and self.query_relations:
            self._check_passages(query_graph)

    def _check_passages(self, graph: QueryPassageGraph) -> None:
        """Raises ValueError if the query graph has other passages, judged by a sample."""
        same = graph.num_passages == len(self)
        if same:
            sample = np.linspace(0, len(self) - 1, min(len(self), COMPARED)).astype(np.int64)
            same = ids_of(graph.docnos, sample) == self.docnos_of(sample)
        if not same:
            raise ValueError(
                f"{graph!r} was built for the passages of another index, or in another order"
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
        """Some passages, by number, with all of their neighbors.

        Args:
            passages: Numbers of the passages.
            query_graph: A view of the query graph without some queries or edges.
            states: States of all queries, shape (queries, d), in place of their vectors and of the second hop.
        """
        sources: dict[str, Tensor] = {}
        edges: dict[str, CSR] = {}
        nodes: dict[str, np.ndarray] = {}
        queries, second_hop, to_queries = np.empty(0, dtype=np.int64), None, None
        graph = self.query_graph if query_graph is None else query_graph
        if graph is not None and self.query_relations:
            rows = {name: graph.edges_of_passages(passages, name) for name in self.query_relations}
            queries, renumbered = _distinct([row.indices for row in rows.values()])
            vectors = self.query_vectors if states is None else states
            sources = dict.fromkeys(rows, torch.from_numpy(vectors[queries]))
            for (name, row), indices in zip(rows.items(), renumbered, strict=True):
                edges[name] = self._query_edges(graph, name, row, indices)
            if self.two_hops and states is None:
                second_hop, to_queries = self.passages_of_queries(queries, graph)
        for name in self.document_relations:
            nodes[name], sources[name], edges[name] = self.initial.document_sources(passages, name)
        return NeighborBatch(
            self.vectors_of(passages),
            sources,
            edges,
            second_hop,
            to_queries,
            queries,
            nodes,
            self.isolated_share,
        )

    def passages_of_queries(
        self, queries: np.ndarray, query_graph: QueryPassageGraph | None = None
    ) -> tuple[Tensor, CSR]:
        """Vectors of the passages that were retrieved for queries, and each query's rows among them."""
        graph = self.query_graph if query_graph is None else query_graph
        retrieved = graph.edges_of_queries(queries, RETRIEVED)
        passages, (rows,) = _distinct([retrieved.indices])
        vectors = self.initial.vectors_of(passages)
        return vectors, self._query_edges(graph, RETRIEVED, retrieved, rows)

    def document_sources(
        self, passages: np.ndarray, relation: str
    ) -> tuple[np.ndarray, Tensor, CSR]:
        """The nodes that passages reach along a relation, their vectors, and each passage's rows among them."""
        position, reached = self.graph.neighbors(self.nodes[passages], relation)
        has_vector = self.rows[reached] >= 0
        edges = CSR.group(position[has_vector], reached[has_vector], len(passages))
        nodes, (rows,) = _distinct([edges.indices])
        row = self.rows[nodes]
        is_passage = row < len(self)
        vectors = np.empty((len(nodes), self.dimension), dtype=np.float32)
        vectors[is_passage] = self.vectors[row[is_passage]]
        if not is_passage.all():
            vectors[~is_passage] = self.section_vectors[row[~is_passage] - len(self)]
        return nodes, torch.from_numpy(vectors), CSR(edges.indptr, rows).torch()

    def texts_of_sources(self, batch: NeighborBatch, relation: str) -> tuple[list[str], list[str]]:
        """Ids and texts of the sources of a relation, by edge."""
        rows = batch.edges[relation].indices.cpu().numpy()
        if relation in batch.nodes:
            nodes = batch.nodes[relation][rows]
            return self.graph.ids_of(nodes), self.graph.texts(nodes)
        queries = batch.queries[rows]
        return self.query_graph.qids_of(queries), self.query_graph.texts(queries)

    def vectors_of(self, passages: np.ndarray) -> Tensor:
        """Vectors of passages, shape (passages, d)."""
        return torch.from_numpy(np.asarray(self.vectors[passages], dtype=np.float32))

    def encode(self, workers: Workers = 1) -> None:
        """Encodes queries and titles now, so that processes that share a folder do not all do it."""
        self.workers = self.initial.workers = workers
        if self.query_relations:
            _ = self.query_vectors
        if self.document_relations:
            _ = self.initial.section_vectors

    @cached_property
    def isolated_share(self) -> float:
        """Beta of :func:`isolated_share` for the query graph; 0 if passages do not aggregate from relevant queries."""
        if RELEVANT not in self.query_relations:
            return 0.0
        edges = self.query_graph.edges_of_queries(np.arange(self.query_graph.num_queries), RELEVANT)
        return isolated_share(np.bincount(edges.indices, minlength=len(self)))

    @cached_property
    def query_vectors(self) -> np.ndarray:
        """Vectors of the query graph's queries, shape (queries, d), memory-mapped."""
        graph = self.query_graph
        return self._encoded("queries", graph.fingerprint(), graph.num_queries, graph.texts)

    @cached_property
    def section_vectors(self) -> np.ndarray:
        """Vectors of the titles of sections, shape (sections, d), memory-mapped."""
        graph, sections = self.graph, self.sections
        return self._encoded(
            "titles", graph.fingerprint(), len(sections), lambda rows: graph.texts(sections[rows])
        )

    @cached_property
    def sections(self) -> np.ndarray:
        """Nodes of the sections that have a title."""
        sections = np.flatnonzero(self.graph.node_type == SECTION_TYPE)
        titled = [bool(title.strip()) for title in self.graph.texts(sections)]
        return sections[np.array(titled, dtype=bool)]

    @cached_property
    def nodes(self) -> np.ndarray:
        """Node of each passage in the document graph, shape (passages,)."""
        (about,) = self.index.payload(return_docnos=False, return_dvecs=False)
        if about.get("base", {}).get("graph") == self.graph.fingerprint():  # in the graph's order
            return np.asarray(self.graph.passage_nodes)
        return self.graph.nodes_of(self.docnos_of(np.arange(len(self))))

    @cached_property
    def rows(self) -> np.ndarray:
        """Row of each node's vector, those of sections after those of passages; -1 for none; shape (nodes,)."""
        rows = np.full(self.graph.num_nodes, -1, dtype=np.int64)
        rows[self.nodes] = np.arange(len(self))
        rows[self.sections] = len(self) + np.arange(len(self.sections))
        return rows

    def docnos_of(self, passages: np.ndarray) -> list[str]:
        """Docnos of passages."""
        return ids_of(self.docnos, passages)

    def numbers_of(self, docnos: Sequence[str]) -> np.ndarray:
        """Numbers of passages, -1 for unknown ones, shape (passages,)."""
        return numbers_of(self.docnos, docnos)

    def known_numbers_of(self, docnos: Sequence[str]) -> np.ndarray:
        """Numbers of passages; raises KeyError if one is unknown."""
        numbers = self.numbers_of(docnos)
        if (numbers < 0).any():
            raise KeyError(f"{docnos[int((numbers < 0).argmax())]!r} is not a passage of the index")
        return numbers

    def _query_edges(
        self, graph: QueryPassageGraph, edge_type: str, edges: CSR, rows: np.ndarray
    ) -> CSR:
        """Edges of the query graph with the rows of their sources and, where wanted, their features."""
        data = {}
        if self.edge_features:
            features = graph.edge_features(edge_type)[edges.data["edges"]]
            data[FEATURES] = features.astype(np.float32)
        return CSR(edges.indptr, rows, data).torch()

    def _encoded(
        self, name: str, digest: str, count: int, texts: Callable[[np.ndarray], list[str]]
    ) -> np.ndarray:
        encoder = without_bars(self.encoder)
        encode = encoder.encode_queries if name == "queries" else encoder.encode_docs
        identity = {"encoder": encoder_name(self.encoder), "texts": digest}
        options: dict[str, Any] = {"workers": self.workers, "verbose": self.verbose}
        return encode_once(self.folder, name, identity, count, texts, encode, **options)


def isolated_share(queries: np.ndarray) -> float:
    r"""How likely a passage without relevant queries is relevant, as a share of its and another passage's chance.

    .. math::
        \beta = \frac{\frac{1 - c}{1 - u}}{\frac{1 - c}{1 - u} + \frac{c}{u}}

    u is the share of passages that have a relevant query. c is the chance that a passage which is relevant to a further
    query is one of them, estimated from the number of relevant ``queries`` of each passage: the share of pairs whose
    passage has several, with one more pair whose chance is u. If no passage ever answers twice, beta is nearly 1; if
    those that have answered are often relevant again, it is low.
    """
    u, pairs = float((queries > 0).mean()), int(queries.sum())
    if not 0 < u < 1:
        return 1.0
    c = (int(queries[queries > 1].sum()) + u) / (pairs + 1)
    isolated, answered = (1 - c) / (1 - u), c / u
    return isolated / (isolated + answered)


def _distinct(lists: Sequence[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """The distinct numbers of some lists, ascending, and the lists as rows among them."""
    numbers, rows = np.unique(np.concatenate(lists), return_inverse=True)
    return numbers, np.split(rows.reshape(-1), np.cumsum([len(part) for part in lists])[:-1])
