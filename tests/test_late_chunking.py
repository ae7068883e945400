"""Late chunking: against a literal reference, in indexes of vectors, and what it refuses."""

from __future__ import annotations

import copy
import warnings
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tiny
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch.nn.functional import normalize
from transformers import BertModel, RobertaConfig, RobertaModel

import pyterrier_graph as ptg
from pyterrier_graph.documents.document import Node, StructuredDocument
from pyterrier_graph.encoders import stored_vectors
from pyterrier_graph.encoders.late_chunking import LateChunking, longest_input
from pyterrier_graph.encoders.stored_vectors import encoder_name
from pyterrier_graph.graphs.hetero_graph import MemoryGraph
from pyterrier_graph.pair.dual_encoder import DualEncoder

POSITIONS, WINDOW, HALF = 16, 14, 7  # of the small encoder: with and without [CLS] and [SEP], and half a window
SHAPES = st.lists(st.lists(st.integers(0, 33), max_size=6), min_size=1, max_size=4)


@cache
def checkpoint(pooling: str = "mean", **options: Any) -> str:
    """Folder of a small SentenceTransformer that reads 16 tokens."""
    folder = mkdtemp(prefix="tiny-late-chunking-")
    transformer = Transformer(tiny.checkpoint(positions=POSITIONS))
    modules: list[Any] = [transformer, Pooling(16, pooling)]
    if "dense" in options:
        torch.manual_seed(1)
        modules.append(Dense(16, options.pop("dense")))
    SentenceTransformer(modules=modules, device="cpu", **options).save(folder, create_model_card=False)
    return folder


def dual(encoder: str | None = None, **options: Any) -> DualEncoder:
    given = {"max_query_tokens": 8, "max_passage_tokens": 8, "device": "cpu", "verbose": False}
    return DualEncoder(encoder or checkpoint(), **given | {"late_chunking": True} | options)


@cache
def usual_dual() -> DualEncoder:
    return dual()


def text_of(length: int, seed: int) -> str:
    return " ".join(np.random.default_rng(seed).choice(tiny.WORDS, length))


def graph_of(shapes: list[list[int]], folder: Path | None = None) -> Any:
    """A graph of documents whose passages have so many words; each passage has a section of its own."""
    documents = []
    for number, lengths in enumerate(shapes):
        nodes = [Node("section", "alpha", -1)]
        for place, length in enumerate(lengths):
            nodes += [Node("section", "beta", 0), Node("passage", text_of(length, 100 * number + place), len(nodes))]
        documents.append(StructuredDocument(f"d{number}", tuple(nodes), (), (), ()))
    if folder is None:
        return MemoryGraph.from_documents(documents)
    return ptg.DocumentGraph(folder).index(documents)


def pieces_of(lengths: list[int]) -> list[tuple[int, int, int]]:
    """Per piece its passage, first token and end, in a document."""
    limit = WINDOW if sum(lengths) <= WINDOW else HALF
    pieces, before = [], 0
    for passage, length in enumerate(lengths):
        cuts = [*range(before, before + length, limit), before + length]
        pieces += [(passage, start, end) for start, end in zip(cuts, cuts[1:], strict=False)]
        before += length
    return pieces


@cache
def bert() -> BertModel:
    return BertModel.from_pretrained(tiny.checkpoint(positions=POSITIONS)).eval()


@torch.inference_mode()
def reference(texts: list[str]) -> np.ndarray:
    """The vectors of a document's passages, each window by itself without padding."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *tiny.WORDS]
    tokens = [[vocabulary.index(word) for word in text.split()] for text in texts]
    document = [token for passage in tokens for token in passage]
    starts = [0]
    while starts[-1] + WINDOW < len(document):
        starts.append(min(starts[-1] + HALF, len(document) - WINDOW))
    states: list[list[torch.Tensor]] = [[] for _ in texts]
    for passage, first, end in pieces_of([len(passage) for passage in tokens]):
        holding = [start for start in starts if start <= first and end <= start + WINDOW]
        start = min(holding, key=lambda start: abs((first + end) - (2 * start + WINDOW)))
        read = torch.tensor([[2, *document[start : start + WINDOW], 3]])
        states[passage].append(bert()(read).last_hidden_state[0, 1 + first - start : 1 + end - start])
    empty = bert()(torch.tensor([[2, 3]])).last_hidden_state[0]
    return np.stack([torch.cat(parts or [empty]).mean(0).numpy() for parts in states])


# --- vectors


@settings(max_examples=15, deadline=None)
@given(SHAPES, st.integers(1, 9), st.data())
@example([[]], 1, None)
@example([[0], [], [0, 0]], 2, None)
@example([[33], [14], [15], [7, 7, 1], [20, 1, 0, 8, 7, 14]], 3, None)
def test_the_vectors_of_the_reference(shapes: list[list[int]], batch_size: int, data: Any) -> None:
    graph, model = graph_of(shapes), usual_dual()
    nodes = graph.passage_nodes
    texts = iter(graph.texts(nodes))
    expected = [reference([next(texts) for _ in lengths]) for lengths in shapes if lengths]
    expected = np.concatenate([np.empty((0, 16), dtype=np.float32), *expected])
    vectors = model.encode_passages(graph, nodes, batch_size)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    if data is not None and len(nodes):  # some passages, in any order
        some = np.array(data.draw(st.lists(st.integers(0, len(nodes) - 1), max_size=8)), dtype=np.int64)
        np.testing.assert_allclose(model.encode_passages(graph, nodes[some]), expected[some], atol=1e-5)


def test_a_text_is_a_document_of_one_passage() -> None:
    lengths = [0, 1, 5, 13, 14, 15, 40]
    texts = [text_of(length, length) for length in lengths]
    graph = MemoryGraph.from_documents(
        [
            StructuredDocument(f"d{n}", (Node("section", "", -1), Node("passage", text, 0)), (), (), ())
            for n, text in enumerate(texts)
        ]
    )
    model = dual(batch_size=2)
    vectors = model.encode_docs(texts)
    np.testing.assert_allclose(vectors, np.concatenate([reference([text]) for text in texts]), atol=1e-5)
    np.testing.assert_allclose(vectors, model.encode_passages(graph, graph.passage_nodes), atol=1e-6)
    np.testing.assert_allclose(vectors[:1], dual(late_chunking=False).encode_docs([""]), atol=1e-6)
    assert model.encode_docs([]).shape == model.encode_passages(graph, graph.passage_nodes[:0]).shape == (0, 16)
    np.testing.assert_array_equal(
        model.encode_queries(texts[1:3]), dual(late_chunking=False).encode_queries(texts[1:3])
    )


def test_what_follows_the_mean_is_applied() -> None:
    """Prompts before each window, a projection, normalization, and cut dimensions."""
    graph = graph_of([[30, 2], [3]])
    bare = dual().encode_passages(graph, graph.passage_nodes)
    projected = dual(checkpoint(dense=8))
    projected.network.append(Normalize())
    layer = next(module for module in projected.network if isinstance(module, Dense))
    with torch.inference_mode():
        expected = normalize(layer({"sentence_embedding": torch.tensor(bare)})["sentence_embedding"], dim=1)
    np.testing.assert_allclose(projected.encode_passages(graph, graph.passage_nodes), expected, atol=1e-5)
    cut = dual(checkpoint(truncate_dim=4))
    np.testing.assert_allclose(cut.encode_passages(graph, graph.passage_nodes), bare[:, :4], atol=1e-5)


def test_a_prompt_is_read_and_not_counted() -> None:
    folder = mkdtemp(prefix="tiny-prompts-")
    network = SentenceTransformer(checkpoint(), device="cpu", prompts={"query": "", "document": "mu "})
    network.save(folder, create_model_card=False)
    found = dual(folder).encode_docs(["alpha beta"])[0]
    states = network.encode("mu alpha beta", output_value="token_embeddings", prompt="")
    np.testing.assert_allclose(found, states[2:4].mean(0), atol=1e-5)
    assert LateChunking(dual(folder).network).window == WINDOW - 1


def test_separate_encoders() -> None:
    model = dual()
    modules = [*model.network.children()]
    model.network = SentenceTransformer(modules=[Router.for_query_document(copy.deepcopy(modules), modules)])
    graph = graph_of([[30, 2]])
    before = model.encode_passages(graph, graph.passage_nodes)
    router: Any = model.network[0]
    with torch.no_grad():
        for weight in router.sub_modules["query"].parameters():
            weight.zero_()
    np.testing.assert_array_equal(model.encode_passages(graph, graph.passage_nodes), before)


def test_the_number_of_positions() -> None:
    assert longest_input(dual().network[0]) == POSITIONS
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    roberta = RobertaModel(RobertaConfig(vocab_size=20, max_position_embeddings=18, pad_token_id=1, **sizes))
    transformer = Transformer(tiny.checkpoint(positions=POSITIONS))
    transformer.model = roberta
    assert longest_input(transformer) == 16
    with torch.inference_mode():
        roberta(torch.full((1, 16), 5))
        with pytest.raises((IndexError, RuntimeError)):
            roberta(torch.full((1, 17), 5))


# --- indexes


def test_names_tell_late_chunking(tmp_path: Path) -> None:
    late, usual = dual(), dual(late_chunking=False)
    assert encoder_name(late) != encoder_name(usual)
    graph = graph_of([[9, 20], [5]], tmp_path / "graph")
    indexes = [
        stored_vectors.base_vectors(tmp_path / "vectors", graph, model, verbose=False) for model in (late, usual)
    ]
    assert indexes[0].index_path != indexes[1].index_path
    copied = usual.apply_attributes(late_chunking=True)
    assert encoder_name(copied) == encoder_name(late) and not usual.late_chunking
    loaded = DualEncoder.load(late.save(tmp_path / "model").path, device="cpu")
    assert loaded.late_chunking and encoder_name(loaded) == encoder_name(late)
    assert not DualEncoder.load(tmp_path / "model", device="cpu", late_chunking=False).late_chunking
    assert "whole documents" in late._repr_html_()


# --- what is refused, and told of


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="late_chunking needs an encoder that averages .* pooling_mode='cls'"):
        dual(checkpoint("cls"))
    model = dual(checkpoint("cls"), late_chunking=False)
    with pytest.raises(ValueError, match="pooling_mode='cls'"):
        model.apply_attributes(late_chunking=True)
    with pytest.raises(TypeError, match="late_chunking must be True or False, got 'yes'"):
        dual(late_chunking="yes")
    graph = graph_of([[3, 3]])
    with pytest.raises(ValueError, match="these nodes have sections"):
        dual().encode_passages(graph, graph._roots)
    with pytest.raises(TypeError, match="graph must be a DocumentGraph"):
        dual().encode_passages("graph", graph.passage_nodes)  # type: ignore[arg-type]


def test_a_pipeline_without_a_graph_is_told_of() -> None:
    frame = pd.DataFrame({"docno": ["d1"], "text": ["alpha"]})
    model = dual()
    with pytest.warns(UserWarning, match="each text is taken as a document of one passage"):
        model.doc_encoder()(frame)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        dual(late_chunking=False)(frame)
