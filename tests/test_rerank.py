"""Rerankers over a graph in pipelines, their advice, and DocumentEvidence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import tiny

import pyterrier_graph as ptg
from pyterrier_graph.checks import DataWarning
from pyterrier_graph.documents.document import Node, StructuredDocument
from pyterrier_graph.encoders.token_store import TokenStore
from pyterrier_graph.graph_maxsim.reranker import GraphMaxSim
from pyterrier_graph.graphs.candidate_graph import CandidateGraph
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.graphs.memory_graph import MemoryGraph
from pyterrier_graph.hgat.equations import HGATConfig
from pyterrier_graph.hgat.reranker import HGATReranker
from pyterrier_graph.hgat.training import HGATTraining, draw_triples
from pyterrier_graph.search.document_evidence import DocumentEvidence

Make = Callable[..., pt.Transformer]


def graph_maxsim(graph: Any, **options: Any) -> GraphMaxSim:
    return GraphMaxSim(graph, tiny.encoder(), **options)


def hgat(graph: Any, **options: Any) -> HGATReranker:
    shape = {name: options.pop(name) for name in ("variant", "relations") if name in options}
    config = HGATConfig(**{"layers": 2, "heads": 2, "init": "random", "relations": None} | shape)
    return HGATReranker(graph, tiny.encoder(), **{"config": config} | options)


def lgre(graph: Any) -> ptg.LGReReranker:
    return ptg.LGReReranker(tiny.checkpoint(), max_tokens=32, device="cpu")


RERANKERS = [graph_maxsim, hgat]
every_reranker = pytest.mark.parametrize("make", RERANKERS)
with_lgre = pytest.mark.parametrize("make", [*RERANKERS, lgre])


TestGraphMaxSimOfCandidates = pt.testing.transformer_test_class(lambda: graph_maxsim(None))
TestHGATOfCandidates = pt.testing.transformer_test_class(lambda: hgat(None))
TestDocumentEvidence = pt.testing.transformer_test_class(DocumentEvidence)


def scores_of(frame: pd.DataFrame) -> pd.Series:
    return frame.set_index(["qid", "docno"])["score"].sort_index()


def assert_same_scores(one: pd.DataFrame, other: pd.DataFrame, atol: float = 1e-5) -> None:
    pd.testing.assert_series_equal(
        scores_of(one), scores_of(other), check_exact=False, atol=atol, rtol=0
    )


def with_text(frame: pd.DataFrame) -> pd.DataFrame:
    graph = tiny.graph()
    return frame.assign(text=graph.texts(graph.nodes_of(frame["docno"].tolist())))


# --- frames


@with_lgre
def test_rows_and_columns_stay_and_an_empty_frame_has_them_too(make: Make) -> None:
    frame = tiny.run(3).assign(docid=7, text="kept", score=1.0).set_index(np.arange(27) * 5)
    reranker = make(tiny.graph())
    out = reranker(frame)
    kept = ["qid", "query", "docno", "docid", "text"]
    pd.testing.assert_frame_equal(out[kept], frame[kept])
    assert sorted(out.columns) == sorted([*kept, "score", "rank"])
    assert "rank" in frame and (frame["score"] == 1.0).all()  # the input is not touched
    empty = reranker(frame.iloc[:0])
    assert list(empty.columns) == list(out.columns)
    assert len(empty) == 0


@with_lgre
def test_a_score_does_not_depend_on_other_rows_or_their_order(make: Make) -> None:
    reranker, frame = make(tiny.graph()), with_text(tiny.run(3))
    plain = reranker(frame)
    alone = reranker(frame.iloc[[4]])
    assert alone["score"].item() == pytest.approx(plain["score"].iloc[4], abs=1e-5)
    assert_same_scores(plain, reranker(frame.sample(frac=1, random_state=0)))
    twice = reranker(pd.concat([frame, frame.iloc[:4]]))
    assert len(twice) == len(frame) + 4
    assert_same_scores(plain, twice.iloc[: len(frame)])
    np.testing.assert_allclose(twice["score"].iloc[-4:], plain["score"].iloc[:4], atol=1e-5)


# --- bad input


@with_lgre
@pytest.mark.parametrize("wrong", ["  ", float("nan")])
def test_a_query_without_text_is_named(make: Make, wrong: Any) -> None:
    frame = with_text(tiny.run(2)).astype({"query": object})
    frame.loc[frame["qid"] == "t1", "query"] = wrong
    with pytest.raises(ValueError, match="query 't1' has no text"):
        make(tiny.graph())(frame)


@every_reranker
def test_passages_that_are_not_in_the_graph(make: Make) -> None:
    frame, reranker = tiny.run(1), make(tiny.graph())
    with pytest.raises(KeyError, match=r"'d0'.*put graph.passages\(\) before"):
        reranker(frame.assign(docno="d0"))


def test_a_query_that_another_stage_has_rewritten() -> None:
    with pytest.warns(ptg.PyTerrierGraphWarning, match="reset"):
        graph_maxsim(tiny.graph())(tiny.run(1).assign(query="applypipeline:off x"))


@every_reranker
def test_a_missing_graph(make: Make) -> None:
    with pytest.raises(pt.validate.InputValidationError, match="graph"):
        make(None)(tiny.run(1))


@every_reranker
def test_stored_tokens_of_something_else(make: Make, tmp_path: Path) -> None:
    other = tiny.fresh_encoder(20)
    store = TokenStore(tmp_path / "other", verbose=False).build(tiny.graph(), other)
    with pytest.raises(ValueError, match="was not built with"):
        make(tiny.graph(), tokens=store)
    store = TokenStore(tmp_path / "small", verbose=False).build(tiny.graph(3), tiny.encoder())
    with pytest.raises(ValueError, match="was not built with"):
        make(tiny.graph(), tokens=store)
    with pytest.raises(ValueError, match="give the graph, too"):
        make(None, tokens=store)
    with pytest.raises(FileNotFoundError, match="No such file"):
        make(tiny.graph(), tokens=TokenStore(tmp_path / "none"))


# --- graphs and stores


@every_reranker
def test_a_graph_on_disk_and_stored_tokens_give_the_same(make: Make, tmp_path: Path) -> None:
    graph = DocumentGraph(tmp_path / "graph").index(tiny.documents())
    store = TokenStore(tmp_path / "tokens", verbose=False).build(graph, tiny.encoder())
    frame = tiny.run()
    fresh = make(tiny.graph())(frame)
    assert_same_scores(fresh, make(graph)(frame), atol=1e-6)
    assert_same_scores(fresh, make(graph, tokens=store)(frame), atol=5e-3)


@every_reranker
def test_a_pipeline_of_text_alone(make: Make) -> None:
    """No graph offline: what is in the run makes one for each query."""
    frame = with_text(tiny.run(3)).assign(title="alpha")
    pipeline = CandidateGraph() >> make(
        None, **({"weights": {"order_i": 1.0}} if make is graph_maxsim else {})
    )
    out = pipeline(frame)
    assert list(out.columns) == ["qid", "query", "docno", "text", "title", "graph", "score", "rank"]
    alone = pipeline(frame[frame["qid"] == "t1"])
    assert_same_scores(out[out["qid"] == "t1"], alone)
    fewer = pipeline(frame[(frame["qid"] == "t1") & (frame["docno"] != "d1%p0")])
    assert not np.allclose(
        scores_of(fewer)["t1"]["d1%p1"], scores_of(alone)["t1"]["d1%p1"]
    )  # its neighbor is gone


# --- DocumentEvidence


def test_document_evidence_by_hand() -> None:
    frame = pd.DataFrame(
        [
            ["1", "doc1%p0", 1.0],
            ["1", "doc1%p10", 3.0],
            ["1", "doc2%p0", 2.5],
            ["1", "doc3", 0.5],  # no passage: a document of its own
            ["1", "doc%p", 0.4],
            ["2", "doc1%p0", 7.0],
        ],
        columns=["qid", "docno", "score"],
    )
    out = DocumentEvidence(0.5)(frame)
    best = ["doc1%p10", "doc2%p0", "doc1%p0", "doc3", "doc%p", "doc1%p0"]
    assert out["docno"].tolist() == best
    expected = [3 + 1.5, 2.5 + 1.25, 1 + 1.5, 0.5 + 0.25, 0.4 + 0.2, 7 + 3.5]
    assert out["score"].tolist() == pytest.approx(expected)
    assert out["rank"].tolist() == [0, 1, 2, 3, 4, 0]


def test_document_evidence_learns_its_weight() -> None:
    """The relevant passage is the weak one of the document with a strong one."""
    queries = pd.DataFrame({"qid": ["1", "2", "3"], "query": "q"})
    frame = queries.merge(
        pd.DataFrame({"docno": ["d%p0", "d%p1", "e%p0"], "score": [1.0, 3.0, 2.0]}), how="cross"
    )
    qrels = queries.merge(pd.DataFrame({"docno": ["d%p0", "d%p1"], "label": 1}), how="cross")
    evidence = DocumentEvidence(0.0).fit(frame, qrels)
    assert evidence.weight == 1.5  # the first of the grid that lifts 1 + 3 w above 2 + 2 w
    other = queries.assign(docno="e%p0", label=1)
    assert (
        DocumentEvidence(5.0).fit(frame, qrels, frame, other).weight < 1.5
    )  # the validation queries decide


def test_a_relation_without_edges_has_no_effect() -> None:
    nodes = (Node("section", "", -1), Node("passage", "a", 0))
    graph = MemoryGraph([StructuredDocument("d", nodes)])
    with pytest.warns(DataWarning, match="'internal' has no effect"):
        GraphMaxSim(graph, tiny.encoder(), {"internal": 0.3})


@pytest.mark.parametrize("make", [*RERANKERS, lambda graph: DocumentEvidence()])
def test_judgments_that_do_not_fit(make: Make) -> None:
    frame, qrels, reranker = tiny.run(2), tiny.qrels(2), make(tiny.graph())
    with pytest.raises(ValueError, match="none of the queries is judged"):
        reranker.fit(frame, qrels.assign(qid="other"))
    with pytest.raises(pt.validate.InputValidationError, match="label"):
        reranker.fit(frame, qrels.drop(columns="label"))
    with pytest.raises(TypeError, match="NoneType"):
        reranker.fit(frame, qrels, frame, None)


# --- defaults, advice, judgments of documents

RUN, QRELS = tiny.run(), tiny.qrels()
# All passages of a word's document count: passage judgments, and the documents' that mean the same.
PASSAGES = QRELS.assign(label=1)
DOCUMENTS = PASSAGES.assign(docno=PASSAGES["docno"].str.partition("%")[0]).drop_duplicates()


def small(graph: Any = "tiny", **options: Any) -> HGATReranker:
    """The default HGAT, with two heads."""
    config = HGATConfig(heads=2, titles=options.pop("titles", False))
    training = HGATTraining(**{"batch_size": 8} | options.pop("training", {}))
    given = {"config": config, "training": training, "verbose": False} | options
    return HGATReranker(tiny.graph() if graph == "tiny" else graph, tiny.encoder(), **given)


# --- judgments of documents


def test_training_by_judgments_of_documents_is_that_of_their_passages() -> None:
    drawn = [
        draw_triples(tiny.judged(RUN, qrels, tiny.graph()), HGATTraining())[1]
        for qrels in (PASSAGES, DOCUMENTS)
    ]
    np.testing.assert_array_equal(*drawn)
    fitted = [
        small(training={"epochs": 1}).fit(RUN, qrels)(RUN)["score"]
        for qrels in (PASSAGES, DOCUMENTS)
    ]
    np.testing.assert_array_equal(*fitted)
