"""The graph of training queries and passages, on disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyterrier as pt
from npids.lookup import Lookup

from pyterrier_graph.artifacts import BuiltArtifact, check_vacant, kind_of, writing
from pyterrier_graph.graphs.builder import array_file, read_array
from pyterrier_graph.graphs.csr import CSR, checked, offsets
from pyterrier_graph.graphs.edge_features import PairEncoder, write_edge_features
from pyterrier_graph.graphs.ids import ids_of, numbers_of, some
from pyterrier_graph.graphs.query_passage_builder import (
    DOCNOS,
    QIDS,
    Judgments,
    QueryBatch,
    build,
    digest,
    parts_of,
    query_batch,
    write_docnos,
)
from pyterrier_graph.graphs.relations import RELEVANT, RETRIEVED, inverse
from pyterrier_graph.graphs.text_store import TextReader

if TYPE_CHECKING:
    from pyterrier_dr import FlexIndex
    from scipy.sparse import csr_array

BATCH = 1024  # queries that are retrieved for, or copied, at once


class QueryPassageGraph(BuiltArtifact):
    """The bipartite graph of training queries and a corpus's passages, stored and memory-mapped (GNN-encoder).

    ::

        graph = QueryPassageGraph("train.graph").build(topics, retriever, index, qrels=qrels)
        batch = graph.without(loss_queries).subgraph(passages)

    Edges have a type: ``'retrieved'``, with the retriever's score, and, where judgments were given, ``'relevant'``, with
    the label as score. Each is stored in both directions. Passages are numbered as the index that is to be fused has
    them, those that nobody retrieved included; queries as they came. The edges of a type are numbered from 0, by query,
    then by passage.

    Args:
        path: Folder of the graph; it may not exist yet, see :meth:`build`. Nothing is read before it is needed.
    """

    ARTIFACT_TYPE = "query_passage_graph"
    ARTIFACT_FORMAT = "csr"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._arrays: dict[str, np.ndarray] = {}
        self._masked: np.ndarray | None = None

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from pyterrier_graph.plots.graph_html import query_passage_html
        from pyterrier_graph.plots.html import value

        if not self.built():
            calls = ["graph.build(topics, retriever, index, qrels=qrels)"]
            return value(repr(self), {"queries": "not built yet"}, calls=calls)
        return query_passage_html(self, repr(self), ["graph.without(queries).subgraph(passages)", "graph.to_scipy()"])

    def __repr__(self) -> str:
        masked = "" if self._masked is None else f".without({self._masked.sum()} queries)"
        return f"QueryPassageGraph({str(self.path)!r}){masked}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Worker processes map the files again instead of receiving copies of them.
        return type(self), (self.path,), {"_masked": self._masked}

    # --- writing

    def build(
        self,
        topics: pd.DataFrame,
        retriever: pt.Transformer,
        passages: FlexIndex | Lookup | Iterable[str],
        *,
        k: int = 25,
        qrels: pd.DataFrame | None = None,
        batch_size: int = BATCH,
        verbose: bool = True,
    ) -> QueryPassageGraph:
        """Builds the graph by retrieving the best passages of each query.

        Memory does not grow with the number of edges. The graph appears under its path when it is complete: if building
        fails or is killed, there is none.

        Args:
            topics: The queries: ``qid, query``, and what else the retriever needs.
            retriever: Finds passages; it is asked for k per query.
            passages: The passages' docnos, in the order of the index that is to be fused: that index, or the docnos.
            k: Passages per query.
            qrels: Judgments: ``qid, docno, label``. Labels above 0 make edges ``'relevant'``; other queries' are ignored.
            batch_size: Queries to retrieve for at once.
            verbose: Whether to show progress.

        Returns:
            This graph.

        Raises:
            FileExistsError: If there is something at its path already.
            pt.validate.InputValidationError: If a frame lacks a column.
            KeyError: If a docno of the results or judgments is not among the passages.
            ValueError: If there are no queries, passages or judgments of these queries; if a query, passage, or passage
                of a query comes twice; if a query has no text, or a score is not finite.
        """
        return self._write(_retrieved(topics, retriever, k, batch_size), passages, k, qrels, len(topics), verbose)

    def from_results(
        self,
        results: pd.DataFrame | Iterable[pd.DataFrame],
        passages: FlexIndex | Lookup | Iterable[str],
        *,
        k: int = 25,
        qrels: pd.DataFrame | None = None,
        verbose: bool = True,
    ) -> QueryPassageGraph:
        """Builds the graph from results; see :meth:`build`.

        Args:
            results: ``qid, query, docno, score``: one frame, or several, gone through once, where all of a query's
                rows are in the same frame.
            passages: As for :meth:`build`.
            k: Passages per query: the best by score are kept.
            qrels: As for :meth:`build`.
            verbose: Whether to show progress.

        Returns:
            This graph.

        Raises:
            Exception: As :meth:`build`.
        """
        total = None
        if isinstance(results, pd.DataFrame):
            pt.validate.result_frame(results, extra_columns=["query", "score"])
            total = results["qid"].nunique()
            results = parts_of(results, BATCH)
        return self._write(self._given(results), passages, k, qrels, total, verbose)

    def add(
        self,
        path: str | os.PathLike[str],
        topics: pd.DataFrame,
        retriever: pt.Transformer,
        *,
        qrels: pd.DataFrame | None = None,
        batch_size: int = BATCH,
        verbose: bool = True,
    ) -> QueryPassageGraph:
        """Writes a graph that has further queries, too.

        Queries and edges keep their numbers, new ones come after them; so only passages of new queries are touched.
        Edge features are taken over: :meth:`add_edge_features` of the new graph makes those that are missing. The cost
        is retrieving for the new queries, copying what there is, and sorting all edges by passage anew. Masking has no
        effect.

        Args:
            path: Folder of the new graph.
            topics: The new queries.
            retriever: As for :meth:`build`; as many passages per query are taken as in this graph.
            qrels: Judgments of the new queries.
            batch_size: Queries to retrieve for at once.
            verbose: Whether to show progress.

        Returns:
            The new graph.

        Raises:
            Exception: As :meth:`build`.
        """
        k = self.meta["k"]
        new = _retrieved(topics, retriever, k, batch_size)
        graph = type(self)(path)._write(new, self, k, qrels, len(topics), verbose)
        for edge_type in self.edge_types:
            name = f"{edge_type}.features"
            if array_file(self.path, name).exists():
                shutil.copyfile(array_file(self.path, name), array_file(graph.path, name))
        return graph

    def add_edge_features(
        self,
        encode: PairEncoder,
        texts: pt.Transformer,
        *,
        edge_type: str = RETRIEVED,
        batch_size: int = 1024,
        verbose: bool = True,
    ) -> QueryPassageGraph:
        """Stores a vector for each edge, such as a cross-encoder's state of [CLS] for its query and passage.

        If this is interrupted, calling it again goes on where it was; the first edges are then encoded again, to see
        that it is still the same encoder.

        Args:
            encode: Takes a list of queries and one of as many passages, and gives vectors, shape (pairs, d). The same
                pair must always get the same vector.
            texts: Adds a column ``text`` to a frame with ``docno``, as ``pt.text.get_text(dataset)`` does.
            edge_type: Which edges.
            batch_size: Pairs to encode between two writes.
            verbose: Whether to show progress.

        Returns:
            This graph.

        Raises:
            FileExistsError: If these edges have features already.
            KeyError: If there is no such type of edges.
            ValueError: If a vector is not finite in 16 bits or has another length than those before, a passage has no
                text, or what an interrupted run has left was made by another encoder.
        """
        self._check_type(edge_type)
        write_edge_features(self, encode, texts, edge_type, batch_size=batch_size, verbose=verbose)
        self.__dict__.pop("meta", None)
        return self

    # --- reading

    def fingerprint(self) -> str:
        """A digest of queries, passages and edges, as they were when the graph was built."""
        return self.meta["sha256"]

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
        """``('retrieved',)`` or ``('retrieved', 'relevant')``."""
        return tuple(self.meta["edges"])

    def query_of(self, qids: Sequence[str]) -> np.ndarray:
        """Query numbers by qid, shape (n,), int64.

        Raises:
            KeyError: If a query is not in the graph; the message names up to three.
        """
        return _known(self.qids, qids, "qid")

    def qids_of(self, queries: np.ndarray) -> list[str]:
        """Qids by query number."""
        return ids_of(self.qids, np.asarray(queries, dtype=np.int64))

    def passage_of(self, docnos: Sequence[str]) -> np.ndarray:
        """Passage numbers by docno, shape (n,), int64.

        Raises:
            KeyError: If a passage is not in the graph; the message names up to three.
        """
        return _known(self.docnos, docnos, "docno")

    def docnos_of(self, passages: np.ndarray) -> list[str]:
        """Docnos by passage number."""
        return ids_of(self.docnos, np.asarray(passages, dtype=np.int64))

    def texts(self, queries: np.ndarray) -> list[str]:
        """Texts of queries, by number."""
        return self._text_reader.read(np.asarray(queries, dtype=np.int64))

    def without(self, queries: np.ndarray) -> QueryPassageGraph:
        """The graph without the edges of some queries: a view, which costs a boolean per query.

        Args:
            queries: Query numbers, beside those that are masked already.

        Raises:
            IndexError: If there is no such query.
        """
        masked = np.zeros(self.num_queries, dtype=bool) if self._masked is None else self._masked.copy()
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
            A row per query, ``indices`` are passage numbers.

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
            A row per passage, ``indices`` are query numbers.

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
        dimension = self.meta.get("features", {}).get(edge_type)
        if dimension is None:
            raise KeyError(f"{self!r} has no features of {edge_type!r} edges: add_edge_features makes them")
        return self._array(f"{edge_type}.features").reshape(-1, dimension)

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

    @cached_property
    def docnos(self) -> Lookup:
        """Docnos by passage number (``.fwd``) and back (``.inv``, -1 for unknown ones)."""
        return Lookup(self._folder / DOCNOS)

    def _write(
        self,
        frames: Iterable[tuple[pd.DataFrame, pd.DataFrame]],
        passages: QueryPassageGraph | FlexIndex | Lookup | Iterable[str],
        k: int,
        qrels: pd.DataFrame | None,
        total: int | None,
        verbose: bool,
    ) -> QueryPassageGraph:
        """Builds from pairs of topics and results, after the queries of the graph that is given as ``passages``."""
        if k < 1:
            raise ValueError(f"a query needs at least one passage, got k={k}")
        check_vacant(self.path)
        judgments = None if qrels is None else Judgments(qrels)
        meta = kind_of(self)
        with writing(self.path, meta) as folder:
            earlier: Iterable[QueryBatch] = ()
            edge_types = (RETRIEVED,) if qrels is None else (RETRIEVED, RELEVANT)
            if isinstance(passages, QueryPassageGraph):
                earlier, count = passages._batches(), passages.num_passages
                edge_types = tuple(dict.fromkeys([*passages.edge_types, *edge_types]))
                shutil.copyfile(passages.path / DOCNOS, folder / DOCNOS)
            else:
                count = write_docnos(folder / DOCNOS, _names(passages), verbose=verbose)
            with (
                Lookup(folder / DOCNOS) as docnos,
                pt.tqdm(total=total, desc="queries", unit="query", disable=not verbose) as progress,
            ):

                def later() -> Iterator[QueryBatch]:
                    for topics, results in frames:
                        yield query_batch(topics, results, judgments, docnos, k)
                        progress.update(len(topics))

                queries, edges = build(folder, chain(earlier, later()), edge_types, count)
            if judgments is not None and not judgments.found:
                raise ValueError("the qrels have no relevant passage of these queries: are the qids of another set?")
            meta |= {"queries": queries, "passages": count, "edges": edges, "k": k, "sha256": digest(folder)}
        return self

    def _given(self, frames: Iterable[pd.DataFrame]) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
        """The queries of each frame of results, and the frame."""
        for results in frames:
            pt.validate.result_frame(results, extra_columns=["query", "score"])
            results = results.astype({"qid": str, "docno": str})
            yield results.groupby("qid", sort=False, as_index=False)["query"].first(), results

    def _batches(self) -> Iterator[QueryBatch]:
        """All queries, as they were written."""
        for start in range(0, self.num_queries, BATCH):
            queries = np.arange(start, min(start + BATCH, self.num_queries))
            edges = {}
            for edge_type in self.edge_types:
                edges[edge_type] = self._stored(edge_type, "scores").rows(slice(queries[0], queries[-1] + 1))
            yield QueryBatch(self.qids_of(queries), self.texts(queries), edges)

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

    @property
    def _folder(self) -> Path:
        """Where the files are, once they have been checked."""
        assert self.meta
        return self.path

    def _array(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            self._arrays[name] = read_array(self._folder, name)
        return self._arrays[name]

    @cached_property
    def _text_reader(self) -> TextReader:
        return TextReader(self._folder, self.num_queries)


def _retrieved(
    topics: pd.DataFrame, retriever: pt.Transformer, k: int, batch_size: int
) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
    """Queries, some at a time, and their results."""
    pt.validate.query_frame(topics, extra_columns=["query"])
    if batch_size < 1:
        raise ValueError(f"batch_size must be positive, got {batch_size}")
    topics = topics.astype({"qid": str})
    if topics["qid"].duplicated().any():
        raise ValueError(
            f"query {topics['qid'][topics['qid'].duplicated()].iloc[0]!r} comes twice: qids must be unique"
        )
    pipeline = (retriever % k).compile()

    def batches() -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
        for start in range(0, len(topics), batch_size):
            batch = topics.iloc[start : start + batch_size].reset_index(drop=True)
            results = pipeline.transform(batch)
            pt.validate.result_frame(results, extra_columns=["score"])
            results = results.astype({"qid": str, "docno": str})
            others = results["qid"][~results["qid"].isin(batch["qid"])]
            if len(others):
                raise ValueError(f"{retriever!r} gave results of query {others.iloc[0]!r}, which it was not asked for")
            yield batch, results

    return batches()


def _names(passages: FlexIndex | Lookup | Iterable[str]) -> Iterable[str]:
    """Docnos in order."""
    if isinstance(passages, str | os.PathLike):
        raise ValueError(f"passages must be an index or docnos, got {passages!r}: open the index first")
    return passages.docnos() if hasattr(passages, "docnos") else passages


def _known(lookup: Lookup, ids: Sequence[str], noun: str) -> np.ndarray:
    """Numbers of ids, all of which must be there."""
    ids = list(ids)
    numbers = numbers_of(lookup, [identifier if isinstance(identifier, str) else "" for identifier in ids])
    if (numbers < 0).any():
        raise KeyError(f"{some([ids[row] for row in np.flatnonzero(numbers < 0)], noun)} not in the graph")
    return numbers
