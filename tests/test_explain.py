"""Explanations: their contributions add up to scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyterrier as pt
import pytest
import tiny
from html_reader import HOSTILE, Reader

import pyterrier_graph as ptg
from pyterrier_graph.html import in_words

QUERY, DOCNO = "alpha kappa", "d0%p1"


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
        options.pop("graph", tiny.graph()),
        tiny.dual_encoder(),
        device="cpu",
        verbose=False,
        **options,
    )


def gnn(**options: Any) -> ptg.GNNEncoder:
    return ptg.GNNEncoder(tiny.graph(), tiny.dual_encoder(), device="cpu", verbose=False, **options)


def score_of(model: Any, docno: str = DOCNO) -> float:
    run = pd.DataFrame({"qid": ["1"], "query": [QUERY], "docno": [docno], "score": [0.0]})
    return float(model.transform(run)["score"].iloc[0])


def product(model: Any) -> float:
    vector = model.query_encoder()(pd.DataFrame({"qid": ["1"], "query": [QUERY]}))[
        "query_vec"
    ].iloc[0]
    return float(model.vectors_of([DOCNO])[0] @ vector)


@pytest.mark.parametrize("make", [maxsim, hgat])
def test_parts_of_rerankers_add_up_to_the_score(make: Any) -> None:
    model = make()
    explanation = ptg.explain(model, QUERY, DOCNO)
    assert explanation.frame["score"].sum() == pytest.approx(explanation.score, abs=1e-5)
    assert explanation.score == pytest.approx(score_of(model), abs=1e-4)
    assert explanation.frame["relation"][0] == "own" and explanation.frame["source"][0] == DOCNO
    assert len({*explanation.frame["relation"]}) > 1
    assert explanation.titles == "alpha - lambda"


@pytest.mark.parametrize(
    "make",
    [
        lambda: mean(weights={"title": 1.0, "order": 0.5}),
        lambda: gnn(config=ptg.GNNEncoderConfig(edges=False)),
    ],
)
def test_parts_of_dense_models_add_up_to_the_score(make: Any) -> None:
    model = make()
    explanation = ptg.explain(model, QUERY, DOCNO)
    assert explanation.frame["score"].sum() == pytest.approx(product(model), abs=1e-5)
    assert explanation.frame["relation"][0] == "own"


def test_parts_of_models_with_queries(tmp_path: Path) -> None:
    queries = pd.DataFrame({"qid": ["k0", "k1"], "query": ["mu iota", "lambda beta"]})
    qrels = pd.DataFrame({"qid": ["k0", "k1"], "docno": ["d0%p0", DOCNO], "label": [1, 1]})
    run = queries.merge(
        pd.DataFrame({"docno": [DOCNO, "d0%p0"], "score": [2.0, 1.0], "rank": [0, 1]}), how="cross"
    )
    graph = ptg.QueryPassageGraph(tmp_path / "queries")
    graph.build(queries, tiny.graph(), pt.Transformer.from_df(run), qrels=qrels)
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


def test_what_cannot_be_explained_is_named() -> None:
    with pytest.raises(KeyError, match="'nowhere' is neither a passage nor a document of"):
        ptg.explain(maxsim(), QUERY, "nowhere")
    with pytest.raises(ValueError, match="cannot be explained: give GraphMean, GNNEncoder"):
        ptg.explain(pt.text.max_passage(), QUERY, DOCNO)
    with pytest.raises(ValueError, match="has no graph"):
        ptg.explain(maxsim(graph=None), QUERY, DOCNO)
    assert ptg.explain(maxsim(graph=None), QUERY, DOCNO, graph=tiny.graph()).docno == DOCNO
    with pytest.raises(ValueError, match="the question is empty"):
        ptg.explain(maxsim(), " ", DOCNO)


def test_an_explanation_is_shown_as_text_and_as_escaped_html() -> None:
    explanation = ptg.explain(maxsim(), HOSTILE, DOCNO)
    read = Reader(explanation.html)
    assert "script" not in read.seen and HOSTILE in read.text
    for text in (read.text, repr(explanation)):
        assert f"{explanation.score:.3f}" in text and "the passage itself" in text
        assert explanation.frame["text"][0] in text
