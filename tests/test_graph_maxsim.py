"""GraphMaxSim against loops over tokens, nodes and paths."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyterrier_graph.documents.document import Link, Node, Reference, StructuredDocument
from pyterrier_graph.graph_maxsim.reranker import GraphMaxSim
from pyterrier_graph.graphs.memory_graph import MemoryGraph

PATHS = [
    "structural",
    "structural/structural",
    "order",
    "order_i",
    "structural/structural_i",
    "external",
    "internal_i",
]
COLUMNS = ["relation", "source", "text", "weight", "score"]


def neighbors_by_loop(graph: MemoryGraph, node: int, path: str) -> set[int]:
    front = {node}
    for relation in path.split("/"):
        front = {int(j) for i in front for j in graph.neighbors(np.array([i]), relation)[1]}
    return front - {node}


@cache
def tokens_of(text: str) -> torch.Tensor:
    """The vectors of a passage's tokens."""
    return tiny.encoder().encode_passages([text])[0]


def score_by_loop(graph: MemoryGraph, weights: dict[str, float], query: str, docno: str) -> float:
    """The formula of the docstring, one query token and one neighbor at a time."""
    node = int(graph.nodes_of([docno])[0])

    def best(q: torch.Tensor, other: int) -> float | None:
        return max(
            (float(q @ p) for p in tokens_of(graph.texts(np.array([other]))[0])), default=None
        )

    score = 0.0
    for q in tiny.encoder().encode_queries([query])[0]:
        matches = [best(q, node) or 0.0]
        for path, weight in weights.items():
            if weight:
                found = [best(q, other) for other in neighbors_by_loop(graph, node, path)]
                matches += [weight * match for match in found if match is not None]
        score += max(matches)
    return score


@st.composite
def corpora(draw: st.DrawFn) -> MemoryGraph:
    """Small corpora with untitled sections, empty passages, and references in circles."""
    count = draw(st.integers(1, 3))
    text = st.lists(st.sampled_from(tiny.WORDS), max_size=3).map(" ".join)
    documents = []
    for number in range(count):
        sections = draw(st.integers(1, 3))
        nodes = [Node("section", draw(text), place - 1) for place in range(sections)]
        nodes += [
            Node("passage", draw(text), draw(st.integers(0, sections - 1)))
            for _ in range(draw(st.integers(1, 3)))
        ]
        place = st.integers(0, len(nodes) - 1)
        links = [
            Link("internal", i, j) for i, j in draw(st.lists(st.tuples(place, place), max_size=2))
        ]
        references = [Reference("external", draw(place), f"d{draw(st.integers(0, count - 1))}")]
        documents.append(
            StructuredDocument(f"d{number}", tuple(nodes), tuple(links), tuple(references))
        )
    return MemoryGraph(documents)


@given(
    corpora(),
    st.dictionaries(st.sampled_from(PATHS), st.sampled_from([0.0, 0.4, 1.0, 1.7]), max_size=4),
)
def test_equals_the_loops(graph: MemoryGraph, weights: dict[str, float]) -> None:
    docnos = graph.ids_of(graph.passage_nodes)
    frame = pd.DataFrame({"docno": docnos}).merge(tiny.topics(2), how="cross")
    reranker = GraphMaxSim(graph, tiny.encoder(), weights)
    out = reranker(frame)
    slow = [
        score_by_loop(graph, weights, *row)
        for row in frame[["query", "docno"]].itertuples(index=False)
    ]
    np.testing.assert_allclose(out["score"], slow, atol=2e-3)  # vectors are kept in half precision
    parts = reranker.explain(frame["query"][0], docnos[0])
    assert parts["score"].sum() == pytest.approx(out["score"][0], abs=1e-6)
    assert list(parts.columns) == COLUMNS


def test_explanation_names_the_relation() -> None:
    """The word of the document's title is found nowhere else around its second passage."""
    reranker = GraphMaxSim(
        tiny.graph(), tiny.encoder(), {"structural/structural": 5.0, "order": 0.1}
    )
    parts = reranker.explain("alpha beta", "d0%p1")
    assert parts[["relation", "source", "text", "weight"]].to_numpy().tolist() == [
        ["structural/structural", "d0%s0", "alpha", 5.0]
    ]
    own = GraphMaxSim(tiny.graph(), tiny.encoder(), {}).explain("alpha beta", "d0%p1")
    assert {*own["relation"]} == {"own"} and {*own["source"]} == {"d0%p1"}


def measured(reranker: GraphMaxSim, frame: pd.DataFrame, qrels: pd.DataFrame) -> float:
    return tiny.evaluated("nDCG@10", qrels, reranker(frame))


def test_fit_raises_the_measure() -> None:
    """All passages of a document are relevant, but only the first one says its word: the title has to help."""
    start = {"structural/structural": 0.0, "order_i": 0.0, "order": 0.7}
    frame, qrels = tiny.run(), tiny.qrels()
    reranker = GraphMaxSim(tiny.graph(), tiny.encoder(), start)
    before = measured(reranker, frame, qrels)
    assert reranker.fit(frame, qrels) is reranker
    after = measured(reranker, frame, qrels)
    assert after > before + 0.05
    assert set(reranker.weights) == set(start)
    assert all(weight in [step / 10 for step in range(11)] for weight in reranker.weights.values())
    assert reranker.weights["structural/structural"] > 0
    again = GraphMaxSim(tiny.graph(), tiny.encoder(), start).fit(frame, qrels)
    assert again.weights == reranker.weights
