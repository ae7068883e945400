"""Sends what a worker needs: functions from notebooks, too; files that are mapped into memory are opened there."""

from __future__ import annotations

import io
from typing import Any, Literal

import cloudpickle
import numpy as np

loads = cloudpickle.loads


def dumps(value: Any) -> bytes:
    """Pickles anything for a worker, which has the same files under the same paths."""
    with io.BytesIO() as out:
        _Pickler(out).dump(value)
        return out.getvalue()


class _Pickler(cloudpickle.CloudPickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.ndarray) and (mapped := _mapped(value)) is not None:
            return mapped
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        if kind == "npids.lookup.Lookup":
            return type(value), (value.path,)
        if kind.startswith("pyterrier_dr.flex.") and kind.endswith(".FlexIndex"):
            return flex_index(value)
        return super().reducer_override(value)


def flex_index(index: Any) -> tuple[Any, ...]:
    """How to open an index again."""
    return type(index), (str(index.index_path),), {"sim_fn": index.sim_fn, "verbose": index.verbose}


def _mapped(array: np.ndarray) -> tuple[Any, ...] | None:
    """How to map the file of an array again, if it is a whole part of a file."""
    owner: Any = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if not isinstance(owner, np.memmap) or owner.filename is None or not array.size:
        return None
    if not array.flags.c_contiguous:
        return None
    # of a view, numpy keeps the offset of the array that it was made from
    offset = owner.offset + array.ctypes.data - owner.ctypes.data
    mode = "c" if owner.mode == "c" else "r"
    return _map, (str(owner.filename), array.dtype, offset, array.shape, mode)


def _map(path: str, dtype: np.dtype, offset: int, shape: tuple[int, ...], mode: Literal["c", "r"]) -> np.ndarray:
    return np.memmap(path, dtype=dtype, mode=mode, offset=offset, shape=shape)
