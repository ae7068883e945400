"""Writes a graph of queries and passages to disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyterrier as pt
from npids.lookup import Lookup

from pyterrier_graph.graphs.array_files import ArrayFiles, array_file, read_array
from pyterrier_graph.graphs.csr import CHUNK, CSR, write_compressed
from pyterrier_graph.graphs.ids import writing_ids
from pyterrier_graph.graphs.query_batches import QueryBatch
from pyterrier_graph.graphs.relations import inverse
from pyterrier_graph.graphs.text_store import TextWriter

QIDS = "qids.npids"
MAX_EDGES = 1 << 32
NO_EDGES = np.empty(0, dtype=np.int64)


def write_docnos(path: Path, docnos: Iterable[str], *, verbose: bool) -> int:
    """Writes the ids of passages, and returns their number.

    Raises:
        ValueError: If there are none, or an id comes twice or is not a text.
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

    In memory there are a batch of queries, all qids, and a million edges while they are sorted by passage. Everything
    else is on disk.

    Args:
        folder: The graph's folder.
        batches: All queries; they are read once.
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


class _Writer(ExitStack):
    """Writes queries, and their edges by query; edges are numbered in the order in which they are added."""

    def __init__(self, folder: Path, scratch: Path, edge_types: Sequence[str]) -> None:
        super().__init__()
        self.folder, self.scratch = folder, scratch
        self.qids: set[str] = set()
        self.edges = dict.fromkeys(edge_types, 0)
        self._arrays = self.enter_context(ArrayFiles())
        self._texts = self.enter_context(TextWriter(folder))
        self._ids = self.enter_context(writing_ids(folder / QIDS))
        for edge_type in edge_types:
            self._arrays.append(folder, f"{edge_type}.indptr", np.zeros(1))

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
    """Writes the edges of a type by passage."""
    name = inverse(edge_type)
    indptr, edges = (array_file(folder, f"{name}.{part}") for part in ("indptr", "edges"))
    write_compressed(read_array(scratch, f"{edge_type}.pairs").reshape(-1, 2), num_passages, indptr, edges, scratch)
    queries = read_array(scratch, f"{name}.indices")
    numbers = read_array(folder, f"{name}.edges")
    with ArrayFiles() as arrays:
        for start in range(0, len(numbers) or 1, CHUNK):
            arrays.append(folder, f"{name}.indices", queries[numbers[start : start + CHUNK]])
