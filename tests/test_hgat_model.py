"""HGAT against the literal equations, forward and backward."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from hgat_reference import EdgeGraph, in_context, relevance
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyterrier_graph.encoders.principal_directions import principal_directions
from pyterrier_graph.encoders.token_states import TokenStates
from pyterrier_graph.models import attention
from pyterrier_graph.models.edge_blocks import EdgeBlocks
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


@pytest.mark.parametrize("registers", [0, 2])
@pytest.mark.parametrize("variant", VARIANTS)
def test_nodes_with_the_same_neighbors(variant: str, registers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A section whose passages attend to one another, and one without a title; computed in small parts, too."""
    monkeypatch.setattr(attention, "QUERIES_AT_ONCE", 3)
    monkeypatch.setattr(attention, "KEYS_AT_ONCE", 5)
    passages = range(1, 6)
    beside = [(i, j) for i in passages for j in passages if i != j and (i, j) != (1, 4)] + [(1, 6), (6, 0)]
    graph = EdgeGraph(7, {"order": beside, "structural": [(i, j) for i in passages for j in (0, 6)]})
    model = model_of(graph, variant, layers=2, registers=registers)
    assert any(edges.blocks for edges in model.plan(graph, np.arange(7)).hops[-1].edges.values())
    gradients = []
    for slow in (True, False):
        texts = [text.requires_grad_() for text in texts_of(graph, 1, empty=False)]
        texts[6] = texts[6][:0]
        query, targets = texts_of(graph, 2)[0], [1, 3]
        if slow:
            scores = torch.stack([relevance(model, graph, texts, query, target) for target in targets])
        else:
            scores = fast_scores(model, graph, texts, query, targets)
        weights = [*model.parameters()]
        found = torch.autograd.grad((scores * torch.tensor([1.0, 2.0])).sum(), weights, materialize_grads=True)
        gradients.append([scores.detach(), *found])
    torch.testing.assert_close(gradients[1], gradients[0], atol=2e-4, rtol=1e-3)


@settings(max_examples=25, deadline=None)
@given(st.sets(st.tuples(st.integers(0, 12), st.integers(0, 9)), min_size=1))
def test_each_edge_is_in_one_block_or_a_pair(given_edges: set[tuple[int, int]]) -> None:
    node, neighbor = np.array(sorted(given_edges), dtype=np.int64).reshape(-1, 2).T
    edges = EdgeBlocks.of(node, neighbor)
    found = [*zip(*edges.pairs.tolist(), strict=True)]
    for block in edges.blocks:
        for row, column in block.allowed.nonzero().tolist():
            found.append((int(block.nodes[column]), int(block.neighbors[row])))
        assert block.complete == bool(block.allowed.all())
    assert sorted((int(edges.nodes[i]), int(edges.neighbors[j])) for i, j in found) == sorted(given_edges)
    values = torch.randn(len(edges.neighbors), 2, 3)
    of_edge = values[torch.searchsorted(edges.neighbors, torch.from_numpy(neighbor))]
    sums = torch.zeros(13, 2, 3).index_add(0, torch.from_numpy(node), of_edge)
    torch.testing.assert_close(edges.sum(values), sums[edges.nodes], atol=1e-5, rtol=1e-5)


def test_passages_of_a_section_are_one_block() -> None:
    i, j = np.nonzero(~np.eye(6, dtype=bool))
    edges = EdgeBlocks.of(np.append(i, [10, 11]), np.append(j, [11, 12]))
    assert [block.allowed.shape for block in edges.blocks] == [(6, 6)] and edges.pairs.shape == (2, 2)


@pytest.mark.parametrize("framework", ["standard", "late"])
@pytest.mark.parametrize("init", ["random", "identity"])
def test_a_projection_equals_the_same_network_on_projected_vectors(init: str, framework: str) -> None:
    graph = EdgeGraph(5, {"order": [(0, 1), (1, 2), (3, 0)], "structural": [(0, 3), (1, 3)]})
    model = model_of(graph, "NO_LB", init=init, framework=framework, dimension=4)
    assert model.dimension == 4 and model.layers[0].attention["SELF"].embed_dim == 4
    texts, query = texts_of(graph, 3, empty=False), texts_of(graph, 4, empty=False)[0]
    projected = [torch.nn.functional.normalize(text @ model.projection.weight.T, dim=1) for text in [query, *texts]]
    slow = torch.stack([relevance(model, graph, projected[1:], projected[0], target) for target in (0, 1, 4)])
    inputs = model.project(pack(texts))
    propagation = model.plan(graph, np.array([0, 1, 4]))
    inputs = inputs.select(torch.from_numpy(propagation.nodes))
    queries = model.project(pack([query]))
    fast = model.score(queries[0], inputs.select(propagation.inputs), model(inputs, propagation))
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-4)
    fast.sum().backward()
    assert model.projection.weight.grad.abs().sum() > 0
    shorter = model_of(graph, "NO_LB", init=init, dimension=DIMENSION)
    assert shorter.projection is None and shorter.project(inputs) is inputs
    with pytest.raises(ValueError, match="the network has no projection"):
        shorter.start_projection_at(torch.eye(DIMENSION))


def test_principal_directions() -> None:
    vectors = torch.randn(200, 6, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 5, 1, 9, 1, 1])
    directions = principal_directions(vectors, 2)
    torch.testing.assert_close(directions @ directions.T, torch.eye(2), atol=1e-5, rtol=1e-5)
    assert directions.argmax(1).tolist() == [3, 1] and (directions.amax(1) > 0.9).all()
    torch.testing.assert_close(principal_directions(-vectors, 2), directions)


@pytest.mark.parametrize("variant", VARIANTS)
def test_states_shared_within_a_tolerance(variant: str) -> None:
    """A node with many neighbors has one state for all targets; without a tolerance it has one for each."""
    edges = [(0, passage) for passage in range(1, 21)]
    graph = EdgeGraph(21, {"structural": edges, "order": [(i, i + 1) for i in range(1, 20)]})
    model, texts = model_of(graph, variant, layers=2), texts_of(graph, 1, empty=False)
    targets = np.arange(1, 21)

    def represented(tolerance: float) -> tuple[int, torch.Tensor]:
        propagation = model.plan(graph, targets, tolerance=tolerance)
        inputs = pack(texts).select(torch.from_numpy(propagation.nodes))
        return len(propagation.hops[0].previous), model(inputs, propagation).values

    (states, exact), (same, unchanged), (fewer, shared) = map(represented, (0.0, 0.01, 0.05))
    assert states == same and torch.equal(exact, unchanged)
    if model.config.no_out:
        assert fewer < states and not torch.equal(exact, shared)
        assert (exact * shared).sum(1).mean() > 0.95
    else:
        assert torch.equal(exact, shared)


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
        {"dimension": 0},
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
    assert config.variant == "LB" and config.relations is None and config.dimension == 128
