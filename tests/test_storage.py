"""Artifacts that are complete or not there: kills, full disks, readers and writers at once, damages."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from test_sharing import KINDS, document_graph, made
from trainings import forks, in_child

from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.storage.artifact import (
    LOCK,
    META,
    atomic_folder,
    kind_of,
    locked,
    read_meta,
    verify,
)

KIND = {"type": "thing", "format": "files", "format_version": 1}
NEW = [{"docno": "a", "text": "new"}]


def thing(path: Path, wait: float = 0.0) -> Path:
    """An artifact with a small file, a large one, and another artifact."""
    with atomic_folder(path, KIND | {"number": 1e-05}) as folder:
        (folder / "small").write_bytes(b"12345")
        (folder / "large").write_bytes(bytes(1 << 20))
        with atomic_folder(folder / "inside", {"type": "other"}) as inside:
            (inside / "large").write_bytes(bytes(1 << 20))
        time.sleep(wait)
    return path


def fails(number: int) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


# --- writing


def test_two_processes_at_one_path(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "a", dict(KIND)) as folder:
        (folder / "file").write_bytes(b"first")
        with pytest.raises(
            BlockingIOError, match=r"another process is at work and holds '.*a.lock': wait"
        ):
            thing(tmp_path / "a")
        thing(tmp_path / "b")  # another path
    assert (tmp_path / "a" / "file").read_bytes() == b"first"
    with pytest.raises(FileExistsError, match="exists already"):
        thing(tmp_path / "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_lock_that_is_taken_at_once_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = FileLock.release

    def release_to_another(lock: FileLock, force: bool = False) -> None:
        held = lock.is_locked
        release(lock, force)
        if held:
            tmp_path.joinpath(LOCK).touch()

    monkeypatch.setattr(FileLock, "release", release_to_another)
    with locked(tmp_path / LOCK):
        pass
    assert (tmp_path / LOCK).exists()


@forks
def test_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    begun = (tmp_path / ".a.new/files/inside").exists
    assert in_child(thing, tmp_path / "a", 60.0, until=begun) == -signal.SIGKILL
    assert begun() and not (tmp_path / "a").exists()
    verify(thing(tmp_path / "a"))
    assert [*tmp_path.iterdir()] == [tmp_path / "a"]


@forks
def test_an_artifact_that_is_being_replaced_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process has an error, or is killed, when the old graph has gone and the new one is not there."""
    graph = document_graph(tmp_path / "graph")
    records, original = [*graph.get_corpus_iter()], Path.replace

    def replace(fail: Callable[[], Any]) -> None:
        def failing(path: Path, target: Path) -> Any:
            return fail() if path.name == "files" else original(path, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", failing)
            with atomic_folder(graph.path, kind_of(graph), overwrite=True) as folder:
                (folder / "texts").write_text("new")

    with pytest.raises(OSError, match="Input/output"):
        replace(fails(errno.EIO))
    assert [*tmp_path.iterdir()] == [graph.path]
    assert in_child(replace, lambda: os._exit(9)) == 9
    assert not graph.path.exists()
    with pytest.raises(FileExistsError, match="exists already"):
        document_graph(graph.path)
    assert [*tmp_path.iterdir()] == [graph.path]
    assert [*DocumentGraph(graph.path).get_corpus_iter()] == records


# --- opening


def flip(file: Path, place: int, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1 << bit
    file.write_bytes(content)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """An artifact of every kind."""
    folder = tmp_path_factory.mktemp
    return [
        thing(folder("kind") / "thing"),
        *(Path(str(made(name, folder("kind")).path)) for name in KINDS),
    ]


def test_every_flipped_bit_is_found(artifacts: list[Path]) -> None:
    draw = np.random.default_rng(40)
    for path in (artifacts * 40)[:40]:
        verify(path)
        files = sorted(file for file in path.rglob("*") if file.is_file() and file.stat().st_size)
        files = [file for file in files if file.name != META]
        file = files[draw.integers(len(files))]
        place, bit = int(draw.integers(file.stat().st_size)), int(draw.integers(8))
        flip(file, place, bit)
        with pytest.raises(ValueError, match="damaged"):
            verify(path)
        flip(file, place, bit)


def test_no_artifact_and_half_a_meta(tmp_path: Path) -> None:
    path = thing(tmp_path / "thing")
    (path / META).write_text((path / META).read_text()[:50])
    with pytest.raises(ValueError, match="line"):
        read_meta(path, KIND)
    with pytest.raises(FileNotFoundError):
        read_meta(tmp_path / "none")
