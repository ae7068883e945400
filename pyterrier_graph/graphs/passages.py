"""Transformers that a graph makes: from documents to passages, and from passages to their texts."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd
import pyterrier as pt
import pyterrier_alpha as pta

from pyterrier_graph.checks import WithSignature, check_frame
from pyterrier_graph.graphs.hetero_graph import PASSAGE_TYPE, HeteroGraph

FIELDS = ("text", "title")


class Passages(WithSignature, pt.Transformer):
    """Replaces each document by all its passages, in document order.

    A passage has the score of its document. Ranks keep the order of the documents, and of the passages in a document.
    A run of passages keeps its rows and gets their texts; a run is one of passages if all its ids are ids of passages.

    Columns in: ``docno`` (of documents), and any others. Columns out: ``docno`` (of passages, ``docno%pN`` or their own
    ids), ``text``, ``rank`` where there are ``qid`` and ``score``, and the other columns as they were. The column
    ``docid`` is left out, since it belongs to the document.

    Args:
        graph: The graph that the documents are in.
        titles: Whether the column ``text`` has the titles of a passage's sections before the passage, as in
            ``"title - section: passage"``. This is for rerankers that read texts; rerankers that take token vectors
            from a store or the graph ignore it.

    Raises:
        KeyError: If a document is not in the graph.
        ValueError: If a document's score is not a number.
    """

    schematic = {"label": "Passages", "help_url": None}

    def __init__(self, graph: HeteroGraph, *, titles: bool = False) -> None:
        self.graph = graph
        self.titles = titles

    __repr__ = pta.transformer_repr

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Replaces documents by their passages."""
        inp = check_frame(inp, self, numbers=("score", "rank"))
        pt.validate.columns(inp, includes=["docno"], context=self)
        ranked = "qid" in inp.columns and "score" in inp.columns
        if ranked and "rank" in inp.columns:
            # ties between documents were decided by their rank
            inp = inp.iloc[np.lexsort((inp["rank"], pd.factorize(inp["qid"])[0]))]
        rows, nodes = self._passages(inp["docno"].tolist())
        out = inp.drop(columns=["rank", "docid"], errors="ignore").iloc[rows].reset_index(drop=True)
        out["docno"] = pd.Series(self.graph.ids_of(nodes), dtype="str")
        out["text"] = pd.Series(self.graph.texts(nodes, titles=self.titles), dtype="str")
        return pt.model.add_ranks(out) if ranked else out

    def _passages(self, docnos: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Per passage the position in ``docnos``, and the node."""
        nodes = self.graph.find(docnos)
        if len(nodes) and (nodes >= 0).all() and (self.graph.node_type[nodes] == PASSAGE_TYPE).all():
            return np.arange(len(nodes)), nodes
        return self.graph.passages_of_documents(self.graph.document_of(docnos))


class GraphTextLoader(WithSignature, pt.Transformer):
    """Adds the texts of passages, or the titles of the sections that hold them.

    Columns in: ``docno`` (of passages), and any others. Columns out: those, and ``text``, ``title`` as asked for.

    Args:
        graph: The graph that the passages are in.
        fields: ``'text'``, ``'title'``, both in a list, or ``'*'`` for both. No other field is allowed.
        verbose: Has no effect: texts are read too quickly for a progress bar.
    """

    schematic = {"label": "TextLoader", "help_url": None}

    def __init__(
        self, graph: HeteroGraph, fields: Sequence[str] | str | Literal["*"] = "*", *, verbose: bool = False
    ) -> None:
        self.graph = graph
        self.fields = [*FIELDS] if fields == "*" else [fields] if isinstance(fields, str) else [*fields]
        self.verbose = verbose
        if unknown := [field for field in self.fields if field not in FIELDS]:
            raise ValueError(f"a graph has no field {unknown[0]!r}, only {', '.join(map(repr, FIELDS))}")

    __repr__ = pta.transformer_repr

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Adds the fields."""
        inp = check_frame(inp, self)
        pt.validate.columns(inp, includes=["docno"], context=self)
        nodes, place = np.unique(self.graph.nodes_of(inp["docno"].tolist()), return_inverse=True)
        out = inp.drop(columns=self.fields, errors="ignore").reset_index(drop=True)
        for field in self.fields:
            texts = self.graph.texts(nodes) if field == "text" else self.graph.titles(nodes)
            out[field] = pd.Series(texts, dtype="str").iloc[place].reset_index(drop=True)
        return out

    def fuse_rank_cutoff(self, k: int) -> pt.Transformer:
        """Loads texts of no more passages than are kept."""
        return pt.RankCutoff(k) >> self
