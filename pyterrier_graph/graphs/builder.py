"""Writes a document graph to disk."""

import json
import logging
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyterrier as pt
from npids.builder import FwdLookupBuilder
from npids.lookup import Lookup

from pyterrier_graph.documents import StructuredDocument
from pyterrier_graph.graphs.array_files import (
    DOCNOS,
    ArrayFiles,
    TextReader,
    TextWriter,
    array_file,
    digest,
    read_array,
)
from pyterrier_graph.graphs.csr import write_compressed
from pyterrier_graph.graphs.extraction import extract
from pyterrier_graph.graphs.ids import ids_of, numbers_of, writing_ids
from pyterrier_graph.graphs.references import References, resolve
from pyterrier_graph.graphs.relations import relation_names

BATCH = 1 << 14
MAX_NODES = 1 << 32
CODES = "codes.json"
PASSAGES = "passages.npids"  # where passages have ids of their own

logger = logging.getLogger(__name__)


def build(folder: Path, documents: Iterable[StructuredDocument], *, verbose: bool = False) -> dict[str, Any]:
    """Writes all files of a graph into an empty folder, and returns what ``pt_meta.json`` is to say of them.

    In memory there are a batch of documents, all docnos, the names of the codes, and a million edges while a relation
    is sorted. Everything else is on disk.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix="scratch-") as name:
        scratch = Path(name)
        with _DocumentWriter(folder, scratch) as writer:
            documents = pt.tqdm(documents, desc="reading documents", unit="doc", delay=1, disable=not verbose)
            for batch in _batches(documents):
                writer.add(batch)
            if not writer.docnos:
                raise ValueError("a graph needs documents, the corpus has none")
        if writer.passage_ids is not None:
            _check_passage_ids(folder)
        num_documents, num_codes = len(writer.docnos), len(writer.codes)
        (folder / CODES).write_text(json.dumps([*writer.codes]), encoding="utf-8")
        unresolved = {relation: _resolve(folder, scratch, relation) for relation in writer.targets}
        names = relation_names([*writer.links, *unresolved])
        rows = dict.fromkeys(names, writer.num_nodes) | {"document_codes": num_documents, "code_documents": num_codes}
        sizes: dict[str, int] = {}
        directions = [*zip([*rows][::2], [*rows][1::2], strict=True)]  # each relation is followed by its inverse
        for there, back in pt.tqdm(directions, desc="sorting edges", delay=1, disable=not verbose):
            array_file(scratch, f"{there}.pairs").touch()  # a relation without edges has no file yet
            pairs = read_array(scratch, f"{there}.pairs").reshape(-1, 2)
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
        "own_ids": writer.passage_ids is not None,
        "sha256": digest(folder),
    }


def _check_passage_ids(folder: Path) -> None:
    """Raises ValueError if two passages have the same id."""
    with Lookup(folder / PASSAGES) as lookup:
        for start in range(0, len(lookup), BATCH):
            numbers = np.arange(start, min(start + BATCH, len(lookup)))
            ids = ids_of(lookup, numbers)
            twice = np.flatnonzero(numbers_of(lookup, ids) != numbers)
            if len(twice):
                raise ValueError(f"passage {ids[twice[0]]!r} comes twice: the ids of passages must be unique")


def _batches(documents: Iterable[StructuredDocument]) -> Iterator[list[StructuredDocument]]:
    """Groups documents so that each group has about ``BATCH`` nodes."""
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


def _resolve(folder: Path, scratch: Path, relation: str) -> int:
    """Turns references of one relation into edges; returns the number of those whose target is not in the corpus."""
    roots, offsets, nodes = (read_array(folder, name) for name in ("roots", "passage_offsets", "passage_nodes"))
    sources, passages = (read_array(scratch, f"{relation}.{name}") for name in ("sources", "passages"))
    targets = TextReader(scratch / relation, len(sources))
    unresolved = 0
    with Lookup(folder / DOCNOS) as docnos, ArrayFiles() as files:
        for start in range(0, len(sources), BATCH):
            part = slice(start, start + BATCH)
            names = targets.read(np.arange(len(sources))[part])
            references = References(sources[part], names, passages[part])
            documents = np.array(docnos.inv[names], dtype=np.int64)
            pairs, missing = resolve(references, documents, (roots, offsets, nodes))
            unresolved += missing
            files.append(scratch, f"{relation}.pairs", pairs)
    if unresolved:
        logger.warning("%d of %d references %r lead out of the corpus", unresolved, len(sources), relation)
    return unresolved


class _DocumentWriter(ExitStack):
    """Writes nodes and texts, and collects edges and references in scratch files, to be sorted later."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        super().__init__()
        self.folder, self.scratch = folder, scratch
        self.num_nodes = self.num_passages = 0
        self.docnos: set[str] = set()
        self.codes: dict[str, int] = {}
        self.links: set[str] = set()
        self.targets: dict[str, TextWriter] = {}  # by relation: the docnos that references name
        self._arrays = self.enter_context(ArrayFiles())
        self._texts = self.enter_context(TextWriter(folder))
        self._ids = self.enter_context(writing_ids(folder / DOCNOS))
        self.passage_ids: FwdLookupBuilder | None = None
        for name in ("node_offsets", "passage_offsets"):
            self._arrays.append(folder, name, np.zeros(1))

    def add(self, documents: list[StructuredDocument]) -> None:
        """Adds documents after those before."""
        first_document = len(self.docnos)
        for document in documents:
            docno = document.docno
            if docno in self.docnos:
                advice = "the rows of a document must follow one another" if document.passage_ids else "must be unique"
                raise ValueError(f"document {docno!r} comes twice: {advice}")
            if "\0" in docno:
                raise ValueError(f"document {docno!r}: a docno must not contain NUL characters")
            self.docnos.add(docno)
            self._ids.add(docno)
        parts = extract(documents, self.num_nodes)
        if parts.passage_ids and self.passage_ids is None and not self.num_passages:
            self.passage_ids = self.enter_context(writing_ids(self.folder / PASSAGES))
        passages = int((parts.node_type == 0).sum())
        if passages and bool(parts.passage_ids) != (self.passage_ids is not None):
            first = f"documents {parts.docnos[0]!r} and following"
            raise ValueError(f"{first} have other ids of passages than documents before: give all passage_ids, or none")
        if self.passage_ids is not None:
            for identifier in parts.passage_ids:
                self.passage_ids.add(identifier)
        if self.num_nodes + len(parts.texts) > MAX_NODES:
            raise ValueError(f"a graph can have {MAX_NODES:,} nodes at most: split the corpus")
        for relation, pairs in parts.edges.items():
            self._arrays.append(self.scratch, f"{relation}.pairs", pairs)
            self.links.add(relation)
        for relation, references in parts.references.items():
            if relation not in self.targets:
                (self.scratch / relation).mkdir()
                self.targets[relation] = self.enter_context(TextWriter(self.scratch / relation))
            self.targets[relation].extend(references.docnos)
            self._arrays.append(self.scratch, f"{relation}.sources", references.sources)
            self._arrays.append(self.scratch, f"{relation}.passages", references.passages)
        codes = [
            (document, self.codes.setdefault(code, len(self.codes)))
            for document, codes in enumerate(parts.codes, first_document)
            for code in codes
        ]
        self._arrays.append(self.scratch, "document_codes.pairs", np.array(codes, dtype=np.int64).reshape(-1, 2))
        self._texts.extend(parts.texts)
        arrays = parts.arrays(first_document, self.num_nodes, self.num_passages)
        for name, values in arrays.items():
            self._arrays.append(self.folder, name, values)
        self.num_nodes += len(parts.texts)
        self.num_passages += len(arrays["passage_nodes"])
