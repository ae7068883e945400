"""The graph of training queries and passages, on disk."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
import pyterrier as pt
from npids.lookup import Lookup

from pyterrier_graph.artifacts import check_vacant, file_sha256, kind_of
from pyterrier_graph.checks import WithSignature, check_count
from pyterrier_graph.graphs import query_passage_builder as builder
from pyterrier_graph.graphs.array_files import DOCNOS, StoredGraph, TextReader, array_file, digest
from pyterrier_graph.graphs.consistency import Bounds, count_of
from pyterrier_graph.graphs.csr import CSR, checked, offsets
from pyterrier_graph.graphs.edge_features import PairEncoder, write_edge_features
from pyterrier_graph.graphs.ids import all_numbers_of, ids_of, numbers_of
from pyterrier_graph.graphs.query_passage_builder import BATCH, Judgments, QueryBatch
from pyterrier_graph.graphs.relations import RELEVANT, RETRIEVED, inverse
from pyterrier_graph.ranges.workers import Workers
from pyterrier_graph.ranges.writer import unfinished

if TYPE_CHECKING:
    from pyterrier_dr import FlexIndex
    from scipy.sparse import csr_array

    from pyterrier_graph.graphs.hetero_graph import HeteroGraph


def _size(name: str, meaning: str) -> Any:
    """A property that is a number of ``pt_meta.json``, or several by edge type."""
    return property(lambda graph: graph.meta[name], doc=meaning)


class QueryPassageGraph(WithSignature, StoredGraph):
    """The bipartite graph of training queries and a corpus's passages, stored and memory-mapped (GNN-encoder).

    ::

        graph = QueryPassageGraph("train.graph").build(topics, index, retriever, qrels=qrels)
        edges = graph.without(loss_queries).edges_of_passages(passages, "relevant")

    Edges have a type: ``'retrieved'``, with the score of the retriever, or ``'relevant'``, with the label as score.
    Queries have the order of the topics. Passages have the order of the index or document graph that was given; those
    without edges are in the graph, too. The edges of a type are numbered from 0, by query, then by passage.

    Args:
        path: Folder of the graph; it may not exist yet, see :meth:`build`. Nothing is read before it is needed.
    """

    ARTIFACT_TYPE = "query_passage_graph"
    ARTIFACT_FORMAT = "csr"
    FORMAT_VERSION = 2  # 2: edges 'relevant', and digests of edge features
    NUM_DOCNOS = "passages"

    _masked: np.ndarray | None = None

    def __repr__(self) -> str:
        masked = "" if self._masked is None else f".without({self._masked.sum()} queries)"
        return f"{type(self).__name__}({str(self.path)!r}){masked}"

    def __reduce__(self) -> tuple[Any, ...]:
        return *super().__reduce__(), {"_masked": self._masked}

    def _repr_html_(self) -> str:
        from pyterrier_graph.plots.graph_html import query_passage_html
        from pyterrier_graph.plots.html import value

        if not self.built():
            calls = ["graph.build(topics, index, retriever, qrels=qrels)"]
            return value(repr(self), {"queries": "not built yet"}, calls=calls)
        calls = [f"graph.edges_of_queries(queries, {name!r})" for name in self.edge_types]
        return query_passage_html(self, repr(self), [*calls, "graph.to_scipy()"])

    def build(
        self,
        topics: pd.DataFrame,
        passages: HeteroGraph | FlexIndex | Lookup | Iterable[str],
        retriever: pt.Transformer | None = None,
        *,
        k: int = 25,
        qrels: pd.DataFrame | None = None,
        batch_size: int = BATCH,
        workers: Workers = 1,
        verbose: bool = True,
    ) -> QueryPassageGraph:
        """Builds the graph from judgments, and by retrieving the best passages of each query.

        Memory does not grow with the number of edges. The graph appears under its path when it is complete: if building
        fails or is killed, there is none. The same call then continues with the queries that have not been retrieved
        for; it is the same if the topics, the passages and ``repr(retriever)`` are.

        Args:
            topics: The queries: ``qid, query``, and what else the retriever needs.
            passages: The corpus: a document graph (its passages), an index of passages, or docnos in an index's order.
            retriever: Finds passages, ``qid, query`` to ``qid, docno, score``; it is asked for k per query. None: there
                are only ``'relevant'`` edges.
            k: Passages per query.
            qrels: Judgments: ``qid, docno, label``. Labels above 0 make ``'relevant'`` edges. Judgments of other
                queries are ignored. Judgments of passages that are not in the corpus are ignored with a warning.
            batch_size: Queries to retrieve for at once.
            workers: Number of processes that retrieve, or ``'ray'``: see :mod:`~pyterrier_graph.ranges.writer`.
            verbose: Whether to show progress.

        Raises:
            FileExistsError: If there is something at its path already.
            pt.validate.InputValidationError: If a frame lacks a column.
            KeyError: If a retrieved docno is not in the corpus.
            TypeError: If an argument has another type.
            ValueError: If there are no queries, no passages, or neither retriever nor judgments of these queries; if a
                query, passage, or passage of a query comes twice; if a query has no text, or a score is not finite.
        """
        check_count("k", k)
        check_count("batch_size", batch_size)
        new = builder.source_of(topics, retriever, k, workers, batch_size)
        return self._write(new, passages, retriever is not None, k, qrels, len(topics), verbose)

    def from_results(
        self,
        results: pd.DataFrame | Iterable[pd.DataFrame],
        passages: HeteroGraph | FlexIndex | Lookup | Iterable[str],
        *,
        k: int = 25,
        qrels: pd.DataFrame | None = None,
        verbose: bool = True,
    ) -> QueryPassageGraph:
        """Builds the graph from results ``qid, query, docno, score`` instead of a retriever.

        Results are one frame, or several, which are read once. All rows of a query are in the same frame, and the best
        k of them by score are kept. All else is as in :meth:`build`.
        """
        check_count("k", k)
        total, frames = builder.from_frames(results)
        return self._write(frames, passages, True, k, qrels, total, verbose)

    def add(
        self,
        path: str | os.PathLike[str],
        topics: pd.DataFrame,
        retriever: pt.Transformer | None = None,
        *,
        qrels: pd.DataFrame | None = None,
        batch_size: int = BATCH,
        workers: Workers = 1,
        verbose: bool = True,
    ) -> QueryPassageGraph:
        """Writes a new graph, at ``path``, with the queries of this one and further queries.

        Queries and edges keep their numbers; new ones come after them. Edge features are copied:
        :meth:`add_edge_features` of the new graph makes those that are missing. A mask (:meth:`without`) has no effect.
        All else is as in :meth:`build`; k is that of this graph.
        """
        check_count("batch_size", batch_size)
        check_vacant(Path(path))
        k = self.meta["k"]
        new = builder.source_of(topics, retriever, k, workers, batch_size)
        there = np.flatnonzero(numbers_of(self.qids, topics["qid"].astype(str).tolist()) >= 0)
        if len(there):
            raise ValueError(f"query {str(topics['qid'].iloc[there[0]])!r} comes twice: qids must be unique")
        graph = type(self)(path)._write(new, self, retriever is not None, k, qrels, len(topics), verbose)
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

        After an interruption, a second call goes on where the first one stopped. It encodes the first edges again, to
        see that the encoder is the same.

        Args:
            encode: Takes a list of queries and one of as many passages, and gives vectors, shape (pairs, d). The same
                pair must always get the same vector.
            texts: Adds a column ``text`` to a frame with ``docno``, as ``pt.text.get_text(dataset)`` does.
            edge_type: Which edges.
            batch_size: Pairs to encode between two writes.
            verbose: Whether to show progress.

        Raises:
            FileExistsError: If these edges have features already.
            KeyError: If there is no such type of edges.
            ValueError: If a vector is not finite in 16 bits or has another length than those before, a passage has no
                text, or what an interrupted run has left was made by another encoder.
        """
        self._check_type(edge_type)
        check_count("batch_size", batch_size)
        if edge_type in self.meta.get("features", {}):
            raise FileExistsError(f"{self!r} has features of {edge_type!r} edges already")
        if not self.num_edges[edge_type]:
            raise ValueError(f"{self!r} has no {edge_type!r} edges")
        write_edge_features(self, edge_type, encode, texts, batch_size=batch_size, verbose=verbose)
        self.__dict__.pop("meta", None)
        return self

    def fingerprint(self) -> str:
        """A digest of queries, passages, edges, scores, edge features, and the mask; those of files are stored."""
        features = {edge_type: about["sha256"] for edge_type, about in sorted(self.meta.get("features", {}).items())}
        masked = [] if self._masked is None else np.flatnonzero(self._masked).tolist()
        return hashlib.sha256(json.dumps([self.meta["sha256"], features, masked]).encode()).hexdigest()

    num_queries = _size("queries", "Number of queries, masked ones included: numbers stay what they are.")
    num_passages = _size("passages", "Number of passages, those without edges included.")
    num_edges = _size("edges", "Number of edges per type, those of masked queries included.")

    @property
    def edge_types(self) -> tuple[str, ...]:
        """``'retrieved'``, ``'relevant'``, or both."""
        return tuple(self.meta["edges"])

    def query_of(self, qids: Sequence[str]) -> np.ndarray:
        """Query numbers by qid, shape (n,), int64; KeyError if a query is not in the graph."""
        return all_numbers_of(self.qids, qids, "qid")

    def qids_of(self, queries: np.ndarray) -> list[str]:
        """Qids by query number."""
        return ids_of(self.qids, np.asarray(queries, dtype=np.int64))

    def passage_of(self, docnos: Sequence[str]) -> np.ndarray:
        """Passage numbers by docno, shape (n,), int64; KeyError if a passage is not in the graph."""
        return all_numbers_of(self.docnos, docnos, "docno")

    def docnos_of(self, passages: np.ndarray) -> list[str]:
        """Docnos by passage number."""
        return ids_of(self.docnos, np.asarray(passages, dtype=np.int64))

    def texts(self, queries: np.ndarray) -> list[str]:
        """Texts of queries, by number."""
        return self._text_reader.read(np.asarray(queries, dtype=np.int64))

    def without(self, queries: np.ndarray) -> Self:
        """The graph without the edges of some queries: a view, which costs a boolean per query.

        Queries are numbers, or a boolean per query of the graph. Queries that are masked already stay masked.

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
        """The passages of queries, whose numbers may repeat; a masked query has none.

        Returns:
            A row per query: passage numbers, which ascend, with ``scores`` (float32) and ``edges``, the number of the
            edge among all of its type: the row of its features. A KeyError says that there is no such type of edges, an
            IndexError that there is no such query.
        """
        queries = np.asarray(queries, dtype=np.int64)
        self._check_type(edge_type)
        row, edges = self._stored(edge_type).places(queries)
        passages = self._array(f"{edge_type}.indices")[edges].astype(np.int64)
        return self._edges(len(queries), row, queries[row], passages, edges, edge_type)

    def edges_of_passages(self, passages: np.ndarray, edge_type: str = RETRIEVED) -> CSR:
        """The queries of passages, masked ones left out: query numbers, with data as in :meth:`edges_of_queries`."""
        self._check_type(edge_type)
        name = inverse(edge_type)
        row, place = self._stored(name).places(passages)
        queries, edges = (self._array(f"{name}.{part}")[place].astype(np.int64) for part in ("indices", "edges"))
        return self._edges(len(passages), row, queries, queries, edges, edge_type)

    def ends(self, edges: np.ndarray, edge_type: str = RETRIEVED) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the queries and of the passages that edges join; IndexError if there is no such edge."""
        self._check_type(edge_type)
        edges = checked(edges, self.num_edges[edge_type])
        queries = np.searchsorted(self._array(f"{edge_type}.indptr"), edges, side="right") - 1
        return queries, self._array(f"{edge_type}.indices")[edges].astype(np.int64)

    def edge_features(self, edge_type: str = RETRIEVED) -> np.ndarray:
        """Vectors of edges, by number: shape (edges, d), float16, memory-mapped; KeyError if there are none."""
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
        return self._ids(builder.QIDS, "queries")

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

    def _bounds(self, name: str) -> Bounds:
        return builder.bounds_of(self.meta, name)

    @cached_property
    def _text_reader(self) -> TextReader:
        return self._open(lambda folder: TextReader(folder, count_of(self.meta, "queries")))

    def _write(
        self,
        source: builder.Retrieval | Iterable[builder.Frames],
        passages: QueryPassageGraph | HeteroGraph | FlexIndex | Lookup | Iterable[str],
        retrieves: bool,
        k: int,
        qrels: pd.DataFrame | None,
        total: int | None,
        verbose: bool,
    ) -> QueryPassageGraph:
        """Builds after the queries of the graph that is given as ``passages``."""
        check_vacant(self.path)
        if not retrieves and qrels is None:
            raise ValueError("a graph of queries needs a retriever, qrels, or both")
        edge_types = [RETRIEVED] * retrieves + [RELEVANT] * (qrels is not None)
        earlier: Iterable[QueryBatch] = ()
        if isinstance(passages, QueryPassageGraph):
            earlier = passages._batches()
            edge_types = [*dict.fromkeys([*passages.edge_types, *edge_types])]
        meta, retrieval = kind_of(self), source if isinstance(source, builder.Retrieval) else None
        with builder.docnos_of(passages, verbose=verbose) as (file, count):
            identity = meta | {"docnos_sha256": file_sha256(file)} | (retrieval.identity() if retrieval else {})
            ranges = (len(retrieval.topics), retrieval.batch_size) if retrieval else (0, 1)
            with unfinished(self.path, meta, *ranges, identity=identity) as writer:
                writer.prepare(lambda folder: shutil.copyfile(file, folder / DOCNOS))
                writer.clear(DOCNOS)
                with Lookup(writer.folder / DOCNOS) as docnos:
                    judgments = None if qrels is None else Judgments(qrels, docnos)
                    if isinstance(source, builder.Retrieval):
                        batches = source.batches(writer, judgments, docnos, verbose=verbose)
                    else:
                        batches = builder.batches(source, judgments, docnos, k)
                    bar = {"total": total, "desc": "queries", "unit": "query", "delay": 1, "disable": not verbose}
                    later = builder.shown(batches, **bar)
                    queries, edges = builder.build(writer.folder, chain(earlier, later), edge_types, count)
                meta |= {"queries": queries, "passages": count, "edges": edges, "k": k}
                meta["sha256"] = digest(writer.folder)
        return self

    def _batches(self) -> Iterator[QueryBatch]:
        """All queries, as they were written."""
        for start in range(0, self.num_queries, BATCH):
            part = slice(start, min(start + BATCH, self.num_queries))
            queries = np.arange(part.start, part.stop)
            edges = {edge_type: self._stored(edge_type, "scores").rows(part) for edge_type in self.edge_types}
            yield QueryBatch(self.qids_of(queries), self.texts(queries), edges)
