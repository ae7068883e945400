"""Token vectors that rerankers keep next to the graph: encoded once, read by all, complete after a kill."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny
import torch

import pyterrier_graph as ptg
from pyterrier_graph.checks import SpeedWarning
from pyterrier_graph.encoders import token_encoder
from pyterrier_graph.encoders.token_encoder import TokenEncoder, principal_directions
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.storage.arrays import KeyedRows
from pyterrier_graph.storage.artifact import locked

KEYS = [bytes([number]) * 16 for number in range(6)]
MATRICES = [np.full((number, 3), number, np.float16) for number in (2, 0, 1, 3, 1, 2)]


def read(folder: Path) -> dict[bytes, np.ndarray]:
    rows = KeyedRows(folder, 3)
    there = [key for key in KEYS if key not in rows.missing(KEYS)]
    return dict(zip(there, rows.get(there), strict=True))


def stored(folder: Path, numbers: Iterator[int] | list[int] | range = range(6)) -> KeyedRows:
    rows = KeyedRows(folder, 3)
    for number in numbers:
        assert rows.append([KEYS[number]], [MATRICES[number]]) is None
    return rows


# --- files


def test_rows_are_read_by_other_objects_and_new_ones_are_found(tmp_path: Path) -> None:
    reader = KeyedRows(tmp_path / "rows", 3)
    assert reader.missing([*KEYS, KEYS[0]]) == KEYS and not (tmp_path / "rows").exists()
    stored(tmp_path / "rows", [1, 0, 0])
    assert reader.missing(KEYS) == KEYS[2:]
    stored(tmp_path / "rows", [4, 3])
    assert reader.missing(KEYS) == [KEYS[2], KEYS[5]]
    for number in (0, 1, 3, 4):
        np.testing.assert_array_equal(reader.get([KEYS[number]])[0], MATRICES[number])
    assert (tmp_path / "rows" / "rows").stat().st_size == 2 * 3 * sum(
        len(MATRICES[number]) for number in (0, 3, 4)
    )


@pytest.mark.parametrize("cut", range(0, 33, 3))
def test_what_a_killed_process_leaves_is_complete_and_is_continued(
    tmp_path: Path, cut: int
) -> None:
    """The entry of the last matrix is cut, behind rows of which no entry exists and that end within a number."""
    stored(tmp_path, range(3))
    with open(tmp_path / "keys", "r+b") as file:
        file.truncate(2 * 32 + cut)
    with open(tmp_path / "rows", "ab") as file:
        file.write(b"\x01" * 7)
    left = range(3) if cut >= 32 else range(2)
    assert [*read(tmp_path)] == [KEYS[number] for number in left]
    stored(tmp_path, [3, 2])
    assert {key: matrix.tolist() for key, matrix in read(tmp_path).items()} == {
        KEYS[number]: MATRICES[number].tolist() for number in range(4)
    }


def test_an_entry_without_its_rows_is_not_read(tmp_path: Path) -> None:
    stored(tmp_path)
    os.truncate(tmp_path / "rows", 2 * 3 * 4)
    assert [*read(tmp_path)] == KEYS[:3]
    stored(tmp_path, [5])
    stored(tmp_path, [4])
    assert {key: matrix.tolist() for key, matrix in read(tmp_path).items()} == {
        KEYS[number]: MATRICES[number].tolist() for number in (0, 1, 2, 5, 4)
    }


def test_while_another_process_appends_rows_stay_in_memory(tmp_path: Path) -> None:
    rows = KeyedRows(tmp_path, 3)
    with locked(tmp_path):
        assert isinstance(rows.append(KEYS[:1], MATRICES[:1]), BlockingIOError)
        assert (
            rows.missing(KEYS[:2]) == KEYS[1:2]
            and rows.get(KEYS[:1])[0].tolist() == MATRICES[0].tolist()
        )
    assert not read(tmp_path)
    rows.append(KEYS[1:2], MATRICES[1:2])
    assert [*read(tmp_path)] == KEYS[:2]


def test_files_that_were_deleted_or_replaced_are_not_mixed_with_those_before(
    tmp_path: Path,
) -> None:
    first = stored(tmp_path / "rows", [0, 2])
    (tmp_path / "rows").rename(tmp_path / "before")
    stored(tmp_path / "rows", [4, 3, 2])
    assert first.missing(KEYS) == [KEYS[0], KEYS[1], KEYS[5]]
    assert first.get([KEYS[2]])[0].tolist() == MATRICES[2].tolist()


def test_processes_and_threads_append_without_losing_anything(tmp_path: Path) -> None:
    code = "import sys, numpy as np; from pathlib import Path; from pyterrier_graph.storage.arrays import KeyedRows\n"
    code += "rows = KeyedRows(Path(sys.argv[1]), 3)\nfor n in range(40): "
    code += "rows.append([bytes([n]) * 16], [np.full((n, 3), n, np.float16)])"
    others = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(2)]
    rows, keys = KeyedRows(tmp_path, 3), [bytes([100, n]) * 8 for n in range(40)]
    add = lambda part: [rows.append([key], [np.full((2, 3), key[1], np.float16)]) for key in part]  # noqa: E731
    threads = [threading.Thread(target=add, args=[keys[place::2]]) for place in range(2)]
    for thread in threads:
        thread.start()
    assert not any(
        [*(thread.join() for thread in threads), *(process.wait() for process in others)]
    )
    assert rows.append([], []) is None  # what was in memory while others appended
    fresh, theirs = KeyedRows(tmp_path, 3), [bytes([n]) * 16 for n in range(40)]
    missing = fresh.missing([*keys, *theirs])
    assert not set(missing) & {*keys}
    assert all((fresh.get([key])[0] == key[1]).all() for key in keys)
    for n in set(range(40)) - {key[0] for key in missing}:
        np.testing.assert_array_equal(fresh.get([theirs[n]])[0], np.full((n, 3), n))


# --- rerankers


class Counting(TokenEncoder):
    """An encoder that notes which passages it encodes."""

    def __init__(self) -> None:
        super().__init__(
            tiny.checkpoint(), max_passage_tokens=24, max_query_tokens=12, device="cpu"
        )
        self.encoded: list[str] = []

    def encode_passages(self, texts):  # type: ignore[no-untyped-def]
        self.encoded += texts
        return super().encode_passages(texts)


def run_of(graph: HeteroGraph) -> pd.DataFrame:
    return pd.DataFrame({"docno": graph.ids_of(graph.passage_nodes)}).merge(
        tiny.topics(2), how="cross"
    )


@pytest.fixture
def graph(tmp_path: Path) -> ptg.DocumentGraph:
    return ptg.DocumentGraph(tmp_path / "graph", verbose=False).index(tiny.documents())


SMALL = ptg.HGATConfig(layers=1, heads=2)


@pytest.mark.parametrize("where", ["next to the graph", "vectors_folder", "memory", "read-only"])
def test_each_text_is_encoded_once(graph: ptg.DocumentGraph, where: str, tmp_path: Path) -> None:
    encoder, other = Counting(), Counting()
    token_encoder._temporary.cache_clear()  # of other tests
    over: HeteroGraph = tiny.graph() if where == "memory" else graph
    if where == "vectors_folder":
        graph.vectors_folder = tmp_path / "elsewhere"
    if where == "read-only":
        Path(f"{graph.path}.vectors").write_text("a file where the folder should be")
    run, models = (
        run_of(over),
        [ptg.GraphMaxSim, lambda *given: ptg.HGATReranker(*given, config=SMALL)],
    )
    first = [make(over, encoder)(run)["score"] for make in models]
    assert (
        len(encoder.encoded) == len(set(encoder.encoded)) > len(set(over.texts(over.passage_nodes)))
    )  # titles, too
    again = [make(over, other)(run)["score"] for make in models]
    np.testing.assert_array_equal(again, first)
    assert not other.encoded
    if where in ("next to the graph", "vectors_folder"):
        (folder,) = Path(graph.vectors_folder or f"{graph.path}.vectors").glob("tokens-*")
        assert {file.name for file in folder.iterdir()} <= {"rows", "keys", "lock"}


def test_a_store_takes_what_is_encoded_already(graph: ptg.DocumentGraph, tmp_path: Path) -> None:
    encoder = Counting()
    ptg.GraphMaxSim(graph, encoder)(run_of(graph))
    before = {*encoder.encoded}
    encoder.encoded.clear()
    tokens = ptg.TokenStore(tmp_path / "tokens", verbose=False).build(graph, encoder)
    assert not before & {*encoder.encoded}
    scores = [
        ptg.GraphMaxSim(graph, encoder, tokens=given)(run_of(graph))["score"]
        for given in (None, tokens)
    ]
    np.testing.assert_array_equal(*scores)


def test_vectors_of_an_encoder_that_learns_are_not_stored(graph: ptg.DocumentGraph) -> None:
    run = run_of(graph)
    qrels = pd.DataFrame(
        [(f"t{n}", f"d{n}%p0", 1) for n in range(2)], columns=["qid", "docno", "label"]
    )
    training = ptg.HGATTraining(epochs=2, encoder_learning_rate=1e-3)
    hgat = ptg.HGATReranker(graph, tiny.encoder(), config=SMALL, training=training, verbose=False)
    hgat.fit(run, qrels, run, qrels)
    place = Path(f"{graph.path}.vectors")
    assert len([*place.glob("tokens-*/keys")]) <= 1  # of the encoder before
    trained = hgat(run)["score"]
    assert len([*place.glob("tokens-*/keys")]) <= 2
    np.testing.assert_allclose(hgat(run)["score"], trained)


def test_many_texts_get_a_warning(
    graph: ptg.DocumentGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_encoder, "MANY_TEXTS", 3)
    with pytest.warns(
        SpeedWarning, match=r"texts are encoded, which takes long, and kept in .*graph.vectors"
    ):
        ptg.GraphMaxSim(graph, tiny.encoder())(run_of(graph))


def test_a_projection_is_the_same_with_any_number_of_threads(
    graph: ptg.DocumentGraph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where it is computed again, with another number of threads, its last bits differ."""
    monkeypatch.setenv("PYTERRIER_HOME", str(tmp_path / "home"))
    computed = principal_directions
    texts, digests, threads = [" ".join(tiny.WORDS)], [], torch.get_num_threads()
    for count in (1, 2, 4):
        torch.set_num_threads(count)
        monkeypatch.setattr(
            token_encoder,
            "principal_directions",
            lambda *given, n=count: computed(*given) * (1 + 1e-6 * n),
        )
        digests.append(tiny.encoder().reduced(texts, 8).fingerprint())
    torch.set_num_threads(threads)
    assert digests[0] == digests[1] == digests[2]
    assert tiny.encoder().reduced([*texts, "alpha"], 8).fingerprint() != digests[0]
