"""Filters of the documents and passages that are retrieved for a patent application."""

from __future__ import annotations

import warnings
from typing import Literal, get_args

import numpy as np
import pandas as pd
import pyterrier as pt
import pyterrier_alpha as pta

from pyterrier_graph.checks import WithSignature, check_choice, check_count, check_type
from pyterrier_graph.documents import split_passage_id
from pyterrier_graph.graphs import HeteroGraph

Level = Literal["subclass", "group"]


class SharedCodes(WithSignature, pt.Transformer):
    """Keeps the documents that share a classification code with the application (Albarede et al. 2023, Sect. 5.2.2).

    If the application has no code of the level, all documents are kept.

    Columns in: ``qid``, ``docno`` (of documents), ``codes`` (of the topic's application), and any others. Columns out:
    the same; a column ``rank`` is counted anew.

    Args:
        graph: The graph of the documents, which has their codes.
        level: ``'subclass'`` (``C07C``) or ``'group'`` (``C07C45/50``); the paper does not say which.

    Raises:
        TypeError: If ``graph`` is no graph of documents.
        ValueError: If there is no such level.
        KeyError: In ``transform``, if a document is not in the graph.
    """

    schematic = {"label": "SharedCodes", "help_url": None}

    def __init__(self, graph: HeteroGraph, level: Level = "subclass") -> None:
        check_type("graph", graph, HeteroGraph, "a DocumentGraph: ptg.DocumentGraph(path).index(docs)")
        check_choice("level", level, get_args(Level))
        self.graph = graph
        self.level = level

    __repr__ = pta.transformer_repr

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Removes the documents that share no code."""
        pt.validate.result_frame(inp, extra_columns=["codes"], context=self)
        topic, _ = pd.factorize(inp["qid"])
        wanted = inp["codes"].groupby(topic).first().explode().dropna()
        wanted = wanted[wanted.str.contains("/") == (self.level == "group")]
        names = self.graph.code_names
        if len(wanted) and not len(names):
            warnings.warn("no document of the graph has codes, so SharedCodes keeps no document", stacklevel=2)
        number = pd.Index(names, dtype=object).get_indexer(wanted)
        documents = self.graph.document_of(inp["docno"].tolist())
        row, code = self.graph.codes_of(documents)
        shared = np.isin(topic[row] * len(names) + code, (wanted.index * len(names) + number)[number >= 0])
        kept = ~np.isin(topic, wanted.index)
        kept[row[shared]] = True
        return _select(inp, kept)


class NotOwnFamily(WithSignature, pt.Transformer):
    """Removes the application and its family: they are not prior art to the application. The paper does not say so.

    All publications of a patent with any kind code are removed. The topics of 2012 have no family.

    Columns in: ``qid``, ``docno`` (of documents or passages), ``document`` and ``family`` (of the topic's application),
    and any others. Columns out: the same; a column ``rank`` is counted anew.
    """

    schematic = {"label": "NotOwnFamily", "help_url": None}

    def __init__(self) -> None:
        super().__init__()

    __repr__ = pta.transformer_repr

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Removes the documents of the family."""
        pt.validate.result_frame(inp, extra_columns=["document", "family"], context=self)
        topics = inp.drop_duplicates("qid")
        own = [
            (qid, _patent(docno))
            for qid, document, family in zip(topics["qid"], topics["document"], topics["family"], strict=True)
            for docno in (document, *family)
        ]
        found = zip(inp["qid"], map(_patent, inp["docno"]), strict=True)
        members = {*own}
        return _select(inp, np.array([pair not in members for pair in found], dtype=bool))


class DocumentCutoff(WithSignature, pt.Transformer):
    """Keeps the passages of the best documents. The rank of a document is that of its best passage.

    Runs of CLEF-IP have at most 100 documents per topic, with any number of passages each.

    Columns in: ``qid``, ``docno`` (of passages), ``rank``, and any others. Columns out: the same; ranks are counted
    anew.

    Args:
        documents: The number of documents per topic that are kept.
        passages: The number of passages per document that are kept; None keeps all.

    Raises:
        ValueError: If one of the numbers is less than 1.
    """

    schematic = {"label": "DocumentCutoff", "help_url": None}

    def __init__(self, documents: int = 100, passages: int | None = None) -> None:
        check_count("documents", documents)
        if passages is not None:
            check_count("passages", passages)
        self.documents = documents
        self.passages = passages

    __repr__ = pta.transformer_repr

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Removes the other passages."""
        pt.validate.result_frame(inp, extra_columns=["rank"], context=self)
        order = np.argsort(inp["rank"].to_numpy(), kind="stable")
        names = [split_passage_id(docno)[0] for docno in inp["docno"]]
        ranked = pd.DataFrame({"qid": inp["qid"].to_numpy(), "document": names}, dtype=object).iloc[order]
        is_first = ~ranked.duplicated(["qid", "document"])
        ranked["better"] = is_first.groupby(ranked["qid"]).cumsum() - 1
        by_document = ranked.groupby(["qid", "document"])
        kept = by_document["better"].transform("first") < self.documents
        if self.passages is not None:
            kept &= by_document.cumcount() < self.passages
        return _select(inp, kept.sort_index().to_numpy(dtype=bool))


def _patent(docno: str) -> str:
    """The docno without the kind code."""
    return docno.rpartition("-")[0]


def _select(results: pd.DataFrame, kept: np.ndarray) -> pd.DataFrame:
    out = results[kept].reset_index(drop=True)
    if "rank" in out.columns:
        out["rank"] = out.groupby("qid")["rank"].rank(method="first").astype("int64") - 1
    return out
