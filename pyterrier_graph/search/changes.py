"""A change of a GraphIndex: the next version is written into a folder of its own, and then becomes the present one.

Replacing ``pt_meta.json`` is the transaction: a change that fails or is killed before has no effect.
:mod:`~pyterrier_graph.search.layout` describes the folders.
"""

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
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.documents.document import PASSAGE, StructuredDocument
from pyterrier_graph.encoders.names import DEFAULT, checkpoint_name
from pyterrier_graph.encoders.stored_vectors import TITLED, encoder_name, encoding_time
from pyterrier_graph.graph_mean.contextual_index import ContextualIndex, ContextualRetriever
from pyterrier_graph.graphs.builder import DocumentOf
from pyterrier_graph.graphs.document_graph import DocumentGraph, structured_documents
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.graphs.relations import RELEVANT, TITLE, TITLES
from pyterrier_graph.search import layout
from pyterrier_graph.search.fitting import RESULTS, SETTINGS, best_settings, left_out
from pyterrier_graph.search.hybrid import Fusion
from pyterrier_graph.search.lexical import bm25
from pyterrier_graph.search.stored_index import StoredIndex, bi_encoder
from pyterrier_graph.search.tables import FullText, open_table, read_texts, write_table
from pyterrier_graph.storage.artifact import (
    CARD,
    DIGESTS,
    LOCK,
    META,
    SIZES,
    kind_of,
    read_meta,
)
from pyterrier_graph.storage.legacy import NEW_META, complete
from pyterrier_graph.storage.shards import Workers, check_workers

Answered = tuple[pd.DataFrame, pd.DataFrame]  # topics and judgments


@dataclass
class Change:
    """Documents that are added, replaced or removed: :meth:`write` writes the next version of an index."""

    index: StoredIndex
    docs: Iterable[Any] = ()
    document: str | DocumentOf | None = None
    about: Mapping[str, Any] = field(default_factory=dict)  # entries of pt_meta.json
    keep_others: bool = True  # documents, and answered queries unless some are given
    deleted: Sequence[str] = ()
    answered: Answered | None = None
    workers: Workers = 1

    def write(self) -> None:
        """Writes the version, and opens it; a change without an effect leaves the present one."""
        check_workers(self.workers)
        index, path = self.index, self.index.path
        own = {layout.TABLES, layout.ENCODER, layout.ENCODED, LOCK, META, NEW_META, CARD}
        names = {file.name for file in path.iterdir()} if os.path.isdir(path) else set()
        if foreign := {name for name in names - own if not layout.VERSION.fullmatch(name)}:
            raise FileExistsError(
                f"{str(path)!r} has other files, such as {min(foreign)!r}: choose another path"
            )
        with index._locked():
            index._reopened()  # at the last version, which another object may have written
            if (path / META).is_file():
                self.present = index.meta
            elif self.keep_others:
                raise FileNotFoundError(f"no index at {str(path)!r}: build one with index(docs)")
            else:
                self.present = {"number": 0, "settings": SETTINGS, "tables": {}}
            if self.deleted:
                index.graph.document_of(self.deleted)
                if len({*self.deleted}) == len(index.graph):
                    raise ValueError(
                        "no document would be left: delete the folder of the index instead"
                    )
            former = index._answered
            if self.answered is None and self.keep_others:
                self.answered = former
            self._write(newly_answered=not _equal(self.answered, former))
        index._reopened()

    def _write(self, *, newly_answered: bool) -> None:
        self.path = self.index.path
        self.meta = kind_of(self.index) | {"source": {}} | self.present | dict(self.about)
        self.meta["number"] += 1
        if not self.keep_others:
            self.meta["tables"] = {}
        self.folder = self.path / f"v{self.meta['number']}"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self._remove_unlisted()
        try:
            rows = _rows(structured_documents(self.docs, self.document, self.meta["passage_words"]))
            name, version = layout.table_of(self.meta, layout.DOCUMENTS)
            now = write_table(
                self.path / layout.TABLES,
                name,
                version,
                rows,
                keep_others=self.keep_others,
                deleted=self.deleted,
            )
            self.meta["tables"] = self.meta["tables"] | {layout.DOCUMENTS: (name, now)}
            if report := getattr(self.docs, "report", None):
                self.meta["source"] = report
            if now == version and not newly_answered:
                shutil.rmtree(self.folder)
                if self.meta["source"] != self.present["source"]:
                    commit(self.index, self.present | {"source": self.meta["source"]})
                return
            self._build(newly_answered)
            commit(self.index, self.meta, self.present)
        except BaseException as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self.present["tables"]:
                shutil.rmtree(self.path / layout.TABLES, ignore_errors=True)
            if "LanceError(IO)" in str(error):  # such as of a full disk
                code = re.search(r"os error (\d+)", str(error))
                message = f"the change has had no effect: {error}"
                raise OSError(
                    int(code[1]) if code else errno.EIO, message, str(self.path)
                ) from error
            raise
        self._remove_old()

    def _build(self, newly_answered: bool) -> None:
        """Builds all that depends on the documents, whose table has been written."""
        lines: list[int] = []
        name, version = layout.table_of(self.meta, layout.DOCUMENTS)
        table = open_table(self.path / layout.TABLES, name, version or 0)
        records = (json.loads(text) for _, text in read_texts(table))
        graph = DocumentGraph(self.folder / layout.GRAPH, verbose=self.index.verbose).index(
            _with_lines(records, lines)
        )
        if lines and len(lines) == len(graph.passage_nodes):
            np.save(self.folder / layout.LINES, np.array(lines, dtype=np.int32))
        queries = None
        if self.answered is not None:
            topics, qrels = self.answered
            topics.to_json(self.folder / layout.TOPICS, orient="split")
            qrels.to_json(self.folder / layout.QRELS, orient="split")
            queries = QueryPassageGraph(self.folder / layout.QUERIES, verbose=False).build(
                topics, graph, qrels=qrels
            )
        self._save_encoder()
        encoder = bi_encoder(self.index._encoder)
        times = 2 if 0 < self.meta.get("titled", TITLED) < 1 else 1
        if self.index.verbose and (
            text := encoding_time(self.path / layout.ENCODED, graph, encoder, times)
        ):
            pt.tqdm.write(text, file=sys.stderr)
        own = isinstance(self.index.lexical, pt.Transformer)
        self.meta["lexical"] = (
            None if own else self.index.lexical or self.meta.get("lexical") or "lance"
        )
        passages = layout.table_of(self.meta, layout.PASSAGES)
        _, version = self._write_sides(
            self.folder,
            self.path / layout.TABLES,
            passages,
            graph,
            queries,
            verbose=self.index.verbose,
        )
        if self.meta["lexical"] == "lance":
            self.meta["tables"] = self.meta["tables"] | {layout.PASSAGES: (passages[0], version)}
        if self.answered is not None and newly_answered and not self.meta["settings"].get("judged"):
            self.meta["settings"] = self.meta["settings"] | self._settings(graph, *self.answered)

    def _save_encoder(self) -> None:
        """Writes the encoder into the index, unless the name of its checkpoint is enough, or it is there already."""
        if "encoder" in self.meta:
            return
        index = self.index
        if index.encoder is None:
            index.encoder = DEFAULT
        checkpoint = checkpoint_name(index.encoder) if isinstance(index.encoder, str) else None
        self.meta["encoder"] = {
            "checkpoint": checkpoint,
            "name": encoder_name(bi_encoder(index._encoder)),
        }
        from pyterrier_graph.training.model import LearnedModel

        if isinstance(index.encoder, LearnedModel):
            shutil.rmtree(self.path / layout.ENCODER, ignore_errors=True)
            copy.copy(index.encoder).save(
                self.path / layout.ENCODER
            )  # a copy, whose path may change

    def _write_sides(
        self,
        folder: Path,
        tables: Path,
        table: tuple[str, int | None],
        graph: DocumentGraph,
        queries: QueryPassageGraph | None,
        *,
        verbose: bool,
    ) -> tuple[ContextualIndex, int | None]:
        """Writes the vectors, and what BM25 searches; returns the index, and the version of Lance's table."""
        model = self.index._model(graph, queries, self.meta, verbose=verbose)
        vectors = model.index(
            folder / layout.VECTORS, windows=self.meta["windows"], workers=self.workers
        )
        context = [TITLES] * bool(len(graph._adjacency(TITLE).indices)) + [RELEVANT] * (
            queries is not None
        )
        passages = graph.get_corpus_iter(context=context, query_graph=queries)
        engine, version = self.meta["lexical"], None
        if engine == "lance":
            rows = ((row["docno"], row["text"]) for row in passages)
            version = write_table(tables, *table, rows, searched=True)
        elif engine is not None:
            longest = max(len(docno) for docno in graph.ids_of(graph.passage_nodes))
            bm25(passages, engine, folder / f"{layout.BM25}{engine}", docno_length=longest)
        return vectors, version

    def _settings(
        self, graph: DocumentGraph, topics: pd.DataFrame, qrels: pd.DataFrame
    ) -> dict[str, Any]:
        """The settings that answered queries support, each ranked in an index without it."""
        qrels = graph.passage_qrels(qrels) if graph._own_ids else qrels
        index = self.index
        with TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as place:

            def hybrid(others: pd.DataFrame) -> Fusion:
                path = Path(place) / str(len(others))
                shutil.rmtree(path, ignore_errors=True)
                queries = QueryPassageGraph(path / layout.QUERIES, verbose=False).build(
                    others, graph, qrels=qrels
                )
                tables, table = path / layout.TABLES, (layout.PASSAGES, None)
                vectors, version = self._write_sides(
                    path, tables, table, graph, queries, verbose=False
                )
                full_text = FullText(tables, layout.PASSAGES, version or 0)
                words = index._lexical(self.meta["lexical"], path, full_text, RESULTS)
                return Fusion(words, ContextualRetriever(vectors, RESULTS))

            parts = [*left_out(hybrid, topics, qrels, verbose=index.verbose)]
        return (
            best_settings(parts, graph, qrels, SETTINGS, index.training, verbose=index.verbose)
            if parts
            else {}
        )

    def _remove_unlisted(self) -> None:
        """Removes files of killed changes, which Lance removes after a week: listed, they would seem lost then."""
        for name, _ in self.present["tables"].values():
            for file in (self.path / layout.TABLES / f"{name}.lance").rglob("*"):
                if (
                    file.is_file()
                    and file.relative_to(self.path).as_posix() not in self.present[SIZES]
                ):
                    file.unlink()

    def _remove_old(self) -> None:
        """Removes versions before the last one, which may still be open, and vectors that no version needs."""
        fingerprint = DocumentGraph(self.folder / layout.GRAPH).fingerprint()
        tables = {
            f"{name}.lance"
            for meta in (self.meta, self.present)
            for name, _ in meta["tables"].values()
        }
        old = [file for file in self.path.glob("v*") if layout.VERSION.fullmatch(file.name)]
        old = [file for file in old if int(file.name[1:]) < self.meta["number"] - 1]
        encoded = [
            file
            for file in (self.path / layout.ENCODED).iterdir()
            if not file.name.startswith("tokens")
        ]
        old += [file for file in encoded if not _is_present(file, fingerprint)]
        old += [file for file in (self.path / layout.TABLES).iterdir() if file.name not in tables]
        removed = self.path / layout.TABLES / "removed"
        for folder in [removed, *old]:  # first they get this name, so that no process opens a part
            with suppress(OSError):  # on Windows, a folder that is open keeps its name
                folder.replace(removed)
            shutil.rmtree(removed, ignore_errors=True)


def commit(
    index: StoredIndex, meta: dict[str, Any], before: Mapping[str, Any] | None = None
) -> None:
    """Makes a version the present one: lists its files with their digests, and replaces ``pt_meta.json``."""
    path, version = index.path, index.path / f"v{meta['number']}"
    fingerprint = DocumentGraph(version / layout.GRAPH).fingerprint()
    encoded = [
        place for place in (path / layout.ENCODED).iterdir() if _is_present(place, fingerprint)
    ]
    tables = [path / layout.TABLES / f"{name}.lance" for name, _ in meta["tables"].values()]
    folders = [version, *tables, path / layout.ENCODER, *encoded]
    files = [
        path / CARD,
        *(file for folder in folders for file in folder.rglob("*") if file.name != layout.HINT),
    ]
    known = (
        (before or meta).get(DIGESTS, {}).items()
    )  # files outside of the version's folder do not change
    known = {name: digest for name, digest in known if not name.startswith(f"{version.name}/")}
    # artifacts in the index, except for those of other packages, are on the disk and list their own digests
    for folder in [
        file.parent
        for file in files
        if file.name == META and not file.parent.name.startswith(layout.BM25)
    ]:
        try:
            digests = read_meta(folder)[DIGESTS]
        except ValueError as error:
            advice = f"delete {str(folder)!r} and repeat the call, which encodes its texts again"
            raise ValueError(f"{error}; {advice}") from error
        known |= {
            (folder / name).relative_to(path).as_posix(): digest for name, digest in digests.items()
        }
    complete(
        path, meta, known, files, None if index.store is None else index.store.publish, kept=known
    )


def _is_present(folder: Path, fingerprint: str) -> bool:
    """Whether vectors are complete, and needed by a graph; those of queries always are."""
    meta = folder / META
    return meta.is_file() and (
        folder.name.startswith("queries") or fingerprint.encode() in meta.read_bytes()
    )


def _rows(
    documents: Iterable[tuple[StructuredDocument, list[int] | None]],
) -> Iterator[tuple[str, str]]:
    """The docno and the record of each document, as JSON."""
    for document, lines in documents:
        record = {name: value for name, value in vars(document).items() if value} | (
            {"lines": lines} if lines else {}
        )
        yield document.docno, json.dumps(record)


def _with_lines(
    records: Iterable[dict[str, Any]], lines: list[int]
) -> Iterator[StructuredDocument]:
    """The documents of records; adds the lines of their passages to a list."""
    for record in records:
        document = StructuredDocument.from_record(record)
        pairs = zip(document.nodes, record.get("lines", ()), strict=False)
        lines += [line for node, line in pairs if node.kind == PASSAGE]
        yield document


def _equal(one: Answered | None, other: Answered | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(
        a.reset_index(drop=True).equals(b.reset_index(drop=True))
        for a, b in zip(one, other, strict=True)
    )
