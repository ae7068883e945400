"""Token vectors that rerankers keep next to the graph: encoded once, read by all, complete after a kill."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny
import torch
from trainings import forks, in_child

import pyterrier_graph as ptg
from pyterrier_graph.checks import SpeedWarning
from pyterrier_graph.encoders import token_cache
from pyterrier_graph.encoders.token_cache import TokenCache
from pyterrier_graph.encoders.token_encoder import TokenEncoder
from pyterrier_graph.graphs.hetero_graph import HeteroGraph

MATRICES = {bytes([n]) * 16: np.full((n, 3), n, np.float16) for n in range(40)}
KEYS = [*MATRICES]


def cache(folder: Path, numbers: Iterable[int] = ()) -> TokenCache:
    made = TokenCache(folder / "tokens.sqlite", 3)
    for number in numbers:
        made.write({KEYS[number]: MATRICES[KEYS[number]]})
    return made


def check(made: TokenCache, numbers: Iterable[int]) -> None:
    found = made.read(KEYS)
    assert found.keys() == {KEYS[number] for number in numbers}
    for key, matrix in found.items():
        np.testing.assert_array_equal(matrix, MATRICES[key])


# --- files


def test_matrices_are_read_by_other_objects_and_new_ones_are_found(tmp_path: Path) -> None:
    reader = cache(tmp_path / "folder")
    check(reader, [])
    assert not (tmp_path / "folder").exists()
    cache(tmp_path / "folder", [1, 0, 0])
    check(reader, [0, 1])
    cache(tmp_path / "folder", range(40))
    check(reader, range(40))


@forks
def test_what_a_killed_process_leaves_is_complete_and_is_continued(tmp_path: Path) -> None:
    def writing() -> None:
        for _ in range(1000):
            cache(tmp_path, range(1, 40))

    assert in_child(writing, until=lambda: len(cache(tmp_path).read(KEYS)) > 5) < 0
    left = cache(tmp_path).read(KEYS)
    check(cache(tmp_path), range(1, len(left) + 1))
    check(cache(tmp_path, range(40)), range(40))


def test_a_file_that_cannot_be_written_or_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check(cache(tmp_path / "file", [3]), [3])  # in memory
    check(cache(tmp_path / "file"), [])
    cache(tmp_path, range(9))
    (tmp_path / "tokens.sqlite").write_bytes(bytes(100_000))
    with pytest.raises(ValueError, match="tokens.sqlite' is damaged: .* delete it"):
        cache(tmp_path).read(KEYS)


def test_processes_and_threads_write_without_losing_anything(tmp_path: Path) -> None:
    code = "import sys, numpy as np; from pathlib import Path; "
    code += "from pyterrier_graph.encoders.token_cache import TokenCache\n"
    code += "cache = TokenCache(Path(sys.argv[1], 'tokens.sqlite'), 3)\nfor n in range(0, 40, 2): "
    code += "cache.write({bytes([n]) * 16: np.full((n, 3), n, np.float16)})"
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(partial(cache, tmp_path), [range(1, 40, 4), range(3, 40, 4)])]
    assert process.wait() == 0
    check(cache(tmp_path), range(40))


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
    token_cache._temporary.cache_clear()  # of other tests
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
        assert [*Path(graph.vectors_folder or f"{graph.path}.vectors").glob("tokens-*.sqlite")]


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
    assert len([*place.glob("tokens-*")]) <= 1  # of the encoder before
    trained = hgat(run)["score"]
    assert len([*place.glob("tokens-*")]) <= 2
    np.testing.assert_allclose(hgat(run)["score"], trained)


def test_many_texts_get_a_warning(
    graph: ptg.DocumentGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_cache, "MANY_TEXTS", 3)
    with pytest.warns(
        SpeedWarning, match=r"texts, which takes long; their vectors are kept in .*graph.vectors"
    ):
        ptg.GraphMaxSim(graph, tiny.encoder())(run_of(graph))


def test_a_projection_is_the_same_with_any_number_of_threads() -> None:
    texts, digests, threads = [" ".join(tiny.WORDS)], set(), torch.get_num_threads()
    for count in (1, 2, 4):
        torch.set_num_threads(count)
        digests.add(tiny.encoder().reduced(texts, 8).fingerprint())
    assert torch.get_num_threads() == 4 and len(digests) == 1
    torch.set_num_threads(threads)
    assert tiny.encoder().reduced([*texts, "alpha"], 8).fingerprint() not in digests
