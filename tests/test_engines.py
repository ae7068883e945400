"""Engines that serve a GraphIndex find what it finds, also after changes and in several processes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import cloudpickle
import pandas as pd
import pyterrier as pt
import pytest
import tiny
from test_graph_index import document

import pyterrier_graph as ptg

pytestmark = pytest.mark.slow
DRAW = random.Random(0)
DOCUMENTS = [
    document(f"d{number}", " ".join(DRAW.choices(tiny.WORDS, k=DRAW.randint(5, 30))), "eta iota")
    for number in range(400)
]
TOPICS = pd.DataFrame(
    {"qid": ["1", "2", "3"], "query": ["alpha mu kappa", "beta zeta gamma", "?!"]}
)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> ptg.GraphIndex:
    path = tmp_path_factory.mktemp("engines") / "index"
    index = ptg.GraphIndex(path, encoder=tiny.checkpoint(), verbose=False)
    return index.index(DOCUMENTS)


def qdrant(index: ptg.GraphIndex, folder: Path) -> Any:
    client = pytest.importorskip("qdrant_client").QdrantClient(":memory:")
    from pyterrier_graph.search.engines.qdrant import QdrantEngine

    return QdrantEngine(index, client, "corpus")


def lancedb(index: ptg.GraphIndex, folder: Path) -> Any:
    pytest.importorskip("lancedb")
    from pyterrier_graph.search.engines.lancedb import LanceDBEngine

    return LanceDBEngine(index, str(folder / "lance"), "passages")


def assert_same_best(index: ptg.GraphIndex, dense: pt.Transformer) -> None:
    expected, found = index.dense(100, exact=True)(TOPICS), dense(TOPICS)
    assert {*found["qid"]} == {"1", "2"} and len(found) == len(expected) == 200
    for qid in "12":
        one, two = (run[run["qid"] == qid].set_index("docno") for run in (expected, found))
        assert {*one.index} == {*two.index}
        pd.testing.assert_series_equal(
            one["score"], two["score"].loc[one.index], rtol=1e-4, check_dtype=False
        )
        assert (one["text"] == two["text"].loc[one.index]).all()


@pytest.mark.parametrize("make", [qdrant, lancedb])
def test_an_engine_finds_the_same(index: ptg.GraphIndex, tmp_path: Path, make: Any) -> None:
    engine = make(index, tmp_path).upload()
    assert_same_best(index, engine.dense(100))
    lexical, ours = engine.lexical(100)(TOPICS), index.bm25(100)(TOPICS)
    shared = lexical.merge(ours, on=["qid", "docno"])
    assert (shared.groupby("qid").size() >= 70).all() and shared["qid"].nunique() == 2
    hybrid = engine.hybrid(10)
    assert len(hybrid(TOPICS)) == 20 and "text" in hybrid(TOPICS)
    reranked = (hybrid >> ptg.GraphMaxSim(index.graph, tiny.encoder()))(TOPICS)
    assert {*reranked["docno"]} == {*hybrid(TOPICS)["docno"]}
    qrels = pd.DataFrame({"qid": ["1", "2"], "docno": ["d1%p0", "d2%p0"], "label": 1})
    measured = pt.Experiment([hybrid, index.hybrid(10)], TOPICS, qrels, ["P_10"])
    assert len(measured) == 2
    if make is lancedb:  # processes open the table themselves
        sent = cloudpickle.loads(cloudpickle.dumps(engine.dense(100)))
        pd.testing.assert_frame_equal(sent(TOPICS), engine.dense(100)(TOPICS))


@pytest.mark.parametrize("make", [qdrant, lancedb])
def test_an_engine_follows_changes(tmp_path: Path, make: Any) -> None:
    index = ptg.GraphIndex(tmp_path / "index", encoder=tiny.checkpoint(), verbose=False)
    engine = make(index.index(DOCUMENTS[:150]), tmp_path).upload()
    version = index.meta["version"]
    index.update([document("d3", "alpha mu mu"), document("o'x", "kappa kappa alpha")])
    index.delete(["d1", "d2"])
    engine.upload(since=version)
    assert_same_best(index, engine.dense(100))
    assert "o'x%p0" in engine.lexical()(TOPICS)["docno"].tolist()
    index.delete(["d4"])
    assert_same_best(index, engine.upload().dense(100))  # all of them, in place of the former ones
