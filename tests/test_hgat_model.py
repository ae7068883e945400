"""HGAT against the literal equations, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
import tiny
import torch
from hgat_reference import EdgeGraph, relevance
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_graph_maxsim import corpora

import pyterrier_graph as ptg
from pyterrier_graph.encoders.token_encoder import TokenStates
from pyterrier_graph.graph_maxsim.graph_reranker import token_maxima
from pyterrier_graph.graph_maxsim.reranker import GraphMaxSim
from pyterrier_graph.graphs.memory_graph import MemoryGraph
from pyterrier_graph.hgat.equations import HGAT, HGATConfig, Variant
from pyterrier_graph.hgat.reranker import HGATReranker

VARIANTS = get_args(Variant)
DIMENSION = 8


@st.composite
def graphs(draw: st.DrawFn) -> EdgeGraph:
    """Isolated nodes, several relations between the same two nodes, cycles."""
    num_nodes = draw(st.integers(1, 6))
    pairs = [(i, j) for i in range(num_nodes) for j in range(num_nodes) if i != j]
    some = st.lists(st.sampled_from(pairs), max_size=8) if pairs else st.just([])
    return EdgeGraph(num_nodes, {relation: draw(some) for relation in ("order", "structural")})


def texts_of(graph: EdgeGraph, seed: int, *, empty: bool = True) -> list[torch.Tensor]:
    """Token matrices of unequal lengths; some nodes have none (a section without a title)."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0 if empty else 1, 5, (graph.num_nodes,), generator=generator).tolist()
    lengths[0] = max(lengths[0], 1)
    matrices = [torch.randn(length, DIMENSION, generator=generator) for length in lengths]
    return [torch.nn.functional.normalize(matrix, dim=-1) for matrix in matrices]


def model_of(graph: EdgeGraph, variant: str, seed: int = 0, **options: object) -> HGAT:
    torch.manual_seed(seed)
    shape = {"heads": 2, "layers": 3, "dropout": 0.7, "init": "random", "matches": {}}
    config = HGATConfig(variant, relations=graph.relations, **shape | options)
    model = HGAT(config, DIMENSION, positions=6).eval()
    for name, parameter in model.named_parameters():
        if name.endswith(
            ("bias", "by_token", "importance")
        ):  # zero at first, so that nothing would show if forgotten
            torch.nn.init.normal_(parameter)
    return model


def pack(texts: list[torch.Tensor]) -> TokenStates:
    return TokenStates.pack(texts, torch.zeros(0, DIMENSION))


def fast_scores(
    model: HGAT,
    graph: EdgeGraph,
    texts: list[torch.Tensor],
    query: torch.Tensor,
    targets: list[int],
) -> torch.Tensor:
    propagation = model.plan(graph, np.array(targets))
    inputs = pack(texts).select(torch.from_numpy(propagation.nodes))
    neighbors = None if model.matches is None else model.matches.maxima(query, inputs, propagation)
    content = inputs.select(propagation.targets)
    own = model.own_matches(query, content, model(inputs, propagation))
    return model.score(query, own, neighbors)


def literal_scores(
    model: HGAT,
    graph: EdgeGraph,
    texts: list[torch.Tensor],
    query: torch.Tensor,
    targets: list[int],
) -> torch.Tensor:
    return torch.stack([relevance(model, graph, texts, query, target) for target in targets])


BOTH = (literal_scores, fast_scores)


def gradients_of(
    model: HGAT,
    graph: EdgeGraph,
    texts: list[torch.Tensor],
    query: torch.Tensor,
    targets: list[int],
    scores_of: Callable[..., torch.Tensor],
) -> list[torch.Tensor]:
    """Scores, and the gradients of parameters and texts."""
    texts = [text.requires_grad_() for text in texts]
    scores = scores_of(model, graph, texts, query, targets)
    value = (scores * torch.arange(1, len(scores) + 1)).sum() + 0 * sum(
        text.sum() for text in texts
    )
    found = torch.autograd.grad(
        value, [*model.parameters(), *texts], allow_unused=True, materialize_grads=True
    )
    return [scores.detach(), *found]


OPTIONS = [
    *(
        {"framework": name, "aggregation": kind}
        for name in ("standard", "late")
        for kind in ("sum", "mean")
    ),
    {"init": "identity"},
    {"dimension": 4},
    {"framework": "standard", "matches": {"order": 0.8, "structural_i": 0.4}},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graph=graphs(), seed=st.integers(0, 1000))
def test_equals_the_equations(
    variant: str, options: dict[str, Any], graph: EdgeGraph, seed: int
) -> None:
    model = model_of(graph, variant, seed, **options)
    texts = texts_of(graph, seed)
    query = texts[0]
    targets = [node for node in range(graph.num_nodes) if len(texts[node])]
    with torch.no_grad():
        slow, fast = (scores_of(model, graph, texts, query, targets) for scores_of in BOTH)
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("options", [{}, OPTIONS[-1]], ids=["paper", "matches"])
@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graph=graphs(), seed=st.integers(0, 1000))
def test_gradients_equal_those_of_the_equations(
    variant: str, options: dict[str, Any], graph: EdgeGraph, seed: int
) -> None:
    model = model_of(graph, variant, seed, **options)
    query, targets = texts_of(graph, seed + 1)[0], list(range(graph.num_nodes))
    slow, fast = (
        gradients_of(model, graph, texts_of(graph, seed, empty=False), query, targets, by)
        for by in BOTH
    )
    torch.testing.assert_close(fast, slow, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("init", ["random", "identity"])
def test_attention_with_fewer_dimensions(init: str) -> None:
    graph = EdgeGraph(5, {"order": [(0, 1), (1, 2), (3, 0)], "structural": [(0, 3), (1, 3)]})
    model = model_of(graph, "NO_LB", init=init, dimension=4)
    assert model.layers[0].attention["order"].in_proj_weight.shape == (12, DIMENSION)
    texts, query = texts_of(graph, 3, empty=False), texts_of(graph, 4, empty=False)[0]
    slow = torch.stack([relevance(model, graph, texts, query, target) for target in (0, 1, 4)])
    fast = fast_scores(model, graph, texts, query, [0, 1, 4])
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("variant", ["BASE", "LB"])
def test_relation_weights(variant: Variant) -> None:
    """Table 6: the softmax of mean weights; in the Lambda variants it is over the neighbors, which share lambda."""
    graph = EdgeGraph(3, {"order": [(0, 1)], "structural": [(0, 2)]})
    model = model_of(graph, variant, layers=1)
    (layer,) = model.layers
    table = layer.importance()
    assert sum(table.values()) == pytest.approx(1)
    order, structural = (layer.weight[name].mean().item() for name in ("order", "structural"))
    assert table["order"] / table["structural"] == pytest.approx(np.exp(order - structural))
    if variant == "LB":
        assert table["SELF"] == pytest.approx(1 - layer.lambda_.item())
    else:
        own = layer.weight["SELF"].mean().item()
        assert table["SELF"] / table["order"] == pytest.approx(np.exp(own - order))


@pytest.mark.parametrize("variant", VARIANTS)
def test_identity_start(variant: str) -> None:
    """Untrained, every variant whose targets attend to themselves, or that is late, is plain MaxSim."""
    graph = EdgeGraph(5, {"order": [(0, 1), (1, 2), (3, 0)], "structural": [(0, 3), (1, 3)]})
    model = model_of(graph, variant, init="identity")
    for parameter in model.parameters():  # the biases that model_of filled in
        if parameter.dim() == 1 and len(parameter) in (DIMENSION, 3 * DIMENSION):
            torch.nn.init.zeros_(parameter)
    texts, query = texts_of(graph, 3, empty=False), texts_of(graph, 4, empty=False)[0]
    fast = fast_scores(model, graph, texts, query, [0, 1, 4])
    plain = token_maxima(query, pack([texts[node] for node in (0, 1, 4)])).sum(1)
    if variant in ("NS", "LB_NS"):
        assert not torch.allclose(fast, plain, atol=1e-3)
    else:
        torch.testing.assert_close(fast, plain, atol=1e-5, rtol=1e-5)


# --- tokens of neighbors that are matched directly: untrained, the network is GraphMaxSim

WEIGHTS = {
    "structural": 0.8,
    "structural/structural": 1.2,
    "order": 0.5,
    "order_i": 0.3,
    "external": 0.7,
}
MATCHING = {"heads": 2, "dimension": None}


def hgat(graph: object, weights: dict[str, float], **options: object) -> HGATReranker:
    """An untrained HGAT with matches."""
    shape = {**MATCHING, "relations": ("order", "structural_i", "internal"), "matches": weights}
    config = ptg.HGATConfig(
        **shape | {name: options.pop(name) for name in ("layers", "variant") if name in options}
    )
    return HGATReranker(graph, tiny.encoder(), config=config, verbose=False, **options)  # type: ignore[arg-type]


def scores(reranker: object, frame: pd.DataFrame) -> np.ndarray:
    return reranker(frame).sort_values(["qid", "docno"])["score"].to_numpy()  # type: ignore[operator]


def frame_of(graph: MemoryGraph, query: str) -> pd.DataFrame:
    return pd.DataFrame({"qid": "1", "query": query, "docno": graph.ids_of(graph.passage_nodes)})


@pytest.mark.filterwarnings("ignore::pyterrier_graph.checks.PyTerrierGraphWarning")
@settings(max_examples=12, deadline=None)
@given(
    corpora(),
    st.dictionaries(
        st.sampled_from([*WEIGHTS]), st.sampled_from([0.0, 0.3, 0.8, 1.0, 1.5]), min_size=1
    ),
    st.sampled_from(tiny.WORDS),
    st.integers(1, 2),
)
def test_untrained_network_is_graph_maxsim(
    graph: MemoryGraph, weights: dict[str, float], query: str, layers: int
) -> None:
    frame = frame_of(graph, query)
    expected = scores(GraphMaxSim(graph, tiny.encoder(), weights, verbose=False), frame)
    found = scores(hgat(graph, weights, layers=layers), frame)
    np.testing.assert_allclose(found, expected, atol=2e-3)  # tokens are kept in half precision


def test_weights_learn() -> None:
    """Training changes the weights of relations, for each token of a query, and how much the tokens count."""
    reranker = hgat(tiny.graph(), {"title": 0.2, "order": 0.9})
    reranker.training = ptg.HGATTraining(epochs=1)
    matches = reranker.network.matches
    start = matches.weights.tolist()
    run = tiny.run()
    before = tiny.evaluated("nDCG@10", tiny.qrels(), reranker(run))
    reranker.fit(run, tiny.qrels(), run, tiny.qrels())
    assert matches.weights.tolist() != pytest.approx(start, abs=1e-3)
    assert matches.by_token.any() and matches.importance.any()
    assert tiny.evaluated("nDCG@10", tiny.qrels(), reranker(run)) > before


def test_matches_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="(?s)matches.title.*greater than or equal to 0"):
        ptg.HGATConfig(matches={"title": -1.0})
    with pytest.raises(ValueError, match="framework='standard'"):
        ptg.HGATConfig("NO_LB_NS", matches={"title": 1.0})
    with pytest.raises(ValueError, match="no relation 'beside'"):
        hgat(tiny.graph(), {"beside": 1.0})
