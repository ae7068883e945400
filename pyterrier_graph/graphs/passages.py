"""Transformers that need a graph: documents to passages, and passages to texts, sections or documents."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyterrier as pt
import pyterrier_alpha as pta

from pyterrier_graph.checks import WithSignature, check_frame
from pyterrier_graph.graphs.hetero_graph import (
    PASSAGE_TYPE,
    HeteroGraph,
    check_relations,
    warn_of_missing_edges,
)
from pyterrier_graph.graphs.relations import DOCUMENT

FIELDS = ("text", "title")


class Step(WithSignature, pt.Transformer):
    """Base of transformers without training. Their ``repr`` shows their name and arguments."""

    __repr__ = pta.transformer_repr

    @property
    def schematic(self) -> dict[str, Any]:
        """How PyTerrier draws the transformer."""
        return {"label": type(self).__name__, "help_url": None}


class Passages(Step):
    """Replaces each document with its passages, because graph models rank passages.

    Passages have the score of their document, and are ranked in the order of the documents, then of the text.

    Columns in: ``docno`` (of documents), and any others. Columns out: ``docno`` (of passages, ``docno%pN`` or their own
    ids), ``text``, ``rank`` if there are ``qid`` and ``score``, and the other columns unchanged. The column ``docid``
    is dropped, because it belongs to the document.

    Args:
        graph: The graph that contains the documents.
    """

    def __init__(self, graph: HeteroGraph) -> None:
        self.graph = graph

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Replaces documents with their passages."""
        inp = check_frame(inp, self, numbers=("score",))
        pt.validate.columns(inp, includes=["docno"], context=self)
        documents = self.graph.document_of(inp["docno"].tolist())
        rows, nodes = self.graph.document_passages.select(documents)
        inp = inp.drop(columns=["rank", "docid"], errors="ignore")
        out = inp.iloc[rows].reset_index(drop=True)
        docnos = self.graph.ids_of(nodes)
        texts = self.graph.texts(nodes)
        out["docno"] = pd.Series(docnos, dtype="str")
        out["text"] = pd.Series(texts, dtype="str")
        if "qid" in out.columns and "score" in out.columns:
            return pt.model.add_ranks(out)
        return out


class GraphTextLoader(Step):
    """Adds the texts of passages, or the titles of their sections, so that a run needs no other source of texts.

    Columns in: ``docno`` (of passages), and any others. Columns out: the same, plus ``text`` and ``title`` as asked.

    Args:
        graph: The graph that contains the passages.
        fields: ``'text'``, ``'title'``, both in a list, or ``'*'`` for both.
    """

    def __init__(
        self, graph: HeteroGraph, fields: Sequence[str] | str | Literal["*"] = "*"
    ) -> None:
        self.graph = graph
        if isinstance(fields, str):
            fields = FIELDS if fields == "*" else [fields]
        self.fields = [*fields]

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Adds the fields."""
        inp = check_frame(inp, self).reset_index(drop=True)
        pt.validate.columns(inp, includes=["docno"], context=self)
        nodes = self.graph.nodes_of(inp["docno"].tolist())
        loaders = {"text": self.graph.texts, "title": self.graph.titles}
        for field in self.fields:
            load = loaders[field]
            inp[field] = pd.array(load(nodes), dtype="str")
        return inp

    def fuse_rank_cutoff(self, k: int) -> pt.Transformer:
        """Loads texts of the first ``k`` passages only."""
        return pt.RankCutoff(k) >> self


class Fold(Step):
    """Ranks sections, documents or other nodes by their best passages.

    ::

        sections = bm25 >> graph.fold("structural") >> pt.text.get_text(graph)

    A passage gives its score to each node that it leads to along a relation, and a node keeps the best score. Ties keep
    the order of the rows. A passage that leads nowhere stays in the run, for example with ``'title'`` a passage under
    no title; so does a section.

    Columns in: ``qid, docno, score``, of passages, and any others. Columns out: ``docno`` (the id of the node, such as
    ``docno%sN`` for a section), ``score``, ``rank``, ``passage`` (the ``docno`` of the best passage), and the other
    columns of the best passage except ``docid``.

    Args:
        graph: The graph that contains the passages.
        relation: A relation of the graph, a path (``'structural/structural'``), or ``'document'``. In contrast to
            ``pt.text.max_passage()``, the graph determines the document of a passage, not its id.
    """

    def __init__(self, graph: HeteroGraph, relation: str = "structural") -> None:
        if relation != DOCUMENT:
            relations = check_relations(graph, [relation])
            warn_of_missing_edges(graph, relations)
        self.graph = graph
        self.relation = relation

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Replaces passages with the nodes that they lead to."""
        inp = check_frame(inp, self, numbers=("score",))
        pt.validate.result_frame(inp, extra_columns=["score"], context=self)
        query, _ = inp["qid"].factorize()
        scores = inp["score"].to_numpy()
        order = np.lexsort((-scores, query))  # by query, the best first
        run = inp.iloc[order].drop(columns=["rank", "docid"], errors="ignore")
        rows, ids = self._targets(run["docno"].tolist())
        out = run.iloc[rows]
        docnos = pd.array(ids, dtype="str")
        out = out.assign(passage=out["docno"], docno=docnos)
        best = out.drop_duplicates(["qid", "docno"])
        best = best.reset_index(drop=True)
        return pt.model.add_ranks(best)

    def _targets(self, ids: list[str]) -> tuple[np.ndarray, list[str]]:
        """The position in ``ids``, ascending, and the id of each node that it leads to."""
        graph = self.graph
        nodes = graph.nodes_of(ids)
        if self.relation == DOCUMENT:
            documents = graph.document[nodes]
            return np.arange(len(ids)), graph.docnos_of(documents)
        is_passage = graph.node_type[nodes] == PASSAGE_TYPE
        passages = np.flatnonzero(is_passage)  # positions of passages in `ids`
        row, reached = graph.neighbors(nodes[passages], self.relation)
        rows = passages[row]
        unchanged = np.setdiff1d(np.arange(len(nodes)), rows)
        rows = np.append(rows, unchanged)
        reached = np.append(reached, nodes[unchanged])
        order = np.argsort(rows, kind="stable")
        return rows[order], graph.ids_of(reached[order])
