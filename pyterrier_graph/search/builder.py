"""How a GraphIndex is built and changed: the next version is written, and becomes the current one at the end."""

from __future__ import annotations

import copy
import json
import shutil
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import pandas as pd

from pyterrier_graph.checks import QualityWarning
from pyterrier_graph.encoders.names import DEFAULT, checkpoint_name
from pyterrier_graph.encoders.stored_vectors import encoder_name
from pyterrier_graph.graph_mean.contextual_index import ContextualIndex, encoder_of
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
from pyterrier_graph.search.lexical import bm25
from pyterrier_graph.search.records import RecordChanges, read_documents
from pyterrier_graph.search.versions import KIND, Answered, Version
from pyterrier_graph.storage.artifact import (
    DIGESTS,
    LOCK,
    META,
    SIZES,
    atomic_folder,
    file_sha256,
    kind_of,
    locked,
    meta_text,
    read_meta,
    write_file,
)
from pyterrier_graph.storage.shards import Workers, check_workers

if TYPE_CHECKING:
    from pyterrier_graph.graph_mean.contextual_encoder import ContextualEncoder
    from pyterrier_graph.search.graph_index import GraphIndex

OWN_FILES = {versions.ENCODED, LOCK, META}
TEXTS_AT_ONCE = 4096


@dataclass
class IndexBuilder:
    """Documents that are added, replaced or removed: :meth:`build` writes the next version of an index."""

    index: GraphIndex
    docs: Iterable[Any] = ()
    document: Any = None
    about: Mapping[str, Any] = field(default_factory=dict)  # entries of the version's pt_meta.json
    keep_others: bool = True  # documents, and answered queries unless others are given
    deleted: Sequence[str] = ()
    answered: Answered | None = None
    workers: Workers = 1

    def build(self) -> None:
        """Writes the version. A change without an effect leaves the current one."""
        check_workers(self.workers)
        self.path = self.index.path
        _check_files(self.path)
        with locked(self.path):
            self.index.reopen()  # at the last version, which another object may have written
            self.present = self.index.version
            if self.present is None and self.keep_others:
                raise FileNotFoundError(
                    f"no index at {str(self.path)!r}: build one with index(docs)"
                )
            base = self.present if self.keep_others else None
            former = None if self.present is None else self.present.answered
            if self.answered is None and self.keep_others:
                self.answered = former
            self.newly_answered = not _equal(self.answered, former)
            with TemporaryFile(dir=self.path) as file:
                self._build(self._changes(base, file), base)
        self.index.reopen()

    def _changes(self, base: Version | None, file: Any) -> RecordChanges:
        self.meta = dict(KIND if base is None else {"source": {}} | base.meta) | dict(self.about)
        docs = structured_documents(self.docs, self.document, self.meta["passage_words"])
        if base is None:
            return RecordChanges.compare(docs, file)
        base.graph.document_of(self.deleted)  # KeyError
        docnos = base.graph.docnos_of(np.arange(len(base.graph)))
        return RecordChanges.compare(docs, file, base.folder, docnos, deleted=self.deleted)

    def _build(self, changes: RecordChanges, base: Version | None) -> None:
        number = 1 if self.present is None else self.present.number + 1
        kind = kind_of(self.index)
        settings = {} if self.present is None else read_meta(self.path, kind)["settings"]
        self.meta["source"] = getattr(self.docs, "report", None) or self.meta.get("source", {})
        if base is not None and changes.is_empty(len(base.graph)) and not self.newly_answered:
            return
        if base is not None and not len(changes.unchanged) and not changes.lengths:
            raise ValueError("no document would be left: delete the folder of the index instead")
        with atomic_folder(self.path / f"v{number}", self.meta, overwrite=True) as folder:
            changes.write(folder, None if base is None else base.folder)
            graph = self._graph(folder)
            if self.answered is not None:
                for frame, name in zip(
                    self.answered, (versions.TOPICS, versions.QRELS), strict=True
                ):
                    frame.to_json(folder / name, orient="split")
            self._save_encoder(number)
            if base is None and not len(graph.neighbors(graph.passage_nodes, TITLE)[1]):
                advice = "give documents a title, or queries as answered="
                self._warn(f"the documents have no titles, so passages have no context: {advice}")
            copied = _copied_passages(graph, base, changes.unchanged)
            model, vectors = self._write_context(folder, graph, self.answered, base, copied)
            own, _ = model.sampler().index.payload(return_docnos=False)
            self.meta["mean_cosine"] = mean_cosine(own, graph.document[graph.passage_nodes])
            _note_changes(folder, number, graph, vectors, self.present, base, copied)
            if self.answered is not None and self.newly_answered and not settings.get("judged"):
                settings = settings | self._settings(folder, graph)
            if "alpha" not in settings:
                self._warn_if_alike(base)
        publish(self.index, number, settings)
        self._remove_old(number, graph.fingerprint())

    def _graph(self, folder: Path) -> DocumentGraph:
        """The document graph of the records in a folder."""
        lines: list[int] = []
        graph = DocumentGraph(folder / versions.GRAPH, verbose=self.index.verbose)
        graph.index(read_documents(folder, lines))
        graph.vectors_folder = self.path / versions.ENCODED
        if lines and len(lines) == len(graph.passage_nodes):
            np.save(folder / versions.LINES, np.array(lines, dtype=np.int32))
        return graph

    def _write_context(
        self,
        folder: Path,
        graph: DocumentGraph,
        answered: Answered | None,
        base: Version | None = None,
        copied: np.ndarray | None = None,
    ) -> tuple[ContextualEncoder, ContextualIndex]:
        """Writes all that depends on the answered queries: their graph, the vectors, and what BM25 searches."""
        queries = None
        if answered is not None:
            topics, qrels = answered
            queries = QueryPassageGraph(folder / versions.QUERIES, verbose=False)
            queries.build(topics, graph, qrels=qrels)
        model = self.index.model(graph, queries, self.meta)
        vectors = model.index(folder / versions.VECTORS, workers=self.workers)
        self.meta["lexical"] = self.index.engine(self.meta)
        if self.meta["lexical"] == "bm25s":
            previous, numbers = None, np.arange(len(graph.passage_nodes))
            if base is not None and copied is not None and not self.newly_answered:
                if base.meta["lexical"] == "bm25s":
                    previous, numbers = base.bm25, np.flatnonzero(copied < 0)
            BM25Index.build(
                folder / versions.BM25,
                contexts(graph, queries, numbers),
                previous=previous,
                copied=None if previous is None else copied,
            )
        elif self.meta["lexical"] is not None:
            ids = graph.ids_of(graph.passage_nodes)
            texts = contexts(graph, queries, np.arange(len(ids)))
            records = (
                {"docno": docno, "text": text} for docno, text in zip(ids, texts, strict=True)
            )
            longest = max(map(len, ids))
            bm25(records, self.meta["lexical"], folder / versions.BM25, docno_length=longest)
        return model, vectors

    def _settings(self, folder: Path, graph: DocumentGraph) -> dict[str, Any]:
        """The settings that answered queries support, each query ranked in an index whose context lacks it."""
        assert self.answered is not None
        topics, qrels = self.answered
        qrels = graph.passage_qrels(qrels)
        index = self.index
        with TemporaryDirectory(dir=self.path, prefix=".fold-", ignore_cleanup_errors=True) as root:

            def hybrid(topics_in_context: pd.DataFrame) -> Hybrid:
                fold = Path(root) / str(len([*Path(root).iterdir()]))
                fold.mkdir()
                _, vectors = self._write_context(fold, graph, (topics_in_context, qrels))
                files = BM25Index(fold / versions.BM25)
                words = index.lexical_retriever(
                    self.meta["lexical"], files, graph, vectors.files, DEPTH
                )
                return Hybrid(words, vectors.retriever())

            parts = [*left_out(hybrid, topics, qrels, verbose=index.verbose)]
        if not parts:
            return {}
        start = default_settings(self.meta["mean_cosine"])
        return best_settings(parts, graph, qrels, start, index.training, verbose=index.verbose)

    def _warn_if_alike(self, base: Version | None) -> None:
        """Warns if vectors count less than usual, unless the version before had the same problem."""
        cosine = self.meta["mean_cosine"]
        former = 0.0 if base is None else base.meta.get("mean_cosine", 0.0)
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

    def _save_encoder(self, number: int) -> None:
        """Notes the encoder, and saves it in the index unless the name of a checkpoint is enough."""
        if "encoder" in self.meta:
            return
        index = self.index
        if index.encoder is None:
            index.encoder = DEFAULT
        checkpoint = _checkpoint_of(index.encoder)
        self.meta["encoder"] = {"checkpoint": checkpoint, "name": encoder_name(index.bi_encoder)}
        if checkpoint:
            return
        from pyterrier_graph.training.model import LearnedModel

        if isinstance(index.encoder, LearnedModel):
            self.meta["encoder"]["folder"] = f"encoder-{number}"
            shutil.rmtree(self.path / f"encoder-{number}", ignore_errors=True)
            copy.copy(index.encoder).save(
                self.path / f"encoder-{number}"
            )  # the path of a copy changes

    def _remove_old(self, number: int, fingerprint: str) -> None:
        """Removes versions before the previous one, and the encoder's vectors of other graphs than the current one."""
        encoders = {self.meta["encoder"].get("folder")}
        if self.present is not None:
            encoders.add(self.present.meta["encoder"].get("folder"))
        for entry in [*self.path.iterdir()]:
            old = versions.VERSION.fullmatch(entry.name) and int(entry.name[1:]) < number - 1
            unused = entry.name.startswith("encoder-") and entry.name not in encoders
            if old or unused or entry.name.startswith("."):
                _remove(entry)
        newest: dict[str, Path] = {}  # of queries and titles
        encoded = sorted(
            (self.path / versions.ENCODED).iterdir(), key=lambda file: file.stat().st_mtime
        )
        for entry in encoded:
            kind, _, rest = entry.name.partition("-")
            if kind == "passages":
                meta = entry / META
                if not meta.is_file() or fingerprint.encode() not in meta.read_bytes():
                    _remove(entry)
            elif kind in ("queries", "titles") and kind in newest:
                _remove(newest[kind])
            newest[kind] = entry


def publish(index: GraphIndex, number: int, settings: Mapping[str, Any]) -> None:
    """Makes a version the current one. Replacing ``pt_meta.json`` is the transaction."""
    path = index.path
    name = f"v{number}/{META}"
    files = {SIZES: {name: (path / name).stat().st_size}, DIGESTS: {name: file_sha256(path / name)}}
    meta = kind_of(index) | {"version": number, "settings": dict(settings)} | files
    write_file(path / META, meta_text(meta).encode())


def contexts(
    graph: DocumentGraph, queries: QueryPassageGraph | None, passages: np.ndarray
) -> Iterable[str]:
    """The texts of passages, by number, with their titles in front and the queries that they answer behind."""
    for start in range(0, len(passages), TEXTS_AT_ONCE):
        batch = passages[start : start + TEXTS_AT_ONCE]
        texts = graph.texts(graph.passage_nodes[batch], titles=True)
        if queries is not None:
            answered = queries.edges_of_passages(batch, RELEVANT)
            for row, query in zip(answered.row_index, queries.texts(answered.indices), strict=True):
                texts[row] += f"\n{query}"
        yield from texts


def _copied_passages(
    graph: DocumentGraph, base: Version | None, unchanged: np.ndarray
) -> np.ndarray:
    """Per passage its number in the version that it is copied from; -1 if it is of a new document."""
    copied = np.full(len(graph.passage_nodes), -1)
    if base is not None:
        _, nodes = base.graph.passages_of_documents(unchanged)
        copied[: len(nodes)] = np.searchsorted(base.graph.passage_nodes, nodes)
    return copied


def _note_changes(
    folder: Path,
    number: int,
    graph: DocumentGraph,
    vectors: ContextualIndex,
    present: Version | None,
    base: Version | None,
    copied: np.ndarray,
) -> None:
    """Writes in which version each passage changed last, and which passages are gone."""
    changed, deleted = np.full(len(copied), number), dict[str, int]()
    if base is not None:
        rows = np.flatnonzero(copied >= 0)
        new, old = (files.payload(return_docnos=False)[0] for files in (vectors.files, base.flex))
        if new.shape[1] == old.shape[1]:
            for start in range(0, len(rows), TEXTS_AT_ONCE):
                batch = rows[start : start + TEXTS_AT_ONCE]
                same = (new[batch] == old[copied[batch]]).all(axis=1)
                changed[batch[same]] = base.changed[copied[batch[same]]]
    if present is not None:
        gone = np.ones(len(present.graph.passage_nodes), dtype=bool)
        if base is not None:
            gone[copied[copied >= 0]] = False
        ids = present.graph.ids_of(present.graph.passage_nodes[gone])
        new_ids = graph.ids_of(graph.passage_nodes[copied < 0])
        deleted = present.deleted | dict.fromkeys(ids, number)
        for docno in new_ids:
            deleted.pop(docno, None)
    np.save(folder / versions.CHANGED, changed.astype(np.int32))
    (folder / versions.DELETED).write_text(json.dumps(deleted), encoding="utf-8")


def is_contextual(encoder: Any) -> TypeGuard[ContextualEncoder]:
    """Whether an encoder is a GraphMean or GNNEncoder."""
    return hasattr(encoder, "vectors_of")


def _checkpoint_of(encoder: Any) -> str | None:
    """The name of the checkpoint that an encoder is, with the same weights; None if it is another one."""
    if isinstance(encoder, str):
        return checkpoint_name(encoder)
    if is_contextual(encoder) or "@" not in (name := encoder_name(encoder)):
        return None
    try:
        checkpoint = name.rpartition("@")[0]
        return checkpoint_name(checkpoint) if encoder_name(encoder_of(checkpoint)) == name else None
    except Exception:  # whatever a hub or a file says of a name that is not a checkpoint
        return None


def _check_files(path: Path) -> None:
    names = {file.name for file in path.iterdir()} if path.is_dir() else set()
    foreign = {name for name in names - OWN_FILES if not name.startswith((".", "encoder-"))}
    if foreign := {name for name in foreign if not versions.VERSION.fullmatch(name)}:
        raise FileExistsError(
            f"{str(path)!r} has other files, such as {min(foreign)!r}: choose another path"
        )


def _remove(entry: Path) -> None:
    """Removes a folder, under another name first, so that no process opens a part of it."""
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
