"""How a GraphIndex is built and changed: the next version is written, and becomes the current one at the end."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.checks import QualityWarning
from pyterrier_graph.documents.records import structured_documents
from pyterrier_graph.encoders.names import DEFAULT, checkpoint_name
from pyterrier_graph.encoders.stored_vectors import encoder_name
from pyterrier_graph.graph_mean.contextual_index import ContextualIndex
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.graphs.judgments import passage_qrels
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.search.bm25 import BM25Index
from pyterrier_graph.search.fitting import (
    HIGH_COSINE,
    best_settings,
    default_settings,
    mean_cosine,
    measured_results,
)
from pyterrier_graph.search.hybrid import DEPTH, Hybrid
from pyterrier_graph.search.lexical import build_engine, lexical_retriever
from pyterrier_graph.search.records import RecordChanges, compare_records, read_documents
from pyterrier_graph.search.versions import (
    BM25,
    CHANGED,
    DELETED,
    ENCODED,
    GRAPH,
    KIND,
    LINES,
    QRELS,
    QUERIES,
    TOPICS,
    VECTORS,
    Answered,
    Version,
    VersionedIndex,
    contexts,
    is_contextual,
)
from pyterrier_graph.storage.artifact import LOCK, META, atomic_folder, locked, weights_sha256
from pyterrier_graph.storage.shards import Workers
from pyterrier_graph.training.validation import checked_qrels, checked_topics

if TYPE_CHECKING:
    from pyterrier_graph.graph_mean.contextual_encoder import ContextualEncoder

FOLDS = 5  # of answered queries
ENOUGH_QUERIES = 500  # answered queries that are measured before the remaining folds are skipped
INDEX_FILES = re.compile(r"v\d+|encoded|lock|pt_meta\.json|\..*")


def build_version(
    index: VersionedIndex,
    docs: Iterable[Any] = (),
    document: Any = None,
    *,
    deleted: Sequence[str] = (),
    answered: Answered | None = None,
    passage_words: int | None = None,
    workers: Workers = 1,
) -> None:
    """Writes the next version of an index and makes it current. An update that changes nothing writes nothing.

    Args:
        index: The index.
        docs: New and changed documents, as for :meth:`GraphIndex.index <pyterrier_graph.GraphIndex.index>`.
        document: As for :meth:`GraphIndex.index <pyterrier_graph.GraphIndex.index>`.
        deleted: Docnos of documents that are removed.
        answered: Topics and judgments of answered queries. In an update, by default those of the previous version.
        passage_words: Words per passage of an index from scratch. In an update None: documents that are not in ``docs``
            stay.
        workers: Number of processes that encode, or ``'ray'``.
    """
    is_update = passage_words is None
    if answered is not None:
        answered = _checked_answers(*answered)
    _check_folder(index.path)
    with locked(index.path / LOCK), TemporaryFile(dir=index.path) as lines:
        index.reopen()  # another object may have written a newer version
        previous = index.version if is_update or index.built() else None
        meta: dict[str, Any] = {"source": {}, **KIND}
        if previous is not None:
            meta.update(previous.meta)
        if passage_words is not None:
            meta["passage_words"] = passage_words
        documents = structured_documents(docs, document, meta["passage_words"])
        base = previous if is_update else None
        changes = compare_records(documents, lines, base, deleted)
        if is_update and answered is None and changes.empty():
            return
        meta["source"] = getattr(docs, "report", meta["source"])
        builder = IndexBuilder(index, changes, previous, meta, answered, workers)
        builder.build()


@dataclass
class IndexBuilder:
    """Writes the next version of an index, whose lock is held.

    Attributes:
        index: The index.
        changes: The documents of the version.
        previous: The version that is replaced, also by an index from scratch; None if there is none.
        meta: The meta of the previous version, with the ``source`` and ``passage_words`` of the next one.
        new_answers: Topics and judgments of answered queries, unless those of the previous version stay.
        workers: Number of processes that encode, or ``'ray'``.
    """

    index: VersionedIndex
    changes: RecordChanges
    previous: Version | None
    meta: dict[str, Any]
    new_answers: Answered | None
    workers: Workers

    def build(self) -> None:
        """Writes the folder of the next version, and then makes it the current one."""
        if not self.changes.count and not self.changes.unchanged.any():
            raise ValueError("no document would be left: delete the folder of the index instead")
        number = 1
        settings: dict[str, Any] = {}
        if self.previous is not None:
            number = self.previous.number + 1
            settings = self.index.meta["fitted"]
        self._describe()
        with atomic_folder(self.index.path / f"v{number}", self.meta, overwrite=True) as folder:
            graph = self._write_graph(folder)
            answered = self._write_answered(folder, graph)
            model, _ = self._write_context(folder, graph, answered)
            own_vectors, _ = model.sampler().index.payload(return_docnos=False)
            self.meta["mean_cosine"] = mean_cosine(own_vectors)
            self._write_history(folder, number, graph, answered)
            if self.new_answers is not None and "judged" not in settings:
                fitted = self._answered_settings(graph, *self.new_answers)
                settings = {**settings, **fitted}
        self.index.publish(number, settings)
        self.index.reopen()
        self._remove_unused()
        cosine = self.meta["mean_cosine"]
        from_scratch = self.changes.previous is None
        if from_scratch and cosine > HIGH_COSINE and "alpha" not in settings:
            warnings.warn(
                f"the vectors of passages are nearly alike (mean cosine {cosine:.2f}), so BM25 counts more: does the "
                "encoder know the language of the texts? Give another one as encoder=",
                QualityWarning,
                stacklevel=4,  # where the user calls index()
            )

    def _describe(self) -> None:
        """Adds the BM25 engine and the encoder to the meta of the next version.

        Raises ValueError in an update with another model than the one that made the vectors.
        """
        lexical = self.index.lexical or self.meta.get("lexical", "bm25s")
        self.meta["lexical"] = lexical if isinstance(lexical, str) else None
        encoder = self.index.encoder
        model = model_identity(encoder)
        from_scratch = self.changes.previous is None
        if self.previous is None or (from_scratch and encoder is not None):
            encoder = encoder or DEFAULT
            self.meta["encoder"] = {
                "checkpoint": checkpoint_name(encoder) if isinstance(encoder, str) else None,
                "name": encoder_name(self.index.bi_encoder),
                "model": model,
            }
        if self.meta["encoder"]["model"] != model:
            advice = "an index keeps the model that made its vectors: give the same one as encoder="
            raise ValueError(f"{self.index!r} was made with another model: {advice}")

    def _write_graph(self, folder: Path) -> DocumentGraph:
        """Writes the records of the documents and their graph."""
        self.changes.write(folder)
        lines: list[int] = []
        documents = read_documents(folder, lines)
        graph = DocumentGraph(folder / GRAPH, verbose=self.index.verbose)
        graph.index(documents)
        graph.vectors_folder = self.index.path / ENCODED
        if lines and len(lines) == len(graph.passage_nodes):
            line_numbers = np.array(lines, dtype=np.int32)
            np.save(folder / LINES, line_numbers)
        return graph

    def _write_answered(self, folder: Path, graph: DocumentGraph) -> Answered | None:
        """Writes and returns the answered queries: the new ones, or else the former ones while one has an answer."""
        answered = self.new_answers
        if answered is None and self.changes.previous is not None:
            answered = self.changes.previous.answered
            if answered is not None and not has_answers(graph, answered[1]):
                return None
        if answered is not None:
            topics, qrels = answered
            topics.to_json(folder / TOPICS, orient="split")
            qrels.to_json(folder / QRELS, orient="split")
        return answered

    def _write_context(
        self, folder: Path, graph: DocumentGraph, answered: Answered | None
    ) -> tuple[ContextualEncoder, ContextualIndex]:
        """Writes everything that depends on the answered queries: their graph, the vectors, and the BM25 index."""
        from pyterrier_graph.graph_mean.graph_mean import GraphMean

        queries = None
        if answered is not None:
            topics, qrels = answered
            queries = QueryPassageGraph(folder / QUERIES, verbose=False)
            queries.build(topics, graph, qrels=qrels)
        options: dict[str, Any] = {
            "graph": graph,
            "query_graph": queries,
            "folder": self.index.path / ENCODED,
            "verbose": self.index.verbose,
        }
        if is_contextual(self.index.encoder):
            model: ContextualEncoder = self.index.encoder.apply_attributes(**options)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", QualityWarning)  # of missing titles
                model = GraphMean(encoder=self.index.bi_encoder, **options)
        contextual = model.index(folder / VECTORS, workers=self.workers)
        self._write_bm25(folder / BM25, graph, queries)
        return model, contextual

    def _write_bm25(
        self, path: Path, graph: DocumentGraph, queries: QueryPassageGraph | None
    ) -> None:
        """Writes the BM25 index. In an update without new answers, the counts of reused passages are copied."""
        engine = self.meta["lexical"]
        reused = self.changes.reused_passages
        passages = np.arange(len(graph.passage_nodes))
        if engine in ("pisa", "terrier"):
            docnos = graph.ids_of(graph.passage_nodes)
            texts = contexts(graph, queries, passages)
            rows = zip(docnos, texts, strict=True)
            records = ({"docno": docno, "text": text} for docno, text in rows)
            docno_length = max(map(len, docnos))
            build_engine(records, engine, path, docno_length)
        elif engine == "bm25s":
            base = self.changes.previous
            if base is None or self.new_answers is not None or not len(reused):
                texts = contexts(graph, queries, passages)
                BM25Index.build(path, texts)
            else:
                new = passages[len(reused) :]
                texts = contexts(graph, queries, new)
                BM25Index.build(path, texts, previous=base.bm25, reused=reused)

    def _write_history(
        self, folder: Path, number: int, graph: DocumentGraph, answered: Answered | None
    ) -> None:
        """Writes in which version each passage last changed, and which version removed each passage that is gone.

        With answered queries, all vectors change, because they depend on the share of passages that have one.
        """
        previous = self.previous
        reused = self.changes.reused_passages
        changed = np.full(len(graph.passage_nodes), number, np.int32)  # (passages,)
        deleted = {}
        if previous is not None:
            if answered is None and previous.queries is None:
                changed[: len(reused)] = previous.changed[reused]
            deleted.update(previous.deleted)
            removed_nodes = np.delete(previous.graph.passage_nodes, reused)
            for docno in previous.graph.ids_of(removed_nodes):
                deleted[docno] = number
            new_nodes = graph.passage_nodes[len(reused) :]
            for docno in graph.ids_of(new_nodes):
                deleted.pop(docno, None)
        np.save(folder / CHANGED, changed)
        (folder / DELETED).write_text(json.dumps(deleted), encoding="utf-8")

    def _answered_settings(
        self, graph: DocumentGraph, topics: pd.DataFrame, qrels: pd.DataFrame
    ) -> dict[str, Any]:
        """Chooses settings using the answered queries, each ranked by an index whose context lacks it.

        With fewer than five answered queries, there are no settings.
        """
        verbose = self.index.verbose
        judged = passage_qrels(qrels, graph)
        is_relevant = judged["label"] > 0
        has_relevant = topics["qid"].isin(judged.loc[is_relevant, "qid"])
        topics = topics[has_relevant].reset_index(drop=True)
        if len(topics) < FOLDS:
            return {}
        order = np.random.default_rng(0).permutation(len(topics))
        fold = order % FOLDS  # (topics,)
        results = []
        measured = 0
        progress = {"desc": "answered queries left out", "unit": "fold", "disable": not verbose}
        scratch = TemporaryDirectory(
            dir=self.index.path, prefix=".fold-", ignore_cleanup_errors=True
        )
        with scratch as root:
            for number in pt.tqdm(range(FOLDS), **progress):
                folder = Path(root, str(number))
                left_out = fold == number  # (topics,)
                context = topics[~left_out], qrels
                hybrid = self._hybrid(folder, graph, context)
                fold_results = measured_results(hybrid, topics[left_out], judged)
                results.append(fold_results)
                measured += left_out.sum()
                if measured >= ENOUGH_QUERIES:
                    break
        start = default_settings(self.meta["mean_cosine"])
        run = pd.concat(results, ignore_index=True)
        return best_settings(run, graph, judged, start, self.index.training, verbose=verbose)

    def _hybrid(self, folder: Path, graph: DocumentGraph, answered: Answered) -> Hybrid:
        """Writes an index with some of the answered queries, and opens its hybrid."""
        folder.mkdir()
        _, contextual = self._write_context(folder, graph, answered)
        docnos, _ = contextual.files.payload(return_dvecs=False)
        engine = self.index.lexical or self.meta["lexical"]
        bm25 = BM25Index(folder / BM25)
        lexical = lexical_retriever(engine, bm25, docnos, DEPTH)
        return Hybrid(lexical, contextual.retriever())

    def _remove_unused(self) -> None:
        """Removes all but two versions, and the encoder's vectors of former graphs."""
        path = self.index.path
        current = self.index.version
        encoded = path / ENCODED
        used = {encoded, current.folder}
        if self.previous is not None:
            used.add(self.previous.folder)
        folders = [entry for entry in path.iterdir() if entry.is_dir()]
        unused = [folder for folder in folders if folder not in used]
        fingerprints = [current.graph.fingerprint().encode()]
        if current.queries is not None:
            fingerprints.append(current.queries.fingerprint().encode())
        for folder in encoded.iterdir():
            file = folder / META
            meta = file.read_bytes() if file.is_file() else b""  # none if it was never finished
            if not any(fingerprint in meta for fingerprint in fingerprints):
                unused.append(folder)
        # moved first, so that no process opens a half-deleted folder
        trash = TemporaryDirectory(dir=path, prefix=".removed-", ignore_cleanup_errors=True)
        with trash as removed:
            for folder in unused:
                with suppress(OSError):  # on Windows, a folder that is open stays
                    folder.rename(Path(removed, folder.name))


def _checked_answers(topics: pd.DataFrame, qrels: pd.DataFrame) -> Answered:
    """Checks answered queries; judgments of other queries are dropped."""
    topics = checked_topics(topics, "answered")
    qrels = checked_qrels(qrels, "answered")
    is_answered = qrels["qid"].isin(topics["qid"])
    return topics, qrels.loc[is_answered, ["qid", "docno", "label"]]


def _check_folder(path: Path) -> None:
    """Raises FileExistsError if a folder has files that are not of an index."""
    if not path.is_dir():
        return
    names = [file.name for file in path.iterdir()]
    foreign = [name for name in names if not INDEX_FILES.fullmatch(name)]
    if foreign:
        advice = f"has other files, such as {min(foreign)!r}: choose another path"
        raise FileExistsError(f"{str(path)!r} {advice}")


def model_identity(encoder: Any) -> list[Any]:
    """Identifies the GraphMean or GNNEncoder that is an index's ``encoder``; empty for a bi-encoder."""
    if not is_contextual(encoder):
        return []
    digest = weights_sha256(encoder.network)
    return [type(encoder).__name__, list(encoder.relations), digest]


def has_answers(graph: DocumentGraph, qrels: pd.DataFrame) -> bool:
    """Whether a passage or document that is relevant to a query is in the graph."""
    is_relevant = qrels["label"] > 0
    relevant = qrels.loc[is_relevant, "docno"].tolist()
    passages = graph.find(relevant)  # -1 for unknown ids
    documents = graph.find_documents(relevant)
    numbers = np.concatenate([passages, documents])
    return bool((numbers >= 0).any())
