"""HGATReranker: training, artifacts, stored representations, explanations."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import tiny

from pyterrier_graph.encoders.token_encoder import TokenEncoder
from pyterrier_graph.encoders.token_store import TokenStore
from pyterrier_graph.graphs.candidate_graph import CandidateGraph
from pyterrier_graph.hgat.equations import HGATConfig, Variant
from pyterrier_graph.hgat.reranker import HGATReranker
from pyterrier_graph.hgat.training import HGATTraining, draw_triples

QUICK = {
    "epochs": 2,
    "batch_size": 8,
    "learning_rate": 0.01,
    "scalar_learning_rate": 0.01,
    "patience": 3,
}
SHAPE = {
    "variant": "NO_LB",
    "framework": None,
    "layers": 1,
    "heads": 2,
    "dropout": 0.2,
    "init": "random",
    "aggregation": "sum",
    "dimension": 128,
    "relations": None,
}
RUN, QRELS = tiny.run(), tiny.qrels()


def hgat(graph: Any = "tiny", encoder: TokenEncoder | None = None, **options: Any) -> HGATReranker:
    training = HGATTraining(**QUICK | options.pop("training", {}))
    fields = {field.name for field in dataclasses.fields(HGATConfig)} & options.keys()
    config = HGATConfig(**SHAPE | {name: options.pop(name) for name in fields})
    given = {"config": config, "training": training, "verbose": False} | options
    return HGATReranker(
        tiny.graph() if graph == "tiny" else graph, encoder or tiny.encoder(), **given
    )


def scores(reranker: pt.Transformer) -> np.ndarray:
    return reranker(RUN)["score"].to_numpy()


def measured(reranker: HGATReranker) -> float:
    return tiny.evaluated("nDCG@10", QRELS, reranker(RUN))


# --- training


@pytest.mark.parametrize("negatives", ["mixed", "candidates"])
def test_training_with_each_strategy(negatives: str) -> None:
    reranker = hgat(
        training={
            "negatives": negatives,
            "epochs": 3,
            "learning_rate": 0.02,
            "scalar_learning_rate": 0.02,
        },
        dropout=0.0,
    )
    before = measured(reranker)
    assert reranker.fit(RUN, QRELS, RUN, QRELS) is reranker
    assert measured(reranker) == pytest.approx(max(tiny.logged(reranker, "nDCG@10")[1:]))
    assert measured(reranker) > before


def test_triples_of_a_run() -> None:
    """Queries in any order, some of them not judged, rows twice."""
    graph = tiny.graph()
    run = pd.concat([RUN.sample(frac=1, random_state=3), RUN.iloc[:30]])
    options = HGATTraining(negatives="candidates", repeats=3)
    queries, triples = draw_triples(tiny.judged(run, QRELS[QRELS["qid"] != "t2"], graph), options)
    assert len(triples) == 3 * 5 * 3
    grade = {(row.qid, row.docno): row.label for row in QRELS.itertuples()}
    qid_of = dict(zip(RUN["query"], RUN["qid"], strict=True))
    for query, *pair in triples.tolist():
        qid = qid_of[queries[query]]
        better, worse = graph.ids_of(np.array(pair))
        assert grade[qid, better] > grade.get((qid, worse), 0)
    options = HGATTraining(negatives="candidates", max_triples=7)
    assert len(np.unique(draw_triples(tiny.judged(run, QRELS, graph), options)[1], axis=0)) == 7


def test_training_on_graphs_of_candidates() -> None:
    """The weights of direct matches learn; layers need a document graph."""
    graph = tiny.graph()
    frame = RUN.assign(text=graph.texts(graph.nodes_of(RUN["docno"].tolist())), label=7)
    made = CandidateGraph()(pd.concat([frame, frame.iloc[:2]]))  # a repeated row is one passage
    matching = {"matches": {"order": 0.5}, "init": "identity"}
    reranker = hgat(None, training={"epochs": None}, **matching)
    start = tiny.weights(reranker.network)
    reranker.fit(made, QRELS)
    assert tiny.learned(reranker.network, start) == {
        "matches.weights",
        "matches.by_token",
        "matches.importance",
    }
    with pytest.raises(ValueError, match="layers are trained on a document graph"):
        hgat(None).fit(made, QRELS)


def test_direct_matches_learn_from_a_sample_of_queries() -> None:
    reranker = hgat(matches={"order": 0.5}, training={"epochs": 0, "max_triples": 2})
    reranker.fit(RUN, QRELS)
    everything = hgat(matches={"order": 0.5}, training={"epochs": 0}).fit(RUN, QRELS)
    assert (scores(reranker) != scores(everything)).any()


def test_relation_weights_add_up_to_one() -> None:
    table = hgat(layers=2, variant="BASE", relations=("order", "title")).relation_weights()
    assert [*table.index] == ["order", "title", "SELF"]
    assert [*table.columns] == ["layer 1", "layer 2"]
    np.testing.assert_allclose(table.sum(), 1, rtol=1e-6)
    start = hgat(init="identity", variant="BASE", relations=("order", "title")).relation_weights()
    np.testing.assert_allclose(start, 1 / 3)  # the start prefers no relation


def test_training_that_diverges_or_has_nothing_to_learn() -> None:
    with pytest.raises(ValueError, match="diverged|not finite"):
        hgat(training={"learning_rate": 1e30}).fit(RUN, QRELS)
    with pytest.raises(ValueError, match="no training query has a relevant passage"):
        hgat().fit(RUN, QRELS.assign(label=0))


# --- the encoder learns, too


@pytest.mark.parametrize("frozen", [0, 1])
def test_the_encoder_learns_but_for_frozen_layers(frozen: int, tmp_path: Path) -> None:
    encoder = tiny.fresh_encoder()
    store = TokenStore(tmp_path / "tokens", verbose=False).build(tiny.graph(), encoder)
    training = {
        "encoder_learning_rate": 1e-3,
        "frozen_encoder_layers": frozen,
        "epochs": 1,
        "learning_rate": 0.02,
        "scalar_learning_rate": 0.02,
    }
    before = tiny.weights(encoder.network)
    reranker = hgat(encoder=encoder, tokens=store, training=training, dropout=0.0)
    reranker.fit(RUN, QRELS, RUN, QRELS)
    changed = tiny.learned(reranker.encoder.network, before)
    assert not tiny.learned(encoder.network, before)  # the caller's stays
    assert any("layer.1." in name for name in changed)
    assert any("embeddings.word" in name for name in changed) == (frozen == 0)
    assert any("layer.0." in name for name in changed) == (frozen == 0)
    assert reranker.tokens is None  # those were of other weights
    assert measured(reranker) == pytest.approx(max(tiny.logged(reranker, "nDCG@10")[1:]))
    reranker.save(tmp_path / "saved")
    loaded = HGATReranker.load(tmp_path / "saved", graph=tiny.graph(), device="cpu")
    np.testing.assert_array_equal(scores(loaded), scores(reranker))


# --- stored representations


@pytest.mark.parametrize("variant", ["BASE", "NO_LB", "NO_LB_NS"])
def test_stored_representations_score_as_computed_ones(variant: Variant, tmp_path: Path) -> None:
    shape = {"variant": variant, "layers": 2}
    reranker = hgat(**shape, batch_size=4)
    computed = scores(reranker)
    store = reranker.contextualize(tmp_path / "in_context")
    looked_up = hgat(**shape, contextualized=store)
    looked_up.network.forward = looked_up._digest = None  # type: ignore[assignment, method-assign]
    np.testing.assert_allclose(scores(looked_up), computed, atol=1e-3)
    again = hgat(**shape).apply_attributes(contextualized=TokenStore(store.path))
    np.testing.assert_allclose(scores(again), computed, atol=1e-3)
    assert pt.inspect.transformer_apply_attributes(again).contextualized is again.contextualized
    assert (store.states(np.arange(30)).lengths.numpy() > 0).tolist() == (
        tiny.graph().node_type == 0
    ).tolist()


def test_representations_of_tokens_with_titles(tmp_path: Path) -> None:
    encoder = tiny.fresh_encoder()
    with_titles = TokenStore(tmp_path / "with").build(tiny.graph(), encoder, titles=True)
    without = TokenStore(tmp_path / "without").build(tiny.graph(), encoder, titles=False)
    store = hgat(tokens=with_titles).contextualize(tmp_path / "in_context")
    hgat(tokens=with_titles, contextualized=store)
    with pytest.raises(ValueError, match="titles"):
        hgat(tokens=without, contextualized=store)


def test_representations_of_other_weights_or_another_graph(tmp_path: Path) -> None:
    reranker = hgat()
    store = reranker.contextualize(tmp_path / "in_context")
    reranker.contextualized = store
    reranker.fit(RUN, QRELS)
    assert reranker.contextualized is None
    with pytest.raises(
        ValueError, match="computed with other weights, titles or passages: contextualize again"
    ):
        reranker.apply_attributes(contextualized=store)
    for options in ({"seed": 5}, {"variant": "BASE"}, {"titles": True}):
        with pytest.raises(ValueError, match="computed with other weights"):
            hgat(contextualized=store, **options)
    with pytest.raises(ValueError, match="computed with other weights"):
        hgat(tiny.graph(4), contextualized=store)
    with pytest.raises(ValueError, match="was not built with"):
        hgat(tokens=store)


# --- explanations


@pytest.mark.parametrize(
    ("config", "fit"),
    [
        (HGATConfig(heads=2), True),
        (HGATConfig.paper(heads=4), False),
        (HGATConfig.paper("NO_LB_NS", heads=4), False),
    ],
)
def test_matches_add_up_to_the_score(config: HGATConfig, fit: bool) -> None:
    reranker = HGATReranker(tiny.graph(), tiny.encoder(), config=config, verbose=False)
    if fit:
        reranker.fit(RUN, QRELS)
    parts = reranker.explain("alpha", "d0%p1")
    assert parts["score"].sum() == pytest.approx(reranker(tiny.run(1))["score"].iloc[1], abs=1e-6)
    assert (set(parts["relation"]) == {"own"}) == (not fit)
