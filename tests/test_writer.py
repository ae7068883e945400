"""The writer of everything that takes long: ranges, workers, interruptions, locks.

Workers import this module, so it imports little.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from pyterrier_graph.storage import writer
from pyterrier_graph.storage.artifact import META, file_sha256
from pyterrier_graph.storage.writer import PLAN, unfinished

ROWS, AT_ONCE, WIDTH = 23, 4, 3
NAMES = ("rows.f4", "words.u4", "offsets.i8")

Work = Callable[[np.ndarray], dict[str, np.ndarray]]


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def until(true: Callable[[], Any], seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def rows_of(numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Rows of a fixed length and rows of several lengths, from which their numbers can be read."""
    lengths = numbers % 3
    rows = numbers[:, None] * 10.0 + np.arange(WIDTH)
    return {
        "rows.f4": rows.astype("<f4"),
        "words.u4": np.repeat(numbers, lengths).astype("<u4"),
        "offsets.i8": lengths,
    }


class Calls:
    """Remembers what it was asked for, and fails at one call."""

    def __init__(
        self, fail_at: int | None = None, error: type[BaseException] = KeyboardInterrupt
    ) -> None:
        self.fail_at, self.error = fail_at, error
        self.asked: list[int] = []

    def __call__(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        if len(self.asked) == self.fail_at:
            raise self.error("stopped")
        self.asked.append(int(numbers[0]))
        return rows_of(numbers)


def write(
    path: Path, work: Work = rows_of, *, rows: int = ROWS, at_once: int = AT_ONCE, **options: Any
) -> Path:
    meta = {"type": "rows"} | options.pop("meta", {})
    with unfinished(path, meta, rows, at_once) as made:
        made.prepare(lambda folder: (folder / "about.txt").write_text("about"))
        made.compute(work, *NAMES, lengths=["offsets.i8"], disable=True, **options)
        meta["sum"] = int(np.fromfile(made.folder / "offsets.i8", "<i8")[-1])
    return path


def interrupted(path: Path, fail_at: int, **options: Any) -> list[int]:
    """Interrupts work at its range ``fail_at``; returns the ranges that were computed."""
    with pytest.raises(KeyboardInterrupt):
        write(path, calls := Calls(fail_at), **options)
    return calls.asked


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return files(write(tmp_path_factory.mktemp("whole") / "made"))


def test_rows_in_order(tmp_path: Path) -> None:
    found = files(write(tmp_path / "made"))
    everything = rows_of(np.arange(ROWS))
    assert sorted(found) == sorted([*NAMES, "about.txt", META])
    assert found["rows.f4"] == everything["rows.f4"].tobytes()
    assert found["words.u4"] == everything["words.u4"].tobytes()
    offsets = np.frombuffer(found["offsets.i8"], "<i8")
    assert offsets.tolist() == [0, *everything["offsets.i8"].cumsum().tolist()]
    meta = json.loads(found[META])
    assert meta["sum"] == ROWS - 1 and meta["files"] == {
        n: len(found[n]) for n in sorted(found) if n != META
    }
    assert meta["file_sha256"] == {
        name: file_sha256(tmp_path / "made" / name) for name in meta["files"]
    }
    assert [file.name for file in tmp_path.iterdir()] == ["made"]


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 30), st.integers(1, 12), st.integers(0, 12))
def test_any_number_of_rows(
    tmp_path_factory: pytest.TempPathFactory, rows: int, at_once: int, fail_at: int
) -> None:
    """Also interrupted."""
    folder = tmp_path_factory.mktemp("any")
    expected = files(write(folder / "whole", rows=rows, at_once=at_once))
    assert expected["rows.f4"] == rows_of(np.arange(rows))["rows.f4"].tobytes()
    calls = Calls(fail_at)
    try:
        write(folder / "made", calls, rows=rows, at_once=at_once)
    except KeyboardInterrupt:
        assert not (folder / "made").exists()
        write(folder / "made", more := Calls(), rows=rows, at_once=at_once)
        assert calls.asked + more.asked == [*range(0, rows, at_once)]
    assert files(folder / "made") == expected
    assert not [*folder.glob("made.*")]


def test_only_missing_ranges_are_computed(tmp_path: Path, whole: dict[str, bytes]) -> None:
    """Torn files of a killed process, and gaps that its workers have left."""
    assert interrupted(tmp_path / "made", 3) == [0, 4, 8]
    place = tmp_path / "made.unfinished"
    (place / "files" / "about.txt").write_text("aBout")  # is not written again
    (place / "files" / "rows.f4").write_bytes(b"half")
    (folder,) = place.glob("ranges-*")
    (folder / "00000003-half.tmp").write_bytes(b"half")
    save_file(rows_of(np.arange(16, 20)), folder / "00000004.safetensors")
    found = files(write(tmp_path / "made", calls := Calls()))
    assert found.pop("about.txt") == b"aBout" and calls.asked == [12, 20]
    assert {name: found[name] for name in NAMES} == {name: whole[name] for name in NAMES}


def test_nothing_is_left_if_nothing_was_done(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        write(tmp_path / "made", Calls(0, ZeroDivisionError))
    assert not [*tmp_path.iterdir()]


def test_work_of_something_else(tmp_path: Path, whole: dict[str, bytes]) -> None:
    interrupted(tmp_path / "made", 2, meta={"encoder": {"name": "a"}, "dtype": "float32"})
    other, place = {"encoder": {"name": "b"}, "dtype": "float32"}, tmp_path / "made.unfinished"
    message = "something else: encoder was {'name': 'a'}, and is {'name': 'b'}; rows_per_range was 4, and is 5. Delete"
    with pytest.raises(
        ValueError, match=re.escape(f"{str(place)!r} is unfinished work of {message}")
    ):
        write(tmp_path / "made", meta=other, at_once=5)
    (place / PLAN).write_text('{"rows": 7}')
    with pytest.raises(
        ValueError, match="unfinished work of something else: rows was 7, and is 23"
    ):
        write(tmp_path / "made", meta=other)
    shutil.rmtree(place)
    assert files(write(tmp_path / "made")) == whole


@pytest.mark.parametrize("moment", ["complete", "rmtree"])
def test_killed_at_the_end(
    moment: str, tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(path: Path, *_: Any, **__: Any) -> None:
        if moment == "complete" or path.suffix == ".unfinished":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(writer if moment == "complete" else writer.shutil, moment, killed)
        write(tmp_path / "made")
    if moment == "rmtree":  # of the folder with unfinished work
        assert (tmp_path / "made.unfinished").exists()
        with pytest.raises(FileExistsError, match="made' exists already"):
            write(tmp_path / "made")
    else:
        assert not (tmp_path / "made").exists()
        write(tmp_path / "made", calls := Calls())
        assert not calls.asked
    assert [file.name for file in tmp_path.iterdir()] == ["made"] and files(
        tmp_path / "made"
    ) == whole


def test_something_else_at_the_path(tmp_path: Path, whole: dict[str, bytes]) -> None:
    interrupted(tmp_path / "made", 2)
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "notes.txt").touch()
    with pytest.raises(FileExistsError):
        write(tmp_path / "made")
    (tmp_path / "made" / "notes.txt").unlink()

    def work(numbers: np.ndarray) -> dict[str, np.ndarray]:
        who = f"another process is at work in {str(tmp_path / 'made.unfinished')!r}: wait until it is done"
        with pytest.raises(BlockingIOError, match=re.escape(who)):
            write(tmp_path / "made")
        return rows_of(numbers)

    assert files(write(tmp_path / "made", work)) == whole


# --- workers


def test_processes(tmp_path: Path, whole: dict[str, bytes]) -> None:
    """Two of them, a function that is defined here, and a worker that dies: an equal call continues."""
    died = tmp_path / "died"

    def work(numbers: np.ndarray) -> dict[str, np.ndarray]:
        if numbers[0] == 8 and not died.exists():
            until(lambda: stored(tmp_path / "made") >= 1)
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return rows_of(numbers)

    with pytest.raises(RuntimeError, match="SIGKILL"):
        write(tmp_path / "made", work, workers=2)
    assert died.exists() and stored(tmp_path / "made")
    assert files(write(tmp_path / "made", work, workers=2)) == whole


def test_a_worker_that_fails(tmp_path: Path, whole: dict[str, bytes]) -> None:
    def work(numbers: np.ndarray) -> dict[str, np.ndarray]:
        if numbers[0] == 12:
            until(lambda: stored(tmp_path / "made") >= 3)
            raise ValueError("row 12 is wrong")
        return rows_of(numbers)

    with pytest.raises(ValueError, match="row 12 is wrong"):
        write(tmp_path / "made", work, workers=2)
    assert not (tmp_path / "made").exists()
    assert files(write(tmp_path / "made", calls := Calls())) == whole
    assert 12 in calls.asked and len(calls.asked) <= 3


@pytest.mark.skipif(sys.platform != "linux", reason="forks, and looks into /proc")
def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    def work(numbers: np.ndarray) -> dict[str, np.ndarray]:
        (tmp_path / f"{os.getpid()}.pid").touch()
        time.sleep(600)
        return rows_of(numbers)

    process = multiprocessing.get_context("fork").Process(
        target=write, args=(tmp_path / "made", work), kwargs={"workers": 2}
    )
    process.start()
    until(lambda: len([*tmp_path.glob("*.pid")]) == 2)
    process.kill()
    until(
        lambda: (
            not any(os.path.exists(f"/proc/{file.stem}/exe") for file in tmp_path.glob("*.pid"))
        ),
        seconds=20,
    )


@pytest.mark.parametrize("given", [0, -1, 1.5, True, "joblib", None])
def test_wrong_workers(tmp_path: Path, given: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"1 or more, or 'ray', got {given!r}")):
        write(tmp_path / "made", workers=given)
    assert not [*tmp_path.iterdir()]


def test_without_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        ImportError, match=re.escape("workers='ray' needs Ray: pip install 'pyterrier-graph[ray]'")
    ):
        write(tmp_path / "made", workers="ray")


def test_mapped_files_are_not_sent(tmp_path: Path) -> None:
    matrix = np.random.default_rng(0).normal(size=(1000, 20)).astype("<f4")
    matrix.tofile(tmp_path / "matrix.f4")
    mapped = np.memmap(tmp_path / "matrix.f4", "<f4", "r", shape=matrix.shape)
    views = {
        "all": mapped,
        "part": mapped[500:],
        "row": np.asarray(mapped[7:8])[0],
        "no": mapped[:, 1:2],
    }
    sent = writer.dumps(lambda: views)
    assert len(sent) < 10_000
    for name, view in writer.cloudpickle.loads(
        sent
    )().items():  # the last one is not a whole part of the file
        np.testing.assert_array_equal(view, views[name])
        assert (getattr(view, "filename", None) is not None) is (name != "no")


@pytest.mark.slow
def test_ray(tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of two nodes: both work, a worker dies, then a whole node."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    seen = tmp_path / "seen"
    seen.mkdir()

    def work(numbers: np.ndarray) -> dict[str, np.ndarray]:
        node = ray.get_runtime_context().get_node_id()
        if numbers[0] == 8 and not (seen / "died").exists():
            (seen / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        (seen / f"{node}-{numbers[0]}").touch()
        until(lambda: len({file.name.split("-")[0] for file in seen.glob("*-*")}) == 2)
        if numbers[0] == 16:
            until(lambda: (seen / "removed").exists())
        return rows_of(numbers)

    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "0")  # other programs may need memory
    paths = os.pathsep.join(map(str, [Path(__file__).parent, Path(writer.__file__).parents[2]]))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        ray.init(
            address=cluster.address,
            runtime_env={"env_vars": {"PYTHONPATH": paths}},
            log_to_driver=False,
        )
        node = cluster.add_node(
            num_cpus=1
        )  # later, so that this process is connected to the other one
        cluster.wait_for_nodes()

        def remove() -> None:
            until(lambda: any(file.name.endswith("-16") for file in seen.glob("*-*")))
            cluster.remove_node(node)
            (seen / "removed").touch()

        with ThreadPoolExecutor(1) as pool:
            removed = pool.submit(remove)
            assert files(write(tmp_path / "made", work, workers="ray")) == whole
            removed.result()
        assert (seen / "died").exists()
        with pytest.raises(ZeroDivisionError):
            write(tmp_path / "wrong", lambda numbers: {"rows.f4": numbers[: 1 // 0]}, workers="ray")
        assert sorted(file.name for file in tmp_path.iterdir()) == ["made", "seen"]
    finally:
        ray.shutdown()
        cluster.shutdown()


# --- processes that are killed

SCRIPT = """
    import signal, sys, time
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    from pathlib import Path
    import numpy as np
    from pyterrier_graph.storage.writer import unfinished

    def rows_of(numbers):  # sent to the workers, which import next to nothing
        time.sleep({seconds})
        lengths = numbers % 3
        rows = numbers[:, None] * 10.0 + np.arange({WIDTH})
        words = np.repeat(numbers, lengths).astype("<u4")
        return {{"rows.f4": rows.astype("<f4"), "words.u4": words, "offsets.i8": lengths}}

    meta = {{"type": "rows"}}
    with unfinished(Path(sys.argv[1]), meta, {rows}, {AT_ONCE}) as writer:
        writer.prepare(lambda folder: (folder / "about.txt").write_text("about"))
        writer.compute(rows_of, *{NAMES}, lengths=["offsets.i8"], disable=True, workers=int(sys.argv[2]))
        meta["sum"] = int(np.fromfile(writer.folder / "offsets.i8", "<i8")[-1])
"""


def process(path: Path, workers: int, rows: int, seconds: float) -> subprocess.Popen[str]:
    script = textwrap.dedent(SCRIPT).format(
        rows=rows, seconds=seconds, WIDTH=WIDTH, AT_ONCE=AT_ONCE, NAMES=NAMES
    )
    command = [sys.executable, "-c", script, str(path), str(workers)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


def stored(path: Path) -> int:
    """How many ranges are on the disk."""
    return len([*path.parent.glob(f"{path.name}.unfinished/ranges-*/[0-9]*.safetensors")])


def workers_of(pid: int) -> list[int]:
    """Processes of another process that compute."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            command = (stat.parent / "cmdline").read_bytes()
        except (OSError, ValueError, IndexError):
            continue
        if parent == pid and b"popen_loky" in command:
            found.append(int(stat.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_process_that_is_ended(
    how: signal.Signals, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    """The lock and the workers end with it, and the next call continues."""
    path = tmp_path / "made"
    running = process(path, 2, ROWS, 0.5)
    until(lambda: stored(path) >= 2)
    with pytest.raises(
        BlockingIOError, match="another process is at work in .*: wait until it is done, or end it"
    ):
        write(path)
    started = workers_of(running.pid)
    if how == signal.SIGINT:
        os.killpg(running.pid, how)  # as a terminal does: workers get it, too
        assert running.communicate(timeout=60)[1].rstrip().endswith("KeyboardInterrupt")
    else:
        running.kill()
        running.wait()
        for pid in started:  # they end by themselves after 40 seconds without work
            os.kill(pid, how)
    assert not path.exists()
    assert files(write(path, calls := Calls())) == whole
    assert len(calls.asked) <= 4
    until(
        lambda: not any(Path("/proc", str(pid)).exists() for pid in started)
    )  # they do not stay for ever
