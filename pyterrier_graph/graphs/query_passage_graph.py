"""The graph of training queries and passages, on disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyterrier as pt
from npids.lookup import Lookup

from pyterrier_graph.artifacts import check_vacant, kind_of, writing
from pyterrier_graph.checks import WithSignature, check_count
from pyterrier_graph.graphs.array_files import DOCNOS, array_file, digest
from pyterrier_graph.graphs.edge_features import PairEncoder, in_16_bits, texts_of_passages, write_edge_features
from pyterrier_graph.graphs.query_batches import (
    BATCH,
    Judgments,
    QueryBatch,
    from_frames,
    names_of,
    parts_of,
    query_batch,
    retrieved,
)
from pyterrier_graph.graphs.query_passage_builder import build, write_docnos
from pyterrier_graph.graphs.query_passage_reader import QueryPassageReader
from pyterrier_graph.graphs.relations import RELEVANT, RETRIEVED

if TYPE_CHECKING:
    from pyterrier_dr import FlexIndex

    from pyterrier_graph.graphs.hetero_graph import HeteroGraph


class QueryPassageGraph(WithSignature, QueryPassageReader):
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

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from pyterrier_graph.plots.graph_html import query_passage_html
        from pyterrier_graph.plots.html import value

        if not self.built():
            calls = ["graph.build(topics, index, retriever, qrels=qrels)"]
            return value(repr(self), {"queries": "not built yet"}, calls=calls)
        return query_passage_html(self, repr(self), ["graph.edges_of_queries(queries)", "graph.to_scipy()"])

    # --- writing

    def build(
        self,
        topics: pd.DataFrame,
        passages: HeteroGraph | FlexIndex | Lookup | Iterable[str],
        retriever: pt.Transformer | None = None,
        *,
        k: int = 25,
        qrels: pd.DataFrame | None = None,
        batch_size: int = BATCH,
        verbose: bool = True,
    ) -> QueryPassageGraph:
        """Builds the graph from judgments, and by retrieving the best passages of each query.

        Memory does not grow with the number of edges. The graph appears under its path when it is complete: if building
        fails or is killed, there is none.

        Args:
            topics: The queries: ``qid, query``, and what else the retriever needs.
            passages: The corpus: a document graph (its passages), an index of passages, or docnos in an index's order.
            retriever: Finds passages, ``qid, query`` to ``qid, docno, score``; it is asked for k per query. None: there
                are only ``'relevant'`` edges.
            k: Passages per query.
            qrels: Judgments: ``qid, docno, label``. Labels above 0 make ``'relevant'`` edges. Judgments of other
                queries are ignored. Judgments of passages that are not in the corpus are ignored with a warning.
            batch_size: Queries to retrieve for at once.
            verbose: Whether to show progress.

        Returns:
            This graph.

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
        frames = retrieved(topics, retriever, k, batch_size)
        return self._write(frames, passages, retriever is not None, k, qrels, len(topics), verbose)

    def from_results(
        self,
        results: pd.DataFrame | Iterable[pd.DataFrame],
        passages: HeteroGraph | FlexIndex | Lookup | Iterable[str],
        *,
        k: int = 25,
        qrels: pd.DataFrame | None = None,
        verbose: bool = True,
    ) -> QueryPassageGraph:
        """Builds the graph from results instead of a retriever; all else is as in :meth:`build`.

        Args:
            results: ``qid, query, docno, score``: one frame, or several, which are read once. All rows of a query are
                in the same frame.
            passages: The corpus.
            k: Passages per query: the best by score are kept.
            qrels: Judgments.
            verbose: Whether to show progress.
        """
        check_count("k", k)
        total = None
        if isinstance(results, pd.DataFrame):
            pt.validate.result_frame(results, extra_columns=["query", "score"])
            total = results["qid"].nunique()
            results = parts_of(results, BATCH)
        return self._write(from_frames(results), passages, True, k, qrels, total, verbose)

    def add(
        self,
        path: str | os.PathLike[str],
        topics: pd.DataFrame,
        retriever: pt.Transformer | None = None,
        *,
        qrels: pd.DataFrame | None = None,
        batch_size: int = BATCH,
        verbose: bool = True,
    ) -> QueryPassageGraph:
        """Writes a new graph with the queries of this one and further queries; all else is as in :meth:`build`.

        Queries and edges keep their numbers; new ones come after them. Edge features are copied:
        :meth:`add_edge_features` of the new graph makes those that are missing. A mask (:meth:`without`) has no effect.

        Args:
            path: Folder of the new graph.
            topics: The new queries.
            retriever: Finds passages; k is that of this graph.
            qrels: Judgments of the new queries.
            batch_size: Queries to retrieve for at once.
            verbose: Whether to show progress.
        """
        check_count("batch_size", batch_size)
        k = self.meta["k"]
        new = retrieved(topics, retriever, k, batch_size)
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
        total = self.num_edges[edge_type]
        if not total:
            raise ValueError(f"{self!r} has no {edge_type!r} edges")

        def encoded(edges: np.ndarray) -> np.ndarray:
            queries, passages = self.ends(edges, edge_type)
            docnos = self.docnos_of(passages)
            vectors = encode(self.texts(queries), texts_of_passages(texts, docnos))
            return in_16_bits(
                vectors, len(edges), lambda row: f"query {self.qids_of(queries[[row]])[0]!r}, passage {docnos[row]!r}"
            )

        file = array_file(self.path, f"{edge_type}.features")
        write_edge_features(file, edge_type, total, encoded, batch_size=batch_size, verbose=verbose)
        self.__dict__.pop("meta", None)
        return self

    def _write(
        self,
        frames: Iterable[tuple[pd.DataFrame, pd.DataFrame | None]],
        passages: QueryPassageGraph | HeteroGraph | FlexIndex | Lookup | Iterable[str],
        retrieves: bool,
        k: int,
        qrels: pd.DataFrame | None,
        total: int | None,
        verbose: bool,
    ) -> QueryPassageGraph:
        """Builds from pairs of topics and results, after the queries of the graph that is given as ``passages``."""
        check_vacant(self.path)
        if not retrieves and qrels is None:
            raise ValueError("a graph of queries needs a retriever, qrels, or both")
        edge_types = [RETRIEVED] * retrieves + [RELEVANT] * (qrels is not None)
        earlier: Iterable[QueryBatch] = ()
        meta = kind_of(self)
        with writing(self.path, meta) as folder:
            if isinstance(passages, QueryPassageGraph):
                earlier, count = passages._batches(), passages.num_passages
                edge_types = [*dict.fromkeys([*passages.edge_types, *edge_types])]
                shutil.copyfile(passages.path / DOCNOS, folder / DOCNOS)
            else:
                count = write_docnos(folder / DOCNOS, names_of(passages), verbose=verbose)
            with (
                Lookup(folder / DOCNOS) as docnos,
                pt.tqdm(total=total, desc="queries", unit="query", disable=not verbose) as progress,
            ):
                judgments = None if qrels is None else Judgments(qrels, docnos)

                def later() -> Iterator[QueryBatch]:
                    for topics, results in frames:
                        yield query_batch(topics, results, judgments, docnos, k)
                        progress.update(len(topics))

                queries, edges = build(folder, chain(earlier, later()), edge_types, count)
            if judgments is not None:
                judgments.finish()
            meta |= {"queries": queries, "passages": count, "edges": edges, "k": k, "sha256": digest(folder)}
        return self

    def _batches(self) -> Iterator[QueryBatch]:
        """All queries, as they were written."""
        for start in range(0, self.num_queries, BATCH):
            part = slice(start, min(start + BATCH, self.num_queries))
            queries = np.arange(part.start, part.stop)
            edges = {edge_type: self._stored(edge_type, "scores").rows(part) for edge_type in self.edge_types}
            yield QueryBatch(self.qids_of(queries), self.texts(queries), edges)
