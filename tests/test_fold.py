"""Rankings of sections and documents by their passages, against plain loops."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_document_graph import DOCUMENTS, a_graph

from pyterrier_graph import DocumentGraph
from pyterrier_graph.graphs.memory_graph import MemoryGraph
from pyterrier_graph.graphs.passages import Fold

TestFold = pt.testing.transformer_test_class(lambda: a_graph().fold("title"))
TestFoldOfDocuments = pt.testing.transformer_test_class(lambda: a_graph().fold("document"))

GRAPH = MemoryGraph(DOCUMENTS)
PASSAGES = GRAPH.ids_of(GRAPH.passage_nodes)
RUN = pd.DataFrame(
    [
        ("1", "q", "numpy.dot%p1", 3.0, 7, "for"),
        ("1", "q", "numpy.vdot%p0", 2.0, 8, "of"),
        ("1", "q", "numpy.dot%p2", 4.0, 9, "see"),
        ("1", "q", "numpy.dot%p0", 2.0, 6, "dot"),
        ("2", "r", "numpy.vdot%p1", 1.0, 5, "flat"),
    ],
    columns=["qid", "query", "docno", "score", "docid", "text"],
)


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> DocumentGraph:
    return DocumentGraph(tmp_path_factory.mktemp("graph") / "graph").index(DOCUMENTS)


def test_sections_by_their_best_passage(graph):
    out = graph.fold()(RUN)
    assert list(out.columns) == ["qid", "query", "docno", "score", "text", "passage", "rank"]
    assert out[["qid", "docno", "score", "rank", "passage", "text"]].values.tolist() == [
        ["1", "numpy.dot%s1", 4.0, 0, "numpy.dot%p2", "see"],
        ["1", "numpy.vdot%s0", 2.0, 1, "numpy.vdot%p0", "of"],  # the first of equal scores
        ["1", "numpy.dot%s0", 2.0, 2, "numpy.dot%p0", "dot"],
        ["2", "numpy.vdot%s0", 1.0, 0, "numpy.vdot%p1", "flat"],
    ]
    assert pt.text.get_text(graph, "text")(out)["text"].tolist() == ["Notes", "vdot", "dot", "vdot"]


def test_bad_input(graph):
    with pytest.raises(ValueError, match=r"no relation 'relevant'"):
        graph.fold("relevant")
    with pytest.raises(pt.validate.InputValidationError):
        graph.fold()(RUN.drop(columns="score"))
    with pytest.raises(KeyError, match=r"put graph.passages\(\) before"):
        graph.fold()(RUN.assign(docno="numpy.dot"))
    with pytest.raises(KeyError, match="'numpy.dot%p9'.*another corpus"):
        graph.fold()(RUN.assign(docno="numpy.dot%p9"))
    with pytest.raises(KeyError, match="built from another corpus"):
        graph.fold("document")(RUN.assign(docno="nowhere%p0"))


# --- against plain loops

RELATIONS = ["structural", "title/title", "order", "structural/structural_i", "document"]


def leads_to(passage: str, relation: str) -> list[str]:
    if relation == "document":
        return [passage.split("%")[0]]
    nodes = [int(GRAPH.nodes_of([passage])[0])]
    start = nodes[0]
    for step in relation.split("/"):
        nodes = [int(other) for node in nodes for other in GRAPH.edges(step)[node]]
    return GRAPH.ids_of(np.array(sorted({*nodes} - {start}), dtype=np.int64)) or [passage]


def folded_in_words(scores: dict[str, float], relation: str) -> list[tuple[str, float, str]]:
    found: list[tuple[str, float, str]] = []
    for passage in sorted(scores, key=lambda passage: -scores[passage]):
        for name in leads_to(passage, relation):
            if name not in [earlier for earlier, _, _ in found]:
                found.append((name, scores[passage], passage))
    return found


scores = st.dictionaries(st.sampled_from(PASSAGES), st.integers(0, 3).map(float), min_size=1)


@given(st.fixed_dictionaries({"1": scores, "2": scores}), st.sampled_from(RELATIONS))
def test_fold_is_the_literal_one(found, relation):
    rows = [
        (qid, docno, score) for qid, ranking in found.items() for docno, score in ranking.items()
    ]
    run = pt.model.add_ranks(pd.DataFrame(rows, columns=["qid", "docno", "score"]))
    out = Fold(GRAPH, relation)(run)
    for qid, ranking in found.items():
        rows = out[out["qid"] == qid]
        assert rows["rank"].tolist() == [*range(len(rows))]
        assert [
            *rows[["docno", "score", "passage"]].itertuples(index=False, name=None)
        ] == folded_in_words(ranking, relation)
