"""GraphIndex: documents, their graph, BM25 and vectors with context, in one folder that can be searched and changed."""

from __future__ import annotations

import copy
import errno
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, Self, TypeGuard, get_args

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.checks import Shown, View, WithSignature, check_choice, check_count, check_training, check_type
from pyterrier_graph.documents.document import PASSAGE, StructuredDocument
from pyterrier_graph.encoders.compiled import find_compiled
from pyterrier_graph.encoders.names import DEFAULT, checkpoint_name, checkpoint_state
from pyterrier_graph.encoders.stored_vectors import WINDOWS, encoder_name, encoding_time
from pyterrier_graph.graph_mean.contextual_index import ContextualIndex, ContextualRetriever, encoder_of, nearest
from pyterrier_graph.graphs.document_graph import DocumentGraph, structured_documents
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.graphs.relations import DOCUMENT, ORDER, OWN, RELEVANT, STRUCTURAL, TITLE, TITLES
from pyterrier_graph.html import schematic
from pyterrier_graph.search.document_evidence import Evidence
from pyterrier_graph.search.fitting import Parts, best_numbers, left_out, measured_parts
from pyterrier_graph.search.hybrid import ALPHA, Fusion
from pyterrier_graph.search.lexical import bm25
from pyterrier_graph.search.snippets import check_question, content_stems, distinct, snippet, stems, warn_of_no_answer
from pyterrier_graph.search.tables import FullText, open_table, read_texts, write_table
from pyterrier_graph.storage.artifact import (
    CARD,
    DIGESTS,
    LOCK,
    META,
    NEW_META,
    SIZES,
    BuiltArtifact,
    complete,
    kind_of,
    locked,
    read_meta,
)
from pyterrier_graph.storage.store import ObjectStore
from pyterrier_graph.storage.writer import Workers, check_workers
from pyterrier_graph.training.grid_search import Tuning
from pyterrier_graph.training.validation import checked_qrels, checked_topics

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder

    from pyterrier_graph.graph_mean.graph_mean import ContextualEncoder
    from pyterrier_graph.graphs.builder import DocumentOf

Lexical = Literal["lance", "pisa", "terrier"]
Per = Literal["passage", "section", "document"]
FOLDS = {"section": STRUCTURAL, "document": DOCUMENT}

TABLES, ENCODER, ENCODED = "tables", "encoder", "encoded"  # folders of all versions
DOCUMENTS, PASSAGES = "documents", "passages"  # tables
GRAPH, QUERIES, VECTORS, LINES = "graph", "queries", "vectors.flex", "lines.npy"  # in the folder of a version
TOPICS, QRELS = "topics.json", "qrels.json"
VERSION = re.compile(r"v\d+")
HINT = "latest_version_hint.json"  # of Lance: the only one of its files that changes
SETTINGS: Mapping[str, Any] = {"alpha": ALPHA, "evidence": {DOCUMENT: 0.0, ORDER: 0.0}}
RESULTS = 1000  # of each pipeline, for a query that chooses the settings
SAMPLE, MEANINGLESS, WORDS = 2000, 64, 6  # passages; questions of random words from them, and words of each
CANDIDATES = 100  # passages among which a search finds sections or documents


class GraphIndex(WithSignature, Shown, BuiltArtifact):
    """Finds passages by their own text and by what they are related to: BM25 and vectors, both with context.

    ::

        index = ptg.GraphIndex("corpus").index(docs)
        index.search("how are ties broken")
        pt.Experiment([bm25, index.hybrid()], topics, qrels, [nDCG @ 10], baseline=0)
        index.update(new_docs).delete(["d7"])

    The context of a passage is its titles, and the queries that it has answered. The lexical side is BM25 over passages
    with their context. The dense side is a :class:`~pyterrier_graph.GraphMean`, in which each query decides how much
    the context counts. A :class:`~pyterrier_graph.Hybrid` combines both. No judgments are needed. Where there are some,
    a :class:`~pyterrier_graph.DocumentEvidence` may follow, which adds scores of other results of the same document.

    A change is complete or has no effect, also if the process is killed. An index that is open stays at its version,
    whose files are there until the second change after it; ``GraphIndex(path)`` opens the last one. One process at a
    time changes an index.

    Args:
        path: Folder of the index; it may not exist yet, see :meth:`index`. Or its place in an object store, such as
            ``s3://bucket/corpus``: this machine then has a copy, which is that of the last version when it is opened.
        encoder: Encodes passages and queries: the name of a checkpoint, a bi-encoder such as a
            :class:`~pyterrier_graph.DualEncoder`, or a GraphMean or GNNEncoder, whose weights are used with the graph
            of this index. By default the encoder of the index at the path, or all-MiniLM-L6-v2 for a new one.
        lexical: The engine of BM25: ``'lance'``, ``'pisa'``, ``'terrier'``, or a pipeline of your own that finds
            passages, ``qid, query`` to ``qid, docno, score``. By default that of the index at the path, or ``'lance'``.
        training: The options of :meth:`fit`.
        verbose: Whether to show progress.

    Raises:
        TypeError: If an argument has another type.
        ValueError: If the index at the path has another encoder.
    """

    ARTIFACT_TYPE = "graph_index"
    ARTIFACT_FORMAT = "lance"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        encoder: str | os.PathLike[str] | BiEncoder | ContextualEncoder | None = None,
        lexical: Lexical | pt.Transformer | None = None,
        training: Tuning | None = None,
        verbose: bool = True,
    ) -> None:
        self.store = ObjectStore.at(path)
        super().__init__(path if self.store is None else self.store.folder)
        self._locked = partial(locked, self.path) if self.store is None else self.store.locked
        if self.store is not None:
            self.store.fetch()
        self.training = Tuning() if training is None else training
        check_training(self.training, Tuning)
        if lexical is not None and not isinstance(lexical, pt.Transformer):
            check_choice("lexical, unless it is a pipeline,", lexical, get_args(Lexical))
        self.encoder = encoder if encoder is None or _is_contextual(encoder) else _named(encoder)
        self.lexical = lexical
        self.verbose = verbose
        if self.built() and isinstance(lexical, str) and lexical != self.meta["lexical"]:
            raise ValueError(f"{self!r} was made with lexical={self.meta['lexical']!r}, got {lexical!r}")
        if self.built() and self.encoder is not None:
            about = self.meta["encoder"]
            named = isinstance(self.encoder, str) and checkpoint_name(self.encoder) == about["checkpoint"]
            if not named and about["name"] != (found := encoder_name(_bi_encoder(self._encoder))):
                raise ValueError(f"{self!r} was made with encoder={about['name']}, got {found}")

    def __repr__(self) -> str:
        return f"GraphIndex({str(self.path) if self.store is None else self.store.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        options: dict[str, Any] = {name: getattr(self, name) for name in ("encoder", "lexical", "training", "verbose")}
        place: Any = self.path if self.store is None else self.store
        return partial(type(self), place, **options), ()

    def __len__(self) -> int:
        """Number of passages."""
        return len(self._contextual)

    # --- writing

    def index(
        self,
        docs: Iterable[Mapping[str, Any] | StructuredDocument] | pd.DataFrame,
        *,
        document: str | DocumentOf | None = None,
        passage_words: int = 120,
        windows: int = WINDOWS,
        answered: tuple[pd.DataFrame, pd.DataFrame] | None = None,
        overwrite: bool = False,
        workers: Workers = 1,
    ) -> Self:
        """Builds the index. The call of a process that was killed continues when it is repeated.

        Args:
            docs: Documents, as :meth:`DocumentGraph.index <pyterrier_graph.DocumentGraph.index>` reads them.
            document: For a corpus of passages, the document of a row: the name of a field, or a function of the row.
            passage_words: Words per passage where texts are split.
            windows: Windows of a long passage, at most; the best one counts: see :meth:`GraphMean.index`.
            answered: Topics (``qid, query``) and judgments (``qid, docno, label``, of passages, or of documents for all
                their passages) of queries whose answers are known. They are context of the passages, and set the
                numbers of :meth:`fit` unless it has been called: some of them at a time are left out of the context and
                ranked. Do not evaluate with them.
            overwrite: Whether to replace all documents of an index that exists at this path. This also deletes files
                that changes have left.
            workers: Number of processes that encode, or ``'ray'``, a cluster: see :meth:`GraphMean.index`.

        Raises:
            FileExistsError: If there is an index at the path and ``overwrite`` is False, or other files.
            BlockingIOError: If another process changes the index.
            ValueError: If a document is malformed, a docno comes twice, or there are no documents.
        """
        check_count("passage_words", passage_words)
        check_count("windows", windows)
        check_type("overwrite", overwrite, bool, "True or False")
        if self.built() and not overwrite:
            advice = f"{self!r} opens it, update(docs) changes documents, index(..., overwrite=True) replaces all"
            raise FileExistsError(f"{str(self.path)!r} exists already: {advice}")
        about = {"passage_words": passage_words, "windows": windows}
        return self._change(docs, document, about, keep_others=False, answered=_checked(answered), workers=workers)

    def update(
        self,
        docs: Iterable[Mapping[str, Any] | StructuredDocument] | pd.DataFrame,
        *,
        document: str | DocumentOf | None = None,
        answered: tuple[pd.DataFrame, pd.DataFrame] | None = None,
        workers: Workers = 1,
    ) -> Self:
        """Adds documents, and replaces those with the same docnos. Only texts that have changed are encoded.

        Args:
            docs: Documents, as for :meth:`index`.
            document: As for :meth:`index`; all passages of a document are replaced.
            answered: As for :meth:`index`; in place of the former ones. By default they stay.
            workers: As for :meth:`index`.

        Raises:
            FileNotFoundError: If there is no index.
            BlockingIOError: If another process changes the index.
            ValueError: If a document is malformed, or a docno comes twice.
        """
        return self._change(docs, document, {}, keep_others=True, answered=_checked(answered), workers=workers)

    def delete(self, docnos: Iterable[str]) -> Self:
        """Removes documents. Their texts stay in files of former versions until ``index(docs, overwrite=True)``.

        Args:
            docnos: Ids of documents.

        Raises:
            FileNotFoundError: If there is no index.
            BlockingIOError: If another process changes the index.
            KeyError: If a document is not in the index.
            ValueError: If no document would be left.
        """
        check_type("docnos", docnos, Iterable, "ids of documents")
        deleted = [docnos] if isinstance(docnos, str) else [*docnos]
        return self._change([], None, {}, keep_others=True, deleted=deleted)

    def fit(self, topics: pd.DataFrame, qrels: pd.DataFrame) -> Self:
        """Chooses the largest weight of each relation, the share of vectors, and the weights of evidence.

        A number moves only as far as the queries support it, so that few queries do no harm. They must not be among
        the ``answered`` ones.

        Args:
            topics: ``qid, query``.
            qrels: ``qid, docno, label``, of passages, or of documents for all their passages.

        Raises:
            FileNotFoundError: If there is no index.
            BlockingIOError: If another process changes the index.
            ValueError: If none of the queries is judged.
        """
        qrels = self.graph.passage_qrels(qrels) if self.graph._own_ids else qrels
        settings: dict[str, Any] = {"judged": True}
        model: Any = self._model(self._folder, self.graph, self._queries)
        if getattr(model, "weights", None) == "auto":
            model.training = self.training
            settings["largest_weights"] = model.fit(topics, qrels).largest_weights
        with self._locked():
            meta = self.meta | {"settings": self.meta["settings"] | settings}
            tuned = copy.copy(self)._reopened()
            tuned.meta = meta
            parts = measured_parts(tuned._fusion(RESULTS), checked_topics(topics, self), qrels)
            meta["settings"] |= self._best_numbers([parts], self.graph, qrels, meta["settings"])
            if read_meta(self.path, kind_of(self))["number"] != meta["number"]:
                raise ValueError(f"{self!r} was changed by another process: open it again and repeat the call")
            self._put_meta(meta)
        return self._reopened()

    def _change(
        self,
        docs: Iterable[Mapping[str, Any] | StructuredDocument] | pd.DataFrame,
        document: str | DocumentOf | None,
        about: dict[str, Any],
        *,
        keep_others: bool,
        deleted: Sequence[str] = (),
        answered: tuple[pd.DataFrame, pd.DataFrame] | None = None,
        workers: Workers = 1,
    ) -> Self:
        """Writes the next version, in a folder of its own, and then the ``pt_meta.json`` that makes it the present one.

        ::

            tables/     the tables of documents (their records) and passages (with context; searched by BM25)
            encoder/    the encoder, unless it is a checkpoint
            encoded/    the encoder's own vectors, so that unchanged texts are not encoded again
            v3/         of version 3: the graph, the answered queries, the vectors with context
        """
        check_workers(workers)
        own = {TABLES, ENCODER, ENCODED, LOCK, META, NEW_META, CARD}
        names = {file.name for file in self.path.iterdir()} if os.path.isdir(self.path) else set()
        if foreign := {name for name in names - own if not VERSION.fullmatch(name)}:
            raise FileExistsError(f"{str(self.path)!r} has other files, such as {min(foreign)!r}: choose another path")
        with self._locked():
            self._reopened()  # at the last version, which another object may have written
            before = self.meta if (self.path / META).is_file() else None
            if before is None and keep_others:
                raise FileNotFoundError(f"no index at {str(self.path)!r}: build one with index(docs)")
            former = self._answered
            answered = former if answered is None and keep_others else answered
            if deleted:
                self.graph.document_of(deleted)
                if len({*deleted}) == len(self.graph):
                    raise ValueError("no document would be left: delete the folder of the index instead")
            old = before or {"number": 0, "settings": SETTINGS, "tables": {}}
            meta = kind_of(self) | {"source": {}} | old | about
            meta["number"] = old["number"] + 1
            meta["tables"] = old["tables"] if keep_others else {}
            folder = self.path / f"v{meta['number']}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            for name, _ in old["tables"].values():  # files of killed processes: if they were listed, the index would
                for file in (self.path / TABLES / f"{name}.lance").rglob("*"):  # seem damaged when Lance removes them,
                    if file.is_file() and file.relative_to(self.path).as_posix() not in old[SIZES]:  # after a week
                        file.unlink()
            try:
                rows = _rows(structured_documents(docs, document, meta["passage_words"]))
                table, version = _table_of(meta, DOCUMENTS)
                now = write_table(self.path / TABLES, table, version, rows, keep_others=keep_others, deleted=deleted)
                meta["tables"] = meta["tables"] | {DOCUMENTS: (table, now)}
                if report := getattr(docs, "report", None):
                    meta["source"] = report
                if before is not None and now == version and _equal(answered, former):
                    shutil.rmtree(folder)
                    if meta["source"] != before["source"]:
                        self._put_meta(before | {"source": meta["source"]})
                    return self._reopened()
                graph = self._build(folder, meta, answered, workers)
                if answered is not None and not meta["settings"].get("judged") and not _equal(answered, former):
                    meta["settings"] = meta["settings"] | self._by_answered(folder, meta, graph, answered, workers)
                self._put_meta(meta, old)
            except BaseException as error:
                shutil.rmtree(folder, ignore_errors=True)
                if before is None:
                    shutil.rmtree(self.path / TABLES, ignore_errors=True)
                if "LanceError(IO)" in str(error):  # such as of a full disk
                    code = re.search(r"os error (\d+)", str(error))
                    message = f"the change has had no effect: {error}"
                    raise OSError(int(code[1]) if code else errno.EIO, message, str(self.path)) from error
                raise
            self._remove_old(meta, old)
        return self._reopened()

    def _build(
        self, folder: Path, meta: dict[str, Any], answered: tuple[pd.DataFrame, pd.DataFrame] | None, workers: Workers
    ) -> DocumentGraph:
        """Builds all that depends on the documents of a version, whose table has been written."""
        lines: list[int] = []
        name, version = _table_of(meta, DOCUMENTS)
        table = open_table(self.path / TABLES, name, version or 0)
        records = (json.loads(text) for _, text in read_texts(table))
        graph = DocumentGraph(folder / GRAPH, verbose=self.verbose).index(_with_lines(records, lines))
        if lines and len(lines) == len(graph.passage_nodes):
            np.save(folder / LINES, np.array(lines, dtype=np.int32))
        queries = None
        if answered is not None:
            topics, qrels = answered
            topics.to_json(folder / TOPICS, orient="split"), qrels.to_json(folder / QRELS, orient="split")
            queries = QueryPassageGraph(folder / QUERIES, verbose=False)
            queries.build(topics, graph, qrels=qrels)
        self._save_encoder(meta)
        if self.verbose and (text := encoding_time(self.path / ENCODED, graph, _bi_encoder(self._encoder))):
            pt.tqdm.write(text, file=sys.stderr)
        table_of_passages = _table_of(meta, PASSAGES)
        words = self._write_sides(folder, self.path / TABLES, table_of_passages, meta, graph, queries, workers)[1]
        meta["tables"] = meta["tables"] | ({PASSAGES: words} if meta["lexical"] == "lance" else {})
        return graph

    def _write_sides(
        self,
        folder: Path,
        tables: Path,
        table: tuple[str, int | None],
        meta: dict[str, Any],
        graph: DocumentGraph,
        queries: QueryPassageGraph | None,
        workers: Workers,
    ) -> tuple[ContextualIndex, tuple[str, int | None]]:
        """Writes the vectors, and what BM25 searches; returns the index, and the name and version of Lance's table."""
        options: dict[str, Any] = {"windows": meta["windows"], "workers": workers}
        vectors = self._model(folder, graph, queries).index(folder / VECTORS, **options)
        context = [TITLES] * bool(len(graph._adjacency(TITLE).indices)) + [RELEVANT] * (queries is not None)
        passages = graph.get_corpus_iter(context=context, query_graph=queries)
        own = isinstance(self.lexical, pt.Transformer)
        engine: Any = None if own else self.lexical or meta.get("lexical") or "lance"
        meta["lexical"] = engine
        if engine == "lance":
            rows = ((row["docno"], row["text"]) for row in passages)
            table = (table[0], write_table(tables, *table, rows, searched=True))
        elif engine is not None:
            longest = max(len(docno) for docno in graph.ids_of(graph.passage_nodes))
            bm25(passages, engine, folder / f"bm25.{engine}", docno_length=longest)
        return vectors, table

    def _by_answered(
        self,
        folder: Path,
        meta: dict[str, Any],
        graph: DocumentGraph,
        answered: tuple[pd.DataFrame, pd.DataFrame],
        workers: Workers,
    ) -> dict[str, Any]:
        """Alpha and the weights of evidence that answered queries support, each ranked in an index without it."""
        topics, qrels = answered[0], graph.passage_qrels(answered[1]) if graph._own_ids else answered[1]
        quiet = copy.copy(self)
        quiet.verbose = False
        with TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as place:

            def hybrid(others: pd.DataFrame) -> Fusion:
                path = Path(place) / str(len(others))
                shutil.rmtree(path, ignore_errors=True)
                queries = QueryPassageGraph(path / QUERIES, verbose=False)
                queries.build(others, graph, qrels=qrels)
                given = path, path / TABLES, (PASSAGES, None), meta, graph, queries, workers
                vectors, table = quiet._write_sides(*given)
                words = self._lexical(meta["lexical"], path, FullText(path / TABLES, PASSAGES, table[1] or 0), RESULTS)
                return Fusion(words, ContextualRetriever(vectors, RESULTS))

            parts = [*left_out(hybrid, topics, qrels, verbose=self.verbose)]
        return self._best_numbers(parts, graph, qrels, SETTINGS) if parts else {}

    def _best_numbers(
        self, parts: Sequence[Parts], graph: DocumentGraph, qrels: pd.DataFrame, present: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Alpha and the weights of evidence that judged queries support."""
        merged, scores = zip(*parts, strict=True)
        both = pd.concat(merged, ignore_index=True), np.concatenate(scores)
        start = _evidence(graph, present["evidence"])
        alpha, weights = best_numbers(both, start, qrels, present["alpha"], self.training, verbose=self.verbose)
        return {"alpha": alpha, "evidence": weights}

    def _save_encoder(self, meta: dict[str, Any]) -> None:
        """Writes the encoder into the index, unless the name of its checkpoint is enough, or it is there already."""
        if "encoder" in meta:
            return
        if self.encoder is None:
            self.encoder = DEFAULT
        checkpoint = checkpoint_name(self.encoder) if isinstance(self.encoder, str) else None
        meta["encoder"] = {"checkpoint": checkpoint, "name": encoder_name(_bi_encoder(self._encoder))}
        meta["encoder"] |= {"state": checkpoint_state(checkpoint)} if checkpoint else {}
        from pyterrier_graph.encoders.model import LearnedModel

        if isinstance(self.encoder, LearnedModel):
            shutil.rmtree(self.path / ENCODER, ignore_errors=True)
            copy.copy(self.encoder).save(self.path / ENCODER)  # a copy, whose path may change

    def _model(self, folder: Path, graph: DocumentGraph, queries: QueryPassageGraph | None) -> ContextualEncoder:
        """The model that computes the vectors of a graph."""
        options: dict[str, Any] = {"query_graph": queries, "folder": self.path / ENCODED, "verbose": self.verbose}
        if not _is_contextual(encoder := self._encoder):
            from pyterrier_graph.graph_mean.graph_mean import GraphMean

            return GraphMean(graph, encoder, **options)
        return type(encoder).load(self.path / ENCODER, graph=graph, encoder=encoder.encoder, **options)

    def _put_meta(self, meta: dict[str, Any], before: Mapping[str, Any] | None = None) -> None:
        """Makes a version the present one: lists its files with their digests, and replaces ``pt_meta.json``."""
        path, version = self.path, self.path / f"v{meta['number']}"
        fingerprint = DocumentGraph(version / GRAPH).fingerprint()
        encoded = [place for place in (path / ENCODED).iterdir() if _is_present(place, fingerprint)]
        tables = [path / TABLES / f"{name}.lance" for name, _ in meta["tables"].values()]
        folders = [version, *tables, path / ENCODER, *encoded]
        files = [path / CARD, *(file for folder in folders for file in folder.rglob("*") if file.name != HINT)]
        known = (before or meta).get(DIGESTS, {}).items()  # files outside of the version's folder do not change
        known = {name: digest for name, digest in known if not name.startswith(f"{version.name}/")}
        # artifacts in the index are on the disk, and list their own digests
        inner = {file.parent.relative_to(path): json.loads(file.read_bytes()) for file in files if file.name == META}
        known |= {(at / name).as_posix(): of for at, it in inner.items() for name, of in it.get(DIGESTS, {}).items()}
        complete(path, meta, known, files, None if self.store is None else self.store.publish, kept=known)

    def _remove_old(self, meta: dict[str, Any], before: dict[str, Any]) -> None:
        """Removes versions before the last one, which may still be open, and vectors that no version needs."""
        fingerprint = DocumentGraph(self.path / f"v{meta['number']}" / GRAPH).fingerprint()
        tables = {f"{name}.lance" for name, _ in (*meta["tables"].values(), *before["tables"].values())}
        old = [file for file in self.path.glob("v*") if VERSION.fullmatch(file.name)]
        old = [file for file in old if int(file.name[1:]) < meta["number"] - 1]
        encoded = [file for file in (self.path / ENCODED).iterdir() if not file.name.startswith("tokens")]
        old += [file for file in encoded if not _is_present(file, fingerprint)]
        old += [file for file in (self.path / TABLES).iterdir() if file.name not in tables]
        removed = self.path / TABLES / "removed"
        for folder in [removed, *old]:  # first they get this name, so that no process opens a part
            with suppress(OSError):  # on Windows, a folder that is open keeps its name
                folder.replace(removed)
            shutil.rmtree(removed, ignore_errors=True)

    def _reopened(self) -> Self:
        """This object at the last version; an encoder that was loaded stays."""
        loaded = {name: value for name, value in self.__dict__.items() if name == "_encoder"}
        self.__dict__ = self.__reduce__()[0]().__dict__ | loaded
        return self

    # --- reading

    def verify(self) -> Self:
        """Compares all files with their digests, as all artifacts do; in an object store both it and this copy."""
        if self.store is not None:
            self.store.verify()
        return super().verify()

    @property
    def _folder(self) -> Path:
        folder = self._open(lambda path: path / f"v{int(self.meta['number'])}")  # ValueError if the index was removed
        if not folder.is_dir():
            raise ValueError(f"{self!r} was changed several times after it had been opened: open it again")
        return folder

    @cached_property
    def graph(self) -> DocumentGraph:
        """The graph of the documents, for models: ``ptg.GraphMaxSim(index.graph)``."""
        graph = DocumentGraph(self._folder / GRAPH, verbose=self.verbose)
        graph.vectors_folder = self.path / ENCODED
        return graph

    @cached_property
    def _queries(self) -> QueryPassageGraph | None:
        path = self._folder / QUERIES
        return QueryPassageGraph(path, verbose=False) if path.exists() else None

    @cached_property
    def _lines(self) -> np.ndarray | None:
        """The line of each passage, where the documents are files."""
        path = self._folder / LINES
        return np.load(path) if path.is_file() else None

    @property
    def _answered(self) -> tuple[pd.DataFrame, pd.DataFrame] | None:
        if not self.built() or not (self._folder / TOPICS).is_file():
            return None
        frames = (pd.read_json(self._folder / name, orient="split", dtype=False) for name in (TOPICS, QRELS))
        topics, qrels = frames
        return topics, qrels

    @cached_property
    def _encoder(self) -> BiEncoder | ContextualEncoder:
        """The encoder that was given, or the one of the index; it is loaded once."""
        if self.encoder is not None and not isinstance(self.encoder, str):
            return self.encoder
        about: Any = self.meta["encoder"] if self.built() else {"checkpoint": None}
        if checkpoint := self.encoder or about["checkpoint"]:
            known = about.get("state") == checkpoint_state(checkpoint)  # loading it to see its name takes seconds
            return (find_compiled(about["name"]) if known else None) or encoder_of(checkpoint)
        if not (self.path / ENCODER).is_dir():
            raise ValueError(f"{about['name']} is not part of {self!r}: give encoder=")
        return pt.Artifact.load(str(self.path / ENCODER))

    @cached_property
    def _contextual(self) -> ContextualIndex:
        """The index of the vectors."""
        folder = self._folder
        try:
            index = ContextualIndex(folder / VECTORS, self.graph, self._encoder)
        except FileNotFoundError:
            assert self._folder  # ValueError if it was removed meanwhile
            raise
        if index._weights is not None:
            index._weights.weights |= self.meta["settings"].get("largest_weights", {})
        return index

    @cached_property
    def _full_text(self) -> FullText:
        name, version = _table_of(self.meta, PASSAGES)
        return FullText(self.path / TABLES, name, version or 0, label="BM25 with context")

    def _parts(self, num_results: int, exact: bool = False) -> tuple[pt.Transformer, pt.Transformer]:
        """The lexical and the dense pipeline, without texts."""
        check_count("num_results", num_results)
        dense = ContextualRetriever(self._contextual, num_results, exact=exact)
        engine = self.meta["lexical"]
        if engine is None and not isinstance(self.lexical, pt.Transformer):
            raise ValueError(f"{self!r} was made with a pipeline as lexical=: give it again")
        return self._lexical(engine, self._folder, self._full_text, num_results), dense

    def _lexical(self, engine: Any, folder: Path, full_text: FullText, num_results: int) -> pt.Transformer:
        """The pipeline that finds passages by words, of what :meth:`_write_sides` has written."""
        if isinstance(self.lexical, pt.Transformer):
            return self.lexical % num_results
        check_choice("lexical", engine, get_args(Lexical))
        if engine != "lance":
            return bm25([], engine, folder / f"bm25.{engine}", num_results)
        return full_text._with(num_results=num_results)

    def _fusion(self, num_results: int, exact: bool = False) -> Fusion:
        alpha = self.meta["settings"]["alpha"]
        return Fusion(*self._parts(num_results, exact), alpha=alpha, num_results=num_results)

    @property
    def _evidence(self) -> Evidence | None:
        """Adds evidence of documents and neighbors to the scores, if its weights are not 0."""
        weights = self.meta["settings"]["evidence"]
        return _evidence(self.graph, weights) if any(weights.values()) else None

    def _with_texts(self, found: pt.Transformer, per: Per) -> pt.Transformer:
        """Adds the columns of texts to found passages, and folds them."""
        return self._folded(self.graph.text_loader()._behind(found), per)

    def _folded(self, found: pt.Transformer, per: Per) -> pt.Transformer:
        """Adds files and lines, where there are any, and folds passages."""
        check_choice("per", per, get_args(Per))
        if self._lines is not None:
            found = found >> Lines(self.graph, self._lines)
        return found if per == "passage" else found >> self.graph.fold(FOLDS[per])

    def bm25(self, num_results: int = 1000, *, per: Per = "passage") -> pt.Transformer:
        """Finds passages by BM25 over their text and context.

        Columns in: ``qid, query``. Columns out: ``qid, query, docno, score, rank, text, title``; of files also
        ``file, line``.

        Args:
            num_results: Passages per query.
            per: Whether each ``'passage'`` is a result, or the best of each ``'section'`` or ``'document'``. Its id is
                then the ``docno``, and the passage is in the column ``passage``.
        """
        return self._with_texts(self._parts(num_results)[0], per)

    def dense(self, num_results: int = 1000, *, per: Per = "passage", exact: bool = False) -> pt.Transformer:
        """Finds passages by their vectors with context. Columns and other arguments are those of :meth:`bm25`.

        With ``exact=True`` all vectors are compared, also in an index of a million passages or more: see
        :meth:`ContextualIndex.retriever <pyterrier_graph.ContextualIndex.retriever>`.
        """
        return self._with_texts(self._parts(num_results, exact)[1], per)

    def hybrid(self, num_results: int = 1000, *, per: Per = "passage", exact: bool = False) -> pt.Transformer:
        """Finds passages by both BM25 and vectors. Columns and arguments are those of :meth:`dense`."""
        evidence = self._evidence
        found = self._fusion(num_results, exact)
        return self._with_texts(found if evidence is None else found >> evidence, per)

    def search(self, question: str, num_results: int = 10, *, per: Per | None = None) -> pd.DataFrame:
        """Finds the best passages for a question.

        Args:
            question: The question.
            num_results: Number of results.
            per: As for :meth:`bm25`: whether a section or a document may have one result only. By default
                ``'section'`` where the documents are files, else ``'passage'``.

        Returns:
            A row per passage, the best first: ``title``, ``snippet`` (the part of the passage with the most words of
            the question), ``why``, ``score``, ``docno``, ``text``; of files also ``file`` and ``line``, and no copies
            of a text. ``why`` lists what the words (BM25) and the meaning (vectors) add to the score, and what the
            passage and its context add to the similarity of vectors. Warns if files do not answer the question: no
            result has all of its words, and no passage is as similar to it as to random words. ``attrs["weak"]`` then
            has both similarities.

        Raises:
            ValueError: If the question has no word.
        """
        check_question(question)
        check_count("num_results", num_results)
        vector = self._contextual._encoded([question])
        topics = pd.DataFrame({"qid": ["1"], "query": [question], "query_vec": [*vector]})
        fusion = self._fusion(max(RESULTS, num_results))
        best, shares = fusion._ranked(topics)
        parts = dict(zip(("words", "meaning"), shares.T, strict=True))
        if (evidence := self._evidence) is not None:
            ranking = fusion._frame(topics, best)
            parts |= {name: evidence.weights[name] * found for name, found in evidence.evidence(ranking).items()}
            best = best._replace(score=evidence.transform(ranking)["score"].to_numpy())
        files = self._lines is not None
        per = per or ("section" if files else "passage")
        candidates = num_results if per == "passage" and not files else max(CANDIDATES, num_results)
        rows: Any = np.argsort(-best.score, kind="stable")[: int(candidates)]
        best = best.at(rows)
        texts = self.graph._columns(["text", "title"], best.docno.tolist())
        found = fusion._frame(topics, best._replace(others={"place": rows} | texts))
        found = self._folded(pt.Transformer.identity(), per).transform(found)
        if "passage" in found.columns:
            found["docno"] = found["passage"]
        rows = np.arange(min(num_results, len(found)))
        if files:
            around = self._around(found["docno"].tolist())
            rows = distinct(found["text"].tolist(), around, found["file"].tolist(), num_results)
        wanted = content_stems(question)
        columns = {name: found[name].array.take(rows) for name in found.columns}
        shares = np.stack([*parts.values()], axis=1)[columns["place"]]
        columns["snippet"] = [snippet(text, wanted) for text in columns["text"]]
        columns["why"] = self._reasons(columns, wanted, vector[0], [*parts], shares)
        names = "title", *(("file", "line") if files else ()), "snippet", "why", "score", "docno", "text"
        found = pd.DataFrame({name: columns[name] for name in names})
        pairs = zip(columns["title"], columns["text"], strict=True)
        all_words = (wanted <= {*stems(f"{title} {text}")} for title, text in pairs)
        if files and not any(all_words) and (nearby := self._similarities([question])[0]) < self._unrelated:
            found.attrs["weak"] = warn_of_no_answer(question, nearby, self._unrelated)
        return found

    def _similarities(self, questions: list[str]) -> np.ndarray:
        """Per question the similarity of the passage, without context, that is most similar to it."""
        queries = np.asarray(_bi_encoder(self._encoder).encode_queries(questions), np.float32)
        vectors = self._contextual._files.payload()[1]
        return nearest(queries, vectors[:, : queries.shape[1]], 1)[0][:, 0]

    @cached_property
    def _unrelated(self) -> float:
        """The median of the best similarities of questions without meaning: words drawn from the passages."""
        random = np.random.default_rng(0)
        texts = self.graph.texts(np.sort(random.permutation(self.graph.passage_nodes)[:SAMPLE]))
        words = sorted({*re.findall(r"[^\W\d_]{3,}", " ".join(texts))} or {"?"})
        return float(np.median(self._similarities([*map(" ".join, random.choice(words, (MEANINGLESS, WORDS)))])))

    def _around(self, passages: list[str]) -> list[str]:
        """The text of each passage between those of the passages before and after it in its document."""
        passage_nodes = self.graph.passage_nodes
        numbers = np.searchsorted(passage_nodes, self.graph.nodes_of(passages))[:, None] + [-1, 0, 1]
        nodes = passage_nodes[numbers.clip(0, len(self) - 1)]  # (passages, 3)
        nodes = np.where(self.graph.document[nodes] == self.graph.document[nodes[:, [1]]], nodes, nodes[:, [1]])
        texts = self.graph.texts(nodes.ravel())
        return [" ".join(texts[start : start + 3]) for start in range(0, len(texts), 3)]

    def _reasons(
        self, found: dict[str, Any], wanted: set[str], vector: np.ndarray, names: list[str], shares: np.ndarray
    ) -> list[str]:
        """A text per result: the parts that add up to its score, and the words of the question that its titles have."""
        relations, sums = self._contextual._sums(vector, found["docno"].tolist())
        texts = []
        for title, share, similar in zip(found["title"], shares.tolist(), sums.tolist(), strict=True):
            part, row = zip(names, share, strict=True), dict(zip(relations, similar, strict=True))
            others = [(name, value) for name, value in row.items() if name != OWN and abs(value) >= 0.005]
            added = "".join(f" {'+' if value > 0 else '-'} {name} {abs(value):.2f}" for name, value in others)
            own = f" = passage {row[OWN]:.2f}{added}" if added else ""
            shown = [(name, value) for name, value in part if value >= 0.005 or name in ("words", "meaning")]
            text = " + ".join(f"{name} {value:.2f}" for name, value in shown)
            text += f"; similarity {sum(row.values()):.2f}{own}"
            shared = [word for word in dict.fromkeys(title.split()) if wanted.intersection(stems(word))]
            texts.append(text + (f"; title has {', '.join(word.strip('.,:;()') for word in shared)}" if shared else ""))
        return texts

    def explain(self, query: str, docno: str, *, graph: DocumentGraph | None = None) -> pd.DataFrame:
        """Explains the score of a passage in :meth:`hybrid` by BM25, vectors, and the evidence of other results.

        Arguments and columns are those of :meth:`Hybrid.explain <pyterrier_graph.Hybrid.explain>`. ``index.dense()`` is
        explained by ``ptg.explain(index.dense(), query, docno)``, by the passage and its context.
        """
        fusion, evidence = self._fusion(RESULTS), self._evidence
        explained = fusion.explain(query, docno, graph=graph)
        if evidence is None:
            return explained
        ranking = fusion.transform(pd.DataFrame({"qid": ["1"], "query": [query]}))
        values = evidence.evidence(ranking)[ranking["docno"] == docno].sum()
        added = pd.DataFrame(
            {"relation": values.index, "source": docno, "text": "", "weight": evidence.weights.values()}
        )
        added = added.assign(score=added["weight"] * values.to_numpy(), normalized=values.to_numpy())
        return pd.concat([explained, added[added["weight"] > 0]], ignore_index=True)

    def _view(self) -> View:
        if not self.built():
            return View({"documents": "not built yet"})
        broken = self.meta["source"].get("broken", ())
        sizes = {
            "documents": len(self.graph),
            "passages": len(self),
            "encoder": self.meta["encoder"]["name"],
            "BM25": self.meta["lexical"] or str(self.lexical),
        } | ({"files not read": len(broken)} if broken else {})
        return View(sizes, schematic(self.hybrid()))

    def _package_files(self) -> Iterator[tuple[str, str]]:
        """The files of the present version, for ``to_hf`` and others."""
        for name in [*read_meta(self.path, kind_of(self))[SIZES], META]:  # with a card that was written since
            yield name, str(self.path / name)


class Lines(WithSignature, pt.Transformer):
    """Adds the file of each passage, which is its document's docno, and the line where the passage begins.

    Columns in: ``docno`` (of passages), and any others. Columns out: those, ``file`` and ``line``.
    """

    schematic = {"label": "Lines", "help_url": None}

    def __init__(self, graph: DocumentGraph, lines: np.ndarray) -> None:
        self.graph, self.lines = graph, lines

    def __repr__(self) -> str:
        return f"Lines({self.graph!r})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Adds the columns."""
        pt.validate.columns(inp, includes=["docno"], context=self)
        nodes = self.graph.nodes_of(inp["docno"].tolist())
        files = pd.Series(self.graph.docnos_of(self.graph.document[nodes]), dtype="str", index=inp.index)
        lines = self.lines[np.searchsorted(self.graph.passage_nodes, nodes)].astype(np.int64)
        return inp.assign(file=files, line=lines)


def _evidence(graph: DocumentGraph, weights: Mapping[str, float]) -> Evidence:
    """The evidence with weights by name, ``document`` among them."""
    relations = {name: weight for name, weight in weights.items() if name != DOCUMENT}
    return Evidence(weights[DOCUMENT], relations=relations, graph=graph)


def _named(encoder: Any) -> Any:
    """A path as a text; other encoders as they are; TypeError if it is not an encoder."""
    return os.fspath(encoder) if isinstance(encoder, (str, os.PathLike)) else encoder_of(encoder)


def _bi_encoder(encoder: BiEncoder | ContextualEncoder) -> BiEncoder:
    return encoder.encoder if _is_contextual(encoder) else encoder


def _is_contextual(encoder: Any) -> TypeGuard[ContextualEncoder]:
    """Whether an encoder is a GraphMean or GNNEncoder."""
    return hasattr(encoder, "largest_weights")


def _rows(documents: Iterable[tuple[StructuredDocument, list[int] | None]]) -> Iterator[tuple[str, str]]:
    """The docno and the record of each document, as JSON."""
    for document, lines in documents:
        record = {name: value for name, value in vars(document).items() if value} | ({"lines": lines} if lines else {})
        yield document.docno, json.dumps(record)


def _with_lines(records: Iterable[dict[str, Any]], lines: list[int]) -> Iterator[StructuredDocument]:
    """The documents of records; adds the lines of their passages to a list."""
    for record in records:
        document = StructuredDocument.from_record(record)
        pairs = zip(document.nodes, record.get("lines", ()), strict=False)
        lines += [line for node, line in pairs if node.kind == PASSAGE]
        yield document


def _checked(answered: Any) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Topics and judgments with ids as texts."""
    if answered is None:
        return None
    check_type("answered", answered, tuple, "a pair of topics and qrels")
    topics, qrels = answered
    return checked_topics(topics, "answered"), checked_qrels(qrels, "answered")[["qid", "docno", "label"]]


def _equal(one: tuple[pd.DataFrame, ...] | None, other: tuple[pd.DataFrame, ...] | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(a.reset_index(drop=True).equals(b.reset_index(drop=True)) for a, b in zip(one, other, strict=True))


def _table_of(meta: Mapping[str, Any], kind: str) -> tuple[str, int | None]:
    """The name and version of a table; a new name and None if there is none. Names are also parts of paths."""
    name, version = meta["tables"].get(kind, (f"{kind}-{meta['number']}", None))
    if not re.fullmatch(rf"{kind}-\d+", str(name)):
        raise ValueError(f"{META} is damaged: {name!r} is not the name of a table")
    return name, version


def _is_present(folder: Path, fingerprint: str) -> bool:
    """Whether vectors are complete, and needed by a graph; those of queries always are."""
    meta = folder / META
    return meta.is_file() and (folder.name.startswith("queries") or fingerprint in meta.read_text(encoding="utf-8"))
