"""Transformers of a graph: documents to passages, passages to texts, and passages to sections or documents."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd
import pyterrier as pt
import pyterrier_alpha as pta

from pyterrier_graph.checks import WithSignature, check_frame, check_type
from pyterrier_graph.graphs.hetero_graph import PASSAGE_TYPE, HeteroGraph
from pyterrier_graph.graphs.relations import DOCUMENT, check_relations, follow

FIELDS = ("text", "title")


class Passages(WithSignature, pt.Transformer):
    """Replaces each document by all its passages, in document order.

    A passage has the score of its document. Ranks keep the order of the documents, and of the passages in a document.
    A run of passages, whose ids are all ids of passages, keeps its rows and gets their texts.

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
        nodes = self.graph._find(docnos)
        if len(nodes) and (nodes >= 0).all() and (self.graph.node_type[nodes] == PASSAGE_TYPE).all():
            return np.arange(len(nodes)), nodes
        return self.graph.passages_of_documents(self.graph.document_of(docnos))


class GraphTextLoader(WithSignature, pt.Transformer):
    """Adds the texts of passages, or the titles of the sections that hold them.

    Columns in: ``docno`` (of passages), and any others. Columns out: those, and ``text``, ``title`` as asked for.

    Args:
        graph: The graph that the passages are in.
        fields: ``'text'``, ``'title'``, both in a list, or ``'*'`` for both. No other field is allowed.
    """

    schematic = {"label": "TextLoader", "help_url": None}

    def __init__(self, graph: HeteroGraph, fields: Sequence[str] | str | Literal["*"] = "*") -> None:
        self.graph = graph
        self.fields = [*FIELDS] if fields == "*" else [fields] if isinstance(fields, str) else [*fields]
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


class Fold(WithSignature, pt.Transformer):
    """Ranks what a relation leads to, such as sections, by their best passages: ``graph.fold("structural")``.

    ::

        sections = bm25 >> graph.fold("structural") >> pt.text.get_text(graph)

    A node has the score of the best passage that leads to it, and nodes are ranked by these scores. Nodes with equal
    scores, and equal passages of a node, keep the order of the passages' ranks, or of the rows where there are no
    ranks. A passage that leads to several nodes gives its score to each of them.

    A passage that leads to no node stays as it is, for example with ``'title'`` a passage under no title. A section
    stays as it is, too. With ``'document'``, sections lead to their documents, and a document stays as it is.

    Columns in: ``qid, docno, score``, of passages, and any others. Columns out: ``docno`` (the id of the node, such as
    ``docno%sN`` for a section), ``score``, ``rank``, ``passage`` (the ``docno`` of the best passage), and all other
    columns with the values of the best passage; ``docid`` is left out, since it belongs to the passage.

    Args:
        graph: The graph that the passages are in.
        relation: What passages are folded into: a relation of the graph, a path of relations
            (``'structural/structural'``), or ``'document'`` for their documents, whose ids are docnos. In contrast to
            ``pt.text.max_passage()``, the graph determines the document of a passage.

    Raises:
        KeyError: If a passage is not in the graph, or an id is that of a document where the relation leads elsewhere.
        ValueError: If the graph does not have the relation, or a score is missing.
    """

    schematic = {"label": "Fold", "help_url": None}

    def __init__(self, graph: HeteroGraph, relation: str = "structural") -> None:
        check_fold(graph, relation)
        self.graph = graph
        self.relation = relation

    __repr__ = pta.transformer_repr

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Replaces passages by the nodes that they lead to."""
        inp = check_frame(inp, self, numbers=("score", "rank"))
        pt.validate.result_frame(inp, extra_columns=["score"], context=self)
        before = inp["rank"].to_numpy() if "rank" in inp.columns else np.arange(len(inp))
        run = inp.iloc[np.lexsort((before, -inp["score"].to_numpy(), pd.factorize(inp["qid"])[0]))]
        passages = run["docno"].tolist()
        rows, names = fold(self.graph, passages, self.relation, strict=True)
        out = run.drop(columns=["rank", "docid"], errors="ignore").iloc[rows]
        out = out.assign(passage=out["docno"], docno=pd.Series(names, dtype="str", index=out.index))
        return pt.model.add_ranks(out.drop_duplicates(["qid", "docno"]).reset_index(drop=True))


def check_fold(graph: HeteroGraph, relation: str) -> None:
    """Raises an error if a relation is not one that passages can be folded by."""
    check_type("relation", relation, str, "the name of a relation, such as 'structural', or 'document'")
    if relation != DOCUMENT:
        check_relations(graph, [relation])


def fold(
    graph: HeteroGraph, identifiers: list[str], relation: str, *, strict: bool = False
) -> tuple[np.ndarray, list[str]]:
    """The nodes or documents to which passages lead.

    An id stays as it is if it is not that of a passage, or if the passage leads to no node.

    Args:
        graph: The graph.
        identifiers: Ids of passages.
        relation: As in :class:`Fold`.
        strict: Whether an id that is not in the graph raises KeyError.

    Returns:
        Per pair of a passage and a node, the position in ``identifiers``, ascending, and the id of the node.
    """
    nodes = graph._find(identifiers)
    if strict:
        unknown = [identifiers[row] for row in np.flatnonzero(nodes < 0)]
        if relation == DOCUMENT:
            unknown = [unknown[row] for row in np.flatnonzero(graph._documents(unknown) < 0)]
        graph.nodes_of(unknown)  # raises KeyError with advice
    rows = np.flatnonzero(nodes >= 0)
    if relation == DOCUMENT:
        names = graph.docnos_of(graph.document[nodes[rows]])
    else:
        rows = rows[graph.node_type[nodes[rows]] == PASSAGE_TYPE]
        found, reached = follow(graph, nodes[rows], relation)
        rows, names = rows[found], graph.ids_of(reached)
    same = np.setdiff1d(np.arange(len(nodes)), rows)
    rows = np.concatenate([rows, same])
    names += [identifiers[row] for row in same]
    order = np.argsort(rows, kind="stable")
    return rows[order], [names[place] for place in order]
