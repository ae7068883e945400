"""Builds document graphs: from documents to arrays of nodes and edges, in memory or on disk."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyterrier as pt

from pyterrier_graph.documents.document import (
    NO_PARENT,
    SECTION,
    StructuredDocument,
    passage_id,
    split_passage_id,
)
from pyterrier_graph.graphs.csr import CSR, adjacency, offsets
from pyterrier_graph.graphs.hetero_graph import PASSAGE_TYPE, SECTION_TYPE
from pyterrier_graph.graphs.relations import (
    ORDER,
    STRUCTURAL,
    TITLE,
    check_relation_name,
    inverse,
    nearest_titled,
    relation_names,
)
from pyterrier_graph.storage.arrays import DOCNOS, ArrayWriter, check_unique, writing_ids

BATCH = 1024  # documents that are added at once
WHOLE_DOCUMENT = -1  # the number of a passage, in a reference to a document
CODES = "codes.json"
PASSAGES = "passages.npids"
NO_EDGES = np.empty((2, 0), dtype=np.int64)

logger = logging.getLogger(__name__)


class GraphBuilder:
    """Collects the nodes and edges of documents, batch by batch.

    Graphs in memory and on disk have the same arrays, which are made here. Whoever builds a graph stores the ids and
    texts of its nodes.

    Attributes:
        documents: Document numbers by docno.
        unresolved: Number of references per relation whose target is not in the graph; counted by :meth:`edges`.
    """

    def __init__(self) -> None:
        self.documents: dict[str, int] = {}
        self.unresolved: dict[str, int] = {}
        self._num_nodes = 0
        # batches of arrays with an entry per document or node
        self._node_counts = [np.empty(0, dtype=np.int64)]
        self._node_types = [np.empty(0, dtype=np.uint8)]
        self._parents = [np.empty(0, dtype=np.int64)]
        self._titled = [np.empty(0, dtype=bool)]
        self._codes: list[tuple[str, ...]] = []  # of each document
        # batches by relation: pairs of nodes, and triples of a node, a target and the number of a passage
        self._links: dict[str, list[np.ndarray]] = defaultdict(list)
        self._references: dict[str, list[np.ndarray]] = defaultdict(list)
        self._targets: dict[str, int] = {}  # docnos that references name, numbered

    def add(self, documents: Sequence[StructuredDocument]) -> None:
        """Adds a batch of documents.

        Raises ValueError if a docno is repeated, or the name of a link or reference cannot be a relation.
        """
        for document in documents:
            self._add_docno(document)
        self._codes += [document.codes for document in documents]
        counts = np.array([len(document.nodes) for document in documents], dtype=np.int64)
        starts = self._num_nodes + np.cumsum(counts) - counts  # first node of each document
        nodes = [node for document in documents for node in document.nodes]
        is_section = np.array([kind == SECTION for kind, _, _ in nodes], dtype=bool)
        has_text = np.array([bool(text.strip()) for _, text, _ in nodes], dtype=bool)
        parent = np.array([parent for _, _, parent in nodes], dtype=np.int64)
        inner = parent != NO_PARENT  # all but root sections
        parent[inner] += np.repeat(starts, counts)[inner]
        self._node_counts.append(counts)
        self._node_types.append(np.where(is_section, SECTION_TYPE, PASSAGE_TYPE).astype(np.uint8))
        self._parents.append(parent)
        self._titled.append(is_section & has_text)
        self._num_nodes += len(nodes)
        self._add_links(documents, starts)
        self._add_references(documents, starts)

    def _add_docno(self, document: StructuredDocument) -> None:
        docno = document.docno
        if docno in self.documents:
            advice = "must be unique"
            if document.passage_ids:
                advice = "the rows of a document must follow one another"
            raise ValueError(f"document {docno!r} comes twice: {advice}")
        self.documents[docno] = len(self.documents)

    def _add_links(self, documents: Sequence[StructuredDocument], starts: np.ndarray) -> None:
        links = defaultdict(list)
        for start, document in zip(starts.tolist(), documents, strict=True):
            for relation, source, target in document.links:
                links[relation].append((start + source, start + target))
        for relation, pairs in links.items():
            check_relation_name(relation)
            self._links[relation].append(np.array(pairs))

    def _add_references(self, documents: Sequence[StructuredDocument], starts: np.ndarray) -> None:
        references = defaultdict(list)
        for start, document in zip(starts.tolist(), documents, strict=True):
            for relation, source, identifier in document.references:
                docno, passage = split_passage_id(identifier)
                target = self._targets.setdefault(docno, len(self._targets))
                passage = WHOLE_DOCUMENT if passage is None else passage
                references[relation].append((start + source, target, passage))
        for relation, triples in references.items():
            check_relation_name(relation)
            self._references[relation].append(np.array(triples))

    def nodes(self) -> dict[str, np.ndarray]:
        """The arrays of nodes, documents and passages, as :class:`HeteroGraph` describes them."""
        node_type, parent = np.concatenate(self._node_types), np.concatenate(self._parents)
        node_counts = np.concatenate(self._node_counts)
        document = np.repeat(np.arange(len(node_counts)), node_counts)
        passages = np.flatnonzero(node_type == PASSAGE_TYPE)
        passage_counts = np.bincount(document[passages], minlength=len(node_counts))
        return {
            "node_type": node_type,
            "parent": parent,
            "document": document,
            "roots": np.flatnonzero(parent == NO_PARENT),
            "node_offsets": offsets(node_counts),
            "passage_offsets": offsets(passage_counts),
            "passage_nodes": passages,
        }

    def edges(self, nodes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Edges i -> j of all relations that have some, shape (2, edges). Takes what :meth:`nodes` returned."""
        edges = self._structure(nodes)
        for relation, links in self._links.items():
            edges[relation] = np.concatenate(links).T
        for relation, references in sorted(self._references.items()):
            pairs = self._resolved(np.concatenate(references), nodes)
            is_known = pairs[1] >= 0
            self.unresolved[relation] = int((~is_known).sum())
            former = edges.get(relation, NO_EDGES)
            edges[relation] = np.concatenate([former, pairs[:, is_known]], axis=1)
        return edges

    def _structure(self, nodes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The edges that follow from the order and the tree of nodes."""
        parent, passages = nodes["parent"], nodes["passage_nodes"]
        document = nodes["document"][passages]
        followed = np.flatnonzero(document[1:] == document[:-1])
        inner = np.flatnonzero(parent != NO_PARENT)
        title = nearest_titled(parent, np.concatenate(self._titled))
        under_title = np.flatnonzero(title != NO_PARENT)
        return {
            ORDER: np.stack([passages[followed], passages[followed + 1]]),
            STRUCTURAL: np.stack([inner, parent[inner]]),
            TITLE: np.stack([under_title, title[under_title]]),
        }

    def _resolved(self, references: np.ndarray, nodes: Mapping[str, np.ndarray]) -> np.ndarray:
        """The source and the target of each reference, -1 for a target that does not exist; shape (2, references)."""
        source, target, passage = references.T
        numbers = np.array([self.documents.get(docno, -1) for docno in self._targets])
        document = numbers[target]
        passages = CSR(nodes["passage_offsets"], nodes["passage_nodes"])
        node = passages.element(document, passage)
        is_root = (document >= 0) & (passage == WHOLE_DOCUMENT)
        node[is_root] = nodes["roots"][document[is_root]]
        return np.stack([source, node])

    def codes(self) -> tuple[list[str], CSR]:
        """The names of all codes in alphabetical order, and the codes of each document as positions in them."""
        names = sorted({code for codes in self._codes for code in codes})
        number_of = {code: number for number, code in enumerate(names)}
        document = np.repeat(np.arange(len(self._codes)), [*map(len, self._codes)])
        code = np.array([number_of[code] for code in chain(*self._codes)], dtype=np.int64)
        return names, CSR.distinct(document, code, len(self._codes))


def passage_ids_of(document: StructuredDocument) -> Sequence[str]:
    """The ids of a document's passages: its own, or ``docno%pN``."""
    if document.passage_ids:
        return document.passage_ids
    return [passage_id(document.docno, number) for number in range(len(document.passages()))]


def sparse_rows(
    edges: Mapping[str, np.ndarray], num_nodes: int, document_codes: CSR, num_codes: int
) -> Iterator[tuple[str, CSR]]:
    """Sparse rows, by name, of all relations and of the codes of documents, in both directions."""
    for relation in relation_names(edges)[::2]:  # each is followed by its inverse
        forward, back = adjacency(edges.get(relation, NO_EDGES), num_nodes)
        yield relation, forward
        yield inverse(relation), back
    yield "document_codes", document_codes
    codes, documents = document_codes.indices, document_codes.row_index
    yield "code_documents", CSR.group(codes, documents, num_codes)


def build(
    folder: Path, documents: Iterable[StructuredDocument], *, verbose: bool = False
) -> dict[str, Any]:
    """Writes all files of a graph into an empty folder, and returns the entries of ``pt_meta.json``.

    Memory holds a batch of documents, and the docnos, codes, nodes and edges of all documents.
    """
    builder = GraphBuilder()
    has_own_ids = False
    with (
        ArrayWriter(folder) as arrays,
        writing_ids(folder / DOCNOS) as docnos,
        writing_ids(folder / PASSAGES) as passage_ids,
    ):
        for batch in _batches(documents, verbose):
            builder.add(batch)
            arrays.append_texts([node.text for document in batch for node in document.nodes])
            for document in batch:
                docnos.add(document.docno)
                for identifier in passage_ids_of(document):
                    passage_ids.add(identifier)
                has_own_ids = has_own_ids or bool(document.passage_ids)
        nodes = builder.nodes()
        if not len(nodes["passage_nodes"]):
            raise ValueError("a graph needs documents with passages, the corpus has none")
        for name, values in nodes.items():
            arrays.append(name, values)
        edges = builder.edges(nodes)
        code_names, document_codes = builder.codes()
        counts = {}
        num_nodes = len(nodes["node_type"])
        for name, rows in sparse_rows(edges, num_nodes, document_codes, len(code_names)):
            arrays.append(f"{name}.indptr", rows.indptr)
            arrays.append(f"{name}.indices", rows.indices)
            counts[name] = len(rows.indices)
    if has_own_ids:
        check_unique(folder / PASSAGES)
    for relation, count in builder.unresolved.items():
        if count:
            logger.warning("references %r that lead out of the corpus: %d", relation, count)
    (folder / CODES).write_text(json.dumps(code_names), encoding="utf-8")
    relations = relation_names(edges)
    return {
        "documents": len(builder.documents),
        "nodes": num_nodes,
        "passages": len(nodes["passage_nodes"]),
        "codes": len(code_names),
        "relations": relations,
        "edges": {relation: counts[relation] for relation in relations},
        "unresolved": builder.unresolved,
    }


def _batches(
    documents: Iterable[StructuredDocument], verbose: bool
) -> Iterator[list[StructuredDocument]]:
    bar = pt.tqdm(documents, desc="reading documents", unit="doc", delay=1, disable=not verbose)
    remaining = iter(bar)
    while batch := [*islice(remaining, BATCH)]:
        yield batch
