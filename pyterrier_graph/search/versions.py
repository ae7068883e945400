"""The versions of a GraphIndex on disk.

::

    pt_meta.json    names the current version and holds the settings; replaced atomically
    v3/             the current version, whose files never change
        documents   the records of the documents, one JSON object per line
        graph/      the document graph
        queries/    the answered queries, if there are any
        vectors.flex/  the contextual vectors of the passages
        bm25/       the index of the BM25 engine
    v2/             the version before, for processes that have it open
    encoded/        the encoder's own vectors, so that unchanged texts are not encoded again
    encoder-1/      the encoder, unless the name of a checkpoint is enough
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pyterrier_graph.encoders.flex import Flex
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.graphs.relations import RELEVANT
from pyterrier_graph.search.bm25 import BM25Index
from pyterrier_graph.storage.arrays import blocks
from pyterrier_graph.storage.artifact import META, read_meta

ENCODED = "encoded"
GRAPH, QUERIES, VECTORS, BM25 = "graph", "queries", "vectors.flex", "bm25"
LINES, CHANGED, DELETED = "lines.npy", "changed.npy", "deleted.json"
TOPICS, QRELS = "topics.json", "qrels.json"
OWN = re.compile(r"v\d+|encoder-\d+|encoded|lock|pt_meta\.json|\..*")  # names in the folder
KIND = {"type": "graph_index_version", "format": "folder", "package_hint": "pyterrier_graph"}
ROWS_AT_ONCE = 4096

Answered = tuple[pd.DataFrame, pd.DataFrame]  # topics and judgments


class Version:
    """One version of an index. Files are opened on first use.

    Args:
        path: Folder of the index.
        number: Number of the version.
        verbose: Whether to show progress.
    """

    def __init__(self, path: Path, number: int, *, verbose: bool = True) -> None:
        self.path, self.number, self.verbose = path, number, verbose
        self.folder = path / f"v{number}"

    @cached_property
    def meta(self) -> dict[str, Any]:
        """How the version was made: encoder, engine of BM25, words per passage."""
        return read_meta(self.folder, KIND)

    def opened(self) -> Path:
        """Returns the folder; raises ValueError if later changes have removed it."""
        if not self.folder.is_dir():
            raise ValueError(
                f"{str(self.path)!r} was changed several times, or removed, after it had been opened: "
                "open it again"
            )
        return self.folder

    @cached_property
    def graph(self) -> DocumentGraph:
        """The document graph."""
        graph = DocumentGraph(self.opened() / GRAPH, verbose=self.verbose)
        graph.vectors_folder = self.path / ENCODED
        return graph

    @cached_property
    def flex(self) -> Flex:
        """The ids and vectors of the passages."""
        return Flex(self.opened() / VECTORS)

    @cached_property
    def queries(self) -> QueryPassageGraph | None:
        """The graph of the answered queries."""
        path = self.opened() / QUERIES
        return QueryPassageGraph(path, verbose=False) if path.is_dir() else None

    @property
    def answered(self) -> Answered | None:
        """The answered queries: topics and judgments."""
        if not (self.opened() / TOPICS).is_file():
            return None
        topics, qrels = (
            pd.read_json(self.folder / name, orient="split", dtype=False)
            for name in (TOPICS, QRELS)
        )
        return topics, qrels

    @cached_property
    def bm25(self) -> BM25Index:
        """The BM25 index. With an engine other than bm25s, only its path is used."""
        return BM25Index(self.opened() / BM25)

    @cached_property
    def lines(self) -> np.ndarray | None:
        """The line where each passage begins, if the documents are files."""
        path = self.opened() / LINES
        return np.load(path) if path.is_file() else None

    @cached_property
    def changed(self) -> np.ndarray:
        """Version in which the text, context or vector of each passage last changed, shape (passages,)."""
        return np.load(self.opened() / CHANGED)

    @cached_property
    def deleted(self) -> dict[str, int]:
        """Version that removed each deleted passage, by docno."""
        return json.loads((self.opened() / DELETED).read_text(encoding="utf-8"))


def contexts(
    graph: DocumentGraph, queries: QueryPassageGraph | None, passages: np.ndarray
) -> Iterator[str]:
    """Yields the text of each passage, preceded by its titles and followed by the queries that it answers."""
    for block in blocks(len(passages), ROWS_AT_ONCE):
        batch = passages[block]
        texts = graph.texts(graph.passage_nodes[batch], titles=True)
        if queries is not None:
            answered = queries.edges_of_passages(batch, RELEVANT)
            for row, query in zip(answered.row_index, queries.texts(answered.indices), strict=True):
                texts[row] += f"\n{query}"
        yield from texts


def write_changes(
    folder: Path,
    number: int,
    graph: DocumentGraph,
    vectors: Flex,
    previous: Version | None,
    reused: np.ndarray,
) -> None:
    """Writes in which version each passage last changed, and which version removed each passage that is gone.

    ``reused`` has the number of each passage in the previous version, or -1.
    """
    changed, deleted = np.full(len(reused), number, np.int32), dict[str, int]()
    if previous is not None:
        new, _ = vectors.payload(return_docnos=False)
        old, _ = previous.flex.payload(return_docnos=False)
        rows = np.flatnonzero(reused >= 0)
        for block in blocks(len(rows) if new.shape[1] == old.shape[1] else 0, ROWS_AT_ONCE):
            batch = rows[block]
            before = reused[batch]
            same = (new[batch] == old[before]).all(axis=1)
            changed[batch[same]] = previous.changed[before[same]]
        gone = np.delete(previous.graph.passage_nodes, reused[rows])
        deleted = previous.deleted | dict.fromkeys(previous.graph.ids_of(gone), number)
        for docno in graph.ids_of(graph.passage_nodes[reused < 0]):
            deleted.pop(docno, None)
    np.save(folder / CHANGED, changed)
    (folder / DELETED).write_text(json.dumps(deleted), encoding="utf-8")


def check_folder(path: Path) -> None:
    """Raises FileExistsError if the folder of an index has files of somebody else."""
    names = [file.name for file in path.iterdir()] if path.is_dir() else []
    if foreign := [name for name in names if not OWN.fullmatch(name)]:
        raise FileExistsError(
            f"{str(path)!r} has other files, such as {min(foreign)!r}: choose another path"
        )


def remove_unused(path: Path, number: int, previous: Version | None) -> None:
    """Removes all but two versions and their encoders, and encoded texts that the next change cannot reuse."""
    current = Version(path, number)
    used = {ENCODED}
    for version in filter(None, (current, previous)):
        used |= {version.folder.name, version.meta["encoder"].get("folder")}
    for entry in [*path.iterdir()]:
        if entry.is_dir() and entry.name not in used:
            _remove(entry)
    fingerprint, newest = current.graph.fingerprint().encode(), dict[str, Path]()
    for entry in sorted((path / ENCODED).iterdir(), key=lambda entry: entry.stat().st_mtime):
        kind = entry.name.partition("-")[0]
        if kind == "passages":
            if fingerprint not in (entry / META).read_bytes():
                _remove(entry)
        elif kind in newest:
            _remove(newest[kind])
        newest[kind] = entry


def _remove(entry: Path) -> None:
    """Renames a folder and then deletes it, so that no process opens a half-deleted folder."""
    target = entry.with_name(f".removed-{entry.name.lstrip('.')}")
    shutil.rmtree(target, ignore_errors=True)
    with suppress(OSError):  # on Windows, a folder that is open keeps its name
        entry = entry.replace(target)
    shutil.rmtree(entry, ignore_errors=True)
