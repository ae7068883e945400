"""dtype: what "auto" stands for, and half precision, in which scores must not tie."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tiny
import torch
from test_dual_encoder import checkpoint
from test_models import MODELS as CONTRACT
from test_models import TRAINED
from tiny import cross_encoder

import pyterrier_graph as ptg
from pyterrier_graph.encoders import checkpoints
from pyterrier_graph.encoders.checkpoints import dtype_name, dtype_of, precision
from pyterrier_graph.encoders.token_encoder import TokenEncoder

CPU = torch.device("cpu")
LENGTHS = {"max_passage_tokens": 24, "max_query_tokens": 12}
HALVES = ("bfloat16", "float16")
DOCUMENTS = 20


def dual(dtype: Any, **options: Any) -> ptg.DualEncoder:
    return ptg.DualEncoder(
        checkpoint(normalized=True), device="cpu", dtype=dtype, verbose=False, **LENGTHS | options
    )


def tokens(dtype: Any) -> TokenEncoder:
    return TokenEncoder(tiny.checkpoint(), device="cpu", dtype=dtype, **LENGTHS)


def graph_reranker(kind: Any, dtype: Any, **options: Any) -> Any:
    return kind(
        tiny.graph(DOCUMENTS), tokens(dtype), device="cpu", dtype=dtype, verbose=False, **options
    )


def text_reranker(kind: Any, dtype: Any, **options: Any) -> Any:
    return kind(
        options.pop("encoder", cross_encoder()),
        max_tokens=24,
        dtype=dtype,
        verbose=False,
        **options,
    )


def run() -> pd.DataFrame:
    passages = tiny.run(DOCUMENTS)
    passages = passages[passages["qid"].isin([f"t{number}" for number in range(3)])]
    return passages.assign(
        text=tiny.graph(DOCUMENTS).texts(tiny.graph(DOCUMENTS).nodes_of(passages["docno"].tolist()))
    )


MODELS: dict[str, Callable[[Any], Any]] = {
    "GraphMaxSim": partial(graph_reranker, ptg.GraphMaxSim),
    "HGAT": partial(graph_reranker, ptg.HGATReranker, config=ptg.HGATConfig(heads=2)),
    "LGRe": partial(text_reranker, ptg.LGReReranker),
    "cross-encoder": partial(text_reranker, ptg.CrossEncoderReranker),
}


# --- what "auto" stands for


@pytest.mark.parametrize("native", [True, False])
def test_auto_is_what_the_hardware_computes_natively(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "computes_bfloat16", lambda device: native)
    expected = torch.bfloat16 if native else torch.float32
    assert dtype_of("auto", CPU) == expected and dtype_name("auto", CPU) == str(expected)[6:]
    with precision("auto", CPU):
        assert (torch.ones(1, 1) @ torch.ones(1, 1)).dtype == expected
    same = dual("bfloat16" if native else "float32").encode_docs(tiny.WORDS)
    np.testing.assert_array_equal(dual("auto").encode_docs(tiny.WORDS), same)


# --- half precision


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "bfloat16") for name in MODELS), ("cross-encoder", "float16")]
)
def test_scores_in_half_precision(name: str, dtype: str) -> None:
    """They are near those in float32, and have the resolution of float32."""
    whole, half = (
        MODELS[name](precise)(run())["score"].to_numpy() for precise in ("float32", dtype)
    )
    spread = whole.std()
    assert 0 < np.abs(half - whole).max() < 0.3 * spread
    assert np.corrcoef(half, whole)[0, 1] > 0.99
    assert len(np.unique(half)) >= 0.9 * len(np.unique(whole))
    rounded = torch.from_numpy(half).to(getattr(torch, dtype)).double().numpy()
    assert (rounded != half).mean() > 0.8


@pytest.mark.parametrize("dtype", HALVES)
def test_vectors_in_half_precision(dtype: str) -> None:
    texts = [f"{one} {other}" for one in tiny.WORDS for other in tiny.WORDS]
    both = [dual(given) for given in ("float32", dtype)]
    for whole, half in (
        [model.encode_docs(texts) for model in both],
        [model.encode_queries(texts) for model in both],
    ):
        assert half.dtype == np.float32 and not np.array_equal(half, whole)
        assert (half * whole).sum(1).min() > 0.999
        scores = [vectors @ vectors[0] for vectors in (whole, half)]
        assert len(np.unique(scores[1])) >= 0.9 * len(np.unique(scores[0]))


# --- training


def trained(name: str, dtype: str) -> Any:
    """A model of the contract after one epoch."""
    torch.manual_seed(0)
    return CONTRACT[name].make(dtype=dtype).fit(*CONTRACT[name].fit)


@pytest.mark.filterwarnings("ignore:training did not improve")
@pytest.mark.parametrize("name", TRAINED)
def test_training_in_half_precision(name: str) -> None:
    losses = [tiny.logged(trained(name, dtype), "loss") for dtype in ("float32", "bfloat16")]
    assert losses[1] == pytest.approx(losses[0], rel=0.15)
    assert (losses[0] == losses[1]) == (
        name == "GNNEncoder"
    )  # whose attention is the mean at first


@pytest.mark.parametrize("name", ["DualEncoder", "HGATReranker"])
def test_float16_needs_a_gpu_for_training(name: str) -> None:
    with pytest.raises(ValueError, match="dtype='float16' needs a GPU"):
        trained(name, "float16")
