"""Writes a graph to disk while its documents come by."""

from __future__ import annotations

import json
import logging
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import pyterrier as pt
from npids.lookup import Lookup

from pyterrier_graph.documents import StructuredDocument
from pyterrier_graph.graphs.csr import write_compressed
from pyterrier_graph.graphs.extraction import Parts, extract, locate, without_loops
from pyterrier_graph.graphs.ids import writing_ids
from pyterrier_graph.graphs.relations import inverse, relation_names
from pyterrier_graph.graphs.text_store import TextWriter

BATCH = 1 << 14
MAX_NODES = 1 << 32
DOCNOS = "docnos.npids"
CODES = "codes.json"

_DTYPES = {
    "node_type": "u1",
    "utf8": "u1",
    "indices": "u4",
    "pairs": "u4",
    "edges": "u4",
    "scores": "f4",
    "features": "f2",
}

logger = logging.getLogger(__name__)


def array_file(folder: Path, name: str) -> Path:
    """The file that holds an array; its ending is the array's type."""
    return folder / f"{name}.{_DTYPES.get(name.rpartition('.')[2], 'i8')}"


def read_array(folder: Path, name: str) -> np.ndarray:
    """Memory-maps an array."""
    path = array_file(folder, name)
    dtype = np.dtype(f"<{path.suffix[1:]}")
    if not path.stat().st_size:
        return np.empty(0, dtype=dtype)
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))


def build(folder: Path, documents: Iterable[StructuredDocument], *, verbose: bool = False) -> dict[str, Any]:
    """Writes all files of a graph.

    What stays in memory is a batch of documents, all docnos, the names of the codes, and a million edges while a
    relation is sorted. Everything else is appended to files, or lies in memory-mapped ones.

    Args:
        folder: An empty folder.
        documents: The documents; they are gone through once.
        verbose: Whether to show progress.

    Returns:
        What ``pt_meta.json`` is to say: sizes, relations, unresolved references.

    Raises:
        ValueError: If there is no document, two have the same docno, or there are too many nodes.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix="scratch-") as name:
        scratch = Path(name)
        with _DocumentWriter(folder, scratch) as writer:
            for batch in _batches(pt.tqdm(documents, desc="reading documents", unit="doc", disable=not verbose)):
                writer.add(batch)
            if not writer.docnos:
                raise ValueError("a graph needs documents, the corpus has none")
        num_documents, num_codes = len(writer.docnos), len(writer.codes)
        (folder / CODES).write_text(json.dumps([*writer.codes]), encoding="utf-8")
        unresolved = {relation: _resolve(folder, scratch, relation) for relation in writer.references}
        for relation, missing in unresolved.items():
            if missing:
                total = writer.references[relation]
                logger.warning("%d of %d references %r lead out of the corpus", missing, total, relation)
        names = relation_names([*writer.links, *unresolved])
        rows = dict.fromkeys(names, writer.num_nodes) | {"document_codes": num_documents, "code_documents": num_codes}
        forward = [*names[::2], "document_codes"]
        backward = [*map(inverse, names[::2]), "code_documents"]
        sizes: dict[str, int] = {}
        for there, back in pt.tqdm([*zip(forward, backward, strict=True)], desc="sorting edges", disable=not verbose):
            pairs = _pairs(scratch, there)
            for relation, ends in (there, pairs), (back, pairs[:, ::-1]):
                indptr, indices = (array_file(folder, f"{relation}.{part}") for part in ("indptr", "indices"))
                sizes[relation] = write_compressed(ends, rows[relation], indptr, indices, scratch)
        return {
            "documents": num_documents,
            "nodes": writer.num_nodes,
            "passages": writer.num_passages,
            "codes": num_codes,
            "relations": names,
            "edges": {relation: sizes[relation] for relation in names},
            "unresolved": unresolved,
        }


def _batches(documents: Iterable[StructuredDocument]) -> Iterator[list[StructuredDocument]]:
    """So many documents at once that they have about as many nodes as a batch should."""
    batch: list[StructuredDocument] = []
    nodes = 0
    for document in documents:
        batch.append(document)
        nodes += len(document.nodes)
        if nodes >= BATCH:
            yield batch
            batch, nodes = [], 0
    if batch:
        yield batch


def _pairs(scratch: Path, name: str) -> np.ndarray:
    if not array_file(scratch, f"{name}.pairs").exists():
        return np.empty((0, 2), dtype=np.uint32)
    return read_array(scratch, f"{name}.pairs").reshape(-1, 2)


def _resolve(folder: Path, scratch: Path, relation: str) -> int:
    """Turns references of one relation into edges; returns how many lead nowhere."""
    places = [read_array(folder, name) for name in ("roots", "passage_offsets", "passage_nodes")]
    sources, passages, lengths, utf8 = (
        read_array(scratch, f"{relation}.{name}") for name in ("sources", "passages", "lengths", "utf8")
    )
    unresolved = begin = 0
    with Lookup(folder / DOCNOS) as docnos, ArrayFiles() as files:
        for start in range(0, len(sources), BATCH):
            part = slice(start, start + BATCH)
            ends = np.cumsum(lengths[part])
            data = utf8[begin : begin + ends[-1]].tobytes()
            begin += ends[-1]
            targets = [data[i:j].decode("utf-8") for i, j in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)]
            nodes = locate(np.array(docnos.inv[targets], dtype=np.int64), passages[part], *places)
            found = nodes >= 0
            unresolved += int((~found).sum())
            pairs = np.stack([sources[part][found], nodes[found]], axis=1)
            files.append(scratch, f"{relation}.pairs", without_loops(pairs))
    return unresolved


class ArrayFiles:
    """Arrays that grow on disk."""

    def __init__(self) -> None:
        self._files: dict[Path, BinaryIO] = {}
        self._stack = ExitStack()

    def __enter__(self) -> ArrayFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def append(self, folder: Path, name: str, values: np.ndarray) -> None:
        """Adds values after those before; without any, there is an empty file."""
        path = array_file(folder, name)
        if path not in self._files:
            self._files[path] = self._stack.enter_context(open(path, "ab"))
        self._files[path].write(np.ascontiguousarray(values, dtype=f"<{path.suffix[1:]}").tobytes())


class _DocumentWriter:
    """First pass: nodes and texts in their final form, edges and references as they come."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self.folder, self.scratch = folder, scratch
        self.num_nodes = self.num_passages = 0
        self.docnos: set[str] = set()
        self.codes: dict[str, int] = {}
        self.links: set[str] = set()
        self.references: Counter[str] = Counter()
        self._stack = ExitStack()

    def __enter__(self) -> _DocumentWriter:
        self._arrays = self._stack.enter_context(ArrayFiles())
        self._texts = self._stack.enter_context(TextWriter(self.folder))
        self._ids = self._stack.enter_context(writing_ids(self.folder / DOCNOS))
        for name in ("node_offsets", "passage_offsets"):
            self._arrays.append(self.folder, name, np.zeros(1))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def add(self, documents: list[StructuredDocument]) -> None:
        """Adds documents after those before."""
        first_document = len(self.docnos)
        for document in documents:
            self._add_docno(document.docno)
        parts = extract(documents, self.num_nodes)
        if self.num_nodes + len(parts.texts) > MAX_NODES:
            raise ValueError(f"a graph can have {MAX_NODES:,} nodes at most: split the corpus")
        for relation, pairs in parts.edges.items():
            self._arrays.append(self.scratch, f"{relation}.pairs", pairs)
            self.links.add(relation)
        for relation, references in parts.references.items():
            targets = [docno.encode("utf-8") for docno in references.docnos]
            for name, values in {
                "sources": references.sources,
                "passages": references.passages,
                "lengths": np.array([len(docno) for docno in targets]),
                "utf8": np.frombuffer(b"".join(targets), dtype=np.uint8),
            }.items():
                self._arrays.append(self.scratch, f"{relation}.{name}", values)
            self.references[relation] += len(targets)
        codes = [
            (document, self.codes.setdefault(code, len(self.codes)))
            for document, codes in enumerate(parts.codes, first_document)
            for code in codes
        ]
        self._arrays.append(self.scratch, "document_codes.pairs", np.array(codes, dtype=np.int64).reshape(-1, 2))
        self._add_nodes(parts, first_document)

    def _add_docno(self, docno: str) -> None:
        if docno in self.docnos:
            raise ValueError(f"document {docno!r} comes twice: docnos must be unique")
        if "\0" in docno:
            raise ValueError(f"document {docno!r}: a docno must not contain NUL characters")
        self.docnos.add(docno)
        self._ids.add(docno)

    def _add_nodes(self, parts: Parts, first_document: int) -> None:
        self._texts.extend(parts.texts)
        document = np.repeat(np.arange(len(parts.docnos)), parts.node_counts)
        passages = np.flatnonzero(parts.node_type == 0)
        passage_counts = np.bincount(document[passages], minlength=len(parts.docnos))
        for name, values in {
            "node_type": parts.node_type,
            "parent": parts.parent,
            "document": first_document + document,
            "roots": self.num_nodes + np.flatnonzero(parts.parent < 0),
            "node_offsets": self.num_nodes + np.cumsum(parts.node_counts),
            "passage_offsets": self.num_passages + np.cumsum(passage_counts),
            "passage_nodes": self.num_nodes + passages,
        }.items():
            self._arrays.append(self.folder, name, values)
        self.num_nodes += len(parts.texts)
        self.num_passages += len(passages)
