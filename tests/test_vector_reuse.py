"""Vectors of passages that another index has: only new texts are encoded."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyterrier_dr import FlexIndex
from tiny import checkpoint

import pyterrier_graph as ptg
from pyterrier_graph import artifacts
from pyterrier_graph.artifacts import META
from pyterrier_graph.documents import Node, StructuredDocument
from pyterrier_graph.encoders.vector_reuse import DIGESTS
from pyterrier_graph.graphs import MemoryGraph
from pyterrier_graph.retrieve import index_writer
from pyterrier_graph.retrieve.index_writer import base_vectors, text_digests

Corpus = dict[str, list[str]]
CORPUS: Corpus = {"a": ["alpha", "beta mu"], "b": ["beta", "gamma", "delta"], "c": ["alpha", "mu"]}


class Literal:
    """An encoder whose vectors depend on the text alone; it remembers what it encoded."""

    verbose = False

    def __init__(self, name: str = "literal", fail_at: int | None = None) -> None:
        self.model_name, self.fail_at = name, fail_at
        self.asked: list[list[str]] = []

    def encode_docs(self, texts: list[str]) -> np.ndarray:
        if len(self.asked) == self.fail_at:
            raise KeyboardInterrupt
        self.asked.append([*texts])
        digests = [hashlib.sha256(f"{self.model_name} {text}".encode()).digest() for text in texts]
        return np.array([[*digest[:8]] for digest in digests], dtype=np.float32).reshape(-1, 8)

    @property
    def encoded(self) -> list[str]:
        """All texts but those that tell the dimension."""
        return [text for texts in self.asked[1:] for text in texts]


def graph(corpus: Corpus) -> MemoryGraph:
    documents = [
        StructuredDocument(name, (Node("section", "title", -1), *(Node("passage", text, 0) for text in texts)))
        for name, texts in corpus.items()
    ]
    return MemoryGraph.from_documents(documents)


def written(folder: Path, corpus: Corpus, encoder: Any = None) -> tuple[FlexIndex, list[str]]:
    encoder = encoder or Literal()
    return base_vectors(folder, graph(corpus), encoder, verbose=False), encoder.encoded


def files(index: FlexIndex) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in index.index_path.iterdir()}


@pytest.mark.parametrize(
    ("changed", "new"),
    [
        (CORPUS | {"d": ["epsilon", "alpha"]}, ["epsilon"]),
        ({"d": ["epsilon"], **CORPUS}, ["epsilon"]),
        ({"a": CORPUS["a"], "c": CORPUS["c"]}, []),
        (CORPUS | {"b": ["beta", "gamma zeta", "delta"]}, ["gamma zeta"]),
        ({"c": CORPUS["b"], "b": CORPUS["a"]}, []),
        ({"x": ["eta"]}, ["eta"]),
    ],
    ids=["added at the end", "added in front", "removed", "changed", "renamed", "all new"],
)
@pytest.mark.parametrize("at_once", [2, 1024])
def test_only_new_texts_are_encoded(
    tmp_path: Path, changed: Corpus, new: list[str], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_writer, "PASSAGES_AT_ONCE", at_once)
    assert written(tmp_path / "shared", CORPUS)[1] == [text for texts in CORPUS.values() for text in texts]
    index, encoded = written(tmp_path / "shared", changed)
    assert encoded == new
    assert files(index) == files(written(tmp_path / "alone", changed)[0])
    assert written(tmp_path / "shared", changed)[0].index_path == index.index_path
    back, encoded = written(tmp_path / "shared", CORPUS | {"e": ["theta", *changed[[*changed][-1]]]})
    assert encoded == ["theta"] and len(back) == 8 + len(changed[[*changed][-1]])  # of two other indexes


texts = st.lists(st.sampled_from(["alpha", "beta", "", "naïve\0", "mu " * 40]), min_size=1, max_size=4)
corpora = st.lists(texts, min_size=1, max_size=3).map(lambda lists: {f"d{n}": each for n, each in enumerate(lists)})


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(corpora, min_size=2, max_size=4))
def test_any_order_of_corpora(tmp_path_factory: pytest.TempPathFactory, versions: list[Corpus]) -> None:
    folder, seen = tmp_path_factory.mktemp("shared"), set[str]()
    for corpus in versions:
        own = [text for texts in corpus.values() for text in texts]
        there = {path.name for path in folder.glob("*.flex")}
        index, encoded = written(folder, corpus)
        if index.index_path.name in there:
            continue
        assert sorted(encoded) == sorted(text for text in own if text not in seen)
        np.testing.assert_array_equal(index.payload()[1], Literal().encode_docs(own))
        seen.update(own)


def test_other_encoders_and_folders_without_digests(tmp_path: Path) -> None:
    index, _ = written(tmp_path, CORPUS)
    larger = CORPUS | {"d": ["epsilon"]}
    assert len(written(tmp_path, larger, Literal("other"))[1]) == 8
    # an index that was written without digests is opened, but nothing is copied from it
    meta = json.loads((index.index_path / META).read_text())
    del meta["files"][DIGESTS]
    (index.index_path / META).write_text(json.dumps(meta))
    (index.index_path / DIGESTS).unlink()
    again = Literal()
    assert base_vectors(tmp_path, graph(CORPUS), again, verbose=False).index_path == index.index_path  # type: ignore[arg-type]
    assert not again.asked
    assert len(written(tmp_path, larger)[1]) == 8


@pytest.mark.parametrize("file", [DIGESTS, "vecs.f4", META])
def test_nothing_is_copied_from_a_damaged_index(tmp_path: Path, file: str) -> None:
    index, _ = written(tmp_path, CORPUS)
    (index.index_path / file).write_bytes((index.index_path / file).read_bytes()[:-3])
    assert len(written(tmp_path, CORPUS | {"d": ["epsilon"]})[1]) == 8


def test_equal_halves_of_digests_are_not_enough(tmp_path: Path) -> None:
    index, _ = written(tmp_path, CORPUS)
    meta = artifacts.read_meta(index.index_path, {})
    digests = np.fromfile(index.index_path / DIGESTS, dtype="<u8").reshape(-1, 2)
    digests[1:4, 1] += 1
    digests.tofile(index.index_path / DIGESTS)
    artifacts.complete(index.index_path, meta)
    assert written(tmp_path, CORPUS | {"d": ["epsilon"]})[1] == ["beta mu", "beta", "gamma", "epsilon"]


def test_a_call_that_was_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_writer, "PASSAGES_AT_ONCE", 2)
    written(tmp_path / "shared", CORPUS)
    changed = {"d": ["epsilon"], "a": CORPUS["a"], "e": ["zeta", "eta", "mu"]}
    with pytest.raises(KeyboardInterrupt):
        written(tmp_path / "shared", changed, Literal(fail_at=2))
    index, encoded = written(tmp_path / "shared", changed)
    assert encoded == ["zeta", "eta"]
    assert files(index) == files(written(tmp_path / "alone", changed)[0])


def test_vectors_of_a_real_encoder(tmp_path: Path) -> None:
    encoder = ptg.DualEncoder(checkpoint(), max_query_tokens=8, max_passage_tokens=16, device="cpu", verbose=False)
    larger = {"d": ["epsilon mu mu mu"], **CORPUS}
    base_vectors(tmp_path / "shared", graph(CORPUS), encoder, verbose=False)
    found, fresh = (base_vectors(tmp_path / name, graph(larger), encoder, verbose=False) for name in ("shared", "new"))
    np.testing.assert_allclose(found.payload()[1], fresh.payload()[1], atol=1e-5)


def test_late_chunking_encodes_changed_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vector depends on the whole document, and on the place of the passage in it."""
    encoded: list[str] = []
    encode = ptg.DualEncoder.encode_passages

    def counting(self: ptg.DualEncoder, graph: Any, nodes: np.ndarray, batch_size: int | None = None) -> np.ndarray:
        encoded.extend(graph.texts(nodes))
        return encode(self, graph, nodes, batch_size)

    monkeypatch.setattr(ptg.DualEncoder, "encode_passages", counting)
    monkeypatch.setattr(index_writer, "PASSAGES_AT_ONCE", 3)  # a document is in two blocks
    sizes = {"max_query_tokens": 8, "max_passage_tokens": 16}
    encoder = ptg.DualEncoder(checkpoint(), late_chunking=True, device="cpu", verbose=False, **sizes)
    base_vectors(tmp_path / "shared", graph(CORPUS), encoder, verbose=False)
    encoded.clear()
    changed = {"e": ["alpha"], "b": CORPUS["b"], "a": CORPUS["a"][::-1], "c": [*CORPUS["c"], "mu"]}
    found = base_vectors(tmp_path / "shared", graph(changed), encoder, verbose=False)
    assert encoded == ["alpha", "beta mu", "alpha", "alpha", "mu", "mu"]
    fresh = base_vectors(tmp_path / "alone", graph(changed), encoder, verbose=False)
    np.testing.assert_allclose(found.payload()[1], fresh.payload()[1], atol=1e-5)


def test_digests_tell_equal_passages_of_a_document_apart() -> None:
    late: Any = type("Late", (), {"late_chunking": True})()
    same = graph({"a": ["mu", "mu"], "b": ["mu", "mu"], "c": ["mu"]})
    plain, late_digests = (text_digests(same, same.passage_nodes, encoder) for encoder in (Literal(), late))
    assert len({*map(bytes, plain)}) == 1
    names = [bytes(digest) for digest in late_digests]
    assert names[:2] == names[2:4] and len({*names}) == 3


def test_a_mean_of_a_graph_with_new_documents(tmp_path: Path) -> None:
    documents = [StructuredDocument(name, (Node("section", "mu", -1), Node("passage", name, 0))) for name in "abc"]
    place = ptg.DocumentGraph(tmp_path / "corpus.graph")
    encoder: Any = Literal()
    encoder.encode_queries = encoder.encode_docs
    first = ptg.GraphMean(place.index(documents[:2], verbose=False), encoder, verbose=False)
    first.index(tmp_path / "before.flex")
    asked = {text for texts in encoder.asked for text in texts}
    encoder.asked.clear()
    place.index(documents, overwrite=True, verbose=False)
    later = ptg.GraphMean(ptg.DocumentGraph(place.path), encoder, verbose=False).index(tmp_path / "after.flex")
    again = [text for texts in encoder.asked for text in texts]
    assert {"a", "b", "mu"} <= asked and again.count("c") == 1
    assert "b" not in again and again.count("mu") == 1  # of the titles, only the first one, which tells the dimension
    assert len(later) == 3
