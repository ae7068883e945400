"""Relations of a graph: names, inverses, and paths such as ``'title/title'``."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

ORDER, STRUCTURAL, TITLE = "order", "structural", "title"
TITLES = "titles"  # all titles above a node: title, title/title, ...
RETRIEVED, RELEVANT = "retrieved", "relevant"
# relations of a query graph, and the argument of QueryPassageGraph.build() that makes their edges
QUERY_RELATIONS = {RETRIEVED: "a retriever", RELEVANT: "qrels="}
DOCUMENT = "document"  # not a relation of a graph: folds passages into documents
SELF = "SELF"  # the relation of a node to itself in Albarede et al. 2023
OWN = "own"  # in explanations, the passage whose score is explained
INVERSE = "_i"
STEP = "/"

_NAME = re.compile(r"[a-z][a-z0-9_]*")


def inverse(relation: str) -> str:
    """Name of the inverse relation: ``order`` to ``order_i``, and back."""
    if relation.endswith(INVERSE):
        return relation.removesuffix(INVERSE)
    return relation + INVERSE


def with_inverses(names: Iterable[str]) -> tuple[str, ...]:
    """Each name, followed by the name of its inverse."""
    relations: list[str] = []
    for name in names:
        relations += [name, inverse(name)]
    return tuple(relations)


PAPER_RELATIONS = with_inverses((ORDER, STRUCTURAL, "internal", "external"))
"""The eight relations of Albarede et al. 2023, Sect. 3.1."""


def relation_names(named: Iterable[str]) -> tuple[str, ...]:
    """All relations of a graph whose documents name some: the paper's eight, ``title``, ``title_i``, others by name."""
    own = set(named).difference(PAPER_RELATIONS, [TITLE])
    return PAPER_RELATIONS + with_inverses([TITLE, *sorted(own)])


def check_relation_name(relation: str) -> None:
    """Raises ValueError if links and references cannot have this name."""
    taken = (ORDER, STRUCTURAL, TITLE, TITLES, *QUERY_RELATIONS, DOCUMENT)
    is_name = _NAME.fullmatch(relation) is not None
    if not is_name or relation.endswith(INVERSE) or relation in taken:
        raise ValueError(
            f"a relation cannot be called {relation!r}: use lower-case letters, digits and '_', no ending '{INVERSE}', "
            f"and none of {', '.join(taken)}"
        )


def inverse_path(path: str) -> str:
    """The path that leads back: ``'order/structural'`` to ``'structural_i/order_i'``."""
    relations = reversed(path.split(STEP))
    return STEP.join(inverse(relation) for relation in relations)


def nearest_titled(parent: np.ndarray, titled: np.ndarray) -> np.ndarray:
    """The nearest ``titled`` section above each node, or -1; ``parent`` is the section that contains it, or -1."""
    above = parent.copy()
    while True:
        untitled = np.flatnonzero((above >= 0) & ~titled[above])
        if not len(untitled):
            return above
        above[untitled] = parent[above[untitled]]
