"""Token vectors that rerankers keep next to the graph: encoded once, read by all, complete after a kill."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny
from trainings import forks, in_child

import pyterrier_graph as ptg
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
