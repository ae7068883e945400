"""Indexes and vectors that are encoded once: written chunk by chunk, interrupted, copied, refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyterrier as pt
import pytest
import tiny
from pyterrier_dr import FlexIndex

from pyterrier_graph.graph_mean import contextual_index
from pyterrier_graph.graph_mean.contextual_index import write_index
from pyterrier_graph.storage.artifact import read_meta

PASSAGES, DIMENSION = 150, 8
IDENTITY = {"network": "sha-1", "graph": {"sha256": "sha-2", "edges": 3}}
DOCNOS = [f"d{number // 3}x{number % 3}" for number in range(PASSAGES)]
BASE = np.random.default_rng(0).normal(size=(PASSAGES, DIMENSION)).astype(np.float32)

Vectors = Callable[[np.ndarray], Any]


def flex(path: Path, vectors: np.ndarray = BASE, docnos: list[str] = DOCNOS) -> FlexIndex:
    index = FlexIndex(str(path), verbose=False)
    return index.index(
        {"docno": docno, "doc_vec": vector} for docno, vector in zip(docnos, vectors, strict=True)
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> FlexIndex:
    return flex(tmp_path_factory.mktemp("base") / "base.flex")


def indexed(base: FlexIndex, path: Path, vectors_of: Vectors) -> FlexIndex:
    write_index(base, path, vectors_of, identity=IDENTITY, verbose=False)
    return FlexIndex(str(path), verbose=False)


def shifted(numbers: np.ndarray) -> np.ndarray:
    return BASE[numbers] * 2 + np.arange(DIMENSION, dtype=np.float32)


class Calls:
    """Remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __call__(self, numbers: np.ndarray) -> Any:
        self.asked.append(numbers.tolist())
        return shifted(numbers)


# --- what is written


def test_an_ordinary_index(
    base: FlexIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contextual_index, "PASSAGES_AT_ONCE", 40)
    calls = Calls()
    index = indexed(base, tmp_path / "new.flex", calls)
    assert calls.asked == [
        [*range(start, min(start + 40, PASSAGES))] for start in range(0, PASSAGES, 40)
    ]
    docnos, vectors, _ = index.payload()
    assert list(docnos) == DOCNOS
    assert vectors.tobytes() == shifted(np.arange(PASSAGES)).tobytes()
    assert docnos.inv["d4x1"] == 13
    assert [*tiny.contents(index.path)] == ["docnos.npids", "pt_meta.json", "vecs.f4"]
    assert (index.path / "docnos.npids").read_bytes() == (base.path / "docnos.npids").read_bytes()
    loaded = pt.Artifact.load(str(index.path))
    assert isinstance(loaded, FlexIndex) and len(loaded) == PASSAGES
    assert read_meta(index.path)["contextual"]["identity"] == IDENTITY
