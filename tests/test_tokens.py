"""Token matrices, the encoder that makes them, and the files that keep them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Normalize

from pyterrier_graph.encoders.token_encoder import (
    TokenEncoder,
    TokenStates,
)
from pyterrier_graph.encoders.token_store import TokenStore

LENGTHS = st.lists(st.integers(0, 4), max_size=6)


def matrices_of(lengths: list[int], dimension: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(lengths))
    return [torch.randn(length, dimension, generator=generator) for length in lengths]


# --- TokenStates


@given(LENGTHS)
def test_states_are_the_matrices_one_below_the_other(lengths: list[int]) -> None:
    matrices = matrices_of(lengths)
    states = TokenStates.pack(matrices, torch.zeros(0, 3))
    assert len(states) == len(matrices)
    assert states.lengths.tolist() == lengths
    assert all(torch.equal(states[node], matrix) for node, matrix in enumerate(matrices))
    places = [(node, position) for node, length in enumerate(lengths) for position in range(length)]
    assert list(zip(states.row_index.tolist(), states.position.tolist(), strict=True)) == places


@given(LENGTHS.filter(len), st.data())
def test_selecting_states(lengths: list[int], data: st.DataObject) -> None:
    nodes = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=8))
    matrices = matrices_of(lengths)
    states = TokenStates.pack(matrices, torch.zeros(0, 3))
    chosen = states.select(torch.tensor(nodes, dtype=torch.long))
    again = TokenStates.pack([matrices[node] for node in nodes], torch.zeros(0, 3))
    assert torch.equal(chosen.values, again.values)
    assert torch.equal(chosen.offsets, again.offsets)


# --- TokenEncoder


def test_each_text_has_its_unit_vectors() -> None:
    texts = ["alpha beta", "", "gamma", "  \n", "alpha beta", "delta " * 200]
    states = tiny.encoder().encode_passages(texts)
    assert states.lengths.tolist() == [4, 0, 3, 0, 4, 24]  # [CLS] and [SEP] count
    torch.testing.assert_close(states.values.norm(dim=1), torch.ones(len(states.values)))
    assert torch.equal(states[0], states[4])
    for node, text in enumerate(texts):
        alone = tiny.encoder().encode_passages([text])
        torch.testing.assert_close(alone.values, states[node], atol=1e-6, rtol=0)
        assert len(tiny.encoder().tokens(text)) == len(alone.values) or not text.strip()
    assert len(tiny.encoder().encode_passages([])) == 0


def test_queries_are_cut_at_their_own_length() -> None:
    assert tiny.encoder().encode_queries(["alpha " * 99, "alpha"]).lengths.tolist() == [12, 3]
    assert tiny.encoder().tokens("alpha beta !", query=True) == [
        "[CLS]",
        "alpha",
        "beta",
        "[UNK]",
        "[SEP]",
    ]


def test_forward_has_the_same_values_and_gradients() -> None:
    encoder, texts = tiny.encoder(), ["gamma delta", "", "alpha " * 99, "gamma delta"]
    for forward, encode in (
        (encoder.forward_passages, encoder.encode_passages),
        (encoder.forward_queries, lambda texts: encoder.encode_queries([t or "mu" for t in texts])),
    ):
        made = forward(
            [text or "mu" for text in texts] if forward == encoder.forward_queries else texts
        )
        torch.testing.assert_close(made.values, encode(texts).values, atol=1e-6, rtol=0)
        assert torch.equal(made.offsets, encode(texts).offsets)
        assert made.values.requires_grad
    assert encoder.forward_passages(["", " "]).lengths.tolist() == [0, 0]


def test_prompts_count_as_tokens_and_vectors_are_normalized_where_the_model_does_not() -> None:
    plain = tiny.encoder().network
    prompts = {"query": "alpha ", "document": "beta gamma "}
    network = MultiVectorEncoder(modules=[plain[0], plain[1]], prompts=prompts, device="cpu")
    try:
        encoder = TokenEncoder(network, max_passage_tokens=6, max_query_tokens=5)
        states = encoder.encode_passages(["mu", "mu " * 9])
        assert states.lengths.tolist() == [5, 6]
        assert encoder.tokens("mu") == ["[CLS]", "beta", "gamma", "mu", "[SEP]"]
        assert encoder.tokens("mu", query=True) == ["[CLS]", "alpha", "mu", "[SEP]"]
        torch.testing.assert_close(states.values.norm(dim=1), torch.ones(11))
        torch.testing.assert_close(encoder.forward_passages(["mu"]).values, states[0])
    finally:
        plain[0].document_length, plain[0].query_length = 24, 12


def test_a_checkpoint_with_a_projection_keeps_it(tmp_path: Path) -> None:
    reduced = tiny.encoder().reduced([" ".join(tiny.WORDS)], 4)
    reduced.network.save(str(tmp_path / "reduced"), create_model_card=False)
    again = TokenEncoder(
        str(tmp_path / "reduced"), max_passage_tokens=24, max_query_tokens=12, device="cpu"
    )
    assert again.dimension == 4
    assert again.fingerprint() == reduced.fingerprint()
    texts = ["alpha", "kappa lambda"]
    torch.testing.assert_close(
        again.encode_passages(texts).values, reduced.encode_passages(texts).values
    )


def test_reduced_vectors_keep_the_cosines_as_far_as_they_can() -> None:
    encoder = tiny.encoder()
    sample = [
        f"{a} {b} {c}" for a, b, c in zip(tiny.WORDS, tiny.WORDS[1:], tiny.WORDS[2:], strict=False)
    ]
    full = encoder.encode_passages(sample).values
    reduced = encoder.reduced(sample, 15)
    vectors = reduced.encode_passages(sample).values
    assert reduced.dimension == vectors.shape[1] == 15
    assert any(isinstance(module, Normalize) for module in reduced.network)
    # onto the leading right singular vectors: no other projection of that rank keeps more of the matrix
    directions = np.linalg.svd(full.numpy(), full_matrices=False)[2][:15]
    projected = full.numpy() @ directions.T
    projected /= np.linalg.norm(projected, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors @ vectors.T, projected @ projected.T, atol=1e-4)
    assert (vectors @ vectors.T - full @ full.T).abs().max() < 0.05


@pytest.fixture(scope="module")
def colbert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in the format of Stanford ColBERT, whose queries have 10 tokens."""
    folder = tmp_path_factory.mktemp("checkpoints") / "colbert"
    shutil.copytree(tiny.checkpoint(("[unused0]", "[unused1]", *tiny.WORDS)), folder)
    (folder / "artifact.metadata").write_text(json.dumps({"query_maxlen": 10, "doc_maxlen": 40}))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["HF_ColBERT"]}))
    weights = {
        f"bert.{name}": value for name, value in load_file(folder / "model.safetensors").items()
    }
    projection = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    save_file(weights | {"linear.weight": projection}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("most", "expanded", "lengths"),
    [
        (6, None, [6, 6, 6]),
        (10, None, [10, 10, 10]),
        (20, None, [10, 20, 11]),
        (20, 18, [18, 20, 18]),
    ],
)
def test_colbert_expands_short_queries_and_keeps_long_ones(
    colbert: Path, most: int, expanded: int | None, lengths: list[int]
) -> None:
    sizes = {"max_query_tokens": most, "expanded_query_tokens": expanded}
    encoder = TokenEncoder(colbert, max_passage_tokens=30, **sizes, device="cpu")
    texts = ["alpha", "alpha beta " * 20, "mu " * 8]
    queries = encoder.encode_queries(texts)
    assert encoder.dimension == 8 and queries.lengths.tolist() == lengths
    assert encoder.tokens("alpha", query=True)[:4] == ["[CLS]", "[unused0]", "alpha", "[SEP]"]
    assert encoder.tokens("alpha", query=True)[4:] == ["[MASK]"] * (min(most, expanded or 10) - 4)
    torch.testing.assert_close(
        encoder.forward_queries(texts).values, queries.values, atol=1e-6, rtol=0
    )
    if most == 10:  # these are the lengths of the checkpoint, and so are the vectors
        original = MultiVectorEncoder(str(colbert), device="cpu").encode_query(texts)
        torch.testing.assert_close(queries.values, torch.cat(list(original)), atol=1e-6, rtol=0)


def test_the_fingerprint_tells_weights_and_lengths_apart() -> None:
    same, other, shorter = (
        TokenEncoder(
            tiny.checkpoint(), max_passage_tokens=length, max_query_tokens=12, device="cpu"
        )
        for length in (24, 24, 20)
    )
    assert same.fingerprint() == tiny.encoder().fingerprint()
    assert shorter.fingerprint() != same.fingerprint()
    with torch.no_grad():
        next(other.network.parameters())[0, 0] += 1e-3
    assert other.fingerprint() != same.fingerprint()


# --- TokenStore


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    path = tmp_path_factory.mktemp("stores") / "tiny.tokens"
    return TokenStore(path, verbose=False).build(tiny.graph(), tiny.encoder())


@given(st.lists(st.integers(0, 29), max_size=40))
def test_stored_vectors_are_the_encoded_ones(store: TokenStore, nodes: list[int]) -> None:
    numbers = np.array(nodes, dtype=np.int64)
    stored = store.states(numbers)
    fresh = tiny.encoder().encode_passages(tiny.graph().texts(numbers))
    assert stored.values.dtype == torch.float32
    assert torch.equal(stored.offsets, fresh.offsets)
    torch.testing.assert_close(stored.values, fresh.values, atol=1e-3, rtol=0)
