"""Indexes and vectors that are encoded once: written chunk by chunk, interrupted, copied, refused."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyterrier_dr import FlexIndex

from pyterrier_graph.artifacts import META
from pyterrier_graph.encoders.encoded_texts import encode_once
from pyterrier_graph.encoders.vector_files import VECTORS
from pyterrier_graph.retrieve.index_identity import identity_of
from pyterrier_graph.retrieve.index_writer import write_index

PASSAGES, DIMENSION = 150, 8
IDENTITY = {"network": "sha-1", "graph": {"sha256": "sha-2", "edges": 3}}
DOCNOS = [f"d{number // 3}x{number % 3}" for number in range(PASSAGES)]
BASE = np.random.default_rng(0).normal(size=(PASSAGES, DIMENSION)).astype(np.float32)
QUERIES = pd.DataFrame({"qid": ["q1", "q2"], "query": ["alpha", "beta"], "query_vec": list(BASE[[7, 90]] + 0.5)})

Vectors = Callable[[np.ndarray], Any]


def flex(path: Path, vectors: np.ndarray = BASE, docnos: list[str] = DOCNOS) -> FlexIndex:
    index = FlexIndex(str(path), verbose=False)
    return index.index({"docno": docno, "doc_vec": vector} for docno, vector in zip(docnos, vectors, strict=True))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> FlexIndex:
    return flex(tmp_path_factory.mktemp("base") / "base.flex")


def indexed(base: FlexIndex, path: Path, vectors_of: Vectors, **options: Any) -> FlexIndex:
    options = {"identity": IDENTITY, "chunk_size": 40, "verbose": False} | options
    return write_index(base, FlexIndex(str(path), verbose=False), vectors_of, **options)


def shifted(numbers: np.ndarray) -> np.ndarray:
    return BASE[numbers] * 2 + np.arange(DIMENSION, dtype=np.float32)


class Calls:
    """Remembers what it was asked for, and fails at one call."""

    def __init__(self, answer: Vectors = shifted, fail_at: int | None = None) -> None:
        self.answer, self.fail_at = answer, fail_at
        self.asked: list[list[int]] = []

    def __call__(self, numbers: np.ndarray) -> Any:
        if len(self.asked) == self.fail_at:
            raise KeyboardInterrupt
        self.asked.append(numbers.tolist())
        return self.answer(numbers)


def kill(write: Callable[[], Any]) -> None:
    with pytest.raises(KeyboardInterrupt):
        write()


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


# --- what is written


def test_an_ordinary_index(base: FlexIndex, tmp_path: Path) -> None:
    calls = Calls()
    given = FlexIndex(str(tmp_path / "new.flex"))
    index = write_index(base, given, calls, identity=IDENTITY, chunk_size=40, verbose=False)
    assert index is given
    assert calls.asked == [[*range(start, min(start + 40, PASSAGES))] for start in range(0, PASSAGES, 40)]
    docnos, vectors, meta = index.payload()
    assert list(docnos) == DOCNOS
    assert vectors.tobytes() == shifted(np.arange(PASSAGES)).tobytes()
    assert docnos.inv["d4x1"] == 13
    assert [file.name for file in tmp_path.iterdir()] == ["new.flex"]
    assert sorted(files(index.path)) == ["docnos.npids", "pt_meta.json", "vecs.f4"]
    assert (index.path / "docnos.npids").read_bytes() == (base.path / "docnos.npids").read_bytes()
    loaded = pt.Artifact.load(str(index.path))
    assert isinstance(loaded, FlexIndex) and len(loaded) == PASSAGES
    assert identity_of(loaded) == IDENTITY
    with pytest.raises(ValueError, match=r"base.flex'\) is not a contextual index"):
        identity_of(base)


def exact(index: FlexIndex) -> dict[str, float]:
    scores = index.payload()[1] @ QUERIES["query_vec"][0]
    return dict(zip(DOCNOS, scores.tolist(), strict=True))


def measured(retriever: pt.Transformer, inp: pd.DataFrame = QUERIES) -> dict[str, float]:
    found = retriever(inp)
    found = found[found["qid"] == "q1"]
    return dict(zip(found["docno"], found["score"].astype(float), strict=True))


@pytest.mark.parametrize(
    "retriever",
    [
        lambda index: index.np_retriever(num_results=PASSAGES),
        lambda index: index.torch_retriever(num_results=PASSAGES, device="cpu"),
        lambda index: index.faiss_flat_retriever(),
        lambda index: index.faiss_hnsw_retriever(num_results=PASSAGES, ef_search=2 * PASSAGES),
        lambda index: index.faiss_ivf_retriever(num_results=PASSAGES, train_sample=PASSAGES, n_list=2, n_probe=2),
    ],
    ids=["np", "torch", "faiss_flat", "faiss_hnsw", "faiss_ivf"],
)
def test_retrievers(base: FlexIndex, tmp_path: Path, retriever: Any, request: pytest.FixtureRequest) -> None:
    if "faiss" in request.node.name and importlib.util.find_spec("faiss") is None:
        pytest.skip("faiss is not installed")
    index = indexed(base, tmp_path / "new.flex", shifted)
    assert measured(retriever(index)) == pytest.approx(exact(index), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("ladr", ["ladr_proactive", "ladr_adaptive"])
def test_ladr(base: FlexIndex, tmp_path: Path, ladr: str) -> None:
    pytest.importorskip("pyterrier_adaptive")
    index = indexed(base, tmp_path / "new.flex", shifted)
    seeds = pd.DataFrame({"qid": "q1", "docno": DOCNOS[:3], "score": 1.0, "rank": [0, 1, 2]})
    found = measured(getattr(index, ladr)(4), seeds.merge(QUERIES, on="qid"))
    assert len(found) > 3
    assert found == pytest.approx({docno: exact(index)[docno] for docno in found}, rel=1e-5, abs=1e-5)


# --- interruptions


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_an_interrupted_run_goes_on(base: FlexIndex, tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    """With the same bytes as if it had not been, though vectors depend on the chunk that they are computed in."""

    def vectors_of(numbers: np.ndarray) -> np.ndarray:
        return shifted(numbers) + numbers.sum()

    at_once = data.draw(st.integers(1, PASSAGES + 5), "chunk_size")
    chunks = math.ceil(PASSAGES / at_once)
    done = data.draw(st.integers(0, chunks - 1), "done")
    folder = tmp_path_factory.mktemp("interrupted")
    path = folder / "new.flex"
    kill(lambda: indexed(base, path, Calls(vectors_of, done), chunk_size=at_once))
    assert not path.exists()
    calls = Calls(vectors_of)
    indexed(base, path, calls, chunk_size=at_once)
    assert len(calls.asked) == chunks - done
    assert [file.name for file in folder.iterdir()] == ["new.flex"]
    whole = indexed(base, folder / "whole", vectors_of, chunk_size=at_once)
    assert files(path) == files(whole.path)


def test_progress_starts_where_it_goes_on(
    base: FlexIndex, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bar = pt.tqdm
    monkeypatch.setattr(pt, "tqdm", lambda **given: bar(**given | {"delay": 0}))
    kill(lambda: indexed(base, tmp_path / "new.flex", Calls(fail_at=1)))
    assert not capsys.readouterr().err
    indexed(base, tmp_path / "new.flex", shifted, verbose=True)
    shown = capsys.readouterr().err
    assert "indexing:  27%" in shown and "40/150" in shown and "150/150" in shown and "passage/s" in shown


def test_unfinished_work_of_something_else(base: FlexIndex, tmp_path: Path) -> None:
    path, folder = tmp_path / "new.flex", tmp_path / "new.flex.unfinished"
    kill(lambda: indexed(base, path, Calls(fail_at=0), identity={"network": "nothing written yet"}))
    kill(lambda: indexed(base, path, Calls(fail_at=1)))
    other = IDENTITY | {"network": "sha-3", "graph": {"sha256": "sha-2"}}
    with pytest.raises(ValueError) as error:
        indexed(base, path, shifted, identity=other)
    assert str(error.value) == (
        f"{str(folder)!r} is unfinished work of something else: contextual.identity.graph.edges was 3, and is None; "
        "contextual.identity.network was 'sha-1', and is 'sha-3'. Delete it to begin anew"
    )
    with pytest.raises(ValueError, match="something else: rows_per_range was 40, "):
        indexed(base, path, shifted, chunk_size=50)
    renamed = flex(tmp_path / "renamed.flex", docnos=[f"e{docno}" for docno in DOCNOS])
    with pytest.raises(ValueError, match="docnos_sha256 was"):
        indexed(renamed, path, shifted)
    (folder / "unfinished.json").unlink()
    with pytest.raises(ValueError, match="unfinished' does not say what its files are of .*: delete it"):
        indexed(base, path, shifted)
    assert not path.exists()


# --- some passages copied


@settings(max_examples=15, deadline=None)
@given(changed=st.sets(st.integers(0, PASSAGES - 1)), at_once=st.integers(1, PASSAGES + 5))
def test_untouched_passages_are_copied(
    base: FlexIndex, tmp_path_factory: pytest.TempPathFactory, changed: set[int], at_once: int
) -> None:
    folder = tmp_path_factory.mktemp("previous")
    previous = indexed(base, folder / "previous.flex", shifted, identity={"graph": "old"})
    calls = Calls(lambda numbers: -shifted(numbers))
    numbers = np.array([*changed], dtype=np.int32)
    index = indexed(base, folder / "new.flex", calls, previous=(previous, numbers), chunk_size=at_once)
    assert all(calls.asked) and sum(calls.asked, []) == sorted(changed)
    expected = shifted(np.arange(PASSAGES))
    expected[numbers] *= -1
    assert index.payload()[1].tobytes() == expected.tobytes()
    assert index.payload()[2]["contextual"]["previous"]["identity"] == {"graph": "old"}
    assert index.payload()[2]["contextual"]["previous"]["copied"] == PASSAGES - len(changed)


def test_other_changes_do_not_go_on(base: FlexIndex, tmp_path: Path) -> None:
    previous = indexed(base, tmp_path / "previous.flex", shifted)
    path = tmp_path / "new.flex"
    kill(lambda: indexed(base, path, Calls(fail_at=1), previous=(previous, np.array([0, 60]))))
    with pytest.raises(ValueError, match="contextual.previous.changed_sha256 was"):
        indexed(base, path, shifted, previous=(previous, np.array([1, 60])))


def test_what_cannot_be_copied(base: FlexIndex, tmp_path: Path) -> None:
    names = [f"e{docno}" for docno in DOCNOS]
    fewer, other, wider = (
        indexed(flex(tmp_path / f"{name}.base", **options), tmp_path / name, answer)
        for name, options, answer in [
            ("fewer", {"vectors": BASE[:100], "docnos": DOCNOS[:100]}, shifted),
            ("other", {"docnos": names}, shifted),
            ("wider", {"vectors": np.hstack([BASE, BASE])}, lambda numbers: np.hstack([BASE, BASE])[numbers]),
        ]
    )
    damaged = indexed(base, tmp_path / "damaged", shifted)
    with open(damaged.path / VECTORS, "ab") as out:
        out.truncate(100)
    none = np.array([], dtype=np.int64)
    for index, numbers, error, message in [
        (base, none, ValueError, r"base.flex'\) is not a contextual index"),
        (fewer, none, ValueError, "'doc_count': 100.* but .*'doc_count': 150.* is needed"),
        (wider, none, ValueError, "'vec_size': 16.* but .*'vec_size': 8.* is needed"),
        (other, none, ValueError, r"other'\) has other docnos than FlexIndex\(.*base.flex"),
        (damaged, none, ValueError, "damaged: its vectors are not 150 of 8 numbers each"),
        (indexed(base, tmp_path / "good", shifted), np.array([PASSAGES]), IndexError, "150"),
        (
            indexed(base, tmp_path / "mask", shifted),
            np.ones(PASSAGES, dtype=bool),
            TypeError,
            "numbers are needed, got an array of bool",
        ),
    ]:
        with pytest.raises(error, match=message):
            indexed(base, tmp_path / "new.flex", shifted, previous=(index, numbers))
    assert not [*tmp_path.glob("new.flex*")]


# --- what is refused


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda vectors: vectors[:-1], r"40 vectors, from passage 'd13x1' on, must .* \(40, 8\).*float32 .* \(39, 8\)"),
        (lambda vectors: vectors[0], r"passage 'd13x1' on, must .* of shape \(8,\)"),
        (lambda vectors: vectors[:, :4], r"passage 'd13x1' on, must .* of shape \(40, 4\)"),
        (lambda vectors: vectors.astype(int), "passage 'd13x1' on, must be floating point .* int64"),
        (lambda vectors: np.where(np.arange(40)[:, None] == 5, np.nan, vectors), "^passage 'd15x0': .* not finite"),
        (lambda vectors: np.where(np.arange(8) == 7, 1e40, vectors.astype(float)), "^passage 'd13x1': .* not finite"),
    ],
    ids=["rows", "vector", "columns", "integers", "nan", "overflow"],
)
def test_wrong_vectors(base: FlexIndex, tmp_path: Path, wrong: Callable[[np.ndarray], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        indexed(
            base, tmp_path / "new.flex", lambda numbers: wrong(shifted(numbers)) if numbers[0] else shifted(numbers)
        )
    assert not (tmp_path / "new.flex").exists()
    repaired = Calls()
    indexed(base, tmp_path / "new.flex", repaired)
    assert repaired.asked[0][0] == 40


def test_wrong_vectors_of_some_passages(base: FlexIndex, tmp_path: Path) -> None:
    previous = indexed(base, tmp_path / "previous.flex", shifted)
    with pytest.raises(ValueError, match=r"2 vectors, from passage 'd0x2' on, must .* \(1, 8\)"):
        indexed(base, tmp_path / "new", lambda numbers: BASE[:1], previous=(previous, np.array([5, 2])))


def test_wrong_places(base: FlexIndex, tmp_path: Path) -> None:
    index = indexed(base, tmp_path / "new.flex", shifted)
    before = files(index.path)
    with pytest.raises(FileExistsError, match="new.flex' exists already: delete it, or choose another path"):
        indexed(base, index.path, shifted)
    assert files(index.path) == before
    with pytest.raises(FileNotFoundError, match="nowhere"):
        indexed(FlexIndex(str(tmp_path / "nowhere")), tmp_path / "other.flex", shifted)
    with pytest.raises(ValueError, match="rows_per_range must be a whole number, 1 or more, got 0"):
        indexed(base, tmp_path / "other.flex", shifted, chunk_size=0)
    with pytest.raises(ValueError, match="JSON"):
        indexed(base, tmp_path / "another.flex", shifted, identity={"weight": math.nan})
    assert not [*tmp_path.glob("another.flex*")]


# --- texts that are encoded once

TEXTS = [f"{'x' * (number % 7)} {number}" for number in range(50)]


def texts(numbers: np.ndarray) -> list[str]:
    return [TEXTS[number] for number in numbers]


class Encoder:
    """A text's length and number, and what was encoded."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.calls = Calls(lambda encoded: [[len(text), float(text.split()[-1])] for text in encoded.tolist()], fail_at)

    def __call__(self, given: list[str]) -> Any:
        return np.array(self.calls(np.array(given)), dtype=np.float16)

    @property
    def encoded(self) -> list[str]:
        return sum(self.calls.asked[1:], [])  # the first tells the dimension


EXPECTED = [[len(text), number] for number, text in enumerate(TEXTS)]
MODEL = {"model": "m@1", "texts": "sha-4"}


def encoded(folder: Path | None, encoder: Any, count: int = 50, **options: Any) -> np.ndarray:
    options = {"batch_size": 8, "verbose": False} | options
    return encode_once(folder, "queries", options.pop("identity", MODEL), count, texts, encoder, **options)


@pytest.mark.parametrize("kept", [True, False])
def test_texts_are_encoded_once(tmp_path: Path, kept: bool) -> None:
    encoder = Encoder()
    vectors = encoded(tmp_path / "vectors" if kept else None, encoder)
    assert encoder.encoded == TEXTS
    assert vectors.dtype == np.float32 and vectors.tolist() == EXPECTED
    assert isinstance(vectors.base, np.memmap) and vectors.base.mode == "c"
    again = Encoder()
    assert encoded(tmp_path / "vectors" if kept else None, again).tolist() == EXPECTED
    assert again.encoded == ([] if kept else TEXTS)
    assert len([*tmp_path.glob("vectors/queries-*")]) == kept


@pytest.mark.parametrize("other", [{"identity": MODEL | {"model": "m@2"}}, {"count": 49, "identity": {"dtype": "x"}}])
def test_other_texts_have_another_place(tmp_path: Path, other: dict[str, Any]) -> None:
    encoded(tmp_path, Encoder())
    encoder = Encoder()
    count = other.get("count", 50)
    assert encoded(tmp_path, encoder, **other).tolist() == EXPECTED[:count]
    assert encoder.encoded == TEXTS[:count]
    assert len([*tmp_path.iterdir()]) == 2


@pytest.mark.parametrize("other", [{"count": 49}, {"identity": MODEL | {"texts": "sha-5"}}])
def test_texts_of_another_file_are_copied(tmp_path: Path, other: dict[str, Any]) -> None:
    """Such as those of the queries that were there before others were added."""
    encoded(tmp_path, Encoder(), count=20, identity=MODEL | {"texts": "sha-3"})
    encoder = Encoder()
    count = other.get("count", 50)
    assert encoded(tmp_path, encoder, **other).tolist() == EXPECTED[:count]
    assert encoder.encoded == TEXTS[20:count]
    assert len([*tmp_path.iterdir()]) == 2


def test_interrupted_encoding_goes_on(tmp_path: Path) -> None:
    kill(lambda: encoded(tmp_path, Encoder(fail_at=4)))
    assert [folder.suffix for folder in tmp_path.iterdir()] == [".unfinished"]
    encoder = Encoder()
    assert encoded(tmp_path, encoder).tolist() == EXPECTED
    assert encoder.encoded == TEXTS[24:]


@pytest.mark.parametrize("kept", [True, False])
def test_no_texts(tmp_path: Path, kept: bool) -> None:
    vectors = encoded(tmp_path if kept else None, lambda none: np.empty((len(none), 2)), count=0)
    assert vectors.shape == (0, 2) and vectors.dtype == np.float32 and not vectors.flags.writeable
    if kept:
        assert encoded(tmp_path, None, count=0).shape == (0, 2)


@pytest.mark.parametrize(
    ("encode", "message"),
    [
        (
            lambda given: np.ones((len(given), 3 if "10" in given[0] else 2)),
            r"10 vectors, from text 10 on, .* of shape \(10, 3\)",
        ),
        (
            lambda given: np.array([[math.inf if text[-2:] == "17" else 1.0] for text in given]),
            "^text 17: .* not finite",
        ),
        (lambda given: np.ones(len(given)), "1 vectors, from text 0 on"),
        (lambda given: np.ones((len(given), 0)), "1 vectors, from text 0 on"),
        (lambda given: given, "must be floating point"),
    ],
)
def test_wrong_encoders(tmp_path: Path, encode: Callable[[list[str]], Any], message: str) -> None:
    for folder in (tmp_path, None):
        with pytest.raises(ValueError, match=message):
            encode_once(folder, "q", {}, 50, texts, encode, batch_size=10, verbose=False)
    assert not [*tmp_path.rglob(META)]


def test_damaged_vectors(tmp_path: Path) -> None:
    encoded(tmp_path, Encoder())
    (file,) = tmp_path.rglob(VECTORS)
    with open(file, "ab") as out:
        out.truncate(10)
    with pytest.raises(ValueError, match="damaged: 'vecs.f4' should have 400 bytes, has 10"):
        encoded(tmp_path, Encoder())
    (note,) = tmp_path.rglob(META)
    note.write_text(json.dumps(json.loads(note.read_text()) | {"identity": {}}))
    with pytest.raises(ValueError, match="'identity': {}"):
        encoded(tmp_path, Encoder())
