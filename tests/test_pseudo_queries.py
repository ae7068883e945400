"""Queries from structure against a literal reading of the documents, and generated queries in a query graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

import pyterrier_graph as ptg
from pyterrier_graph.documents.document import Node, StructuredDocument
from pyterrier_graph.graphs.hetero_graph import MemoryGraph
from pyterrier_graph.graphs.pseudo_queries import KINDS, pseudo_queries

HEADINGS = ["", "mu", "Alpha", "is it beta?", "how does gamma work?"]
SENTENCES = ["alpha beta gamma delta mu.", "mu.", "is it beta?", "one two three four five six."]


@st.composite
def documents(draw: st.DrawFn) -> list[StructuredDocument]:
    """Titles that repeat, are empty or are questions; passages that repeat sentences and titles."""
    made = []
    for number in range(draw(st.integers(1, 3))):
        nodes = [Node("section", draw(st.sampled_from(HEADINGS)), -1)]
        for _ in range(draw(st.integers(0, 6))):
            above = draw(
                st.sampled_from(
                    [place for place, node in enumerate(nodes) if node.kind == "section"]
                )
            )
            parts = draw(st.lists(st.sampled_from(SENTENCES), max_size=3))
            section = Node("section", draw(st.sampled_from(HEADINGS)), above)
            nodes.append(draw(st.sampled_from([section, Node("passage", " ".join(parts), above)])))
        made.append(StructuredDocument(f"d{number}", tuple(nodes)))
    return made


def titles_above(document: StructuredDocument, place: int) -> list[str]:
    """The titles of the sections around a node, from the root down."""
    parent = document.nodes[place].parent
    own = [] if parent < 0 else [document.nodes[parent].text]
    return [*(titles_above(document, parent) if parent >= 0 else []), *filter(None, own)]


@given(documents(), st.sampled_from(KINDS), st.integers(1, 3))
def test_queries_are_those_of_the_documents(
    made: list[StructuredDocument], kind: str, count: int
) -> None:
    graph = MemoryGraph.from_documents(made)
    expected: dict[str, set[str]] = {}
    unusable = 0
    for document in made:
        number = -1
        for place, node in enumerate(document.nodes):
            number += node.kind == "passage"
            above = titles_above(document, place)
            if node.kind == "section" or not above:
                continue
            said = [
                sentence.strip(" .?").casefold()
                for sentence in node.text.replace("?", ".").split(".")
            ]
            if not node.text.strip() or above[-1].strip("?").casefold() in said:
                unusable += 1
            else:
                query = above[-1] if above[-1].endswith("?") else " ".join(above)
                if above[-1].endswith("?") == (kind == "question"):
                    expected.setdefault(query, set()).add(f"{document.docno}%p{number}")
    if kind != "sentence" and not expected:
        with pytest.raises(ValueError, match="nothing to make queries of kind"):
            pseudo_queries(graph, kind, 100, 0)
        return
    try:
        topics, qrels = pseudo_queries(graph, kind, 100, 0)
    except ValueError:
        assert kind == "sentence"
        return
    assert (
        topics["qid"].is_unique
        and set(topics["qid"]) == set(qrels["qid"])
        and (topics["kind"] == kind).all()
    )
    found = qrels.merge(topics, on="qid")
    if kind == "sentence":
        texts, sources = (
            graph.texts(graph.nodes_of(found[name].tolist())) for name in ("docno", "source")
        )
        parents = [
            graph.parent[graph.nodes_of(found[name].tolist())] for name in ("docno", "source")
        ]
        assert (parents[0] == parents[1]).all() and (found["docno"] != found["source"]).all()
        assert all(
            q in source and q not in text
            for q, source, text in zip(found["query"], sources, texts, strict=True)
        )
    else:
        assert {query: set(part) for query, part in found.groupby("query")["docno"]} == expected
    try:
        fewer = pseudo_queries(graph, [kind], count, 1)[0] if len(topics) > count else topics
    except (
        ValueError
    ) as error:  # all titles that were drawn have no passage, or only passages that repeat them
        assert (unusable >= count or kind == "sentence") and f"; {count} were drawn" in str(error)
        return
    assert set(fewer["query"]) <= set(topics["query"]) or kind == "sentence"
    assert len(fewer) <= count or fewer is topics


GENERATED = pd.DataFrame(
    {"docno": ["d0%p0", "d1%p0", "d2%p1"], "querygen": ["how\nwhat is mu", ["what is mu"], ""]}
)


def test_generated_queries_are_not_judged_ones(tmp_path: Path) -> None:
    """They are nodes with edges of their own, from lists, lines or rows; equal texts are one node."""
    graph = tiny.graph()
    queries = ptg.QueryPassageGraph(tmp_path / "q", verbose=False)
    queries.build(tiny.topics(), graph, qrels=tiny.qrels(), generated=GENERATED)
    assert queries.edge_types == ("relevant", "generated") and queries.num_queries == 8
    assert queries.texts(np.array([6, 7])) == ["how", "what is mu"]
    assert queries.qids_of(np.array([0, 6, 7])) == ["t0", "generated:0", "generated:1"]
    assert queries.edges_of_queries(np.array([0, 6, 7]), "generated").lengths.tolist() == [0, 1, 2]
    assert queries.edges_of_queries(np.array([0, 6]), "relevant").lengths.tolist() == [3, 0]
    rows = pd.DataFrame(
        {"query": ["how", "what is mu", "what is mu"], "docno": ["d0%p0", "d0%p0", "d1%p0"]}
    )
    alone = [
        ptg.QueryPassageGraph(tmp_path / name, verbose=False).build(None, graph, generated=frame)
        for name, frame in (("lines", GENERATED), ("rows", rows))
    ]
    assert alone[0].fingerprint() == alone[1].fingerprint() and alone[0].edge_types == (
        "generated",
    )
    with pytest.raises(ValueError, match="a retriever and qrels need topics"):
        ptg.QueryPassageGraph(tmp_path / "no").build(
            None, graph, qrels=tiny.qrels(), generated=GENERATED
        )
    with pytest.raises(ValueError, match="generated= has no query"):
        ptg.QueryPassageGraph(tmp_path / "no").build(None, graph, generated=GENERATED[2:])
