"""Graphs in memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np

from pyterrier_graph.documents.document import StructuredDocument
from pyterrier_graph.graphs.builder import GraphBuilder, passage_ids_of, sparse_rows
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.graphs.relations import relation_names


class MemoryGraph(HeteroGraph):
    """A graph in memory, such as the graph of a query's candidates. References out of it are only counted.

    Args:
        documents: The documents.

    Raises:
        ValueError: If two documents have the same id, or a relation has a bad name.
    """

    def __init__(self, documents: Sequence[StructuredDocument]) -> None:
        builder = GraphBuilder()
        passage_ids: list[str] = []
        self._node_texts: list[str] = []
        for document in documents:
            builder.add(document)
            passage_ids += passage_ids_of(document)
            self._node_texts += [node.text for node in document.nodes]
        self.docnos = Ids(list(builder.documents))
        self.passage_ids = Ids(passage_ids)
        self._arrays = builder.nodes()
        edges = builder.edges(self._arrays)
        self.relations = relation_names(edges)
        self.unresolved = builder.unresolved
        self.code_names, document_codes = builder.codes()
        rows = sparse_rows(edges, self.num_nodes, document_codes, len(self.code_names))
        for name, csr in rows:
            self._arrays[f"{name}.indptr"] = csr.indptr
            self._arrays[f"{name}.indices"] = csr.indices

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self)} documents, {len(self.passage_nodes)} passages>"

    def fingerprint(self) -> str:
        """A digest of all texts, ids and relations."""
        ids = self.ids_of(np.arange(self.num_nodes))
        strings = json.dumps([self._node_texts, ids, self.code_names])
        digest = hashlib.sha256(strings.encode())
        for name, array in sorted(self._arrays.items()):
            digest.update(name.encode())
            digest.update(array.astype(np.int64).tobytes())
        return digest.hexdigest()

    def _array(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def _texts(self, nodes: np.ndarray) -> list[str]:
        return [self._node_texts[node] for node in nodes.tolist()]


class Ids:
    """Ids by number (``fwd``) and back (``inv``), as ``npids.Lookup`` has them on disk."""

    def __init__(self, ids: Sequence[str]) -> None:
        self.fwd = np.array(ids, dtype=object)
        self.inv = self
        self._numbers = {identifier: number for number, identifier in enumerate(ids)}

    def __getitem__(self, ids: Sequence[str]) -> list[int]:
        return [self._numbers.get(identifier, -1) for identifier in ids]
