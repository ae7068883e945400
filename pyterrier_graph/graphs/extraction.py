"""Structured documents as arrays: nodes, the relations that follow from their structure, links and references."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pyterrier_graph.documents import NO_PARENT, PASSAGE, StructuredDocument, split_passage_id
from pyterrier_graph.graphs.references import WHOLE_DOCUMENT, References, without_loops
from pyterrier_graph.graphs.relations import ORDER, STRUCTURAL, TITLE, check_relation_name, nearest_titled

NODE_TYPES = ("passage", "section")


@dataclass(frozen=True)
class Parts:
    """Some documents, as arrays. Node numbers count on from those of the documents before them."""

    docnos: list[str]
    codes: list[tuple[str, ...]]  # per document
    node_counts: np.ndarray  # nodes per document, int64
    node_type: np.ndarray  # per node its position in NODE_TYPES, uint8
    parent: np.ndarray  # per node the section that holds it, or -1; int64
    texts: list[str]  # per node
    edges: dict[str, np.ndarray]  # pairs i, j of edges i -> j by relation, (edges, 2); no inverses, no references
    references: dict[str, References]  # by relation
    passage_ids: list[str] = field(default_factory=list)  # of all passages, if they have ids of their own

    def arrays(self, documents: int = 0, nodes: int = 0, passages: int = 0) -> dict[str, np.ndarray]:
        """The arrays of a graph, by name; before these documents come so many documents, nodes and passages.

        Offsets are the ends of the documents: without the 0 at which the first document of a graph begins.
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
    """Numbers the nodes of some documents and collects their relations.

    A ValueError says which name of a link or reference is not allowed for a relation, or which document has no ids for
    its passages where others have.
    """
    nodes = [node for document in documents for node in document.nodes]
    node_counts = np.array([len(document.nodes) for document in documents], dtype=np.int64)
    starts = first_node + np.cumsum(node_counts) - node_counts
    document = np.repeat(np.arange(len(documents)), node_counts)
    node = first_node + np.arange(len(nodes))
    is_passage = np.fromiter((kind == PASSAGE for kind, _, _ in nodes), dtype=bool, count=len(nodes))
    parent = np.fromiter((parent for _, _, parent in nodes), dtype=np.int64, count=len(nodes))
    held = parent != NO_PARENT
    parent[held] += starts[document[held]]
    titled = np.fromiter((kind != PASSAGE and bool(text.strip()) for kind, text, _ in nodes), bool, len(nodes))
    title = nearest_titled(np.where(held, parent - first_node, NO_PARENT), titled)
    under_title = title != NO_PARENT
    passages = np.flatnonzero(is_passage)
    followed = np.flatnonzero(document[passages[1:]] == document[passages[:-1]])

    links: dict[str, list[tuple[int, int]]] = defaultdict(list)
    references: dict[str, list[tuple[int, str, int]]] = defaultdict(list)
    for start, structured in zip(starts.tolist(), documents, strict=True):
        for relation, source, target in structured.links:
            links[relation].append((start + source, start + target))
        for relation, source, identifier in structured.references:
            docno, number = split_passage_id(identifier)
            references[relation].append((start + source, docno, WHOLE_DOCUMENT if number is None else number))
    for relation in (*links, *references):
        check_relation_name(relation)
    passage_ids = [identifier for structured in documents for identifier in structured.passage_ids]
    if passage_ids and len(passage_ids) < len(passages):
        without = next(held.docno for held in documents if not held.passage_ids and held.passages())
        raise ValueError(f"document {without!r} has no passage_ids, but other documents have")
    return Parts(
        docnos=[structured.docno for structured in documents],
        codes=[structured.codes for structured in documents],
        node_counts=node_counts,
        node_type=(~is_passage).astype(np.uint8),
        parent=parent,
        texts=[text for _, text, _ in nodes],
        edges={
            ORDER: np.stack([node[passages[followed]], node[passages[followed + 1]]], axis=1),
            STRUCTURAL: np.stack([node[held], parent[held]], axis=1),
            TITLE: np.stack([node[under_title], node[title[under_title]]], axis=1),
        }
        | {relation: without_loops(np.array(pairs, dtype=np.int64)) for relation, pairs in links.items()},
        references={
            relation: References(np.array(sources), [*docnos], np.array(numbers))
            for relation, found in references.items()
            for sources, docnos, numbers in [zip(*found, strict=True)]
        },
        passage_ids=passage_ids,
    )
