"""What tells frames and pipelines from others, where interrupted work continues."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import numpy as np
import pandas as pd


def frame_sha256(frame: pd.DataFrame) -> str:
    """SHA-256 of the columns and values of a frame, in their order; values may be arrays."""
    digest = hashlib.sha256()
    for name, values in frame.items():
        digest.update(f"{name!r}\n".encode())
        for value in values:
            digest.update(value.tobytes() if isinstance(value, np.ndarray) else f"{value!r}\n".encode())
    return digest.hexdigest()


def pipeline_name(pipeline: Any) -> str:
    """How a pipeline is shown, without what differs between two processes; there is nothing better to tell it by."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(pipeline))
