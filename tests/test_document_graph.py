from __future__ import annotations

import gc
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pyterrier_graph.documents.document import (
    PASSAGE,
    SECTION,
    Link,
    Node,
    Reference,
    StructuredDocument,
    split_passage_id,
)
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.graphs.hetero_graph import (
    HeteroGraph,
    check_relations,
    paper_relations,
)
from pyterrier_graph.graphs.memory_graph import MemoryGraph

PAPER = tuple(
    f"{name}{end}" for name in ("order", "structural", "internal", "external") for end in ("", "_i")
)


def numpy_document() -> StructuredDocument:
    return StructuredDocument(
        "numpy.dot",
        (
            Node(SECTION, "dot", -1),
            Node(PASSAGE, "Dot product.", 0),
            Node(SECTION, "Notes", 0),
            Node(PASSAGE, "For 2-D arrays.", 2),
            Node(PASSAGE, "See above.", 2),
        ),
        (Link("internal", 4, 1), Link("internal", 4, 1), Link("internal", 4, 4)),
        (Reference("external", 0, "numpy.vdot"), Reference("external", 0, "scipy.nowhere")),
        ("linalg", "product"),
    )


DOCUMENTS = [
    numpy_document(),
    StructuredDocument("empty", (Node(SECTION, "", -1),)),
    StructuredDocument(
        "numpy.vdot",
        (
            Node(SECTION, "vdot", -1),
            Node(PASSAGE, "Of two vectors.", 0),
            Node(PASSAGE, "Flattens.", 0),
        ),
        references=(
            Reference("example", 1, "numpy.dot%p2"),
            Reference("example", 2, "numpy.dot%p3"),
        ),
        codes=("product",),
    ),
]


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> DocumentGraph:
    return DocumentGraph(tmp_path_factory.mktemp("graph") / "graph").index(DOCUMENTS)


def test_hetero_data_has_messages_from_neighbors(graph):
    whole = graph.to_hetero_data()
    assert whole.num_edges == sum(graph.meta["edges"].values())
    data = whole.subgraph({kind: whole[kind].node < 5 for kind in whole.node_types})
    assert data["passage"].node.tolist() == [1, 3, 4]
    assert data["section"].node.tolist() == [0, 2]
    # passage 0 -> passage 1 in order: 0 aggregates from 1, and PyG sends from row 0 to row 1
    assert data["passage", "order", "passage"].edge_index.tolist() == [[1, 2], [0, 1]]
    assert data["passage", "structural_i", "section"].edge_index.tolist() == [[0, 1, 2], [0, 1, 1]]


# --- random documents, and what their graph must be, literally


@st.composite
def corpora(draw) -> list[StructuredDocument]:
    texts = st.text(max_size=8)
    names = st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=6
    )
    docnos = draw(
        st.lists(
            st.one_of(
                names,
                st.from_regex(r"d[0-9]{1,3}", fullmatch=True),
                st.from_regex(r"[0-9]{1,4}", fullmatch=True),
            ),
            min_size=1,
            max_size=6,
            unique=True,
        ).map(
            lambda docnos: (
                [docno for docno in docnos if split_passage_id(docno)[1] is None] or ["d"]
            )
        )
    )
    documents = []
    for docno in docnos:
        size = draw(st.integers(1, 7))
        nodes = [Node(SECTION, draw(texts), -1)]
        for _ in range(size - 1):
            above = [place for place, node in enumerate(nodes) if node.kind == SECTION]
            kind = draw(st.sampled_from([SECTION, PASSAGE]))
            nodes.append(Node(kind, draw(texts), draw(st.sampled_from(above))))
        within = st.integers(0, size - 1)
        links = draw(
            st.lists(
                st.builds(Link, st.sampled_from(["internal", "zeta"]), within, within), max_size=4
            )
        )
        targets = st.one_of(
            st.sampled_from(docnos),
            st.just("nowhere"),
            st.builds(
                lambda target, number: f"{target}%p{number}",
                st.sampled_from(docnos),
                st.integers(0, 3),
            ),
        )
        references = st.lists(
            st.builds(Reference, st.sampled_from(["external", "zeta", "alpha"]), within, targets),
            max_size=4,
        )
        codes = st.lists(st.sampled_from("xyz"), max_size=3)
        documents.append(
            StructuredDocument(
                docno,
                tuple(nodes),
                tuple(links),
                tuple(draw(references)),
                tuple(draw(codes)),
            )
        )
    assume(any(document.passages() for document in documents))
    return documents


def literal(
    documents: list[StructuredDocument],
) -> tuple[dict[str, set[tuple[int, int]]], Counter[str], list[str]]:
    """Edges per relation, unresolved references, and ids, by plain loops over the definitions."""
    number, ids = {}, []
    for document in documents:
        counts: Counter[str] = Counter()
        for position, node in enumerate(document.nodes):
            number[document.docno, position] = len(ids)
            ids.append(
                f"{document.docno}%{'p' if node.kind == PASSAGE else 's'}{counts[node.kind]}"
            )
            counts[node.kind] += 1
    edges: dict[str, set[tuple[int, int]]] = {
        relation: set() for relation in [*PAPER, "title", "title_i"]
    }
    unresolved: Counter[str] = Counter()
    for document in documents:
        passages = [
            position for position, node in enumerate(document.nodes) if node.kind == PASSAGE
        ]
        found = [("order", one, two) for one, two in zip(passages, passages[1:], strict=False)]
        found += [
            ("structural", n, node.parent)
            for n, node in enumerate(document.nodes)
            if node.parent >= 0
        ]
        for n, node in enumerate(document.nodes):
            above = node.parent
            while above >= 0 and not document.nodes[above].text.strip():
                above = document.nodes[above].parent
            found += [("title", n, above)] if above >= 0 else []
        for relation, source, target in [*found, *document.links]:
            edges.setdefault(relation, set()).add(
                (number[document.docno, source], number[document.docno, target])
            )
        for relation, source, target in document.references:
            edges.setdefault(relation, set())
            docno, _ = split_passage_id(target)
            other = next((other for other in documents if other.docno == docno), None)
            if other is not None and docno == target:
                edges[relation].add((number[document.docno, source], number[docno, 0]))
            elif target in ids:
                edges[relation].add((number[document.docno, source], ids.index(target)))
            else:
                unresolved[relation] += 1
    for relation in [relation for relation in edges if not relation.endswith("_i")]:
        edges[relation] = {(i, j) for i, j in edges[relation] if i != j}
        edges[f"{relation}_i"] = {(j, i) for i, j in edges[relation]}
    return edges, unresolved, ids


def check(graph: HeteroGraph, documents: list[StructuredDocument]) -> None:
    edges, unresolved, ids = literal(documents)
    everyone = np.arange(graph.num_nodes)
    nodes = [node for document in documents for node in document.nodes]
    assert set(graph.relations) == set(edges)
    assert graph.relations[:10] == (*PAPER, "title", "title_i")
    assert list(graph.relations[10::2]) == sorted(graph.relations[10::2])
    assert paper_relations(graph) == PAPER + graph.relations[10:]
    assert Counter(graph.unresolved) == unresolved
    for relation in graph.relations:
        i, j = graph.neighbors(everyone, relation)
        assert list(zip(i.tolist(), j.tolist(), strict=True)) == sorted(edges[relation]), relation
        assert i.dtype == j.dtype == np.int64
    assert len(graph) == len(documents)
    assert graph.num_nodes == len(nodes)
    assert graph.ids_of(everyone) == ids
    assert graph.nodes_of(ids).tolist() == everyone.tolist()
    assert graph.texts(everyone) == [node.text for node in nodes]
    assert graph.node_type.tolist() == [int(node.kind == SECTION) for node in nodes]
    assert graph.docnos_of(graph.document) == [
        document.docno for document in documents for _ in document.nodes
    ]
    assert graph.document_of([document.docno for document in documents]).tolist() == [
        *range(len(documents))
    ]
    starts = np.cumsum([0, *(len(document.nodes) for document in documents)])
    assert graph.node_offsets.tolist() == starts.tolist()
    parents = [
        start + n.parent if n.parent >= 0 else -1
        for d, start in zip(documents, starts, strict=False)
        for n in d.nodes
    ]
    assert graph.parent.tolist() == parents
    titles = []
    for node in everyone:
        path, above = [], parents[node]
        while above >= 0:
            path.insert(0, nodes[above].text)
            above = parents[above]
        titles.append(" - ".join(title for title in path if title.strip()))
    assert graph.titles(everyone) == titles
    rows, passages = graph.document_passages.select(np.arange(len(documents)))
    expected = [
        (d, start + n)
        for d, start in enumerate(starts[:-1])
        for n, node in enumerate(documents[d].nodes)
        if node.kind == PASSAGE
    ]
    assert list(zip(rows.tolist(), passages.tolist(), strict=True)) == expected
    rows, codes = graph.document_codes.select(np.arange(len(documents)))
    named = {
        (row, graph.code_names[code])
        for row, code in zip(rows.tolist(), codes.tolist(), strict=True)
    }
    assert named == {
        (row, code) for row, document in enumerate(documents) for code in document.codes
    }


@given(corpora())
def test_memory_graph_is_the_literal_one(documents):
    check(MemoryGraph(documents), documents)


@given(corpora())
def test_document_graph_is_the_literal_one(documents):
    with tempfile.TemporaryDirectory() as folder:
        graph = DocumentGraph(f"{folder}/graph").index(iter(documents))
        check(graph, documents)
        check(DocumentGraph(f"{folder}/graph"), documents)
        memory = MemoryGraph(documents)
        edges = {name: len(memory.edges(name).indices) for name in memory.relations}
        assert graph.meta["edges"] == edges


# --- reading


def test_all_titles_above_a_node():
    graph = a_graph()
    nodes = np.arange(graph.num_nodes)
    rows, reached = graph.neighbors(nodes, "titles")
    found = [graph.ids_of(reached[rows == row]) for row in range(len(nodes))]
    for node, titles in zip(nodes.tolist(), found, strict=True):
        expected, above = [], np.array([node])
        while len(above := graph.neighbors(above, "title")[1]):  # one step after the other
            expected += graph.ids_of(above)
        assert [*titles] == expected
    assert max(map(len, found)) > 1  # some have several
    check_relations(graph, ["titles"])
    with pytest.raises(ValueError, match="no relation 'titles' of the path"):
        check_relations(graph, ["titles/order"])


@pytest.mark.parametrize(
    ("method", "arguments", "error", "message"),
    [
        (
            "nodes_of",
            [["numpy.dot"]],
            KeyError,
            r"nodes \['numpy.dot'\] not in the graph.*put graph.passages\(\) before",
        ),
        ("nodes_of", [["numpy.dot%p3"]], KeyError, "another corpus"),
        ("document_of", [["numpy.dot%p0"]], KeyError, "max_passage"),
        ("neighbors", [np.array([9]), "order"], IndexError, "out of bounds"),
    ],
)
def test_unknown_names_and_numbers(graph, method, arguments, error, message):
    with pytest.raises(error, match=message):
        getattr(graph, method)(*arguments)


def test_corpus_iterators(graph):
    assert [*graph.get_corpus_iter()][1] == {
        "docno": "numpy.dot%p1",
        "title": "dot - Notes",
        "text": "For 2-D arrays.",
    }
    documents = [*graph.get_corpus_iter("documents")]
    assert [record["docno"] for record in documents] == ["numpy.dot", "empty", "numpy.vdot"]
    assert documents[0]["text"] == "Dot product.\nNotes\nFor 2-D arrays.\nSee above."
    assert documents[2] == {
        "docno": "numpy.vdot",
        "title": "vdot",
        "text": "Of two vectors.\nFlattens.",
    }


# --- building


def test_plain_documents_are_split(tmp_path):
    corpus = [{"docno": "1", "title": "One", "text": "a b c d e"}, {"docno": "2", "text": ""}]
    graph = DocumentGraph(tmp_path / "graph").index(corpus, passage_words=2)
    assert graph.texts(graph.passage_nodes) == ["a b", "c d", "e"]
    assert graph.titles(graph.passage_nodes) == ["One"] * 3
    assert graph.docnos_of(np.arange(2)) == ["1", "2"]
    with pytest.raises(FileExistsError, match="exists already"):
        DocumentGraph(graph.path).index(corpus)


ROOT, TEXT = Node(SECTION, "", -1), Node(PASSAGE, "x", 0)


@pytest.mark.parametrize(
    ("corpus", "message"),
    [
        ("folder", "a document must be a dictionary with 'docno', got 'f'"),
        ([], "the corpus has none"),
        ([{"docno": "a", "text": "x"}, {"docno": "a", "text": "y"}], "'a' comes twice"),
        ([{"docno": "a", "text": float("nan")}], "document 'a': .* must be an iterable"),
        ([{"docno": "a%p0", "nodes": [ROOT, TEXT]}], "must not look like"),
        ([{"docno": "a", "nodes": [ROOT, TEXT._replace(text="\ud800")]}], "surrogates not allowed"),
        (
            [StructuredDocument("a", (ROOT, TEXT), (Link("../up", 0, 0),))],
            "cannot be called '../up'",
        ),
        (
            [StructuredDocument("a", (ROOT, TEXT), (Link("knn_i", 0, 0),))],
            "cannot be called 'knn_i'",
        ),
        (
            [StructuredDocument("a", (ROOT, TEXT), (Link("order", 0, 0),))],
            "cannot be called 'order'",
        ),
        (
            [{"docno": "a", "nodes": [("section", "", 1), ("section", "", 0)]}],
            "(?s)document 'a': .* must be the root section",
        ),
    ],
)
@pytest.mark.filterwarnings(
    "error::ResourceWarning", "error::pytest.PytestUnraisableExceptionWarning"
)
def test_bad_corpus_leaves_nothing(tmp_path, corpus, message):
    graph = DocumentGraph(tmp_path / "graph")
    with pytest.raises((TypeError, ValueError), match=message):
        graph.index(corpus)
    gc.collect()
    assert not graph.built()
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_the_fingerprint_covers_texts_and_relations(tmp_path, kind):
    def fingerprint(documents: list[StructuredDocument], name: str) -> str:
        if kind == "memory":
            return MemoryGraph(documents).fingerprint()
        return DocumentGraph(tmp_path / name).index(documents).fingerprint()

    one = numpy_document()
    changes = [
        one,
        replace(one, docno="numpy.tensordot"),
        replace(one, links=()),
        replace(one, nodes=(*one.nodes[:-1], one.nodes[-1]._replace(text="changed"))),
    ]
    assert len(
        {fingerprint([change], str(number)) for number, change in enumerate(changes)}
    ) == len(changes)
    assert fingerprint([one], "again") == fingerprint([one], "once more")


# --- transformers


def a_graph() -> DocumentGraph:
    return DocumentGraph(Path(tempfile.mkdtemp(), "graph")).index(DOCUMENTS)


TestPassages = pt.testing.transformer_test_class(lambda: a_graph().passages())
TestTextLoader = pt.testing.transformer_test_class(lambda: a_graph().text_loader())


RUN = pd.DataFrame(
    [
        ["1", "dot", "numpy.vdot", 2.0, 1, 7],
        ["1", "dot", "numpy.dot", 2.0, 0, 8],
        ["2", "x", "numpy.vdot", 1.0, 0, 9],
    ],
    columns=["qid", "query", "docno", "score", "rank", "docid"],
)


def test_passages(graph):
    out = graph.passages()(RUN.sort_values(["qid", "rank"]))
    assert list(out.columns) == ["qid", "query", "docno", "score", "text", "rank"]
    assert out["docno"].tolist() == [
        *("numpy.dot%p0", "numpy.dot%p1", "numpy.dot%p2", "numpy.vdot%p0", "numpy.vdot%p1"),
        *("numpy.vdot%p0", "numpy.vdot%p1"),
    ]
    assert out["rank"].tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert out["score"].tolist() == [2.0] * 5 + [1.0] * 2
    assert out["text"].tolist()[3:5] == ["Of two vectors.", "Flattens."]


def test_corpus_graph_over_passages(graph, tmp_path):
    corpus = graph.corpus_graph(["example", "order", "order_i"], 2, tmp_path / "corpus")
    passages = [record["docno"] for record in graph.get_corpus_iter()]
    neighbors = {docno: corpus.neighbours(docno, weights=True) for docno in passages}
    assert {
        docno: (list(ids), weights.tolist()) for docno, (ids, weights) in neighbors.items()
    } == {
        "numpy.dot%p0": (["numpy.dot%p1", "numpy.dot%p0"], [1, 0]),
        "numpy.dot%p1": (["numpy.dot%p2", "numpy.dot%p0"], [1, 1]),
        "numpy.dot%p2": (["numpy.dot%p1", "numpy.dot%p2"], [1, 0]),
        "numpy.vdot%p0": (["numpy.dot%p2", "numpy.vdot%p1"], [1, 1]),
        "numpy.vdot%p1": (["numpy.vdot%p0", "numpy.vdot%p1"], [1, 0]),
    }
    assert corpus.neighbours(0).tolist() == [1, 0]
    assert isinstance(pt.Artifact.load(str(tmp_path / "corpus")), type(corpus))
