"""References to documents and passages by id, and the edges that they become."""

from dataclasses import dataclass

import numpy as np

WHOLE_DOCUMENT = -1


@dataclass(frozen=True)
class References:
    """References of one relation: source nodes, and per reference a document and the number of its passage.

    The number is -1 where a reference leads to the document's root section.
    """

    sources: np.ndarray
    docnos: list[str]
    passages: np.ndarray


Places = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Root sections, passage offsets, and passage nodes of a graph, as :class:`HeteroGraph` has them."""


def locate(documents: np.ndarray, passages: np.ndarray, places: Places) -> np.ndarray:
    """Nodes of passages given by document (-1: unknown) and number (-1: root section); -1 where there is none."""
    roots, passage_offsets, passage_nodes = places
    found = np.full(len(documents), -1, dtype=np.int64)
    whole = (documents >= 0) & (passages == WHOLE_DOCUMENT)
    found[whole] = roots[documents[whole]]
    named = np.flatnonzero((documents >= 0) & (passages >= 0))
    position = passage_offsets[documents[named]] + passages[named]
    exists = position < passage_offsets[documents[named] + 1]
    found[named[exists]] = passage_nodes[position[exists]]
    return found


def resolve(references: References, documents: np.ndarray, places: Places) -> tuple[np.ndarray, int]:
    """Edges to what references refer to, by their documents (-1: unknown), and how many references have no target."""
    nodes = locate(documents, references.passages, places)
    found = nodes >= 0
    return without_loops(np.stack([references.sources[found], nodes[found]], axis=1)), int((~found).sum())


def without_loops(pairs: np.ndarray) -> np.ndarray:
    """The pairs of different nodes."""
    return pairs[pairs[:, 0] != pairs[:, 1]]
