"""Reading of the graph of queries and passages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from npids.lookup import Lookup

from pyterrier_graph.graphs.array_files import StoredGraph
from pyterrier_graph.graphs.csr import CSR, checked, offsets
from pyterrier_graph.graphs.ids import all_numbers_of, ids_of
from pyterrier_graph.graphs.query_passage_builder import QIDS
from pyterrier_graph.graphs.relations import RETRIEVED, inverse
from pyterrier_graph.graphs.text_store import TextReader

if TYPE_CHECKING:
    from scipy.sparse import csr_array


class QueryPassageReader(StoredGraph):
    """What can be read from a :class:`~pyterrier_graph.QueryPassageGraph`.

    Args:
        path: Folder of the graph.
    """

    _masked: np.ndarray | None = None

    def __repr__(self) -> str:
        masked = "" if self._masked is None else f".without({self._masked.sum()} queries)"
        return f"{type(self).__name__}({str(self.path)!r}){masked}"

    def __reduce__(self) -> tuple[Any, ...]:
        return *super().__reduce__(), {"_masked": self._masked}

    def fingerprint(self) -> str:
        """A digest of all that results depend on: queries, passages, edges, scores, edge features, and the mask.

        It is cheap: the digests of files are made when these are written.
        """
        features = {edge_type: about["sha256"] for edge_type, about in sorted(self.meta.get("features", {}).items())}
        masked = [] if self._masked is None else np.flatnonzero(self._masked).tolist()
        return hashlib.sha256(json.dumps([self.meta["sha256"], features, masked]).encode()).hexdigest()

    @property
    def num_queries(self) -> int:
        """Number of queries, masked ones included: numbers stay what they are."""
        return self.meta["queries"]

    @property
    def num_passages(self) -> int:
        """Number of passages, those without edges included."""
        return self.meta["passages"]

    @property
    def num_edges(self) -> dict[str, int]:
        """Number of edges per type, those of masked queries included."""
        return self.meta["edges"]

    @property
    def edge_types(self) -> tuple[str, ...]:
        """``'retrieved'``, ``'relevant'``, or both."""
        return tuple(self.meta["edges"])

    def query_of(self, qids: Sequence[str]) -> np.ndarray:
        """Query numbers by qid, shape (n,), int64.

        Raises:
            KeyError: If a query is not in the graph; the message names up to three.
        """
        return all_numbers_of(self.qids, qids, "qid")

    def qids_of(self, queries: np.ndarray) -> list[str]:
        """Qids by query number."""
        return ids_of(self.qids, np.asarray(queries, dtype=np.int64))

    def passage_of(self, docnos: Sequence[str]) -> np.ndarray:
        """Passage numbers by docno, shape (n,), int64.

        Raises:
            KeyError: If a passage is not in the graph; the message names up to three.
        """
        return all_numbers_of(self.docnos, docnos, "docno")

    def docnos_of(self, passages: np.ndarray) -> list[str]:
        """Docnos by passage number."""
        return ids_of(self.docnos, np.asarray(passages, dtype=np.int64))

    def texts(self, queries: np.ndarray) -> list[str]:
        """Texts of queries, by number."""
        return self._text_reader.read(np.asarray(queries, dtype=np.int64))

    def without(self, queries: np.ndarray) -> Self:
        """The graph without the edges of some queries: a view, which costs a boolean per query.

        Args:
            queries: Query numbers, or a boolean per query of the graph. Queries that are masked already stay masked.

        Raises:
            IndexError: If there is no such query.
            TypeError: If these are neither numbers nor booleans (``query_of`` gives the numbers of qids).
            ValueError: If there is not one boolean per query.
        """
        masked = np.zeros(self.num_queries, dtype=bool) if self._masked is None else self._masked.copy()
        queries = np.asarray(queries)
        if queries.dtype == bool:
            if queries.shape != masked.shape:
                raise ValueError(f"a mask needs a boolean for each of {len(masked)} queries, got shape {queries.shape}")
            masked |= queries
        else:
            masked[checked(queries, self.num_queries)] = True
        view = type(self)(self.path)
        view.__dict__.update(self.__dict__, _masked=masked)
        return view

    def edges_of_queries(self, queries: np.ndarray, edge_type: str = RETRIEVED) -> CSR:
        """The passages of queries; a masked query has none.

        Args:
            queries: Query numbers, shape (rows,); they may repeat.
            edge_type: ``'retrieved'`` or ``'relevant'``.

        Returns:
            A row per query: passage numbers, which ascend, with ``scores`` (float32) and ``edges``, the number of the
            edge among all of its type: the row of its features.

        Raises:
            KeyError: If there is no such type of edges.
            IndexError: If there is no such query.
        """
        self._check_type(edge_type)
        queries = np.asarray(queries, dtype=np.int64)
        row, edges = self._stored(edge_type).places(queries)
        passages = self._array(f"{edge_type}.indices")[edges].astype(np.int64)
        return self._edges(len(queries), row, queries[row], passages, edges, edge_type)

    def edges_of_passages(self, passages: np.ndarray, edge_type: str = RETRIEVED) -> CSR:
        """The queries of passages, masked ones left out.

        Args:
            passages: Passage numbers, shape (rows,); they may repeat.
            edge_type: ``'retrieved'`` or ``'relevant'``.

        Returns:
            A row per passage: query numbers, with data as in :meth:`edges_of_queries`.

        Raises:
            KeyError: If there is no such type of edges.
            IndexError: If there is no such passage.
        """
        self._check_type(edge_type)
        name = inverse(edge_type)
        row, place = self._stored(name).places(passages)
        queries, edges = (self._array(f"{name}.{part}")[place].astype(np.int64) for part in ("indices", "edges"))
        return self._edges(len(passages), row, queries, queries, edges, edge_type)

    def ends(self, edges: np.ndarray, edge_type: str = RETRIEVED) -> tuple[np.ndarray, np.ndarray]:
        """The queries and the passages that edges join.

        Args:
            edges: Edge numbers, shape (n,).
            edge_type: ``'retrieved'`` or ``'relevant'``.

        Returns:
            Query numbers and passage numbers, each of shape (n,), int64.

        Raises:
            KeyError: If there is no such type of edges.
            IndexError: If there is no such edge.
        """
        self._check_type(edge_type)
        edges = checked(edges, self.num_edges[edge_type])
        queries = np.searchsorted(self._array(f"{edge_type}.indptr"), edges, side="right") - 1
        return queries, self._array(f"{edge_type}.indices")[edges].astype(np.int64)

    def edge_features(self, edge_type: str = RETRIEVED) -> np.ndarray:
        """Vectors of edges, by number of the edge: shape (edges, d), float16, memory-mapped.

        Raises:
            KeyError: If there is no such type of edges, or they have no features.
        """
        self._check_type(edge_type)
        about = self.meta.get("features", {}).get(edge_type)
        if about is None:
            raise KeyError(f"{self!r} has no features of {edge_type!r} edges: add_edge_features makes them")
        return self._array(f"{edge_type}.features").reshape(-1, about["dimension"])

    def to_scipy(self) -> dict[str, csr_array]:
        """Per edge type a sparse matrix of scores, shape (queries, passages), in memory.

        Rows of masked queries are empty; a score of 0 is stored, too.
        """
        from scipy.sparse import csr_array

        matrices = {}
        for edge_type in self.edge_types:
            edges = self.edges_of_queries(np.arange(self.num_queries), edge_type)
            arrays = (edges.data["scores"], edges.indices, edges.indptr)
            matrices[edge_type] = csr_array(arrays, shape=(self.num_queries, self.num_passages))
        return matrices

    @cached_property
    def qids(self) -> Lookup:
        """Qids by query number (``.fwd``) and back (``.inv``, -1 for unknown ones)."""
        return Lookup(self._folder / QIDS)

    def _edges(
        self, rows: int, row: np.ndarray, queries: np.ndarray, others: np.ndarray, edges: np.ndarray, edge_type: str
    ) -> CSR:
        """Compresses edges, those of masked queries left out."""
        if self._masked is not None:
            kept = ~self._masked[queries]
            row, others, edges = row[kept], others[kept], edges[kept]
        scores = self._array(f"{edge_type}.scores")[edges]
        return CSR(offsets(np.bincount(row, minlength=rows)), others, {"scores": scores, "edges": edges})

    def _stored(self, name: str, *data: str) -> CSR:
        """Edges of all queries or passages, masked ones included."""
        indptr, indices = (self._array(f"{name}.{part}") for part in ("indptr", "indices"))
        return CSR(indptr, indices, {part: self._array(f"{name}.{part}") for part in data})

    def _check_type(self, edge_type: str) -> None:
        if edge_type not in self.edge_types:
            raise KeyError(f"no edges {edge_type!r}: this graph has {', '.join(map(repr, self.edge_types))}")

    @cached_property
    def _text_reader(self) -> TextReader:
        return TextReader(self._folder, self.num_queries)
