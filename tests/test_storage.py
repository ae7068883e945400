"""Storage: artifacts that are complete or not there, work that continues after a kill, digests, locks, workers."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyterrier as pt
import pytest
import tiny
from test_sharing import KINDS, document_graph, made, query_passage_graph
from trainings import forks, in_child

from pyterrier_graph.evaluation.model_card import write_card
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.storage import artifact
from pyterrier_graph.storage.artifact import (
    CARD,
    DIGESTS,
    META,
    OWN_DIGEST,
    read_meta,
    verify,
    writing,
)

KIND = {"type": "thing", "format": "files", "format_version": 1}


def thing(path: Path, content: bytes = b"12345", wait: float = 0.0) -> Path:
    """An artifact with a small file and a large one."""
    with writing(path, KIND | {"number": 1e-05}) as folder:
        (folder / "inside").mkdir()
        (folder / "inside" / "small").write_bytes(content)
        (folder / "large").write_bytes(bytes(artifact.SMALL + 1))
        time.sleep(wait)
    return path


def files(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def fails(number: int) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


# --- artifacts that are written at once


def test_two_builds_at_one_path(tmp_path: Path) -> None:
    with writing(tmp_path / "a", dict(KIND)) as folder:
        (folder / "file").write_bytes(b"first")
        with pytest.raises(
            BlockingIOError, match="another process is at work in '.*a.new': wait until it is done"
        ):
            thing(tmp_path / "a")
        thing(tmp_path / "b")  # another path
    assert (tmp_path / "a" / "file").read_bytes() == b"first"
    with pytest.raises(FileExistsError, match="exists already"):
        thing(tmp_path / "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@forks
def test_files_of_a_killed_process_are_removed_and_those_of_a_living_one_stay(
    tmp_path: Path,
) -> None:
    begun = (tmp_path / ".a.new/files/large").exists
    assert in_child(thing, tmp_path / "a", b"", 60.0, until=begun) == -signal.SIGKILL
    assert begun() and not (tmp_path / "a").exists()
    with writing(tmp_path / "b", dict(KIND)):
        thing(tmp_path / "a")
        with pytest.raises(BlockingIOError, match="another process"):
            thing(tmp_path / "b")
        assert sorted(place.name for place in tmp_path.iterdir()) == [".b.new", "a"]


@forks
def test_an_artifact_that_is_being_replaced_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process has an error, or is killed, when the old graph has gone and the new one is not there."""
    graph = document_graph(tmp_path / "graph")
    records, original = [*graph.get_corpus_iter()], Path.replace

    def replace(fail: Callable[[], Any]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(
                Path,
                "replace",
                lambda path, to: fail() if path.name == "files" else original(path, to),
            )
            DocumentGraph(graph.path).index([{"docno": "a", "text": "new"}], overwrite=True)

    with pytest.raises(OSError, match="Input/output"):
        replace(fails(errno.EIO))
    assert [*tmp_path.iterdir()] == [graph.path]
    assert in_child(replace, lambda: os._exit(9)) == 9
    assert not graph.path.exists()
    with pytest.raises(FileExistsError, match="exists already"):
        document_graph(graph.path)
    assert [*tmp_path.iterdir()] == [graph.path]
    assert [*DocumentGraph(graph.path).get_corpus_iter()] == records


def test_a_graph_that_was_replaced_is_not_mixed_with_the_new_one(tmp_path: Path) -> None:
    graph = document_graph(tmp_path / "graph")
    old = DocumentGraph(graph.path)
    assert len(old) == 2
    graph.index([{"docno": "a", "text": "new"}, {"docno": "b", "text": "new"}], overwrite=True)
    with pytest.raises(
        ValueError, match="was replaced or removed after it had been opened: open it again"
    ):
        old.texts(np.array([0]))


@pytest.mark.parametrize("moment", ["meta_text", "file_sha256"])
def test_an_artifact_that_is_replaced_while_it_is_opened(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader sees the new one, not a damaged one."""
    graph, new = (
        document_graph(tmp_path / "graph"),
        DocumentGraph(tmp_path / "new").index(tiny.documents(3)),
    )
    compute = getattr(artifact, moment)

    def replaced(*arguments: Any) -> Any:
        monkeypatch.setattr(artifact, moment, compute)
        shutil.rmtree(graph.path)
        new.path.rename(graph.path)
        return compute(*arguments)

    records = [*new.get_corpus_iter()]
    monkeypatch.setattr(artifact, moment, replaced)
    assert [*DocumentGraph(graph.path).get_corpus_iter()] == records


@pytest.mark.parametrize("moment", ["sync", "meta_text", "file_sha256"])
def test_a_disk_that_is_full(moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = document_graph(tmp_path / "graph")
    records = [*graph.get_corpus_iter()]
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(artifact, moment, fails(errno.ENOSPC))
        graph.index([{"docno": "a", "text": "new"}], overwrite=True)
    assert [*tmp_path.iterdir()] == [graph.path]
    assert [*graph.get_corpus_iter()] == records == [*DocumentGraph(graph.path).get_corpus_iter()]
    assert len(graph.index([{"docno": "a", "text": "new"}], overwrite=True)) == 1


# --- digests


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An artifact of every kind."""
    return {name: Path(str(made(name, tmp_path_factory.mktemp("kind")).path)) for name in KINDS}


def flip(file: Path, place: int, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1 << bit
    file.write_bytes(content)


def flips(artifacts: dict[str, Path], count: int) -> Iterator[tuple[Path, Path, int, int]]:
    """Artifact, file, byte and bit: kinds in turn, any of their files, any of its bits."""
    draw = np.random.default_rng(count)
    for path in (list(artifacts.values()) * count)[:count]:
        found = sorted(file for file in path.rglob("*") if file.is_file() and file.stat().st_size)
        file = found[draw.integers(len(found))]
        yield path, file, int(draw.integers(file.stat().st_size)), int(draw.integers(8))


@pytest.mark.parametrize("count", [40, pytest.param(150, marks=pytest.mark.slow)])
def test_every_flipped_bit_is_found(count: int, artifacts: dict[str, Path]) -> None:
    """By verify(), and in small files also when the artifact is opened."""
    for path, file, place, bit in flips(artifacts, count):
        verify(path)
        flip(file, place, bit)
        with pytest.raises(ValueError, match="damaged"):
            verify(path)
        if file.stat().st_size <= artifact.SMALL:
            with pytest.raises(ValueError, match="damaged"):
                read_meta(path)
        flip(file, place, bit)


def test_every_value_of_the_meta_counts(tmp_path: Path) -> None:
    path = thing(tmp_path / "thing")
    meta = read_meta(path, KIND)
    text = (path / META).read_text()
    changes: list[dict[str, Any]] = [
        {"number": 1e-06},
        {"more": 1},
        {OWN_DIGEST: "0"},
        {DIGESTS: {}},
        {"files": {}},
    ]
    texts = [json.dumps(meta | change, indent=1) for change in changes]
    texts += [
        json.dumps({key: meta[key] for key in meta if key != name}, indent=1)
        for name in (OWN_DIGEST, DIGESTS)
    ]
    texts += [text.replace("1e-05", "1E-05"), "[" * 100_000, ""]  # one bit, the same value
    for changed in texts:
        (path / META).write_text(changed)
        with pytest.raises(ValueError, match="damaged"):
            read_meta(path, KIND)
    with pytest.raises(FileNotFoundError, match="no artifact at"):
        read_meta(tmp_path / "none")


def test_cards_and_edge_features_have_digests(tmp_path: Path) -> None:
    graph = query_passage_graph(tmp_path / "graph")
    texts = pt.apply.generic(lambda frame: frame.assign(text=frame["docno"]))
    graph.add_edge_features(lambda left, right: np.ones((len(left), 3)), texts)
    write_card(graph)
    again = QueryPassageGraph(graph.path).verify()
    assert {CARD, "retrieved.features.f2"} <= {*again.meta[DIGESTS]}
    flip(graph.path / "retrieved.features.f2", 3, 1)
    with pytest.raises(ValueError, match="retrieved.features.f2"):
        graph.verify()
