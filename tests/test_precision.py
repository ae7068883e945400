"""dtype: what "auto" stands for, and half precision, in which scores must not tie."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tiny
import torch
from datasets import Dataset
from experiment_tools import pages
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from trainings import interrupt, stop
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

import pyterrier_graph as ptg
from experiments import precision as experiment
from pyterrier_graph.encoders import devices
from pyterrier_graph.encoders.devices import computes_bfloat16, dtype_name, dtype_of, precision
from pyterrier_graph.encoders.token_encoder import TokenEncoder
from pyterrier_graph.models.lgre_losses import LGReLoss

CPU = torch.device("cpu")
LENGTHS = {"max_passage_tokens": 24, "max_query_tokens": 12}
HALVES = ("bfloat16", "float16")
DOCUMENTS = 20
CLASSES = (
    TokenEncoder,
    ptg.DualEncoder,
    ptg.GraphMean,
    ptg.GNNEncoder,
    ptg.GraphMaxSim,
    ptg.HGATReranker,
    ptg.LGReReranker,
    ptg.CrossEncoderReranker,
    ptg.open_folder,
)


@cache
def dual_checkpoint(dense: bool = False) -> str:
    """Folder of a small SentenceTransformer."""
    modules: list[Any] = [Transformer(tiny.checkpoint()), Pooling(16)]
    if dense:
        torch.manual_seed(0)
        modules.append(Dense(16, 16, bias=False))
    folder = mkdtemp(prefix="tiny-dual-")
    SentenceTransformer(modules=[*modules, Normalize()], device="cpu").save(folder, create_model_card=False)
    return folder


@cache
def cross_encoder() -> str:
    """Folder of a small cross-encoder."""
    folder = mkdtemp(prefix="tiny-cross-encoder-")
    config = BertConfig.from_pretrained(tiny.checkpoint(), num_labels=1, initializer_range=0.3)
    torch.manual_seed(1)
    BertForSequenceClassification(config).save_pretrained(folder)
    BertTokenizerFast.from_pretrained(tiny.checkpoint()).save_pretrained(folder)
    return folder


def dual(dtype: Any, **options: Any) -> ptg.DualEncoder:
    return ptg.DualEncoder(dual_checkpoint(), device="cpu", dtype=dtype, verbose=False, **LENGTHS | options)


def tokens(dtype: Any) -> TokenEncoder:
    return TokenEncoder(tiny.checkpoint(), device="cpu", dtype=dtype, **LENGTHS)


def graph_reranker(kind: Any, dtype: Any, **options: Any) -> Any:
    return kind(tiny.graph(DOCUMENTS), tokens(dtype), device="cpu", dtype=dtype, verbose=False, **options)


def text_reranker(kind: Any, dtype: Any, **options: Any) -> Any:
    return kind(options.pop("encoder", cross_encoder()), max_tokens=24, dtype=dtype, verbose=False, **options)


def run() -> pd.DataFrame:
    passages = tiny.run(DOCUMENTS)
    passages = passages[passages["qid"].isin([f"t{number}" for number in range(6)])]
    return passages.assign(text=tiny.graph(DOCUMENTS).texts(tiny.graph(DOCUMENTS).nodes_of(passages["docno"].tolist())))


MODELS: dict[str, Callable[[Any], Any]] = {
    "GraphMaxSim": partial(graph_reranker, ptg.GraphMaxSim),
    "HGAT": partial(graph_reranker, ptg.HGATReranker, config=ptg.HGATConfig(heads=2)),
    "HGAT of the paper": partial(graph_reranker, ptg.HGATReranker, config=ptg.HGATConfig.paper("LB_NS", heads=2)),
    "LGRe": partial(text_reranker, ptg.LGReReranker),
    "LGRe at random": partial(text_reranker, ptg.LGReReranker, config=ptg.LGReConfig(init="random")),
    "cross-encoder": partial(text_reranker, ptg.CrossEncoderReranker),
    "probabilities": partial(text_reranker, ptg.CrossEncoderReranker, probabilities=True),
}

FLOAT16 = [(name, "float16") for name in ("GraphMaxSim", "LGRe", "cross-encoder")]

FLOAT16 = [(name, "float16") for name in ("GraphMaxSim", "LGRe", "cross-encoder")]


# --- what "auto" stands for


@pytest.mark.parametrize("native", [True, False])
def test_auto_is_what_the_hardware_computes_natively(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "computes_bfloat16", lambda device: native)
    expected = torch.bfloat16 if native else torch.float32
    assert dtype_of("auto", CPU) == expected and dtype_name("auto", CPU) == str(expected)[6:]
    with precision("auto", CPU):
        assert (torch.ones(1, 1) @ torch.ones(1, 1)).dtype == expected
    same = dual("bfloat16" if native else "float32").encode_docs(tiny.WORDS)
    np.testing.assert_array_equal(dual("auto").encode_docs(tiny.WORDS), same)


@pytest.mark.parametrize(
    ("device", "answers", "expected"),
    [
        ("cpu", {"cpu._is_amx_tile_supported": False, "cpu._is_avx512_bf16_supported": False}, False),
        ("cpu", {"cpu._is_amx_tile_supported": True, "cpu._is_avx512_bf16_supported": False}, True),
        ("cpu", {"cpu._is_amx_tile_supported": False, "cpu._is_avx512_bf16_supported": True}, True),
        ("cuda", {"cuda.is_bf16_supported": True}, True),
        ("cuda", {"cuda.is_bf16_supported": False}, False),
        ("mps", {}, False),
    ],
)
def test_what_the_hardware_is_asked(
    device: str, answers: dict[str, bool], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, answer in answers.items():
        monkeypatch.setattr(f"torch.{name}", lambda answer=answer, **_: answer)
    assert _computes_bfloat16(torch.device(device)) == expected


_computes_bfloat16 = computes_bfloat16  # imported before the tests replace it


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_auto_is_the_default(kind: Any) -> None:
    assert inspect.signature(kind).parameters["dtype"].default == "auto"


@pytest.mark.parametrize("name", ["GraphMaxSim", "HGAT", "LGRe", "cross-encoder"])
def test_auto_is_the_default_of_a_saved_model(name: str, tmp_path: Path) -> None:
    model = MODELS[name]("float32").save(tmp_path / "saved")
    given = {"graph": model.graph} if hasattr(model, "graph") else {}
    loaded = type(model).load(tmp_path / "saved", device="cpu", verbose=False, **given)
    assert loaded.dtype == "auto" and getattr(loaded.encoder, "dtype", "auto") == "auto"


def test_the_encoder_of_a_saved_model_has_the_same_precision(tmp_path: Path) -> None:
    mean = ptg.GraphMean(tiny.graph(), dual("float32"), folder=tmp_path / "vectors", dtype="float32", verbose=False)
    mean.save(tmp_path / "mean")
    for options, expected in (({}, "auto"), ({"dtype": "bfloat16"}, "bfloat16")):
        loaded = ptg.GraphMean.load(tmp_path / "mean", device="cpu", verbose=False, **options)
        assert loaded.dtype == loaded.encoder.dtype == expected


# --- half precision


@pytest.mark.parametrize(("name", "dtype"), [*((name, "bfloat16") for name in MODELS), *FLOAT16])
def test_scores_in_half_precision(name: str, dtype: str) -> None:
    """They are near those in float32, and have the resolution of float32."""
    whole, half = (MODELS[name](precise)(run())["score"].to_numpy() for precise in ("float32", dtype))
    spread = whole.std()
    assert 0 < np.abs(half - whole).max() < 0.3 * spread
    assert np.corrcoef(half, whole)[0, 1] > 0.99
    assert len(np.unique(half)) >= 0.9 * len(np.unique(whole))
    rounded = torch.from_numpy(half).to(getattr(torch, dtype)).double().numpy()
    assert (rounded != half).mean() > 0.8


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("dense", [False, True])
def test_vectors_in_half_precision(dtype: str, dense: bool) -> None:
    texts = [f"{one} {other}" for one in tiny.WORDS for other in tiny.WORDS]
    options = {"device": "cpu", "verbose": False} | LENGTHS
    both = [ptg.DualEncoder(dual_checkpoint(dense), dtype=given, **options) for given in ("float32", dtype)]
    for whole, half in (
        [model.encode_docs(texts) for model in both],
        [model.encode_queries(texts) for model in both],
        [model.encode_queries_torch(texts).detach().numpy() for model in both],
    ):
        assert half.dtype == np.float32 and not np.array_equal(half, whole)
        assert (half * whole).sum(1).min() > 0.999
        scores = [vectors @ vectors[0] for vectors in (whole, half)]
        assert len(np.unique(scores[1])) >= 0.9 * len(np.unique(scores[0]))


@pytest.mark.parametrize("dtype", HALVES)
def test_token_vectors_in_half_precision(dtype: str) -> None:
    texts = [f"{one} {other}" for one in tiny.WORDS for other in tiny.WORDS]
    whole, half = (tokens(given).encode_passages(texts).values for given in ("float32", dtype))
    assert half.dtype == torch.float32 and (half * whole).sum(1).min() > 0.999
    with precision(dtype, CPU):  # type: ignore[arg-type]
        learned = tokens(dtype).forward_passages(texts).values
    assert learned.dtype == torch.float32 and learned.requires_grad and (learned * whole).sum(1).min() > 0.999


@pytest.mark.parametrize("dtype", HALVES)
def test_contextual_vectors_in_half_precision(dtype: str, tmp_path: Path) -> None:
    """GraphMean adds up and normalizes in float32: with the same vectors, its own are the same."""
    graph, vectors = tiny.graph(DOCUMENTS), None
    for kind, options in ((ptg.GraphMean, {}), (ptg.GNNEncoder, {}), (ptg.GNNEncoder, {"random": True})):
        made = []
        for given in ("float32", dtype):
            model = kind(graph, dual("float32"), folder=tmp_path / "vectors", dtype=given, verbose=False)
            if options:
                torch.manual_seed(0)
                for parameter in model.network.parameters():
                    torch.nn.init.normal_(parameter, std=0.3)
            flex = model.index(tmp_path / f"{kind.__name__}-{given}{len(options)}").flex
            vectors = np.array(flex.payload(return_docnos=False)[0])
            made.append(vectors)
            identity = json.loads((flex.index_path / "pt_meta.json").read_text())["contextual"]["identity"]
            assert identity["dtype"] == given
        whole, half = made
        if kind is ptg.GraphMean:
            np.testing.assert_array_equal(half, whole)
        assert ((half * whole).sum(1) / np.linalg.norm(half, axis=1) / np.linalg.norm(whole, axis=1)).min() > 0.999


def test_vectors_of_another_precision_are_used(tmp_path: Path) -> None:
    graph = ptg.DocumentGraph(tmp_path / "graph").index(tiny.documents(), verbose=False)
    store = ptg.TokenStore(tmp_path / "tokens").build(graph, tokens("bfloat16"), verbose=False)
    assert len(ptg.GraphMaxSim(graph, tokens("float32"), tokens=store, verbose=False)(tiny.run()))
    half = dual("bfloat16")
    index = ptg.GraphMean(graph, half, verbose=False).index(tmp_path / "index.flex")
    files = sorted((tmp_path / "graph.vectors").iterdir())
    whole = dual("float32")
    again = ptg.GraphMean(graph, whole, dtype="float32", verbose=False)
    again.index(tmp_path / "again.flex")
    assert sorted((tmp_path / "graph.vectors").iterdir()) == files
    assert len(ptg.ContextualIndex(index.path, graph, whole)(tiny.topics()))


# --- training


def test_the_loss_of_lgre_is_in_float32() -> None:
    network = MODELS["LGRe"]("float32").network
    inputs = {"input_ids": torch.tensor([[2, 5, 3, 6, 7, 3], [2, 5, 3, 8, 9, 3]])}
    inputs |= {"attention_mask": torch.ones(2, 6, dtype=torch.long)}
    inputs |= {"segments": torch.tensor([[-1, 0, -1, 1, 1, -1]] * 2)}
    for loss in (LGReLoss(), LGReLoss(similarity="means", pair_layers="all")):
        found = []
        for dtype in (torch.float32, torch.bfloat16):
            with torch.autocast("cpu", dtype, enabled=dtype != torch.float32), torch.no_grad():
                output = network(**inputs)
                value = loss(output, inputs["segments"], torch.tensor([True, False]), torch.tensor([0, 0]))
            assert value.dtype == torch.float32
            found.append(value.item())
        assert found[0] != found[1] and found[1] == pytest.approx(found[0], abs=0.02)
        assert torch.tensor(found[1]).bfloat16().item() != found[1]


def trained(name: str, dtype: str, **training: Any) -> Any:
    """A model after one epoch."""
    training = {"epochs": 1, "batch_size": 4} | training
    if name == "DualEncoder":
        model = dual(dtype, training=ptg.DualEncoderTraining(**training))
        examples = {"query": tiny.WORDS, "positive": [f"{word} mu" for word in tiny.WORDS]}
        return model.fit_examples(Dataset.from_dict(examples))
    if name == "GNNEncoder":
        graph = ptg.DocumentGraph(Path(mkdtemp()) / "graph").index(tiny.documents(), verbose=False)
        options = ptg.GNNEncoderTraining(**training)
        model = ptg.GNNEncoder(graph, dual(dtype), training=options, device="cpu", dtype=dtype, verbose=False)
        return model.fit(tiny.topics(), tiny.qrels())
    options = {"HGAT": ptg.HGATTraining, "LGRe": ptg.LGReTraining, "cross-encoder": ptg.CrossEncoderTraining}
    model = MODELS[name](dtype)
    model.training = options[name](**training)
    return model.fit(run(), tiny.qrels(DOCUMENTS))


TRAINED = ("DualEncoder", "GNNEncoder", "HGAT", "LGRe", "cross-encoder")


@pytest.mark.parametrize("name", TRAINED)
def test_training_in_half_precision(name: str) -> None:
    torch.manual_seed(0)
    losses = [
        [e["loss"] for e in trained(name, dtype).training_log if "loss" in e] for dtype in ("float32", "bfloat16")
    ]
    assert losses[0] != losses[1] and losses[1] == pytest.approx(losses[0], rel=0.15)


@pytest.mark.parametrize("name", TRAINED)
def test_float16_needs_a_gpu_for_training(name: str) -> None:
    with pytest.raises(ValueError, match=r"dtype='float16' needs a GPU: on a CPU use 'auto', 'bfloat16' or 'float32'"):
        trained(name, "float16")


def test_a_training_in_another_precision_is_not_continued(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"checkpoints of another training \(other: dtype\)"):
        for dtype in ("bfloat16", "float32"):
            trained("cross-encoder", dtype, output_dir=str(tmp_path))


@pytest.mark.parametrize("end", ["regular", "interrupted"])
def test_training_does_not_fix_the_precision(end: str) -> None:
    model = dual("bfloat16", training=ptg.DualEncoderTraining(epochs=1, batch_size=4))
    examples = Dataset.from_dict({"query": tiny.WORDS, "positive": [f"{word} mu" for word in tiny.WORDS]})
    if end == "regular":
        model.fit_examples(examples)
    else:
        topics = tiny.topics().merge(tiny.run()[["qid", "docno"]]).assign(text="alpha")
        interrupt(model, 2, stop, "encode_docs")
        with pytest.raises(KeyboardInterrupt):
            model.fit_examples(examples, topics, tiny.qrels())
        del model.encode_docs
    other = dual("float32")
    other.network.load_state_dict(model.network.state_dict())
    model.dtype = "float32"
    np.testing.assert_array_equal(model.encode_docs(tiny.WORDS), other.encode_docs(tiny.WORDS))


@pytest.mark.slow
def test_the_experiment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(experiment, "open_collection", lambda options: pages())
    given = ["pages", "--encoder", tiny.checkpoint(positions=256), "--output", str(tmp_path), "--triples", "4"]
    given += ["--documents", "200"]  # an encoder with random weights finds few relevant passages
    table = experiment.main([*given, "--parts", "inference", "training"])
    assert (table["time"] > 0).all() and table[["float32", "bfloat16"]].stack().dropna().between(0, 1).all()
    assert table.loc[table["model"].eq("MaxSim"), "difference"].abs().item() < 0.2
    assert {*table["trained"].dropna()} == {*experiment.TRAINED}
