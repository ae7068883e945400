from __future__ import annotations

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyterrier_graph.graphs.candidate_graph import CandidateGraph
from pyterrier_graph.graphs.memory_graph import MemoryGraph

RUN = pd.DataFrame(
    [
        ["1", "apple", "d%p7", "apple pie with cream", 1.0, "Pies"],
        ["1", "apple", "d%p1", "apple tart", 3.0, "Pies"],
        ["1", "apple", "e", "tart", 2.0, None],
        ["2", "pie", "d%p2", "pear tart", 1.0, ""],
        ["1", "apple", "d%p3", "?!", 0.5, None],
        ["2", "pie", "d%p1", "apple tart", 0.0, "Pies"],
    ],
    columns=["qid", "query", "docno", "text", "score", "title"],
)

TestCandidateGraph = pt.testing.transformer_test_class(lambda: CandidateGraph())


def edges(graph: MemoryGraph, relation: str) -> list[tuple[str, str]]:
    i, j = graph.neighbors(np.arange(graph.num_nodes), relation)
    return [*zip(graph.ids_of(i), graph.ids_of(j), strict=True)]


def test_graph_of_a_query():
    out = CandidateGraph()(RUN)
    graph = out["graph"].iloc[0]
    assert graph.ids_of(graph.passage_nodes) == ["d%p1", "d%p3", "d%p7", "e"]
    assert edges(graph, "order") == [("d%p1", "d%p3"), ("d%p3", "d%p7")]
    assert edges(graph, "order_i") == [("d%p3", "d%p1"), ("d%p7", "d%p3")]
    assert edges(graph, "structural") == [*((f"d%p{n}", "d%s0") for n in (1, 3, 7)), ("e", "e%s0")]
    assert edges(graph, "title") == [(f"d%p{n}", "d%s0") for n in (1, 3, 7)]  # "e" has no title
    assert graph.titles(graph.passage_nodes) == ["Pies", "Pies", "Pies", ""]
    assert graph.texts(graph.nodes_of(["e", "d%s0", "d%p7"])) == [
        "tart",
        "Pies",
        "apple pie with cream",
    ]
    assert graph.docnos_of(graph.document) == ["d"] * 4 + ["e"] * 2
    with pytest.raises(ValueError, match="query '1' has two texts"):
        CandidateGraph()(RUN.assign(qid="1"))


def test_other_docnos():
    docnos = ["a%p1", "a"]
    graph = CandidateGraph()(pd.DataFrame({"qid": "1", "docno": docnos, "text": docnos}))[
        "graph"
    ].iloc[0]
    assert graph.texts(graph.nodes_of(docnos)) == docnos
    assert edges(graph, "order") == [("a", "a%p1")]
    with pytest.raises(ValueError, match="must not look like the id of a passage"):
        CandidateGraph()(pd.DataFrame({"qid": "1", "docno": ["a%p1%p0"], "text": "b"}))


def test_sliding_windows():
    documents = RUN.iloc[[0, 2]].assign(docno=["d", "e"], text=["one two three four five", "six"])
    graph = (pt.text.sliding("text", 2, 1, prepend_attr=None) >> CandidateGraph())(documents)[
        "graph"
    ].iloc[0]
    assert edges(graph, "order")[:3] == [("d%p0", "d%p1"), ("d%p1", "d%p2"), ("d%p2", "d%p3")]


@given(
    st.lists(
        st.tuples(st.sampled_from("de"), st.integers(0, 12)), min_size=1, max_size=8, unique=True
    ),
    st.randoms(use_true_random=False),
)
def test_graph_is_the_literal_one_in_any_order_of_rows(candidates, random):
    docnos = [f"{document}%p{number}" for document, number in candidates]
    run = pd.DataFrame({"qid": "1", "docno": docnos, "text": docnos})
    ascending = sorted(candidates)
    order = [
        (f"{document}%p{number}", f"{document}%p{following}")
        for (document, number), (other, following) in zip(ascending, ascending[1:], strict=False)
        if document == other
    ]
    rows = [*range(len(run))]
    random.shuffle(rows)
    for frame in (run, run.iloc[rows]):
        graph = CandidateGraph()(frame)["graph"].iloc[0]
        assert edges(graph, "order") == order
        assert edges(graph, "structural") == [(f"{d}%p{n}", f"{d}%s0") for d, n in ascending]
        assert graph.texts(graph.nodes_of(docnos)) == docnos
