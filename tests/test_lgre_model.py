"""LGRe against the literal equations, forward and backward."""

from __future__ import annotations

from functools import partial
from typing import Any, get_args

import lgre_reference as reference
import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    DistilBertModel,
    PreTrainedModel,
    RobertaConfig,
    RobertaForSequenceClassification,
    RobertaModel,
)

from pyterrier_graph.models.lgre import LGRe, LGReConfig, LGReOutput, WordGraph, word_graph
from pyterrier_graph.models.lgre_losses import LGReLoss

EveryLayer = partial(LGReConfig, layers=None)

GRAPHS = get_args(WordGraph)
VOCABULARY = 30
LAYERS = 2
# (query words, document words)
LENGTHS = [(2, 5), (3, 2), (1, 7), (2, 1)]
# from the readings of the paper's text to those of the authors' code
PRINTED: dict[str, Any] = dict(
    layers=(1, 2),
    special_tokens="alone",
    self_loops="printed",
    per_layer=False,
    gate="gru",
    readout="linear",
    pooling="sum",
)
RELEASED: dict[str, Any] = dict(
    layers=None,
    special_tokens="sides",
    self_loops="all",
    per_layer=True,
    gate="ggnn",
    readout="gated",
    pooling="mean",
)


def encoder(kind: str = "bert", *, head: bool = False, seed: int = 0, attention: str = "sdpa") -> PreTrainedModel:
    torch.manual_seed(seed)
    common = {"vocab_size": VOCABULARY, "num_labels": 1, "pad_token_id": 0, "attn_implementation": attention}
    if kind == "distilbert":
        config = DistilBertConfig(dim=8, n_layers=LAYERS, n_heads=2, hidden_dim=16, **common)
        return (DistilBertForSequenceClassification if head else DistilBertModel)(config).eval()
    shape = {"hidden_size": 8, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "intermediate_size": 16}
    if kind == "roberta":
        config = RobertaConfig(**shape, **common)
        return (RobertaForSequenceClassification if head else RobertaModel)(config).eval()
    return (BertForSequenceClassification if head else BertModel)(BertConfig(**shape, **common)).eval()


def model_of(config: LGReConfig, kind: str = "bert", *, seed: int = 0) -> LGRe:
    model = LGRe(encoder(kind, head=config.init == "identity", seed=seed), config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or not name.startswith("encoder"):  # so that nothing forgotten is 0, or any two alike
            torch.nn.init.normal_(parameter, std=0.5)
    return model


def batch(lengths: list[tuple[int, int]] = LENGTHS, *, separators: int = 1, width: int = 0) -> dict[str, torch.Tensor]:
    """[CLS] query [SEP] (or two, as RoBERTa) document [SEP], padded to the longest or to a width."""
    generator = torch.Generator().manual_seed(1)
    rows = [[-1] + [0] * m + [-1] * separators + [1] * n + [-1] for m, n in lengths]
    width = max(width, *map(len, rows))
    segments = torch.tensor([row + [-1] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    ids = torch.randint(1, VOCABULARY, (len(rows), 40), generator=generator)[:, :width]
    return {"input_ids": ids * mask, "attention_mask": mask, "segments": segments}


def literally(model: LGRe, inputs: dict[str, torch.Tensor]) -> list[dict]:
    pairs = []
    for ids, mask, segments in zip(inputs["input_ids"], inputs["attention_mask"], inputs["segments"], strict=True):
        real = mask.bool()
        pairs.append(reference.score(model, ids[real], segments[real].tolist()))
    return pairs


def assert_equal_outputs(model: LGRe, inputs: dict[str, torch.Tensor]) -> LGReOutput:
    output = model(**inputs, adjacency=True)
    for row, pair in enumerate(literally(model, inputs)):
        length = len(pair["segments"])
        torch.testing.assert_close(output.scores[row], pair["f"])
        torch.testing.assert_close(output.layer_scores[row], torch.stack(pair["s"]))
        torch.testing.assert_close(output.representations[row], torch.stack(pair["h"]))
        torch.testing.assert_close(output.states[row, :length], pair["E"])
        torch.testing.assert_close(output.adjacency[row, :, :length, :length], torch.stack(pair["A"]))
        assert not output.adjacency[row, :, :length, length:].any()
    return output


OPTIONS: list[dict[str, Any]] = [
    {"special_tokens": "sides"},
    {"self_loops": "printed"},
    {"special_tokens": "sides", "self_loops": "printed"},
    {"radius": 0},
    {"radius": 3},
    {"layers": (-1,)},
    {"layers": (2, 0)},
    {"per_layer": False},
    {"steps": 0},
    {"steps": 2},
    {"steps": 3},
    {"gate": "gru"},
    {"readout": "linear"},
    {"pooling": "sum"},
    {"init": "identity"},
    PRINTED,
    RELEASED,
]


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(f"{k}={v}" for k, v in options.items()))
def test_equals_the_equations(graph: WordGraph, options: dict[str, Any]) -> None:
    model = model_of(EveryLayer(graph, **options)).double()
    with torch.no_grad():
        assert_equal_outputs(model, batch())


@pytest.mark.parametrize("kind", ["roberta", "distilbert"])
@pytest.mark.parametrize("init", ["random", "identity"])
def test_other_encoders_equal_the_equations(kind: str, init: str) -> None:
    inputs = batch(separators=2 if kind == "roberta" else 1)
    with torch.no_grad():
        for special_tokens in ("alone", "sides"):
            model = model_of(EveryLayer(init=init, special_tokens=special_tokens), kind).double()
            assert_equal_outputs(model, inputs)


LOSSES = [
    LGReLoss(),
    *(LGReLoss(distance=distance, weight=0.5) for distance in ("none", "point", "pair")),
    LGReLoss("softmax", weight=0.5, rescaled=True, pair_layers="all"),
    LGReLoss("softmax", weight=0.5, similarity="means"),
    LGReLoss(weight=0.5, rescaled=True, similarity="means"),
    LGReLoss(weight=0.5, pair_layers="all"),
]
RELEVANT = torch.tensor([1, 0, 0, 0, 1, 1, 0])
QUERIES = torch.tensor([7, 3, 7, 7, 3, 7, 5])  # 7 has two relevant and two other documents, 3 one each, 5 no pair


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_losses_and_all_gradients_equal_those_of_the_equations(loss: LGReLoss) -> None:
    inputs = batch([(2, 3), (3, 2), (1, 4), (2, 1), (1, 1), (2, 2), (1, 3)])
    # both hinges are in use: differences of scores are about 1
    model = model_of(EveryLayer(init="identity", **(RELEASED if loss.ranking == "softmax" else {}))).double()
    values, gradients = [], []
    for slow in (True, False):
        if slow:
            pairs = literally(model, inputs)
            rows = [[row for row in range(len(pairs)) if QUERIES[row] == query] for query in (7, 3, 5)]
            queries = [([pairs[row] for row in some], [int(RELEVANT[row]) for row in some]) for some in rows]
            value = reference.total_loss(loss, queries)
        else:
            value = loss(model(**inputs), inputs["segments"], RELEVANT, QUERIES)
        model.zero_grad()
        value.backward()
        values.append(value.detach())
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    torch.testing.assert_close(*values, atol=1e-6, rtol=1e-6)
    assert gradients[0].keys() == gradients[1].keys()
    assert {name for name, _ in model.named_parameters()} == gradients[0].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=1e-6, rtol=1e-5, msg=lambda m, n=name: f"{n} {m}")


@pytest.mark.parametrize("options", [PRINTED, RELEASED], ids=["printed", "released"])
@pytest.mark.parametrize("graph", GRAPHS)
def test_gradients_of_scores_equal_those_of_the_equations(graph: WordGraph, options: dict[str, Any]) -> None:
    model = model_of(EveryLayer(graph, **options)).double()
    inputs = batch(LENGTHS[:2])
    gradients = []
    for slow in (True, False):
        scores = torch.stack([p["f"] for p in literally(model, inputs)]) if slow else model(**inputs).scores
        model.zero_grad()
        (scores * torch.tensor([1.0, -2.0])).sum().backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    assert {name for name, _ in model.named_parameters()} - gradients[0].keys() == {
        "encoder.pooler.dense.weight",
        "encoder.pooler.dense.bias",
    }
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=1e-8, rtol=1e-6)


def scores_of(weights: dict[str, torch.Tensor], **options: Any) -> torch.Tensor:
    model = LGRe(encoder(), EveryLayer(**{**RELEASED, **options})).eval()
    model.load_state_dict(weights)
    with torch.no_grad():
        return model(**batch()).scores


def differ(some: torch.Tensor, others: torch.Tensor) -> bool:
    return bool((some - others).abs().min() > 1e-4)


@pytest.mark.parametrize("name", ["special_tokens", "self_loops", "readout", "pooling"])
def test_paper_and_code_differ(name: str) -> None:
    """With the same weights."""
    weights = model_of(EveryLayer(**RELEASED)).state_dict()
    assert differ(scores_of(weights), scores_of(weights, **{name: PRINTED[name]}))


def test_the_code_has_one_layer_more() -> None:
    weights = model_of(EveryLayer(**RELEASED)).state_dict()
    fewer = {name: weights[name][1:] for name in ("projection", "projection_bias", "score", "score_bias")}
    fewer["combination"] = weights["combination"][:, 1:]
    printed = scores_of(weights | fewer, layers=PRINTED["layers"])
    assert differ(scores_of(weights), printed)
    weights["combination"][:, 0] = 0
    torch.testing.assert_close(scores_of(weights), printed)


def test_the_code_has_weights_per_layer() -> None:
    weights = model_of(EveryLayer(**RELEASED)).state_dict()
    names = ("projection", "projection_bias", "score", "score_bias")
    shared = scores_of(weights | {name: weights[name][:1] for name in names}, per_layer=False)
    assert differ(scores_of(weights), shared)
    alike = {name: weights[name][:1].expand_as(weights[name]) for name in names}
    torch.testing.assert_close(scores_of(weights | alike), shared)


@pytest.mark.parametrize("diagonal", [False, True])
def test_the_gate_of_the_code_is_no_gru_cell(diagonal: bool) -> None:
    """It resets the state before a matrix that is applied to it, and its update gate is the other way round."""
    weights = model_of(EveryLayer(**RELEASED)).state_dict()
    if diagonal:
        weights["candidate.weight"][:, :8] = torch.eye(8)
    update, reset = weights["gates.weight"].chunk(2)
    own, neighbors = weights["candidate.weight"].chunk(2, dim=1)
    nothing = torch.zeros(8, 8)
    cell = {
        "cell.weight_ih": torch.cat([reset, -update, torch.cat([nothing, neighbors], 1)]),
        "cell.weight_hh": torch.cat([nothing, nothing, own]),
        "cell.bias_ih": torch.cat([weights["gates.bias"][8:], -weights["gates.bias"][:8], weights["candidate.bias"]]),
        "cell.bias_hh": torch.zeros(24),
    }
    others = {name: weight for name, weight in weights.items() if not name.startswith(("gates", "candidate"))}
    printed = scores_of(others | cell, gate="gru")
    if diagonal:  # of what is reset, the order then does not matter
        torch.testing.assert_close(scores_of(weights), printed)
    else:
        assert differ(scores_of(weights), printed)


def test_losses_of_paper_and_code_differ() -> None:
    inputs = batch()
    model = model_of(EveryLayer())
    with torch.no_grad():
        output = model(**inputs)
    relevant, queries = torch.tensor([1, 0, 0, 1]), torch.zeros(4)
    readings = [
        LGReLoss(weight=1),
        LGReLoss("softmax", weight=1),
        LGReLoss(weight=1, rescaled=True),
        LGReLoss(weight=1, similarity="means"),
        LGReLoss(weight=1, pair_layers="all"),
    ]
    values = [round(loss(output, inputs["segments"], relevant, queries).item(), 4) for loss in readings]
    assert len(set(values)) == len(readings)


def test_the_order_of_layers_has_no_effect() -> None:
    """Eq. 12 takes the graph of the encoder's last layer, wherever that is listed."""
    inputs, relevant, queries = batch(), torch.tensor([1, 0, 0, 1]), torch.zeros(4)
    models = [model_of(EveryLayer(layers=layers)) for layers in ((0, -1), (-1, 0))]
    with torch.no_grad():
        outputs = [model(**inputs) for model in models]
    assert models[0].layers == models[1].layers == (0, 2)
    one, other = (LGReLoss(distance="pair", weight=1)(out, inputs["segments"], relevant, queries) for out in outputs)
    torch.testing.assert_close(one, other)
    graph = outputs[1].representations[:, 1]
    torch.testing.assert_close(graph[:, graph.shape[1] // 2 :], outputs[1].states[:, 0])  # [CLS] of the last layer


def test_graded_labels_do_not_contradict_each_other() -> None:
    """A document with label 1 is pulled towards its query beside one with label 0 and beside one with label 2."""
    inputs, queries = batch(), torch.tensor([0, 0, 1, 1])
    output = model_of(EveryLayer())(**inputs)
    label = torch.tensor([2, 1, 1, 0])
    positive = torch.tensor([True, False, True, False])

    def gradient(distance: str) -> torch.Tensor:
        with_distance, without = (
            LGReLoss(distance=kind, weight=1)(output, inputs["segments"], positive, queries, label > 0)  # type: ignore[arg-type]
            for kind in (distance, "none")
        )
        return torch.autograd.grad(with_distance - without, output.states, retain_graph=True)[0]

    def pulls(row: int) -> bool:
        moved = output.states - 0.01 * gradient("point")
        cosine = LGReLoss()._similarity
        return bool(cosine(moved, inputs["segments"])[row] > cosine(output.states, inputs["segments"])[row])

    assert [pulls(row) for row in range(4)] == [True, True, True, False]
    pair = gradient("pair").abs().sum((1, 2))
    assert (pair[:2] == 0).all() and (pair[2:] > 0).all()  # two relevant documents are not pushed apart


def test_word_graphs_of_the_figure() -> None:
    """[CLS] a b [SEP] x y z [SEP]."""
    inputs = batch([(2, 3)], width=9)
    segments, mask = inputs["segments"], inputs["attention_mask"]

    def drawn(**options: Any) -> list[str]:
        links = word_graph(segments, mask, EveryLayer(**options))[0]
        return ["".join(".#"[int(link)] for link in row) for row in links]

    assert drawn(word_graph="full") == ["########."] * 8 + ["........."]
    bipartite = [
        "#........",
        ".#..####.",
        "..#.####.",
        "...#.....",
        ".##.#....",
        ".##..#...",
        ".##...#..",
        ".##....#.",
        ".........",
    ]
    assert drawn(word_graph="bipartite") == bipartite
    assert drawn(word_graph="bipartite+neighbor", radius=0) == bipartite
    near = [".##.##...", ".##.###..", ".##..###.", ".##...##."]
    assert drawn(word_graph="bipartite+neighbor") == [*bipartite[:4], *near, "........."]
    printed = [
        "########.",
        "....####.",
        "....####.",
        "########.",
        *near,
        ".........",
    ]  # Eq. 3: an unlinked row is whole
    assert drawn(word_graph="bipartite+neighbor", self_loops="printed") == printed
    assert drawn(word_graph="bipartite", special_tokens="sides") == [
        "#..#####.",
        ".#.#####.",
        "..######.",
        "####.....",
        "###.#....",
        "###..#...",
        "###...#..",
        "###....#.",
        ".........",
    ]


@pytest.mark.parametrize("special_tokens", ["alone", "sides"])
def test_a_query_or_a_document_may_be_empty(special_tokens: str) -> None:
    inputs = batch([(0, 3), (2, 0)])
    model = model_of(EveryLayer(special_tokens=special_tokens)).double()
    with torch.no_grad():
        output = assert_equal_outputs(model, inputs)
    loss = LGReLoss()(output, inputs["segments"], torch.tensor([1, 0]), torch.zeros(2))
    assert loss.isfinite()


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_scores_do_not_depend_on_padding_or_on_the_batch(graph: WordGraph, attention: str) -> None:
    model = LGRe(encoder(attention=attention), EveryLayer(graph, readout="linear", pooling="sum")).eval()
    with torch.no_grad():
        together = model(**batch()).scores
        padded = model(**batch(width=20)).scores
        alone = [model(**{name: rows[row : row + 1] for name, rows in batch().items()}).scores for row in range(4)]
    torch.testing.assert_close(padded, together)
    torch.testing.assert_close(torch.cat(alone), together)


@pytest.mark.parametrize("options", [PRINTED, RELEASED], ids=["printed", "released"])
def test_layers_may_be_computed_together(options: dict[str, Any]) -> None:
    """As on a GPU."""
    model = model_of(EveryLayer(**options))
    inputs = batch()
    with torch.no_grad():
        output = model(**inputs, adjacency=True)
        encoded = model.encoder(inputs["input_ids"], inputs["attention_mask"], output_hidden_states=True)
        states = torch.stack([encoded.hidden_states[layer] for layer in model.layers])
        links = word_graph(inputs["segments"], inputs["attention_mask"], model.config)
        part = slice(0, len(model.layers))
        vectors, graphs = model.represent(states, links, inputs["attention_mask"].bool(), part)
    torch.testing.assert_close(vectors.transpose(0, 1), output.representations)
    torch.testing.assert_close(graphs.transpose(0, 1), output.adjacency)


def test_token_types_reach_the_encoder() -> None:
    model = LGRe(encoder(), EveryLayer()).eval()
    inputs = batch()
    types = (inputs["segments"] == 1).long()
    with torch.no_grad():
        assert not torch.allclose(model(**inputs, token_type_ids=types).scores, model(**inputs).scores, atol=1e-4)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
@pytest.mark.parametrize("layers", [None, (-1,)])
def test_identity_is_the_cross_encoder(kind: str, layers: tuple[int, ...] | None) -> None:
    cross_encoder = encoder(kind, head=True)
    inputs = batch(separators=2 if kind == "roberta" else 1)
    with torch.no_grad():
        logits = cross_encoder(inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits[:, 0]
        scores = LGRe(cross_encoder, EveryLayer(layers=layers, init="identity")).eval()(**inputs).scores
    assert torch.equal(scores, logits)
    assert logits.std() > 0


def test_identity_learns_the_graph() -> None:
    torch.manual_seed(0)
    model = LGRe(encoder(head=True), EveryLayer(init="identity", dropout=0.0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    inputs, loss = batch(), LGReLoss()
    relevant, queries = torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 1, 1])
    start = {name: parameter.clone() for name, parameter in model.named_parameters()}
    values = []
    for _ in range(10):
        optimizer.zero_grad()
        value = loss(model(**inputs), inputs["segments"], relevant, queries)
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert values[-1] < values[0] / 2
    unmoved = {name for name, parameter in model.named_parameters() if torch.equal(parameter, start[name])}
    assert unmoved <= {
        "score_bias",
        "combination_bias",
        "encoder.classifier.bias",
    }  # pairs of scores have them in common


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [PRINTED, RELEASED], ids=["printed", "released"])
def test_autocast(dtype: torch.dtype, options: dict[str, Any]) -> None:
    model = LGRe(encoder(), EveryLayer(**options)).eval()
    inputs = batch(width=16)
    with torch.no_grad():
        exact = model(**inputs).scores
    with torch.autocast("cpu", dtype):
        output = model(**inputs)
        LGReLoss()(output, inputs["segments"], torch.tensor([1, 0, 0, 1]), torch.zeros(4)).backward()
    assert output.scores.dtype == torch.float32
    torch.testing.assert_close(output.scores, exact, atol=0.05, rtol=0.05)
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_large_states_fit_into_float16() -> None:
    model = LGRe(encoder(), EveryLayer(layers=(-1,)))
    states = torch.full(
        (1, 1, 4, 8), 120.0
    ).half()  # 8 times the square is more than 65,504; divided by sqrt(8), it is less
    with torch.no_grad():
        model.projection.copy_(torch.eye(8)[None])
        graph = model.half().adjacency(states, torch.eye(4, dtype=torch.bool)[None], slice(0, 1))
    torch.testing.assert_close(graph[0, 0], torch.eye(4).half())


def test_a_row_of_nothing_but_padding_harms_nobody() -> None:
    model = LGRe(encoder(), EveryLayer(readout="linear"))
    torch.nn.init.constant_(model.score, 2.0)  # times the smallest number there is: infinite
    inputs = {name: rows[:2].clone() for name, rows in batch().items()}
    with torch.no_grad():
        expected = model.eval()(**inputs).scores[0]
    inputs["attention_mask"][1] = 0
    inputs["segments"][1] = -1
    scores = model(**inputs).scores
    scores.sum().backward()
    assert scores.isfinite().all()
    torch.testing.assert_close(scores[0], expected)
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_gradient_checkpointing_computes_graphs_twice_and_gives_the_same_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = model_of(EveryLayer(dropout=0.3)).train()
    calls, read_out = [], model.read_out
    monkeypatch.setattr(model, "read_out", lambda *arguments: calls.append(0) or read_out(*arguments))
    inputs = batch()
    gradients = []
    for _ in range(2):
        torch.manual_seed(3)
        model.zero_grad()
        model(**inputs).scores.sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        model.gradient_checkpointing_enable()
    assert len(calls) == 3 * len(model.layers)
    torch.testing.assert_close(*gradients)


def test_dropout_only_while_training() -> None:
    model = LGRe(encoder(), EveryLayer(dropout=0.5))
    for module in model.encoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    inputs = batch()
    with torch.no_grad():
        assert not torch.allclose(model.train()(**inputs).scores, model(**inputs).scores, atol=1e-5)
        assert torch.equal(model.eval()(**inputs).scores, model(**inputs).scores)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"word_graph": "tripartite"}, "word_graph must be one of"),
        ({"gate": "lstm"}, "gate must be one of"),
        ({"radius": -1}, "radius must be a whole number, 0 or more"),
        ({"dropout": 1.0}, "dropout must be from 0 to below 1"),
        ({"dropout": 1.5}, "dropout must be from 0 to below 1"),
        ({"steps": 1.5}, "steps must be a whole number"),
        ({"layers": (3,)}, "0 to 2"),
        ({"layers": (-1, 2)}, "distinct"),
        ({"layers": ()}, "distinct"),
        ({"init": "identity"}, "a BertModel without a trained score"),
    ],
)
def test_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LGRe(encoder(), EveryLayer(**options))


def test_refuses_unknown_losses() -> None:
    with pytest.raises(ValueError, match="distance must be one of"):
        LGReLoss(distance="square")
