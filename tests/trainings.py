"""Shared by tests of trainings: interruptions, and two processes that train together."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

import pyterrier as pt
import pytest
import torch
from accelerate.state import AcceleratorState
from tqdm import tqdm

Reranker = TypeVar("Reranker", bound=pt.Transformer)

FORK: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
if hasattr(
    os, "register_at_fork"
):  # else forks share a lock, which one that is killed may hold forever
    os.register_at_fork(after_in_child=lambda: tqdm.set_lock(RLock()))
forks = pytest.mark.skipif(
    sys.platform != "linux", reason="processes are forked, so that each need not import torch"
)


def interrupt(
    reranker: Reranker, evaluation: int, how: Callable[[], None], method: str = "transform"
) -> Reranker:
    """Has training end at an evaluation, which calls this method once."""
    original, count = getattr(reranker, method), iter(range(1, 100))

    def counting(*given: Any) -> Any:
        if next(count) == evaluation:
            how()
        return original(*given)

    setattr(reranker, method, counting)
    return reranker


def stop() -> None:
    raise KeyboardInterrupt


def in_two_processes(
    train: Callable[[int, Path], None], folder: Path, exits: Sequence[int] = (0, 0)
) -> None:
    """Runs ``train(rank, folder)`` in two processes, as ``torchrun`` or ``accelerate launch`` would start them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        FORK.Process(target=_run, args=(train, rank, port, folder), daemon=True)
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(180)
    assert [process.exitcode for process in processes] == [*exits]


def _run(train: Callable[[int, Path], None], rank: int, port: int, folder: Path) -> None:
    place = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": 2,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    os.environ |= {name: str(value) for name, value in place.items()}
    AcceleratorState._reset_state(reset_partial_state=True)  # the parent's
    train(rank, folder)
    assert torch.distributed.get_world_size() == 2
    torch.distributed.destroy_process_group()


def in_child(
    work: Callable[..., Any], *given: Any, until: Callable[[], bool] | None = None
) -> int | None:
    """Runs a function in another process, which is killed once something is true. Returns the exit status."""
    process = FORK.Process(target=work, args=given)
    process.start()
    while process.is_alive() and until is not None:
        if until():
            os.kill(process.pid, signal.SIGKILL)
            break
        time.sleep(0.005)
    process.join(600)
    return process.exitcode
