"""LGReReranker: frames, training, artifacts, pictures."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import tiny
import torch
from trainings import interrupt, stop
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

from pyterrier_graph import plots
from pyterrier_graph.artifacts import META
from pyterrier_graph.evaluation.cross_validation import cross_validate
from pyterrier_graph.models.lgre import LGReConfig, word_graph
from pyterrier_graph.models.lgre_losses import LGReLoss
from pyterrier_graph.rerank.lgre import LGReReranker
from pyterrier_graph.training.pairs import LGReTraining, QueryPairs
from pyterrier_graph.training.validation import RunEvaluator

QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 8, "pairs_per_epoch": 16, "learning_rate": 0.01}
QUICK |= {"encoder_learning_rate": 0.003, "measure": "nDCG@20", "patience": 3}


@cache
def cross_encoder() -> str:
    """Folder of an untrained cross-encoder of the size of ``tiny.checkpoint()``."""
    folder = mkdtemp(prefix="tiny-cross-encoder-")
    torch.manual_seed(1)
    config = BertConfig.from_pretrained(tiny.checkpoint(), num_labels=1, initializer_range=0.3)
    BertForSequenceClassification(config).save_pretrained(folder)
    BertTokenizerFast.from_pretrained(tiny.checkpoint()).save_pretrained(folder)
    return folder


def toy(queries: int = 6, documents: int = 6) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A run and judgments: relevant are the first two documents of a query, which have its word."""
    random = np.random.default_rng(0)
    rows = []
    for number in range(queries):
        word = tiny.WORDS[number]
        for place in range(documents):
            text = random.choice([other for other in tiny.WORDS if other != word], 3 + place).tolist()
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
    given = {"max_tokens": 64, "device": "cpu", "training": training, "config": config, "verbose": False}
    return LGReReranker(encoder or tiny.checkpoint(), **given | options)


def scores(reranker: pt.Transformer, run: pd.DataFrame = RUN) -> np.ndarray:
    return reranker(run)["score"].to_numpy()


def qualities(reranker: LGReReranker) -> list[float]:
    """After each epoch; the log begins with that of the untrained model."""
    return [entry["nDCG@20"] for entry in reranker.training_log if "nDCG@20" in entry][1:]


def losses(reranker: LGReReranker) -> list[float]:
    return [entry["loss"] for entry in reranker.training_log if "loss" in entry]


def measured(reranker: LGReReranker) -> float:
    return RunEvaluator(reranker.training.measure, QRELS)(reranker(RUN))


def assert_same_weights(one: LGReReranker, other: LGReReranker) -> None:
    for name, value in one.network.state_dict().items():
        assert torch.equal(value, other.network.state_dict()[name]), name


@pytest.fixture(scope="module")
def trained() -> LGReReranker:
    return lgre().fit(RUN, QRELS)


# --- frames

TestLGRe = pt.testing.transformer_test_class(lambda: lgre())


def test_what_is_needed_and_what_comes_out() -> None:
    assert pt.inspect.transformer_inputs(lgre()) == [["qid", "docno", "query", "text"]]
    assert pt.inspect.transformer_inputs(lgre(text_field="body")) == [["qid", "docno", "query", "body"]]
    outputs = pt.inspect.transformer_outputs(lgre(), ["qid", "query", "docno", "text"])
    assert outputs == ["qid", "query", "docno", "text", "score", "rank"]


def test_rows_and_columns_stay_and_an_empty_frame_has_them_too() -> None:
    frame = RUN.assign(docid=7, score=1.0, rank=3).set_index(np.arange(len(RUN)) * 5)
    before = frame.copy()
    out = lgre()(frame)
    kept = ["qid", "query", "docno", "text", "docid"]
    pd.testing.assert_frame_equal(out[kept], frame[kept])
    pd.testing.assert_frame_equal(frame, before)
    empty = lgre()(frame.iloc[:0])
    assert list(empty.columns) == list(out.columns) == [*kept, "score", "rank"]
    assert len(empty) == 0
    assert empty["score"].dtype == float and empty["rank"].dtype == int
    for _, part in out.groupby("qid"):
        assert sorted(part["rank"]) == list(range(6))
        assert part.sort_values("rank")["score"].is_monotonic_decreasing


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
    reranker.batch_size = 32
    shuffled = RUN.sample(frac=1, random_state=0)
    np.testing.assert_allclose(reranker(shuffled)["score"].sort_index(), plain, atol=1e-5)
    np.testing.assert_allclose(scores(reranker, RUN.iloc[[3, 3, 20]]), plain[[3, 3, 20]], atol=1e-5)


def test_texts_of_any_length() -> None:
    reranker = lgre()
    long = "beta " * 70
    frame = pd.DataFrame(
        {
            "qid": ["1", "1", "1", "1", "2", "3"],
            "docno": list("abcdef"),
            "query": ["alpha", None, "alpha", "alpha", long, long],  # in some rows only
            "text": ["", "beta " * 61, long, long * 50, long, "beta"],
        }
    )
    found = scores(reranker, frame)
    assert np.isfinite(found).all()
    assert found[1] == pytest.approx(found[2], abs=1e-6) == pytest.approx(found[3], abs=1e-6)  # cut to the same length
    assert found[0] == pytest.approx(scores(reranker, frame.iloc[[0]]).item(), abs=1e-5)
    assert len(reranker.explain("alpha", long).tokens) == 64


@pytest.mark.parametrize("wrong", [None, float("nan"), 3])
def test_a_document_without_text_is_named(wrong: Any) -> None:
    frame = RUN.astype({"text": object})
    frame.loc[4, "text"] = wrong
    with pytest.raises(ValueError, match="document 'd0-4' has no text in column 'text'"):
        lgre()(frame)
    with pytest.raises(ValueError, match="document 'd0-4' has no text in column 'text'"):
        lgre().fit(frame, QRELS)


@pytest.mark.parametrize("wrong", ["", "  ", None, 3])
def test_a_query_without_text_is_named(wrong: Any) -> None:
    frame = RUN.astype({"query": object})
    frame.loc[frame["qid"] == "t1", "query"] = wrong
    with pytest.raises(ValueError, match="query 't1' has no text"):
        lgre()(frame)


@pytest.mark.parametrize("column", ["qid", "query", "docno", "text"])
def test_a_missing_column(column: str) -> None:
    with pytest.raises(pt.validate.InputValidationError, match=column):
        lgre()(RUN.drop(columns=column))
    with pytest.raises(pt.validate.InputValidationError, match=column):
        lgre().states(RUN.drop(columns=column))
    with pytest.raises(pt.validate.InputValidationError, match=column):
        lgre().fit(RUN.drop(columns=column), QRELS)
    with pytest.raises(pt.validate.InputValidationError, match=column):
        lgre().fit(RUN, QRELS, RUN.drop(columns=column), QRELS)


def test_weights_that_are_not_numbers() -> None:
    reranker = lgre()
    with torch.no_grad():
        reranker.network.combination_bias.fill_(float("nan"))
    with pytest.raises(ValueError, match="scores query 't0', passage 'd0-0' as not a number"):
        reranker(RUN)


# --- models


def test_identity_starts_at_the_cross_encoder() -> None:
    model = BertForSequenceClassification.from_pretrained(cross_encoder()).eval()
    tokenizer = BertTokenizerFast.from_pretrained(cross_encoder())
    with torch.inference_mode():
        inputs = tokenizer(RUN["query"].tolist(), RUN["text"].tolist(), padding=True, return_tensors="pt")
        expected = model(**inputs).logits[:, 0].numpy()
    for init in ("identity", None):
        np.testing.assert_allclose(scores(lgre(encoder=cross_encoder(), init=init)), expected, atol=1e-5)
    assert not np.allclose(scores(lgre(encoder=cross_encoder(), init="random")), expected, atol=1e-2)
    assert lgre().network.config.init == LGReConfig.paper().init == "random"
    assert (LGReConfig().layers, LGReConfig.paper().layers) == ((-1,), None)
    assert (LGReConfig().steps, LGReConfig.paper().steps) == (1, 2)


def test_options_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="init='identity' starts at .* a cross-encoder .* without a trained"):
        lgre(init="identity")
    with pytest.raises(ValueError, match="reads at most 64 tokens: max_tokens=65 is more"):
        lgre(max_tokens=65)
    with pytest.raises(ValueError, match="word_graph must be one of .*, got 'tripartite'"):
        lgre(word_graph="tripartite")
    with pytest.raises(ValueError, match="batch_size must be a whole number, 1 or more, got 0"):
        lgre(batch_size=0)
    for option in ("epochs", "batch_size", "evaluations", "pairs_per_epoch"):
        with pytest.raises(ValueError, match=f"{option} must be a whole number, 1 or more, got 0"):
            LGReTraining(**{option: 0})  # type: ignore[arg-type]


def test_seeds(trained: LGReReranker) -> None:
    np.testing.assert_array_equal(scores(lgre()), scores(lgre()))
    assert_same_weights(lgre().fit(RUN, QRELS), trained)
    assert not np.allclose(scores(lgre(seed=1)), scores(lgre()), atol=1e-3)
    assert not np.allclose(scores(lgre(training={"seed": 1}).fit(RUN, QRELS)), scores(trained), atol=1e-4)


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
    times = Counter(query[drawn[:, 0]].tolist())
    assert set(times) == {0, 1, 2, 5, 6} and set(times.values()) == {96}  # 480 pairs of 5 queries
    possible = {(int(a), int(b)) for a in range(63) for b in range(63) if query[a] == query[b] and label[a] > label[b]}
    possible = {(a, b) for a, b in possible if label[a] > 0}
    assert {tuple(pair) for pair in drawn.tolist()} <= possible
    assert len({tuple(pair) for pair in drawn.tolist()}) > 0.6 * len(possible)
    assert len({tuple(epoch) for epoch in epochs}) == 40
    again = QueryPairs(query, label, 12, seed=5)
    again.draw(17)
    assert [again[place] for place in range(12)] == epochs[17]
    assert [QueryPairs(query, label, 12, seed=6)[place] for place in range(12)] != epochs[0]


def test_several_negatives() -> None:
    """They are of the query of d+ and judged lower, and differ where there are enough; all are drawn alike often."""
    query, label = np.repeat(np.arange(3), [9, 3, 6]), np.r_[2, 1, np.zeros(7), 1, 0, 0, np.ones(2), np.zeros(4)]
    order = np.random.default_rng(1).permutation(18)
    query, label = query[order], label[order].astype(int)
    pairs = QueryPairs(query, label, 24, negatives=4)
    assert len(pairs) == 6  # lists
    drawn = []
    for epoch in range(200):
        pairs.draw(epoch)
        drawn += [pairs[place] for place in range(6)]
    lists = np.array(drawn)
    assert lists.shape == (1200, 5)
    assert (query[lists] == query[lists[:, :1]]).all() and (label[lists[:, 1:]] < label[lists[:, :1]]).all()
    for number, several in ((0, 4), (1, 2), (2, 4)):
        negatives = lists[query[lists[:, 0]] == number][:, 1:]
        assert {len({*row}) for row in negatives.tolist()} == {several}
    times = Counter(lists[query[lists[:, 0]] == 2][:, 1:].flatten().tolist())
    assert set(times.values()) == {400}  # all four, always
    nine = lists[(query[lists[:, 0]] == 0) & (label[lists[:, 0]] == 2)][:, 1:]
    assert np.ptp([*Counter(nine.flatten().tolist()).values()]) < 0.5 * len(nine) and len({*nine.flatten()}) == 8


def test_few_documents_give_few_pairs() -> None:
    query, label = np.array([0, 0, 0, 1, 1]), np.array([1, 0, 0, 2, 1])  # three distinct pairs
    assert [len(QueryPairs(query, label, pairs)) for pairs in (64, 6, 5)] == [6, 6, 5]


def test_nothing_to_learn_from() -> None:
    for labels in (QRELS.assign(label=0), QRELS.assign(label=1)):
        with pytest.raises(ValueError, match="no training query has both a relevant document among its own and one"):
            lgre().fit(RUN, labels)
    with pytest.raises(ValueError, match="none of the queries is judged"):
        lgre().fit(RUN, QRELS.assign(qid="other"))
    with pytest.raises(ValueError, match="no judgments"):
        lgre().fit(RUN, QRELS, RUN, None)
    with pytest.raises(pt.validate.InputValidationError, match="label"):
        lgre().fit(RUN, QRELS.drop(columns="label"))


# --- training


def test_a_task_that_can_be_learned() -> None:
    reranker = lgre(dropout=0.0, training={"epochs": 6, "pairs_per_epoch": 32, "patience": None})
    before = measured(reranker)
    assert reranker.fit(RUN, QRELS, RUN, QRELS) is reranker
    assert len(qualities(reranker)) == 6
    assert measured(reranker) == pytest.approx(max(qualities(reranker)))
    assert measured(reranker) > before + 0.1
    assert losses(reranker)[-1] < losses(reranker)[0] - 0.2
    assert not reranker.network.training


LOSSES = [
    LGReLoss(ranking=ranking, distance=distance, weight=0.5)  # type: ignore[arg-type]
    for ranking in ("hinge", "softmax")
    for distance in ("none", "point", "pair", "triangle")
]


def test_losses_lead_to_different_models() -> None:
    found = [
        scores(lgre(training={"loss": loss, "epochs": 1, "pairs_per_epoch": 8}).fit(RUN, QRELS)) for loss in LOSSES
    ]
    assert len({tuple(values.round(4)) for values in found}) == len(LOSSES)


def test_the_best_weights_are_kept_and_training_stops_when_nothing_improves() -> None:
    other = RUN.assign(label=RUN["docno"].str.endswith("-0").astype(int))[["qid", "docno", "label"]]
    reranker = lgre(training={"epochs": 12, "patience": 2, "learning_rate": 0.03}).fit(RUN, QRELS, RUN, other)
    reached = qualities(reranker)
    assert len(reached) == reached.index(max(reached)) + 3 < 12
    assert reached[-1] < max(reached)
    assert RunEvaluator("nDCG@20", other)(reranker(RUN)) == pytest.approx(max(reached))


def test_an_untrained_model_that_is_better_is_kept() -> None:
    reranker = lgre(encoder=cross_encoder(), init="identity", training={"learning_rate": 5.0, "patience": 1})
    before = scores(reranker)
    best = RUN.assign(label=reranker(RUN)["rank"].eq(0).astype(int))[["qid", "docno", "label"]]
    reranker.fit(RUN, QRELS, RUN, best)
    assert max(qualities(reranker)) < 1
    np.testing.assert_array_equal(scores(reranker), before)


@pytest.mark.parametrize(("evaluations", "epochs"), [(1, [0, 1, 2]), (2, [0, 0, 1, 2])])
def test_a_training_that_was_interrupted_goes_on(
    tmp_path: Path, evaluations: int, epochs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    training = {"epochs": 3, "patience": None, "evaluations": evaluations}
    whole = lgre(training=training).fit(RUN, QRELS, RUN, QRELS)
    training |= {"output_dir": str(tmp_path)}
    with pytest.raises(KeyboardInterrupt):  # one checkpoint is complete: of an epoch, or of half of one
        interrupt(lgre(training=training), 3, stop).fit(RUN, QRELS, RUN, QRELS)
    drawn: list[int] = []
    draw = QueryPairs.draw
    monkeypatch.setattr(QueryPairs, "draw", lambda pairs, epoch: (drawn.append(epoch), draw(pairs, epoch)))
    resumed = lgre(training=training).fit(RUN, QRELS, RUN, QRELS)
    assert drawn == epochs  # the first of them when the pairs were made
    assert qualities(resumed) == qualities(whole)
    assert len(qualities(whole)) == 3 * evaluations
    assert_same_weights(resumed, whole)


def test_checkpoints_of_another_training(tmp_path: Path) -> None:
    kept = {"output_dir": str(tmp_path), "epochs": 1}
    lgre(training=kept).fit(RUN, QRELS)
    for other, options in {
        "training option loss": {"training": kept | {"loss": LGReLoss(ranking="softmax")}},
        "config": {"training": kept, "word_graph": "full"},
        "encoder": {"training": kept, "encoder": cross_encoder(), "init": "random"},
        "seed": {"training": kept, "seed": 3},
    }.items():
        with pytest.raises(ValueError, match=rf"another training \(other: {other}\)"):
            lgre(**options).fit(RUN, QRELS)  # type: ignore[arg-type]
    again = lgre(training=kept).fit(RUN, QRELS)  # continues, and is at the end
    with pytest.raises(ValueError, match=r"another training \(other: weights at the start\)"):
        again.fit(RUN, QRELS)
    with pytest.raises(ValueError, match=r"another training \(other: training examples\)"):
        lgre(training=kept).fit(RUN.assign(text=RUN["text"] + " mu"), QRELS)


@pytest.mark.parametrize("rate", [None, 0.01])
def test_the_encoder_learns_where_it_shall(rate: float | None) -> None:
    reranker = lgre(training={"encoder_learning_rate": rate, "epochs": 1})
    before = {name: value.clone() for name, value in reranker.network.state_dict().items()}
    reranker.fit(RUN, QRELS)
    changed = {name for name, value in reranker.network.state_dict().items() if not torch.equal(value, before[name])}
    assert any(name.startswith("encoder.") for name in changed) == (rate is not None)
    assert all(value.requires_grad == (rate is not None) for value in reranker.network.encoder.parameters())
    assert {"projection", "score", "combination", "gates.weight"} <= changed


@pytest.mark.parametrize("rate", [None, 0.01])
def test_a_head_learns_at_the_rate_of_the_word_graphs(rate: float | None) -> None:
    """As on top of a cross-encoder: what is compared must not learn at different rates."""
    reranker = lgre(encoder=cross_encoder(), init="identity", training={"encoder_learning_rate": rate, "epochs": 1})
    reranker.fit(RUN, QRELS)
    assert all(value.requires_grad for value in reranker.network.encoder.classifier.parameters())
    assert all(value.requires_grad == (rate is not None) for value in reranker.network.base_model.parameters())


def test_accumulated_gradients_and_half_precision() -> None:
    checkpoint = BertConfig.from_pretrained(tiny.checkpoint()).to_dict()
    assert checkpoint["hidden_dropout_prob"] == 0.1

    def fitted(**training: Any) -> LGReReranker:
        reranker = lgre(dropout=0.0, training={"epochs": 1} | training)
        for module in reranker.network.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        for layer in reranker.network.encoder.encoder.layer:
            layer.attention.self.dropout.p = 0.0
        return reranker.fit(RUN, QRELS)

    whole = fitted(batch_size=8)
    halves = fitted(batch_size=4, arguments={"gradient_accumulation_steps": 2})
    np.testing.assert_allclose(scores(halves), scores(whole), atol=1e-4)
    for arguments in ({"bf16": True}, {"gradient_checkpointing": True}):
        other = fitted(arguments=arguments)
        assert all(parameter.dtype == torch.float32 for parameter in other.network.parameters())
        np.testing.assert_allclose(scores(other), scores(whole), atol=0.1)


def test_training_that_diverges() -> None:
    with pytest.raises(ValueError, match="diverged|not finite"):
        lgre(training={"learning_rate": 1e30}).fit(RUN, QRELS)


def test_training_in_a_pipeline(trained: LGReReranker) -> None:
    reranker = lgre()
    pipeline = pt.Transformer.from_df(RUN) >> reranker
    pipeline.fit(RUN[["qid", "query"]].drop_duplicates(), QRELS, None, None)
    np.testing.assert_array_equal(scores(reranker), scores(trained))


def test_repeated_rows_and_other_columns(trained: LGReReranker) -> None:
    frame = pd.concat([RUN, RUN.iloc[:9]]).assign(label=9, score=1.0, qid=lambda run: run["qid"].str[1:].astype(int))
    judgments = QRELS.assign(qid=QRELS["qid"].str[1:].astype(int))
    reranker = lgre().fit(frame, pd.concat([judgments, judgments]))
    np.testing.assert_allclose(scores(reranker), scores(trained), atol=1e-5)


def test_passages_of_long_documents() -> None:
    """The word of the query is where the document would be cut."""
    reranker = lgre(max_tokens=16, training={"epochs": 4, "pairs_per_epoch": 32})
    longer = RUN.assign(text="mu kappa " * 10 + RUN["text"], score=0.0)
    cut = pt.text.sliding(text_attr="text", length=8, stride=4, prepend_attr=None)
    pipeline = pt.Transformer.from_df(longer) >> cut >> reranker >> pt.text.max_passage()
    topics = RUN[["qid", "query"]].drop_duplicates()
    before = RunEvaluator("nDCG@20", QRELS)(pipeline(topics))
    pipeline.fit(topics, QRELS, topics, QRELS)
    ranking = pipeline(topics)
    assert sorted(ranking["docno"]) == sorted(RUN["docno"])
    assert RunEvaluator("nDCG@20", QRELS)(ranking) == pytest.approx(max([before, *qualities(reranker)]))
    passages = cut(longer)
    judged = passages.assign(label=passages["docno"].str.endswith("%p0").astype(int))[["qid", "docno", "label"]]
    # judgments of passages are theirs alone
    still = {"learning_rate": 0.0, "encoder_learning_rate": None, "validation_candidates": None}
    one = lgre(training={"epochs": 1} | still)
    one.fit(passages, judged, passages, judged)
    assert qualities(one) == [pytest.approx(RunEvaluator("nDCG@20", judged)(one(passages)))]


def test_cross_validation() -> None:
    run = cross_validate(
        lambda fold: pt.Transformer.from_df(RUN) >> lgre(training={"epochs": 1}),
        RUN[["qid", "query"]].drop_duplicates(),
        QRELS,
        folds=3,
    )
    assert sorted(run["docno"]) == sorted(RUN["docno"])


# --- artifacts


@pytest.fixture(scope="module")
def saved(trained: LGReReranker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "lgre"
    copy = pt.inspect.transformer_apply_attributes(trained)
    copy.save(path)
    assert copy.path == path
    return path


def test_a_saved_model_scores_as_before(saved: Path, trained: LGReReranker) -> None:
    loaded = LGReReranker.load(saved, device="cpu")
    np.testing.assert_array_equal(scores(loaded), scores(trained))
    assert (loaded.network.config, loaded.encoder, loaded.max_tokens) == (trained.network.config, trained.encoder, 64)
    assert LGReReranker.load(saved, batch_size=5).batch_size == 5
    meta = json.loads((saved / META).read_text())
    assert (meta["type"], meta["format"], meta["package_hint"]) == ("reranker", "lgre", "pyterrier_graph")
    assert not list(saved.rglob("*.bin")) and not list(saved.rglob("*.pt")) and not list(saved.rglob("*.pkl"))
    with pytest.raises(FileExistsError, match="exists already"):
        trained.save(saved)


@pytest.mark.parametrize(
    "options",
    [
        {"word_graph": "full", "layers": (-1,), "gate": "gru", "readout": "linear", "pooling": "sum", "steps": 1},
        {"encoder": "cross-encoder", "init": "identity", "per_layer": False, "special_tokens": "sides", "radius": 2},
        {
            "word_graph": "bipartite+neighbor",
            "layers": (1, 2),
            "self_loops": "printed",
            "dropout": 0.3,
            "text_field": "body",
        },
    ],
)
def test_every_shape_is_saved(options: dict[str, Any], tmp_path: Path) -> None:
    if "encoder" in options:
        options = options | {"encoder": cross_encoder()}
    reranker = lgre(**options)
    frame = RUN.rename(columns={"text": reranker.text_field})
    with torch.no_grad():
        for parameter in reranker.network.parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape))
    reranker.save(tmp_path / "model")
    loaded = LGReReranker.load(tmp_path / "model", device="cpu")
    assert loaded.network.config == reranker.network.config
    np.testing.assert_array_equal(scores(loaded, frame), scores(reranker, frame))


def test_a_model_does_not_need_the_checkpoint_that_it_began_with(tmp_path: Path) -> None:
    checkpoint = shutil.copytree(cross_encoder(), tmp_path / "checkpoint")
    reranker = lgre(encoder=str(checkpoint), init="identity").save(tmp_path / "model")
    before = scores(reranker)
    shutil.rmtree(checkpoint)
    loaded = LGReReranker.load(tmp_path / "model", device="cpu")
    np.testing.assert_array_equal(scores(loaded), before)
    np.testing.assert_array_equal(scores(pt.inspect.transformer_apply_attributes(loaded)), before)
    loaded.save(tmp_path / "again")
    np.testing.assert_array_equal(scores(LGReReranker.load(tmp_path / "again", device="cpu")), before)


@pytest.mark.parametrize("file", ["lgre.safetensors", "encoder/model.safetensors"])
def test_a_model_that_is_damaged(saved: Path, tmp_path: Path, file: str) -> None:
    path = Path(shutil.copytree(saved, tmp_path / "copy"))
    content = bytearray((path / file).read_bytes())
    (path / file).write_bytes(content[:-1])
    with pytest.raises(ValueError, match=f"damaged: '{file}' should have"):
        LGReReranker.load(path)
    for place in (-5, 30):  # a weight, and the header
        broken = content.copy()
        broken[place] ^= 255
        (path / file).write_bytes(broken)
        with pytest.raises(ValueError, match="damaged"):
            LGReReranker.load(path, device="cpu")
    (path / file).unlink()
    with pytest.raises(ValueError, match="damaged"):
        LGReReranker.load(path)


def test_an_artifact_of_another_kind(saved: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(saved, tmp_path / "copy"))
    meta = json.loads((path / META).read_text())
    (path / META).write_text(json.dumps(meta | {"format": "hgat"}))
    with pytest.raises(ValueError, match="'format': 'hgat'.* is needed"):
        LGReReranker.load(path)
    with pytest.raises(FileNotFoundError, match="no artifact"):
        LGReReranker.load(tmp_path / "none")
    with pytest.raises(TypeError, match="steps"):  # which is saved with the weights
        LGReReranker.load(saved, steps=3)


def test_a_copy_has_weights_of_its_own(trained: LGReReranker) -> None:
    before = scores(trained)
    copy = pt.inspect.transformer_apply_attributes(trained, verbose=False, batch_size=3)
    assert copy is not trained and copy.batch_size == 3
    np.testing.assert_allclose(scores(copy), before, atol=1e-5)
    with torch.no_grad():
        copy.network.combination.add_(1.0)
    np.testing.assert_array_equal(scores(trained), before)
    full = LGReConfig(word_graph="full")
    with pytest.warns(UserWarning, match="is not trained: with another config the trained weights do not fit"):
        other = pt.inspect.transformer_apply_attributes(trained, config=full)
    np.testing.assert_array_equal(scores(other), scores(lgre(word_graph="full")))
    assert repr(other) == f"LGReReranker({tiny.checkpoint()!r}, 'full')"


# --- explanations and pictures


@pytest.mark.parametrize("words", ["full", "bipartite", "bipartite+neighbor"])
def test_an_explanation_is_the_graph_of_the_score(words: str) -> None:
    reranker = lgre(word_graph=words, layers=(-1, 0))
    found = reranker.explain("alpha beta", "beta gamma delta unheard")
    tokens = "[CLS] alpha beta [SEP] beta gamma delta [UNK] [SEP]"
    assert found.tokens == tokens.split()
    assert found.segments.tolist() == [-1, 0, 0, -1, 1, 1, 1, 1, -1]
    assert found.layers == (0, 2)
    assert found.adjacency.shape == (2, 9, 9)
    np.testing.assert_allclose(found.adjacency.sum(-1), 1, atol=1e-5)
    segments = torch.from_numpy(found.segments)[None]
    links = word_graph(segments, torch.ones(1, 9), reranker.config)[0].numpy()
    assert ((found.adjacency > 0) == links).all()
    assert not np.allclose(found.adjacency[0], found.adjacency[1])
    pair = pd.DataFrame([["1", "alpha beta", "d", "beta gamma delta unheard"]], columns=RUN.columns)
    assert found.score == pytest.approx(scores(reranker, pair).item(), abs=1e-6)
    combination = reranker.network.combination.detach().numpy()[0]
    by_layer = found.layer_scores @ combination + reranker.network.combination_bias.item()
    assert found.score == pytest.approx(by_layer, abs=1e-5)
    with pytest.raises(ValueError, match="has no text"):
        reranker.explain("", "beta")


def test_states() -> None:
    reranker = lgre(batch_size=4)
    found = reranker.states(RUN.iloc[:9])
    assert list(found.columns) == ["qid", "docno", "side", "state"]
    assert found["docno"].tolist() == RUN["docno"][:9].tolist() * 2
    assert found["side"].tolist() == ["query"] * 9 + ["document"] * 9
    inputs = reranker._tokens([RUN["query"][5]], [RUN["text"][5]])
    assert inputs["segments"][0].tolist() == [-1, 0, -1, *[1] * 8, -1]
    with torch.inference_mode():
        states = reranker.network(**inputs).states[0].numpy()
    np.testing.assert_allclose(found["state"][5], states[1], atol=1e-5)
    np.testing.assert_allclose(found["state"][9 + 5], states[3:11].mean(0), atol=1e-5)
    assert len(reranker.states(RUN.iloc[:0])) == 0
    empty = reranker.states(RUN.iloc[:1].assign(text=""))
    assert not empty["state"][1].any()


@pytest.fixture(autouse=True)
def closed_figures() -> Iterator[None]:
    yield
    plt.close("all")


def test_a_picture_of_a_word_graph() -> None:
    explanation = lgre().explain("alpha beta", "gamma alpha delta")
    axes = plots.word_graph(explanation)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["alpha", "beta", "gamma", "alpha", "delta"]
    shown = axes.images[0].get_array()
    np.testing.assert_array_equal(shown.filled(0), explanation.adjacency[-1][np.ix_([1, 2, 4, 5, 6], [1, 2, 4, 5, 6])])
    assert shown.mask.sum() == 4  # alpha and beta, gamma and delta, both ways
    frames = {patch.get_xy() for patch in axes.patches}
    assert frames == {(2.5, -0.5), (-0.5, 2.5)}
    assert axes.get_title(loc="left").startswith("layer 2, score ")
    other = plots.word_graph(explanation, layer=0, title="mine", most=1, ax=plt.subplots()[1])
    assert other.get_title(loc="left") == "mine, 1 of 3 document words"
    assert len(other.get_yticklabels()) == 3
    plots.word_graph(lgre().explain("alpha", "")).figure.canvas.draw()
    with pytest.raises(IndexError):
        plots.word_graph(explanation, layer=7)


@pytest.mark.parametrize("method", ["tsne", "pca"])
def test_a_map_of_states(method: Any) -> None:
    states = lgre().states(RUN.iloc[:6])
    axes = plots.state_map(states, QRELS, method=method, title="alpha")
    counts = [len(points.get_offsets()) for points in axes.collections]
    assert counts == [6, 1, 2, 1, 4, 1]
    for points, mean in zip(axes.collections[::2], axes.collections[1::2], strict=True):
        np.testing.assert_allclose(points.get_offsets().mean(0), mean.get_offsets()[0], rtol=1e-5)
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["query", "relevant document", "other document"]
    again = plots.state_map(states, QRELS, method=method)
    np.testing.assert_array_equal(again.collections[0].get_offsets(), axes.collections[0].get_offsets())
    only = plots.state_map(states, QRELS.assign(label=0), method=method)
    assert len(only.collections) == 4
    with pytest.raises(ValueError, match="3 or more vectors, dimensions.*, got .2, 16"):
        plots.state_map(states.iloc[:2], QRELS)
    with pytest.raises(ValueError, match="method must be one of 'tsne', 'pca', got 'umap'"):
        plots.state_map(states, QRELS, method="umap")  # type: ignore[arg-type]
