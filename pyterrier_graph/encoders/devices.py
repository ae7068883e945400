"""The device and the precision that networks run in."""

from typing import Literal, get_args

import torch

from pyterrier_graph.checks import check_choice

DType = Literal["auto", "float32", "bfloat16", "float16"]


def device_of(name: str | None) -> torch.device:
    """The device of that name; a GPU where there is one and none is named."""
    try:
        return torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except (RuntimeError, TypeError):
        raise ValueError(f"device must be 'cpu', 'cuda', 'cuda:0', 'mps' or None, got {name!r}") from None


def dtype_of(name: DType, device: torch.device) -> torch.dtype:
    """The precision of that name.

    ``'auto'`` is bfloat16 where the device computes it natively (a GPU that does, or a CPU with AMX or AVX512-BF16),
    else float32.
    """
    check_choice("dtype", name, get_args(DType))
    if name != "auto":
        return getattr(torch, name)
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    native = device.type == "cpu" and (torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())
    return torch.bfloat16 if native else torch.float32


def precision(name: DType, device: torch.device) -> torch.autocast:
    """The context in which networks compute in the precision of that name."""
    dtype = dtype_of(name, device)
    half = dtype != torch.float32
    return torch.autocast(device.type, dtype=dtype if half else None, enabled=half)
