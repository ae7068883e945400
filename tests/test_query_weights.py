"""GraphMean with a weight per query: vectors side by side, and the weights of queries."""

from __future__ import annotations

import hashlib
import pickle
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pyterrier_dr import BiEncoder
from tiny import WORDS, checkpoint

import pyterrier_graph as ptg
from pyterrier_graph.documents.document import Node, StructuredDocument
from pyterrier_graph.graph_mean import contextual_index
from pyterrier_graph.graph_mean.contextual_index import ContextualIndex, QueryWeights, write_index
from pyterrier_graph.graph_mean.equations import SideBySide
from pyterrier_graph.graph_mean.graph_mean import GraphMean
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.hetero_graph import MemoryGraph

DIMENSION, DOCUMENTS, PASSAGES = 12, 6, 4


class Words(BiEncoder):
    """The vector of a text is the sum of its words' vectors: of different lengths, zero for no words."""

    def __init__(self, name: str = "words") -> None:
        super().__init__()
        self.verbose, self.text_field = False, "text"
        self.model_name = name

    def encode_queries(self, texts: Any, batch_size: int | None = None) -> np.ndarray:
        return np.array(
            [sum(map(self._word, text.split()), np.zeros(DIMENSION)) for text in texts], np.float32
        ).reshape(-1, DIMENSION)

    encode_docs = encode_queries

    def _word(self, word: str) -> np.ndarray:
        seed = int.from_bytes(
            hashlib.sha256(f"{self.model_name} {word}".encode()).digest()[:4], "little"
        )
        return np.random.default_rng(seed).normal(size=DIMENSION)


def document(number: int) -> StructuredDocument:
    title = (
        f"{WORDS[number]} title" if number else ""
    )  # passages of the first document have no title
    texts = [
        f"{WORDS[(number + n) % 12]} word{n} {'mu ' * n}number{number}" for n in range(PASSAGES)
    ]
    return StructuredDocument(
        f"d{number}", (Node("section", title, -1), *(Node("passage", t, 0) for t in texts))
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """24 passages of 6 documents; 16 queries, of which 12 have a relevant passage, and a graph of them."""
    folder = tmp_path_factory.mktemp("side-by-side")
    documents = MemoryGraph.from_documents([document(number) for number in range(DOCUMENTS)])
    docnos = [str(name) for name in documents.ids_of(documents.passage_nodes)]
    texts = documents.texts(documents.passage_nodes)
    encoder = Words()
    topics = pd.DataFrame(
        {
            "qid": [f"q{n}" for n in range(16)],
            "query": [f"{WORDS[n % 12]} number{n % 7} {WORDS[5]}" for n in range(16)],
        }
    )
    rows = [
        (f"q{n}", topics["query"][n], docnos[(5 * n + k) % 24], 9.0 - k)
        for n in range(16)
        for k in range(3)
    ]
    results = pd.DataFrame(rows, columns=["qid", "query", "docno", "score"])
    qrels = pd.DataFrame(
        {
            "qid": [f"q{n}" for n in range(12)],
            "docno": [docnos[(7 * n) % 10] for n in range(12)],
            "label": 1,
        }
    )
    found = pt.Transformer.from_df(pt.model.add_ranks(results))
    queries = ptg.QueryPassageGraph(folder / "queries").build(
        topics, docnos, found, k=3, qrels=qrels
    )
    retrieved = ptg.QueryPassageGraph(folder / "retrieved").build(topics, docnos, found, k=3)
    return SimpleNamespace(**locals())


def mean(small: Any, **options: Any) -> GraphMean:
    graph, encoder = options.pop("graph", small.documents), options.pop("encoder", small.encoder)
    titled = options.pop("titled", 2 / 3)
    made = GraphMean(
        graph,
        encoder,
        **{"query_graph": small.queries, "device": "cpu", "verbose": False} | options,
    )
    made.titled = titled
    return made


# --- the literal definition: one passage, one source, one query at a time


def read(small: Any, share: float = 2 / 3) -> list[np.ndarray]:
    """The vectors of the passages, of which a share is read with the title in front."""
    titles = [document(int(docno[1])).nodes[0].text for docno in small.docnos]
    titled = [
        f"{title}: {text}" if title else text
        for title, text in zip(titles, small.texts, strict=True)
    ]
    alone, after = (
        small.encoder.encode_docs(texts).astype(float) for texts in (small.texts, titled)
    )
    return [(1 - share) * one + share * other for one, other in zip(alone, after, strict=True)]


def chance(answered: list[int]) -> float:
    """How likely a passage without answered queries is relevant, as a share of its and an answered passage's chance."""
    with_queries = [number for number in answered if number]
    u = len(with_queries) / len(answered)
    again = sum(number for number in with_queries if number > 1)
    c = (again + u) / (sum(answered) + 1)
    return ((1 - c) / (1 - u)) / ((1 - c) / (1 - u) + c / u)


def added(x: np.ndarray, sources: list[np.ndarray], relation: str, beta: float) -> np.ndarray:
    """The part that a relation adds to a passage."""
    if not sources:
        return beta * x if relation == "relevant" else np.zeros_like(x)
    total = sum(sources) / len(sources)
    m = total / max(float(np.linalg.norm(total)), 1e-12)
    return (np.linalg.norm(x) - float(x @ m)) * m


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other) / max(float(np.linalg.norm(one) * np.linalg.norm(other)), 1e-12)


def weight_of(
    relation: str, q: np.ndarray, passages: list[np.ndarray], means: list[np.ndarray]
) -> float:
    low, high = (-0.15, 0.15) if relation in ("relevant", "retrieved") else (-0.3, -0.1)
    difference = max([cosine(q, m) for m in means], default=-1) - max(
        cosine(q, x) for x in passages
    )
    return min(1.0, max(0.0, (difference - low) / (high - low)))


def sources_of(small: Any, relation: str, passage: int, masked: set[str]) -> list[np.ndarray]:
    docno = small.docnos[passage]
    if relation == "titles":
        title = document(int(docno[1])).nodes[0].text
        return [small.encoder.encode_docs([title])[0].astype(float)] if title else []
    pairs = small.qrels if relation == "relevant" else small.results
    qids = [qid for qid in pairs.loc[pairs["docno"] == docno, "qid"] if qid not in masked]
    texts = dict(zip(small.topics["qid"], small.topics["query"], strict=True))
    return [small.encoder.encode_queries([texts[qid]])[0].astype(float) for qid in qids]


CASES: dict[str, tuple[list[str], Any, set[str]]] = {
    "titles": (["titles"], lambda small: {"query_graph": None}, set()),
    "titles read in front only": (
        ["titles"],
        lambda small: {"query_graph": None, "titled": 1},
        set(),
    ),
    "passages read alone only": (
        ["titles"],
        lambda small: {"query_graph": None, "titled": 0},
        set(),
    ),
    "titles and relevant queries": (["titles", "relevant"], lambda small: {}, set()),
    "titles in front, and relevant queries": (
        ["titles", "relevant"],
        lambda small: {"titled": 1},
        set(),
    ),
    "retrieved queries": (
        ["titles", "retrieved"],
        lambda small: {"query_graph": small.retrieved},
        set(),
    ),
    "masked queries": (
        ["titles", "relevant"],
        lambda small: {"query_graph": small.queries.without(np.array([0, 1, 7, 11]))},
        {"q0", "q1", "q7", "q11"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_ranking_is_the_literal_one(
    small: Any, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(write_index.__kwdefaults__, "chunk_size", 5)
    relations, options, masked = CASES[case]
    model = mean(small, **options(small))
    index = model.index(tmp_path / "index")
    assert model.weights == "auto" and [*model.largest_weights] == relations
    stored = np.array(index.flex.payload(return_docnos=False)[0])
    passages = read(small, model.titled)
    beta = chance([len(sources_of(small, "relevant", p, masked)) for p in range(len(passages))])
    parts: list[list[np.ndarray]] = [
        [added(x, sources_of(small, name, p, masked), name, beta) for name in relations]
        for p, x in enumerate(passages)
    ]
    expected = np.array([np.concatenate([x, *own]) for x, own in zip(passages, parts, strict=True)])
    np.testing.assert_allclose(stored, expected, atol=1e-5)
    np.testing.assert_allclose(model.vectors_of(small.docnos[7:4:-1]), expected[7:4:-1], atol=1e-5)
    assert not stored[:PASSAGES, DIMENSION : 2 * DIMENSION].any()  # a document without a title
    means = {
        name: [
            sum(of) / len(of)
            for p in range(len(passages))
            if (of := sources_of(small, name, p, masked))
        ]
        for name in relations
    }
    topics = pd.concat(
        [small.topics, pd.DataFrame({"qid": ["zero"], "query": [" "]})], ignore_index=True
    )
    weights = index.query_weights(topics)
    found = index.retriever(num_results=24)(topics).set_index(["qid", "docno"])["score"]
    spread = set()
    for row, (qid, query) in enumerate(topics[["qid", "query"]].itertuples(index=False)):
        q = small.encoder.encode_queries([query])[0].astype(float)
        for name in relations:
            literal = weight_of(name, q, passages, means[name])
            assert weights[name][row] == pytest.approx(
                literal, abs=5e-3
            )  # the sample has half precision
            spread.add(round(literal, 1))
        for p, x in enumerate(passages):
            total = x + sum(
                weights[name][row] * a for name, a in zip(relations, parts[p], strict=True)
            )
            rounding = 1e-6 * float(np.linalg.norm(q) * np.linalg.norm(expected[p]))
            assert found[qid, small.docnos[p]] == pytest.approx(
                float(q @ total), rel=1e-6, abs=max(rounding, 1e-9)
            )
    assert len(spread) > 2  # weights differ by query


vectors_of = st.integers(1, 5).flatmap(
    lambda count: hnp.arrays(np.float32, (count, 3), elements=st.floats(-4, 4, width=32))
)


@settings(deadline=None)
@given(vectors_of, vectors_of, st.data())
def test_any_vectors_side_by_side(
    passages: np.ndarray, sources: np.ndarray, data: st.DataObject
) -> None:
    rows = {
        name: data.draw(
            st.lists(
                st.sets(st.integers(0, len(sources) - 1)),
                min_size=len(passages),
                max_size=len(passages),
            )
        )
        for name in ("titles", "relevant")
    }
    network = SideBySide({"titles": 1.0, "relevant": 0.3}, 3, isolated=0.7)
    edges = {
        name: CSR(
            np.cumsum([0, *map(len, of)]),
            np.array([n for row in of for n in sorted(row)], dtype=np.int64),
        ).torch()
        for name, of in rows.items()
    }
    states = torch.from_numpy(sources)
    found = network.passage_states(
        torch.from_numpy(passages), dict.fromkeys(rows, states), edges
    ).numpy()
    for p, x in enumerate(passages.astype(float)):
        own = [[sources[n].astype(float) for n in sorted(rows[name][p])] for name in rows]
        if any(of and np.linalg.norm(sum(of)) < 1e-3 for of in own):  # its direction is rounding
            continue
        expected = np.concatenate(
            [x, *(added(x, of, name, 0.7) for of, name in zip(own, rows, strict=True))]
        )
        np.testing.assert_allclose(found[p], expected, atol=1e-4)
    assert np.isfinite(found).all()


samples = hnp.arrays(np.float32, (4, 3), elements=st.floats(-1, 1, width=32))


@settings(deadline=None)
@given(samples, samples, samples, st.floats(0, 5), st.booleans())
def test_any_weights(
    queries: np.ndarray, passages: np.ndarray, titles: np.ndarray, c: float, few: bool
) -> None:
    passages, titles = (
        vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1)
        for vectors in (passages, titles)
    )
    titles = titles[: 0 if few else 4]
    weights = QueryWeights(
        {"passages": passages, "titles": titles, "relevant": titles}, {"titles": c, "relevant": 1.0}
    )
    queries[0] = 0
    found = weights(pd.DataFrame({"qid": [*"abcd"], "query_vec": [*queries]}))
    for row, q in enumerate(queries.astype(float)):
        q_hat = q / max(float(np.linalg.norm(q)), 1e-12)
        best = max(float(q_hat @ x) for x in passages.astype(float))
        expected = [q]
        for _, factor, low, high in [("titles", c, -0.3, -0.1), ("relevant", 1.0, -0.15, 0.15)]:
            difference = max([float(q_hat @ m) for m in titles.astype(float)], default=-1.0) - best
            expected.append(factor * min(1.0, max(0.0, (difference - low) / (high - low))) * q)
        np.testing.assert_allclose(found["query_vec"][row], np.concatenate(expected), atol=1e-4)


# --- graphs with other relations


def test_graphs_that_lack_relations(small: Any, tmp_path: Path) -> None:
    bare = [
        StructuredDocument(f"d{n}", (Node("section", "", -1), *document(n).nodes[1:]))
        for n in range(DOCUMENTS)
    ]
    untitled = MemoryGraph.from_documents(bare)
    with pytest.warns(
        UserWarning, match="has no titles: passages aggregate from nothing; give weights="
    ) as said:
        alone = mean(small, graph=untitled, query_graph=None)
    assert len(said) == 1 and alone.largest_weights == {}
    index = alone.index(tmp_path / "alone")
    plain = small.encoder.encode_docs(small.texts)
    np.testing.assert_allclose(index.flex.payload(return_docnos=False)[0], plain, atol=1e-6)
    run = index.retriever(5)(small.topics)
    scores = small.encoder.encode_queries([small.topics["query"][3]]) @ plain.T
    assert run[run["qid"] == "q3"]["docno"].tolist() == [
        small.docnos[p] for p in np.argsort(-scores[0])[:5]
    ]
    assert index.query_weights(small.topics).columns.tolist() == ["qid", "query"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert mean(small, graph=untitled).largest_weights == {"relevant": 1.0}
        titles = mean(small, query_graph=None)
        both = titles.apply_attributes(query_graph=small.queries)
        assert titles.largest_weights == {"titles": 1.0} and both.largest_weights == {
            "titles": 1.0,
            "relevant": 1.0,
        }
        assert both.apply_attributes(query_graph=small.retrieved).largest_weights == {
            "titles": 1.0,
            "retrieved": 1.0,
        }
    np.testing.assert_array_equal(
        both.vectors_of(small.docnos), mean(small).vectors_of(small.docnos)
    )
    both.largest_weights = {"titles": 2.0, "relevant": 0.5}
    assert both.apply_attributes(query_graph=None).largest_weights == {
        "titles": 2.0
    }  # what was tuned stays
    assert titles.largest_weights == {"titles": 1.0}


def test_a_sample_of_the_passages(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = mean(small).index(tmp_path / "whole").query_weights(small.topics)
    monkeypatch.setattr(contextual_index, "SAMPLED", 12)
    monkeypatch.setattr(contextual_index, "PASSAGES_AT_ONCE", 5)
    monkeypatch.setattr(contextual_index, "QUERIES_AT_ONCE", 3)
    index = mean(small).index(tmp_path / "sampled")
    assert index._weights is not None and len(index._weights.sample["passages"]) == 12
    part = index.query_weights(small.topics)
    assert not part.equals(whole)
    assert (part[["titles", "relevant"]] - whole[["titles", "relevant"]]).abs().mean().max() < 0.25


# --- indexes


def test_no_queries(small: Any, tmp_path: Path) -> None:
    index = mean(small).index(tmp_path / "index")
    empty = small.topics[:0]
    assert index.query_weights(empty).columns.tolist() == ["qid", "query", "titles", "relevant"]
    assert not len(index.query_weights(empty)) and not len(index.retriever()(empty))
    assert len(index.retriever()(empty).columns) == 6
    with pytest.raises(pt.validate.InputValidationError, match="query"):
        index.query_weights(small.topics[["qid"]])
    fixed = mean(small, weights={"title": 1.0}).index(tmp_path / "fixed")
    with pytest.raises(
        ValueError, match="has no weights per query: it was not made with weights='auto'"
    ):
        fixed.query_weights(small.topics)


def test_a_reopened_index(small: Any, tmp_path: Path) -> None:
    """By the encoder's name; the order of the relations is not that of the alphabet."""
    corpus = ptg.DocumentGraph(tmp_path / "corpus.graph").index([document(n) for n in range(6)])
    name = checkpoint(positions=128)
    model = GraphMean(corpus, name, query_graph=small.queries, device="cpu", verbose=False)
    model.largest_weights = {"titles": 0.3, "relevant": 2.0}
    index = model.index(tmp_path / "index")
    run = index.retriever(10)(small.topics)
    expected = run.sort_values(["qid", "rank"])["docno"].tolist()
    again = ContextualIndex(tmp_path / "index", corpus, name)
    pd.testing.assert_frame_equal(again.retriever(10)(small.topics), run)
    pd.testing.assert_frame_equal(
        again.query_weights(small.topics), index.query_weights(small.topics)
    )
    searches = {
        "encoder of the index": again.query_encoder(),
        "encoder of the model": model.query_encoder(),
    }
    for encode in searches.values():
        for search in (
            again.flex.torch_retriever(num_results=10),
            again.flex.np_retriever(num_results=10),
        ):
            found = (encode >> search)(small.topics)
            assert found.sort_values(["qid", "rank"])["docno"].tolist() == expected
    # tuned after indexing
    model.largest_weights = {"titles": 3.0, "relevant": 0.0}
    tuned = ContextualIndex(tmp_path / "index", corpus, model)
    weights, before = tuned.query_weights(small.topics), index.query_weights(small.topics)
    np.testing.assert_allclose(weights["titles"], 10 * before["titles"], rtol=1e-5)
    assert (
        before["titles"].max() > 0
        and before["relevant"].max() > 0
        and not weights["relevant"].any()
    )
    loaded = GraphMean.load(model.save(tmp_path / "mean").path, device="cpu")  # without graphs
    assert loaded.largest_weights == model.largest_weights and loaded.weights == "auto"
    halves = model.apply_attributes(verbose=False)
    halves.titled = 0.5
    again = GraphMean.load(
        halves.save(tmp_path / "halves").path, graph=corpus, query_graph=small.queries, device="cpu"
    )
    assert again.titled == 0.5 and model.titled == loaded.titled == 2 / 3
    np.testing.assert_array_equal(again.vectors_of(small.docnos), halves.vectors_of(small.docnos))
    opened = ContextualIndex(tmp_path / "index", corpus, loaded)
    pd.testing.assert_frame_equal(
        opened.retriever(10)(small.topics), tuned.retriever(10)(small.topics)
    )
    whole = GraphMean.load(
        model.path, graph=corpus, query_graph=small.queries, device="cpu", verbose=False
    )
    np.testing.assert_array_equal(whole.vectors_of(small.docnos), model.vectors_of(small.docnos))
    assert whole.largest_weights == model.largest_weights
    copied = pickle.loads(pickle.dumps(tuned.retriever(10)))
    pd.testing.assert_frame_equal(copied(small.topics), tuned.retriever(10)(small.topics))
    assert pickle.loads(pickle.dumps(model)).largest_weights == model.largest_weights


def test_an_index_of_something_else(small: Any, tmp_path: Path) -> None:
    index = mean(small).index(tmp_path / "index")
    other = mean(small, encoder=Words("other"))
    titles = mean(small, query_graph=None)
    stranger = MemoryGraph.from_documents([document(7)])
    for graph, encoder, message in [
        (small.documents, Words("other"), "needs encoder=words, got other"),
        (small.documents, other, "needs encoder=words, got other"),
        (stranger, small.encoder, "was made of another graph"),
        (small.documents, titles, "has the relations titles, relevant, the model has titles"),
        (
            small.documents,
            mean(small, query_graph=small.retrieved),
            "the model has titles, retrieved",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            ContextualIndex(index.path, graph, encoder)
    # a model with fixed weights has none per query: those of the index count
    fixed = mean(small, weights={"title": 1.0})
    opened = ContextualIndex(index.path, small.documents, fixed)
    pd.testing.assert_frame_equal(
        opened.query_weights(small.topics), index.query_weights(small.topics)
    )
    # an index with fixed weights ignores the model's weights per query
    summed = ContextualIndex(fixed.index(tmp_path / "fixed").path, small.documents, mean(small))
    assert len(summed.retriever(3)(small.topics)) == 3 * len(small.topics)
    with pytest.raises(ValueError, match="is a contextual index: give the encoder's own vectors"):
        mean(small, vectors=index.flex)


# --- one transformer among others


_index: dict[str, Any] = {}


@pytest.fixture(scope="module", autouse=True)
def indexed(small: Any) -> None:
    _index["small"] = small
    _index["index"] = mean(small).index(small.folder / "index")


TestQueryWeights = pt.testing.transformer_test_class(lambda: _index["index"]._weights)
TestRetriever = pt.testing.transformer_test_class(lambda: _index["index"].retriever())
TestGraphMean = pt.testing.transformer_test_class(lambda: mean(_index["small"]))


def test_what_it_shows(small: Any) -> None:
    index, model = _index["index"], mean(small)
    assert "largest weights" in model._repr_html_() and "contextual" in index._repr_html_().lower()
    assert "largest weights" not in mean(small, weights={"title": 1.0})._repr_html_()
    said = model.explain(
        "beta", small.docnos[7]
    )  # of a document with a title; two queries are answered by it
    queries = small.qrels.loc[small.qrels["docno"] == small.docnos[7], "qid"].tolist()
    assert sorted(said.loc[said["relation"] == "relevant", "source"]) == sorted(queries) and queries
    assert said.loc[said["relation"] == "titles", "text"].tolist() == ["beta title"]
    x = read(small)[7]
    weights, q = (
        index.query_weights(pd.DataFrame({"qid": ["1"], "query": ["beta"]})),
        small.encoder.encode_queries(["beta"]),
    )
    for relation, rows in said[1:].groupby("relation"):
        assert rows["weight"].tolist() == pytest.approx([1 / len(rows)] * len(rows))
        part = added(x, sources_of(small, str(relation), 7, set()), str(relation), 0.0)
        expected = part @ q[0] * weights[relation][0]
        assert rows["score"].sum() == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert model.explain("beta", small.docnos[1]).query("relation == 'titles'").empty


def test_wrong_weights(small: Any) -> None:
    for wrong, error, message in [
        ("automatic", ValueError, "weights, unless they are numbers, must be"),
        (None, TypeError, "weights must be a weight per relation"),
        ({"title": -1.0}, ValueError, "the weight of 'title' must be"),
        ({"title": float("nan")}, ValueError, "the weight of 'title' must be"),
        ({"title": "1"}, (TypeError, ValueError), "the weight of 'title' must be"),
        ({"above": 1.0}, ValueError, "the graph has no relation 'above'"),
        ({"retrieved": 1.0, "elsewhere": 1.0}, ValueError, "has no relation 'elsewhere'"),
    ]:
        with pytest.raises(error, match=message):
            mean(small, weights=wrong)
        with pytest.raises(error, match=message):
            mean(small).weights = wrong
    model = mean(small)
    model.weights = {"title": 0.5}
    assert model.weights == {"title": 0.5} and model.vectors_of(small.docnos).shape == (
        24,
        DIMENSION,
    )
    model.weights = "auto"
    assert model.largest_weights == {"titles": 1.0, "relevant": 1.0}
    assert model.vectors_of(small.docnos).shape == (24, 3 * DIMENSION)


# --- tuning


class Table(Words):
    """Each text has a vector of length 1 that is nearly orthogonal to all others; '+' adds such vectors.

    A title in front of a passage changes nothing.
    """

    def encode_queries(self, texts: Any, batch_size: int | None = None) -> np.ndarray:
        made = [
            sum((self._unit(word) for word in text.split("+")), np.zeros(1024)) for text in texts
        ]
        return np.array([vector / np.linalg.norm(vector) for vector in made], np.float32).reshape(
            -1, 1024
        )

    encode_docs = encode_queries

    def _unit(self, text: str) -> np.ndarray:
        text = text.rpartition(": ")[2].strip()
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
        vector = np.random.default_rng(seed).normal(size=1024)
        return vector / np.linalg.norm(vector)


def tuned(queries: list[tuple[str, str]]) -> float:
    """The weight of titles after tuning, from 1, with queries and the document that is relevant."""
    documents = [
        StructuredDocument(
            f"d{n}",
            (Node("section", f"t{n}", -1), *(Node("passage", f"p{n} {k}", 0) for k in range(3))),
        )
        for n in range(30)
    ]
    model = GraphMean(
        MemoryGraph.from_documents(documents), Table("table"), device="cpu", verbose=False
    )
    topics = pd.DataFrame(
        {"qid": [f"q{n}" for n in range(len(queries))], "query": [query for query, _ in queries]}
    )
    qrels = pd.DataFrame(
        {"qid": topics["qid"], "docno": [docno for _, docno in queries], "label": 1}
    )
    index_before = model._digest()
    assert model.fit(topics, qrels) is model and model._digest() == index_before
    return model.largest_weights["titles"]


def query(title: int, title_times: int, passage: int, passage_times: int) -> str:
    return "+".join([f"t{title}"] * title_times + [f"p{passage} 0"] * passage_times)


# the document that is asked for is that of the title, if titles count more than 1.4 or 0.8; or of the text, if less
HELPS = [(query(n, 5, n + 15, 6), f"d{n}") for n in range(15)]
KEEPS = [(query(n, 5, n + 15, 4), f"d{n}") for n in range(15)]
HARMS = [(query(n + 15, 3, n, 2), f"d{n}") for n in range(15)]


def test_a_weight_moves_where_queries_agree() -> None:
    assert tuned(HELPS) == 1.5 and tuned(HARMS) == 0.5


@pytest.mark.parametrize(
    "queries",
    [
        HELPS[:1],
        HARMS[:1],
        KEEPS,
        KEEPS[:2] + HARMS[2:4],
        HARMS[:1] + KEEPS[1:5],
        HARMS[:1] + [("t9", "d9")] * 4,
    ],
    ids=range(6),
)
def test_a_weight_stays_where_queries_are_few_or_disagree(queries: list[tuple[str, str]]) -> None:
    assert tuned(queries) == 1.0
