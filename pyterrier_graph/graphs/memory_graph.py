"""The graph of documents, in memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from pyterrier_graph.documents import StructuredDocument
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.extraction import Parts, extract, resolve
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.graphs.relations import inverse, relation_names


class MemoryGraph(HeteroGraph):
    """A graph in memory.

    Args:
        parts: The documents' nodes and relations. References whose target is not among them are counted, and left out.
    """

    def __init__(self, parts: Parts) -> None:
        self._node_texts = parts.texts
        self._docno_list = parts.docnos
        self._document_by_docno = {docno: number for number, docno in enumerate(parts.docnos)}
        if len(self._document_by_docno) < len(parts.docnos):
            raise ValueError("two documents have the same docno")
        self._arrays = parts.arrays()
        for name in ("node_offsets", "passage_offsets"):
            self._arrays[name] = np.append(0, self._arrays[name])
        edges, self.unresolved = self._with_references(parts)
        self.relations = relation_names([*edges])
        no_edges = np.empty((0, 2), dtype=np.int64)
        for relation in self.relations[::2]:
            pairs = edges.get(relation, no_edges)
            self._store(relation, inverse(relation), pairs, self.num_nodes, self.num_nodes)
        self.code_names = sorted({code for codes in parts.codes for code in codes})
        numbers = {code: number for number, code in enumerate(self.code_names)}
        codes = [(document, numbers[code]) for document, codes in enumerate(parts.codes) for code in codes]
        pairs = np.array(codes, dtype=np.int64).reshape(-1, 2)
        self._store("document_codes", "code_documents", pairs, len(self), len(numbers))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self)} documents, {len(self.passage_nodes)} passages>"

    @classmethod
    def from_documents(cls, documents: Sequence[StructuredDocument]) -> MemoryGraph:
        """The graph of some documents.

        Raises:
            ValueError: If two have the same docno, or a link or reference has a name that no relation can have.
        """
        return cls(extract(documents))

    def fingerprint(self) -> str:
        """A digest of all texts, ids and relations. It differs from that of the same graph on disk."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        nodes = np.arange(self.num_nodes)
        total = hashlib.sha256(json.dumps([self._node_texts, self.ids_of(nodes), self.code_names]).encode())
        for name, array in sorted(self._arrays.items()):
            total.update(name.encode() + np.ascontiguousarray(array, dtype=np.int64).tobytes())
        return total.hexdigest()

    def _with_references(self, parts: Parts) -> tuple[dict[str, np.ndarray], dict[str, int]]:
        edges, unresolved = dict(parts.edges), {}
        for relation, references in parts.references.items():
            pairs, unresolved[relation] = resolve(references, self._documents(references.docnos), self._places)
            edges[relation] = np.concatenate([edges[relation], pairs]) if relation in edges else pairs
        return edges, unresolved

    def _store(self, name: str, back: str, pairs: np.ndarray, rows: int, columns: int) -> None:
        """Compresses pairs i, j in both directions."""
        i, j = pairs.T
        for relation, adjacency in (name, CSR.distinct(i, j, rows)), (back, CSR.distinct(j, i, columns)):
            self._arrays |= {f"{relation}.indptr": adjacency.indptr, f"{relation}.indices": adjacency.indices}

    def _array(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def _texts(self, nodes: np.ndarray) -> list[str]:
        return [self._node_texts[node] for node in nodes.tolist()]

    def _documents(self, docnos: list[str]) -> np.ndarray:
        return np.array([self._document_by_docno.get(docno, -1) for docno in docnos], dtype=np.int64)

    def _docnos(self, documents: np.ndarray) -> list[str]:
        return [self._docno_list[document] for document in documents.tolist()]
