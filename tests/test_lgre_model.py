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

from pyterrier_graph.lgre.equations import LGRe, LGReConfig, LGReOutput, WordGraph
from pyterrier_graph.lgre.losses import LGReLoss

EveryLayer = partial(LGReConfig, layers=None)

GRAPHS = get_args(WordGraph)
VOCABULARY = 30
LAYERS = 2
# (query words, document words)
LENGTHS = [(2, 5), (3, 2), (1, 7), (2, 1)]


def encoder(
    kind: str = "bert", *, head: bool = False, seed: int = 0, attention: str = "sdpa"
) -> PreTrainedModel:
    torch.manual_seed(seed)
    common = {
        "vocab_size": VOCABULARY,
        "num_labels": 1,
        "pad_token_id": 0,
        "attn_implementation": attention,
    }
    if kind == "distilbert":
        config = DistilBertConfig(dim=8, n_layers=LAYERS, n_heads=2, hidden_dim=16, **common)
        return (DistilBertForSequenceClassification if head else DistilBertModel)(config).eval()
    shape = {
        "hidden_size": 8,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    if kind == "roberta":
        config = RobertaConfig(**shape, **common)
        return (RobertaForSequenceClassification if head else RobertaModel)(config).eval()
    return (BertForSequenceClassification if head else BertModel)(
        BertConfig(**shape, **common)
    ).eval()


def model_of(config: LGReConfig, kind: str = "bert", *, seed: int = 0) -> LGRe:
    model = LGRe(encoder(kind, head=config.init == "identity", seed=seed), config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or not name.startswith(
            "encoder"
        ):  # so that nothing forgotten is 0, or any two alike
            torch.nn.init.normal_(parameter, std=0.5)
    return model


def batch(
    lengths: list[tuple[int, int]] = LENGTHS, *, separators: int = 1, width: int = 0
) -> dict[str, torch.Tensor]:
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
    for ids, mask, segments in zip(
        inputs["input_ids"], inputs["attention_mask"], inputs["segments"], strict=True
    ):
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
        torch.testing.assert_close(
            output.adjacency[row, :, :length, :length], torch.stack(pair["A"])
        )
        assert not output.adjacency[row, :, :length, length:].any()
    return output


OPTIONS: list[dict[str, Any]] = [
    {"radius": 0},
    {"radius": 3},
    {"layers": (-1,)},
    {"layers": (2, 0)},
    {"steps": 0},
    {"steps": 2},
    {"steps": 3},
    {"init": "identity"},
]


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize(
    "options", OPTIONS, ids=lambda options: "-".join(f"{k}={v}" for k, v in options.items())
)
def test_equals_the_equations(graph: WordGraph, options: dict[str, Any]) -> None:
    model = model_of(EveryLayer(graph, **options)).double()
    with torch.no_grad():
        assert_equal_outputs(model, batch())


@pytest.mark.parametrize("kind", ["roberta", "distilbert"])
@pytest.mark.parametrize("init", ["random", "identity"])
def test_other_encoders_equal_the_equations(kind: str, init: str) -> None:
    inputs = batch(separators=2 if kind == "roberta" else 1)
    with torch.no_grad():
        assert_equal_outputs(model_of(EveryLayer(init=init), kind).double(), inputs)


LOSSES = [
    LGReLoss(),
    *(LGReLoss(distance=distance, weight=0.5) for distance in ("none", "point", "pair")),
    LGReLoss("softmax", weight=0.5),
]


def gradients_of(model: LGRe, value: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    value.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_losses_and_all_gradients_equal_those_of_the_equations(loss: LGReLoss) -> None:
    inputs = batch([(2, 1), (2, 3), (3, 2), (1, 4), (1, 1), (2, 2)])
    relevant = (torch.arange(6) % 2 == 0).long()
    # both hinges are in use: differences of scores are about 1
    model = model_of(EveryLayer(init="identity")).double()
    values, gradients = [], []
    for slow in (True, False):
        if slow:
            pairs = literally(model, inputs)
            queries = [(pairs[row : row + 2], [1, 0]) for row in (0, 2, 4)]
            value = reference.total_loss(loss, queries)
        else:
            value = loss(model(**inputs), inputs["segments"], relevant.view(3, 2))
        values.append(value.detach())
        gradients.append(gradients_of(model, value))
    torch.testing.assert_close(*values, atol=1e-6, rtol=1e-6)
    assert {name for name, _ in model.named_parameters()} == gradients[0].keys()
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-5)


def test_a_query_or_a_document_may_be_empty() -> None:
    inputs = batch([(0, 3), (2, 0)])
    model = model_of(EveryLayer()).double()
    with torch.no_grad():
        output = assert_equal_outputs(model, inputs)
    loss = LGReLoss()(output, inputs["segments"], torch.tensor([[1, 0]]))
    assert loss.isfinite()


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
@pytest.mark.parametrize("layers", [None, (-1,)])
def test_identity_is_the_cross_encoder(kind: str, layers: tuple[int, ...] | None) -> None:
    cross_encoder = encoder(kind, head=True)
    inputs = batch(separators=2 if kind == "roberta" else 1)
    with torch.no_grad():
        logits = cross_encoder(inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits[
            :, 0
        ]
        scores = (
            LGRe(cross_encoder, EveryLayer(layers=layers, init="identity")).eval()(**inputs).scores
        )
    assert torch.equal(scores, logits)
    assert logits.std() > 0


def test_refuses() -> None:
    with pytest.raises(IndexError):
        LGRe(encoder(), EveryLayer(layers=(3,)))
    with pytest.raises(ValueError, match="needs a cross-encoder with one label, got a BertModel"):
        LGRe(encoder(), EveryLayer(init="identity"))
