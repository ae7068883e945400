"""Writes a graph of queries and passages to disk while batches of queries come by."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyterrier as pt
from npids.lookup import Lookup

from pyterrier_graph.graphs.builder import ArrayFiles, array_file, read_array
from pyterrier_graph.graphs.csr import CHUNK, CSR, write_compressed
from pyterrier_graph.graphs.ids import numbers_of, some, writing_ids
from pyterrier_graph.graphs.relations import RELEVANT, RETRIEVED, inverse
from pyterrier_graph.graphs.text_store import TextWriter

DOCNOS, QIDS = "docnos.npids", "qids.npids"
MAX_EDGES = 1 << 32
NO_EDGES = np.empty(0, dtype=np.int64)


class QueryBatch(NamedTuple):
    """Queries, and per type their edges: a row per query of passage numbers, which ascend, with ``scores``."""

    qids: list[str]
    texts: list[str]
    edges: Mapping[str, CSR]


class Judgments:
    """The relevant passages of queries, of which some are asked for at a time.

    Args:
        qrels: ``qid, docno, label``; rows whose label is above 0 count.

    Attributes:
        found: Number of rows that were handed out.
    """

    def __init__(self, qrels: pd.DataFrame) -> None:
        pt.validate.columns(qrels, includes=["qid", "docno", "label"])
        qrels = qrels.loc[qrels["label"] > 0, ["qid", "docno", "label"]].astype({"qid": str, "docno": str})
        query, qids = pd.factorize(qrels["qid"])
        self._qids = pd.Index(qids)
        self._frame = qrels.rename(columns={"label": "score"})
        self._rows = CSR.group(query, np.arange(len(qrels)), len(qids))
        self.found = 0

    def of(self, qids: Sequence[str]) -> pd.DataFrame:
        """The rows of some queries: ``qid, docno, score``."""
        query = self._qids.get_indexer(qids)
        rows = self._frame.iloc[self._rows.select(query[query >= 0])[1]]
        self.found += len(rows)
        return rows


def query_batch(
    topics: pd.DataFrame, run: pd.DataFrame, judgments: Judgments | None, docnos: Lookup, k: int
) -> QueryBatch:
    """Queries with the edges that a run and judgments make.

    Args:
        topics: ``qid, query``; ids are text, each once.
        run: ``qid, docno, score``, of these queries; ids are text.
        judgments: What else is known of these queries, or None.
        docnos: The passages.
        k: Passages per query: the best by score are kept, those that come first among equals.

    Raises:
        KeyError: If there is no such passage.
        ValueError: If a query is empty, a score not finite, or a query has the same passage twice.
    """
    for qid, text in zip(topics["qid"], topics["query"], strict=True):
        if not qid or "\0" in qid:
            raise ValueError(f"a qid must not be empty or contain NUL characters, got {qid!r}")
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"query {qid!r} has no text: {text!r}")
    qids = pd.Index(topics["qid"])
    edges = {RETRIEVED: _pairs(qids, run, docnos, "results", k)}
    if judgments is not None:
        edges[RELEVANT] = _pairs(qids, judgments.of(topics["qid"]), docnos, "qrels")
    return QueryBatch(topics["qid"].tolist(), topics["query"].tolist(), edges)


def _pairs(qids: pd.Index, rows: pd.DataFrame, docnos: Lookup, source: str, k: int | None = None) -> CSR:
    query = qids.get_indexer(rows["qid"])
    names = rows["docno"].to_numpy(dtype=object)
    with np.errstate(over="ignore"):
        scores = rows["score"].to_numpy(dtype=np.float64).astype(np.float32)

    def refuse(wrong: np.ndarray, message: str) -> None:
        if len(wrong):
            row = int(wrong[0])
            raise ValueError(f"query {qids[query[row]]!r}, passage {names[row]!r} {message} in the {source}")

    refuse(np.flatnonzero(~np.isfinite(scores)), "has a score that is not a finite 32-bit number")
    if k is not None:
        best = np.lexsort((-scores, query))
        grouped = query[best]
        best = best[np.arange(len(best)) - np.searchsorted(grouped, grouped) < k]
        query, names, scores = query[best], names[best], scores[best]
    passage = numbers_of(docnos, names)
    if (passage < 0).any():
        unknown = [*dict.fromkeys(names[passage < 0])]
        raise KeyError(f"{some(unknown, 'docno')} of the {source} not among the passages: are they of another corpus?")
    order = np.lexsort((passage, query))
    refuse(order[1:][(np.diff(query[order]) == 0) & (np.diff(passage[order]) == 0)], "comes twice")
    return CSR.group(query[order], passage[order], len(qids), scores=scores[order])


def parts_of(run: pd.DataFrame, size: int) -> Iterator[pd.DataFrame]:
    """Cuts a run into frames of so many queries each, in the order in which queries first appear."""
    query, qids = pd.factorize(run["qid"])
    order = np.argsort(query, kind="stable")
    bounds = np.searchsorted(query[order], np.arange(0, len(qids) + size, size))
    return (run.iloc[order[start:end]] for start, end in zip(bounds[:-1], bounds[1:], strict=True))


def write_docnos(path: Path, docnos: Iterable[str], *, verbose: bool) -> int:
    """Writes the passages' ids, and returns how many they are.

    Raises:
        ValueError: If there is none, one comes twice, or is not a text.
    """
    count = 0
    with writing_ids(path) as ids:
        for docno in pt.tqdm(docnos, desc="reading docnos", unit="passage", disable=not verbose):
            if not isinstance(docno, str) or not docno or "\0" in docno:
                raise ValueError(f"a docno must be a text, not empty, without NUL characters, got {docno!r}")
            ids.add(docno)
            count += 1
        if not count:
            raise ValueError("a graph needs passages, there are none")
    with Lookup(path) as lookup:
        for start in range(0, count, CHUNK):
            numbers = np.arange(start, min(start + CHUNK, count))
            names = lookup.fwd[numbers]
            twice = np.flatnonzero(lookup.inv[names] != numbers)
            if len(twice):
                raise ValueError(f"passage {str(names[twice[0]])!r} comes twice: docnos must be unique")
    return count


def build(
    folder: Path, batches: Iterable[QueryBatch], edge_types: Sequence[str], num_passages: int
) -> tuple[int, dict[str, int]]:
    """Writes everything but the passages' ids.

    In memory there are a batch, all qids, and a million edges while they are sorted by passage; the rest is appended to
    files, or lies in memory-mapped ones.

    Args:
        folder: The graph's folder.
        batches: All queries; gone through once.
        edge_types: Types of their edges.
        num_passages: Number of passages.

    Returns:
        Number of queries, and of edges per type.

    Raises:
        ValueError: If there is no query, or one comes twice, or there are too many edges.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix="scratch-") as name:
        scratch = Path(name)
        with _Writer(folder, scratch, edge_types) as writer:
            for batch in batches:
                writer.add(batch)
            if not writer.qids:
                raise ValueError("a graph needs queries, there are none")
        for edge_type in edge_types:
            _write_backward(folder, scratch, edge_type, num_passages)
        return len(writer.qids), writer.edges


def digest(folder: Path) -> str:
    """SHA-256 of a graph's files."""
    total = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        with open(file, "rb") as data:
            total.update(file.name.encode() + hashlib.file_digest(data, "sha256").digest())
    return total.hexdigest()


class _Writer:
    """Queries in their final form, and their edges, which are numbered as they come."""

    def __init__(self, folder: Path, scratch: Path, edge_types: Sequence[str]) -> None:
        self.folder, self.scratch = folder, scratch
        self.qids: set[str] = set()
        self.edges = dict.fromkeys(edge_types, 0)
        self._stack = ExitStack()

    def __enter__(self) -> _Writer:
        self._arrays = self._stack.enter_context(ArrayFiles())
        self._texts = self._stack.enter_context(TextWriter(self.folder))
        self._ids = self._stack.enter_context(writing_ids(self.folder / QIDS))
        for edge_type in self.edges:
            self._arrays.append(self.folder, f"{edge_type}.indptr", np.zeros(1))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def add(self, batch: QueryBatch) -> None:
        """Adds queries after those before."""
        first = len(self.qids)
        for qid in batch.qids:
            if qid in self.qids:
                raise ValueError(f"query {qid!r} comes twice: qids must be unique, and a query's rows come together")
            self.qids.add(qid)
            self._ids.add(qid)
        self._texts.extend(batch.texts)
        for edge_type, before in self.edges.items():
            edges = batch.edges.get(edge_type)
            if edges is None:
                edges = CSR.group(NO_EDGES, NO_EDGES, len(batch.qids), scores=NO_EDGES)
            after = before + len(edges.indices)
            if after > MAX_EDGES:
                raise ValueError(f"a graph can have {MAX_EDGES:,} edges of a type at most")
            arrays = {"indptr": before + edges.indptr[1:], "indices": edges.indices, "scores": edges.data["scores"]}
            for name, values in arrays.items():
                self._arrays.append(self.folder, f"{edge_type}.{name}", values)
            numbered = np.stack([edges.indices, np.arange(before, after)], axis=1)
            self._arrays.append(self.scratch, f"{edge_type}.pairs", numbered)
            self._arrays.append(self.scratch, f"{inverse(edge_type)}.indices", first + edges.row_index)
            self.edges[edge_type] = after


def _write_backward(folder: Path, scratch: Path, edge_type: str, num_passages: int) -> None:
    """Sorts a type's edges by passage."""
    name = inverse(edge_type)
    indptr, edges = (array_file(folder, f"{name}.{part}") for part in ("indptr", "edges"))
    write_compressed(read_array(scratch, f"{edge_type}.pairs").reshape(-1, 2), num_passages, indptr, edges, scratch)
    queries = read_array(scratch, f"{name}.indices")
    numbers = read_array(folder, f"{name}.edges")
    with ArrayFiles() as arrays:
        for start in range(0, len(numbers) or 1, CHUNK):
            arrays.append(folder, f"{name}.indices", queries[numbers[start : start + CHUNK]])
