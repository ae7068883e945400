"""A graph of the candidates of each query, made in the pipeline."""

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
    """Builds a graph of the candidates of each query, from the run alone.

    ::

        bm25 >> pt.text.get_text(dataset, "text") >> pt.text.sliding("text") >> CandidateGraph() >> reranker

    Passages with docnos ``docno%pN`` belong to one document: its root section holds them, and they follow one another
    (``order``) by their numbers, even if passages between them are missing. A docno of another form is a document with
    one passage.

    Columns in: ``qid``, ``docno``, ``text``, any others; ``title``, where there is one, is the title of the root
    section. Columns out: those, and ``graph``, a :class:`~pyterrier_graph.graphs.hetero_graph.MemoryGraph`: the same
    object in all rows of a query.

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
        graphs = {qid: self._graph(candidates) for qid, candidates in bar}
        return inp.assign(graph=inp["qid"].map(graphs).astype(object))

    def _graph(self, candidates: pd.DataFrame) -> MemoryGraph:
        titles = candidates["title"] if "title" in candidates else [""] * len(candidates)
        rows: dict[str, tuple[str, str]] = {}
        for docno, title, text in zip(candidates["docno"], titles, candidates["text"], strict=True):
            rows.setdefault(docno, (title if isinstance(title, str) else "", text))
        # sorted, so that the graph does not depend on the order of the rows
        places = sorted(
            (document, -1 if number is None else number, docno)
            for docno, (document, number) in zip(rows, map(split_passage_id, rows), strict=True)
        )
        docnos: list[str] = []
        documents: list[StructuredDocument] = []
        for docno, group in groupby(places, lambda place: place[0]):
            held = [rows[passage] for _, _, passage in group]
            root = Node(SECTION, next((title for title, _ in held if title), ""), NO_PARENT)
            # StructuredDocument refuses a docno that looks like the id of a passage: documents get other names here
            document = StructuredDocument(
                f"document {len(docnos)}", (root, *(Node(PASSAGE, text, 0) for _, text in held))
            )
            docnos.append(docno)
            documents.append(document)
        passage_ids = [docno for _, _, docno in places]
        return MemoryGraph(replace(extract(documents), docnos=docnos, passage_ids=passage_ids))
