"""Explanations: their parts add up to scores, their words are those of the texts, and no text becomes HTML."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pyterrier as pt
import pytest
import tiny

import pyterrier_graph as ptg
from pyterrier_graph.html import in_words

QUERY, DOCNO = "alpha kappa", "d0%p1"


@cache
def dual() -> ptg.DualEncoder:
    return ptg.DualEncoder(tiny.checkpoint(), max_passage_tokens=24, device="cpu", verbose=False)


def maxsim(**options: Any) -> ptg.GraphMaxSim:
    return ptg.GraphMaxSim(
        options.pop("graph", tiny.graph()), tiny.encoder(), device="cpu", verbose=False, **options
    )


def hgat(**options: Any) -> ptg.HGATReranker:
    graph = options.pop("graph", tiny.graph())
    config = ptg.HGATConfig(layers=1, heads=2, relations=("title", "order"))
    return ptg.HGATReranker(
        graph, tiny.encoder(), config=config, device="cpu", verbose=False, **options
    )


def mean(**options: Any) -> ptg.GraphMean:
    return ptg.GraphMean(
        options.pop("graph", tiny.graph()), dual(), device="cpu", verbose=False, **options
    )


def gnn(**options: Any) -> ptg.GNNEncoder:
    return ptg.GNNEncoder(tiny.graph(), dual(), device="cpu", verbose=False, **options)


def score_of(model: Any, docno: str = DOCNO) -> float:
    run = pd.DataFrame({"qid": ["1"], "query": [QUERY], "docno": [docno], "score": [0.0]})
    return float(model.transform(run)["score"].iloc[0])


def product(model: Any) -> float:
    vector = model.query_encoder()(pd.DataFrame({"qid": ["1"], "query": [QUERY]}))[
        "query_vec"
    ].iloc[0]
    return float(model.vectors_of([DOCNO])[0] @ vector)


@pytest.mark.parametrize("make", [maxsim, hgat, lambda: maxsim(titles=True)])
def test_parts_of_rerankers_add_up_to_the_score(make: Any) -> None:
    model = make()
    found = ptg.explain(model, QUERY, DOCNO)
    assert found.frame["score"].sum() == pytest.approx(found.score, abs=1e-5)
    assert found.score == pytest.approx(score_of(model), abs=1e-4)
    assert found.frame["relation"][0] == "own" and found.frame["source"][0] == DOCNO
    assert len({*found.frame["relation"]}) > 1
    assert found.titles == "alpha - lambda"


@pytest.mark.parametrize(
    "make",
    [
        mean,
        lambda: mean(weights={"title": 1.0, "order": 0.5}),
        gnn,
        lambda: gnn(config=ptg.GNNEncoderConfig(edges=False)),
        lambda: mean(weights={}),
    ],
)
def test_parts_of_dense_models_add_up_to_the_score(make: Any) -> None:
    model = make()
    found = ptg.explain(model, QUERY, DOCNO)
    assert found.frame["score"].sum() == pytest.approx(product(model), abs=1e-5)
    assert found.frame["relation"][0] == "own"
    assert sum(part for _, _, part in found.words[0]) == pytest.approx(
        found.frame["score"][0], abs=1e-5
    )


def test_parts_of_models_with_queries(tmp_path: Path) -> None:
    queries = pd.DataFrame({"qid": ["k0", "k1"], "query": ["mu iota", "lambda beta"]})
    qrels = pd.DataFrame({"qid": ["k0", "k1"], "docno": ["d0%p0", DOCNO], "label": [1, 1]})
    found = queries.merge(
        pd.DataFrame({"docno": [DOCNO, "d0%p0"], "score": [2.0, 1.0], "rank": [0, 1]}), how="cross"
    )
    graph = ptg.QueryPassageGraph(tmp_path / "queries")
    graph.build(queries, tiny.graph(), pt.Transformer.from_df(found), qrels=qrels)
    paper = ptg.GNNEncoderConfig.paper(heads=2)
    models = [
        (mean(query_graph=graph), "relevant", "lambda beta"),
        (gnn(query_graph=graph), "relevant", "lambda beta"),
        (gnn(query_graph=graph, config=paper), "retrieved", "mu iota"),
    ]
    for model, relation, query in models:
        shown = ptg.explain(model, QUERY, DOCNO)
        assert shown.frame["score"].sum() == pytest.approx(product(model), abs=1e-4)
        assert (
            query in [*shown.frame["text"][shown.frame["relation"] == relation]]
            and in_words(relation) in shown.html
        )


def test_a_hybrid_shows_the_share_of_each_pipeline(tmp_path: Path) -> None:
    dense = mean().index(tmp_path / "flex").retriever()
    hybrid = ptg.Hybrid(dense >> maxsim(), dense)
    found = ptg.explain(hybrid, QUERY, DOCNO)
    assert found.frame["relation"].tolist() == ["GraphMean >> GraphMaxSim", "GraphMean"]
    assert found.score == pytest.approx(hybrid.search(QUERY).set_index("docno")["score"][DOCNO])
    assert [one.model for one in found.inner] == ["GraphMaxSim", "GraphMean"]
    by_document = ptg.Hybrid(
        dense >> pt.text.max_passage(), dense >> maxsim() >> pt.text.max_passage()
    )
    assert ptg.explain(by_document, QUERY, "d0").docno == "d0"
    lexical = pt.Transformer.from_df(
        pd.DataFrame({"qid": ["1"], "query": [QUERY], "docno": ["d0"], "score": [1.0]})
    )
    mixed = ptg.Hybrid(lexical, dense >> pt.text.max_passage(), num_results=1000)
    found = ptg.explain(mixed, QUERY, "d0")
    assert len(found.inner) == 1
    with pytest.raises(KeyError, match="'nowhere' is not among the 6 results"):
        ptg.explain(mixed, QUERY, "nowhere")


def test_what_cannot_be_explained_is_named() -> None:
    with pytest.raises(KeyError, match="'nowhere' is neither a passage nor a document of"):
        ptg.explain(maxsim(), QUERY, "nowhere")
    with pytest.raises(ValueError, match="cannot be explained: give GraphMean, GNNEncoder"):
        ptg.explain(pt.text.max_passage(), QUERY, DOCNO)
    lgre = ptg.LGReReranker(
        tiny.checkpoint(), config=ptg.LGReConfig(layers=(0, -1)), max_tokens=32, device="cpu"
    )
    with pytest.raises(ValueError, match="LGReReranker cannot be explained"):
        ptg.explain(lgre, QUERY, DOCNO)
    with pytest.raises(ValueError, match="has no graph"):
        ptg.explain(maxsim(graph=None), QUERY, DOCNO)
    assert ptg.explain(maxsim(graph=None), QUERY, DOCNO, graph=tiny.graph()).docno == DOCNO
    with pytest.raises(ValueError, match="the question is empty"):
        ptg.explain(maxsim(), " ", DOCNO)
