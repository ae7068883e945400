"""Graphs of the candidates of each query, built in the pipeline."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

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
        ValueError: If a text is missing, or the id of a document looks like a passage's (``docno%p1%p0``).
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
        graph = inp["qid"].map(graphs)  # of each row
        return inp.assign(graph=graph.astype(object))


class Candidate(NamedTuple):
    """A passage of a document; a document without passages is its own candidate, with the number -1."""

    number: int
    docno: str
    title: str
    text: str


def _graph_of(candidates: pd.DataFrame) -> MemoryGraph:
    """The graph of one query's candidates; it does not depend on the order of the rows."""
    rows = candidates.drop_duplicates("docno")
    if "title" not in rows:
        rows = rows.assign(title="")
    titles = rows["title"].fillna("")
    columns = rows["docno"], titles, rows["text"]
    passages = defaultdict(list)  # by document
    for docno, title, text in zip(*columns, strict=True):
        document, number = split_passage_id(docno)
        if number is None:
            number = -1
        candidate = Candidate(number, docno, title, text)
        passages[document].append(candidate)
    documents = [_document(docno, passages[docno]) for docno in sorted(passages)]
    return MemoryGraph(documents)


def _document(docno: str, passages: list[Candidate]) -> StructuredDocument:
    """A document of these passages, in the order of their numbers."""
    passages = sorted(passages)
    titles = [passage.title for passage in passages if passage.title]
    title = titles[0] if titles else ""
    root = Node(SECTION, title, NO_PARENT)
    nodes = [Node(PASSAGE, passage.text, 0) for passage in passages]
    ids = tuple(passage.docno for passage in passages)
    return StructuredDocument(docno, (root, *nodes), passage_ids=ids)
