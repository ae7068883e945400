"""The GNN-encoder's networks against the literal equations and against PyG's GATConv, forward and backward."""

from __future__ import annotations

from typing import Any

import gnn_encoder_reference as reference
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from pyterrier_graph.gnn_encoder.equations import (
    BipartiteAttention,
    PaperGNNEncoderConfig,
    PaperGNNEncoderNetwork,
)
from pyterrier_graph.gnn_encoder.network import GNNEncoderConfig, GNNEncoderNetwork
from pyterrier_graph.graph_mean.equations import rows_of
from pyterrier_graph.graph_mean.neighbors import edge_type
from pyterrier_graph.graphs.relations import RELEVANT, RETRIEVED
from pyterrier_graph.pair.losses import in_batch_loss, pair_loss

D, D_E = 8, 5
Edges = reference.Edges


def index_of(edges: Edges) -> Tensor:
    """Pairs (target, source) as PyG has them."""
    return torch.tensor([(j, i) for i, j in edges], dtype=torch.long).reshape(-1, 2).T


def batch_of(
    passages: Tensor, sources: dict[str, Tensor], edges: dict[str, Edges], share: float = 0.0
) -> HeteroData:
    """Passages with the sources of each relation; queries are those of all relations of queries."""
    batch = HeteroData(isolated_share=share)
    batch["passage"].x = passages
    for name, pairs in edges.items():
        kind = edge_type(name)
        batch[kind[0]].x, batch[kind].edge_index = sources[name], index_of(pairs)
    return batch


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, int, Edges]:
    """Numbers of queries and passages, and (query, passage) pairs; some nodes have none, or there are none at all."""
    queries, passages = draw(st.integers(0, 4)), draw(st.integers(0, 5))
    pairs = st.tuples(st.integers(0, queries - 1), st.integers(0, passages - 1))
    return queries, passages, sorted(draw(st.sets(pairs))) if queries and passages else []


def transposed(edges: Edges) -> tuple[Edges, list[int]]:
    """Edges from the other side, and the number that each had."""
    order = sorted(range(len(edges)), key=lambda number: edges[number][1])
    return [(edges[number][1], edges[number][0]) for number in order], order


def values(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def randomized(network: nn.Module) -> Any:
    """With no parameter at 0, or any two alike."""
    generator = torch.Generator().manual_seed(5)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    return network.double()


def gradients_of(output: Tensor, tensors: list[Tensor]) -> tuple[Tensor, ...]:
    """Of a weighted sum of the output; 0 where it does not depend on a tensor."""
    if not output.requires_grad:
        return tuple(torch.zeros_like(tensor) for tensor in tensors)
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).reshape(output.shape)
    total = (output * weights).sum()
    return torch.autograd.grad(
        total, tensors, allow_unused=True, materialize_grads=True, retain_graph=True
    )


def assert_same(ours: Tensor, other: Tensor, tensors: list[Tensor], **tolerance: float) -> None:
    """Outputs and gradients."""
    torch.testing.assert_close(ours, other, **tolerance)
    for gradients in zip(gradients_of(ours, tensors), gradients_of(other, tensors), strict=True):
        torch.testing.assert_close(*gradients, **tolerance)


# --- attention ---


@given(graphs(), st.sampled_from([1, 2]), st.booleans(), st.booleans())
def test_attention_and_its_weights_equal_the_equations(
    graph: tuple[int, int, Edges], heads: int, own: bool, with_features: bool
) -> None:
    queries, passages, edges = graph
    layer = randomized(
        BipartiteAttention(D, heads, edge_features=D_E if with_features else None, own=own)
    )
    h_q, h_p = values(queries, D), values(passages, D, seed=1)
    features = values(len(edges), D_E, seed=2) if with_features else None
    expected, weights = reference.gat(layer, h_q, h_p, edges, features)
    out = layer((h_p, h_q), index_of(edges), features)
    assert_same(out, expected, [h_q, h_p, *layer.parameters()])
    flipped = None if features is None else features.flip(0)
    torch.testing.assert_close(layer((h_p, h_q), index_of(edges).flip(1), flipped), out)
    computed = layer.weights((h_p, h_q), rows_of(index_of(edges), queries), features)
    for number, (target, _) in enumerate(edges):
        assert computed.edges[number].tolist() == pytest.approx(weights[target][number])
    for target in range(queries):
        assert computed.own[target].tolist() == pytest.approx(
            weights[target].get("own", [0.0] * heads)
        )


# --- the papers' network ---

SWITCHES: list[dict[str, Any]] = [
    {},
    {"heads": 1},
    {"gate": 0.2},
    {"layers": 1},
    {"layers": 1, "gate": 1.0},
    {"edge_features": D_E},
    {"edge_features": D_E, "layers": 1},
    {"shared_weights": True},
    {"shared_weights": True, "gate": 0.5},
    {"average": 0.3},
]


def both_hops(
    network: PaperGNNEncoderNetwork, graph: tuple[int, int, Edges]
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Ours, the reference's, and what gradients can be taken of."""
    queries, passages, edges = graph
    back, order = transposed(edges)
    h_q, h_p = values(queries, D), values(passages, D, seed=1)
    f = f_back = None
    inputs = [h_q, h_p, *network.parameters()]
    if network.config.edge_features:
        f = values(len(edges), D_E, seed=2)
        f_back = f[order]
        inputs.append(f)
    batch = batch_of(h_p, {RETRIEVED: h_q}, {RETRIEVED: back})
    batch["candidate"].x, second_hop = h_p, batch["candidate", RETRIEVED, "query"]
    second_hop.edge_index = index_of(edges)
    if f is not None:
        second_hop.edge_attr, batch[edge_type(RETRIEVED)].edge_attr = f, f_back
    theirs = reference.query_states(network, h_q, h_p, edges, f)
    torch.testing.assert_close(network.query_states(batch), theirs)
    return network(batch), reference.passage_states(network, h_p, theirs, back, f_back), inputs


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
@given(graph=graphs())
@settings(max_examples=8, deadline=None)
def test_network_equals_the_equations(
    switches: dict[str, Any], graph: tuple[int, int, Edges]
) -> None:
    network = randomized(
        PaperGNNEncoderNetwork(PaperGNNEncoderConfig(**{"heads": 2, **switches}), D)
    )
    assert_same(*both_hops(network, graph))


GRAPH = (4, 6, [(0, 1), (0, 3), (1, 3), (1, 0), (2, 3), (2, 1)])


@pytest.mark.parametrize("switches", [{}, {"average": 0.3}], ids=str)
def test_no_edges_is_the_network_without_edges(switches: dict[str, Any]) -> None:
    """The same parameters, and nothing of any query."""
    network = randomized(PaperGNNEncoderNetwork(PaperGNNEncoderConfig(**switches), D))
    passages = values(3, D)
    expected = reference.passage_states(network, passages, values(0, D), [])
    alone = network(batch_of(passages, {}, {}))
    assert_same(alone, expected, [passages, *network.parameters()])
    states = network(batch_of(passages, {RETRIEVED: values(2, D)}, {RETRIEVED: []}))
    assert states.equal(alone)


def test_configurations() -> None:
    assert GNNEncoderConfig.paper(layers=1) == PaperGNNEncoderConfig(layers=1)
    for config, options, message in [
        (PaperGNNEncoderConfig, {"layers": 3}, "(?s)layers.*should be 1 or 2"),
        (GNNEncoderConfig, {"weights": {RELEVANT: -1.0}}, "(?s)greater than or equal to 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            config(**options)


# --- one path per relation ---

SHARE, RELATIONS = 0.3, {RETRIEVED: 0.0, RELEVANT: 0.7, "title": 0.2}


def inputs_of(graph: tuple[int, int, Edges]) -> tuple[Tensor, dict[str, Tensor], dict[str, Edges]]:
    """Queries along all edges and along all but one, and titles for every passage but the first."""
    queries, passages, edges = graph
    back, _ = transposed(edges)
    h_q = values(queries, D)
    titles = [(i, j) for i in range(1, passages) for j in range(1 + i % 3)]
    return (
        values(passages, D, seed=1),
        {RETRIEVED: h_q, RELEVANT: h_q, "title": values(3, D, seed=2)},
        {RETRIEVED: back, RELEVANT: back[1:], "title": titles},
    )


def formula(network: GNNEncoderNetwork, passages: Tensor, sources: Any, edges: Any) -> Tensor:
    """The weighted sum of the literal terms ``y, a_1, a_2, ...``, longer without a relevant query."""
    network.isolated = 0.0
    terms = reference.side_by_side_passage_states(network, passages, sources, edges)
    weights = torch.tensor([1.0, *network.weights.values()], dtype=terms.dtype)
    total = (terms.unflatten(1, (len(weights), D)) * weights[:, None]).sum(1)
    isolated = [p not in {target for target, _ in edges[RELEVANT]} for p in range(len(total))]
    scale = 1 + SHARE * network.weights[RELEVANT]
    return torch.where(torch.tensor(isolated, dtype=bool)[:, None], scale * total, total)


@given(graphs())
def test_our_network_equals_its_formula(graph: tuple[int, int, Edges]) -> None:
    network = randomized(GNNEncoderNetwork(GNNEncoderConfig(RELATIONS, heads=2), D))
    passages, sources, edges = inputs_of(graph)
    network.width = D * (1 + len(RELATIONS))
    expected = formula(network, passages, sources, edges)
    inputs = [passages, sources[RELEVANT], sources["title"], *network.parameters()]
    assert_same(network(batch_of(passages, sources, edges, SHARE)), expected, inputs)


def test_every_part_of_the_network_learns_from_its_start() -> None:
    """Nothing is stuck at 0: within two steps all parameters have moved."""
    torch.manual_seed(0)
    network = GNNEncoderNetwork(GNNEncoderConfig(RELATIONS | {RETRIEVED: 0.3}), D)
    passages, sources, edges = inputs_of(GRAPH)
    passages, sources = (
        passages.detach().float(),
        {name: x.detach().float() for name, x in sources.items()},
    )
    before = {name: parameter.clone() for name, parameter in network.named_parameters()}
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    for _ in range(2):
        optimizer.zero_grad()
        states = network(batch_of(passages, sources, edges))
        in_batch_loss(sources[RELEVANT], states, torch.tensor([1, 0, 3, 2])).backward()
        optimizer.step()
    assert not [
        name for name, parameter in network.named_parameters() if parameter.equal(before[name])
    ]


# --- loss ---


def test_in_batch_loss() -> None:
    queries, passages = values(4, D), values(6, D, seed=1)
    positives = torch.tensor([5, 0, 0, 2])  # two queries have the same one
    loss = in_batch_loss(queries, passages, positives, scale=3.0)
    expected = reference.in_batch_loss(3 * queries.detach(), passages.detach(), positives.tolist())
    assert loss.item() == pytest.approx(expected)
    own = in_batch_loss(queries, passages, torch.arange(4))
    torch.testing.assert_close(own, pair_loss(queries, passages[:4], passages[4:], alpha=0))
    with torch.autocast("cpu", torch.bfloat16):
        loss = in_batch_loss(queries.bfloat16(), passages.bfloat16(), positives)
    assert loss.dtype == torch.float32
