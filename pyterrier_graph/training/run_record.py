"""What a training took and ran on; it is kept with the model."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

from pyterrier_graph.artifacts import versions
from pyterrier_graph.encoders.devices import device_of, dtype_of

try:
    from resource import RUSAGE_SELF, getrusage
except ImportError:  # Windows
    getrusage = None  # type: ignore[assignment]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def recorded(fit: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A method ``fit`` that, when it has ended, leaves :func:`run_record` in ``training_run`` of its model."""

    @wraps(fit)
    def run(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        wall, processor = time.monotonic(), time.process_time()
        result = fit(*arguments, **options)
        model: Any = arguments[0]
        model.training_run = run_record(model, time.monotonic() - wall, time.process_time() - processor)
        return result

    return run


def run_record(model: Any, seconds: float, cpu_seconds: float) -> dict[str, Any]:
    """Versions, seeds, device, precision, seconds and peak memory of a training, as ``pt_meta.json`` keeps them.

    ``peak_memory`` is that of the process since it started, in bytes, and ``peak_gpu_memory`` that of its tensors.
    """
    device = device_of(model.device)
    record: dict[str, Any] = {
        "versions": versions(),
        "seeds": {name: getattr(model, name).seed for name in model.STAGES},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "dtype": str(dtype_of(model.dtype, device)).removeprefix("torch."),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
    }
    if isinstance(seed := getattr(model, "seed", None), int):
        record["seeds"]["start"] = seed
    if getrusage is not None:
        record["peak_memory"] = getrusage(RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    if device.type == "cuda":
        record["peak_gpu_memory"] = torch.cuda.max_memory_allocated(device)
    return record


def described(record: dict[str, Any]) -> str:
    """A run in one line, such as ``"12.3 s (20.1 s of CPU) on cpu in float32, 812 MiB of memory"``."""
    text = f"{record['seconds']:,} s ({record['cpu_seconds']:,} s of CPU) on {record['device']} in {record['dtype']}"
    sizes = {"peak_memory": "memory", "peak_gpu_memory": "GPU memory"}
    return ", ".join([text, *(f"{record[key] / 2**20:,.0f} MiB of {of}" for key, of in sizes.items() if key in record)])
