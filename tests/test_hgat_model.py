"""HGAT against the literal equations, forward and backward."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from hgat_reference import EdgeGraph, in_context, relevance
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyterrier_graph.encoders.token_states import TokenStates
from pyterrier_graph.models.hgat import HGAT, HGATConfig, Variant
from pyterrier_graph.models.maxsim import maxsim

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
    shape = {"heads": 2, "layers": 3, "dropout": 0.7, "init": "random", "registers": 0}
    config = HGATConfig(variant, **shape | options)
    model = HGAT(config, dimension=DIMENSION, relations=graph.relations, positions=6).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # zero at first, so that a forgotten bias would not show
            torch.nn.init.normal_(parameter)
    return model


def pack(texts: list[torch.Tensor]) -> TokenStates:
    return TokenStates.pack(texts, torch.zeros(0, DIMENSION))


def fast_scores(
    model: HGAT, graph: EdgeGraph, texts: list[torch.Tensor], query: torch.Tensor, targets: list[int]
) -> torch.Tensor:
    propagation = model.plan(graph, np.array(targets))
    inputs = pack(texts).select(torch.from_numpy(propagation.nodes))
    return model.score(query, inputs.select(propagation.inputs), model(inputs, propagation))


@pytest.mark.parametrize("aggregation", ["sum", "mean"])
@pytest.mark.parametrize("framework", ["standard", "late"])
@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graph=graphs(), seed=st.integers(0, 1000))
def test_equals_the_equations(variant: str, framework: str, aggregation: str, graph: EdgeGraph, seed: int) -> None:
    model = model_of(graph, variant, seed, framework=framework, aggregation=aggregation)
    texts = texts_of(graph, seed)
    query = texts[0]
    targets = [node for node in range(graph.num_nodes) if len(texts[node])]
    slow = torch.stack([relevance(model, graph, texts, query, target) for target in targets])
    fast = fast_scores(model, graph, texts, query, targets)
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graph=graphs(), seed=st.integers(0, 1000))
def test_gradients_equal_those_of_the_equations(variant: str, graph: EdgeGraph, seed: int) -> None:
    model = model_of(graph, variant, seed)
    query = texts_of(graph, seed + 1)[0]
    gradients = []
    for slow in (True, False):
        texts = [text.requires_grad_() for text in texts_of(graph, seed, empty=False)]
        targets = list(range(graph.num_nodes))
        if slow:
            scores = torch.stack([relevance(model, graph, texts, query, target) for target in targets])
        else:
            scores = fast_scores(model, graph, texts, query, targets)
        model.zero_grad()
        connected = sum(0 * p.sum() for p in model.parameters())  # an isolated No self target has no gradient at all
        ((scores * torch.arange(1, len(scores) + 1)).sum() + connected).backward()
        found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        found |= {f"text {number}": text.grad for number, text in enumerate(texts) if text.grad is not None}
        gradients.append(found)
    for name in {*gradients[0], *gradients[1]}:
        zero = torch.zeros(())
        slow_gradient, fast_gradient = (g.get(name, zero) for g in gradients)
        torch.testing.assert_close(
            fast_gradient + 0 * slow_gradient, slow_gradient + 0 * fast_gradient, atol=2e-4, rtol=1e-3
        )


@pytest.mark.parametrize("init", ["random", "identity"])
@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graph=graphs(), seed=st.integers(0, 1000))
def test_registers_equal_the_equations(variant: Variant, init: str, graph: EdgeGraph, seed: int) -> None:
    model = model_of(graph, variant, seed, registers=3, init=init)
    texts = texts_of(graph, seed)
    targets = [node for node in range(graph.num_nodes) if len(texts[node])]
    slow = torch.stack([relevance(model, graph, texts, texts[0], target) for target in targets])
    fast = fast_scores(model, graph, texts, texts[0], targets)
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-4)


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
    slow = torch.stack([relevance(model, graph, texts, query, target) for target in (0, 1, 4)])
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-4)
    plain = maxsim(query, pack([texts[node] for node in (0, 1, 4)]))
    if variant in ("NS", "LB_NS"):
        assert not torch.allclose(fast, plain, atol=1e-3)
    else:
        torch.testing.assert_close(fast, plain, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_identity_start_can_learn(variant: str) -> None:
    """Scalars and projections that start at 0 get gradients."""
    graph = EdgeGraph(4, {"order": [(0, 1), (1, 2)], "structural": [(0, 3), (1, 3)]})
    model = model_of(graph, variant, init="identity")
    texts, query = texts_of(graph, 3, empty=False), texts_of(graph, 4, empty=False)[0]
    fast_scores(model, graph, texts, query, [0, 1]).sum().backward()
    gated = [model.alpha, *(layer.lambda_ for layer in model.layers)]
    gated += [layer.attention["structural"].out_proj.weight for layer in model.layers]
    assert any(value is not None and value.grad is not None and value.grad.abs().sum() > 0 for value in gated)


@pytest.mark.parametrize("variant", VARIANTS)
def test_whether_neighbors_aggregate_from_the_target(variant: str) -> None:
    """No out: the neighbors of a target do not depend on the content of the target (Sect. 3.3, F1).

    With No self, the target's representation consists of its neighbors' messages only. If No out holds too, it does not
    change when the content of the target changes.
    """
    graph = EdgeGraph(3, {"order": [(0, 1), (1, 2)]})
    # each text has one token: the attention weights are then 1 whatever the query, which comes from the target
    generator = torch.Generator().manual_seed(5)
    texts = [torch.randn(1, DIMENSION, generator=generator) for _ in range(3)]
    model = model_of(graph, variant)
    before = in_context(model, graph, texts, 0)
    changed = [texts[0] + 1, *texts[1:]]
    after = in_context(model, graph, changed, 0)
    independent = torch.allclose(before, after, atol=1e-6)
    assert independent == (model.config.no_out and model.config.no_self)


@pytest.mark.parametrize("variant", VARIANTS)
def test_neighbor_states_depend_on_the_target_in_the_no_out_variants(variant: str) -> None:
    """One state per node serves all targets exactly where the config says so."""
    graph = EdgeGraph(4, {"order": [(0, 1), (1, 2), (2, 3)]})
    model = model_of(graph, variant)
    hops = model.plan(graph, np.array([0, 1, 2, 3])).hops
    shared = all(len(hop.previous) <= graph.num_nodes for hop in hops)
    assert shared == (not (model.config.no_out or model.config.no_self))


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=5, deadline=None)
@given(graph=graphs(), seed=st.integers(0, 1000))
def test_a_score_does_not_depend_on_the_batch(variant: str, graph: EdgeGraph, seed: int) -> None:
    model, texts = model_of(graph, variant, seed), texts_of(graph, seed, empty=False)
    query = texts[0]
    targets = list(range(graph.num_nodes))
    together = fast_scores(model, graph, texts, query, targets)
    alone = torch.cat([fast_scores(model, graph, texts, query, [target]) for target in targets])
    backwards = fast_scores(model, graph, texts, query, targets[::-1]).flip(0)
    repeated = fast_scores(model, graph, texts, query, targets * 2)
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(together, backwards, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(repeated, together.repeat(2), atol=1e-5, rtol=1e-5)


def test_a_target_without_neighbors_and_without_self_has_no_representation() -> None:
    graph = EdgeGraph(2, {"order": []})
    model, texts = model_of(graph, "NS"), texts_of(graph, 0, empty=False)
    assert fast_scores(model, graph, texts, texts[0], [0]).item() == 0.0


def test_relation_weights_add_up() -> None:
    graph = EdgeGraph(2, {"order": [], "structural": []})
    for variant in VARIANTS:
        table = model_of(graph, variant).relation_weights()
        assert set(table) == {"order", "order_i", "structural", "structural_i", "SELF"}
        for layer in range(3):
            assert sum(values[layer] for values in table.values()) == pytest.approx(1.0)


def test_dropout_is_on_in_training_only() -> None:
    graph = EdgeGraph(3, {"order": [(0, 1), (1, 2)]})
    model, texts = model_of(graph, "BASE"), texts_of(graph, 0, empty=False)
    once, twice = (fast_scores(model, graph, texts, texts[0], [0]) for _ in range(2))
    assert torch.equal(once, twice)
    model.train()
    assert len({fast_scores(model, graph, texts, texts[0], [0]).item() for _ in range(5)}) > 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"variant": "LB_NO"},
        {"framework": "early"},
        {"heads": 0},
        {"init": "zero"},
        {"aggregation": "max"},
        {"layers": 0},
        {"dropout": 1.5},
        {"registers": -1},
    ],
)
def test_wrong_options_are_named(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
        HGATConfig(**wrong)


def test_a_network_that_does_not_fit() -> None:
    def made(heads: int = 2, relations: tuple[str, ...] = ("order",)) -> HGAT:
        return HGAT(HGATConfig(heads=heads), dimension=DIMENSION, relations=relations, positions=6)

    with pytest.raises(ValueError, match="3 heads do not divide 8 dimensions"):
        made(heads=3)
    with pytest.raises(ValueError, match="relations must be distinct"):
        made(relations=("order", "order"))
    with pytest.raises(ValueError, match="not contain SELF"):
        made(relations=("SELF",))


def test_the_shape_of_the_publication() -> None:
    config = HGATConfig.paper("LB", heads=4)
    assert (config.layers, config.heads, config.dropout, config.init, config.registers) == (3, 4, 0.7, "random", 0)
    assert config.variant == "LB" and config.relations is None
