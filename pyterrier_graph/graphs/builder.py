"""Builds document graphs: documents to arrays of nodes and edges, and these arrays to disk.

A graph on disk and a graph in memory are built from the same arrays (:func:`extract`).
"""

from __future__ import annotations

import json
import logging
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, groupby, islice
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import pyterrier as pt

from pyterrier_graph.documents.document import (
    NO_PARENT,
    PASSAGE,
    SECTION,
    Node,
    StructuredDocument,
    passage_id,
    split_passage_id,
)
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.relations import (
    ORDER,
    STRUCTURAL,
    TITLE,
    check_relation_name,
    inverse,
    nearest_titled,
    relation_names,
)
from pyterrier_graph.storage.arrays import (
    DOCNOS,
    ArrayWriter,
    check_unique,
    read_array,
    writing_ids,
)

BATCH = 1024  # documents that are added at once
WHOLE_DOCUMENT = -1  # the number of a passage, in a reference to the root section
CODES = "codes.json"
PASSAGES = "passages.npids"

LocateArrays = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Root sections, passage offsets, and passage nodes of a graph."""

DocumentOf = Callable[[Mapping[str, Any]], Any]

logger = logging.getLogger(__name__)


# --- corpora whose rows are passages already, as documents


def documents_of_rows(
    rows: Iterable[Any], document: str | DocumentOf
) -> Iterator[StructuredDocument]:
    """Documents whose passages are consecutive rows. Memory holds the rows of one document.

    Passages keep the ``docno`` of their rows as ids. The title of a document is the ``title`` of its rows. If titles
    differ, consecutive rows with the same title become a section.

    Args:
        rows: Passages: ``docno``, ``text``, and optionally ``title``.
        document: The field with the docno of a row's document (a string or an integer), or a function of the row.
    """
    for docno, group in groupby(map(_checked, rows), lambda row: _docno_of(row, document)):
        passages = [*group]
        ids = tuple(row["docno"] for row in passages)
        yield StructuredDocument(docno, (*_nodes(passages),), passage_ids=ids)


def _checked(row: Any) -> Mapping[str, Any]:
    values = [row.get(name) for name in ("docno", "text")] if isinstance(row, Mapping) else [None]
    if not all(isinstance(value, str) for value in values):
        raise ValueError(
            f"with document=, a row needs strings as 'docno' and 'text', got {row!r:.80}"
        )
    return row


def _docno_of(row: Mapping[str, Any], document: str | DocumentOf) -> str:
    docno = row.get(document) if isinstance(document, str) else document(row)
    if not isinstance(docno, str | Integral) or docno == "":
        source = f"in {document!r}" if isinstance(document, str) else "from document="
        raise ValueError(
            f"passage {row['docno']!r}: no docno of its document {source}, but {docno!r}"
        )
    return str(docno)


def _nodes(rows: list[Mapping[str, Any]]) -> Iterator[Node]:
    groups = [(title, [*group]) for title, group in groupby(rows, _title)]
    yield Node(SECTION, groups[0][0] if len(groups) == 1 else "", NO_PARENT)
    count = 1  # nodes so far
    for title, group in groups:
        parent = 0
        if title and len(groups) > 1:
            yield Node(SECTION, title, 0)
            parent = count
            count += 1
        for row in group:
            yield Node(PASSAGE, row["text"], parent)
        count += len(group)


def _title(row: Mapping[str, Any]) -> str:
    title = row.get("title")
    return title if isinstance(title, str) else ""


# --- documents as arrays: nodes, the relations that follow from their structure, links and references


@dataclass(frozen=True)
class References:
    """References of one relation, as arrays with one entry per reference."""

    sources: np.ndarray  # nodes
    docnos: list[str]  # of the documents that they name
    passages: np.ndarray  # number of the passage that they name, or WHOLE_DOCUMENT


@dataclass(frozen=True)
class Parts:
    """A batch of documents as arrays. Node numbers continue from the documents before."""

    docnos: list[str]
    codes: list[tuple[str, ...]]  # per document
    node_counts: np.ndarray  # nodes per document, int64
    node_type: np.ndarray  # 0 for each passage and 1 for each section, uint8
    parent: np.ndarray  # section that contains each node, or -1; int64
    texts: list[str]  # per node
    edges: dict[str, list[np.ndarray]]  # pairs i, j of edges i -> j by relation, (edges, 2)
    references: dict[str, list[References]]  # by relation
    passage_ids: list[str]  # per passage

    def arrays(
        self, documents: int = 0, nodes: int = 0, passages: int = 0
    ) -> dict[str, np.ndarray]:
        """The arrays of a graph by name, after ``documents``, ``nodes`` and ``passages`` of earlier batches.

        Offsets are the ends of the documents, without the 0 where the first document of a graph begins.
        """
        document = np.repeat(np.arange(len(self.docnos)), self.node_counts)
        passage = np.flatnonzero(self.node_type == 0)
        passage_counts = np.bincount(document[passage], minlength=len(self.docnos))
        return {
            "node_type": self.node_type,
            "parent": self.parent,
            "document": documents + document,
            "roots": nodes + np.flatnonzero(self.parent < 0),
            "node_offsets": nodes + np.cumsum(self.node_counts),
            "passage_offsets": passages + np.cumsum(passage_counts),
            "passage_nodes": nodes + passage,
        }


def extract(documents: Sequence[StructuredDocument], first_node: int = 0) -> Parts:
    """Numbers the nodes of documents and collects their edges.

    Raises ValueError if the name of a link or reference cannot be a relation.
    """
    nodes = [node for document in documents for node in document.nodes]
    node_counts = np.array([len(document.nodes) for document in documents], dtype=np.int64)
    starts = first_node + np.cumsum(node_counts) - node_counts
    document = np.repeat(np.arange(len(documents)), node_counts)
    is_passage = np.array([kind == PASSAGE for kind, _, _ in nodes], dtype=bool)
    parent = np.array([parent for _, _, parent in nodes], dtype=np.int64)
    inner = parent != NO_PARENT  # all but root sections
    parent[inner] += starts[document[inner]]
    links, references = _relations(documents, starts)
    number = first_node + np.arange(len(nodes))
    titled = ~is_passage & np.array([bool(text.strip()) for _, text, _ in nodes], dtype=bool)
    title = nearest_titled(np.where(inner, parent - first_node, NO_PARENT), titled)
    under_title = title != NO_PARENT
    passages = np.flatnonzero(is_passage)
    followed = np.flatnonzero(document[passages[1:]] == document[passages[:-1]])
    structure = {
        ORDER: (number[passages[followed]], number[passages[followed + 1]]),
        STRUCTURAL: (number[inner], parent[inner]),
        TITLE: (number[under_title], number[title[under_title]]),
    }
    return Parts(
        docnos=[one.docno for one in documents],
        codes=[one.codes for one in documents],
        node_counts=node_counts,
        node_type=(~is_passage).astype(np.uint8),
        parent=parent,
        texts=[text for _, text, _ in nodes],
        edges={relation: [np.stack(pairs, axis=1)] for relation, pairs in structure.items()}
        | {relation: [np.array(pairs, dtype=np.int64)] for relation, pairs in links.items()},
        references=references,
        passage_ids=[identifier for one in documents for identifier in _passage_ids(one)],
    )


def _passage_ids(document: StructuredDocument) -> Sequence[str]:
    if document.passage_ids:
        return document.passage_ids
    return [passage_id(document.docno, number) for number in range(len(document.passages()))]


def _relations(
    documents: Sequence[StructuredDocument], starts: np.ndarray
) -> tuple[dict[str, list[tuple[int, int]]], dict[str, list[References]]]:
    """Links as pairs of nodes, and references, both by relation; ``starts`` are the first nodes of the documents."""
    links: dict[str, list[tuple[int, int]]] = defaultdict(list)
    rows: dict[str, list[tuple[int, str, int]]] = defaultdict(list)
    for start, document in zip(starts.tolist(), documents, strict=True):
        for relation, source, target in document.links:
            links[relation].append((start + source, start + target))
        for relation, source, identifier in document.references:
            docno, number = split_passage_id(identifier)
            number = WHOLE_DOCUMENT if number is None else number
            rows[relation].append((start + source, sys.intern(docno), number))
    for relation in (*links, *rows):
        check_relation_name(relation)
    references = {}
    for relation, columns in rows.items():
        sources, docnos, numbers = zip(*columns, strict=True)
        references[relation] = [References(np.array(sources), [*docnos], np.array(numbers))]
    return links, references


def resolve(
    edges: Mapping[str, list[np.ndarray]],
    references: Mapping[str, list[References]],
    number_of: Mapping[str, int],
    arrays: LocateArrays,
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Edges of all relations, shape (edges, 2), and the number of references without a target, both by relation.

    ``number_of`` has document numbers by docno; for ``arrays`` see :func:`locate`.
    """
    pairs = {relation: [*batches] for relation, batches in edges.items()}
    unresolved = {}
    for relation, batches in sorted(references.items()):
        numbers = [number_of.get(docno, -1) for batch in batches for docno in batch.docnos]
        passages = np.concatenate([batch.passages for batch in batches])
        nodes = locate(np.array(numbers, dtype=np.int64), passages, arrays)
        sources = np.concatenate([batch.sources for batch in batches])
        pairs.setdefault(relation, []).append(np.stack([sources, nodes], axis=1)[nodes >= 0])
        unresolved[relation] = int((nodes < 0).sum())
    return {relation: np.concatenate(batches) for relation, batches in pairs.items()}, unresolved


def locate(documents: np.ndarray, passages: np.ndarray, arrays: LocateArrays) -> np.ndarray:
    """Nodes of passages, given by document (-1: unknown) and number (-1: root section); -1 if there is none."""
    roots, passage_offsets, passage_nodes = arrays
    nodes = np.full(len(documents), -1, dtype=np.int64)
    whole = (documents >= 0) & (passages == WHOLE_DOCUMENT)
    nodes[whole] = roots[documents[whole]]
    named = np.flatnonzero((documents >= 0) & (passages >= 0))
    position = passage_offsets[documents[named]] + passages[named]
    exists = position < passage_offsets[documents[named] + 1]
    nodes[named[exists]] = passage_nodes[position[exists]]
    return nodes


def compress(
    edges: Mapping[str, np.ndarray],
    num_nodes: int,
    codes: Sequence[Sequence[str]],
    code_names: Sequence[str],
) -> Iterator[tuple[str, CSR]]:
    """Sparse rows, by name, of all relations and of the codes of documents, in both directions."""
    no_edges = np.empty((0, 2), dtype=np.int64)
    for relation in relation_names(edges)[::2]:  # each is followed by its inverse
        i, j = edges.get(relation, no_edges).T
        i, j = i[i != j], j[i != j]
        yield relation, CSR.distinct(i, j, num_nodes)
        yield inverse(relation), CSR.distinct(j, i, num_nodes)
    number_of = {code: number for number, code in enumerate(code_names)}
    document = np.repeat(np.arange(len(codes)), [*map(len, codes)])
    code = np.array([number_of[code] for code in chain(*codes)], dtype=np.int64)
    yield "document_codes", CSR.distinct(document, code, len(codes))
    yield "code_documents", CSR.distinct(code, document, len(code_names))


# --- arrays on disk


def build(
    folder: Path, documents: Iterable[StructuredDocument], *, verbose: bool = False
) -> dict[str, Any]:
    """Writes all files of a graph into an empty folder, and returns the entries of ``pt_meta.json``.

    Memory holds a batch of documents, and all docnos, codes and edges.
    """
    with _DocumentWriter(folder) as writer:
        progress = {"desc": "reading documents", "unit": "doc", "delay": 1}
        remaining = iter(pt.tqdm(documents, disable=not verbose, **progress))
        while batch := [*islice(remaining, BATCH)]:
            writer.add(batch)
        if not writer.num_passages:
            raise ValueError("a graph needs documents with passages, the corpus has none")
    if writer.has_own_ids:
        check_unique(folder / PASSAGES)
    names = "roots", "passage_offsets", "passage_nodes"
    roots, offsets, passages = (read_array(folder, name) for name in names)
    edges, unresolved = resolve(
        writer.edges, writer.references, writer.docnos, (roots, offsets, passages)
    )
    for relation, count in unresolved.items():
        if count:
            logger.warning("references %r that lead out of the corpus: %d", relation, count)
    code_names = sorted({code for codes in writer.codes for code in codes})
    (folder / CODES).write_text(json.dumps(code_names), encoding="utf-8")
    counts: dict[str, int] = {}
    with ArrayWriter(folder) as arrays:
        for name, rows in compress(edges, writer.num_nodes, writer.codes, code_names):
            arrays.append(f"{name}.indptr", rows.indptr)
            arrays.append(f"{name}.indices", rows.indices)
            counts[name] = len(rows.indices)
    relations = relation_names(edges)
    return {
        "documents": len(writer.docnos),
        "nodes": writer.num_nodes,
        "passages": writer.num_passages,
        "codes": len(code_names),
        "relations": relations,
        "edges": {relation: counts[relation] for relation in relations},
        "unresolved": unresolved,
    }


class _DocumentWriter(ExitStack):
    """Writes nodes and texts to disk batch by batch, and collects edges, references and codes in memory."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.num_nodes = self.num_passages = 0
        self.docnos: dict[str, int] = {}
        self.codes: list[tuple[str, ...]] = []
        self.edges: dict[str, list[np.ndarray]] = defaultdict(list)
        self.references: dict[str, list[References]] = defaultdict(list)
        self._arrays = self.enter_context(ArrayWriter(folder))
        self._ids = self.enter_context(writing_ids(folder / DOCNOS))
        self._passage_ids = self.enter_context(writing_ids(folder / PASSAGES))
        self.has_own_ids = False  # whether a document names its passages
        for name in ("node_offsets", "passage_offsets"):
            self._arrays.append(name, np.zeros(1))

    def add(self, documents: list[StructuredDocument]) -> None:
        """Adds a batch of documents."""
        first_document = len(self.docnos)
        for document in documents:
            self._add_docno(document)
        parts = extract(documents, self.num_nodes)
        arrays = parts.arrays(first_document, self.num_nodes, self.num_passages)
        self._arrays.append_texts(parts.texts)
        for identifier in parts.passage_ids:
            self._passage_ids.add(identifier)
        for name, values in arrays.items():
            self._arrays.append(name, values)
        self.codes += parts.codes
        for relation, batches in parts.edges.items():
            self.edges[relation] += [pairs.astype(np.uint32) for pairs in batches]
        for relation, references in parts.references.items():
            self.references[relation] += references
        self.num_nodes += len(parts.texts)
        self.num_passages += len(arrays["passage_nodes"])

    def _add_docno(self, document: StructuredDocument) -> None:
        docno = document.docno
        if docno in self.docnos:
            rows = "the rows of a document must follow one another"
            advice = rows if document.passage_ids else "must be unique"
            raise ValueError(f"document {docno!r} comes twice: {advice}")
        if "\0" in docno:
            raise ValueError(f"document {docno!r}: a docno must not contain NUL characters")
        self.docnos[docno] = len(self.docnos)
        self._ids.add(docno)
        self.has_own_ids |= bool(document.passage_ids)
