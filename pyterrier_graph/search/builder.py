"""How a GraphIndex is built and changed: the next version is written, and becomes the current one at the end."""

from __future__ import annotations

import copy
import json
import re
import shutil
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import eq
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile, mkdtemp
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pyterrier_graph.checks import QualityWarning
from pyterrier_graph.documents.records import structured_documents
from pyterrier_graph.encoders.names import DEFAULT, checkpoint_name
from pyterrier_graph.encoders.stored_vectors import encoder_name
from pyterrier_graph.graph_mean.contextual_index import ContextualIndex
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.graphs.relations import TITLE
from pyterrier_graph.search import versions
from pyterrier_graph.search.bm25 import BM25Index
from pyterrier_graph.search.fitting import (
    HIGH_COSINE,
    answered_settings,
    default_settings,
    mean_cosine,
)
from pyterrier_graph.search.hybrid import DEPTH, Hybrid
from pyterrier_graph.search.lexical import build_engine, lexical_retriever
from pyterrier_graph.search.records import RecordChanges, compare_records, read_documents
from pyterrier_graph.search.versions import (
    KIND,
    ROWS_AT_ONCE,
    Answered,
    VersionedIndex,
    contexts,
)
from pyterrier_graph.storage.arrays import blocks
from pyterrier_graph.storage.artifact import LOCK, META, atomic_folder, locked
from pyterrier_graph.storage.shards import Workers
from pyterrier_graph.training.validation import checked_qrels, checked_topics

if TYPE_CHECKING:
    from pyterrier_graph.graph_mean.contextual_encoder import ContextualEncoder

INDEX_FILES = re.compile(r"v\d+|encoder-\d+|encoded|lock|pt_meta\.json|\..*")


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

    def build(self) -> None:
        """Writes the next version and makes it the current one. An update that changes nothing writes nothing."""
        self.path = self.index.path
        self.is_update = self.passage_words is None
        if self.answered is not None:
            topics, qrels = self.answered
            qrels = checked_qrels(qrels, "answered")[["qid", "docno", "label"]]
            self.answered = checked_topics(topics, "answered"), qrels
        names = [file.name for file in self.path.iterdir()] if self.path.is_dir() else []
        foreign = [name for name in names if not INDEX_FILES.fullmatch(name)]
        if foreign:
            advice = f"has other files, such as {min(foreign)!r}: choose another path"
            raise FileExistsError(f"{str(self.path)!r} {advice}")
        with locked(self.path / LOCK), TemporaryFile(dir=self.path) as file:
            self.index.reopen()  # another object may have written a newer version
            self.previous = self.index.version if self.is_update or self.index.built() else None
            self.meta: dict[str, Any] = {"source": {}} | KIND
            if self.previous is not None:
                self.meta |= self.previous.meta
            if self.passage_words is not None:
                self.meta["passage_words"] = self.passage_words
            docs = structured_documents(self.docs, self.document, self.meta["passage_words"])
            base = self.previous if self.is_update else None
            changes = compare_records(docs, file, base, self.deleted)
            changed = changes.count or not changes.unchanged.all()
            if changed or self.answered is not None or not self.is_update:
                self._write_version(changes)

    def _write_version(self, changes: RecordChanges) -> None:
        """Writes the folder of the next version, and then makes it the current one."""
        if not changes.count and not changes.unchanged.any():
            raise ValueError("no document would be left: delete the folder of the index instead")
        number = 1
        settings: dict[str, Any] = {}
        answered = self.answered
        if self.previous is not None:
            number = self.previous.number + 1
            settings = self.index.meta["fitted"]
            if self.is_update and answered is None:
                answered = self.previous.answered
        lexical = self.index.lexical or self.meta.get("lexical", "bm25s")
        self.meta["lexical"] = lexical if isinstance(lexical, str) else None
        self.meta["source"] = getattr(self.docs, "report", self.meta["source"])
        with atomic_folder(self.path / f"v{number}", self.meta, overwrite=True) as folder:
            graph = self._write_graph(folder, changes, answered)
            if not self.is_update:
                self._save_encoder(number)
            model, contextual = self._write_context(folder, graph, answered)
            own_vectors, _ = model.sampler().index.payload(return_docnos=False)
            self.meta["mean_cosine"] = mean_cosine(own_vectors)
            self._write_history(folder, number, graph, contextual)
            if self.answered is not None and "judged" not in settings:
                settings = settings | self._answered_settings(graph, *self.answered)
        self.index.publish(number, settings)
        current = self.index.reopen().version
        self._remove_unused(current)
        self._warn(current.graph, settings)

    def _write_graph(
        self, folder: Path, changes: RecordChanges, answered: Answered | None
    ) -> DocumentGraph:
        """Writes the records of the documents, their graph, and the answered queries."""
        lines: list[int] = []
        changes.write(folder)
        graph = DocumentGraph(folder / versions.GRAPH, verbose=self.index.verbose)
        graph.index(read_documents(folder, lines))
        graph.vectors_folder = self.path / versions.ENCODED
        if lines and len(lines) == len(graph.passage_nodes):
            np.save(folder / versions.LINES, np.array(lines, dtype=np.int32))
        if answered is not None:
            topics, qrels = answered
            topics.to_json(folder / versions.TOPICS, orient="split")
            qrels.to_json(folder / versions.QRELS, orient="split")

        # (passages,): each passage's number in the previous version, -1 if its document is new or changed
        self.old_numbers = np.full(len(graph.passage_nodes), -1)
        if self.previous is not None and changes.unchanged.any():
            old_graph = self.previous.graph
            unchanged = np.flatnonzero(changes.unchanged)
            _, old_nodes = old_graph.document_passages.select(unchanged)
            old_numbers = np.searchsorted(old_graph.passage_nodes, old_nodes)
            self.old_numbers[: len(old_nodes)] = old_numbers  # unchanged documents come first
        return graph

    def _save_encoder(self, number: int) -> None:
        """Saves an encoder that can be saved, unless the name of a checkpoint is enough."""
        from pyterrier_graph.training.model import LearnedModel

        encoder = self.index.encoder
        if encoder is None and "encoder" in self.meta:
            return  # that of the previous version
        encoder = encoder or DEFAULT
        name = checkpoint_name(encoder) if isinstance(encoder, str) else None
        self.meta["encoder"] = {"checkpoint": name, "name": encoder_name(self.index.bi_encoder)}
        if isinstance(encoder, LearnedModel):
            folder = self.path / f"encoder-{number}"
            shutil.rmtree(folder, ignore_errors=True)
            copy.copy(encoder).save(folder)  # a copy, since saving changes its path
            self.meta["encoder"]["folder"] = folder.name

    def _write_context(
        self, folder: Path, graph: DocumentGraph, answered: Answered | None
    ) -> tuple[ContextualEncoder, ContextualIndex]:
        """Writes everything that depends on the answered queries: their graph, the vectors, and the BM25 index."""
        from pyterrier_graph.graph_mean.graph_mean import GraphMean

        queries = None
        if answered is not None:
            topics, qrels = answered
            queries = QueryPassageGraph(folder / versions.QUERIES, verbose=False)
            queries.build(topics, graph, qrels=qrels)
        encoder: Any = self.index.loaded_encoder
        options: dict[str, Any] = {
            "query_graph": queries,
            "folder": self.path / versions.ENCODED,
            "verbose": self.index.verbose,
        }
        if hasattr(encoder, "vectors_of"):  # a GraphMean or GNNEncoder
            saved = self.path / self.meta["encoder"]["folder"]
            model = type(encoder).load(saved, graph=graph, encoder=encoder.encoder, **options)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", QualityWarning)  # of missing titles: see _warn()
                model = GraphMean(graph, encoder, **options)
        contextual = model.index(folder / versions.VECTORS, workers=self.workers)
        self._write_bm25(folder / versions.BM25, graph, queries)
        return model, contextual

    def _write_bm25(
        self, path: Path, graph: DocumentGraph, queries: QueryPassageGraph | None
    ) -> None:
        """Writes the BM25 index. In an update without new answers, the counts of reused passages are copied."""
        engine = self.meta["lexical"]
        passages = np.arange(len(self.old_numbers))
        if engine in ("pisa", "terrier"):
            ids = graph.ids_of(graph.passage_nodes)
            pairs = zip(ids, contexts(graph, queries, passages), strict=True)
            records = ({"docno": docno, "text": text} for docno, text in pairs)
            build_engine(records, engine, path, docno_length=max(map(len, ids)))
        elif engine == "bm25s":
            previous = self.previous if self.is_update and self.answered is None else None
            if previous is None:
                BM25Index.build(path, contexts(graph, queries, passages))
            else:
                reused = self.old_numbers >= 0  # (passages,)
                texts = contexts(graph, queries, passages[~reused])
                copied = self.old_numbers[reused]
                BM25Index.build(path, texts, previous=previous.bm25, reused=copied)

    def _write_history(
        self, folder: Path, number: int, graph: DocumentGraph, contextual: ContextualIndex
    ) -> None:
        """Writes in which version each passage last changed, and which version removed each passage that is gone."""
        previous, old_numbers = self.previous, self.old_numbers
        changed = np.full(len(old_numbers), number, np.int32)  # (passages,)
        deleted: dict[str, int] = {}
        if previous is not None:
            new_vectors, _ = contextual.files.payload(return_docnos=False)
            old_vectors, _ = previous.flex.payload(return_docnos=False)
            reused = np.flatnonzero(old_numbers >= 0)
            queries = None
            if self.answered is not None:
                queries = QueryPassageGraph(folder / versions.QUERIES, verbose=False)
            for block in blocks(len(reused), ROWS_AT_ONCE):
                new = reused[block]
                old = old_numbers[new]
                same = (new_vectors[new] == old_vectors[old]).all(axis=1)  # (batch,)
                if queries is not None:
                    new_contexts = contexts(graph, queries, new)
                    old_contexts = contexts(previous.graph, previous.queries, old)
                    same &= np.fromiter(map(eq, new_contexts, old_contexts), dtype=bool)
                changed[new[same]] = previous.changed[old[same]]
            gone = np.delete(previous.graph.passage_nodes, old_numbers[reused])
            deleted = previous.deleted | dict.fromkeys(previous.graph.ids_of(gone), number)
            for docno in graph.ids_of(graph.passage_nodes[old_numbers < 0]):
                deleted.pop(docno, None)
        np.save(folder / versions.CHANGED, changed)
        (folder / versions.DELETED).write_text(json.dumps(deleted), encoding="utf-8")

    def _answered_settings(
        self, graph: DocumentGraph, topics: pd.DataFrame, qrels: pd.DataFrame
    ) -> dict[str, Any]:
        """Chooses settings using the answered queries, each ranked by an index whose context lacks it."""
        index = self.index
        start = default_settings(self.meta["mean_cosine"])

        def hybrid(known: pd.DataFrame) -> Hybrid:
            folder = Path(mkdtemp(dir=root))
            _, contextual = self._write_context(folder, graph, (known, qrels))
            docnos, _ = contextual.files.payload(return_dvecs=False)
            engine = index.lexical or self.meta["lexical"]
            bm25 = BM25Index(folder / versions.BM25)
            return Hybrid(lexical_retriever(engine, bm25, docnos, DEPTH), contextual.retriever())

        with TemporaryDirectory(dir=self.path, prefix=".fold-", ignore_cleanup_errors=True) as root:
            return answered_settings(
                hybrid, topics, qrels, graph, start, index.training, verbose=index.verbose
            )

    def _remove_unused(self, current: versions.Version) -> None:
        """Removes all but two versions with their encoders, and encoded texts of other graphs than the current ones."""
        used = {current.folder.name, versions.ENCODED, self.meta["encoder"].get("folder")}
        if self.previous is not None:
            used |= {self.previous.folder.name, self.previous.meta["encoder"].get("folder")}
        unused = [
            entry for entry in self.path.iterdir() if entry.is_dir() and entry.name not in used
        ]
        graphs = [graph for graph in (current.graph, current.queries) if graph is not None]
        fingerprints = [graph.fingerprint().encode() for graph in graphs]
        for folder in (self.path / versions.ENCODED).iterdir():
            file = folder / META
            about = file.read_bytes() if file.is_file() else b""  # none if it was never finished
            if not any(fingerprint in about for fingerprint in fingerprints):
                unused.append(folder)
        for folder in unused:
            # renamed first, so that no process opens a half-deleted folder
            removed = folder.with_name(f".removed-{folder.name.lstrip('.')}")
            shutil.rmtree(removed, ignore_errors=True)
            with suppress(OSError):  # on Windows, a folder that is open keeps its name
                folder = folder.replace(removed)
            shutil.rmtree(folder, ignore_errors=True)

    def _warn(self, graph: DocumentGraph, settings: Mapping[str, Any]) -> None:
        """Warns of missing titles, and if vectors are nearly alike for the first time."""
        if not self.is_update and not len(graph.neighbors(graph.passage_nodes, TITLE)[1]):
            warnings.warn(
                "the documents have no titles, so passages have no context: give documents a title, "
                "or queries as answered=",
                QualityWarning,
                stacklevel=5,  # where the user changes the index
            )
        cosine = self.meta["mean_cosine"]
        before = 0.0 if self.previous is None else self.previous.meta["mean_cosine"]
        if "alpha" not in settings and before <= HIGH_COSINE < cosine:
            warnings.warn(
                f"the vectors of passages are nearly alike (mean cosine {cosine:.2f}), so BM25 counts more: does the "
                "encoder know the language of the texts? Give another one as encoder=",
                QualityWarning,
                stacklevel=5,
            )
