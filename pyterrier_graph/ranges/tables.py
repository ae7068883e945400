"""Tables among the arrays of a range."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa


def stored_table(table: pa.Table | pd.DataFrame) -> np.ndarray:
    """A table as it is stored: Arrow's stream, as bytes."""
    table = pa.Table.from_pandas(table, preserve_index=False) if isinstance(table, pd.DataFrame) else table
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    return np.frombuffer(out.getvalue(), dtype=np.uint8)


def read_table(stored: np.ndarray) -> pa.Table:
    """The table that is stored so."""
    return pa.ipc.open_stream(stored.tobytes()).read_all()
