"""Long work in shards: workers, interruptions, kills.

Workers import this module, so it imports little.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pyterrier_graph.storage import artifact, shards
from pyterrier_graph.storage.artifact import META, atomic_folder, file_sha256
from pyterrier_graph.storage.shards import ShardWriter

ROWS, AT_ONCE = 23, 4
NAMES = ["rows.f4", "words.u4"]

Work = Callable[[np.ndarray], dict[str, np.ndarray]]


def rows_of(numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Rows of a fixed length and rows of several lengths, from which their numbers can be read."""
    lengths = numbers % 3
    return {
        "rows.f4": (numbers[:, None] * 10.0 + np.arange(3)).astype("<f4"),
        "words.u4": np.repeat(numbers, lengths).astype("<u4"),
        "offsets.i8": lengths,
    }


class Calls:
    """Remembers what it was asked for, and fails at one call."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.fail_at = fail_at
        self.asked: list[int] = []

    def __call__(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        if len(self.asked) == self.fail_at:
            raise KeyboardInterrupt
        self.asked.append(int(numbers[0]))
        return rows_of(numbers)


def write(
    path: Path, work: Work = rows_of, rows: int = ROWS, at_once: int = AT_ONCE, **options: Any
) -> dict[str, bytes]:
    """Writes an artifact; returns the contents of its files."""
    meta = {"type": "rows"} | options.pop("meta", {})
    with atomic_folder(path, meta) as folder:
        writer = ShardWriter(folder.parent, rows, at_once, dict(meta))
        (folder / "about.txt").write_text("about")
        writer.compute(work, disable=True, **options)
        writer.concatenate(folder, NAMES, lengths=["offsets.i8"])
        meta["sum"] = int(np.fromfile(folder / "offsets.i8", "<i8")[-1])
    return {file.name: file.read_bytes() for file in path.iterdir()}


def interrupted(path: Path, fail_at: int, **options: Any) -> list[int]:
    """Interrupts work at a shard; returns the first rows of the shards that were computed."""
    with pytest.raises(KeyboardInterrupt):
        write(path, calls := Calls(fail_at), **options)
    assert not path.exists()
    return calls.asked


def stored(path: Path) -> int:
    """Number of shards on the disk."""
    return len([*path.parent.glob(f".{path.name}.new/shards/[0-9]*.safetensors")])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return write(tmp_path_factory.mktemp("whole") / "made")


def test_rows_in_order(tmp_path: Path) -> None:
    files = write(tmp_path / "made")
    everything = rows_of(np.arange(ROWS))
    assert all(files[name] == everything[name].tobytes() for name in NAMES)
    offsets = np.frombuffer(files["offsets.i8"], "<i8")
    assert offsets.tolist() == [0, *everything["offsets.i8"].cumsum().tolist()]
    meta = json.loads(files.pop(META))
    assert meta["sum"] == ROWS - 1
    assert meta["files"] == {name: len(content) for name, content in files.items()}
    digests = {name: file_sha256(tmp_path / "made" / name) for name in files}
    assert meta["file_sha256"] == digests and len(files) == 4
    assert [file.name for file in tmp_path.iterdir()] == ["made"]


def test_only_missing_shards_are_computed(tmp_path: Path, whole: dict[str, bytes]) -> None:
    """Even if a killed process has left half a file, and workers have left gaps."""
    assert interrupted(tmp_path / "made", 3) == [0, 4, 8]
    folder = tmp_path / ".made.new" / "shards"
    (folder / "00000003-half.tmp").write_bytes(b"half")
    save_file(rows_of(np.arange(16, 20)), folder / "00000004.safetensors")
    assert write(tmp_path / "made", calls := Calls()) == whole
    assert calls.asked == [12, 20]


def test_work_on_other_inputs(tmp_path: Path) -> None:
    interrupted(tmp_path / "made", 2, meta={"encoder": "a"})
    different = r"shards' holds unfinished work on other inputs \(encoder was 'a', is 'b'\): delete"
    with pytest.raises(ValueError, match=different):
        write(tmp_path / "made", meta={"encoder": "b"})
    with pytest.raises(ValueError, match=r"\(rows was 23, is 7\)"):
        write(tmp_path / "made", rows=7, meta={"encoder": "a"})
    assert stored(tmp_path / "made") == 2


def test_killed_at_the_end(
    tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "made"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(artifact, "write_meta", killed)
        write(path)
    assert not path.exists() and write(path, calls := Calls()) == whole
    assert not calls.asked


# --- workers


@pytest.mark.slow
@pytest.mark.parametrize("how", ["raises an error", "dies"])
def test_processes(how: str, tmp_path: Path, whole: dict[str, bytes]) -> None:
    """Two of them, and a function that is defined here. After a failure an equal call continues."""
    failed, path = tmp_path / "failed", tmp_path / "made"

    def work(numbers: np.ndarray) -> dict[str, np.ndarray]:
        if numbers[0] == 12 and not failed.exists():
            while not stored(path):
                time.sleep(0.01)
            failed.touch()
            if how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("row 12 is wrong")
        return rows_of(numbers)

    error: Any = RuntimeError if how == "dies" else ValueError
    with pytest.raises(error, match="SIGKILL" if how == "dies" else "row 12 is wrong"):
        write(path, work, workers=2)
    assert failed.exists() and stored(path) and not path.exists()
    assert write(path, work, workers=2) == whole


@pytest.mark.slow
def test_ray(tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker dies, and an equal call continues, to which the inputs are sent."""
    ray = pytest.importorskip("ray")

    def work(numbers: np.ndarray) -> dict[str, np.ndarray]:
        if numbers[0] == 12 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return rows_of(numbers)

    monkeypatch.setattr(shards, "RAY_ROUND", 1)
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "0")  # other programs may need memory
    paths = os.pathsep.join(map(str, [Path(__file__).parent, Path(shards.__file__).parents[2]]))
    environment = {"env_vars": {"PYTHONPATH": paths}}
    ray.init(address="local", num_cpus=2, runtime_env=environment, log_to_driver=False)
    try:
        with pytest.raises(ray.exceptions.RayActorError):
            write(tmp_path / "made", work, workers="ray")
        assert (tmp_path / "died").exists() and stored(tmp_path / "made") == 2
        assert write(tmp_path / "made", work, workers="ray") == whole
    finally:
        ray.shutdown()
