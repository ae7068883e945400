"""The neighborhoods of passages: queries that they answered, titles above them, passages around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from pyterrier_graph.encoders.stored_vectors import (
    Texts,
    base_vectors,
    encode_once,
    encoder_name,
)
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.hetero_graph import SECTION_TYPE, HeteroGraph
from pyterrier_graph.graphs.relations import QUERY_RELATIONS, RELEVANT, RETRIEVED
from pyterrier_graph.storage.arrays import ids_of
from pyterrier_graph.storage.shards import Workers

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder

    from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph

PASSAGE, QUERY, NODE = "passage", "query", "node"  # node types of a batch
CANDIDATE = "candidate"  # a passage that was retrieved for a query, which aggregates from it
SECOND_HOP = CANDIDATE, RETRIEVED, QUERY
COMPARED_IDS = 256  # ids that tell whether an index and a query graph have the same passages


def edge_type(relation: str) -> tuple[str, str, str]:
    """A relation's type in a batch: ``('query', 'relevant', 'passage')`` or ``('node', 'titles', 'passage')``."""
    source_type = QUERY if relation in QUERY_RELATIONS else NODE
    return source_type, relation, PASSAGE


def relations_of(batch: HeteroData) -> list[str]:
    """The relations along which the passages of a batch aggregate."""
    return [name for _, name, target in batch.edge_types if target == PASSAGE]


def encoded_again(
    batch: HeteroData, passages: list[str], queries: list[str], encode: Callable[..., Tensor]
) -> HeteroData:
    """The same neighborhood with new vectors of its passages and queries, by ``encode(texts, task)``."""
    batch = copy(batch)
    batch[PASSAGE].x = encode(passages, "document")
    if queries:
        batch[QUERY].x = encode(queries, "query")
    return batch


class NeighborSampler:
    """Looks up the neighborhoods of a graph's passages, whose numbers are in the order of ``graph.passage_nodes``.

    Texts of passages, queries and titles are encoded once, into files of ``folder``.

    Args:
        encoder: Encodes passages with their titles in front, queries, and titles.
        graph: The document graph.
        query_graph: The graph of training queries.
        relations: The relations to follow.
        network: Tells whether queries aggregate from passages before passages aggregate from queries (``two_hops``),
            and whether edges of the query graph have features (``edge_features``).
        initial: The neighborhoods as they were before the encoder was trained jointly with a network. The second hop
            and the sources in documents keep these vectors, as in training (Liu et al. 2022, Sect. 3.4).
        folder: Where vectors are stored.
        workers: Number of processes that encode, or ``'ray'``.
        verbose: Whether to show progress.
    """

    def __init__(
        self,
        encoder: BiEncoder,
        graph: HeteroGraph,
        query_graph: QueryPassageGraph | None,
        relations: Sequence[str],
        *,
        network: Any,
        initial: NeighborSampler | None = None,
        folder: Path,
        workers: Workers = 1,
        verbose: bool = True,
    ) -> None:
        self.encoder = encoder
        self.graph = graph
        self.query_graph: Any = query_graph
        self.two_hops = network.two_hops
        self.edge_features = network.edge_features
        self.initial = self if initial is None else initial
        self.folder = folder
        self.workers = workers
        self.verbose = verbose
        self.index = base_vectors(
            folder, graph, encoder, titles=True, workers=workers, verbose=verbose
        )
        self.docnos, self.vectors, _ = self.index.payload()
        self.dimension = self.vectors.shape[1]  # d
        self.query_relations = [name for name in relations if name in QUERY_RELATIONS]
        self.document_relations = [name for name in relations if name not in QUERY_RELATIONS]
        if query_graph is not None and self.query_relations:
            self._check_passages(query_graph)

    def _check_passages(self, graph: QueryPassageGraph) -> None:
        """Raises ValueError if a sample shows that the query graph has other passages."""
        is_same = graph.num_passages == len(self)
        if is_same:
            sample = np.linspace(0, len(self) - 1, COMPARED_IDS).astype(np.int64)
            is_same = ids_of(graph.docnos, sample) == ids_of(self.docnos, sample)
        if not is_same:
            raise ValueError(f"{graph!r} was built for other passages, or in another order")

    def __len__(self) -> int:
        """Number of passages."""
        return len(self.vectors)

    def sample(
        self,
        passages: np.ndarray,
        query_graph: QueryPassageGraph | None = None,
        states: np.ndarray | None = None,
    ) -> HeteroData:
        """Looks up passages by number, with all of their neighbors: the input of a network.

        ``batch["passage"].x`` are the vectors of the passages, shape (passages, d). ``batch["query"].x`` and
        ``batch["node"].x`` are the vectors of their sources in the query graph and the document graph, whose numbers in
        these graphs are in ``n_id``. Edges, one type per relation (see :func:`edge_type`), are sorted by passage.
        ``batch.isolated_share`` is beta of :func:`isolated_share`.

        Args:
            passages: Numbers of the passages.
            query_graph: A view of the query graph without some queries or edges.
            states: States of all queries, shape (queries, d), in place of their vectors and of the second hop.
        """
        batch = HeteroData(isolated_share=self.isolated_share)
        batch[PASSAGE].x = self.vectors_of(passages)
        graph = self.query_graph if query_graph is None else query_graph
        if graph is not None and self.query_relations:
            rows = {name: graph.edges_of_passages(passages, name) for name in self.query_relations}
            vectors = self.query_vectors if states is None else states

            def vectors_of(queries: np.ndarray) -> np.ndarray:
                return vectors[queries]

            queries = self._connect(batch, QUERY, PASSAGE, rows, vectors_of, graph)
            if states is None:
                self._add_candidates(batch, queries, graph)
        if self.document_relations:
            self.initial.add_nodes(batch, passages, self.document_relations)
        return batch

    def sample_queries(self, queries: np.ndarray) -> HeteroData:
        """Looks up queries by number, with the passages that they aggregate from."""
        batch = HeteroData()
        batch[QUERY].x = torch.from_numpy(self.query_vectors[queries])
        self._add_candidates(batch, queries, self.query_graph)
        return batch

    def _add_candidates(
        self, batch: HeteroData, queries: np.ndarray, graph: QueryPassageGraph
    ) -> None:
        """Adds the passages that queries aggregate from, if they do."""
        if self.two_hops:
            rows = {RETRIEVED: graph.edges_of_queries(queries, RETRIEVED)}
            self._connect(batch, CANDIDATE, QUERY, rows, self.initial.vectors_of, graph)

    def add_nodes(self, batch: HeteroData, passages: np.ndarray, relations: Sequence[str]) -> None:
        """Adds the sources of passages in the document graph: passages, and sections with a title."""
        nodes = self.graph.passage_nodes[passages]
        rows = {}
        for name in relations:
            position, reached = self.graph.neighbors(nodes, name)
            has_vector = self.rows[reached] >= 0
            position = position[has_vector]
            reached = reached[has_vector]
            rows[name] = CSR.group(position, reached, len(passages))
        self._connect(batch, NODE, PASSAGE, rows, self._vectors_of_nodes)

    def _vectors_of_nodes(self, nodes: np.ndarray) -> np.ndarray:
        """Vectors of passages and titles, shape (nodes, d)."""
        rows = self.rows[nodes]
        is_passage = rows < len(self)
        passages = rows[is_passage]
        sections = rows[~is_passage] - len(self)
        vectors = np.empty((len(nodes), self.dimension), dtype=np.float32)
        vectors[is_passage] = self.vectors[passages]
        vectors[~is_passage] = self.section_vectors[sections]
        return vectors

    def _connect(
        self,
        batch: HeteroData,
        source_type: str,
        target_type: str,
        rows: dict[str, CSR],
        vectors_of: Callable[[np.ndarray], Any],
        query_graph: QueryPassageGraph | None = None,
    ) -> np.ndarray:
        """Adds the sources of each relation, and edges with the features that the network uses; returns the sources."""
        of_edges = np.concatenate([csr.indices for csr in rows.values()])
        # the row of each edge's source in x, shape (edges of all relations,)
        sources, source_rows = np.unique(of_edges, return_inverse=True)
        batch[source_type].x = torch.as_tensor(vectors_of(sources))
        batch[source_type].n_id = torch.from_numpy(sources)
        end = 0
        for name, csr in rows.items():
            start = end
            end = start + len(csr.indices)
            edges = batch[source_type, name, target_type]
            edge_index = np.stack([source_rows[start:end], csr.row_index])  # (2, edges)
            edges.edge_index = torch.from_numpy(edge_index)
            if self.edge_features and query_graph is not None:
                features = query_graph.edge_features(name)[csr.data["edges"]]
                edges.edge_attr = torch.from_numpy(features.astype(np.float32))
        return sources

    def texts_of_sources(self, batch: HeteroData, relation: str) -> tuple[list[str], list[str]]:
        """Ids and texts of the sources of a relation, by edge."""
        kind = edge_type(relation)
        source_type, _, _ = kind
        rows, _ = batch[kind].edge_index
        sources = batch[source_type].n_id[rows].cpu().numpy()
        if source_type == NODE:
            return self.graph.ids_of(sources), self.graph.texts(sources)
        return self.query_graph.qids_of(sources), self.query_graph.texts(sources)

    def vectors_of(self, passages: np.ndarray) -> Tensor:
        """Vectors of passages, shape (passages, d)."""
        vectors = np.asarray(self.vectors[passages], dtype=np.float32)
        return torch.from_numpy(vectors)

    def encode(self) -> None:
        """Encodes queries and titles now, so that processes that share a folder do not all do it."""
        if self.query_relations:
            _ = self.query_vectors
        if self.document_relations:
            _ = self.initial.section_vectors

    @cached_property
    def isolated_share(self) -> float:
        """Beta of :func:`isolated_share` for the query graph; 0 if passages do not aggregate from relevant queries."""
        if RELEVANT not in self.query_relations:
            return 0.0
        all_queries = np.arange(self.query_graph.num_queries)
        edges = self.query_graph.edges_of_queries(all_queries, RELEVANT)
        per_passage = np.bincount(edges.indices, minlength=len(self))
        return isolated_share(per_passage)

    @cached_property
    def query_vectors(self) -> np.ndarray:
        """Vectors of the query graph's queries, shape (queries, d), memory-mapped."""
        graph = self.query_graph
        return self._encoded("queries", graph.fingerprint(), graph.num_queries, graph.texts)

    @cached_property
    def section_vectors(self) -> np.ndarray:
        """Vectors of the titles of sections, shape (sections, d), memory-mapped."""
        graph = self.graph
        sections = self.sections

        def texts(rows: np.ndarray) -> list[str]:
            return graph.texts(sections[rows])

        return self._encoded("titles", graph.fingerprint(), len(sections), texts)

    @cached_property
    def sections(self) -> np.ndarray:
        """Nodes of the sections that have a title."""
        sections = np.flatnonzero(self.graph.node_type == SECTION_TYPE)
        titles = self.graph.texts(sections)
        has_title = [bool(title.strip()) for title in titles]
        return sections[np.array(has_title, dtype=bool)]

    @cached_property
    def rows(self) -> np.ndarray:
        """Row of each node's vector, passages first, then sections; -1 for nodes without a vector; shape (nodes,)."""
        rows = np.full(self.graph.num_nodes, -1, dtype=np.int64)
        num_passages = len(self)
        rows[self.graph.passage_nodes] = np.arange(num_passages)
        rows[self.sections] = num_passages + np.arange(len(self.sections))
        return rows

    def _encoded(self, name: str, digest: str, count: int, texts: Texts) -> np.ndarray:
        if not count:  # an empty file cannot be mapped
            return np.empty((0, self.dimension), np.float32)
        encoder = self.encoder
        identity = {"encoder": encoder_name(encoder), "texts": digest}
        encode = encoder.encode_queries if name == "queries" else encoder.encode_docs
        files = encode_once(
            self.folder,
            name,
            identity,
            count,
            texts,
            encode,
            workers=self.workers,
            verbose=self.verbose,
        )
        vectors, _ = files.payload(return_docnos=False)
        return vectors


def isolated_share(queries: np.ndarray) -> float:
    r"""The chance that a passage without relevant queries is relevant, compared with a passage that has some.

    .. math::
        \beta = \frac{\frac{1 - c}{1 - u}}{\frac{1 - c}{1 - u} + \frac{c}{u}}

    u is the share of passages that have a relevant query. c is the chance that a passage which is relevant to a new
    query is one of them. It is estimated from the number of relevant ``queries`` of each passage: the share of pairs
    whose passage has several relevant queries, with one more pair whose chance is u. If no passage ever answers twice,
    beta is nearly 1; if passages often answer again, it is low.
    """
    u = float((queries > 0).mean())
    if not 0 < u < 1:
        return 1.0
    again = int(queries[queries > 1].sum())  # pairs whose passage has several
    c = (again + u) / (int(queries.sum()) + 1)
    isolated = (1 - c) / (1 - u)
    answered = c / u
    return isolated / (isolated + answered)
