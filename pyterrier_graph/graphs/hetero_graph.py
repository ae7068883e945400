"""The interface of all graphs over passages, and graphs in memory."""

from __future__ import annotations

import hashlib
import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from npids.lookup import Lookup

from pyterrier_graph.checks import DataWarning, Shown, View, check_frame, check_type
from pyterrier_graph.documents.document import (
    PASSAGE_SEPARATOR,
    SECTION_SEPARATOR,
    StructuredDocument,
    parse_id,
    passage_id,
    split_passage_id,
)
from pyterrier_graph.graphs.builder import Parts, Places, compress, extract, locate, resolve
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.relations import DOCUMENT, STEP, TITLE, TITLES, inverse, relation_names
from pyterrier_graph.storage.arrays import IDS_AT_ONCE, blocks, ids_of, numbers_of, some

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData

NODE_TYPES = ("passage", "section")
PASSAGE_NUMBER = rf"{PASSAGE_SEPARATOR}[0-9]+$"
PASSAGE_TYPE = NODE_TYPES.index("passage")
SECTION_TYPE = NODE_TYPES.index("section")
TITLE_SEPARATOR = " - "

Kind = Literal["passages", "documents"]


def _stored_array(name: str, meaning: str) -> Any:
    """A property that is one of the arrays of which a graph consists."""
    return property(lambda graph: graph._array(name), doc=meaning)


class HeteroGraph(Shown, ABC):
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

    _code_names: Sequence[str]
    """Names of the documents' codes, by number."""

    _unresolved: Mapping[str, int]
    """Per relation the number of references to documents or passages that are not in the graph."""

    docnos: Any
    """Docnos by document number (``.fwd``) and back (``.inv``, -1 for unknown ones)."""

    _passage_ids: Any
    """Ids of passages by position in ``passage_nodes``, and back, as ``docnos``; None if the ids are ``docno%pN``."""

    @abstractmethod
    def _array(self, name: str) -> np.ndarray:
        """One of the arrays that the graph consists of."""

    @abstractmethod
    def _texts(self, nodes: np.ndarray) -> list[str]:
        """Texts of nodes."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A digest of all texts, ids and relations, which no other graph has."""

    def __len__(self) -> int:
        return len(self._roots)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.node_type)

    node_type = _stored_array("node_type", "Per node 0 for a passage and 1 for a section; uint8.")
    parent = _stored_array(
        "parent", "Per node the section that holds it, -1 for a document's root section; int64."
    )
    document = _stored_array("document", "Per node the number of its document; int64.")
    passage_nodes = _stored_array("passage_nodes", "The nodes that are passages, ascending; int64.")
    _roots = _stored_array("roots", "Per document its root section; int64.")
    _node_offsets = _stored_array(
        "node_offsets", "First node per document, and the end; (documents + 1,), int64."
    )
    _passage_offsets = _stored_array(
        "passage_offsets",
        "Per document the position of its first passage in ``passage_nodes``, and the end; int64.",
    )

    @property
    def _own_ids(self) -> bool:
        """Whether passages have ids of their own, instead of ``docno%pN``."""
        return self._passage_ids is not None

    @property
    def _document_passages(self) -> CSR:
        """Document -> its passages, in order."""
        return CSR(self._passage_offsets, self.passage_nodes)

    @property
    def _code_documents(self) -> CSR:
        """Code -> numbers of the documents that have it."""
        return self._adjacency("code_documents")

    def neighbors(self, nodes: np.ndarray, path: str) -> tuple[np.ndarray, np.ndarray]:
        """The nodes that are reached from some nodes along a relation or a path of relations.

        A path joins relations by ``/``: ``'structural/structural_i'`` leads from a passage to its section, and from
        there to all parts of that section, except the passage itself. ``'titles'`` leads to all titles above a node,
        the nearest first.

        Args:
            nodes: Numbers of nodes, which may repeat.
            path: The path.

        Returns:
            Per edge the position of the node in ``nodes``, and the neighbor; along several relations, per distinct pair
            of a position and a node. Two arrays of int64.

        Raises:
            IndexError: If there is no such node.
            KeyError: If there is no such relation.
        """
        if path == TITLES:
            return self._all_titles(nodes)
        steps = path.split(STEP)
        rows, reached = self._step(nodes, steps[0])
        for relation in steps[1:]:
            step, reached = self._step(reached, relation)
            rows = rows[step]
        if len(steps) == 1:
            return rows, reached
        elsewhere = reached != nodes[rows]
        pairs = CSR.distinct(rows[elsewhere], reached[elsewhere], len(nodes))
        return pairs.row_index, pairs.indices

    def _step(self, nodes: np.ndarray, relation: str) -> tuple[np.ndarray, np.ndarray]:
        if relation not in self.relations:
            raise KeyError(f"no relation {relation!r}: this graph has {', '.join(self.relations)}")
        return self._adjacency(relation).select(nodes)

    def _all_titles(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = [self._step(nodes, TITLE)]
        while len(found[-1][0]):
            rows, reached = found[-1]
            step, reached = self._step(reached, TITLE)
            found.append((rows[step], reached))
        rows, reached = (np.concatenate(parts) for parts in zip(*found, strict=True))
        order = np.argsort(rows, kind="stable")
        return rows[order], reached[order]

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
        return [
            TITLE_SEPARATOR.join(title[section] for section in path if title.get(section))
            for path in paths
        ]

    def _columns(self, names: Sequence[str], ids: Sequence[str]) -> dict[str, Any]:
        """Columns ``text`` and ``title`` as asked for, of some passages."""
        nodes = self.nodes_of(ids)
        load = {"text": self.texts, "title": self.titles}
        return {name: pd.array(load[name](nodes), dtype="str") for name in names}

    def nodes_of(self, identifiers: Sequence[str]) -> np.ndarray:
        """Nodes by id of a passage (``docno%pN``, or its own id) or section (``docno%sN``); shape (n,), int64.

        Raises KeyError, which names up to three ids, if some are not in the graph.
        """
        identifiers = list(identifiers)
        nodes = self._find(identifiers)
        if (nodes < 0).any():
            unknown = [identifiers[row] for row in np.flatnonzero(nodes < 0)]
            advice = "was the graph built from another corpus, or split in another way?"
            if (self._documents(unknown) >= 0).any():
                advice = "documents are not nodes: put graph.passages() before"
            raise KeyError(f"{some(unknown, 'node')} not in the graph; {advice}")
        return nodes

    def _find(self, identifiers: Sequence[str]) -> np.ndarray:
        """As :meth:`nodes_of`, with -1 for an id that is not in the graph, such as that of a document."""
        identifiers = [*identifiers]
        nodes = np.full(len(identifiers), -1, dtype=np.int64)
        if self._own_ids:
            numbers = numbers_of(self._passage_ids, _as_texts(identifiers))
            nodes[numbers >= 0] = self.passage_nodes[numbers[numbers >= 0]]
        others = np.flatnonzero(nodes < 0)
        split = [parse_id(identifiers[row]) for row in others.tolist()]
        documents = self._documents([docno for docno, _, _ in split])
        number = np.array([number for _, number, _ in split], dtype=np.int64)
        is_section = np.array([is_section for _, _, is_section in split], dtype=bool)
        passages = np.flatnonzero(~is_section & (number >= 0))
        if not self._own_ids:
            nodes[others[passages]] = locate(documents[passages], number[passages], self._places)
        sections = np.flatnonzero(is_section)
        if len(sections):
            places = (self._roots, self._node_offsets - self._passage_offsets, self._section_nodes)
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
        if self._own_ids:
            ids[is_passage] = np.array(
                ids_of(self._passage_ids, position[is_passage]), dtype=object
            )
            numbered = np.flatnonzero(~is_passage)
        document = self.document[nodes[numbered]]
        passage = position[numbered] - self._passage_offsets[document]
        section = nodes[numbered] - self._node_offsets[document] - passage
        docnos = ids_of(self.docnos, document)
        for row, docno, n, m in zip(
            numbered, docnos, passage.tolist(), section.tolist(), strict=True
        ):
            ids[row] = passage_id(docno, n) if is_passage[row] else f"{docno}{SECTION_SEPARATOR}{m}"
        return ids.tolist()

    def document_of(self, docnos: Sequence[str]) -> np.ndarray:
        """Document numbers by docno, shape (n,), int64; raises KeyError, which names up to three unknown docnos."""
        docnos = list(docnos)
        documents = self._documents(docnos)
        if (documents < 0).any():
            unknown = [docnos[row] for row in np.flatnonzero(documents < 0)]
            advice = "was the graph built from another corpus?"
            if any(
                isinstance(docno, str) and split_passage_id(docno)[1] is not None
                for docno in unknown
            ):
                advice = "these are ids of passages, documents are needed: pt.text.max_passage() folds them"
            raise KeyError(f"{some(unknown, 'document')} not in the graph; {advice}")
        return documents

    def docnos_of(self, documents: np.ndarray) -> list[str]:
        """Docnos by document number."""
        return ids_of(self.docnos, np.asarray(documents, dtype=np.int64))

    def _documents(self, docnos: Sequence[str]) -> np.ndarray:
        """As :meth:`document_of`, with -1 for a docno that is not in the graph."""
        return numbers_of(self.docnos, _as_texts(docnos))

    def passages_of_documents(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The passages of some documents, in order: per passage the position in ``documents``, and the node."""
        return self._document_passages.select(documents)

    def passage_qrels(self, qrels: pd.DataFrame) -> pd.DataFrame:
        """Judgments of passages: where no passage is judged, a judgment of a document counts for all its passages.

        Judgments ``qid, docno, label`` of what is not in the graph are left out with a warning. Raises KeyError if
        nothing that is judged is in the graph.
        """
        qrels = check_frame(qrels, self)
        if "docno" not in qrels.columns:
            raise ValueError(f"judgments need a column docno, got {', '.join(qrels.columns)}")
        return passage_qrels(qrels, self)

    def _codes_of(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The codes of some documents: the position in ``documents``, and the code's number (see ``_code_names``)."""
        return self._adjacency("document_codes").select(documents)

    def to_hetero_data(self) -> HeteroData:
        """The graph for PyTorch Geometric, whose ``HeteroData.subgraph`` takes a part of it.

        Node types are ``'passage'`` and ``'section'``; ``data[type].node`` has the graph's node numbers. Messages of
        PyTorch Geometric go from ``edge_index[0]`` to ``edge_index[1]``. Along an edge i -> j of this graph, node i
        aggregates from j. So the edge becomes a column (j, i) of the edge type ``(type of j, relation, type of i)``.
        Edge types without edges are left out.
        """
        import torch
        from torch_geometric.data import HeteroData

        types = self.node_type
        number = np.zeros(self.num_nodes, dtype=np.int64)  # of a node among the nodes of its type
        data = HeteroData()
        for kind, name in enumerate(NODE_TYPES):
            of_kind = np.flatnonzero(types == kind)
            number[of_kind] = np.arange(len(of_kind))
            data[name].node = torch.from_numpy(of_kind)
            data[name].num_nodes = len(of_kind)
        for relation in self.relations:
            i, j = self.neighbors(
                np.arange(self.num_nodes), relation
            )  # edges i -> j; nodes, shape (edges,) each
            for type_i, name_i in enumerate(NODE_TYPES):
                for type_j, name_j in enumerate(NODE_TYPES):
                    chosen = (types[i] == type_i) & (types[j] == type_j)
                    if chosen.any():
                        edges = np.stack([number[j[chosen]], number[i[chosen]]])  # (2, edges)
                        data[name_j, relation, name_i].edge_index = torch.from_numpy(edges)
        return data

    def summary(self) -> dict[str, Any]:
        """Numbers of documents, sections, passages, codes, edges per relation, and unresolved references."""
        passages = len(self.passage_nodes)
        return {
            "documents": len(self),
            "sections": self.num_nodes - passages,
            "passages": passages,
            "codes": len(self._code_names),
            "edges": {
                relation: len(self._adjacency(relation).indices) for relation in self.relations
            },
            "unresolved": dict(self._unresolved),
        }

    def _view(self) -> View:
        from pyterrier_graph.html import in_words

        about = self.summary()
        counted = ["documents", "sections", "passages", *(["codes"] if about["codes"] else [])]
        sizes: dict[str, Any] = {name: about[name] for name in counted}
        for name in self.relations[::2]:  # each is followed by its inverse, which has as many edges
            lost = about["unresolved"].get(name, 0)
            words = "" if in_words(name) == name else f", to the {in_words(name)}"
            sizes[f"{name} edges"] = (
                f"{about['edges'][name]:,}{words}{f' ({lost:,} unresolved)' if lost else ''}"
            )
        return View(sizes)

    def _adjacency(self, name: str) -> CSR:
        return CSR(self._array(f"{name}.indptr"), self._array(f"{name}.indices"))

    @property
    def _places(self) -> Places:
        return self._roots, self._passage_offsets, self.passage_nodes

    @cached_property
    def _section_nodes(self) -> np.ndarray:
        return np.flatnonzero(self.node_type == SECTION_TYPE)


def paper_relations(graph: HeteroGraph) -> tuple[str, ...]:
    """All relations of a graph except ``title`` and its inverse, which the paper does not have."""
    return tuple(
        relation for relation in graph.relations if relation not in (TITLE, inverse(TITLE))
    )


def check_relations(graph: HeteroGraph, relations: Iterable[str] | str) -> list[str]:
    """Relations as a list; raises ValueError if one, or one of a path (``'title/title'``), is not in the graph."""
    check_type("relations", relations, Iterable, "names of relations, such as 'title'")
    paths = [relations] if isinstance(relations, str) else [*relations]
    for path in paths:
        check_type("a relation", path, str, "a name such as 'title'")
        if path == TITLES and TITLE in graph.relations:
            continue
        for relation in path.split(STEP):
            if relation not in graph.relations:
                place = "" if relation == path else f" of the path {path!r}"
                raise ValueError(
                    f"the graph has no relation {relation!r}{place}; it has {', '.join(graph.relations)}"
                )
    return paths


def documents_of(docnos: pd.Series, graph: HeteroGraph | None = None) -> pd.Series:
    """The document ids of passage ids: ``docno%pN``, or own ids of the graph's passages. Other ids stay as they are."""
    if graph is not None and graph._own_ids:
        return pd.Series(
            fold(graph, docnos.tolist(), DOCUMENT)[1], index=docnos.index, dtype=object
        )
    return docnos.str.replace(PASSAGE_NUMBER, "", regex=True)


def fold(
    graph: HeteroGraph, identifiers: list[str], relation: str, *, strict: bool = False
) -> tuple[np.ndarray, list[str]]:
    """The nodes or documents to which passages lead by a relation as in ``graph.fold``.

    An id stays as it is if it is not that of a passage, or if the passage leads to no node. If ``strict``, an id that
    is not in the graph raises KeyError.

    Returns per pair of a passage and a node, the position in ``identifiers``, ascending, and the id of the node.
    """
    nodes = graph._find(identifiers)
    if strict:
        unknown = [identifiers[row] for row in np.flatnonzero(nodes < 0)]
        if relation == DOCUMENT:
            unknown = [unknown[row] for row in np.flatnonzero(graph._documents(unknown) < 0)]
        graph.nodes_of(unknown)  # raises KeyError with advice
    rows = np.flatnonzero(nodes >= 0)
    if relation == DOCUMENT:
        names = graph.docnos_of(graph.document[nodes[rows]])
    else:
        rows = rows[graph.node_type[nodes[rows]] == PASSAGE_TYPE]
        found, reached = graph.neighbors(nodes[rows], relation)
        rows, names = rows[found], graph.ids_of(reached)
    same = np.setdiff1d(np.arange(len(nodes)), rows)
    rows = np.concatenate([rows, same])
    names += [identifiers[row] for row in same]
    order = np.argsort(rows, kind="stable")
    return rows[order], [names[place] for place in order]


def vectors_folder(graph: Any) -> Path | None:
    """Where models keep the vectors of a graph: its ``vectors_folder``, or next to it; None for a graph in memory."""
    path, folder = getattr(graph, "path", None), getattr(graph, "vectors_folder", None)
    return Path(folder or f"{path}.vectors") if folder or path else None


def judged_ids(
    docnos: pd.Series, qrels: pd.DataFrame, graph: HeteroGraph | None = None
) -> pd.Series:
    """The ids by which judgments are looked up: ids of documents, unless passages are judged."""
    return docnos if passages_are_judged(qrels, graph) else documents_of(docnos, graph)


def passages_are_judged(qrels: pd.DataFrame, graph: HeteroGraph | None = None) -> bool:
    """Whether passages are judged: with own ids, whether more of them are passages than documents of the graph."""
    if graph is None or not graph._own_ids:
        return bool(qrels["docno"].str.contains(PASSAGE_NUMBER).any())
    docnos = qrels["docno"].unique().tolist()
    return (graph._find(docnos) >= 0).sum() >= (graph._documents(docnos) >= 0).sum()


def passage_qrels(qrels: pd.DataFrame, passages: HeteroGraph | Lookup) -> pd.DataFrame:
    """As :meth:`HeteroGraph.passage_qrels`, by a graph or by the ids of all passages, which are ``docno%pN``."""
    docnos = qrels["docno"].tolist()
    if not isinstance(passages, HeteroGraph):
        known = numbers_of(passages, docnos) >= 0
        found = qrels[known]
        if not known.any():
            parts = [pd.DataFrame({"docno": [], "passage": []}, dtype=object)]
            for numbers in blocks(len(passages), IDS_AT_ONCE):
                ids = pd.Series(ids_of(passages, numbers), dtype=object)
                parts.append(pd.DataFrame({"docno": documents_of(ids), "passage": ids}))
                parts[-1] = parts[-1][parts[-1]["docno"].isin(docnos)]
            found = qrels.merge(pd.concat(parts), on="docno")
            known = qrels["docno"].isin(found["docno"]).to_numpy()
            found = found.assign(docno=found.pop("passage"))
    elif passages_are_judged(qrels, passages):
        known = passages._find(docnos) >= 0
        found = qrels[known]
    else:
        documents = passages._documents(docnos)
        known = documents >= 0
        position, nodes = passages.passages_of_documents(documents[known])
        found = qrels[known].iloc[position].assign(docno=passages.ids_of(nodes))
    if not known.any():
        place = passages if isinstance(passages, HeteroGraph) else "the index"
        raise KeyError(
            f"nothing judged is in {place}, got {docnos[:3]}: are the judgments of another corpus?"
        )
    if not known.all():
        message = f"{some(qrels['docno'][~known].tolist(), 'judged docno')} not in the graph: these judgments are"
        warnings.warn(f"{message} ignored; are they of another corpus?", DataWarning, stacklevel=3)
    return found


def _as_texts(values: Sequence[Any]) -> list[str]:
    """The values, with ``''``, which is not an id, for those that are not texts."""
    return [value if isinstance(value, str) else "" for value in values]


class _MemoryIds:
    """Ids by number (``fwd``) and back (``inv``), as ``npids.Lookup`` has them on disk."""

    def __init__(self, ids: Sequence[str]) -> None:
        self.fwd, self.inv = np.array(ids, dtype=object), self
        self.number_of = {identifier: number for number, identifier in enumerate(ids)}

    def __getitem__(self, ids: Sequence[str]) -> list[int]:
        return [self.number_of.get(identifier, -1) for identifier in ids]


class MemoryGraph(HeteroGraph):
    """A graph in memory. References to documents that it does not contain are counted, and left out."""

    def __init__(self, parts: Parts) -> None:
        self._node_texts = parts.texts
        if len({*parts.docnos}) < len(parts.docnos):
            raise ValueError("two documents have the same docno")
        if len({*parts.passage_ids}) < len(parts.passage_ids):
            raise ValueError("two passages have the same id")
        self.docnos = _MemoryIds(parts.docnos)
        self._passage_ids = _MemoryIds(parts.passage_ids) if parts.passage_ids else None
        self._arrays = parts.arrays()
        for name in ("node_offsets", "passage_offsets"):
            self._arrays[name] = np.append(0, self._arrays[name])
        edges, self._unresolved = resolve(
            parts.edges, parts.references, self.docnos.number_of, self._places
        )
        self.relations = relation_names(edges)
        self._code_names = sorted({code for codes in parts.codes for code in codes})
        for name, rows in compress(edges, self.num_nodes, parts.codes, self._code_names):
            self._arrays |= {f"{name}.indptr": rows.indptr, f"{name}.indices": rows.indices}

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self)} documents, {len(self.passage_nodes)} passages>"

    @classmethod
    def from_documents(cls, documents: Sequence[StructuredDocument]) -> MemoryGraph:
        """The graph of documents; raises ValueError if two have the same docno, or a relation has a bad name."""
        return cls(extract(documents))

    def fingerprint(self) -> str:
        """A digest of all texts, ids and relations. That of the same graph on disk differs."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        nodes = np.arange(self.num_nodes)
        total = hashlib.sha256(
            json.dumps([self._node_texts, self.ids_of(nodes), self._code_names]).encode()
        )
        for name, array in sorted(self._arrays.items()):
            total.update(name.encode() + np.ascontiguousarray(array, dtype=np.int64).tobytes())
        return total.hexdigest()

    def _array(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def _texts(self, nodes: np.ndarray) -> list[str]:
        return [self._node_texts[node] for node in nodes.tolist()]
