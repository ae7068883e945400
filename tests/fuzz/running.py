"""Targets by name, inputs by seed, and which errors are allowed."""

from __future__ import annotations

import dis
import random
import traceback
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import TracebackType
from typing import NamedTuple

from pyterrier_graph.readers.errors import ReaderError

Target = Callable[[random.Random], object]
TARGETS: dict[str, Target] = {}
MODULES = ("texts", "json_files", "frames", "fits")
OURS = ("pyterrier_graph", "pyterrier", "pyterrier_alpha", "pyterrier_dr", "ir_datasets", "ir_measures")
ALLOWED = (ValueError, TypeError, KeyError, FileNotFoundError, FileExistsError)


class Finding(NamedTuple):
    """What went wrong for an input: the seed makes the input again."""

    target: str
    seed: int
    what: str
    details: str = ""


def target(name: str) -> Callable[[Target], Target]:
    """Adds a function to the targets."""

    def add(function: Target) -> Target:
        assert name not in TARGETS, name
        TARGETS[name] = function
        return function

    return add


@cache
def targets() -> dict[str, Target]:
    """All targets."""
    for module in MODULES:
        import_module(f".{module}", __package__)
    return TARGETS


def run(name: str, seed: int) -> Finding | None:
    """Makes an input and gives it to its target; None if that is a result or an allowed error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            targets()[name](random.Random(f"{name}/{seed}"))
    except Exception as error:
        if not is_allowed(error):
            return Finding(name, seed, f"{type(error).__name__}: {error}"[:300], traceback.format_exc())
    return None


def is_allowed(error: BaseException) -> bool:
    """Whether an error is one that a ``raise`` statement of this package or PyTerrier made, with a message."""
    if isinstance(error, ReaderError):
        return bool(str(error))
    last = _last(error.__traceback__)
    if last is None or not isinstance(error, ALLOWED) or isinstance(error, UnicodeError) or not str(error):
        return False
    code = last.tb_frame.f_code
    package = last.tb_frame.f_globals.get("__name__", "").partition(".")[0]
    instruction = next(step for step in dis.get_instructions(code) if step.offset == last.tb_lasti)
    return package in OURS and instruction.opname == "RAISE_VARARGS"


def _last(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace
