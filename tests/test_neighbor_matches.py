"""An HGAT that matches the tokens of neighbors directly: untrained, it is GraphMaxSim."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_graph_maxsim import corpora

import pyterrier_graph as ptg
from pyterrier_graph.encoders.token_states import TokenStates
from pyterrier_graph.encoders.token_store import TokenStore
from pyterrier_graph.graphs import MemoryGraph
from pyterrier_graph.rerank.graph_maxsim import GraphMaxSim
from pyterrier_graph.rerank.hgat import HGATReranker
from pyterrier_graph.retrieve.late_interaction_index import LateInteractionIndex

WEIGHTS = {"structural": 0.8, "structural/structural": 1.2, "order": 0.5, "order_i": 0.3, "external": 0.7}
SHAPE = {"heads": 2, "dimension": None}


def hgat(graph: object, weights: dict[str, float], **options: object) -> HGATReranker:
    """An untrained HGAT with matches."""
    shape = {**SHAPE, "relations": ("order", "structural_i", "internal"), "matches": weights}
    config = ptg.HGATConfig(**shape | {name: options.pop(name) for name in ("layers", "variant") if name in options})
    return HGATReranker(graph, tiny.encoder(), config=config, verbose=False, **options)  # type: ignore[arg-type]


def scores(reranker: object, frame: pd.DataFrame) -> np.ndarray:
    return reranker(frame).sort_values(["qid", "docno"])["score"].to_numpy()  # type: ignore[operator]


def frame_of(graph: MemoryGraph, query: str) -> pd.DataFrame:
    return pd.DataFrame({"qid": "1", "query": query, "docno": graph.ids_of(graph.passage_nodes)})


@pytest.mark.filterwarnings("ignore::pyterrier_graph.warning_categories.PyTerrierGraphWarning")
@settings(max_examples=12, deadline=None)
@given(
    corpora(),
    st.dictionaries(st.sampled_from([*WEIGHTS]), st.sampled_from([0.0, 0.3, 0.8, 1.0, 1.5]), min_size=1),
    st.sampled_from(tiny.WORDS),
    st.integers(1, 2),
)
def test_untrained_network_is_graph_maxsim(
    graph: MemoryGraph, weights: dict[str, float], query: str, layers: int
) -> None:
    frame = frame_of(graph, query)
    expected = scores(GraphMaxSim(graph, tiny.encoder(), weights, verbose=False), frame)
    found = scores(hgat(graph, weights, layers=layers), frame)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_no_registers_unless_asked_for() -> None:
    """Registers would match with full weight after the first step of training."""
    assert (ptg.HGATConfig().registers, ptg.HGATConfig(matches=WEIGHTS).registers) == (32, 0)
    assert ptg.HGATConfig(matches=WEIGHTS, registers=4).registers == 4


@pytest.mark.parametrize(("registers", "most"), [(None, 0.02), (4, 3.0)])
def test_a_small_step_changes_scores_by_little(registers: int | None, most: float) -> None:
    """With registers, scores jump as soon as lambda is not 0."""
    config = ptg.HGATConfig(**SHAPE, matches={"title": 0.9}, relations=("order",), registers=registers)
    reranker = HGATReranker(tiny.graph(), tiny.encoder(), config=config, verbose=False)
    before = scores(reranker, tiny.run())
    with torch.no_grad():
        reranker.network.layers[0].lambda_.fill_(1e-3)
    change = np.abs(scores(reranker, tiny.run()) - before).max()
    assert 0 < change < most and (change > 0.02) == (registers is not None)


def test_matrix_of_a_passage() -> None:
    """The rows of the representation come first, those of neighbors are scaled, and targets may repeat."""
    graph, network = tiny.graph(), hgat(tiny.graph(), {"order": 0.5, "title": 2.0, "internal": 0.0}).network
    targets = graph.nodes_of(["d1%p1", "d0%p0", "d1%p1"])
    propagation = network.plan(graph, targets)
    lengths = torch.arange(len(propagation.nodes)) % 3 + 1
    parts = [torch.nn.functional.normalize(torch.randn(n, 16), dim=1) for n in lengths.tolist()]
    inputs = TokenStates.pack(parts, torch.zeros(0, 16))
    found = network(inputs, propagation)
    of = dict(zip(propagation.nodes.tolist(), parts, strict=True))
    for place, target in enumerate(targets):
        rows = [of[target]]
        for relation, weight in (("order", 0.5), ("title", 2.0)):
            neighbors = graph.neighbors(np.array([target]), relation)[1]
            rows += [weight * of[node] for node in neighbors.tolist()]
        torch.testing.assert_close(found[place], torch.cat(rows))


def test_weights_learn() -> None:
    """Queries that only the title matches raise its weight, and lower that of the passage beside."""
    reranker = hgat(tiny.graph(), {"title": 0.2, "order": 0.9})
    reranker.training = ptg.HGATTraining(epochs=3, scalar_learning_rate=0.05, learning_rate=1e-3)
    start = reranker.network.matches.relation_weights()
    assert start == pytest.approx({"title": 0.2, "order": 0.9})
    reranker.fit(tiny.run(), tiny.qrels())
    learned = reranker.network.matches.relation_weights()
    assert learned != pytest.approx(start, abs=1e-3)
    with torch.no_grad():
        reranker.network.matches.weights.copy_(torch.tensor([-1.0, 0.5]))
    assert reranker.network.matches.relation_weights() == {"title": 0.0, "order": 0.5}


@pytest.mark.filterwarnings("ignore::pyterrier_graph.warning_categories.PyTerrierGraphWarning")
def test_stored_representations_and_saving(tmp_path: Path) -> None:
    graph = ptg.DocumentGraph(tmp_path / "graph").index(tiny.documents(), verbose=False)
    tokens = TokenStore(tmp_path / "tokens").build(graph, tiny.encoder(), verbose=False)
    weights = {"title": 0.9, "order": 0.5}
    reranker = hgat(graph, weights, tokens=tokens)
    expected = scores(reranker, tiny.run())
    reranker.contextualized = reranker.contextualize(tmp_path / "contextualized")
    np.testing.assert_allclose(scores(reranker, tiny.run()), expected, atol=2e-3)
    index = LateInteractionIndex(tmp_path / "index").index(reranker.contextualized, verbose=False)
    found = index.retriever(reranker, 18, nearest=10_000)(tiny.topics())
    np.testing.assert_allclose(found.sort_values(["qid", "docno"])["score"], expected, atol=2e-3)
    reranker.save(tmp_path / "saved")
    again = HGATReranker.load(tmp_path / "saved", graph=graph, tokens=tokens, verbose=False)
    assert again.config.matches == weights
    np.testing.assert_allclose(scores(again, tiny.run()), expected, atol=1e-5)


def test_explanation_adds_up() -> None:
    reranker = hgat(tiny.graph(), {"title": 0.9, "title/title": 0.9, "order": 0.5})
    explained = reranker.explain("alpha beta", "d0%p1")
    frame = pd.DataFrame([{"qid": "1", "query": "alpha beta", "docno": "d0%p1"}])
    assert explained["contribution"].sum() == pytest.approx(reranker(frame)["score"].iloc[0], abs=1e-4)
    assert "title" in set(explained["relation"])


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="the weight of 'title'"):
        ptg.HGATConfig(matches={"title": -1.0})
    with pytest.raises(ValueError, match="at least one relation"):
        ptg.HGATConfig(matches={})
    with pytest.raises(ValueError, match="framework='standard'"):
        ptg.HGATConfig("NO_LB_NS", matches={"title": 1.0})
    with pytest.raises(TypeError, match="a weight per relation"):
        ptg.HGATConfig(matches="title")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no relation 'beside'"):
        hgat(tiny.graph(), {"beside": 1.0})
