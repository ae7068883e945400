"""The device and the precision that networks run in.

``dtype="auto"`` is bfloat16 where the device computes it natively, else float32. Only networks run in half precision:
weights, the sums that make a score, norms, losses and whatever is returned or stored stay in float32, because bfloat16
has no more than 256 steps between two powers of two, and scores would tie.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from pyterrier_graph.checks import check_choice

DType = Literal["auto", "float32", "bfloat16", "float16"]


def device_of(name: str | None) -> torch.device:
    """The device of that name; a GPU where there is one and none is named."""
    try:
        return torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except (RuntimeError, TypeError):
        raise ValueError(f"device must be 'cpu', 'cuda', 'cuda:0', 'mps' or None, got {name!r}") from None


def computes_bfloat16(device: torch.device) -> bool:
    """Whether a device computes bfloat16 natively: a GPU that does, or a CPU with AMX or AVX512-BF16."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and (torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())


def dtype_of(name: DType, device: torch.device) -> torch.dtype:
    """The precision of that name."""
    check_choice("dtype", name, get_args(DType))
    if name != "auto":
        return getattr(torch, name)
    return torch.bfloat16 if computes_bfloat16(device) else torch.float32


def dtype_name(name: DType, device: torch.device) -> str:
    """What ``'auto'`` stands for on a device, else the name itself: for ``pt_meta.json``."""
    return str(dtype_of(name, device)).removeprefix("torch.")


def training_dtype(name: DType, device: torch.device) -> torch.dtype:
    """As :func:`dtype_of`; a ValueError for float16 on a CPU, where gradients are not scaled."""
    dtype = dtype_of(name, device)
    if dtype == torch.float16 and device.type == "cpu":
        raise ValueError("training in dtype='float16' needs a GPU: on a CPU use 'auto', 'bfloat16' or 'float32'")
    return dtype


@contextmanager
def precision(name: DType, device: torch.device) -> Iterator[None]:
    """A block in which networks compute in the precision of that name; too little memory is an error that says so."""
    dtype = dtype_of(name, device)
    half = dtype != torch.float32
    advice = "to read this batch of texts: use a smaller batch_size, or fewer tokens of each text"
    with memory_named(advice), torch.autocast(device.type, dtype=dtype if half else None, enabled=half):
        yield


@contextmanager
def memory_named(advice: str) -> Iterator[None]:
    """A block whose errors of too little memory, of a device or of the machine, say for what, and what takes less."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        exhausted = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not exhausted and "allocate memory" not in str(error):  # torch has no class for that of the machine
            raise
        first = str(error.__cause__ or error) or type(error).__name__  # a block may be in another one
        raise MemoryError(f"there is too little memory {advice}: {first.splitlines()[0]:.200}") from error


def full_precision(tensor: Tensor) -> torch.autocast:
    """The context in which whatever is computed with a tensor has the tensor's own precision."""
    return torch.autocast(tensor.device.type, enabled=False)


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor, in float32 if it has half precision."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def score_in_full_precision(network: nn.Module) -> None:
    """Makes the last linear layer of a network, which gives the score, compute in float32 in any :func:`precision`."""
    *_, last = (module for module in network.modules() if isinstance(module, nn.Linear))
    keep_full_precision(last)


def keep_full_precision(linear: nn.Linear) -> None:
    """Makes a linear layer compute in float32 in any :func:`precision`."""
    linear.register_forward_hook(_again_in_full_precision)


def _again_in_full_precision(linear: nn.Linear, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    if output.dtype.itemsize > 2:
        return output
    with full_precision(output):
        return functional.linear(at_least_float32(inputs[0]), linear.weight, linear.bias)
