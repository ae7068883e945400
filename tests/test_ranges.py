"""The writer of everything that takes long: ranges, workers, interruptions, locks."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
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

from pyterrier_graph.artifacts import META
from pyterrier_graph.ranges import pickling, workers, writer
from pyterrier_graph.ranges.files import Ranges
from pyterrier_graph.ranges.writer import PLAN, unfinished

ROWS, AT_ONCE, WIDTH = 23, 4, 3
NAMES = ("rows.f4", "words.u4", "offsets.i8")

Work = Callable[[np.ndarray], dict[str, np.ndarray]]


def rows_of(numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Rows of a fixed length and rows of several lengths, which tell their number."""
    lengths = numbers % 3
    rows = numbers[:, None] * 10.0 + np.arange(WIDTH)
    return {"rows.f4": rows.astype("<f4"), "words.u4": np.repeat(numbers, lengths).astype("<u4"), "offsets.i8": lengths}


class Calls:
    """Remembers what it was asked for, and fails at one call."""

    def __init__(self, fail_at: int | None = None, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.fail_at, self.error = fail_at, error
        self.asked: list[int] = []

    def __call__(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        if len(self.asked) == self.fail_at:
            raise self.error("stopped")
        self.asked.append(int(numbers[0]))
        return rows_of(numbers)


def write(path: Path, work: Work = rows_of, *, rows: int = ROWS, at_once: int = AT_ONCE, **options: Any) -> Path:
    meta = {"type": "rows"} | options.pop("meta", {})
    with unfinished(path, meta, rows, at_once) as writer:
        writer.prepare(lambda folder: (folder / "about.txt").write_text("about"))
        writer.compute(work, *NAMES, lengths=["offsets.i8"], disable=True, **options)
        meta["sum"] = int(np.fromfile(writer.folder / "offsets.i8", "<i8")[-1])
    return path


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def digests(folder: Path) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in files(folder).items()}


# --- what is written


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
        name: len(found[name]) for name in sorted(found) if name != META
    }
    assert meta["file_sha256"] == {name: sha for name, sha in digests(tmp_path / "made").items() if name != META}
    assert [file.name for file in tmp_path.iterdir()] == ["made"]


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 30), st.integers(1, 12), st.integers(0, 12), st.integers(1, 200))
def test_any_number_of_rows(
    tmp_path_factory: pytest.TempPathFactory, rows: int, at_once: int, fail_at: int, batch: int
) -> None:
    """Also interrupted, with any number of bytes between two deletions of ranges."""
    folder = tmp_path_factory.mktemp("any")
    whole = files(write(folder / "whole", rows=rows, at_once=at_once))
    assert whole["rows.f4"] == rows_of(np.arange(rows))["rows.f4"].tobytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "COPIED_AT_ONCE", batch)
        calls = Calls(fail_at)
        try:
            write(folder / "made", calls, rows=rows, at_once=at_once)
        except KeyboardInterrupt:
            assert not (folder / "made").exists()
            more = Calls()
            write(folder / "made", more, rows=rows, at_once=at_once)
            assert calls.asked + more.asked == [*range(0, rows, at_once)]
    assert files(folder / "made") == whole
    assert not [*folder.glob("made.*")]


def test_ranges_that_are_read(tmp_path: Path) -> None:
    meta: dict[str, Any] = {}
    with unfinished(tmp_path / "made", meta, ROWS, AT_ONCE) as made:
        made.compute(rows_of, disable=True)
        assert len(made.ranges) == 6
        parts = [part["rows.f4"] for part in made.read()]
        assert np.concatenate(parts).tobytes() == rows_of(np.arange(ROWS))["rows.f4"].tobytes()
    assert json.loads((tmp_path / "made" / META).read_text())["files"] == {}


def test_progress_begins_with_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "made", Calls(fail_at=2))
    seen: list[dict[str, Any]] = []
    tqdm = writer.pt.tqdm
    monkeypatch.setattr(writer.pt, "tqdm", lambda **options: seen.append(options) or tqdm(**options))
    write(tmp_path / "made", desc="rows", unit="row")
    assert seen == [{"total": ROWS, "initial": 8, "desc": "rows", "unit": "row", "disable": True}]


def test_arrays_of_other_names(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a range has other, but rows.f4, words.u4, offsets.i8 are needed"):
        write(tmp_path / "made", lambda numbers: {"other": numbers})


# --- workers


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return files(write(tmp_path_factory.mktemp("whole") / "made"))


def test_processes(tmp_path: Path, whole: dict[str, bytes]) -> None:
    """Two of them, a function that is defined here, and one worker that dies at its first range."""
    died = tmp_path / "died"

    def work(numbers: np.ndarray) -> dict[str, np.ndarray]:
        if numbers[0] == 8 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return rows_of(numbers)

    assert files(write(tmp_path / "made", work, workers=2)) == whole
    assert died.exists()


def test_one_process_goes_on_after_several(tmp_path: Path, whole: dict[str, bytes]) -> None:
    """What they have done is used, though there are gaps."""
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "made", Calls(fail_at=1))
    (folder,) = tmp_path.glob("made.unfinished/ranges-*")
    ranges = Ranges(folder, ROWS, AT_ONCE)
    for number in (2, 3, 5):
        ranges.write(number, rows_of(ranges.numbers(number)))
    calls = Calls()
    assert files(write(tmp_path / "made", calls)) == whole
    assert calls.asked == [4, 16]


def test_damaged_work(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "made", Calls(fail_at=2))
    os.truncate(tmp_path / "made.unfinished" / "files" / "rows.f4", 5)
    with pytest.raises(ValueError, match="rows.f4' is damaged: delete .*made.unfinished' to begin anew"):
        write(tmp_path / "made")


def test_a_worker_that_fails(tmp_path: Path, whole: dict[str, bytes]) -> None:
    def work(numbers: np.ndarray) -> dict[str, np.ndarray]:
        if numbers[0] == 12:
            until(lambda: stored(tmp_path / "made") >= 3)
            raise ValueError("text 12 is no text")
        return rows_of(numbers)

    with pytest.raises(ValueError, match="text 12 is no text"):
        write(tmp_path / "made", work, workers=2)
    assert not (tmp_path / "made").exists()
    calls = Calls()
    assert files(write(tmp_path / "made", calls)) == whole
    assert 12 in calls.asked and len(calls.asked) <= 3


def test_workers_that_always_die(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "DEATHS", 2)

    def work(numbers: np.ndarray) -> dict[str, np.ndarray]:
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    with pytest.raises(RuntimeError, match="2 workers died one after the other, and nothing was done in between"):
        write(tmp_path / "made", work, workers=2)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("given", [0, -1, 1.5, True, "joblib", None])
def test_wrong_workers(tmp_path: Path, given: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"1 or more, or 'ray', got {given!r}")):
        write(tmp_path / "made", workers=given)
    assert not [*tmp_path.iterdir()]


def test_without_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=re.escape("workers='ray' needs Ray: pip install 'pyterrier-graph[ray]'")):
        write(tmp_path / "made", workers="ray")


def test_each_worker_takes_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(workers.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(workers, "_held", [])
    for count, names in (0, []), (1, []), (3, ["0", "1", "2"]):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        monkeypatch.delenv(workers.VISIBLE, raising=False)
        assert workers.gpus() == names
    monkeypatch.setenv(workers.VISIBLE, "4,7,GPU-1a")
    assert workers.gpus() == ["4", "7", "GPU-1a"]
    taken = [workers.take_gpu(workers.gpus()) for _ in range(3)]
    assert taken == ["4", "7", "GPU-1a"]
    assert workers.take_gpu(["4", "7"]) in {"4", "7"}  # shared
    workers._held[1].release()
    assert workers.take_gpu(workers.gpus()) == "7"
    for lock in workers._held:
        lock.release()


def test_what_is_mapped_is_not_sent(tmp_path: Path) -> None:
    matrix = np.random.default_rng(0).normal(size=(1000, 20)).astype("<f4")
    matrix.tofile(tmp_path / "matrix.f4")
    mapped = np.memmap(tmp_path / "matrix.f4", "<f4", "r", shape=matrix.shape)
    views = {"all": mapped, "part": mapped[500:], "row": np.asarray(mapped[7:8])[0], "no": mapped[:, 1:2]}
    sent = pickling.dumps(lambda: views)
    assert len(sent) < 10_000
    for name, view in pickling.loads(sent)().items():  # the last one is no whole part of the file
        np.testing.assert_array_equal(view, views[name])
        assert (getattr(view, "filename", None) is not None) is (name != "no")


# --- interruptions and leftovers


def test_only_missing_ranges_are_computed(tmp_path: Path, whole: dict[str, bytes]) -> None:
    first = Calls(fail_at=3)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "made", first)
    place = tmp_path / "made.unfinished"
    (place / "files" / "about.txt").write_text("aBout")  # is not written again
    with open(place / "files" / "rows.f4", "ab") as torn:
        torn.write(b"half")
    (ranges,) = place.glob("ranges-*")
    (ranges / "00000003-half.tmp").write_bytes(b"half")
    second = Calls(fail_at=0)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "made", second)
    assert not [*ranges.iterdir()]
    third = Calls()
    assert files(write(tmp_path / "made", third))["about.txt"] == b"aBout"
    assert (first.asked, third.asked) == ([0, 4, 8], [12, 16, 20])
    assert {name: files(tmp_path / "made")[name] for name in NAMES} == {name: whole[name] for name in NAMES}


def test_nothing_is_left_if_nothing_was_done(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        write(tmp_path / "made", Calls(0, ZeroDivisionError))
    assert not [*tmp_path.iterdir()]


def test_work_of_something_else(tmp_path: Path, whole: dict[str, bytes]) -> None:
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "made", Calls(fail_at=2), meta={"encoder": {"name": "a"}, "dtype": "float32"})
    other = {"encoder": {"name": "b"}, "dtype": "float32"}
    place = tmp_path / "made.unfinished"
    message = (
        f"{str(place)!r} is unfinished work of something else: rows_per_range was 4, and is 5; encoder.name was 'a', "
    )
    with pytest.raises(ValueError, match=re.escape(f"{message}and is 'b'. Delete it to begin anew")):
        write(tmp_path / "made", meta=other, at_once=5)
    (place / PLAN).unlink()
    with pytest.raises(ValueError, match="made.unfinished' does not say what its files are of .* delete it to begin"):
        write(tmp_path / "made", meta=other)
    assert place.exists()


def test_work_without_a_range_is_replaced(tmp_path: Path, whole: dict[str, bytes]) -> None:
    place = tmp_path / "made.unfinished"
    (place / "files").mkdir(parents=True)
    (place / "files" / "other").touch()
    (place / PLAN).write_text('{"rows": 7}')
    assert files(write(tmp_path / "made")) == whole


def test_killed_when_all_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(writer.shutil, "rmtree", lambda *_, **__: None)
        write(tmp_path / "made")
    assert (tmp_path / "made.unfinished").exists()
    with pytest.raises(FileExistsError, match="made' exists already"):
        write(tmp_path / "made")
    assert [file.name for file in tmp_path.iterdir()] == ["made"]
    with pytest.raises(FileExistsError, match="made' exists already"):
        write(tmp_path / "made")


def test_killed_at_the_end(tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(writer, "complete", killed)
        write(tmp_path / "made")
    calls = Calls()
    assert files(write(tmp_path / "made", calls)) == whole
    assert not calls.asked


def test_something_else_at_the_path(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "made", Calls(fail_at=2))
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "notes.txt").touch()
    with pytest.raises(FileExistsError):
        write(tmp_path / "made")
    assert (tmp_path / "made.unfinished" / PLAN).exists()


def test_two_at_once(tmp_path: Path, whole: dict[str, bytes]) -> None:
    def work(numbers: np.ndarray) -> dict[str, np.ndarray]:
        who = f"another process is at work in {str(tmp_path / 'made.unfinished')!r}: process {os.getpid()} on host "
        with pytest.raises(RuntimeError, match=re.escape(who)):
            write(tmp_path / "made")
        return rows_of(numbers)

    assert files(write(tmp_path / "made", work)) == whole


# --- processes that are killed

SCRIPT = """
    import signal, sys, time
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    from pathlib import Path
    import numpy as np
    from pyterrier_graph.ranges.writer import unfinished

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
    script = textwrap.dedent(SCRIPT).format(rows=rows, seconds=seconds, WIDTH=WIDTH, AT_ONCE=AT_ONCE, NAMES=NAMES)
    command = [sys.executable, "-c", script, str(path), str(workers)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


def until(true: Callable[[], Any], seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def stored(path: Path) -> int:
    """How many ranges are on the disk."""
    place = path.with_name(f"{path.name}.unfinished")
    try:
        copied = json.loads((place / "copied.json").read_text())["ranges"]
    except FileNotFoundError:
        copied = 0
    # a range that has been copied is deleted a moment later
    return copied + sum(int(file.stem) >= copied for file in place.glob("ranges-*/*.safetensors"))


def test_a_dead_process_holds_no_lock(tmp_path: Path, whole: dict[str, bytes]) -> None:
    path = tmp_path / "made"
    running = process(path, 2, ROWS, 0.8)
    until(lambda: stored(path) >= 2)
    with pytest.raises(RuntimeError, match=f"another process is at work in .* process {running.pid} on host"):
        write(path)
    started = workers_of(running.pid)
    running.kill()
    running.communicate()
    calls = Calls()
    assert files(write(path, calls)) == whole
    assert len(calls.asked) <= 4
    until(lambda: not any(Path("/proc", str(pid)).exists() for pid in started))  # they do not stay for ever


def test_ctrl_c(tmp_path: Path, whole: dict[str, bytes]) -> None:
    path = tmp_path / "made"
    running = process(path, 2, ROWS, 0.3)
    until(lambda: stored(path) >= 2)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: workers get it, too
    _, said = running.communicate(timeout=60)
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert not path.exists() and stored(path) >= 2
    assert not [*tmp_path.glob("made.unfinished/ranges-*/*.tmp")]
    assert files(write(path)) == whole


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


def kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="finds the workers of a process in /proc")
def test_many_kills(tmp_path: Path) -> None:
    """50 kills of random workers and 20 of the process, at random moments: the artifact is the same to the byte."""
    rows, draw, path = 4 * 600, random.Random(0), tmp_path / "made"
    whole = files(write(tmp_path / "whole", rows=rows))
    left = {"process": 20, "worker": 50}
    for _ in range(100):
        running = process(path, 2, rows, 0.05)
        ended = lambda running=running: running.poll() is not None  # noqa: E731
        workers_to_kill = draw.randint(1, 4) if left["process"] else left["worker"]
        while left["worker"] and workers_to_kill and not ended():
            before = stored(path)
            until(lambda ended=ended, running=running: ended() or workers_of(running.pid))
            until(lambda ended=ended, before=before: ended() or stored(path) != before)
            time.sleep(draw.uniform(0, 0.1))
            if found := workers_of(running.pid):
                died = kill(draw.choice(found))
                left["worker"] -= died
                workers_to_kill -= died
        if left["process"]:
            until(lambda ended=ended: ended() or stored(path))
            time.sleep(draw.uniform(0, 0.2))
            left["process"] -= kill(running.pid) and not ended()
        _, said = running.communicate()
        assert running.returncode in (0, -signal.SIGKILL), said
        if running.returncode == 0:
            break
    assert files(path) == whole
    assert left == {"process": 0, "worker": 0}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["made", "whole"]


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

    def fails(numbers: np.ndarray) -> dict[str, np.ndarray]:
        raise ValueError(f"row {numbers[0]} is wrong")

    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "0")  # other programs may need memory
    paths = os.pathsep.join(map(str, [Path(__file__).parent, Path(workers.__file__).parents[2]]))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        node = cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, runtime_env={"env_vars": {"PYTHONPATH": paths}}, log_to_driver=False)
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
        with pytest.raises(ValueError, match="row .* is wrong"):
            write(tmp_path / "wrong", fails, workers="ray")
        assert sorted(file.name for file in tmp_path.iterdir()) == ["made", "seen"]
    finally:
        ray.shutdown()
        cluster.shutdown()
