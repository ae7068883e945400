"""CrossEncoderReranker: scores, training, artifacts."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from sentence_transformers import CrossEncoder
from test_lgre_reranker import QRELS, QUICK, RUN, cross_encoder, lgre, scores
from transformers import BertTokenizerFast

from pyterrier_graph.lgre.cross_encoder import CrossEncoderReranker
from pyterrier_graph.lgre.losses import LGReLoss, pairwise_loss
from pyterrier_graph.lgre.training import CrossEncoderTraining


def reranker(encoder: str | None = None, **options: Any) -> CrossEncoderReranker:
    training = CrossEncoderTraining(**QUICK | options.pop("training", {}))
    defaults = {"max_tokens": 64, "device": "cpu", "training": training, "verbose": False}
    return CrossEncoderReranker(encoder or cross_encoder(), **defaults | options)


@cache
def trained() -> CrossEncoderReranker:
    return reranker().fit(RUN, QRELS)


def test_training_is_that_of_lgre() -> None:
    """Same pairs, same loss: an LGRe whose graph adds nothing learns the same, as long as it adds nothing."""
    assert not np.allclose(scores(trained()), scores(reranker()), atol=1e-3)
    np.testing.assert_array_equal(scores(reranker().fit(RUN, QRELS)), scores(trained()))
    still = {"dropout": 0.0, "init": "identity", "encoder": cross_encoder()}
    rates = {"learning_rate": 0.0, "encoder_learning_rate": 0.0}
    loss = LGReLoss(ranking="softmax", distance="none")
    one = lgre(**still, training={**rates, "loss": loss})
    other = reranker(training={**rates, "ranking": "softmax"})
    for network in (one.network, other.network):
        for module in network.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
    logs = [tiny.logged(model.fit(RUN, QRELS), "loss") for model in (one, other)]
    assert logs[0] == pytest.approx(logs[1], abs=1e-5)
    assert len(set(np.round(logs[0], 5))) == 2  # epochs have other pairs


@pytest.mark.parametrize(
    ("ranking", "expected"),
    [("hinge", (2.5 + 0.0) / 2), ("softmax", 1 / (1 + np.exp(-1.5)) + 1 / (1 + np.exp(2.0)))],
)
def test_loss_of_pairs(ranking: Any, expected: float) -> None:
    scores = torch.tensor([[1.0, 2.5], [3.0, 1.0]])  # d+ first
    assert pairwise_loss(scores, ranking).item() == pytest.approx(expected, abs=1e-5)


def test_a_teacher_learns_how_sure_it_may_be() -> None:
    """Binary cross-entropy on both documents of a pair; what is judged above 0 is relevant, whatever beside."""
    training = CrossEncoderTraining(ranking="pointwise")
    assert training.grades(np.array([2, 1, 0, -1])).tolist() == [True, True, False, False]
    network, relevant = reranker().network, torch.tensor([[1, 0], [1, 0]])
    inputs = BertTokenizerFast.from_pretrained(cross_encoder())(
        ["alpha"] * 4, ["mu", "beta", "alpha", "kappa"], return_tensors="pt"
    )
    with torch.no_grad():
        loss = training.pair_loss(network, inputs, relevant)
        probabilities = network(**inputs).logits[:, 0].sigmoid()
    expected = torch.nn.functional.binary_cross_entropy(probabilities, relevant.flatten().float())
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    with pytest.raises(ValueError, match="no training query has both a relevant document"):
        reranker(training={"ranking": "pointwise"}).fit(RUN, QRELS.assign(label=QRELS["label"] + 1))


def test_probabilities(tmp_path: Path) -> None:
    logits = scores(trained())
    sure = trained().apply_attributes(probabilities=True)
    assert isinstance(sure, CrossEncoderReranker)
    np.testing.assert_allclose(scores(sure), 1 / (1 + np.exp(-logits)), atol=1e-7)
    sure.save(tmp_path / "teacher")
    loaded = CrossEncoderReranker.load(tmp_path / "teacher", device="cpu")
    assert loaded.probabilities
    np.testing.assert_array_equal(scores(loaded), scores(sure))
    checkpoint = CrossEncoder(str(tmp_path / "teacher" / "cross-encoder"))
    pairs = list(zip(RUN["query"], RUN["text"], strict=True))
    np.testing.assert_allclose(checkpoint.predict(pairs), scores(sure), atol=1e-5)
    with torch.no_grad():
        sure.network.classifier.bias += 20
    assert len(np.unique(scores(sure))) == len(np.unique(logits))  # none is rounded to 1
