"""Graphs of the candidates of each query, built in the pipeline."""

from __future__ import annotations

from collections import defaultdict

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
from pyterrier_graph.graphs.memory_graph import MemoryGraph
from pyterrier_graph.graphs.passages import Step


class CandidateGraph(Step):
    """Builds a graph of each query's candidates from the run, for corpora without a graph on disk.

    ::

        bm25 >> pt.text.get_text(dataset, "text") >> pt.text.sliding("text") >> CandidateGraph() >> reranker

    Passages ``docno%pN`` belong to the document ``docno``: its root section contains them, and ``order`` follows their
    numbers, even if passages in between are missing. Any other docno is a document with one passage.

    Columns in: ``qid``, ``docno``, ``text``, any others; ``title``, if present, is the title of the root section.
    Columns out: the same, plus ``graph``, a :class:`~pyterrier_graph.graphs.memory_graph.MemoryGraph`, which all rows
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
    rows = candidates.drop_duplicates("docno")
    titles = rows["title"] if "title" in rows else [""] * len(rows)
    documents = defaultdict(list)
    for docno, title, text in zip(rows["docno"], titles, rows["text"], strict=True):
        document, number = split_passage_id(docno)
        number = -1 if number is None else number
        documents[document].append((number, docno, title if isinstance(title, str) else "", text))
    docnos = sorted(documents)
    structured: list[StructuredDocument] = []
    passage_ids: list[str] = []
    for docno in docnos:
        passages = sorted(documents[docno])
        title = next((title for _, _, title, _ in passages if title), "")
        nodes = [Node(SECTION, title, NO_PARENT)]
        nodes += [Node(PASSAGE, text, 0) for _, _, _, text in passages]
        passage_ids += [passage for _, passage, _, _ in passages]
        # StructuredDocument refuses docnos that look like ids of passages, so these are given below
        structured.append(StructuredDocument(f"document {len(structured)}", tuple(nodes)))
    return MemoryGraph(structured, docnos=docnos, passage_ids=passage_ids)
