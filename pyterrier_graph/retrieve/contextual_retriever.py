"""The retriever of an index of contextual vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import pyterrier as pt

from pyterrier_graph.checks import WithSignature, check_count, check_frame
from pyterrier_graph.graphs.passages import GraphTextLoader
from pyterrier_graph.graphs.query_passage_builder import unwrapped

if TYPE_CHECKING:
    from pyterrier_graph.retrieve.contextual_index import ContextualIndex


class ContextualRetriever(WithSignature, pt.Transformer):
    """What :meth:`ContextualIndex.retriever` returns."""

    schematic = {"label": "ContextualIndex", "help_url": "https://pypi.org/project/pyterrier-graph/"}

    def __init__(self, index: ContextualIndex, num_results: int = 1000) -> None:
        check_count("num_results", num_results)
        self.index = index
        self.num_results = num_results

    def __repr__(self) -> str:
        return f"{self.index!r}.retriever({'' if self.num_results == 1000 else self.num_results})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Finds passages."""
        inp = check_frame(inp, self, texts=("query",))
        pt.validate.query_frame(inp, extra_columns=["query"], context=self)
        search = self.index.flex.np_retriever(num_results=self.num_results, drop_query_vec=True)
        found = unwrapped((self.index.query_encoder() >> search)(inp))
        found = found.drop(columns="docid", errors="ignore")  # the index's own numbers are wrong for other indexes
        return found if self.index.graph is None else GraphTextLoader(self.index.graph, "text")(found)

    def fuse_rank_cutoff(self, k: int) -> pt.Transformer:
        """Finds no more passages than are kept."""
        return ContextualRetriever(self.index, min(k, self.num_results))
