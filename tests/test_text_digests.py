"""Texts that were encoded before are found by their digests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyterrier_graph.artifacts import META
from pyterrier_graph.encoders.text_digests import DIGESTS, StoredTexts, digests_of, encode_new
from pyterrier_graph.encoders.vector_files import encode_once

texts = st.lists(st.sampled_from(["", "a", "b", "title", "Title", "é"]), max_size=12)


class Lengths:
    """Encodes a text as its length and its first character; remembers what it read."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def __call__(self, texts: list[str]) -> np.ndarray:
        self.read += texts
        return np.array([[len(text), ord(text[:1] or "\0")] for text in texts], dtype=np.float32).reshape(-1, 2)


def stored(folder: Path, texts: list[str]) -> StoredTexts:
    (folder / DIGESTS).write_bytes(digests_of([text.encode() for text in texts]).tobytes())
    return StoredTexts(folder, Lengths()(texts))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts, texts, texts)
def test_each_new_text_is_read_once(tmp_path: Path, first: list[str], second: list[str], wanted: list[str]) -> None:
    others = []
    for number, known in enumerate((first, second)):
        folder = tmp_path / str(number)
        folder.mkdir(exist_ok=True)
        others.append(stored(folder, known))
    encode = Lengths()
    vectors = encode_new(encode, others)(wanted) if wanted else Lengths()([])
    assert vectors.tolist() == Lengths()(wanted).tolist() and vectors.dtype == np.float32
    assert encode.read == [text for text in dict.fromkeys(wanted) if text not in first + second]


@pytest.mark.parametrize("wrong", [np.zeros((1, 2)), np.zeros(2), np.zeros((2, 3), dtype=int)])
def test_wrong_vectors_are_left_to_the_caller(wrong: np.ndarray) -> None:
    assert encode_new(lambda texts: wrong, [])(["a", "b", "a"]) is wrong


def once(folder: Path, encode: Lengths, texts: list[str], **identity: str) -> list[list[float]]:
    identity = {"encoder": "e", "texts": repr(texts)} | identity
    read = lambda numbers: [texts[number] for number in numbers]  # noqa: E731
    return encode_once(folder, "titles", identity, len(texts), read, encode, verbose=False).tolist()


def test_folders_of_the_same_encoder_lend_their_vectors(tmp_path: Path) -> None:
    once(tmp_path, Lengths(), ["x", "a", "b"])
    encode = Lengths()
    assert once(tmp_path, encode, ["x", "b", "c", "b", "c"]) == Lengths()(["x", "b", "c", "b", "c"]).tolist()
    assert encode.read == ["x", "c"]  # the first one tells the dimension
    other = Lengths()
    once(tmp_path, other, ["x", "b"], encoder="other")
    assert other.read == ["x", "x", "b"]


def test_damaged_folders_lend_nothing(tmp_path: Path) -> None:
    once(tmp_path, Lengths(), ["x", "a"])
    (folder,) = tmp_path.iterdir()
    (folder / DIGESTS).write_bytes(b"short")
    encode = Lengths()
    once(tmp_path, encode, ["x", "a", "b"])
    assert encode.read == ["x", "x", "a", "b"]
    (folder / META).write_text("{")
    assert once(tmp_path, Lengths(), ["x", "q"]) == Lengths()(["x", "q"]).tolist()
