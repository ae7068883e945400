"""Search in large indexes by codes: what it finds, what is written, and texts in any order of the passages."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny
from test_contextual_index import flex
from test_graph_index import TOPICS, made

import pyterrier_graph as ptg
from pyterrier_graph.checks import SpeedWarning
from pyterrier_graph.encoders.stored_vectors import encoder_name
from pyterrier_graph.graph_mean import contextual_index, nearest
from pyterrier_graph.graph_mean.contextual_index import encoder_of, write_index

pytest.importorskip("faiss")
PASSAGES, WIDTH = 3000, 16
RANDOM = np.random.default_rng(0)
CENTERS = RANDOM.normal(size=(40, WIDTH))
VECTORS = (
    CENTERS[RANDOM.integers(40, size=PASSAGES)] + RANDOM.normal(size=(PASSAGES, WIDTH))
).astype(np.float32)
QUERIES = pd.DataFrame({"qid": [str(n) for n in range(30)], "query": "alpha"})
QUERIES["query_vec"] = [*(CENTERS[:30] + RANDOM.normal(size=(30, WIDTH))).astype(np.float32)]


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contextual_index, "LARGE", 5)


def index(folder: Path) -> ptg.ContextualIndex:
    base = flex(folder / "base.flex", VECTORS, [f"d{n}" for n in range(PASSAGES)])
    identity = {"model": "GraphMean", "encoder": encoder_name(encoder_of(tiny.checkpoint()))}
    path = folder / "index.flex"
    write_index(base, path, VECTORS.__getitem__, identity=identity, verbose=False)
    return ptg.ContextualIndex(path, encoder=tiny.checkpoint())


def test_approximate_results_are_nearly_the_exact_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nearest, "MIN_CANDIDATES", 100)
    expected = np.stack(QUERIES["query_vec"]) @ VECTORS.T
    made = index(tmp_path)
    exact = made.retriever(20, exact=True)(QUERIES)
    np.testing.assert_allclose(exact["score"], -np.sort(-expected)[:, :20].ravel(), rtol=1e-5)
    found = made.retriever(20)(QUERIES)
    literal = expected[found["qid"].astype(int), found["docno"].str[1:].astype(int)]
    np.testing.assert_allclose(found["score"], literal, rtol=1e-5)
    common = found.merge(exact, on=["qid", "docno"])
    assert 0.9 <= len(common) / len(exact) < 1  # else nothing would be tested
    monkeypatch.setattr(nearest, "MIN_CANDIDATES", PASSAGES)
    monkeypatch.setattr(nearest, "SEARCHED", nearest.LISTS)
    pd.testing.assert_frame_equal(index(tmp_path / "all lists").retriever(20)(QUERIES), exact)
    assert repr(made.retriever(20, exact=True)).endswith("retriever(20, exact=True)")


def test_all_passages_are_found_if_all_are_asked_for(tmp_path: Path) -> None:
    made, one = index(tmp_path), QUERIES.head(1)
    exact = made.retriever(PASSAGES, exact=True)
    pd.testing.assert_frame_equal(made.retriever(PASSAGES)(one), exact(one))


def test_a_large_graph_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = made(tmp_path / "index").verify()
    approximate, exact = (index.dense(exact=exact) for exact in (False, True))
    pd.testing.assert_frame_equal(approximate(TOPICS), exact(TOPICS))
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.warns(SpeedWarning, match="searched exactly: approximate search needs FAISS, pip"):
        assert not (made(tmp_path / "other").contextual.path / contextual_index.CODES).exists()
