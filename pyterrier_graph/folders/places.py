"""From the ids of passages to what a reader needs: text, titles, file and line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
import pyterrier_alpha as pta

from pyterrier_graph.checks import WithSignature
from pyterrier_graph.documents import split_passage_id
from pyterrier_graph.graphs.document_graph import DocumentGraph


class PassagePlaces(WithSignature, pt.Transformer):
    """Adds the text of each passage, the titles above the passage, its file and line.

    Columns in: ``docno`` (of passages), and any others. Columns out: those, ``text``, ``title`` (from the document's
    title down, ``"title - section"``), ``file`` (its path in the folder) and ``line`` (where the passage begins).

    Args:
        graph: The graph of the folder.
        lines: Line of each passage, in the order of the graph.
    """

    def __init__(self, graph: DocumentGraph, lines: np.ndarray) -> None:
        if len(lines) != len(graph.passage_nodes):
            raise ValueError(f"{graph!r} has {len(graph.passage_nodes)} passages, but there are {len(lines)} lines")
        self.graph, self.lines = graph, lines

    __repr__ = pta.transformer_repr

    def __getstate__(self) -> dict[str, Any]:
        # worker processes map the file of the lines again
        return vars(self) | {"lines": getattr(self.lines, "filename", self.lines)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if not isinstance(self.lines, np.ndarray):
            self.lines = np.load(self.lines, mmap_mode="r")

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Adds the columns."""
        pt.validate.columns(inp, includes=["docno"], context=self)
        out = self.graph.text_loader().transform(inp)
        docnos = out["docno"].tolist()
        passages = np.searchsorted(self.graph.passage_nodes, self.graph.nodes_of(docnos))
        out["file"] = pd.Series([split_passage_id(docno)[0] for docno in docnos], dtype="str")
        out["line"] = np.asarray(self.lines)[passages].astype(np.int64)
        return out
