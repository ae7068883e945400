"""LGReReranker: frames, pairs, training, pictures."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import tiny
import torch
from tiny import cross_encoder

from pyterrier_graph.lgre.equations import LGReConfig, word_graph
from pyterrier_graph.lgre.reranker import LGReReranker
from pyterrier_graph.lgre.training import LGReTraining, QueryPairs

QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 8, "pairs_per_epoch": 16, "learning_rate": 0.01}
QUICK |= {"encoder_learning_rate": 0.003, "measure": "nDCG@20", "patience": 3}


def toy(queries: int = 6, documents: int = 6) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A run and judgments: relevant are the first two documents of a query, which have its word."""
    random = np.random.default_rng(0)
    rows = []
    for number in range(queries):
        word = tiny.WORDS[number]
        for place in range(documents):
            text = random.choice(
                [other for other in tiny.WORDS if other != word], 3 + place
            ).tolist()
            if place < 2:
                text[place] = word
            rows.append((f"t{number}", word, f"d{number}-{place}", " ".join(text), int(place < 2)))
    frame = pd.DataFrame(rows, columns=["qid", "query", "docno", "text", "label"])
    return frame[["qid", "query", "docno", "text"]], frame[["qid", "docno", "label"]]


RUN, QRELS = toy()


SHAPE = {field.name for field in fields(LGReConfig)}


def lgre(encoder: str | None = None, **options: Any) -> LGReReranker:
    """A small reranker; options of the configuration may stand among the others."""
    training = LGReTraining(**QUICK | options.pop("training", {}))
    config = LGReConfig(**{name: options.pop(name) for name in SHAPE & options.keys()})
    given = {
        "max_tokens": 64,
        "device": "cpu",
        "training": training,
        "config": config,
        "verbose": False,
    }
    return LGReReranker(encoder or tiny.checkpoint(), **given | options)


def scores(reranker: pt.Transformer, run: pd.DataFrame = RUN) -> np.ndarray:
    return reranker(run)["score"].to_numpy()


def measured(reranker: LGReReranker) -> float:
    return tiny.evaluated(reranker.training.measure, QRELS, reranker(RUN))


# --- frames


@pytest.mark.parametrize("words", ["full", "bipartite", "bipartite+neighbor"])
def test_scores_do_not_depend_on_the_batch_or_other_rows(words: str) -> None:
    reranker = lgre(word_graph=words, init="identity", encoder=cross_encoder())
    with torch.no_grad():
        reranker.network.score.normal_()
    plain = scores(reranker)
    assert len(np.unique(plain.round(4))) > 30
    for size in (1, 7):
        reranker.batch_size = size
        np.testing.assert_allclose(scores(reranker), plain, atol=1e-5)


@pytest.mark.parametrize("wrong", [None, float("nan"), 3])
def test_a_document_without_text(wrong: Any) -> None:
    frame = RUN.astype({"text": object})
    frame.loc[4, "text"] = wrong
    with pytest.raises(ValueError, match="text must be a string"):
        lgre()(frame)
    with pytest.raises(ValueError, match="text must be a string"):
        lgre().fit(frame, QRELS)


# --- models


def test_a_cross_encoder_is_the_start_unless_the_paper_is_asked_for() -> None:
    start = scores(lgre(encoder=cross_encoder()))
    expected = scores(lgre(encoder=cross_encoder(), init="identity"))
    np.testing.assert_array_equal(start, expected)
    assert not np.allclose(scores(lgre(encoder=cross_encoder(), init="random")), start, atol=1e-2)
    assert lgre().network.config.init == LGReConfig.paper().init == "random"
    assert (LGReConfig().layers, LGReConfig.paper().layers) == ((-1,), None)
    assert (LGReConfig().steps, LGReConfig.paper().steps) == (1, 2)


def test_options_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="init='identity' needs a cross-encoder with one label"):
        lgre(init="identity")
    assert lgre(max_tokens=65).max_tokens == 64


# --- pairs


def test_pairs_of_an_epoch() -> None:
    """Queries take turns; d- is of the same query and judged lower; epochs differ, and can be drawn again."""
    random = np.random.default_rng(0)
    query, label = np.repeat(np.arange(7), 9), random.integers(-1, 3, 63)
    label[query == 3] = 0
    label[query == 4] = 1  # nothing lower
    order = random.permutation(63)
    query, label = query[order], label[order]
    pairs = QueryPairs(query, label, 12, seed=5)
    assert len(pairs) == 12
    epochs: list[list[tuple[int, int]]] = []
    for epoch in range(40):
        pairs.draw(epoch)
        epochs.append([pairs[place] for place in range(12)])
    drawn = np.array(epochs).reshape(-1, 2)
    assert (query[drawn[:, 0]] == query[drawn[:, 1]]).all()
    assert (label[drawn[:, 0]] > np.maximum(label[drawn[:, 1]], 0)).all()
    assert {*query[drawn[:, 0]]} == {0, 1, 2, 5, 6}
    again = QueryPairs(query, label, 12, seed=5)
    again.draw(17)
    assert [again[place] for place in range(12)] == epochs[17] != epochs[16]


def test_nothing_to_learn_from() -> None:
    for labels in (QRELS.assign(label=0), QRELS.assign(label=1)):
        with pytest.raises(
            ValueError, match="no training query has both a relevant document among its own and one"
        ):
            lgre().fit(RUN, labels)


# --- training


def test_a_task_that_can_be_learned() -> None:
    reranker = lgre(dropout=0.0, training={"epochs": 6, "pairs_per_epoch": 32, "patience": None})
    before = measured(reranker)
    assert reranker.fit(RUN, QRELS, RUN, QRELS) is reranker
    assert len(tiny.logged(reranker, "nDCG@20")) == 7
    assert measured(reranker) == pytest.approx(max(tiny.logged(reranker, "nDCG@20")[1:]))
    assert measured(reranker) > before + 0.1
    losses = tiny.logged(reranker, "loss")
    assert losses[-1] < losses[0] - 0.2
    assert not reranker.network.training


@pytest.mark.parametrize("rate", [None, 0.01])
def test_the_encoder_learns_where_it_shall(rate: float | None) -> None:
    training = {"encoder_learning_rate": rate, "epochs": 1}
    reranker = lgre(training=training)
    before = tiny.weights(reranker.network)
    reranker.fit(RUN, QRELS)
    changed = tiny.learned(reranker.network, before)
    assert any(name.startswith("encoder.") for name in changed) == (rate is not None)
    assert all(
        value.requires_grad == (rate is not None) for value in reranker.network.encoder.parameters()
    )
    assert {"projection", "score", "combination", "gates.weight"} <= changed


# --- explanations and pictures


@pytest.mark.parametrize("words", ["full", "bipartite", "bipartite+neighbor"])
def test_an_explanation_is_the_graph_of_the_score(words: str) -> None:
    reranker = lgre(word_graph=words, layers=(-1, 0))
    found = reranker.word_graph("alpha beta", "beta gamma delta unheard")
    tokens = "[CLS] alpha beta [SEP] beta gamma delta [UNK] [SEP]"
    assert found.tokens == tokens.split()
    assert found.segments.tolist() == [-1, 0, 0, -1, 1, 1, 1, 1, -1]
    assert found.layers == (0, 2)
    assert found.adjacency.shape == (2, 9, 9)
    segments = torch.from_numpy(found.segments)[None]
    links = word_graph(segments, torch.ones(1, 9), reranker.config)[0].numpy()
    assert ((found.adjacency > 0) == links).all()
    pair = pd.DataFrame([["1", "alpha beta", "d", "beta gamma delta unheard"]], columns=RUN.columns)
    assert found.score == pytest.approx(scores(reranker, pair).item(), abs=1e-6)


# --- options, progress, checkpoints


def test_representations() -> None:
    reranker = lgre()
    run = RUN[RUN["qid"] == "t0"]
    queries, documents = reranker.representations(run)
    assert queries.shape == documents.shape == (len(run), queries.shape[1])
