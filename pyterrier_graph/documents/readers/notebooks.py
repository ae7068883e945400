"""Reads Jupyter notebooks: Markdown and code, each cell by its number; outputs are left out."""

from __future__ import annotations

import json
import re

from pyterrier_graph.documents.readers.files import decode
from pyterrier_graph.documents.readers.markdown import read_part
from pyterrier_graph.documents.readers.outline import Outline, ReaderError

_FENCE = re.compile("`{3,}")


def parse(data: bytes, outline: Outline) -> None:
    """Reads a notebook into an outline, with numbers of cells in place of lines."""
    try:
        notebook = json.loads(decode(data))
        sources = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ReaderError(f"not a notebook of format 4: {type(error).__name__} {error}") from error
    for number, (kind, source) in enumerate(sources, 1):
        fence = max(["```", *(f"{marks}`" for marks in _FENCE.findall(source))], key=len)
        read_part(source if kind == "markdown" else f"{fence}\n{source}\n{fence}", outline, number)
