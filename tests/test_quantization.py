"""Vectors in few bits: what comes back, what is refused, and what a reader needs."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from pyterrier_graph import GraphMaxSim, TokenStore
from pyterrier_graph.encoders.quantization import CODEBOOKS, VectorQuantizer

BITS = [4, 2, 1]


def gaussian(count: int, dimension: int = 16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, dimension), dtype=np.float32)


@pytest.fixture(scope="module")
def faiss() -> None:
    pytest.importorskip("faiss", reason="centroids are learned by FAISS")


@pytest.mark.parametrize("bits", BITS)
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(0, 40))
def test_each_part_becomes_its_nearest_centroid(faiss: None, bits: int, seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    quantizer = VectorQuantizer(random.standard_normal((3, 256, 8 // bits), dtype=np.float32))
    vectors = gaussian(count, quantizer.dimension, seed)
    codes = quantizer.encode(vectors)
    assert codes.shape == (count, quantizer.width) and quantizer.width * 8 == quantizer.dimension * bits
    parts = vectors.reshape(count, 3, 1, 8 // bits)
    distances = ((parts - quantizer.codebooks) ** 2).sum(-1)  # to each centroid of each part
    error = ((quantizer.decode(codes).numpy().reshape(count, 3, 8 // bits) - parts[:, :, 0]) ** 2).sum(-1)
    np.testing.assert_allclose(error, distances.min(-1), atol=1e-5)


def test_more_bits_lose_less(faiss: None) -> None:
    vectors = gaussian(1500)
    errors = []
    for bits in BITS:
        quantizer = VectorQuantizer.fit(vectors, bits)
        assert (quantizer.bits, quantizer.width) == (bits, 16 * bits // 8)
        errors.append(float(((quantizer.decode(quantizer.encode(vectors)).numpy() - vectors) ** 2).mean()))
    assert errors[0] < 0.02 < errors[1] < 0.15 < errors[2] < 0.4


def test_few_vectors_come_back_as_they_are(faiss: None) -> None:
    vectors = gaussian(20)
    quantizer = VectorQuantizer.fit(vectors, 2)
    np.testing.assert_allclose(quantizer.decode(quantizer.encode(vectors)).numpy(), vectors, atol=2e-3)
    assert VectorQuantizer.fit(vectors[:0], 2).encode(vectors[:0]).shape == (0, 4)


def test_the_same_sample_gives_the_same_centroids(faiss: None) -> None:
    first, second = (VectorQuantizer.fit(gaussian(500), 4).codebooks for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_codes_do_not_depend_on_what_is_encoded_together(faiss: None) -> None:
    vectors = gaussian(500)
    quantizer = VectorQuantizer.fit(vectors, 4)
    one_by_one = np.concatenate([quantizer.encode(vectors[row : row + 1]) for row in range(50)])
    np.testing.assert_array_equal(quantizer.encode(vectors)[:50], one_by_one)


def test_stored_centroids_are_enough_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quantizer = VectorQuantizer(gaussian(3 * 256, 4).reshape(3, 256, 4))
    quantizer.save(tmp_path)
    monkeypatch.setitem(sys.modules, "faiss", None)
    codes = np.random.default_rng(0).integers(256, size=(70, 3), dtype=np.uint8)
    expected = quantizer.codebooks[np.arange(3), codes].reshape(70, 12)
    for again in (VectorQuantizer.load(tmp_path), pickle.loads(pickle.dumps(quantizer))):
        np.testing.assert_array_equal(again.decode(codes).numpy(), expected)
    assert again.decode(codes[:0]).shape == (0, 12) and again.decode(codes).dtype == torch.float32
    with pytest.raises(ImportError, match=r"\[faiss\]"):
        again.encode(gaussian(1, 12))


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="bits must be"):
        VectorQuantizer.fit(gaussian(10), 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="multiple of 8, got 12"):
        VectorQuantizer.fit(gaussian(10, 12), 1)
    quantizer = VectorQuantizer(np.zeros((3, 256, 4), dtype=np.float32))
    with pytest.raises(ValueError, match=r"shape \(any number, 12\), got \(2, 16\)"):
        quantizer.encode(gaussian(2))
    with pytest.raises(ValueError, match="codes must be uint8"):
        quantizer.decode(np.zeros((2, 3), dtype=np.int64))
    with pytest.raises(ValueError, match="missing or damaged"):
        VectorQuantizer.load(tmp_path)
    for wrong in (np.full((3, 256, 4), np.nan, dtype=np.float32), np.zeros((3, 255, 4), dtype=np.float32)):
        save_file({"codebooks": wrong}, tmp_path / CODEBOOKS)
        with pytest.raises(ValueError, match="codebooks must be finite"):
            VectorQuantizer.load(tmp_path)
    (tmp_path / CODEBOOKS).write_bytes(b"no")
    with pytest.raises(ValueError, match="missing or damaged"):
        VectorQuantizer.load(tmp_path)


def test_a_store_in_few_bits(faiss: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, encoder = tiny.graph(), tiny.encoder()
    exact = TokenStore(tmp_path / "exact").build(graph, encoder, verbose=False)
    first = TokenStore(tmp_path / "first").build(graph, encoder, bits=4, verbose=False)
    again = TokenStore(tmp_path / "again").build(graph, encoder, bits=4, verbose=False)
    assert first.meta["bits"] == 4 and first.meta["file_sha256"] == again.meta["file_sha256"]
    assert 4 * first.meta["files"]["tokens.u1"] == exact.meta["files"]["tokens.f2"]
    monkeypatch.setitem(sys.modules, "faiss", None)
    nodes = np.array([3, 0, 3, graph.num_nodes - 1])
    there, here = TokenStore(tmp_path / "first").states(nodes), exact.states(nodes)
    assert torch.equal(there.offsets, here.offsets)
    torch.testing.assert_close(there.values, here.values, atol=0.01, rtol=0.01)  # hardly more tokens than centroids
    assert first.ids(nodes).indices.tolist() == exact.ids(nodes).indices.tolist()
    ranked = [GraphMaxSim(graph, encoder, tokens=store, verbose=False)(tiny.run()) for store in (exact, first)]
    np.testing.assert_allclose(*(frame.sort_values(["qid", "docno"])["score"] for frame in ranked), atol=0.05)


def test_a_store_without_faiss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ImportError, match=r"\[faiss\]"):
        TokenStore(tmp_path / "store").build(tiny.graph(), tiny.encoder(), bits=2, verbose=False)
    assert not [*tmp_path.iterdir()]
