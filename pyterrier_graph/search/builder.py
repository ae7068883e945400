"""How a GraphIndex is built and changed: the next version is written, and becomes the current one at the end."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile, mkdtemp
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pyterrier_graph.checks import QualityWarning
from pyterrier_graph.documents.records import structured_documents
from pyterrier_graph.graph_mean.contextual_index import ContextualIndex
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.graphs.relations import TITLE
from pyterrier_graph.search import versions
from pyterrier_graph.search.bm25 import BM25Index
from pyterrier_graph.search.fitting import (
    ALIKE,
    answered_settings,
    default_settings,
    mean_cosine,
)
from pyterrier_graph.search.hybrid import DEPTH, Hybrid
from pyterrier_graph.search.lexical import build_engine, lexical_retriever
from pyterrier_graph.search.records import RecordChanges, compare_records, read_documents
from pyterrier_graph.search.versioned_index import VersionedIndex
from pyterrier_graph.search.versions import KIND, Answered, contexts
from pyterrier_graph.storage.artifact import atomic_folder, locked
from pyterrier_graph.storage.shards import Workers, check_workers

if TYPE_CHECKING:
    from pyterrier_graph.graph_mean.contextual_encoder import ContextualEncoder


@dataclass
class IndexBuilder:
    """Writes the next version of an index, given documents to add, change or remove; see :meth:`build`.

    Attributes:
        index: The index.
        docs: New and changed documents, as for :meth:`GraphIndex.index <pyterrier_graph.GraphIndex.index>`.
        document: As for :meth:`GraphIndex.index <pyterrier_graph.GraphIndex.index>`.
        deleted: Docnos of documents that are removed.
        answered: Topics and judgments of answered queries. In an update, by default those of the previous version.
        passage_words: Words per passage of an index from scratch. In an update None: documents that are not in ``docs``
            stay.
        workers: Number of processes that encode, or ``'ray'``.
    """

    index: VersionedIndex
    docs: Iterable[Any] = ()
    document: Any = None
    deleted: Sequence[str] = ()
    answered: Answered | None = None
    passage_words: int | None = None
    workers: Workers = 1

    def __post_init__(self) -> None:
        check_workers(self.workers)
        self.path = self.index.path
        self.update = self.passage_words is None

    def build(self) -> None:
        """Writes the next version and makes it the current one. An update that changes nothing writes nothing."""
        versions.check_folder(self.path)
        with locked(self.path):
            self.index.reopen()  # another object may have written a newer version
            self.previous = self.index.version if self.index.built() else None
            if self.update and self.previous is None:
                raise FileNotFoundError(
                    f"no index at {str(self.path)!r}: build one with index(docs)"
                )
            with TemporaryFile(dir=self.path) as file:
                changes = self._changes(file)
                changed = changes.count or not changes.unchanged.all()
                if changed or self.answered is not None or not self.update:
                    self._write_version(changes)
        self.index.reopen()

    def _changes(self, file: IO[bytes]) -> RecordChanges:
        """Compares the documents with those of the previous version."""
        previous = self.previous
        self.meta: dict[str, Any] = {"source": {}} | KIND
        if previous is not None:
            self.meta |= previous.meta
        if self.passage_words is not None:
            self.meta["passage_words"] = self.passage_words
        docs = structured_documents(self.docs, self.document, self.meta["passage_words"])
        if previous is None:
            return compare_records(docs, file)
        graph = previous.graph
        graph.document_of(self.deleted)  # raises KeyError for unknown docnos
        docnos = graph.docnos_of(np.arange(len(graph)))
        removed = self.deleted if self.update else docnos
        return compare_records(docs, file, previous.folder, docnos, removed)

    def _write_version(self, changes: RecordChanges) -> None:
        if not changes.count and not changes.unchanged.any():
            raise ValueError("no document would be left: delete the folder of the index instead")
        previous = self.previous
        number = 1 if previous is None else previous.number + 1
        settings = {} if previous is None else self.index.stored()["settings"]
        self.new_answers = self.answered is not None or not self.update
        if self.answered is None and self.update and previous is not None:
            self.answered = previous.answered
        self.meta["source"] = getattr(self.docs, "report", self.meta["source"])
        with atomic_folder(self.path / f"v{number}", self.meta, overwrite=True) as folder:
            changes.write(folder, None if previous is None else previous.folder)
            graph = self._write_graph(folder)
            if not self.update:
                self.meta["encoder"] = self.index.save_encoder(number)
            reused = self._reused_passages(graph, np.flatnonzero(changes.unchanged))
            model, vectors = self._write_context(folder, graph, self.answered, reused)
            own, _ = model.sampler().index.payload(return_docnos=False)
            self.meta["mean_cosine"] = mean_cosine(own)
            versions.write_changes(folder, number, graph, vectors.files, previous, reused)
            if self.answered is not None and self.new_answers and "judged" not in settings:
                settings = settings | self._answered_settings(graph, *self.answered)
            if "alpha" not in settings:
                self._warn_if_alike()
        self.index.publish(number, settings)
        versions.remove_unused(self.path, number, previous)

    def _write_graph(self, folder: Path) -> DocumentGraph:
        """Writes the document graph of the records in a folder, and the answered queries."""
        lines: list[int] = []
        graph = DocumentGraph(folder / versions.GRAPH, verbose=self.index.verbose)
        graph.index(read_documents(folder, lines))
        graph.vectors_folder = self.path / versions.ENCODED
        if lines and len(lines) == len(graph.passage_nodes):
            np.save(folder / versions.LINES, np.array(lines, dtype=np.int32))
        names = versions.TOPICS, versions.QRELS
        for frame, name in zip(self.answered or (), names, strict=False):
            frame.to_json(folder / name, orient="split")
        if not self.update and not len(graph.neighbors(graph.passage_nodes, TITLE)[1]):
            advice = "give documents a title, or queries as answered="
            self._warn(f"the documents have no titles, so passages have no context: {advice}")
        return graph

    def _reused_passages(self, graph: DocumentGraph, unchanged: np.ndarray) -> np.ndarray:
        """Number of each passage in the previous version, -1 if its document is new or changed; shape (passages,)."""
        reused = np.full(len(graph.passage_nodes), -1)
        if self.previous is not None:
            before = self.previous.graph
            _, nodes = before.document_passages.select(unchanged)
            reused[: len(nodes)] = np.searchsorted(before.passage_nodes, nodes)
        return reused

    def _write_context(
        self,
        folder: Path,
        graph: DocumentGraph,
        answered: Answered | None,
        reused: np.ndarray | None = None,
    ) -> tuple[ContextualEncoder, ContextualIndex]:
        """Writes everything that depends on the answered queries: their graph, the vectors, and the BM25 index."""
        queries = None
        if answered is not None:
            topics, qrels = answered
            queries = QueryPassageGraph(folder / versions.QUERIES, verbose=False)
            queries.build(topics, graph, qrels=qrels)
        model = self.index.model(graph, queries, self.meta)
        vectors = model.index(folder / versions.VECTORS, workers=self.workers)
        self._write_bm25(folder / versions.BM25, graph, queries, reused)
        return model, vectors

    def _write_bm25(
        self,
        path: Path,
        graph: DocumentGraph,
        queries: QueryPassageGraph | None,
        reused: np.ndarray | None,
    ) -> None:
        """Writes the BM25 index; without answers that are new, the counts of reused passages are copied."""
        previous, passages = self.previous, np.arange(len(graph.passage_nodes))
        engine = self.meta["lexical"] = self.index.engine(self.meta)
        if engine is None:
            return
        if engine != "bm25s":
            ids = graph.ids_of(graph.passage_nodes)
            pairs = zip(ids, contexts(graph, queries, passages), strict=True)
            records = ({"docno": docno, "text": text} for docno, text in pairs)
            build_engine(records, engine, path, docno_length=max(map(len, ids)))
        elif (
            reused is None
            or self.new_answers
            or previous is None
            or previous.meta["lexical"] != engine
        ):
            BM25Index.build(path, contexts(graph, queries, passages))
        else:
            texts = contexts(graph, queries, passages[reused < 0])
            BM25Index.build(path, texts, previous=previous.bm25, reused=reused[reused >= 0])

    def _answered_settings(
        self, graph: DocumentGraph, topics: pd.DataFrame, qrels: pd.DataFrame
    ) -> dict[str, Any]:
        """Chooses settings using the answered queries, each ranked by an index whose context lacks it."""
        index, start = self.index, default_settings(self.meta["mean_cosine"])

        def hybrid(topics_in_context: pd.DataFrame) -> Hybrid:
            folder = Path(mkdtemp(dir=root))
            _, vectors = self._write_context(folder, graph, (topics_in_context, qrels))
            docnos, _ = vectors.files.payload(return_dvecs=False)
            engine, bm25 = index.lexical or self.meta["lexical"], BM25Index(folder / versions.BM25)
            return Hybrid(lexical_retriever(engine, bm25, docnos, DEPTH), vectors.retriever())

        with TemporaryDirectory(dir=self.path, prefix=".fold-", ignore_cleanup_errors=True) as root:
            return answered_settings(
                hybrid, topics, qrels, graph, start, index.training, verbose=index.verbose
            )

    def _warn_if_alike(self) -> None:
        """Warns if vectors count less than usual, unless the previous version had the same problem."""
        cosine = self.meta["mean_cosine"]
        before = 0.0 if self.previous is None else self.previous.meta["mean_cosine"]
        if before <= ALIKE < cosine:
            self._warn(
                f"the vectors of passages are nearly alike (mean cosine {cosine:.2f}), so BM25 counts more: does the "
                "encoder know the language of the texts? Give another one as encoder="
            )

    def _warn(self, message: str) -> None:
        """Warns at the line where the user changes the index."""
        level = 1
        while sys._getframe(level).f_globals["__name__"].startswith("pyterrier_graph."):
            level += 1
        warnings.warn(message, QualityWarning, stacklevel=level + 1)
