"""The late-interaction index against exact scores of all passages."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pyterrier_graph as ptg
from pyterrier_graph.graph_maxsim import index as index_module

WEIGHTS = {"title": 0.9, "title/title": 0.7, "order": 0.5, "order_i": 0.0, "titles": 0.3}
ALL = 10_000


@cache
def folder() -> Path:
    return Path(mkdtemp(prefix="late-interaction-"))


@cache
def graph() -> ptg.DocumentGraph:
    return ptg.DocumentGraph(folder() / "graph").index(tiny.documents())


@cache
def tokens() -> ptg.TokenStore:
    return ptg.TokenStore(folder() / "tokens", verbose=False).build(graph(), tiny.encoder())


@cache
def index() -> ptg.LateInteractionIndex:
    return ptg.LateInteractionIndex(folder() / "index", verbose=False).index(tokens())


def maxsim(**options: Any) -> ptg.GraphMaxSim:
    """A GraphMaxSim with stored tokens."""
    return ptg.GraphMaxSim(
        graph(),
        tiny.encoder(),
        **{"weights": WEIGHTS, "tokens": tokens(), "verbose": False} | options,
    )


def hgat(**options: Any) -> ptg.HGATReranker:
    shape = {"heads": 2, "init": "random", "dimension": 8, "relations": ("title", "order")}
    config = ptg.HGATConfig(**shape | options)
    return ptg.HGATReranker(graph(), tiny.encoder(), config=config, tokens=tokens(), verbose=False)


def retriever(num_results: int = 3, **options: Any) -> pt.Transformer:
    return index().retriever(maxsim(), num_results, **{"nearest": ALL} | options)


def assert_same_ranking(found: pd.DataFrame, reranker: pt.Transformer, num_results: int) -> None:
    """Compares with the scores of all passages, and the passages where scores do not tie."""
    scored = reranker(tiny.run())
    expected = scored[scored["rank"] < num_results].sort_values(["qid", "rank"], ignore_index=True)
    np.testing.assert_allclose(found["score"], expected["score"], atol=1e-5)
    assert found["qid"].tolist() == expected["qid"].tolist()
    for qid, part in expected.groupby("qid"):
        clear = part[part["score"] > part["score"].min() + 1e-5]
        assert set(clear["docno"]) <= set(found.loc[found["qid"] == qid, "docno"])


@pytest.mark.parametrize("weights", [WEIGHTS, {}])
def test_retrieving_is_reranking_everything(weights: dict[str, float]) -> None:
    reranker = maxsim(weights=weights)
    found = index().retriever(reranker, 5, nearest=ALL)
    assert_same_ranking(found(tiny.topics()), reranker, 5)
    reranker.weights = {"title": 1.0}  # without a new index
    assert_same_ranking(found(tiny.topics()), reranker, 5)


@pytest.mark.parametrize("variant", ["NO_LB", "NO_LB_NS"])
def test_hgat_retrieves(tmp_path: Path, variant: str) -> None:
    reranker = hgat(variant=variant)
    reranker.contextualized = reranker.contextualize(tmp_path / "contextualized")
    made = ptg.LateInteractionIndex(tmp_path / "index", verbose=False).index(
        reranker.contextualized
    )
    found = made.retriever(reranker, 18, nearest=ALL)
    assert_same_ranking(found(tiny.topics()), reranker, 18)


def test_hgat_with_direct_matches_retrieves_by_its_tokens() -> None:
    reranker = hgat(init="identity", matches=WEIGHTS)
    with torch.no_grad():
        reranker.network.matches.importance.normal_()  # learned
        reranker.network.matches.by_token.normal_(std=0.1)
    found = index().retriever(reranker, 18, nearest=ALL)
    assert_same_ranking(found(tiny.topics()), reranker, 18)
    reranker.tokens = None
    with pytest.raises(ValueError, match="nothing stored to search: give it tokens="):
        index().retriever(reranker)


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 40), st.integers(1, 6))
def test_scores_are_exact_whatever_is_found(nearest: int, num_results: int) -> None:
    found = retriever(num_results, nearest=nearest)(tiny.topics())
    exact = maxsim()(tiny.run()).set_index(["qid", "docno"])["score"]
    np.testing.assert_allclose(
        found["score"], exact.loc[pd.MultiIndex.from_frame(found[["qid", "docno"]])], atol=1e-5
    )
    assert (found.groupby("qid")["score"].diff().dropna() <= 0).all()
    assert (
        found.groupby("qid")["rank"]
        .apply(list)
        .map(lambda ranks: ranks == [*range(len(ranks))])
        .all()
    )


def test_an_approximate_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all of its lists searched, it finds nearly what an exact one does."""
    monkeypatch.setattr(index_module, "default_factory", lambda count, dimension: "IVF2,PQ8x4fs")
    made = ptg.LateInteractionIndex(tmp_path / "index", verbose=False).index(tokens())
    assert made.meta["factory"] == "IVF2,PQ8x4fs" and len(made) == tokens().meta["tokens"]
    assert_same_ranking(made.retriever(maxsim(), 18, nearest=ALL)(tiny.topics()), maxsim(), 18)


TestContract = pt.testing.transformer_test_class(retriever)


def test_an_index_opens_again() -> None:
    again = ptg.LateInteractionIndex(index().path)
    pd.testing.assert_frame_equal(
        again.retriever(maxsim(), 3)(tiny.topics()), retriever(nearest=1000)(tiny.topics())
    )
    assert again.verify() is again
    with pytest.raises(FileExistsError, match="exists already"):
        index().index(tokens())


def titled() -> ptg.TokenStore:
    return ptg.TokenStore(mkdtemp(), verbose=False).build(graph(), tiny.encoder(), titles=True)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: index().retriever("maxsim"), TypeError, "a GraphMaxSim or an HGATReranker"),  # type: ignore[arg-type]
        (lambda: index().retriever(maxsim(tokens=None)), ValueError, "give it tokens="),
        (lambda: index().retriever(hgat()), ValueError, "contextualize"),
        (
            lambda: index().retriever(maxsim(tokens=titled())),
            ValueError,
            "holds other vectors .*titles",
        ),
        # type: ignore[arg-type]
        (lambda: retriever()(pd.DataFrame([{"qid": "1", "query": " "}])), ValueError, "query"),
    ],
)
def test_wrong_arguments_are_named(
    call: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()
