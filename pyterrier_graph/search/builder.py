"""How a GraphIndex is built and changed: the next version is written, and becomes the current one at the end."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pyterrier_graph.checks import QualityWarning
from pyterrier_graph.graph_mean.contextual_index import ContextualIndex
from pyterrier_graph.graphs.document_graph import DocumentGraph, structured_documents
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.graphs.relations import RELEVANT, TITLE
from pyterrier_graph.search import versions
from pyterrier_graph.search.bm25 import BM25Index
from pyterrier_graph.search.fitting import (
    ALIKE,
    best_settings,
    default_settings,
    left_out,
    mean_cosine,
)
from pyterrier_graph.search.hybrid import DEPTH, Hybrid
from pyterrier_graph.search.lexical import build_engine, lexical_retriever
from pyterrier_graph.search.records import RecordChanges, read_documents
from pyterrier_graph.search.versioned_index import VersionedIndex
from pyterrier_graph.search.versions import KIND, Answered
from pyterrier_graph.storage.arrays import blocks
from pyterrier_graph.storage.artifact import (
    LOCK,
    META,
    atomic_folder,
    kind_of,
    locked,
    read_meta,
)
from pyterrier_graph.storage.shards import Workers, check_workers

if TYPE_CHECKING:
    from pyterrier_graph.graph_mean.contextual_encoder import ContextualEncoder

OWN_FILES = {versions.ENCODED, LOCK, META}
TEXTS_AT_ONCE = 4096


@dataclass
class IndexBuilder:
    """Writes the next version of an index, given documents to add, replace or remove; see :meth:`build`.

    Attributes:
        index: The index.
        docs: New documents, as for :meth:`GraphIndex.index <pyterrier_graph.GraphIndex.index>`.
        document: As for :meth:`GraphIndex.index <pyterrier_graph.GraphIndex.index>`.
        about: Entries of the version's ``pt_meta.json``.
        keep_others: Whether documents that are not in ``docs`` stay, and answered queries if ``answered`` is None.
        deleted: Docnos of documents that are removed.
        answered: Topics and judgments of answered queries.
        workers: Number of processes that encode, or ``'ray'``.
    """

    index: VersionedIndex
    docs: Iterable[Any] = ()
    document: Any = None
    about: Mapping[str, Any] = field(default_factory=dict)
    keep_others: bool = True
    deleted: Sequence[str] = ()
    answered: Answered | None = None
    workers: Workers = 1

    def build(self) -> None:
        """Writes the next version and makes it the current one. Writes nothing if nothing has changed."""
        check_workers(self.workers)
        self.path = self.index.path
        _check_files(self.path)
        with locked(self.path):
            self.index.reopen()  # another object may have written a newer version
            self.present = self.index.version if self.index.built() else None
            if self.present is None and self.keep_others:
                raise FileNotFoundError(
                    f"no index at {str(self.path)!r}: build one with index(docs)"
                )
            self.base = self.present if self.keep_others else None
            former = None if self.present is None else self.present.answered
            if self.answered is None and self.keep_others:
                self.answered = former
            self.newly_answered = not _equal(self.answered, former)
            with TemporaryFile(dir=self.path) as file:
                self._build(self._changes(file))
        self.index.reopen()

    def _changes(self, file: Any) -> RecordChanges:
        """Compares the documents with those of the present version."""
        base = self.base
        self.meta = dict(KIND if base is None else {"source": {}} | base.meta) | dict(self.about)
        docs = structured_documents(self.docs, self.document, self.meta["passage_words"])
        if base is None:
            return RecordChanges.compare(docs, file)
        base.graph.document_of(self.deleted)  # raises KeyError for unknown docnos
        docnos = base.graph.docnos_of(np.arange(len(base.graph)))
        return RecordChanges.compare(docs, file, base.folder, docnos, deleted=self.deleted)

    def _build(self, changes: RecordChanges) -> None:
        base, present = self.base, self.present
        if base is not None:
            if changes.is_empty(len(base.graph)) and not self.newly_answered:
                return
            if not len(changes.unchanged) and not changes.lengths:
                raise ValueError(
                    "no document would be left: delete the folder of the index instead"
                )
        self.number = 1 if present is None else present.number + 1
        kind = kind_of(self.index)
        settings = {} if present is None else read_meta(self.path, kind)["settings"]
        self.meta["source"] = getattr(self.docs, "report", None) or self.meta.get("source", {})
        with atomic_folder(self.path / f"v{self.number}", self.meta, overwrite=True) as folder:
            changes.write(folder, None if base is None else base.folder)
            graph = self._write_graph(folder)
            if "encoder" not in self.meta:
                self.meta["encoder"] = self.index.save_encoder(self.number)
            copied = self._copied_passages(graph, changes.unchanged)
            model, vectors = self._write_context(folder, graph, self.answered, copied)
            own, _ = model.sampler().index.payload(return_docnos=False)
            self.meta["mean_cosine"] = mean_cosine(own, graph.document[graph.passage_nodes])
            self._note_changes(folder, graph, vectors, copied)
            if self.answered is not None and self.newly_answered and "judged" not in settings:
                settings = settings | self._settings(folder, graph, *self.answered)
            if "alpha" not in settings:
                self._warn_if_alike()
        self.index.publish(self.number, settings)
        self._remove_old(graph.fingerprint())

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
        if self.base is None and not len(graph.neighbors(graph.passage_nodes, TITLE)[1]):
            advice = "give documents a title, or queries as answered="
            self._warn(f"the documents have no titles, so passages have no context: {advice}")
        return graph

    def _copied_passages(self, graph: DocumentGraph, unchanged: np.ndarray) -> np.ndarray:
        """Number of each passage in the base version, shape (passages,); -1 if its document is new or changed."""
        copied = np.full(len(graph.passage_nodes), -1)
        if self.base is not None:
            _, nodes = self.base.graph.passages_of_documents(unchanged)
            copied[: len(nodes)] = np.searchsorted(self.base.graph.passage_nodes, nodes)
        return copied

    def _write_context(
        self,
        folder: Path,
        graph: DocumentGraph,
        answered: Answered | None,
        copied: np.ndarray | None = None,
    ) -> tuple[ContextualEncoder, ContextualIndex]:
        """Writes everything that depends on the answered queries: their graph, the vectors, and the BM25 index."""
        queries = None
        if answered is not None:
            topics, qrels = answered
            queries = QueryPassageGraph(folder / versions.QUERIES, verbose=False)
            queries.build(topics, graph, qrels=qrels)
        model = self.index.model(graph, queries, self.meta)
        vectors = model.index(folder / versions.VECTORS, workers=self.workers)
        engine = self.meta["lexical"] = self.index.engine(self.meta)
        passages, previous, kept = np.arange(len(graph.passage_nodes)), None, None
        if engine == "bm25s":
            if copied is not None and self.base is not None and not self.newly_answered:
                if self.base.meta["lexical"] == "bm25s":
                    previous, passages = self.base.bm25, np.flatnonzero(copied < 0)
                    kept = copied[copied >= 0]
            texts = contexts(graph, queries, passages)
            BM25Index.build(folder / versions.BM25, texts, previous=previous, kept=kept)
        elif engine is not None:
            ids = graph.ids_of(graph.passage_nodes)
            texts = contexts(graph, queries, passages)
            pairs = zip(ids, texts, strict=True)
            records = ({"docno": docno, "text": text} for docno, text in pairs)
            path = folder / versions.BM25
            build_engine(records, engine, path, docno_length=max(map(len, ids)))
        return model, vectors

    def _note_changes(
        self, folder: Path, graph: DocumentGraph, vectors: ContextualIndex, copied: np.ndarray
    ) -> None:
        """Records the version in which each passage last changed, and which passages were removed."""
        base, present = self.base, self.present
        changed, deleted = np.full(len(copied), self.number), dict[str, int]()
        if base is not None:
            rows = np.flatnonzero(copied >= 0)
            new, old = (
                files.payload(return_docnos=False)[0] for files in (vectors.files, base.flex)
            )
            if new.shape[1] == old.shape[1]:
                for block in blocks(len(rows), TEXTS_AT_ONCE):
                    batch = rows[block]
                    same = (new[batch] == old[copied[batch]]).all(axis=1)
                    changed[batch[same]] = base.changed[copied[batch[same]]]
        if present is not None:
            gone = np.ones(len(present.graph.passage_nodes), dtype=bool)
            if base is not None:
                gone[copied[copied >= 0]] = False
            ids = present.graph.ids_of(present.graph.passage_nodes[gone])
            deleted = present.deleted | dict.fromkeys(ids, self.number)
            for docno in graph.ids_of(graph.passage_nodes[copied < 0]):
                deleted.pop(docno, None)
        np.save(folder / versions.CHANGED, changed.astype(np.int32))
        (folder / versions.DELETED).write_text(json.dumps(deleted), encoding="utf-8")

    def _settings(
        self, folder: Path, graph: DocumentGraph, topics: pd.DataFrame, qrels: pd.DataFrame
    ) -> dict[str, Any]:
        """Chooses settings using the answered queries, each ranked by an index whose context lacks it."""
        index, qrels = self.index, graph.passage_qrels(qrels)
        with TemporaryDirectory(dir=self.path, prefix=".fold-", ignore_cleanup_errors=True) as root:

            def hybrid(topics_in_context: pd.DataFrame) -> Hybrid:
                fold = Path(root) / str(len([*Path(root).iterdir()]))
                fold.mkdir()
                _, vectors = self._write_context(fold, graph, (topics_in_context, qrels))
                docnos, _ = vectors.files.payload(return_dvecs=False)
                engine = index.lexical or self.meta["lexical"]
                files = BM25Index(fold / versions.BM25)
                words = lexical_retriever(engine, files, graph, docnos, DEPTH)
                return Hybrid(words, vectors.retriever())

            parts = [*left_out(hybrid, topics, qrels, verbose=index.verbose)]
        if not parts:
            return {}
        start = default_settings(self.meta["mean_cosine"])
        return best_settings(parts, graph, qrels, start, index.training, verbose=index.verbose)

    def _warn_if_alike(self) -> None:
        """Warns if vectors count less than usual, unless the version before had the same problem."""
        cosine = self.meta["mean_cosine"]
        former = 0.0 if self.base is None else self.base.meta.get("mean_cosine", 0.0)
        if former <= ALIKE < cosine:
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

    def _remove_old(self, fingerprint: str) -> None:
        """Removes versions before the previous one, and the encoder's vectors of other graphs than the current one."""
        encoders = {self.meta["encoder"].get("folder")}
        if self.present is not None:
            encoders.add(self.present.meta["encoder"].get("folder"))
        for entry in [*self.path.iterdir()]:
            old = versions.VERSION.fullmatch(entry.name) and int(entry.name[1:]) < self.number - 1
            unused = entry.name.startswith("encoder-") and entry.name not in encoders
            if old or unused or entry.name.startswith("."):
                _remove(entry)
        newest: dict[str, Path] = {}  # newest vectors of each kind seen so far
        encoded = sorted(
            (self.path / versions.ENCODED).iterdir(), key=lambda file: file.stat().st_mtime
        )
        for entry in encoded:
            kind = entry.name.partition("-")[0]
            if kind == "passages":
                meta = entry / META
                if not meta.is_file() or fingerprint.encode() not in meta.read_bytes():
                    _remove(entry)
            elif kind in ("queries", "titles") and kind in newest:
                _remove(newest[kind])
            newest[kind] = entry


def contexts(
    graph: DocumentGraph, queries: QueryPassageGraph | None, passages: np.ndarray
) -> Iterable[str]:
    """Yields the text of each passage, preceded by its titles and followed by the queries that it answers."""
    for block in blocks(len(passages), TEXTS_AT_ONCE):
        batch = passages[block]
        texts = graph.texts(graph.passage_nodes[batch], titles=True)
        if queries is not None:
            answered = queries.edges_of_passages(batch, RELEVANT)
            for row, query in zip(answered.row_index, queries.texts(answered.indices), strict=True):
                texts[row] += f"\n{query}"
        yield from texts


def _check_files(path: Path) -> None:
    names = {file.name for file in path.iterdir()} if path.is_dir() else set()
    foreign = {name for name in names - OWN_FILES if not name.startswith((".", "encoder-"))}
    if foreign := {name for name in foreign if not versions.VERSION.fullmatch(name)}:
        raise FileExistsError(
            f"{str(path)!r} has other files, such as {min(foreign)!r}: choose another path"
        )


def _remove(entry: Path) -> None:
    """Renames a folder and then deletes it, so that no process opens a half-deleted folder."""
    target = entry.with_name(f".removed-{entry.name.lstrip('.')}")
    shutil.rmtree(target, ignore_errors=True)
    with suppress(OSError):  # on Windows, a folder that is open keeps its name
        entry.replace(target)
        entry = target
    shutil.rmtree(entry, ignore_errors=True)


def _equal(one: Answered | None, other: Answered | None) -> bool:
    if one is None or other is None:
        return one is other
    frames = zip(one, other, strict=True)
    return all(a.reset_index(drop=True).equals(b.reset_index(drop=True)) for a, b in frames)
