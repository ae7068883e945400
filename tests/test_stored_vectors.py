"""Vectors that are encoded once: of texts and of passages; only texts that no other file has are encoded."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from pyterrier_dr import FlexIndex

from pyterrier_graph.documents.document import Node, StructuredDocument
from pyterrier_graph.encoders import stored_vectors
from pyterrier_graph.encoders.stored_vectors import base_vectors, encode_once
from pyterrier_graph.graphs.memory_graph import MemoryGraph
from pyterrier_graph.storage.artifact import META

Corpus = dict[str, list[str]]
CORPUS: Corpus = {"a": ["alpha", "beta mu"], "b": ["beta", "gamma", "delta"], "c": ["alpha", "mu"]}


class Literal:
    """An encoder whose vectors depend on the text alone; it remembers what it encoded."""

    verbose = False

    def __init__(self, name: str = "literal") -> None:
        self.model_name = name
        self.asked: list[list[str]] = []

    def encode_docs(self, texts: list[str]) -> np.ndarray:
        self.asked.append([*texts])
        digests = [hashlib.sha256(f"{self.model_name} {text}".encode()).digest() for text in texts]
        return np.array([[*digest[:8]] for digest in digests], dtype=np.float32).reshape(-1, 8)

    @property
    def encoded(self) -> list[str]:
        """All texts but those that tell the dimension."""
        return [text for texts in self.asked[1:] for text in texts]


def graph(corpus: Corpus) -> MemoryGraph:
    documents = [
        StructuredDocument(
            name, (Node("section", "title", -1), *(Node("passage", text, 0) for text in texts))
        )
        for name, texts in corpus.items()
    ]
    return MemoryGraph(documents)


def written(folder: Path, corpus: Corpus, encoder: Any = None) -> tuple[FlexIndex, list[str]]:
    encoder = encoder or Literal()
    return base_vectors(folder, graph(corpus), encoder, verbose=False).flex, encoder.encoded


@pytest.mark.parametrize(
    ("changed", "new"),
    [
        ({"d": ["epsilon"], **CORPUS}, ["epsilon"]),
        (CORPUS | {"b": ["beta", "gamma zeta", "delta"]}, ["gamma zeta"]),
        ({"c": CORPUS["b"], "b": CORPUS["a"]}, []),
    ],
    ids=["added in front", "changed", "renamed"],
)
@pytest.mark.parametrize("at_once", [2, 1024])
def test_only_new_texts_are_encoded(
    tmp_path: Path, changed: Corpus, new: list[str], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_vectors, "TEXTS_PER_SHARD", at_once)
    once = [*dict.fromkeys(text for texts in CORPUS.values() for text in texts)]
    assert written(tmp_path / "shared", CORPUS)[1] == once
    index, encoded = written(tmp_path / "shared", changed)
    assert encoded == new
    alone = written(tmp_path / "alone", changed)[0]
    assert tiny.contents(index.index_path) == tiny.contents(alone.index_path)
    assert written(tmp_path / "shared", changed)[0].index_path == index.index_path


def test_other_encoders(tmp_path: Path) -> None:
    written(tmp_path, CORPUS)
    found = written(tmp_path, CORPUS | {"d": ["epsilon"]}, Literal("other"))[1]
    assert len(found) == 7  # "alpha" comes twice


# --- texts that are encoded once

TEXTS = [f"{'x' * (number % 7)} {number}" for number in range(50)]


def texts(numbers: np.ndarray) -> list[str]:
    return [TEXTS[number] for number in numbers]


class Encoder:
    """A text's length and number, and what was encoded."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def __call__(self, given: list[str]) -> Any:
        self.asked.append(given)
        return np.array([[len(text), float(text.split()[-1])] for text in given], dtype=np.float16)

    @property
    def encoded(self) -> list[str]:
        return sum(self.asked[1:], [])  # the first tells the dimension


EXPECTED = [[len(text), number] for number, text in enumerate(TEXTS)]
MODEL = {"model": "m@1", "texts": "sha-4"}


def encoded(folder: Path, encoder: Any, count: int = 50, **options: Any) -> np.ndarray:
    options = {"verbose": False} | options
    identity = options.pop("identity", MODEL)
    files = encode_once(folder, "queries", identity, count, texts, encoder, **options)
    return files.payload(return_docnos=False)[0]


def test_texts_are_encoded_once(tmp_path: Path) -> None:
    encoder = Encoder()
    vectors = encoded(tmp_path / "vectors", encoder)
    assert encoder.encoded == TEXTS
    assert vectors.dtype == np.float32 and vectors.tolist() == EXPECTED
    again = Encoder()
    assert encoded(tmp_path / "vectors", again).tolist() == EXPECTED
    assert not again.asked
    assert len([*tmp_path.glob("vectors/queries-*")]) == 1


@pytest.mark.parametrize("other", [{"count": 49}, {"identity": MODEL | {"texts": "sha-5"}}])
def test_texts_of_another_file_are_copied(tmp_path: Path, other: dict[str, Any]) -> None:
    """Such as those of the queries that were there before others were added."""
    encoded(tmp_path, Encoder(), count=20, identity=MODEL | {"texts": "sha-3"})
    encoder = Encoder()
    count = other.get("count", 50)
    assert encoded(tmp_path, encoder, **other).tolist() == EXPECTED[:count]
    assert encoder.encoded == TEXTS[20:count]
    assert len([*tmp_path.iterdir()]) == 2


def test_wrong_encoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_vectors, "TEXTS_PER_SHARD", 10)

    def infinite(given: list[str]) -> np.ndarray:
        return np.array([[math.inf if text[-2:] == "17" else 1.0] for text in given])

    for encode, message in [
        (lambda given: np.ones((len(given), 3 if "10" in given[0] else 2)), r"got \(10, 3\)"),
        (infinite, "is not finite"),
    ]:
        folder = tmp_path / str(len([*tmp_path.iterdir()]))
        with pytest.raises(ValueError, match=message):
            encode_once(folder, "q", {}, 50, texts, encode, verbose=False)
        assert not [*folder.rglob(META)]
