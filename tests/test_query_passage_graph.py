from __future__ import annotations

import gc
import pickle
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st
from npids.lookup import Lookup

from pyterrier_graph.graphs import query_passage_graph
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph

TYPES = ("retrieved", "relevant")

PASSAGES = [f"d{number // 2}%p{number % 2}" for number in range(6)]
TOPICS = pd.DataFrame({"qid": ["q1", "q2", "q3"], "query": ["alpha", "beta", "gamma"]})
RUN = pd.DataFrame(
    [["q1", "d2%p0", 3.5], ["q1", "d0%p0", 2.0], ["q1", "d0%p1", 1.0], ["q3", "d2%p0", -1.0]],
    columns=["qid", "docno", "score"],
).assign(rank=[0, 1, 2, 0])
QRELS = pd.DataFrame(
    [["q1", "d2%p0", 2], ["q1", "d2%p1", 0], ["q2", "d0%p0", 1], ["other", "nowhere", 1]],
    columns=["qid", "docno", "label"],
)


def retriever(run: pd.DataFrame = RUN) -> pt.Transformer:
    return pt.Transformer.from_df(run)


def built(path: Path | str, **options) -> QueryPassageGraph:
    arguments = {"topics": TOPICS, "retriever": retriever(), "passages": PASSAGES, "qrels": QRELS}
    return QueryPassageGraph(path).build(**arguments | options)


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> QueryPassageGraph:
    return built(tmp_path_factory.mktemp("graph") / "graph", k=2)


# --- random graphs, and what they must be, literally

Literal = dict[str, list[dict[int, float]]]  # per edge type and query, the scores of passages


@st.composite
def collections(draw) -> tuple[list[str], pd.DataFrame, pd.DataFrame, pd.DataFrame, int]:
    """Passages, topics, a run, judgments, and k."""
    character = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
    names = st.one_of(
        st.text(character, min_size=1, max_size=5),
        st.builds("d{}%p{}".format, st.integers(0, 12), st.integers(0, 3)),
        st.integers(0, 300).map(str),
    )
    passages = draw(st.lists(names, min_size=1, max_size=8, unique=True))
    qids = draw(st.lists(names, min_size=1, max_size=7, unique=True))
    texts = st.text(character, min_size=1, max_size=9).filter(str.strip)
    topics = pd.DataFrame({"qid": qids, "query": [draw(texts) for _ in qids]}, dtype="str")
    found = st.dictionaries(st.sampled_from(passages), st.integers(-3, 3), max_size=8)
    run = [(qid, docno, score / 2) for qid in qids for docno, score in draw(found).items()]
    qrels = [(qid, docno, score) for qid in qids for docno, score in draw(found).items()]
    run, qrels = draw(st.permutations(run)), draw(st.permutations(qrels))
    return (
        passages,
        topics,
        frame(run, "score"),
        frame([*qrels, (qids[0], passages[0], -1)] if not qrels else qrels, "label"),
        draw(st.integers(1, 5)),
    )


def frame(rows, value: str) -> pd.DataFrame:
    made = pd.DataFrame(rows, columns=["qid", "docno", value]).astype(
        {"qid": "str", "docno": "str", value: float}
    )
    return pt.model.add_ranks(made) if value == "score" else made


def literal(passages, topics, run, qrels, k) -> Literal:
    edges: Literal = {edge_type: [{} for _ in topics["qid"]] for edge_type in TYPES}
    number = {qid: place for place, qid in enumerate(topics["qid"])}
    for qid, rows in run.groupby("qid", sort=False):
        best = sorted(zip(rows["score"], rows["docno"], strict=True), key=lambda row: -row[0])[:k]
        edges["retrieved"][number[qid]] = {passages.index(docno): score for score, docno in best}
    for qid, docno, label in qrels.itertuples(index=False):
        if label > 0:
            edges["relevant"][number[qid]][passages.index(docno)] = label
    return edges


def rows_of(edges: CSR) -> list[list[tuple[int, float, int]]]:
    scores, numbers = edges.data["scores"], edges.data["edges"]
    assert edges.indptr.dtype == edges.indices.dtype == numbers.dtype == np.int64
    assert scores.dtype == np.float32
    triples = [*zip(edges.indices.tolist(), scores.tolist(), numbers.tolist(), strict=True)]
    return [
        triples[start:end] for start, end in zip(edges.indptr[:-1], edges.indptr[1:], strict=True)
    ]


def check(
    graph: QueryPassageGraph,
    passages: list[str],
    topics: pd.DataFrame,
    expected: Literal,
    masked=(),
) -> None:
    assert graph.edge_types == TYPES
    assert (graph.num_queries, graph.num_passages) == (len(topics), len(passages))
    everyone, everything = np.arange(len(topics)), np.arange(len(passages))
    assert graph.qids_of(everyone) == topics["qid"].tolist()
    assert graph.texts(everyone) == topics["query"].tolist()
    assert graph.docnos_of(everything) == passages
    for edge_type in TYPES:
        edges = iter(range(100))
        numbered = [
            [(passage, score, next(edges)) for passage, score in sorted(row.items())]
            for row in expected[edge_type]
        ]
        assert graph.num_edges[edge_type] == next(edges)
        visible = [[] if query in masked else row for query, row in enumerate(numbered)]
        assert rows_of(graph.edges_of_queries(everyone, edge_type)) == visible
        backward = [
            [
                (query, score, edge)
                for query, row in enumerate(visible)
                for passage, score, edge in row
                if passage == here
            ]
            for here in everything
        ]
        assert rows_of(graph.edges_of_passages(everything, edge_type)) == backward
        joined = [(query, passage) for query, row in enumerate(numbered) for passage, _, _ in row]
        ends = graph._ends(np.arange(len(joined)), edge_type)
        assert [*zip(*(end.tolist() for end in ends), strict=True)] == joined


@given(collections(), st.integers(1, 4), st.data())
def test_graph_is_the_literal_one(collection, size, data):
    passages, topics, run, qrels, k = collection
    expected = literal(*collection)
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(query_passage_graph, "BATCH", size),
    ):
        new, options = QueryPassageGraph(f"{folder}/graph"), {"k": k, "qrels": qrels}
        if not any(expected["relevant"]):
            with pytest.raises(KeyError, match="nothing judged"):
                new.build(topics, passages, retriever(run), **options)
            return
        new.build(topics, iter(passages), retriever(run), **options)
        check(new, passages, topics, expected)
        opened = QueryPassageGraph(f"{folder}/graph")
        check(opened, passages, topics, expected)
        first = data.draw(st.lists(st.integers(0, len(topics) - 1), max_size=4))
        more = data.draw(st.lists(st.integers(0, len(topics) - 1), max_size=2))
        view = opened.without(np.array(first, dtype=np.int64)).without(
            np.array(more, dtype=np.int64)
        )
        check(view, passages, topics, expected, {*first, *more})
        check(opened, passages, topics, expected)


# --- reading


def test_passages_from_an_index(graph, tmp_path):
    class Index:
        def docnos(self) -> Lookup:
            return Lookup.build(PASSAGES, tmp_path / "docnos.npids")

    assert built(tmp_path / "index", passages=Index(), k=2).fingerprint() == graph.fingerprint()
    again = built(tmp_path / "lookup", passages=Lookup(tmp_path / "docnos.npids"), k=2)
    assert again.fingerprint() == graph.fingerprint()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda graph: graph.edges_of_passages(np.array([0, 6])), IndexError, "out of bounds"),
        (lambda graph: graph.without(np.array([3])), IndexError, "out of bounds"),
        (lambda graph: graph.edges_of_queries(np.array([0]), "found"), OSError, "found.indptr"),
        (lambda graph: graph.edge_features("relevant"), OSError, "relevant.features"),
    ],
)
def test_unknown_numbers_and_names(graph, call, error, message):
    with pytest.raises(error, match=message):
        call(graph)


def test_passages_of_a_document_graph(tmp_path):
    documents = [{"docno": f"d{number}", "text": "one two three four"} for number in range(3)]
    corpus = DocumentGraph(tmp_path / "corpus").index(documents, passage_words=2)
    graph = built(tmp_path / "graph", passages=corpus)
    assert graph.docnos_of(np.arange(graph.num_passages)) == PASSAGES
    assert graph.fingerprint() == built(tmp_path / "names").fingerprint()
    qrels = pd.DataFrame([["q1", "d2", 2], ["q2", "d0", 1]], columns=["qid", "docno", "label"])
    by_document = built(tmp_path / "of", passages=corpus, qrels=qrels)
    assert rows_of(by_document.edges_of_queries(np.arange(2), "relevant")) == [
        [(4, 2.0, 0), (5, 2.0, 1)],
        [(0, 1.0, 2), (1, 1.0, 3)],
    ]


def test_the_fingerprint_covers_all_that_results_depend_on(tmp_path, graph):
    original = built(tmp_path / "original", k=2)
    assert original.fingerprint() == graph.fingerprint()
    changes = {
        "query": {"topics": changed(TOPICS, 1, query="other")},
        "score": {"retriever": retriever(changed(RUN, 3, score=-1.5))},
        "label": {"qrels": changed(QRELS, 0, label=3)},
    }
    seen = {"original": original.fingerprint()}
    for name, change in changes.items():
        seen[name] = built(tmp_path / name, **{"k": 2} | change).fingerprint()
    view = original.without(np.array([1]))
    seen["mask"] = view.fingerprint()
    assert pickle.loads(pickle.dumps(view)).fingerprint() == seen["mask"]
    original.add_edge_features(Encoder(), TEXTS)
    seen["features"] = original.fingerprint()
    assert len({*seen.values()}) == len(seen)


# --- bad input, and what must not be left behind


def changed(frame: pd.DataFrame, row: int, **values) -> pd.DataFrame:
    frame = frame.astype(object)
    for column, value in values.items():
        frame.loc[row, column] = value
    return frame


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"topics": changed(TOPICS, 1, query="  ")}, ValueError, "query 'q2' has no text"),
        ({"passages": PASSAGES[:1]}, KeyError, "'d2%p0' is not a passage"),
        ({"qrels": QRELS.assign(docno="e")}, KeyError, "nothing judged is in"),
        (
            {"retriever": retriever(changed(RUN, 2, score=np.nan))},
            ValueError,
            "1 rows have no score",
        ),
    ],
)
@pytest.mark.filterwarnings(
    "error::ResourceWarning", "error::pytest.PytestUnraisableExceptionWarning"
)
def test_bad_input_leaves_nothing(tmp_path, monkeypatch, options, error, message):
    monkeypatch.setattr(query_passage_graph, "BATCH", 2)
    with pytest.raises(error, match=message):
        built(tmp_path / "graph", **options)
    gc.collect()
    assert not any(tmp_path.iterdir())


class Retriever(pt.Transformer):
    """Remembers for which queries it was asked, and fails at one call."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.fail_at, self.asked = fail_at, []

    def __repr__(self) -> str:
        return f"Retriever at {hex(id(self))}"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        if len(self.asked) == self.fail_at:
            raise KeyboardInterrupt
        self.asked.append(inp["qid"].tolist())
        return retriever().transform(inp)


def test_an_interrupted_build_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(query_passage_graph, "BATCH", 1)
    whole = tiny.contents(built(tmp_path / "whole").path)
    path = tmp_path / "graph"
    with pytest.raises(KeyboardInterrupt):
        built(path, retriever=Retriever(2))
    with pytest.raises(KeyboardInterrupt), monkeypatch.context() as patch:  # when all are retrieved
        patch.setattr(query_passage_graph, "_write", mock.Mock(side_effect=KeyboardInterrupt))
        built(path, retriever=Retriever())
    for options, message in (
        ({"passages": PASSAGES[::-1]}, "docnos_sha256 was"),
        ({"k": 3}, "k was 25, is 3"),
        ({"topics": TOPICS.assign(query="alpha")}, "topics_sha256 was"),
        ({"retriever": retriever()}, "retriever was 'Retriever', is "),
    ):
        with pytest.raises(ValueError, match=f"holds unfinished work on other inputs .*{message}"):
            built(path, **{"retriever": Retriever()} | options)
    again = Retriever()
    assert tiny.contents(built(path, retriever=again).path) == whole
    assert again.asked == []
    assert sorted(file.name for file in tmp_path.iterdir()) == ["graph", "whole"]


# --- edge features


class Encoder:
    """Lengths, and a number per pair; counts the pairs."""

    def __init__(self) -> None:
        self.pairs: list[tuple[str, str]] = []

    def __call__(self, queries: list[str], passages: list[str]) -> np.ndarray:
        pairs = [*zip(queries, passages, strict=True)]
        self.pairs += pairs
        rows = [[len(query), sum(map(ord, query + passage)) % 97] for query, passage in pairs]
        return np.array(rows, dtype=np.float32)


TEXTS = pt.apply.text(lambda row: "text of " + row["docno"])


def test_edge_features(tmp_path, monkeypatch):
    monkeypatch.setattr(query_passage_graph, "BATCH", 3)
    graph, encoder = built(tmp_path / "graph"), Encoder()
    assert graph.add_edge_features(encoder, TEXTS) is graph
    pairs = [("alpha", "d0%p0"), ("alpha", "d0%p1"), ("alpha", "d2%p0"), ("gamma", "d2%p0")]
    pairs = [(query, f"text of {docno}") for query, docno in pairs]
    assert encoder.pairs == pairs
    features = QueryPassageGraph(graph.path).edge_features()
    assert features.dtype == np.float16
    assert features.tolist() == Encoder()(*map(list, zip(*pairs, strict=True))).tolist()
    backward = graph.edges_of_passages(np.array([4]))
    assert features[backward.data["edges"]].tolist() == features[[2, 3]].tolist()
    with pytest.raises(FileExistsError, match="exists already"):
        graph.add_edge_features(encoder, TEXTS)
    graph.without(np.array([0])).add_edge_features(encoder, TEXTS, edge_type="relevant")
    assert QueryPassageGraph(graph.path).edge_features("relevant").shape == (2, 2)
