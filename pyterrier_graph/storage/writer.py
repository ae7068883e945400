"""Artifacts that are computed in ranges of rows, by one worker or several, and continued after an interruption.

::

    with unfinished(path, meta, rows, rows_per_range) as writer:        # locked; an equal call continues
        writer.prepare(lambda folder: ...)                               # files that are not made of ranges; done once
        writer.compute(work, "vecs.f4", workers=2, desc="encoding")      # work(numbers) -> {"vecs.f4": array}
    # pt_meta.json is written, everything is on the disk, and the folder gets its name

Until then everything is in ``<path>.unfinished``: a description of all that the rows depend on, a file per range, and
the folder that becomes the artifact. A process that is killed at any moment leaves what the next equal call needs, and
the artifact is the same to the byte, whoever computed which range: ``work`` must return the same rows for the same
numbers. Complete ranges are concatenated, so that at the end the disk holds the rows twice.

``workers=`` is the same everywhere: a number of processes on this machine, which share its cores; or ``'ray'``, a Ray
cluster (the one that ``ray.init`` has connected to, or else one on this machine). ``work`` is sent to a worker once; it
may be defined in a notebook. Workers open graphs, stores and indexes, so all nodes of a cluster must have the same
files under the same paths, unless ``read`` of :meth:`RangeWriter.compute` sends all that ``work`` needs.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from itertools import islice
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal

import cloudpickle
import numpy as np
import pyterrier as pt
from safetensors.numpy import load_file, save

from pyterrier_graph.checks import check_count
from pyterrier_graph.storage.arrays import flex_index
from pyterrier_graph.storage.artifact import (
    META,
    as_json,
    check_vacant,
    complete,
    json_sha256,
    locked,
    sync,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Job = Callable[[int], None]
Workers = int | Literal["ray"]

PLAN, FILES = "unfinished.json", "files"
AHEAD = 2  # ranges per processor that Ray has been given; what they need is in memory
RETRIES = 5  # of a range, if Ray loses a worker or a machine
THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)

_pickled_job = b""  # of this worker process


def check_workers(workers: Any) -> None:
    """Raises ValueError unless this is a number of processes, or ``'ray'``."""
    if workers != "ray" and (
        isinstance(workers, bool) or not isinstance(workers, int) or workers < 1
    ):
        raise ValueError(
            f"workers must be a number of processes, 1 or more, or 'ray', got {workers!r}"
        )


@contextmanager
def unfinished(
    path: Path,
    meta: dict[str, Any],
    rows: int,
    rows_per_range: int,
    *,
    identity: dict[str, Any] | None = None,
) -> Iterator[RangeWriter]:
    """Provides the writer of an artifact, which is complete when the block ends without an error.

    Args:
        path: The artifact's folder; it must not exist yet, or be empty.
        meta: The contents of ``pt_meta.json``, which may be completed inside the block.
        rows: Number of rows.
        rows_per_range: Rows in each range. The number must not depend on the workers.
        identity: All that the rows depend on, for JSON, such as names and digests of encoders and graphs; by default
            ``meta``, as it is before the block. Unfinished work of another identity raises ValueError.
    """
    place = path.with_name(f"{path.name}.unfinished")
    if (
        os.path.isfile(path / META) and not (place / FILES).exists()
    ):  # killed when only the cleanup was left
        shutil.rmtree(place, ignore_errors=True)
    check_vacant(path)
    with kept(place, meta if identity is None else identity, rows, rows_per_range) as writer:
        check_vacant(path)  # again: another process may have ended since
        yield writer
        writer.prepare()
        complete(writer.folder, meta, writer.sha256)
        os.replace(writer.folder, path)
        sync(path.absolute().parent)


@contextmanager
def kept(
    place: Path, identity: dict[str, Any], rows: int, rows_per_range: int
) -> Iterator[RangeWriter]:
    """Provides a writer of ranges that do not become an artifact.

    They are kept in the folder ``place``, which is deleted when the block ends without an error.
    """
    check_count("rows_per_range", rows_per_range)
    plan = json.loads(as_json({"rows": rows, "rows_per_range": rows_per_range} | identity))
    file = place / PLAN
    with locked(place):
        then = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else plan
        if differing := [name for name in then | plan if then.get(name) != plan.get(name)]:
            changes = "; ".join(
                f"{name} was {then.get(name)!r}, and is {plan.get(name)!r}" for name in differing
            )
            work = f"{str(place)!r} is unfinished work of something else"
            raise ValueError(f"{work}: {changes}. Delete it to start again")
        with pt.io.finalized_open(str(file), "b") as out:  # completely or not at all
            out.write(as_json(plan).encode())
        ranges = (
            place / f"ranges-{json_sha256(plan)[:16]}"
        )  # a worker that is left from other work has another folder
        ranges.mkdir(exist_ok=True)
        try:
            yield RangeWriter(place, ranges, rows, rows_per_range)
        except BaseException:
            if not any(
                next(place.rglob(name), None) for name in ("[0-9]*.safetensors", META)
            ):  # nothing to continue
                shutil.rmtree(place, ignore_errors=True)
            raise
        shutil.rmtree(place, ignore_errors=True)


class RangeWriter:
    """Writes one artifact in ranges of equal size, except the last one; :func:`unfinished` provides it.

    Attributes:
        place: The folder that is deleted in the end; it may hold other artifacts that are needed until then.
        folder: The folder that becomes the artifact; further files may be written to it after :meth:`compute`.
    """

    def __init__(self, place: Path, ranges: Path, rows: int, rows_per_range: int) -> None:
        self.place, self.folder = place, place / FILES
        self.sha256: dict[str, str] = {}
        self._ranges = {
            ranges / f"{number:08d}.safetensors": range(start, min(start + rows_per_range, rows))
            for number, start in enumerate(range(0, rows, rows_per_range))
        }

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

    def compute(
        self,
        work: Callable[[Any], Mapping[str, np.ndarray]],
        *names: str,
        read: Callable[[np.ndarray], Any] = lambda numbers: numbers,
        lengths: Sequence[str] = (),
        workers: Workers = 1,
        **progress: Any,
    ) -> None:
        """Computes the ranges that are missing.

        Args:
            work: Row numbers, which ascend, to arrays by name.
            *names: The files of the artifact that these arrays become, concatenated in the order of the rows. Without
                names, the ranges stay as they are, for :meth:`read`.
            read: Row numbers to what ``work`` is called with in their place; Ray calls it in this process.
            lengths: Those of the names whose arrays are lengths of rows, int64. Their files get offsets: where each
                row begins, and the end of the last one.
            workers: See this module.
            **progress: Arguments of ``pt.tqdm``.
        """
        check_workers(workers)
        self.prepare()
        ranges = [*self._ranges.items()]

        def given(number: int) -> Any:
            rows = ranges[number][1]
            return read(np.arange(rows.start, rows.stop))

        def put(number: int, arrays: Mapping[str, np.ndarray]) -> None:
            file = ranges[number][0]
            with pt.io.finalized_open(str(file), "b") as out:
                out.write(
                    save({name: np.ascontiguousarray(values) for name, values in arrays.items()})
                )
                out.flush()
                os.fsync(out.fileno())

        def job(number: int) -> None:
            put(number, work(given(number)))

        missing = [number for number, (file, _) in enumerate(ranges) if not file.exists()]
        left = sum(len(ranges[number][1]) for number in missing)
        total = sum(map(len, self._ranges.values()))
        with pt.tqdm(total=total, initial=total - left, **progress) as bar:
            for number in (
                _on_ray(work, given, put, missing)
                if workers == "ray"
                else _each(job, missing, workers)
            ):
                bar.update(len(ranges[number][1]))
        if names:
            self._concatenate(names, lengths)

    def _concatenate(self, names: Sequence[str], lengths: Sequence[str]) -> None:
        """Writes the rows of all ranges into files of the artifact, in order, and keeps their digests."""
        digests = {name: hashlib.sha256() for name in names}
        ends = dict.fromkeys(lengths, 0)
        with ExitStack() as files:
            outs = {name: files.enter_context(open(self.folder / name, "wb")) for name in names}

            def write(name: str, values: np.ndarray) -> None:
                content = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
                outs[name].write(content)
                digests[name].update(content)

            for name in lengths:
                write(name, np.zeros(1, "<i8"))
            for arrays in self.read():
                for name, values in arrays.items():
                    if name in ends and len(values):
                        values = (values.cumsum() + ends[name]).astype(
                            "<i8"
                        )  # offsets: where each row ends
                        ends[name] = int(values[-1])
                    write(name, values)
        self.sha256 |= {name: digest.hexdigest() for name, digest in digests.items()}

    def read(self) -> Iterator[dict[str, np.ndarray]]:
        """The arrays of each range, in order."""
        return map(load_file, self._ranges)


def stored_table(table: pa.Table | pd.DataFrame) -> np.ndarray:
    """A table as an array of a range: the bytes of Arrow's stream."""
    import pandas as pd
    import pyarrow as pa

    table = (
        pa.Table.from_pandas(table, preserve_index=False)
        if isinstance(table, pd.DataFrame)
        else table
    )
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    return np.frombuffer(out.getvalue(), dtype=np.uint8)


def read_table(stored: np.ndarray) -> pa.Table:
    """The table that :func:`stored_table` has made an array of."""
    import pyarrow as pa

    return pa.ipc.open_stream(stored.tobytes()).read_all()


# --- workers


def _each(job: Job, numbers: Sequence[int], workers: int) -> Iterator[int]:
    """Calls ``job(number)`` for all numbers, and yields each when it is done, in any order.

    An error of the function, or a process that dies, ends all calls. What is done is kept: an equal call continues.
    """
    if workers > 1 and len(numbers) > 1:
        yield from _in_processes(job, numbers, min(workers, len(numbers)))
    else:
        for number in numbers:
            job(number)
            yield number


def _in_processes(job: Job, numbers: Sequence[int], count: int) -> Iterator[int]:
    import joblib
    from joblib.externals import loky

    threads = dict.fromkeys(THREADS, str(max(1, joblib.cpu_count() // count)))
    ended, _open = Pipe(duplex=False)  # the second end is closed when this process ends
    executor = loky.ProcessPoolExecutor(
        count, initializer=_start, initargs=(dumps(job), ended), env=threads
    )
    done = False
    try:
        calls = {executor.submit(_call, number): number for number in numbers}
        for future in as_completed(calls):
            future.result()
            yield calls[future]
        done = True
    finally:
        executor.shutdown(kill_workers=not done)


def _start(job: bytes, ended: Connection) -> None:
    """Prepares a worker process."""
    global _pickled_job
    Thread(target=_end_with, args=(ended,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    _pickled_job = job


def _end_with(parent: Connection) -> None:
    """Ends this process when the one that has started it ends: after a kill, loky's may wait for a lock forever."""
    with suppress(EOFError, OSError):
        parent.recv()
    os._exit(1)


def _call(number: int) -> None:
    _loaded(_pickled_job)(number)  # not at the start of the process, where an error would be lost


@lru_cache(maxsize=1)
def _loaded(job: bytes) -> Job:
    return cloudpickle.loads(job)


def _on_ray(
    work: Callable[[Any], Any],
    given: Callable[[int], Any],
    put: Callable[[int, Any], None],
    numbers: Sequence[int],
) -> Iterator[int]:
    """Calls ``put(number, work(given(number)))``, of which Ray does the work; otherwise as :func:`_each`."""
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise ImportError("workers='ray' needs Ray: pip install 'pyterrier-graph[ray]'") from error
    if not ray.is_initialized():
        ray.init()
    # not the default of one call per process where there are GPUs: each call would load the encoder
    options = {
        "num_gpus": int("GPU" in ray.cluster_resources()),
        "max_retries": RETRIES,
        "max_calls": 0,
    }
    call, reference = ray.remote(**options)(_call_on_ray), ray.put(dumps(work))
    pending: dict[Any, int] = {}
    waiting = iter(numbers)
    try:
        while True:
            ahead = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1))) - len(pending)
            pending |= {
                call.remote([reference], given(number)): number
                for number in islice(waiting, max(ahead, 0))
            }
            if not pending:
                break
            (done,), _ = ray.wait([*pending])
            put(pending[done], ray.get(done))
            yield pending.pop(done)
    finally:
        for left in pending:
            ray.cancel(left, force=True)


def _call_on_ray(reference: list[Any], given: Any) -> Any:
    """Works on a range. Its process fetches the work once: in a list, Ray does not pass what is referred to."""
    return _fetched(*reference)(given)


@lru_cache(maxsize=1)
def _fetched(reference: Any) -> Callable[[Any], Any]:
    ray: Any = importlib.import_module("ray")
    return cloudpickle.loads(ray.get(reference))


# --- pickling


class _Pickler(cloudpickle.CloudPickler):
    """Pickles functions of notebooks, too; memory-mapped files are opened by the worker instead of being copied."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.ndarray) and (mapped := _mapped(value)) is not None:
            return mapped
        if type(value).__name__ == "FlexIndex":
            return flex_index(value)
        return super().reducer_override(value)


def dumps(value: Any) -> bytes:
    """Pickles anything for a worker, which has the same files under the same paths."""
    with io.BytesIO() as out:
        _Pickler(out).dump(value)
        return out.getvalue()


def _mapped(array: np.ndarray) -> tuple[Any, ...] | None:
    """How to map the file of an array again, if it is a whole part of a file."""
    owner: Any = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if (
        not isinstance(owner, np.memmap)
        or owner.filename is None
        or not array.size
        or not array.flags.c_contiguous
    ):
        return None
    # of a view, numpy keeps the offset of the array that it was made from
    offset = owner.offset + array.ctypes.data - owner.ctypes.data
    return _map, (
        str(owner.filename),
        array.dtype,
        offset,
        array.shape,
        "c" if owner.mode == "c" else "r",
    )


def _map(
    path: str, dtype: np.dtype, offset: int, shape: tuple[int, ...], mode: Literal["c", "r"]
) -> np.ndarray:
    return np.memmap(path, dtype=dtype, mode=mode, offset=offset, shape=shape)
