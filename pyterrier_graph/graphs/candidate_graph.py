"""Graphs of the candidates of each query, built in the pipeline."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import pandas as pd
import pyterrier as pt

from pyterrier_graph.checks import check_frame, progress
from pyterrier_graph.documents.document import (
    NO_PARENT,
    PASSAGE,
    SECTION,
    Node,
    StructuredDocument,
    split_passage_id,
)
from pyterrier_graph.graphs.builder import extract
from pyterrier_graph.graphs.hetero_graph import MemoryGraph
from pyterrier_graph.graphs.passages import Step


class CandidateGraph(Step):
    """Builds a graph of each query's candidates from the run, for corpora without a graph on disk.

    ::

        bm25 >> pt.text.get_text(dataset, "text") >> pt.text.sliding("text") >> CandidateGraph() >> reranker

    Passages ``docno%pN`` belong to the document ``docno``: its root section contains them, and ``order`` follows their
    numbers, even if passages in between are missing. Any other docno is a document with one passage.

    Columns in: ``qid``, ``docno``, ``text``, any others; ``title``, if present, is the title of the root section.
    Columns out: the same, plus ``graph``, a :class:`~pyterrier_graph.graphs.hetero_graph.MemoryGraph`, which all rows
    of a query share.

    Args:
        verbose: Whether to show progress.

    Raises:
        ValueError: If a text is missing.
    """

    def __init__(self, *, verbose: bool = True) -> None:
        self.verbose = verbose

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Adds the graphs."""
        inp = check_frame(inp, self, texts=("text",))
        pt.validate.result_frame(inp, extra_columns=["text"], context=self)
        groups = inp.groupby("qid", sort=False)
        bar = progress(groups, len(groups), "query", verbose=self.verbose, desc="candidate graphs")
        graphs = {qid: _graph_of(candidates) for qid, candidates in bar}
        return inp.assign(graph=inp["qid"].map(graphs).astype(object))


def _graph_of(candidates: pd.DataFrame) -> MemoryGraph:
    """The graph of one query's candidates; it does not depend on the order of the rows."""
    titles = candidates["title"] if "title" in candidates else [""] * len(candidates)
    rows: dict[str, tuple[str, str]] = {}
    for docno, title, text in zip(candidates["docno"], titles, candidates["text"], strict=True):
        rows.setdefault(docno, (title if isinstance(title, str) else "", text))
    split = zip(rows, map(split_passage_id, rows), strict=True)
    passages = sorted((document, -1 if n is None else n, docno) for docno, (document, n) in split)
    docnos: list[str] = []
    documents: list[StructuredDocument] = []
    for docno, group in groupby(passages, lambda passage: passage[0]):
        texts = [rows[passage] for _, _, passage in group]
        root = Node(SECTION, next((title for title, _ in texts if title), ""), NO_PARENT)
        nodes = (root, *(Node(PASSAGE, text, 0) for _, text in texts))
        # StructuredDocument refuses docnos that look like ids of passages, so names are set below
        documents.append(StructuredDocument(f"document {len(docnos)}", nodes))
        docnos.append(docno)
    passage_ids = [docno for _, _, docno in passages]
    return MemoryGraph(replace(extract(documents), docnos=docnos, passage_ids=passage_ids))
