"""Builds document graphs: from documents to arrays of nodes and edges, in memory or on disk."""

from __future__ import annotations

import json
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.documents.document import (
    NO_PARENT,
    SECTION,
    StructuredDocument,
    passage_id,
    split_passage_id,
)
from pyterrier_graph.graphs.csr import CSR, NO_EDGES, adjacency, offsets
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

TEXTS_AT_ONCE = 4096
WHOLE_DOCUMENT = -1  # the number of a passage, in a reference to a document
CODES = "codes.json"
PASSAGES = "passages.npids"

Arrays = dict[str, np.ndarray]  # by name


class GraphBuilder:
    """Collects the nodes and edges of documents.

    Graphs in memory and on disk have the same arrays, which are made here. Whoever builds a graph stores the ids and
    texts of its nodes.

    Attributes:
        documents: Document numbers by docno.
        unresolved: Number of references per relation whose target is not in the graph; counted by :meth:`edges`.
    """

    def __init__(self) -> None:
        self.documents: dict[str, int] = {}
        self.unresolved: dict[str, int] = {}
        self._codes: list[tuple[str, ...]] = []  # of each document
        self._node_counts = array("q")  # of each document
        self._node_type = array("B")
        self._parent = array("q")
        self._titled = array("B")  # whether each node is a section with a title
        # by relation, the integers of all links (source, target) and references (source, target, passage)
        self._links: dict[str, array[int]] = defaultdict(lambda: array("q"))
        self._references: dict[str, array[int]] = defaultdict(lambda: array("q"))
        self._targets: dict[str, int] = {}  # docnos that references name, numbered

    def add(self, document: StructuredDocument) -> None:
        """Adds a document; raises ValueError if its docno is repeated."""
        if document.docno in self.documents:
            advice = "docnos must be unique, and the rows of a document must follow one another"
            raise ValueError(f"document {document.docno!r} comes twice: {advice}")
        self.documents[document.docno] = len(self.documents)
        self._codes.append(document.codes)
        self._node_counts.append(len(document.nodes))
        start = len(self._parent)  # the number of its first node
        for kind, text, parent in document.nodes:
            is_section = kind == SECTION
            is_root = parent == NO_PARENT
            self._node_type.append(SECTION_TYPE if is_section else PASSAGE_TYPE)
            self._parent.append(NO_PARENT if is_root else start + parent)
            self._titled.append(is_section and bool(text.strip()))
        for relation, source, target in document.links:
            self._links[relation].extend((start + source, start + target))
        for relation, source, identifier in document.references:
            docno, passage = split_passage_id(identifier)
            target = self._targets.setdefault(docno, len(self._targets))
            if passage is None:
                passage = WHOLE_DOCUMENT
            self._references[relation].extend((start + source, target, passage))

    def nodes(self) -> Arrays:
        """The arrays of nodes, documents and passages, as :class:`HeteroGraph` describes them."""
        node_type = np.array(self._node_type)
        parent = np.array(self._parent)
        node_counts = np.array(self._node_counts)
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

    def edges(self, nodes: Arrays) -> Arrays:
        """Edges i -> j of all relations that have some, shape (2, edges). Takes what :meth:`nodes` returned.

        Raises ValueError if the name of a link or reference cannot be a relation.
        """
        for relation in (*self._links, *self._references):
            check_relation_name(relation)
        edges = self._structure(nodes)
        for relation, links in self._links.items():
            pairs = np.array(links).reshape(-1, 2)
            edges[relation] = pairs.T
        for relation, references in sorted(self._references.items()):
            triples = np.array(references).reshape(-1, 3)
            resolved = self._resolved(triples, nodes)  # (2, references)
            is_unknown = resolved[1] < 0
            self.unresolved[relation] = int(is_unknown.sum())
            from_links = edges.get(relation, NO_EDGES)
            from_references = resolved[:, ~is_unknown]
            edges[relation] = np.concatenate([from_links, from_references], axis=1)
        return edges

    def _structure(self, nodes: Arrays) -> Arrays:
        """The edges that follow from the order and the tree of nodes."""
        passages = nodes["passage_nodes"]
        document = nodes["document"][passages]
        has_next = document[1:] == document[:-1]  # in the same document, (passages - 1,)
        passage = passages[:-1][has_next]
        next_passage = passages[1:][has_next]
        parent = nodes["parent"]
        inner = np.flatnonzero(parent != NO_PARENT)
        is_titled = np.array(self._titled, dtype=bool)
        title = nearest_titled(parent, is_titled)
        under_title = np.flatnonzero(title != NO_PARENT)
        return {
            ORDER: np.stack([passage, next_passage]),
            STRUCTURAL: np.stack([inner, parent[inner]]),
            TITLE: np.stack([under_title, title[under_title]]),
        }

    def _resolved(self, references: np.ndarray, nodes: Arrays) -> np.ndarray:
        """The source and the target of each reference, -1 for a target that does not exist; shape (2, references)."""
        source, target, passage = references.T
        numbers = [self.documents.get(docno, -1) for docno in self._targets]
        document = np.array(numbers)[target]
        document_passages = CSR(nodes["passage_offsets"], nodes["passage_nodes"])
        node = document_passages.element(document, passage)
        exists = document >= 0
        to_root = exists & (passage == WHOLE_DOCUMENT)
        node[to_root] = nodes["roots"][document[to_root]]
        return np.stack([source, node])

    def codes(self) -> tuple[list[str], CSR]:
        """The names of all codes in alphabetical order, and the codes of each document as positions in them."""
        counts = [len(codes) for codes in self._codes]
        document = np.repeat(np.arange(len(counts)), counts)
        of_documents = list(chain.from_iterable(self._codes))
        values = np.array(of_documents, dtype=object)
        code, names = pd.factorize(values, sort=True)
        return names.tolist(), CSR.distinct(document, code, len(counts))


def passage_ids_of(document: StructuredDocument) -> Sequence[str]:
    """The ids of a document's passages: its own, or ``docno%pN``."""
    if document.passage_ids:
        return document.passage_ids
    numbers = range(len(document.passages()))
    return [passage_id(document.docno, number) for number in numbers]


def sparse_rows(
    edges: Arrays, num_nodes: int, document_codes: CSR, num_codes: int
) -> Iterator[tuple[str, CSR]]:
    """Sparse rows, by name, of all relations and of the codes of documents, in both directions."""
    for relation in relation_names(edges)[::2]:  # each is followed by its inverse
        forward, back = adjacency(edges.get(relation, NO_EDGES), num_nodes)
        yield relation, forward
        yield inverse(relation), back
    yield "document_codes", document_codes
    codes = document_codes.indices
    documents = document_codes.row_index
    yield "code_documents", CSR.group(codes, documents, num_codes)


def build(
    folder: Path, documents: Iterable[StructuredDocument], *, verbose: bool = False
) -> dict[str, Any]:
    """Writes all files of a graph into an empty folder, and returns the entries of ``pt_meta.json``.

    Memory holds the docnos, codes, nodes and edges of all documents.
    """
    builder = GraphBuilder()
    with ArrayWriter(folder) as arrays:
        nodes = _write_nodes(folder, documents, builder, arrays, verbose=verbose)
        edges = builder.edges(nodes)
        code_names, document_codes = builder.codes()
        counts = {}
        num_nodes = len(nodes["node_type"])
        for name, rows in sparse_rows(edges, num_nodes, document_codes, len(code_names)):
            append_rows(arrays, name, rows)
            counts[name] = len(rows.indices)
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


def append_rows(arrays: ArrayWriter, name: str, rows: CSR) -> None:
    """Writes sparse rows and their data into files that begin with their name."""
    arrays.append(f"{name}.indptr", rows.indptr)
    arrays.append(f"{name}.indices", rows.indices)
    for column, values in rows.data.items():
        arrays.append(f"{name}.{column}", values)


def _write_nodes(
    folder: Path,
    documents: Iterable[StructuredDocument],
    builder: GraphBuilder,
    arrays: ArrayWriter,
    *,
    verbose: bool,
) -> Arrays:
    """Adds documents to the builder, writes their ids, texts and nodes, and returns the arrays of nodes."""
    has_own_ids = False
    texts: list[str] = []  # not written yet
    bar = pt.tqdm(documents, desc="reading documents", unit="doc", delay=1, disable=not verbose)
    with (
        writing_ids(folder / DOCNOS) as docnos,
        writing_ids(folder / PASSAGES) as passage_ids,
    ):
        for document in bar:
            builder.add(document)
            texts += [node.text for node in document.nodes]
            if len(texts) >= TEXTS_AT_ONCE:
                arrays.append_texts(texts)
                texts = []
            docnos.add(document.docno)
            for identifier in passage_ids_of(document):
                passage_ids.add(identifier)
            if document.passage_ids:
                has_own_ids = True
        arrays.append_texts(texts)
        nodes = builder.nodes()
        if not len(nodes["passage_nodes"]):
            raise ValueError("a graph needs documents with passages, the corpus has none")
    for name, values in nodes.items():
        arrays.append(name, values)
    if has_own_ids:
        check_unique(folder / PASSAGES)
    return nodes
