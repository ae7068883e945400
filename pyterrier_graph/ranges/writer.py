"""Artifacts that take long to compute: in ranges of rows, by one worker or several, continued after an interruption.

::

    with unfinished(path, meta, rows, rows_per_range) as writer:        # locked; an equal call continues
        writer.prepare(lambda folder: ...)                               # files that are not made of ranges; done once
        writer.compute(work, "vecs.f4", workers=2, desc="encoding")      # work(numbers) -> {"vecs.f4": array}
    # pt_meta.json is written, everything is on the disk, and the folder gets its name

Until then all lies in ``<path>.unfinished``: what the rows depend on (``meta``, numbers of rows), a file per range, and
the folder that becomes the artifact. A process that is killed at any moment has left what the next equal call needs,
and the artifact is the same to the byte, whoever computed which range: ``work`` must give the same rows for the same
numbers. Ranges are copied in order as soon as they are there, and then deleted: the disk holds little more than the
artifact. (A single process writes what it computes where it belongs, and a kill costs it a second's work.)

``workers=`` is the same everywhere: a number of processes on this machine, which share its cores, and of which each
takes a GPU where there are several; or ``'ray'``, a Ray cluster whose nodes see the same files under the same paths
(the one that ``ray.init`` has connected to, or else one on this machine). What ``work`` needs reaches a worker once; it
may be defined in a notebook. Graphs, stores and indexes are opened there, not copied.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.artifacts import META, check_vacant, complete, sync
from pyterrier_graph.checks import check_count
from pyterrier_graph.ranges.files import RangeJob, Ranges, Work
from pyterrier_graph.ranges.workers import Workers, check_workers, each

PLAN = "unfinished.json"
LOCK, HOLDER, FILES, COPIED = "lock", "process.json", "files", "copied.json"
OFFSET = np.dtype("<i8")
# how many bytes are written, and how many seconds pass, until what is written is made sure to be on the disk
COPIED_AT_ONCE, SECONDS = 1 << 26, 1.0


class RangeWriter:
    """Makes one artifact; :func:`unfinished` provides it.

    Attributes:
        place: The folder that is deleted in the end; it may hold other artifacts that are needed until then.
        folder: The folder that becomes the artifact. Further files may be written to it after :meth:`compute`, again if
            the process is killed.
        ranges: The ranges.
    """

    def __init__(self, place: Path, ranges: Ranges) -> None:
        self.place, self.ranges = place, ranges
        self.folder = place / FILES
        self.sha256: dict[str, str] = {}
        ranges.folder.mkdir(exist_ok=True)
        ranges.remove_temporary()

    def prepare(self, write: Callable[[Path], Any] = lambda folder: None) -> None:
        """Makes the folder; a function that writes files into it is called unless they are there already."""
        if not self.folder.exists():
            temporary = self.place / f"{FILES}.tmp"
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            write(temporary)
            for file in temporary.iterdir():
                sync(file)
            sync(temporary)
            os.replace(temporary, self.folder)
            sync(self.place)

    def clear(self, *kept: str) -> None:
        """Deletes what a killed process has written to the folder, beside files of these names."""
        for file in self.folder.iterdir():
            if file.is_dir():
                shutil.rmtree(file)
            elif file.name not in kept:
                file.unlink()

    def compute(
        self,
        work: Work,
        *names: str,
        lengths: Sequence[str] = (),
        workers: Workers = 1,
        each_time: Callable[[int], Any] = lambda number: None,
        **progress: Any,
    ) -> None:
        """Computes the ranges that are not there.

        Args:
            work: Row numbers, which ascend, to arrays by name.
            *names: The files of the artifact that these arrays become, concatenated in the order of the rows. Without
                names, the ranges stay as they are, for :meth:`read`.
            lengths: Those of the names whose arrays are lengths of rows, int64. Their files get offsets: where each
                row begins, and the end of the last one.
            workers: See this module.
            each_time: Called in this process with the number of each range that is there, or is done.
            **progress: Arguments of ``pt.tqdm``.
        """
        check_workers(workers)
        self.prepare()
        ranges, job = self.ranges, RangeJob(self.ranges, work)
        with _Concatenation(self.place / COPIED, self.folder, ranges, names, lengths) as copied:
            there = [number for number in range(copied.count, len(ranges)) if ranges.file(number).exists()]
            missing = sorted({*range(copied.count, len(ranges))}.difference(there))
            rows = ranges.rows - sum(len(ranges.numbers(number)) for number in missing)
            try:
                with pt.tqdm(total=ranges.rows, initial=rows, **progress) as bar:
                    for number in there:
                        each_time(number)
                        copied.add(number)
                    for number in each(job, missing, workers) if workers != 1 or not names else ():
                        each_time(number)
                        copied.add(number)
                        bar.update(len(ranges.numbers(number)))
                    while names and copied.count < len(ranges):  # by this process, without files of their own
                        numbers = ranges.numbers(copied.count)
                        copied.append(work(numbers))
                        bar.update(len(numbers))
            finally:
                ranges.remove_temporary()
            self.sha256 |= copied.finish()

    def read(self) -> Iterator[dict[str, np.ndarray]]:
        """The arrays of each range, in order."""
        return map(self.ranges.read, range(len(self.ranges)))


class _Concatenation(ExitStack):
    """Writes ranges into files, in order: ``count`` are there. Then they need no files of their own any more."""

    def __init__(self, state: Path, folder: Path, ranges: Ranges, names: Sequence[str], lengths: Sequence[str]) -> None:
        super().__init__()
        about: dict[str, Any] = {"ranges": 0, "sizes": {}}
        if state.exists():
            about = json.loads(state.read_text(encoding="utf-8"))
        self.count: int = about["ranges"]
        self._state, self._folder, self._ranges, self._names = state, folder, ranges, names
        self._synced, self._time, self._done = self.count, time.monotonic(), set[int]()
        self._waiting = 0  # bytes that have not been synced
        self._outs = {name: self.enter_context(open(folder / name, "a+b")) for name in names}
        self._digests = {name: hashlib.sha256() for name in names}
        self.callback(self._sync)  # also what was done before an error
        for name, out in self._outs.items():
            size = about["sizes"].get(name, 0)
            if out.seek(0, os.SEEK_END) < size:
                raise ValueError(f"{str(folder / name)!r} is damaged: delete {str(state.parent)!r} to begin anew")
            out.truncate(size)
            out.seek(0)
            while block := out.read(1 << 20):
                self._digests[name].update(block)
        self._ends: dict[str, int] = {}
        for name in lengths:
            if self._outs[name].tell():
                self._outs[name].seek(-OFFSET.itemsize, os.SEEK_END)
                self._ends[name] = int.from_bytes(self._outs[name].read(), "little")
            else:
                self._write(name, np.zeros(1, OFFSET))
                self._ends[name] = 0

    def add(self, number: int) -> None:
        """Copies what can be copied now that there is a file of a further range."""
        self._done.add(number)
        self._copy()

    def append(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Writes the next range, and copies those after it that have files."""
        self._append(arrays)
        self._copy()

    def _copy(self) -> None:
        while self._names and self.count in self._done:
            self._append(self._ranges.read(self.count))

    def _append(self, arrays: Mapping[str, np.ndarray]) -> None:
        if {*arrays} != {*self._names}:
            wanted = ", ".join(self._names)
            raise ValueError(f"a range has {', '.join(sorted(arrays))}, but {wanted} are needed")
        for name, values in arrays.items():
            if name in self._ends and len(values):
                values = (values.cumsum() + self._ends[name]).astype(OFFSET)
                self._ends[name] = int(values[-1])
            self._write(name, np.ascontiguousarray(values))
        self.count += 1
        if self._waiting >= COPIED_AT_ONCE or time.monotonic() > self._time + SECONDS:
            self._sync()

    def finish(self) -> dict[str, str]:
        """To be called when all ranges have been added: returns the SHA-256 of each file."""
        self._sync()
        return {name: digest.hexdigest() for name, digest in self._digests.items()}

    def _write(self, name: str, values: np.ndarray) -> None:
        content = values.reshape(-1).view(np.uint8).data
        self._outs[name].write(content)
        self._digests[name].update(content)
        self._waiting += values.nbytes

    def _sync(self) -> None:
        if self.count == self._synced:
            return
        for out in self._outs.values():
            out.flush()
            os.fsync(out.fileno())
        sync(self._folder)
        sizes = {name: out.tell() for name, out in self._outs.items()}
        _replace(self._state, {"ranges": self.count, "sizes": sizes})
        for number in range(self._synced, self.count):
            self._ranges.file(number).unlink(missing_ok=True)
        self._synced, self._waiting, self._time = self.count, 0, time.monotonic()


@contextmanager
def unfinished(
    path: Path, meta: dict[str, Any], rows: int, rows_per_range: int, *, identity: dict[str, Any] | None = None
) -> Iterator[RangeWriter]:
    """Provides what writes an artifact at a path; it is there when the block ends without an error.

    Args:
        path: The artifact's folder; it must not exist yet, or be empty.
        meta: The contents of ``pt_meta.json``, which may be completed inside the block.
        rows: Number of rows.
        rows_per_range: Their number in each range, which must not depend on the workers.
        identity: All that the rows depend on, for JSON, such as names and digests of encoders and graphs; by default
            ``meta``, as it is before the block.

    Raises:
        FileExistsError: If there is an artifact, or anything else, at the path.
        RuntimeError: If another process is at work on this path.
        ValueError: If there is unfinished work of another identity.
    """
    place = path.with_name(f"{path.name}.unfinished")
    if (path / META).is_file() and not (place / FILES).exists():  # killed when all was done but this
        shutil.rmtree(place, ignore_errors=True)
    check_vacant(path)
    with kept(place, meta if identity is None else identity, rows, rows_per_range) as writer:
        check_vacant(path)  # again: another process may have ended since
        yield writer
        writer.prepare()
        complete(writer.folder, meta, writer.sha256)
        os.replace(writer.folder, path)
        mode = (path / META).stat().st_mode & 0o777
        path.chmod(mode | (mode & 0o444) >> 2)
        sync(path.absolute().parent)


@contextmanager
def kept(place: Path, identity: dict[str, Any], rows: int, rows_per_range: int) -> Iterator[RangeWriter]:
    """As :func:`unfinished`, for ranges that do not become an artifact.

    They are kept in the folder ``place``, which is deleted when the block ends without an error.
    """
    check_count("rows_per_range", rows_per_range)
    plan = json.loads(as_json({"rows": rows, "rows_per_range": rows_per_range} | identity))
    with _locked(place):
        _check_plan(place, plan)
        digest = hashlib.sha256(as_json(plan).encode()).hexdigest()[:16]  # a worker of former work has another folder
        yield RangeWriter(place, Ranges(place / f"ranges-{digest}", rows, rows_per_range))
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """A block that one process runs at a time; the operating system ends the lock of a process that dies."""
    from filelock import FileLock, Timeout

    place.mkdir(parents=True, exist_ok=True)
    lock, holder = FileLock(place / LOCK, timeout=0), place / HOLDER
    try:
        lock.acquire()
    except Timeout:
        who = json.loads(holder.read_text(encoding="utf-8")) if holder.exists() else {}
        raise RuntimeError(
            f"another process is at work in {str(place)!r}: process {who.get('process', '?')} on host "
            f"{who.get('host', '?')}. Wait for it, or end it and repeat the call, which continues its work"
        ) from None
    try:
        _replace(holder, {"process": os.getpid(), "host": socket.gethostname()})
        yield
    finally:
        if not _begun(place):
            shutil.rmtree(place, ignore_errors=True)
        lock.release()
        if os.name == "nt" and not _begun(place):  # a file that is open cannot be deleted there
            shutil.rmtree(place, ignore_errors=True)


def _begun(place: Path) -> bool:
    """Whether a folder has work that can be continued."""
    return any(next(place.rglob(name), None) for name in ("ranges-*/*.safetensors", COPIED, META))


def _check_plan(place: Path, plan: dict[str, Any]) -> None:
    """Writes what the rows depend on; raises ValueError if the folder has work that depends on something else."""
    file = place / PLAN
    if not file.is_file():
        if others := sorted(other.name for other in place.iterdir() if other.name not in (LOCK, HOLDER)):
            raise ValueError(
                f"{str(place)!r} does not say what its files are of ({', '.join(others[:3])}): delete it to begin anew"
            )
    else:
        # flat dictionaries, with names such as "identity.encoder"
        then, now = (
            pd.json_normalize(about).to_dict("records")[0]
            for about in (json.loads(file.read_text(encoding="utf-8")), plan)
        )
        differing = [name for name in then | now if then.get(name) != now.get(name)]
        if not differing:
            return
        if _begun(place):
            list_of = "; ".join(f"{name} was {then.get(name)!r}, and is {now.get(name)!r}" for name in differing)
            raise ValueError(f"{str(place)!r} is unfinished work of something else: {list_of}. Delete it to begin anew")
        for folder in (place / FILES, *place.glob("ranges-*")):
            shutil.rmtree(folder, ignore_errors=True)
    _replace(file, plan)


def as_json(about: dict[str, Any]) -> str:
    """Text with sorted names."""
    return json.dumps(about, indent=1, sort_keys=True, allow_nan=False)


def _replace(file: Path, about: dict[str, Any]) -> None:
    """Writes a small file, at once."""
    temporary = file.with_name(f"{file.name}.tmp")
    temporary.write_text(as_json(about), encoding="utf-8")
    sync(temporary)
    os.replace(temporary, file)
    sync(file.parent)
