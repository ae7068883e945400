"""Layers of PyTorch Geometric in GNNEncoder and HGAT, and graphs that its transforms have changed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor, nn
from torch_geometric import transforms
from torch_geometric.nn import (
    GATConv,
    GATv2Conv,
    GINConv,
    HeteroConv,
    SAGEConv,
    TransformerConv,
)

import pyterrier_graph as ptg
from pyterrier_graph.encoders.token_encoder import TokenStates
from pyterrier_graph.hgat.attention import Edges, layer_along_edges
from pyterrier_graph.training.layers import layer_from, layer_meta

D = 16
QUIET: dict[str, Any] = {"device": "cpu", "verbose": False}
WEIGHTS = {"titles": 0.75, "relevant": 0.5}
TITLES, RELEVANT = ("node", "titles", "passage"), ("query", "relevant", "passage")


class Largest(nn.Module):
    """A user's own layer: the largest value of the sources in each dimension, projected."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.linear = nn.Linear(d, d)

    def forward(self, x: tuple[Tensor, Tensor], edge_index: Tensor) -> Tensor:
        source, target = edge_index
        rows = target[:, None].expand(-1, x[0].shape[1])
        values = self.linear(x[0])[source]
        return values.new_zeros(len(x[1]), x[0].shape[1]).scatter_reduce(0, rows, values, "amax")


def gatv2(d: int) -> nn.Module:
    return GATv2Conv((d, d), d // 4, heads=4, add_self_loops=False)


LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "GATv2Conv": gatv2,
    "SAGEConv": lambda d: SAGEConv((d, d), d),
    "TransformerConv": lambda d: TransformerConv((d, d), d // 2, heads=2),
    "HeteroConv": lambda d: HeteroConv({TITLES: SAGEConv((-1, -1), d), RELEVANT: gatv2(d)}),
    "Largest": Largest,
}
each_layer = pytest.mark.parametrize("name", LAYERS)


def gnn(name: str, **options: Any) -> ptg.GNNEncoder:
    training = ptg.GNNEncoderTraining(epochs=3, learning_rate=0.05)
    common = {"config": ptg.GNNEncoderConfig(WEIGHTS), "query_graph": tiny.query_graph()}
    common |= {"network": LAYERS[name], "training": training}
    return ptg.GNNEncoder(tiny.graph(), tiny.dual_encoder(), **QUIET | common | options)


@cache
def trained(name: str) -> ptg.GNNEncoder:
    return gnn(name).fit(tiny.topics(), tiny.qrels())


def mean(**options: Any) -> ptg.GraphMean:
    common = {"weights": WEIGHTS, "query_graph": tiny.query_graph()}
    return ptg.GraphMean(tiny.graph(), tiny.dual_encoder(), **QUIET | common | options)


DOCNOS = tiny.graph().ids_of(tiny.graph().passage_nodes)


def vectors(model: Any) -> np.ndarray:
    return model.vectors_of(DOCNOS)


# --- GNNEncoder


@each_layer
def test_starts_at_graph_mean_and_learns(name: str) -> None:
    start, model = gnn(name), trained(name)
    np.testing.assert_allclose(vectors(start), vectors(mean()), atol=1e-6)
    assert not np.allclose(vectors(start), vectors(model), atol=1e-3)
    before = dict(start.network.named_parameters())
    layers = {name: w for name, w in model.network.named_parameters() if ".layer." in name}
    moved = [name for name, weight in layers.items() if not weight.equal(before[name])]
    assert len(moved) > len(layers) / 2, "not only the gate learns"


@each_layer
def test_saving_and_loading(name: str, tmp_path: Path) -> None:
    model = trained(name).save(tmp_path / "model")
    assert {file.suffix for file in model.path.rglob("*") if file.is_file()} <= {
        *(".safetensors", ".json", ".txt", ".model", ".md", "")
    }, "nothing is pickled"
    given: dict[str, Any] = {"graph": tiny.graph(), "query_graph": tiny.query_graph(), **QUIET}
    if name == "Largest":
        with pytest.raises(ValueError, match="Largest layers are not a part.*give network="):
            ptg.GNNEncoder.load(model.path, **given)
        with pytest.raises(RuntimeError, match="Missing key"):
            ptg.GNNEncoder.load(model.path, **given, network=LAYERS["SAGEConv"])
        given["network"] = Largest
    loaded = ptg.GNNEncoder.load(model.path, **given)
    np.testing.assert_array_equal(vectors(loaded), vectors(model))


@each_layer
def test_an_isolated_passage_and_a_relation_without_edges(name: str) -> None:
    """What a passage does not have adds nothing, whatever a layer returns for it."""
    network = trained(name).network
    weights = {"relevant": 0.5}
    options = {"config": ptg.GNNEncoderConfig(weights)}
    if name == "HeteroConv":
        options["network"] = lambda d: HeteroConv({RELEVANT: gatv2(d)})
    model = gnn(name, **options)
    nn.init.ones_((model.network.joint or model.network.relation["relevant"]).gate)
    plain = mean(weights=weights)
    answered = np.isin(DOCNOS, ["d0%p0", "d1%p0", "d2%p0"])
    np.testing.assert_allclose(vectors(model)[~answered], vectors(plain)[~answered], atol=1e-6)
    assert not np.isclose(vectors(model)[answered], vectors(plain)[answered]).all(1).any()
    empty = tiny.query_graph().without(np.arange(6))
    without = gnn(name, query_graph=empty)
    without.network.load_state_dict(network.state_dict())
    assert np.isfinite(vectors(without)).all()
    without.network = gnn(name).network
    np.testing.assert_allclose(vectors(without), vectors(mean(query_graph=empty)), atol=1e-6)


@each_layer
def test_explanations_add_up(name: str) -> None:
    model = trained(name)
    query = tiny.dual_encoder().encode_queries(["alpha mu"])[0]
    for docno in ("d0%p0", "d4%p2"):
        explained = model.explain("alpha mu", docno)
        assert explained["score"].sum() == pytest.approx(
            float(model.vectors_of([docno])[0] @ query), abs=1e-4
        )
        weights = explained[1:].groupby("relation")["weight"].sum(min_count=1)
        if name in ("GATv2Conv", "TransformerConv", "HeteroConv"):
            assert weights.to_numpy() == pytest.approx(1)
        else:
            assert weights.isna().all(), "no attention, no weights"


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (lambda d: GATConv((d, d), d), "add_self_loops=False"),
        (
            lambda d: SAGEConv((d, d), 3),
            "must return 16 dimensions, as its input has; it returned 3",
        ),
    ],
)
def test_mistakes(layers: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gnn("SAGEConv", network=layers)
    with pytest.raises(ValueError, match="papers' network has no place"):
        gnn("SAGEConv", config=ptg.GNNEncoderConfig.paper())


# --- class and arguments


@pytest.mark.parametrize(
    "layer",
    [
        SAGEConv((D, D), D, aggr="max", normalize=True, root_weight=False, bias=False),
        GATv2Conv((D, D), D // 2, heads=2, dropout=0.3, bias=False, add_self_loops=False),
        TransformerConv((D, D), D, beta=True, dropout=0.1),
        HeteroConv({TITLES: SAGEConv((D, D), D), RELEVANT: gatv2(D)}, aggr="mean"),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_arguments_of_layers(layer: nn.Module) -> None:
    made = layer_from(layer_meta(layer, D))
    assert layer_meta(made, D) == layer_meta(layer, D)
    assert repr(made) == repr(layer)
    assert [getattr(part, "dropout", 0) for part in made.modules()] == [
        getattr(part, "dropout", 0) for part in layer.modules()
    ]


def test_what_no_json_holds_and_other_names() -> None:
    assert layer_meta(GINConv(nn.Linear(D, D)), D) == {"class": "GINConv"}
    assert layer_meta(SAGEConv((D, D), D, flow="target_to_source"), D) == {"class": "SAGEConv"}
    for name in ("Sequential", "MessagePassing.__init__", "os"):
        with pytest.raises(ValueError, match="has no layer"):
            layer_from({"class": name, "arguments": {}})


# --- HGAT


@pytest.mark.parametrize("name", ["GATv2Conv", "TransformerConv", "Largest"])
def test_attention_along_edges_is_one_neighbor_at_a_time(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyterrier_graph.hgat.attention.PAIRS_AT_ONCE", 20)
    torch.manual_seed(0)
    layer = LAYERS[name](D)
    targets = TokenStates.pack([torch.randn(n, D) for n in (2, 0, 4)], torch.empty(0, D))
    sources = TokenStates.pack([torch.randn(n, D) for n in (3, 5, 0, 1)], torch.empty(0, D))
    edges = Edges.of(np.array([0, 0, 1, 2, 2, 2]), np.array([0, 1, 1, 1, 2, 3]))
    expected = [torch.zeros(len(targets[node]), D) for node in range(3)]
    for node, neighbor in edges.pairs.T.tolist():
        i, j = targets[node], sources[neighbor]
        pairs = torch.cartesian_prod(torch.arange(len(j)), torch.arange(len(i))).reshape(-1, 2).T
        if len(i) and len(j):
            expected[node] = expected[node] + layer((j, i), pairs)
    found = layer_along_edges(layer, targets, sources, edges)
    torch.testing.assert_close(found, torch.cat(expected))


@pytest.mark.parametrize("name", ["GATv2Conv", "Largest"])
def test_hgat_with_a_layer(name: str, tmp_path: Path) -> None:
    config = ptg.HGATConfig(attention=LAYERS[name])
    training = ptg.HGATTraining(epochs=1, learning_rate=0.05)
    options = {"config": config, "training": training}
    model = ptg.HGATReranker(tiny.graph(), tiny.encoder(), **options, **QUIET)
    start = model(tiny.run())["score"]
    plain = ptg.HGATReranker(tiny.graph(), tiny.encoder(), **QUIET)
    np.testing.assert_array_equal(start, plain(tiny.run())["score"])
    model.fit(tiny.run(), tiny.qrels())
    scores = model(tiny.run())["score"].to_numpy()
    assert not np.allclose(scores, start) and np.isfinite(scores).all()
    assert len(model.explain("alpha", "d0%p0"))
    model.save(tmp_path / "model")
    given: dict[str, Any] = {"graph": tiny.graph(), "encoder": tiny.encoder(), **QUIET}
    if name == "Largest":
        with pytest.raises(ValueError, match="Largest layers are not a part.*give config="):
            ptg.HGATReranker.load(tmp_path / "model", **given)
        given["config"] = config
    loaded = ptg.HGATReranker.load(tmp_path / "model", **given)
    np.testing.assert_allclose(loaded(tiny.run())["score"], scores, atol=1e-6)


# --- graphs


def test_a_graph_round_trips() -> None:
    graph = tiny.graph()
    same = graph.with_relations(graph.to_hetero_data())
    assert same.relations == graph.relations and same.fingerprint() != graph.fingerprint()
    nodes = np.arange(graph.num_nodes)
    for path in (*graph.relations, "title/title", "titles"):
        for ours, theirs in zip(
            same.neighbors(nodes, path), graph.neighbors(nodes, path), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)
    assert same.texts(nodes, titles=True) == graph.texts(nodes, titles=True)
    assert same.find(DOCNOS).tolist() == graph.find(DOCNOS).tolist()


def changed(name: str) -> Any:
    graph = tiny.graph()
    data = graph.to_hetero_data()
    if name == "ToUndirected":
        return graph.with_relations(transforms.ToUndirected()(data))
    path = [("passage", "structural_i", "section"), ("section", "structural", "passage")]
    return graph.with_relations(transforms.AddMetaPaths([path])(data))


@pytest.mark.parametrize(
    ("name", "relation"),
    [
        ("ToUndirected", "rev_structural"),
        ("AddMetaPaths", "metapath_0"),
    ],
)
def test_every_model_takes_a_changed_graph(name: str, relation: str) -> None:
    graph = changed(name)
    edges, back = graph.edges(relation), graph.edges(f"{relation}_i")
    assert 0 < len(edges.indices) == len(back.indices)
    assert all(i in back[j] for i, j in zip(edges.row_index, edges.indices, strict=True))
    weights = {"titles": 0.5, relation: 0.5}
    vectors_ = vectors(ptg.GraphMean(graph, tiny.dual_encoder(), weights, **QUIET))
    network = ptg.GNNEncoder(
        graph, tiny.dual_encoder(), config=ptg.GNNEncoderConfig(weights), **QUIET
    )
    np.testing.assert_allclose(vectors(network), vectors_, atol=1e-6)
    maxsim = ptg.GraphMaxSim(graph, tiny.encoder(), weights, **QUIET)
    config = ptg.HGATConfig("NO_LB", layers=2, heads=2, init="random", relations=(relation,))
    hgat = ptg.HGATReranker(graph, tiny.encoder(), config=config, **QUIET)
    for model in (maxsim, hgat):
        assert np.isfinite(model(tiny.run())["score"]).all()


def test_titles_in_a_circle() -> None:
    """ToUndirected makes a circle of sections, whose titles all lie above each passage then."""
    graph = changed("ToUndirected")
    rows, reached = graph.neighbors(graph.passage_nodes[:1], "titles")
    sections = [node for node in reached.tolist() if graph.node_type[node] == 1]
    assert len(reached) == len({*reached.tolist()}) and len(sections) == 2 and not rows.any()
