"""The interface of all graphs over passages, and graphs in memory."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from pyterrier_graph.documents import SECTION_SEPARATOR, StructuredDocument, passage_id, split_passage_id
from pyterrier_graph.graphs.convert import to_hetero_data, to_networkx
from pyterrier_graph.graphs.csr import CSR, ranges
from pyterrier_graph.graphs.extraction import NODE_TYPES, Parts, extract
from pyterrier_graph.graphs.ids import NO_NUMBER, parse_id, some
from pyterrier_graph.graphs.references import Places, locate, resolve
from pyterrier_graph.graphs.relations import inverse, relation_names

PASSAGE_TYPE = NODE_TYPES.index("passage")
SECTION_TYPE = NODE_TYPES.index("section")
TITLE_SEPARATOR = " - "


def _stored_array(name: str, meaning: str) -> Any:
    """A property that is one of the arrays of which a graph consists."""
    return property(lambda graph: graph._array(name), doc=meaning)


class HeteroGraph(ABC):
    """A graph of sections and passages whose edges have a type (Albarede et al. 2023, Sect. 3.1).

    Along an edge i -> j, node i aggregates from its neighbor j (paper: ``e_ij``, Eq. 1). Row i of a relation's
    adjacency has the neighbors of node i.

    * ``order``: from a passage to the next passage of its document
    * ``structural``: from a passage or section to the section that holds it
    * ``title``: from a passage or section to the nearest section above that has a title (not in the paper)
    * ``internal``: from the source of a link to its target, in the same document
    * ``external``: from a node that refers to another document to the root section of that document, or to the passage
      that is named
    * other names that links and references of the documents have
    * ``<name>_i``: the inverse of each relation

    There is at most one edge of a relation from one node to another, and none from a node to the same node.

    Nodes are numbered from 0, document by document and in document order. ``len(graph)`` is the number of documents.
    """

    relations: tuple[str, ...]
    """Names of all relations: the paper's eight, ``title``, ``title_i``, then others, each followed by its inverse."""

    unresolved: Mapping[str, int]
    """Per relation the number of references to documents or passages that are not in the graph."""

    code_names: Sequence[str]
    """Names of the documents' codes, by number."""

    own_ids: bool
    """Whether passages have ids of their own, instead of ``docno%pN``."""

    @abstractmethod
    def _array(self, name: str) -> np.ndarray:
        """One of the arrays that the graph consists of."""

    @abstractmethod
    def _texts(self, nodes: np.ndarray) -> list[str]:
        """Texts of nodes."""

    @abstractmethod
    def _documents(self, docnos: list[str]) -> np.ndarray:
        """Document numbers, int64; -1 for a docno that is not in the graph."""

    @abstractmethod
    def _docnos(self, documents: np.ndarray) -> list[str]:
        """Docnos by document number."""

    @abstractmethod
    def _passage_numbers(self, identifiers: list[str]) -> np.ndarray:
        """Positions of passages in ``passage_nodes`` by their own ids, int64; -1 for an id that is not in the graph."""

    @abstractmethod
    def _passage_ids(self, numbers: np.ndarray) -> list[str]:
        """Own ids of passages by their positions in ``passage_nodes``."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A digest of all texts, ids and relations: it tells this graph from any other."""

    def __len__(self) -> int:
        return len(self.roots)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.node_type)

    node_type = _stored_array("node_type", "Per node 0 for a passage and 1 for a section; uint8.")
    parent = _stored_array("parent", "Per node the section that holds it, -1 for a document's root section; int64.")
    document = _stored_array("document", "Per node the number of its document; int64.")
    roots = _stored_array("roots", "Per document its root section; int64.")
    node_offsets = _stored_array("node_offsets", "First node per document, and the end; (documents + 1,), int64.")
    passage_offsets = _stored_array(
        "passage_offsets", "Per document the position of its first passage in ``passage_nodes``, and the end; int64."
    )
    passage_nodes = _stored_array("passage_nodes", "The nodes that are passages, ascending; int64.")

    @property
    def document_codes(self) -> CSR:
        """Document -> numbers of its codes."""
        return self._adjacency("document_codes")

    @property
    def code_documents(self) -> CSR:
        """Code -> numbers of the documents that have it."""
        return self._adjacency("code_documents")

    def adjacency(self, relation: str) -> CSR:
        """The edges of a relation, as compressed rows; KeyError if the graph has no such relation."""
        if relation not in self.relations:
            raise KeyError(f"no relation {relation!r}: this graph has {', '.join(self.relations)}")
        return self._adjacency(relation)

    def neighbors(self, nodes: np.ndarray, relation: str) -> tuple[np.ndarray, np.ndarray]:
        """The neighbors of some nodes, whose numbers may repeat: per edge the position in ``nodes``, and the neighbor.

        A KeyError says that there is no such relation, an IndexError that there is no such node.
        """
        return self.adjacency(relation).select(nodes)

    def texts(self, nodes: np.ndarray, *, titles: bool = False) -> list[str]:
        """Texts of nodes; ``titles`` puts the titles of sections before passages: ``"title - section: passage"``."""
        nodes = np.asarray(nodes, dtype=np.int64)
        texts = self._texts(nodes)
        if not titles:
            return texts
        is_passage = self.node_type[nodes] == PASSAGE_TYPE
        return [
            f"{title}: {text}" if passage and title else text
            for passage, title, text in zip(is_passage, self.titles(nodes), texts, strict=True)
        ]

    def titles(self, nodes: np.ndarray) -> list[str]:
        """Per node the titles of its sections, from the root down, without empty ones: ``"title - section"``."""
        levels: list[np.ndarray] = []
        above: np.ndarray = self.parent[np.asarray(nodes, dtype=np.int64)]
        while (above >= 0).any():
            levels.append(above)
            above = np.where(above >= 0, self.parent[above], -1)
        if not levels:
            return [""] * len(above)
        sections = np.unique(np.concatenate(levels))
        sections = sections[sections >= 0]
        title = dict(zip(sections.tolist(), self._texts(sections), strict=True))
        paths = zip(*(level.tolist() for level in reversed(levels)), strict=True)
        return [TITLE_SEPARATOR.join(title[section] for section in path if title.get(section)) for path in paths]

    def nodes_of(self, identifiers: Sequence[str]) -> np.ndarray:
        """Nodes by id, of a passage (``docno%pN``, or its own id) or section (``docno%sN``); shape (n,), int64.

        A KeyError names up to three of those that are not in the graph.
        """
        identifiers = list(identifiers)
        nodes = self.find(identifiers)
        if (nodes < 0).any():
            self._raise_unknown([identifiers[row] for row in np.flatnonzero(nodes < 0)])
        return nodes

    def find(self, identifiers: Sequence[str]) -> np.ndarray:
        """As :meth:`nodes_of`, but -1 for an id that is not in the graph, or is that of a document."""
        identifiers = [*identifiers]
        nodes = np.full(len(identifiers), -1, dtype=np.int64)
        if self.own_ids:
            numbers = self._passage_numbers([name if isinstance(name, str) else "" for name in identifiers])
            nodes[numbers >= 0] = self.passage_nodes[numbers[numbers >= 0]]
        others = np.flatnonzero(nodes < 0)
        split = [parse_id(identifiers[row]) for row in others.tolist()]
        documents = self._documents([docno for docno, _, _ in split])
        number = np.array([number for _, number, _ in split], dtype=np.int64)
        is_section = np.array([is_section for _, _, is_section in split], dtype=bool)
        passages = np.flatnonzero(~is_section & (number != NO_NUMBER))
        if not self.own_ids:
            nodes[others[passages]] = locate(documents[passages], number[passages], self._places)
        sections = np.flatnonzero(is_section)
        if len(sections):
            places = (self.roots, self.node_offsets - self.passage_offsets, self._section_nodes)
            nodes[others[sections]] = locate(documents[sections], number[sections], places)
        return nodes

    def ids_of(self, nodes: np.ndarray) -> list[str]:
        """Ids of nodes: ``docno%pN``, or own ids, for passages, and ``docno%sN`` for sections.

        N counts a document's passages, or sections, from 0.
        """
        nodes = np.asarray(nodes, dtype=np.int64)
        is_passage = self.node_type[nodes] == PASSAGE_TYPE
        position = np.searchsorted(self.passage_nodes, nodes)
        ids = np.empty(len(nodes), dtype=object)
        numbered = np.arange(len(nodes))
        if self.own_ids:
            ids[is_passage] = np.array(self._passage_ids(position[is_passage]), dtype=object)
            numbered = np.flatnonzero(~is_passage)
        document = self.document[nodes[numbered]]
        passage = position[numbered] - self.passage_offsets[document]
        section = nodes[numbered] - self.node_offsets[document] - passage
        for row, docno, n, m in zip(numbered, self._docnos(document), passage.tolist(), section.tolist(), strict=True):
            ids[row] = passage_id(docno, n) if is_passage[row] else f"{docno}{SECTION_SEPARATOR}{m}"
        return ids.tolist()

    def document_of(self, docnos: Sequence[str]) -> np.ndarray:
        """Document numbers by docno, shape (n,), int64; KeyError, which names up to three, if some are unknown."""
        docnos = list(docnos)
        documents = self._documents([docno if isinstance(docno, str) else "" for docno in docnos])
        if (documents < 0).any():
            unknown = [docnos[row] for row in np.flatnonzero(documents < 0)]
            advice = "was the graph built from another corpus?"
            if any(isinstance(docno, str) and split_passage_id(docno)[1] is not None for docno in unknown):
                advice = "these are ids of passages, documents are needed: pt.text.max_passage() folds them"
            raise KeyError(f"{some(unknown, 'document')} not in the graph; {advice}")
        return documents

    def docnos_of(self, documents: np.ndarray) -> list[str]:
        """Docnos by document number."""
        return self._docnos(np.asarray(documents, dtype=np.int64))

    def passages_of_documents(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The passages of some documents, in order: per passage the position in ``documents``, and the node."""
        return CSR(self.passage_offsets, self.passage_nodes).select(documents)

    def nodes_of_documents(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All nodes of some documents: per node the position in ``documents``, and the node."""
        starts = self.node_offsets[documents]
        lengths = self.node_offsets[documents + 1] - starts
        return np.repeat(np.arange(len(starts)), lengths), ranges(starts, lengths)[1]

    def codes_of(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The codes of some documents: the position in ``documents``, and the code's number (see ``code_names``)."""
        return self.document_codes.select(documents)

    def summary(self) -> dict[str, Any]:
        """Numbers of documents, sections, passages, codes, edges per relation, and unresolved references."""
        passages = len(self.passage_nodes)
        return {
            "documents": len(self),
            "sections": self.num_nodes - passages,
            "passages": passages,
            "codes": len(self.code_names),
            "edges": {relation: len(self.adjacency(relation).indices) for relation in self.relations},
            "unresolved": dict(self.unresolved),
        }

    to_hetero_data = to_hetero_data
    to_networkx = to_networkx

    def _repr_html_(self) -> str:
        from pyterrier_graph.plots.graph_html import graph_html

        return graph_html(self, type(self).__name__, ["graph.to_networkx()"])

    def _adjacency(self, name: str) -> CSR:
        return CSR(self._array(f"{name}.indptr"), self._array(f"{name}.indices"))

    @property
    def _places(self) -> Places:
        return self.roots, self.passage_offsets, self.passage_nodes

    @cached_property
    def _section_nodes(self) -> np.ndarray:
        return np.flatnonzero(self.node_type == SECTION_TYPE)

    def _raise_unknown(self, unknown: list[Any]) -> None:
        example = unknown[0]
        docno = parse_id(example)[0]
        document = int(self._documents([docno])[0])
        if not isinstance(example, str):
            advice = "ids are text"
        elif document < 0:
            advice = "was the graph built from another corpus?"
        elif docno == example:
            advice = "these are ids of documents, passages are needed: put graph.passages() before"
        else:
            passages = int(np.diff(self.passage_offsets[document : document + 2])[0])
            sections = int(np.diff(self.node_offsets[document : document + 2])[0]) - passages
            advice = f"{docno!r} has {passages} passages and {sections} sections: was it split in another way?"
        raise KeyError(f"{some(unknown, 'node')} not in the graph; {advice}")


class MemoryGraph(HeteroGraph):
    """A graph in memory, of parts of documents. References to what is not among them are counted, and left out."""

    def __init__(self, parts: Parts) -> None:
        self._node_texts = parts.texts
        self._docno_list = parts.docnos
        self._document_by_docno = {docno: number for number, docno in enumerate(parts.docnos)}
        if len(self._document_by_docno) < len(parts.docnos):
            raise ValueError("two documents have the same docno")
        self.own_ids, self._passage_id_list = bool(parts.passage_ids), parts.passage_ids
        self._passage_by_id = {identifier: number for number, identifier in enumerate(parts.passage_ids)}
        if len(self._passage_by_id) < len(parts.passage_ids):
            raise ValueError("two passages have the same id")
        self._arrays = parts.arrays()
        for name in ("node_offsets", "passage_offsets"):
            self._arrays[name] = np.append(0, self._arrays[name])
        edges, unresolved = dict(parts.edges), {}
        for relation, references in parts.references.items():
            pairs, unresolved[relation] = resolve(references, self._documents(references.docnos), self._places)
            edges[relation] = np.concatenate([edges[relation], pairs]) if relation in edges else pairs
        self.unresolved = unresolved
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
        """The graph of some documents; ValueError if two have the same docno, or a relation has a bad name."""
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

    def _passage_numbers(self, identifiers: list[str]) -> np.ndarray:
        return np.array([self._passage_by_id.get(identifier, -1) for identifier in identifiers], dtype=np.int64)

    def _passage_ids(self, numbers: np.ndarray) -> list[str]:
        return [self._passage_id_list[number] for number in numbers.tolist()]
