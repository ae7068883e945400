"""DualEncoder: frames, training in one and two stages, artifacts, several processes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import gnn_encoder_reference as reference
import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import tiny
import torch
from datasets import Dataset
from pyterrier_dr import BiEncoder, FlexIndex, SimFn
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from trainings import interrupt, stop

from pyterrier_graph.encoders.sentence_encoder import SentenceEncoder
from pyterrier_graph.pair.dual_encoder import DualEncoder
from pyterrier_graph.pair.losses import pair_loss
from pyterrier_graph.pair.mining import HardNegativeMiner
from pyterrier_graph.pair.query_encoder import IndexedExamples, QueryEncoderModel
from pyterrier_graph.pair.training import DualEncoderTraining

COUNT = 8
# relevant is what has another word than the query, and "mu"
WORDS = [(word, tiny.WORDS[(number + 5) % 11]) for number, word in enumerate(tiny.WORDS[:COUNT])]
TOPICS = pd.DataFrame(
    {"qid": [f"t{n}" for n in range(COUNT)], "query": [word for word, _ in WORDS]}
)
PASSAGES = pd.DataFrame(
    [
        row
        for n, (_, w) in enumerate(WORDS)
        for row in [(f"d{n}", f"{w} mu"), (f"e{n}", f"mu {w}"), (f"n{n}", f"{w} iota")]
    ],
    columns=["docno", "text"],
)
RUN = TOPICS.merge(PASSAGES, how="cross")
QRELS = pd.DataFrame(
    [(f"t{n}", f"{kind}{n}", 1) for n in range(COUNT) for kind in "de"],
    columns=["qid", "docno", "label"],
)
JUDGED = QRELS[QRELS["docno"].str.startswith("d")]  # of two relevant passages only one is judged
QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 4, "learning_rate": 0.01, "measure": "RR@10"}
LEARN: dict[str, Any] = {"epochs": 12, "batch_size": COUNT, "learning_rate": 0.02, "patience": None}


@cache
def checkpoint(normalized: bool = False, prompts: bool = False) -> str:
    """Folder of a small SentenceTransformer without dropout."""
    folder = mkdtemp(prefix="tiny-sentence-transformer-")
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    transformer = Transformer(tiny.checkpoint(), config_kwargs=none)
    modules = [
        transformer,
        Pooling(transformer.get_embedding_dimension()),
        *([Normalize()] if normalized else []),
    ]
    given = {"query": "alpha: ", "document": "beta: "} if prompts else None
    SentenceTransformer(modules=modules, prompts=given, device="cpu").save(
        folder, create_model_card=False
    )
    return folder


def dual(encoder: str | None = None, **options: Any) -> DualEncoder:
    first = DualEncoderTraining(**QUICK | {"alpha": 0.1} | options.pop("pretraining", {}))
    options["training"] = DualEncoderTraining(
        **QUICK | {"pretraining": first} | options.pop("training", {})
    )
    lengths = {"max_query_tokens": 8, "max_passage_tokens": 16}
    return DualEncoder(
        encoder or checkpoint(), **lengths | {"device": "cpu", "verbose": False} | options
    )


def examples(negatives: int = 1, repeats: int = 1) -> Dataset:
    hard = {
        f"negative_{n + 1}": [f"{w} iota" + " kappa" * n for _, w in WORDS]
        for n in range(negatives)
    }
    columns = {
        "query": [word for word, _ in WORDS],
        "positive": [f"{w} mu" for _, w in WORDS],
    } | hard
    return Dataset.from_dict({name: texts * repeats for name, texts in columns.items()})


class Teacher(pt.Transformer):
    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        relevant = [
            f"{dict(WORDS)[q]} mu" in (t, " ".join(t.split()[::-1]))
            for q, t in zip(inp["query"], inp["text"], strict=True)
        ]
        return pt.model.add_ranks(inp.assign(score=np.where(relevant, 0.95, 0.05)))


def miner(**options: Any) -> HardNegativeMiner:
    """Finds the passage that has the right word first, but is not relevant."""
    same = RUN["qid"].str[1:] == RUN["docno"].str[1:]
    found = pt.model.add_ranks(
        RUN.assign(score=same + 1.0 * (same & RUN["docno"].str.startswith("n")))
    )
    texts = pt.apply.generic(
        lambda run: run.drop(columns="text", errors="ignore").merge(PASSAGES, on="docno")
    )
    options = {"teacher": Teacher(), "verbose": False} | options
    return HardNegativeMiner(
        pt.Transformer.from_df(found.drop(columns=["query", "text"])), texts, **options
    )


def measured(pipeline: pt.Transformer, topics: pd.DataFrame = RUN) -> float:
    return tiny.evaluated("RR@10", QRELS, pipeline(topics)[["qid", "docno", "score"]])


@pytest.fixture(scope="module")
def trained() -> DualEncoder:
    return dual().fit_examples(examples(), RUN, QRELS)


# --- frames

TestQueryEncoder = pt.testing.transformer_test_class(lambda: dual().query_encoder())
TestDocEncoder = pt.testing.transformer_test_class(lambda: dual().doc_encoder())
TestTextScorer = pt.testing.transformer_test_class(lambda: dual().text_scorer())


def test_it_is_a_bi_encoder(trained: DualEncoder) -> None:
    assert isinstance(trained, BiEncoder)
    queries = trained.encode_queries(TOPICS["query"].tolist())
    passages = trained.encode_docs(PASSAGES["text"].tolist())
    assert queries.dtype == passages.dtype == np.float32 and queries.shape == (COUNT, 16)
    np.testing.assert_allclose(np.stack(trained(TOPICS)["query_vec"]), queries, atol=1e-5)
    np.testing.assert_allclose(np.stack(trained(PASSAGES)["doc_vec"]), passages, atol=1e-5)
    scored = trained(RUN)
    np.testing.assert_allclose(scored["score"], (queries @ passages.T).ravel(), atol=1e-4)
    for part in (RUN.iloc[[3, 3, 20]], RUN.sample(frac=1, random_state=0)):
        np.testing.assert_allclose(trained(part)["score"], scored["score"][part.index], atol=1e-4)
    small_batches = trained.apply_attributes(batch_size=3)
    np.testing.assert_allclose(small_batches(RUN)["score"], scored["score"], atol=1e-4)


# --- one similarity


@pytest.mark.parametrize("normalized", [False, True])
def test_similarity(normalized: bool, tmp_path: Path) -> None:
    model = dual(checkpoint(normalized))
    assert model.similarity == ("cosine" if normalized else "dot")
    lengths = np.linalg.norm(model.encode_docs(PASSAGES["text"].tolist()), axis=1)
    assert np.allclose(lengths, 1) == (model.similarity == "cosine")
    assert model.sim_fn == SimFn.dot  # in either case
    folder = tmp_path / "model"
    model.save(folder)
    plain = SentenceTransformer(str(folder / "sentence-transformer"), device="cpu")
    similarities = plain.similarity(
        plain.encode_query(["alpha"]), plain.encode_document(PASSAGES["text"].tolist())
    )
    np.testing.assert_allclose(similarities[0], model(RUN)["score"][: len(PASSAGES)], atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"alpha": 0.3, "scale": 0.5, "mini_batch_size": 3},
        {"alpha": 0.3, "normalized": True, "scale": 5.0},
        {"alpha": 0.3, "prompts": True},
    ],
    ids=str,
)
def test_training_sees_the_vectors_that_retrieval_does(options: dict[str, Any]) -> None:
    options = dict(options)
    names = ("alpha", "scale", "mini_batch_size")
    stage = {name: options.pop(name) for name in names if name in options}
    stage |= {"learning_rate": 0.0, "epochs": 1, "batch_size": COUNT}
    start = checkpoint(
        **{name: options.pop(name) for name in ("normalized", "prompts") if name in options}
    )
    model = dual(start, **options, training=stage)
    data = examples(2).map(lambda row: {"query": f"{row['query']} kappa"})
    model.fit_examples(data)
    query, positive, *negatives = (data[name][:] for name in data.column_names)
    vectors = [
        model.encode_queries(query),
        model.encode_docs(positive),
        model.encode_docs(sum(negatives, [])),
    ]
    scale = stage.get("scale") or (20.0 if model.similarity == "cosine" else 1.0)
    expected = pair_loss(*map(torch.tensor, vectors), 0.3, scale=scale)
    assert tiny.logged(model, "loss") == [pytest.approx(expected.item(), abs=1e-4)]


# --- training


def test_what_was_learned_is_found(tmp_path: Path) -> None:
    model = dual(miner=miner(), training=LEARN)
    found = []
    for name in ("before", "after"):
        index = FlexIndex(str(tmp_path / name), verbose=False)
        (model.doc_encoder() >> index).index(PASSAGES.to_dict("records"))
        found.append(measured(model.query_encoder() >> index.retriever(num_results=30), TOPICS))
        if name == "before":
            assert model.fit(TOPICS, JUDGED, TOPICS, QRELS) is model
    assert found[0] < 0.5 and found[1] > 0.9
    assert model.training_log[0]["RR@10"] == pytest.approx(found[0])
    assert found[1] == pytest.approx(max(tiny.logged(model, "RR@10")[1:]))
    assert not model.network.training


def test_two_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first from pseudo labels of other queries, the second from labels and pseudo labels."""
    seen = []
    from pyterrier_graph.pair import dual_encoder as module

    train = module.train_dual_encoder

    def spy(network: Any, data: Dataset, options: DualEncoderTraining, run: Any) -> Any:
        log = train(network, data, options, run)
        seen.append((options.alpha, data.to_pandas(), log))
        return log

    monkeypatch.setattr(module, "train_dual_encoder", spy)
    model = dual(
        miner=miner(), training={"epochs": 1, "batch_size": 2}, pretraining=LEARN | {"epochs": 4}
    )
    model.fit(
        TOPICS[:3], JUDGED, TOPICS, QRELS, unlabeled=TOPICS[3:].rename(columns={"docno": "x"})
    )
    assert [alpha for alpha, *_ in seen] == [0.1, 0.0]
    _, pseudo, log = seen[0]
    assert sorted(pseudo["positive"]) == sorted(
        [f"{w} mu" for _, w in WORDS[3:]] + [f"mu {w}" for _, w in WORDS[3:]]
    )
    # the second stage begins where the first ended
    best = max(entry["RR@10"] for entry in log if "RR@10" in entry)
    assert model.training_log[0]["RR@10"] == pytest.approx(best)
    assert best > log[0]["RR@10"]


STAGE: dict[str, Any] = {"epochs": 2, "patience": None}


def in_stages(model: DualEncoder) -> DualEncoder:
    return model.fit_examples(
        examples(), RUN, QRELS, pretraining_examples=examples().select(range(COUNT - 1, -1, -1))
    )


@pytest.fixture(scope="module")
def uninterrupted() -> DualEncoder:
    return in_stages(dual(tiny.checkpoint(), training=STAGE, pretraining=STAGE))


def test_a_training_that_was_interrupted_goes_on(
    tmp_path: Path, uninterrupted: DualEncoder
) -> None:
    """In its second stage, with dropout."""
    options: dict[str, Any] = {"encoder": tiny.checkpoint()}
    options |= {"training": STAGE | {"output_dir": str(tmp_path)}, "pretraining": STAGE}
    model = interrupt(dual(**options), 6, stop, "encode_docs")
    with pytest.raises(KeyboardInterrupt):
        in_stages(model)
    assert len(list((tmp_path / "training").glob("checkpoint-*"))) == 1
    del model.encode_docs
    for resumed in (model, dual(**options)):  # and once more, when it has ended
        in_stages(resumed)
        assert not tiny.learned(resumed.network, tiny.weights(uninterrupted.network))
        assert tiny.logged(resumed, "RR@10")[1:] == tiny.logged(uninterrupted, "RR@10")[1:]
        assert len(tiny.logged(resumed, "RR@10")) == 1 + STAGE["epochs"]


def index_of(vectors: torch.Tensor, folder: Path) -> FlexIndex:
    """An index of the first passages."""
    index = FlexIndex(str(folder / "index.flex"), verbose=False)
    passages = zip(PASSAGES["docno"], vectors.numpy(), strict=False)
    index.index({"docno": docno, "doc_vec": vector} for docno, vector in passages)
    return index


def test_the_query_encoder_learns_for_an_index(tmp_path: Path) -> None:
    """Eq. 12 of GNN-encoder's preprint, against the literal loss; the passages of the index stay as they are."""
    start = dual(training={"epochs": 15, "learning_rate": 0.003, "batch_size": COUNT})
    noise = torch.randn(len(PASSAGES), 16, generator=torch.Generator().manual_seed(1))
    vectors = torch.tensor(start.encode_docs(PASSAGES["text"].tolist())) + noise / 2
    index, made = index_of(vectors, tmp_path), miner().labeled(TOPICS, QRELS)
    batches = IndexedExamples(made, index, seed=0)
    rows = [batches[n] for n in range(len(batches))]
    examples = [(made[n]["positive_docno"], made[n]["negative_1_docno"]) for n in rows]
    assert len(made) == 2 * COUNT and sorted(made[n]["qid"] for n in rows) == [*TOPICS["qid"]]
    batches.draw(1)
    assert rows != [batches[n] for n in range(len(batches))]
    states = dict(zip(PASSAGES["docno"], vectors.double(), strict=True))
    queries = torch.tensor(start.encode_queries([made[n]["query"] for n in rows]))
    expected = reference.retraining_loss(queries.double(), states, examples)
    loss = QueryEncoderModel(start.network, 1.0)(**batches(rows))["loss"]
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    trained = start.apply_attributes(verbose=False)
    trained.fit_query_encoder(index, made, TOPICS, QRELS)
    assert tiny.logged(trained, "loss")[-1] < tiny.logged(trained, "loss")[0] - 0.1
    retriever = trained.query_encoder() >> index.np_retriever(num_results=100)
    assert measured(retriever, TOPICS) == pytest.approx(max(tiny.logged(trained, "RR@10")[1:]))
    assert not tiny.learned(start.network, tiny.weights(dual().network))  # a copy was trained
    with pytest.raises(KeyError, match="is not a passage of the index"):
        trained.fit_query_encoder(index_of(vectors[:9], tmp_path / "other"), made)


def test_separate_encoders(tmp_path: Path) -> None:
    model, text = dual(separate_encoders=True, training={"epochs": 1}), ["alpha beta"]
    start = model.encode_docs(text)
    np.testing.assert_array_equal(model.encode_queries(text), start)
    model.fit_examples(examples(), RUN, QRELS)
    assert not np.allclose(model.encode_queries(text), model.encode_docs(text), atol=1e-3)
    model.save(tmp_path / "model")
    loaded = DualEncoder.load(tmp_path / "model", device="cpu")
    assert loaded.separate_encoders
    plain = SentenceEncoder(str(tmp_path / "model" / "sentence-transformer"), device="cpu")
    for other in (loaded, plain):  # a checkpoint with two encoders keeps both
        np.testing.assert_array_equal(other.encode_queries(text), model.encode_queries(text))
        np.testing.assert_array_equal(other.encode_docs(text), model.encode_docs(text))


def test_pooling(tmp_path: Path) -> None:
    model = dual(tiny.checkpoint(), pooling="cls", separate_encoders=True)
    mean = dual(tiny.checkpoint())
    assert mean.pooling is None and mean.model_name != model.model_name
    states = mean.network.encode(["alpha beta"], output_value="token_embeddings")[0]
    for encode in (model.encode_queries, model.encode_docs):
        np.testing.assert_allclose(encode(["alpha beta"])[0], states[0], atol=1e-5)  # [CLS]
    model.save(tmp_path / "model")
    loaded = DualEncoder.load(tmp_path / "model", device="cpu")
    assert loaded.pooling == "cls"


# --- what cannot be


def test_without_a_miner() -> None:
    with pytest.raises(
        ValueError, match=r"has no miner: give DualEncoder\(miner=HardNegativeMiner"
    ):
        dual().fit(TOPICS, QRELS)
    with pytest.raises(pt.validate.InputValidationError, match="docno"):
        dual().fit_examples(examples(), TOPICS, QRELS)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            examples().remove_columns("positive"),
            "columns query, positive, negative_1 .. negative_n.*got query, negative_1",
        ),
    ],
)
def test_examples_that_cannot_be(wrong: Dataset, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dual().fit_examples(wrong)
    with pytest.raises(ValueError, match=message):  # before anything is trained
        dual(pretraining={"learning_rate": 1e38}).fit_examples(
            wrong, pretraining_examples=examples()
        )


# --- artifacts and copies


def test_encoders_are_equal_when_they_encode_alike(trained: DualEncoder) -> None:
    """Else a trained and an untrained one would share their results in an experiment."""
    copy = pt.inspect.transformer_apply_attributes(trained)
    for encoder in (DualEncoder.query_encoder, DualEncoder.doc_encoder):
        assert encoder(trained) == encoder(copy) and hash(encoder(trained)) == hash(encoder(copy))
        assert encoder(dual()) == encoder(dual()) != encoder(trained)
        assert (
            encoder(dual())
            != encoder(dual(max_passage_tokens=15))
            != encoder(dual(checkpoint(True)))
        )


def test_the_name_follows_the_weights() -> None:
    """Else stored vectors would be taken for those of other weights."""
    model, names = dual(), []
    weight = next(model.network.parameters())
    names.append(model.model_name)
    with torch.no_grad():
        weight[0, 1] += 1e-3
    names.append(model.model_name)
    model.max_query_tokens = 7
    names.append(model.model_name)
    model.fit_examples(examples())
    names.append(model.model_name)
    assert len({*names}) == len(names) == 4
    assert dual().model_name == dual(batch_size=3, verbose=True).model_name == names[0]
    assert dual(dtype="bfloat16").model_name == names[0]  # vectors of either precision serve
