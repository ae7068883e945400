"""The interface of all graphs over passages."""

from __future__ import annotations

import hashlib
import reprlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyterrier_graph.checks import DataWarning
from pyterrier_graph.documents.document import SECTION_SEPARATOR, split_section_id
from pyterrier_graph.graphs.csr import CSR, NO_EDGES, adjacency
from pyterrier_graph.graphs.relations import (
    INVERSE,
    STEP,
    TITLE,
    TITLES,
    inverse,
    with_inverses,
)
from pyterrier_graph.html import HtmlCard, HtmlDisplay, in_words
from pyterrier_graph.storage.arrays import ids_of, numbers_of, write_ids

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData

NODE_TYPES = ("passage", "section")
PASSAGE_TYPE, SECTION_TYPE = 0, 1
TITLE_SEPARATOR = " - "


def _stored_array(name: str, meaning: str) -> Any:
    """A property for one of the arrays that make up a graph."""
    return property(lambda graph: graph._array(name), doc=meaning)


class HeteroGraph(HtmlDisplay, ABC):
    """A graph of sections and passages with typed edges (Albarede et al. 2023, Sect. 3.1).

    Along an edge i -> j, node i aggregates from its neighbor j (paper: ``e_ij``, Eq. 1). Row i of a relation's
    adjacency holds the neighbors of node i.

    * ``order``: from a passage to the next passage of its document
    * ``structural``: from a passage or section to the section that contains it
    * ``title``: from a passage or section to the nearest section above that has a title (not in the paper)
    * ``internal``: from the source of a link to its target in the same document
    * ``external``: from a node that refers to another document to that document's root section, or to the passage that
      the reference names
    * any other name that the links and references of the documents use
    * ``<name>_i``: the inverse of each relation

    A relation has at most one edge from one node to another, and none from a node to itself.

    Nodes are numbered from 0, document by document and in document order. ``len(graph)`` is the number of documents.
    """

    relations: tuple[str, ...]
    """Names of all relations: the paper's eight, ``title``, ``title_i``, then others, each followed by its inverse."""

    code_names: Sequence[str]
    """Names of the documents' codes, by number."""

    unresolved: Mapping[str, int]
    """Number of references per relation whose target is not in the graph."""

    docnos: Any
    """Docnos by document number (``.fwd``) and back (``.inv``, -1 for unknown ones)."""

    passage_ids: Any
    """Ids of passages by position in ``passage_nodes``, and back, as ``docnos``."""

    vectors_folder: Path | None = None
    """Where models keep vectors of the nodes; None for a graph in memory."""

    node_type = _stored_array("node_type", "0 for each passage and 1 for each section; uint8.")
    parent = _stored_array(
        "parent", "Section that contains each node, -1 for a document's root section; int64."
    )
    document = _stored_array("document", "Document number of each node; int64.")
    passage_nodes = _stored_array("passage_nodes", "Nodes that are passages, ascending; int64.")
    roots = _stored_array("roots", "Root section of each document; int64.")
    node_offsets = _stored_array(
        "node_offsets", "First node of each document, and the end; (documents + 1,), int64."
    )
    passage_offsets = _stored_array(
        "passage_offsets",
        "Position of each document's first passage in ``passage_nodes``, and the end; int64.",
    )

    @abstractmethod
    def _array(self, name: str) -> np.ndarray:
        """One of the arrays that make up the graph."""

    @abstractmethod
    def _texts(self, nodes: np.ndarray) -> list[str]:
        """Texts of nodes."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A digest of all texts, ids and relations. It differs between a graph in memory and on disk."""

    def __len__(self) -> int:
        return len(self.roots)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.node_type)

    # --- edges

    def edges(self, relation: str) -> CSR:
        """Neighbors of every node along a relation: a row per node."""
        if relation not in self.relations:
            names = ", ".join(self.relations)
            raise KeyError(f"no relation {relation!r}: this graph has {names}")
        return self._rows(relation)

    @property
    def document_passages(self) -> CSR:
        """The passages of every document, in order: a row per document."""
        return CSR(self.passage_offsets, self.passage_nodes)

    @property
    def document_codes(self) -> CSR:
        """The codes of every document, as positions in ``code_names``: a row per document."""
        return self._rows("document_codes")

    @property
    def code_documents(self) -> CSR:
        """The documents that have each code: a row per code."""
        return self._rows("code_documents")

    def _rows(self, name: str) -> CSR:
        indptr = self._array(f"{name}.indptr")
        indices = self._array(f"{name}.indices")
        return CSR(indptr, indices)

    def neighbors(self, nodes: np.ndarray, path: str) -> tuple[np.ndarray, np.ndarray]:
        """Neighbors of nodes along a relation or a path of relations.

        A path joins relations with ``/``: ``'structural/structural_i'`` leads from a passage to its section, and from
        there to everything else in that section. ``'titles'`` leads to all titles above a node, the nearest first.

        Args:
            nodes: Node numbers, which may repeat.
            path: The relation or path.

        Returns:
            The position in ``nodes`` and the neighbor of each edge (of each distinct pair, if the path has several
            relations): two arrays of int64, shape (edges,).

        Raises:
            KeyError: If there is no such relation.
        """
        if path == TITLES:
            return self._all_titles(nodes)
        relations = path.split(STEP)
        rows, reached = self.edges(relations[0]).select(nodes)
        if len(relations) == 1:
            return rows, reached
        for relation in relations[1:]:
            position, reached = self.edges(relation).select(reached)
            rows = rows[position]
        elsewhere = reached != nodes[rows]  # a path may lead back to its start
        rows = rows[elsewhere]
        reached = reached[elsewhere]
        pairs = CSR.distinct(rows, reached, len(nodes))
        return pairs.row_index, pairs.indices

    def _all_titles(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All titles above nodes, level by level."""
        titles = self.edges(TITLE)
        count = self.num_nodes
        pairs = np.arange(len(nodes)) * count + nodes  # a row and a node as one number
        seen = pairs
        levels = [pairs[:0]]
        while len(pairs):
            rows, reached = np.divmod(pairs, count)
            position, above = titles.select(reached)
            next_pairs = rows[position] * count + above
            pairs = np.setdiff1d(next_pairs, seen)  # edges may form a cycle
            seen = np.concatenate([seen, pairs])
            levels.append(pairs)
        all_pairs = np.concatenate(levels)
        rows, reached = np.divmod(all_pairs, count)
        order = np.argsort(rows, kind="stable")
        return rows[order], reached[order]

    # --- texts

    def texts(self, nodes: np.ndarray, *, titles: bool = False) -> list[str]:
        """Texts of nodes; ``titles`` puts the titles of sections before passages: ``"title - section: passage"``."""
        nodes = np.asarray(nodes, dtype=np.int64)
        texts = self._texts(nodes)
        if not titles:
            return texts
        is_passage = self.node_type[nodes] == PASSAGE_TYPE
        for row, title in enumerate(self.titles(nodes)):
            if is_passage[row] and title:
                texts[row] = f"{title}: {texts[row]}"
        return texts

    def titles(self, nodes: np.ndarray) -> list[str]:
        """Titles of the sections around each node, outermost first: ``"title - section"``."""
        nodes = np.asarray(nodes, dtype=np.int64)
        titles: list[list[str]] = [[] for _ in nodes]  # the nearest first
        rows, sections = self.neighbors(nodes, TITLES)
        texts = self._texts(sections)
        for row, title in zip(rows.tolist(), texts, strict=True):
            titles[row].append(title)
        return [TITLE_SEPARATOR.join(reversed(path)) for path in titles]

    # --- ids

    def nodes_of(self, identifiers: Sequence[str]) -> np.ndarray:
        """Nodes of passages (``docno%pN``, or own ids) and sections (``docno%sN``); shape (n,), int64.

        Raises KeyError, which names ids, if some are not in the graph.
        """
        advice = "was it built from another corpus? For documents, put graph.passages() before"
        return checked_numbers(self.find(identifiers), identifiers, "nodes", advice)

    def find(self, identifiers: Sequence[str]) -> np.ndarray:
        """Nodes by id, as :meth:`nodes_of`, with -1 for unknown ids."""
        nodes = np.full(len(identifiers), -1, dtype=np.int64)
        position = numbers_of(self.passage_ids, identifiers)
        is_passage = position >= 0
        nodes[is_passage] = self.passage_nodes[position[is_passage]]
        rows = np.flatnonzero(~is_passage)  # positions in `identifiers`
        if len(rows):
            section_ids = [identifiers[row] for row in rows.tolist()]
            nodes[rows] = self._find_sections(section_ids)
        return nodes

    def _find_sections(self, identifiers: Sequence[str]) -> np.ndarray:
        """Nodes of sections by id (``docno%sN``), -1 for unknown ids; shape (n,)."""
        docnos = []
        numbers = []
        for identifier in identifiers:
            docno, number = split_section_id(identifier)
            docnos.append(docno)
            numbers.append(-1 if number is None else number)
        documents = self.find_documents(docnos)
        return self._document_sections.element(documents, np.array(numbers))

    @cached_property
    def _document_sections(self) -> CSR:
        """The sections of every document, in order: a row per document."""
        section_offsets = self.node_offsets - self.passage_offsets
        sections = np.flatnonzero(self.node_type == SECTION_TYPE)
        return CSR(section_offsets, sections)

    def ids_of(self, nodes: np.ndarray) -> list[str]:
        """Ids of nodes: ``docno%pN``, or own ids, for passages, and ``docno%sN`` for sections.

        N counts a document's passages, or sections, from 0.
        """
        nodes = np.asarray(nodes, dtype=np.int64)
        is_passage = self.node_type[nodes] == PASSAGE_TYPE
        position = np.searchsorted(self.passage_nodes, nodes)
        ids = np.empty(len(nodes), dtype=object)
        ids[is_passage] = ids_of(self.passage_ids, position[is_passage])
        rows = np.flatnonzero(~is_passage)  # positions of sections in `nodes`
        sections = nodes[rows]
        document = self.document[sections]
        nodes_before = sections - self.node_offsets[document]
        passages_before = position[rows] - self.passage_offsets[document]
        numbers = nodes_before - passages_before
        docnos = self.docnos_of(document)
        for row, docno, number in zip(rows, docnos, numbers.tolist(), strict=True):
            ids[row] = f"{docno}{SECTION_SEPARATOR}{number}"
        return ids.tolist()

    def write_passage_ids(self, file: Path) -> None:
        """Writes the ids of passages, in the order of ``passage_nodes``, as an ``npids.Lookup``."""
        write_ids(file, self.ids_of(self.passage_nodes))

    def document_of(self, docnos: Sequence[str]) -> np.ndarray:
        """Document numbers by docno, shape (n,), int64; raises KeyError, which names unknown docnos."""
        advice = (
            "was it built from another corpus? pt.text.max_passage() turns passages into documents"
        )
        return checked_numbers(self.find_documents(docnos), docnos, "documents", advice)

    def find_documents(self, docnos: Sequence[str]) -> np.ndarray:
        """Document numbers by docno, as :meth:`document_of`, with -1 for unknown docnos."""
        return numbers_of(self.docnos, docnos)

    def docnos_of(self, documents: np.ndarray) -> list[str]:
        """Docnos by document number."""
        return ids_of(self.docnos, np.asarray(documents, dtype=np.int64))

    # --- the whole graph

    def to_hetero_data(self) -> HeteroData:
        """The graph for PyTorch Geometric, whose ``HeteroData.subgraph`` takes a part of it.

        Node types are ``'passage'`` and ``'section'``; ``data[type].node`` holds this graph's node numbers. Messages of
        PyTorch Geometric go from ``edge_index[0]`` to ``edge_index[1]``, and along an edge i -> j of this graph, node i
        aggregates from j. So the edge becomes a column (j, i) of the edge type ``(type of j, relation, type of i)``.
        Edge types without edges are left out.
        """
        import torch
        from torch_geometric.data import HeteroData

        types = self.node_type
        number = np.zeros(self.num_nodes, dtype=np.int64)  # of a node among the nodes of its type
        data = HeteroData()
        for kind, name in enumerate(NODE_TYPES):
            nodes = np.flatnonzero(types == kind)
            number[nodes] = np.arange(len(nodes))
            data[name].node = torch.from_numpy(nodes)
            data[name].num_nodes = len(nodes)
        all_nodes = np.arange(self.num_nodes)
        for relation in self.relations:
            i, j = self.neighbors(all_nodes, relation)  # both (edges,)
            for type_i, type_j in np.ndindex(len(NODE_TYPES), len(NODE_TYPES)):
                has_types = (types[i] == type_i) & (types[j] == type_j)
                if not has_types.any():
                    continue
                source = number[j[has_types]]
                target = number[i[has_types]]
                edge_index = np.stack([source, target])  # (2, edges)
                edge_type = NODE_TYPES[type_j], relation, NODE_TYPES[type_i]
                data[edge_type].edge_index = torch.from_numpy(edge_index)
        return data

    def with_relations(self, data: HeteroData) -> GraphView:
        """The same nodes with the edges of ``data``, which :meth:`to_hetero_data` returned and a transform changed.

        ::

            changed = graph.with_relations(T.ToUndirected()(graph.to_hetero_data()))
            mean = ptg.GraphMean(changed, weights={"titles": 0.75, "rev_title": 0.2})

        Every model takes the result as its graph. An edge type is a relation by its name, whatever the types of its
        nodes; new names are allowed, and relations without edges stay empty. Edge types ``<name>_i`` are ignored,
        because the inverse follows from ``<name>``. Self-loops and repeated edges are dropped.
        """
        batches: dict[str, list[np.ndarray]] = {}
        for j_type, name, i_type in data.edge_types:
            if name.endswith(INVERSE):
                continue
            source, target = data[j_type, name, i_type].edge_index
            i = data[i_type].node[target]
            j = data[j_type].node[source]
            pairs = np.stack([i.numpy(), j.numpy()])  # (2, edges)
            batches.setdefault(name, []).append(pairs)
        edges = {}
        for name, arrays in batches.items():
            edges[name] = np.concatenate(arrays, axis=1)
        return GraphView(self, edges)

    def _view(self) -> HtmlCard:
        passages = len(self.passage_nodes)
        facts: dict[str, Any] = {
            "documents": len(self),
            "sections": self.num_nodes - passages,
            "passages": passages,
        }
        if self.code_names:
            facts["codes"] = len(self.code_names)
        for name in self.relations[::2]:  # each is followed by its inverse, which has as many edges
            count = len(self.edges(name).indices)
            fact = f"{count:,}"
            words = in_words(name)
            if words != name:
                fact += f", to the {words}"
            unresolved = self.unresolved.get(name)
            if unresolved:
                fact += f" ({unresolved:,} unresolved)"
            facts[f"{name} edges"] = fact
        return HtmlCard(facts)


def checked_numbers(
    numbers: np.ndarray, names: Sequence[str], noun: str, advice: str
) -> np.ndarray:
    """Returns numbers; raises KeyError, which names unknown names, if some are -1."""
    rows = np.flatnonzero(numbers < 0)
    unknown = [names[row] for row in rows.tolist()]
    if unknown:
        raise KeyError(f"{noun} {reprlib.repr(unknown)} not in the graph: {advice}")
    return numbers


def paper_relations(graph: HeteroGraph) -> tuple[str, ...]:
    """Relations of a graph except ``title`` and its inverse, which are not in the paper."""
    of_titles = {TITLE, inverse(TITLE)}
    return tuple(name for name in graph.relations if name not in of_titles)


def check_relations(graph: HeteroGraph, relations: Iterable[str] | str) -> list[str]:
    """Returns relations or paths (``'title/title'``) as a list; raises ValueError if the graph lacks one."""
    paths = [relations] if isinstance(relations, str) else [*relations]
    for path in paths:
        for relation in _steps(path):
            if relation not in graph.relations:
                within = "" if relation == path else f" of the path {path!r}"
                names = ", ".join(graph.relations)
                raise ValueError(f"the graph has no relation {relation!r}{within}; it has {names}")
    return paths


def warn_of_missing_edges(graph: HeteroGraph, relations: Iterable[str]) -> None:
    """Warns about relations without edges, which have no effect."""
    for path in relations:
        for relation in _steps(path):
            edges = graph.edges(relation)
            if not len(edges.indices):
                message = f"{path!r} has no effect: the graph has no {relation!r} edges"
                warnings.warn(message, DataWarning, stacklevel=4)
                break


def _steps(path: str) -> list[str]:
    return [TITLE] if path == TITLES else path.split(STEP)


class GraphView(HeteroGraph):
    """The nodes of a graph with other edges: see :meth:`HeteroGraph.with_relations`.

    Args:
        graph: The graph.
        edges: Edges i -> j by relation, shape (2, edges).
    """

    def __init__(self, graph: HeteroGraph, edges: Mapping[str, np.ndarray]) -> None:
        self.graph = graph
        self.vectors_folder = graph.vectors_folder
        self.code_names = graph.code_names
        self.unresolved = graph.unresolved
        names = dict.fromkeys([*graph.relations[::2], *edges])
        self.relations = with_inverses(names)
        self._edges: dict[str, CSR] = {}
        for name in names:
            pairs = edges.get(name, NO_EDGES)
            forward, back = adjacency(pairs, self.num_nodes)
            self._edges[name] = forward
            self._edges[inverse(name)] = back

    def __repr__(self) -> str:
        return f"{self.graph!r}.with_relations(...)"

    @property
    def docnos(self) -> Any:
        """Docnos of the graph."""
        return self.graph.docnos

    @property
    def passage_ids(self) -> Any:
        """Ids of passages of the graph."""
        return self.graph.passage_ids

    def fingerprint(self) -> str:
        """A digest of the graph and the edges."""
        digest = hashlib.sha256(self.graph.fingerprint().encode())
        for name, rows in self._edges.items():
            digest.update(name.encode())
            digest.update(rows.indptr.tobytes())
            digest.update(rows.indices.tobytes())
        return digest.hexdigest()

    def _rows(self, name: str) -> CSR:
        if name in self._edges:
            return self._edges[name]
        return self.graph._rows(name)

    def _array(self, name: str) -> np.ndarray:
        return self.graph._array(name)

    def _texts(self, nodes: np.ndarray) -> list[str]:
        return self.graph._texts(nodes)
