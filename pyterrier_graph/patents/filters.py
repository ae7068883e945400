"""What is left out of the documents and passages that were retrieved for a patent application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import pandas as pd
import pyterrier as pt
import pyterrier_alpha as pta

from pyterrier_graph.documents import split_passage_id

if TYPE_CHECKING:
    from pyterrier_graph.graphs import HeteroGraph

Level = Literal["subclass", "group"]


class SharedCodes(pt.Transformer):
    """Keeps the documents that share a classification code with the application (Albarede et al. 2023, Sect. 5.2.2).

    A topic whose application has no code of that level keeps all its documents.

    Columns in: ``qid``, ``docno`` (of documents), ``codes`` (of the topic's application), and any others. Columns out:
    the same; ranks are closed up.

    Args:
        graph: The graph that the documents are in, with their codes.
        level: ``'subclass'`` (``C07C``), or ``'group'`` for the finer ones (``C07C45/50``); the paper does not say.

    Raises:
        KeyError: If a document is not in the graph.
        ValueError: If there is no such level.
    """

    schematic = {"label": "SharedCodes", "help_url": None}

    def __init__(self, graph: HeteroGraph, level: Level = "subclass") -> None:
        if level not in get_args(Level):
            raise ValueError(f"level must be one of {', '.join(get_args(Level))}, got {level!r}")
        self.graph = graph
        self.level = level

    __repr__ = pta.transformer_repr

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Leaves out the other documents."""
        pt.validate.result_frame(inp, extra_columns=["codes"], context=self)
        topic, _ = pd.factorize(inp["qid"])
        wanted = inp["codes"].groupby(topic).first().explode().dropna()
        wanted = wanted[wanted.str.contains("/") == (self.level == "group")]
        names = self.graph.code_names
        number = pd.Index(names, dtype=object).get_indexer(wanted)
        documents = self.graph.document_of(inp["docno"].tolist())
        row, code = self.graph.codes_of(documents)
        shared = np.isin(topic[row] * len(names) + code, (wanted.index * len(names) + number)[number >= 0])
        kept = ~np.isin(topic, wanted.index)
        kept[row[shared]] = True
        return _select(inp, kept)


class NotOwnFamily(pt.Transformer):
    """Leaves out the application itself and its family: a patent is not prior art to itself.

    All publications of a patent go, whatever their kind code. The topics of 2012 do not name the family. Whether the
    paper does this is not said.

    Columns in: ``qid``, ``docno`` (of documents or passages), ``document`` and ``family`` (of the topic's application),
    and any others. Columns out: the same; ranks are closed up.
    """

    schematic = {"label": "NotOwnFamily", "help_url": None}

    def __repr__(self) -> str:
        return "NotOwnFamily()"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Leaves out the family's documents."""
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


class DocumentCutoff(pt.Transformer):
    """Keeps the passages of the best documents, which are those of the best passages.

    CLEF-IP takes runs of 100 documents per topic, with as many passages each as one likes.

    Columns in: ``qid``, ``docno`` (of passages), ``rank``, and any others. Columns out: the same; ranks are closed up.

    Args:
        documents: So many documents of a topic are kept.
        passages: So many passages of each document, the best; None keeps all.

    Raises:
        ValueError: If nothing is to be kept.
    """

    schematic = {"label": "DocumentCutoff", "help_url": None}

    def __init__(self, documents: int = 100, passages: int | None = None) -> None:
        if documents < 1 or (passages is not None and passages < 1):
            raise ValueError(f"at least one is to be kept, got documents={documents}, passages={passages}")
        self.documents = documents
        self.passages = passages

    __repr__ = pta.transformer_repr

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Leaves out the other passages."""
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
    """Country and number, without the kind code."""
    return docno.rpartition("-")[0]


def _select(results: pd.DataFrame, kept: np.ndarray) -> pd.DataFrame:
    out = results[kept].reset_index(drop=True)
    if "rank" in out.columns:
        out["rank"] = out.groupby("qid")["rank"].rank(method="first").astype("int64") - 1
    return out
