"""Calls a function for many numbers: in this process, in several processes, or on a Ray cluster."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import Any, Literal
from uuid import uuid4

from pyterrier_graph.ranges import pickling

Workers = int | Literal["ray"]
Job = Callable[[int], None]

DEATHS = 5  # of workers, one after the other, without a number that is done
IN_FLIGHT = 2  # numbers that are given to a worker, so that it need not wait for the next one
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS", "NUMBA_NUM_THREADS")
VISIBLE = "CUDA_VISIBLE_DEVICES"

_held: list[Any] = []  # what this process keeps until it ends: the lock of its GPU
_job: tuple[str, Job | bytes] = ("", b"")  # what this process is a worker of; as bytes, until it is called


class WorkerDiedError(Exception):
    """A worker has ended before it had done what it was asked for."""


def check_workers(workers: Any) -> None:
    """Raises ValueError unless this is a number of processes, or ``'ray'``."""
    if workers != "ray" and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise ValueError(f"workers must be a number of processes, 1 or more, or 'ray', got {workers!r}")


def each(job: Job, numbers: Sequence[int], workers: Workers) -> Iterator[int]:
    """Calls ``job(number)`` for all numbers, and yields each when it is done, in any order.

    An error of the function ends all. Where a worker dies, the numbers that it was given are given to another one, so
    the function must allow to be called again.

    Args:
        job: What is called. It reaches each worker once, by cloudpickle.
        numbers: Its arguments.
        workers: 1: this process. More: processes on this machine, which share its cores; where it has several GPUs,
            each process takes one. ``'ray'``: the Ray cluster that this process is connected to, or else a local one.

    Raises:
        ImportError: If Ray is not installed.
        RuntimeError: If workers die again and again.
    """
    check_workers(workers)
    if workers == 1 or len(numbers) < 2:
        for number in numbers:
            job(number)
            yield number
        return
    left, deaths = dict.fromkeys(numbers), 0
    while left:
        calls = _on_ray(job, [*left]) if workers == "ray" else _in_processes(job, [*left], workers)
        try:
            for number in calls:
                del left[number]
                deaths = 0
                yield number
        except WorkerDiedError as died:
            deaths += 1
            if deaths == DEATHS:
                raise RuntimeError(
                    f"{deaths} workers died one after the other, and nothing was done in between (out of memory?): "
                    f"{died}. What is done is kept: repeat the call, with fewer workers"
                ) from died


def _in_processes(job: Job, numbers: list[int], workers: int) -> Iterator[int]:
    import joblib
    from joblib.externals import loky
    from joblib.externals.loky.process_executor import BrokenProcessPool

    count = min(workers, len(numbers))
    threads = dict.fromkeys(THREADS, str(max(1, joblib.cpu_count() // count)))
    start = (pickling.dumps(job), gpus(), os.getpid())
    executor = loky.ProcessPoolExecutor(count, initializer=_start, initargs=start, env=threads)
    waiting, done = iter(numbers), False
    try:
        pending = {executor.submit(_call, number): number for number in islice(waiting, IN_FLIGHT * count)}
        while pending:
            for future in loky.wait(pending, return_when=loky.FIRST_COMPLETED).done:
                number = pending.pop(future)
                future.result()
                pending |= {executor.submit(_call, more): more for more in islice(waiting, 1)}
                yield number
        done = True
    except BrokenProcessPool as error:
        raise WorkerDiedError(str(error).strip().partition("\n")[0]) from error
    finally:
        executor.shutdown(kill_workers=not done)


def _start(job: bytes, devices: list[str], parent: int) -> None:
    """What a process does first."""
    global _job
    Thread(target=_end_with, args=(parent,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    if devices:
        os.environ[VISIBLE] = take_gpu(devices)
    _job = "", job


def _end_with(parent: int) -> None:
    """Ends this process soon after the one that started it, which loky does not do if that one is killed."""
    while os.name == "nt" or os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _call(number: int) -> None:
    """Calls the job of this process."""
    global _job
    key, job = _job
    if isinstance(job, bytes):  # not at the start of the process, where the error would be lost
        job = pickling.loads(job)
        _job = key, job
    job(number)


def gpus() -> list[str]:
    """The names of this machine's GPUs that are to be shared out, if there are several."""
    torch = sys.modules.get("torch")  # what does not import it needs no GPU
    if torch is None or (count := torch.cuda.device_count()) < 2:
        return []
    return os.environ[VISIBLE].split(",") if os.environ.get(VISIBLE) else [*map(str, range(count))]


def take_gpu(devices: Sequence[str]) -> str:
    """Chooses a GPU that no other worker has, until this process ends; if all are taken, one that is shared."""
    from filelock import FileLock, Timeout

    for device in devices:
        lock = FileLock(Path(tempfile.gettempdir(), f"pyterrier_graph-gpu-{_user()}-{device}.lock"), timeout=0)
        try:
            lock.acquire()
        except Timeout:
            continue
        _held.append(lock)
        return device
    return devices[os.getpid() % len(devices)]


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "")


def _on_ray(job: Job, numbers: list[int]) -> Iterator[int]:
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise ImportError("workers='ray' needs Ray: pip install 'pyterrier-graph[ray]'") from error
    if not ray.is_initialized():
        ray.init()
    available = ray.cluster_resources()
    kind = "GPU" if available.get("GPU") else "CPU"
    # not the default of one call per process where there are GPUs: each call would load the encoder
    options = {"num_gpus": int(kind == "GPU"), "max_retries": DEATHS, "max_calls": 0}
    call = ray.remote(**options)(_call_on_ray)
    key, reference = uuid4().hex, ray.put(pickling.dumps(job))
    waiting = iter(numbers)
    pending: dict[Any, int] = {}
    try:
        while True:
            slots = IN_FLIGHT * max(1, int(ray.cluster_resources().get(kind, 1)))  # nodes come and go
            for number in islice(waiting, max(0, slots - len(pending))):
                pending[call.remote(key, [reference], number)] = number
            if not pending:
                return
            (done, *_), _ = ray.wait([*pending], num_returns=1)
            number = pending.pop(done)
            ray.get(done)
            yield number
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.ObjectLostError) as error:
        raise WorkerDiedError(str(error).strip().partition("\n")[0]) from error
    finally:
        for left in pending:
            ray.cancel(left, force=True)


def _call_on_ray(key: str, reference: list[Any], number: int) -> None:
    """Calls a job, which this process gets if it does not have it; Ray would pass it for each call."""
    global _job
    if _job[0] != key:
        ray: Any = importlib.import_module("ray")
        _job = key, ray.get(reference[0])
    _call(number)
