"""A graph of the candidates of each query, made in the pipeline."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
import pyterrier_alpha as pta

from pyterrier_graph.checks import WithSignature, check_count, check_frame, is_unicode
from pyterrier_graph.documents import NO_PARENT, PASSAGE, SECTION, Node, StructuredDocument, split_passage_id
from pyterrier_graph.graphs.extraction import extract
from pyterrier_graph.graphs.hetero_graph import PASSAGE_TYPE, MemoryGraph
from pyterrier_graph.graphs.ids import some
from pyterrier_graph.graphs.similarity import most_similar

SIMILAR = "similar"


class CandidateGraph(WithSignature, pt.Transformer):
    """Builds a graph of the candidates of each query, from the run alone.

    ::

        bm25 >> pt.text.get_text(dataset, "text") >> pt.text.sliding("text") >> CandidateGraph() >> reranker

    The passages of the graph are the docnos of the query's rows. Passages with docnos ``docno%pN`` belong to one
    document: they lie in its root section and follow one another (``order``) by their numbers, even if passages between
    them are missing. A docno of another form is a document with one passage.

    Columns in: ``qid``, ``docno``, ``text`` (see ``text_field``), any others; ``title``, where there is one, is the
    title of the root section. Columns out: those, and ``graph``, a :class:`~pyterrier_graph.graphs.MemoryGraph`: the
    same object in all rows of a query.

    Args:
        similarity: Neighbors of each candidate in the relation ``'similar'``: the candidates of the same query whose
            tf-idf vectors have the highest cosine. 0 for no such relation.
        text_field: The column that holds the passages.
        verbose: Whether to show progress.

    Raises:
        ValueError: If ``similarity`` is negative, or a text is missing.
    """

    schematic = {"label": "CandidateGraph", "help_url": None}

    def __init__(self, *, similarity: int = 0, text_field: str = "text", verbose: bool = True) -> None:
        check_count("similarity", similarity, 0)
        self.similarity = similarity
        self.text_field = text_field
        self.verbose = verbose

    __repr__ = pta.transformer_repr

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Adds the graphs."""
        inp = check_frame(inp, self)
        pt.validate.result_frame(inp, extra_columns=[self.text_field], context=self)
        missing = inp["docno"][[not _is_text(text) for text in inp[self.text_field]]].tolist()
        if missing:
            advice = "put pt.text.get_text(...) before"
            raise ValueError(f"{some(missing, 'candidate')} without text in {self.text_field!r}: {advice}")
        graphs = np.empty(len(inp), dtype=object)
        groups = inp.groupby("qid", sort=False).indices.values()
        for rows in pt.tqdm(groups, desc="candidate graphs", unit="query", delay=1, disable=not self.verbose):
            graph = self._graph(inp.iloc[rows])
            for row in rows:
                graphs[row] = graph
        return inp.assign(graph=pd.Series(graphs, index=inp.index, dtype=object))

    def _graph(self, candidates: pd.DataFrame) -> MemoryGraph:
        titles = candidates["title"] if "title" in candidates else [""] * len(candidates)
        rows: dict[str, tuple[str, str]] = {}
        for docno, title, text in zip(candidates["docno"], titles, candidates[self.text_field], strict=True):
            rows.setdefault(docno, (title if _is_text(title) else "", text))
        # sorted, so that the graph does not depend on the order of the rows
        places = sorted(
            (document, -1 if number is None else number, docno)
            for docno, (document, number) in zip(rows, map(split_passage_id, rows), strict=True)
        )
        passages: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for document, _, docno in places:
            passages[document].append(rows[docno])
        documents = []
        for number, held in enumerate(passages.values()):
            root = Node(SECTION, next((title for title, _ in held if title), ""), NO_PARENT)
            nodes = (root, *(Node(PASSAGE, text, 0) for _, text in held))
            # StructuredDocument refuses a docno that looks like the id of a passage, so documents get other names here.
            documents.append(StructuredDocument(f"document {number}", nodes))
        parts = replace(extract(documents), docnos=[*passages], passage_ids=[docno for _, _, docno in places])
        if self.similarity:
            candidate = np.flatnonzero(parts.node_type == PASSAGE_TYPE)
            parts.edges[SIMILAR] = candidate[most_similar([parts.texts[node] for node in candidate], self.similarity)]
        return QueryGraph(parts)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and is_unicode(value)


class QueryGraph(MemoryGraph):
    """A graph whose passages are the rows of a query."""

    def _raise_unknown(self, unknown: list[Any]) -> None:
        advice = "CandidateGraph() must come after whatever adds or renames rows"
        raise KeyError(f"{some(unknown, 'node')} not in the graph of this query's candidates; {advice}")
