"""The ablation, on a made-up collection."""

from __future__ import annotations

from hashlib import blake2b

import ir_measures
import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
from ir_measures import nDCG

import pyterrier_graph as ptg
from experiments import ablation
from experiments.ablation_parts import mechanisms, page, variants
from experiments.ablation_parts.corpus import Corpus
from experiments.ablation_parts.encoding import Store
from experiments.ablation_parts.samples import sampled
from experiments.ablation_parts.systems import Bench, Search, Vector, coordinate_search
from experiments.harness.collection import Collection, Queries
from pyterrier_graph.documents.document import NO_PARENT, PASSAGE, SECTION, Node

pytest.importorskip("pyterrier_pisa")
TOPICS = ("heart", "liver", "kidney", "lung", "skin", "bone")
ASPECTS = ("causes", "symptoms", "treatment")


def encode(texts: list[str]) -> np.ndarray:
    """Vectors of bags of words, shape (texts, 16)."""
    rows = []
    for text in texts:
        words = [word.strip(".:").lower() for word in text.split()]
        seeds = [int.from_bytes(blake2b(word.encode(), digest_size=4).digest()) for word in words]
        rows.append(sum(np.random.default_rng(seed).normal(size=16) for seed in seeds))
    return variants.unit(np.array(rows)).astype(np.float32)


@pytest.fixture
def collection() -> Collection:
    """Six documents with three passages each; half of the queries are past ones."""
    records, asked = [], []
    for topic in TOPICS:
        nodes = [Node(SECTION, f"Diseases of the {topic}", NO_PARENT)]
        nodes += [
            Node(PASSAGE, f"The {a} are found in part {n}.", 0) for n, a in enumerate(ASPECTS)
        ]
        text = " ".join(node.text for node in nodes)
        records.append({"docno": topic, "title": topic, "text": text, "nodes": nodes})
        asked += [
            (f"{topic}-{a}", f"{a} of the {topic}", f"{topic}%p{n}") for n, a in enumerate(ASPECTS)
        ]

    def queries(first: int) -> Queries:
        frame = pd.DataFrame(asked[first::3], columns=["qid", "query", "docno"]).assign(label=1)
        return Queries(frame[["qid", "query"]], frame[["qid", "docno", "label"]])

    splits = {"train": queries(0), "dev": queries(1), "test": queries(2)}
    return Collection.in_memory("made up", records, splits)


@pytest.fixture
def bench(collection, tmp_path) -> Bench:
    """The collection, with its past queries."""
    graph = collection.graph(tmp_path / "documents", verbose=False)
    stores = Store(tmp_path / "passages", encode), Store(tmp_path / "queries", encode)
    corpus = Corpus(collection, graph, tmp_path / "bm25", *stores)
    return Bench(corpus, corpus.divisions()[0], 0, past=True)


def test_the_command_measures_all_systems_and_writes_the_page(collection, tmp_path):
    options = ["--output", str(tmp_path), "--plain", "--page", str(tmp_path / "page.md")]
    options = ablation.command_line().parse_args([*options, "--words", "1000"])
    values = ablation.run({"medquad": collection, "trec-car": collection}, options, encode)
    names = {name for _, name, _ in mechanisms.systems(past=True, plain=True, windows=False)}
    assert {*values.loc[values["past"], "name"]} == names
    assert values.groupby(["past", "part", "name"])["qid"].nunique().eq(6).all()
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "| hybrid: chosen |" in text and "{" not in text


def test_the_chosen_vector_is_the_formula(bench):
    corpus = bench.corpus
    x = encode(corpus.graph.texts(corpus.nodes, titles=True))
    title = encode(["Diseases of the heart"])[0]
    query = encode(["causes of the heart"])[0]
    expected = x[0] + 0.75 * (1 - x[0] @ title) * title + 0.75 * (1 - x[0] @ query) * query
    found = bench.vectors(Vector(title=0.75, past=0.75))
    np.testing.assert_allclose(found[0], expected, atol=1e-5)  # the passage answers the past query
    beta = variants.isolated_share(bench.counts)
    alone = (1 + 0.75 * beta) * (x[1] + 0.75 * (1 - x[1] @ title) * title)
    np.testing.assert_allclose(found[1], alone, atol=1e-5)


def test_the_hybrid_is_that_of_the_package_and_measured_as_by_ir_measures(bench):
    test, docnos = bench.division.test, bench.corpus.docnos

    def run(scores: np.ndarray) -> pt.Transformer:
        row, column = np.nonzero(np.isfinite(scores))
        topics = test.topics.iloc[row].reset_index(drop=True)
        return pt.Transformer.from_df(
            topics.assign(docno=docnos[column], score=scores[row, column])
        )

    vector = Vector(title=0.75, past=0.75)
    parts = run(bench.lexical("test")), run(bench.dense(vector, "test"))
    found = ptg.Hybrid(*parts, alpha=0.6, verbose=False)(test.topics)
    scores = bench.scores(vector, Search())
    row = {qid: number for number, qid in enumerate(test.topics["qid"])}
    own = scores[found["qid"].map(row), found["docno"].map(bench.corpus.number)]
    np.testing.assert_allclose(own, found["score"], atol=1e-5)
    measured = ir_measures.iter_calc(
        [nDCG @ 10], *map(pt.model.to_ir_measures, (test.qrels, found))
    )
    values = {value.query_id: value.value for value in measured}
    np.testing.assert_allclose(
        bench.measure(vector, Search()), [values[qid] for qid in row], atol=1e-6
    )


def test_a_sample_has_whole_documents_and_the_queries_that_they_answer(collection):
    size = len(next(iter(collection.documents()))["text"].split())
    part = sampled(collection, 5 * size)
    kept = {record["docno"] for record in part.documents()}
    assert len(kept) == 3
    for queries in part.queries.values():
        assert {docno.split("%")[0] for docno in queries.qrels["docno"]} <= kept
        assert {*queries.topics["qid"]} == {*queries.qrels["qid"]}
    assert len(part.queries["test"].topics) == 3


def test_the_rule_and_the_correction():
    better, worse = page.Difference(0.001, 2, 0, 8), page.Difference(0.001, 1, 1, 8)
    assert page.kept([better, page.Difference(0.0, 0, 0, 8)])
    assert not page.kept([better, worse])
    assert page.kept([page.Difference(0.005, 0, 0, 8), page.Difference(0.006, 1, 1, 8)])
    assert not page.kept([page.Difference(0.005, 0, 0, 8), page.Difference(0.004, 1, 0, 8)])
    np.testing.assert_allclose(page.holm([0.01, 0.04, 0.03]), [0.03, 0.06, 0.06])


def test_a_number_moves_only_as_far_as_queries_support_it():
    grid = {"alpha": (0.5, 0.6, 0.7, 0.8)}
    gains = {0.5: [0, 0], 0.6: [0.5, 0.5], 0.7: [0.6, 0.6], 0.8: [1.0, 0.3]}
    found = [
        coordinate_search(Search(), grid, lambda s: np.array(gains[s.alpha]), best=best)
        for best in (True, False)
    ]
    assert [search.alpha for search in found] == [0.8, 0.6]
