"""GraphMean against its literal definition: one passage, one source at a time."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
from pyterrier_dr import BiEncoder, FlexIndex
from tiny import WORDS

import pyterrier_graph as ptg
from pyterrier_graph.documents.document import Node, StructuredDocument
from pyterrier_graph.graph_mean import contextual_index
from pyterrier_graph.graphs.memory_graph import MemoryGraph

DIMENSION, DOCUMENTS, PASSAGES = 12, 6, 4
COUNT = DOCUMENTS * PASSAGES


class Words(BiEncoder):
    """The vector of a text is the sum of its words' vectors: of different lengths, zero for no words."""

    model_name = "words"

    def __init__(self) -> None:
        super().__init__()
        self.verbose, self.text_field = False, "text"

    def encode_queries(self, texts: Any, batch_size: int | None = None) -> np.ndarray:
        vectors = [sum(map(self._word, text.split()), np.zeros(DIMENSION)) for text in texts]
        return np.array(vectors, np.float32).reshape(-1, DIMENSION)

    encode_docs = encode_queries

    def _word(self, word: str) -> np.ndarray:
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "little")
        return np.random.default_rng(seed).normal(size=DIMENSION)


def document(number: int) -> StructuredDocument:
    """Passages of the first document have no title."""
    texts = [
        f"{WORDS[(number + n) % 12]} word{n} {'mu ' * n}number{number}" for n in range(PASSAGES)
    ]
    title = f"{WORDS[number]} title" if number else ""
    passages = (Node("passage", text, 0) for text in texts)
    return StructuredDocument(f"d{number}", (Node("section", title, -1), *passages))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """24 passages of 6 documents; 16 queries, of which 12 have a relevant passage, and a graph of them."""
    folder = tmp_path_factory.mktemp("graph-mean")
    documents = MemoryGraph([document(number) for number in range(DOCUMENTS)])
    docnos = documents.ids_of(documents.passage_nodes)
    encoder = Words()
    texts = documents.texts(documents.passage_nodes, titles=True)
    qids = [f"q{n}" for n in range(16)]
    queries = [f"{WORDS[n % 12]} number{n % 7} {WORDS[5]}" for n in range(16)]
    topics = pd.DataFrame({"qid": qids, "query": queries})
    found = [
        (qid, docnos[(5 * n + k) % 24], 9.0 - k) for n, qid in enumerate(qids) for k in range(3)
    ]
    results = topics.merge(pd.DataFrame(found, columns=["qid", "docno", "score"]))
    answers = [docnos[(7 * n) % 10] for n in range(12)]
    qrels = pd.DataFrame({"qid": qids[:12], "docno": answers, "label": 1})
    retrieve = pt.Transformer.from_df(pt.model.add_ranks(results))
    graph = ptg.QueryPassageGraph(folder / "queries")
    graph.build(topics, docnos, retrieve, k=3, qrels=qrels)
    retrieved = ptg.QueryPassageGraph(folder / "retrieved").build(topics, docnos, retrieve, k=3)
    return SimpleNamespace(**locals())


def mean(small: Any, weights: Any = None, **options: Any) -> ptg.GraphMean:
    options = {"query_graph": small.graph, "device": "cpu", "verbose": False} | options
    return ptg.GraphMean(options.pop("graph", small.documents), small.encoder, weights, **options)


# --- the literal definition


def added(x: np.ndarray, sources: list[np.ndarray]) -> np.ndarray:
    """What a relation adds to a passage."""
    total = sum(sources, np.zeros_like(x))
    if not total.any():
        return total
    m = total / np.linalg.norm(total)
    return (np.linalg.norm(x) - float(x @ m)) * m


def factors(small: Any, weights: dict[str, float], masked: set[str]) -> np.ndarray:
    """More than 1 for passages without a relevant query, where others have some."""
    counts = np.array([len(sources_of(small, "relevant", p, masked)) for p in range(COUNT)])
    if "relevant" not in weights:
        return np.ones(COUNT)
    u = (counts > 0).mean()
    c = (counts[counts > 1].sum() + u) / (counts.sum() + 1)
    beta = ((1 - c) / (1 - u)) / ((1 - c) / (1 - u) + c / u)
    return np.where(counts > 0, 1.0, 1 + beta * weights["relevant"])


def sources_of(small: Any, relation: str, passage: int, masked: set[str]) -> list[np.ndarray]:
    docno = small.docnos[passage]
    if relation == "titles":
        title = document(int(docno[1])).nodes[0].text
        return [small.encoder.encode_docs([title])[0].astype(float)] if title else []
    pairs = small.qrels if relation == "relevant" else small.results
    qids = [qid for qid in pairs.loc[pairs["docno"] == docno, "qid"] if qid not in masked]
    texts = dict(zip(small.topics["qid"], small.topics["query"], strict=True))
    return [small.encoder.encode_queries([texts[qid]])[0].astype(float) for qid in qids]


CASES: dict[str, tuple[dict[str, float], set[str]]] = {
    "nothing": ({}, set()),
    "titles": ({"titles": 0.5}, set()),
    "titles and relevant queries": ({"titles": 0.5, "relevant": 0.75}, set()),
    "retrieved queries": ({"retrieved": 1.5}, set()),
    "masked queries": ({"titles": 1.0, "relevant": 0.5}, {"q0", "q1", "q7", "q11"}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_ranking_is_the_literal_one(
    small: Any, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contextual_index, "PASSAGES_AT_ONCE", 5)
    weights, masked = CASES[case]
    graph = small.graph.without(np.array([int(qid[1:]) for qid in masked], dtype=int))
    model = mean(small, weights, query_graph=graph)
    index = model.index(tmp_path / "index")
    vectors = small.encoder.encode_docs(small.texts).astype(float)
    scales = factors(small, weights, masked)
    expected = np.array(
        [
            scales[p]
            * (
                x
                + sum(
                    w * added(x, sources_of(small, name, p, masked)) for name, w in weights.items()
                )
            )
            for p, x in enumerate(vectors)
        ]
    )
    np.testing.assert_allclose(index.flex.np_vecs(), expected, atol=1e-5)
    np.testing.assert_allclose(model.vectors_of(small.docnos[7:4:-1]), expected[7:4:-1], atol=1e-5)
    queries = small.encoder.encode_queries(small.topics["query"].tolist())
    scores = queries @ expected.T
    found = index.retriever(5)(small.topics)
    best = [small.docnos[p] for row in scores for p in np.argsort(-row)[:5]]
    assert found["docno"].tolist() == best
    np.testing.assert_allclose(found["score"], -np.sort(-scores)[:, :5].ravel(), rtol=1e-4)
    for docno in (small.docnos[0], small.docnos[8]):
        parts = model.explain(small.topics["query"][3], docno)
        assert parts["score"].sum() == pytest.approx(scores[3, small.docnos.index(docno)], abs=1e-4)
        for name, terms in parts[1:].groupby("relation"):
            p = small.docnos.index(docno)
            total = weights[name] * added(vectors[p], sources_of(small, name, p, masked))
            total *= scales[p]
            assert terms["score"].sum() == pytest.approx(float(queries[3] @ total), abs=1e-4)


# --- weights


def test_default_weights(small: Any) -> None:
    bare = [
        StructuredDocument(f"d{n}", (Node("section", "", -1), *document(n).nodes[1:]))
        for n in range(DOCUMENTS)
    ]
    untitled = MemoryGraph(bare)
    assert mean(small).weights == {"titles": 0.75, "relevant": 0.75}
    assert mean(small, query_graph=small.retrieved).weights == {"titles": 0.75, "retrieved": 0.75}
    assert mean(small, graph=untitled).weights == {"relevant": 0.75}
    with pytest.warns(UserWarning, match="has no titles: passages aggregate from nothing") as said:
        alone = mean(small, graph=untitled, query_graph=None)
    assert len(said) == 1
    plain = small.encoder.encode_docs(untitled.texts(untitled.passage_nodes))
    np.testing.assert_allclose(alone.vectors_of(small.docnos), plain, atol=1e-6)


def test_weights_are_tuned(small: Any, tmp_path: Path) -> None:
    """Judgments that a weight explains move it there; they leave it where they do not matter."""
    best = mean(small, {"relevant": 0.7}).vectors_of(small.docnos)
    scores = small.encoder.encode_queries(small.topics["query"].tolist()) @ best.T
    graded = [
        (qid, small.docnos[p], 10 - rank)
        for qid, row in zip(small.topics["qid"][12:], scores[12:], strict=True)
        for rank, p in enumerate(np.argsort(-row)[:10])
    ]
    qrels = pd.DataFrame(graded, columns=["qid", "docno", "label"])
    model = mean(small, {"relevant": 5.0})
    with pytest.warns(UserWarning, match="4 of 4 validation queries are in the graph"):
        assert model.fit(None, None, small.topics[12:], qrels) is model
    assert model.weights == {"relevant": 0.7}
    loaded = ptg.GraphMean.load(
        model.save(tmp_path / "saved").path,
        graph=small.documents,
        encoder=small.encoder,
        query_graph=small.graph,
    )
    np.testing.assert_array_equal(loaded.vectors_of(small.docnos), best)


def test_weights_that_are_set_later(small: Any) -> None:
    model = mean(small, {"relevant": 0.5})
    model.set_parameter("weights", {"retrieved": 0.3})
    expected = mean(small, {"retrieved": 0.3}).vectors_of(small.docnos)
    np.testing.assert_array_equal(model.vectors_of(small.docnos), expected)
    for weights, message in (
        ({"relevant": -1.0}, "(?s)relevant.*greater than or equal to 0"),
        ({"above": 1.0}, "the graph has no relation 'above'"),
    ):
        with pytest.raises(ValueError, match=message):
            mean(small).weights = weights


# --- the index


def test_an_index_in_a_pipeline(small: Any, tmp_path: Path) -> None:
    graph = ptg.DocumentGraph(tmp_path / "graph").index(map(document, range(DOCUMENTS)))
    index = ptg.GraphMean(graph, small.encoder, device="cpu").index(tmp_path / "mean.flex")
    found = index.retriever(3)(small.topics[:2])
    columns = {"qid", "query", "docno", "score", "rank", "text"}
    assert {*found.columns} == columns and len(found) == 6
    assert found["text"].tolist() == graph.texts(graph.nodes_of(found["docno"].tolist()))
    pd.testing.assert_frame_equal((index.retriever() % 3).compile()(small.topics[:2]), found)
    flex = pt.Artifact.load(str(index.path))
    assert isinstance(flex, FlexIndex) and len(flex) == len(index) == COUNT
    other = (index.query_encoder() >> flex.np_retriever(num_results=3))(small.topics[:2])
    assert other.sort_values(["qid", "rank"])["docno"].tolist() == found["docno"].tolist()
    again = ptg.ContextualIndex(index.path, graph, small.encoder)
    without = ptg.ContextualIndex(index.path, encoder=small.encoder).retriever(3)
    pd.testing.assert_frame_equal(without(small.topics[:2]), found.drop(columns="text"))
    query, docno, score = found.loc[0, ["query", "docno", "score"]]
    for opened, rows in ((index, 2), (again, 1)):
        parts = opened.explain(query, docno)
        assert len(parts) == rows and parts["score"].sum() == pytest.approx(score, rel=1e-5)
    assert index.verify() is index


def test_another_graph_or_encoder_is_refused(small: Any, tmp_path: Path) -> None:
    index = mean(small, query_graph=None).index(tmp_path / "mean.flex")
    other = MemoryGraph([document(7)])
    renamed = Words()
    renamed.model_name = "other words"
    plain = FlexIndex(str(tmp_path / "plain"), verbose=False)
    plain.index({"docno": name, "doc_vec": np.ones(DIMENSION, np.float32)} for name in "ab")
    for path, graph, encoder, error, message in [
        (index.path, other, small.encoder, ValueError, "was made of another graph"),
        (index.path, None, renamed, ValueError, "needs encoder=words"),
        (plain.path, None, small.encoder, ValueError, "is not a contextual index"),
        (tmp_path / "none", None, small.encoder, FileNotFoundError, "No such file"),
    ]:
        with pytest.raises(error, match=message):
            ptg.ContextualIndex(path, graph, encoder)
