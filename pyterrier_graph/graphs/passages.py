"""Transformers that need a graph: documents to passages, and passages to texts, sections or documents."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyterrier as pt
import pyterrier_alpha as pta

from pyterrier_graph.checks import WithSignature, check_frame
from pyterrier_graph.graphs.context import MOST
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.hetero_graph import (
    PASSAGE_TYPE,
    HeteroGraph,
    check_relations,
    fold,
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

    Passages have the score of their document, and are ranked in the order of the documents, then of the text. A run of
    passages keeps its rows and gets their texts.

    Columns in: ``docno`` (of documents), and any others. Columns out: ``docno`` (of passages, ``docno%pN`` or their own
    ids), ``text``, ``rank`` if there are ``qid`` and ``score``, and the other columns unchanged. The column ``docid``
    is dropped, because it belongs to the document.

    Args:
        graph: The graph that contains the documents.
        titles: Whether texts begin with the titles of a passage's sections: ``"title - section: passage"``. Rerankers
            that read a graph or stored vectors ignore texts.
    """

    def __init__(self, graph: HeteroGraph, *, titles: bool = False) -> None:
        self.graph = graph
        self.titles = titles

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Replaces documents with their passages."""
        inp = check_frame(inp, self, numbers=("score", "rank"))
        pt.validate.columns(inp, includes=["docno"], context=self)
        ranked = "qid" in inp.columns and "score" in inp.columns
        if ranked and "rank" in inp.columns:
            # ranks decide ties between documents
            inp = inp.iloc[np.lexsort((inp["rank"], pd.factorize(inp["qid"])[0]))]
        rows, nodes = self._passages(inp["docno"].tolist())
        out = inp.drop(columns=["rank", "docid"], errors="ignore").iloc[rows].reset_index(drop=True)
        out["docno"] = pd.Series(self.graph.ids_of(nodes), dtype="str")
        out["text"] = pd.Series(self.graph.texts(nodes, titles=self.titles), dtype="str")
        return pt.model.add_ranks(out) if ranked else out

    def _passages(self, docnos: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """The position in ``docnos`` and the node of each passage."""
        nodes = self.graph.find(docnos)
        known = len(nodes) and (nodes >= 0).all()
        if known and (self.graph.node_type[nodes] == PASSAGE_TYPE).all():
            return np.arange(len(nodes)), nodes
        return self.graph.passages_of_documents(self.graph.document_of(docnos))


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
        self.fields = (
            [*FIELDS] if fields == "*" else [fields] if isinstance(fields, str) else fields
        )
        if unknown := [field for field in self.fields if field not in FIELDS]:
            raise ValueError(
                f"a graph has no field {unknown[0]!r}, only {', '.join(map(repr, FIELDS))}"
            )

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Adds the fields."""
        inp = check_frame(inp, self).reset_index(drop=True)
        pt.validate.columns(inp, includes=["docno"], context=self)
        return inp.assign(**self.graph.text_columns(self.fields, inp["docno"].tolist()))

    def fuse_rank_cutoff(self, k: int) -> pt.Transformer:
        """Loads texts of the first ``k`` passages only."""
        return pt.RankCutoff(k) >> self


class ExpandContext(Step):
    """Adds related texts to the texts of results, for language models that need more than a passage.

    ::

        index.hybrid() % 10 >> graph.widen(["titles", "order"], 300)

    Texts are in document order, one per line: a title precedes its passages. Texts of other documents come last. A
    result's own text is always complete. Neighbors along the first relation are tried first, and within a relation the
    nearest first (at most 100). A text that does not fit is left out. So is a text that another result of the query
    shows: results with better ranks come first, and a result's own text is never repeated.

    Columns in: ``qid, docno`` (of passages or sections), and any others. Columns out: the same, plus ``text``, and
    ``nodes``, a list of the ids of the passages and sections that make up the text.

    Args:
        graph: The graph that contains the results.
        relations: Relations or paths of the graph, the most important first. ``'structural/structural_i'`` leads to the
            rest of a passage's section, ``'structural_i'`` from a section to its passages.
        max_words: Maximum number of words per result.
    """

    def __init__(self, graph: HeteroGraph, relations: Sequence[str] | str, max_words: int) -> None:
        self.graph = graph
        self.relations = check_relations(graph, relations)
        self.max_words = max_words
        warn_of_missing_edges(graph, self.relations)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Expands the texts of results."""
        inp = check_frame(inp, self, numbers=("score", "rank"))
        pt.validate.result_frame(inp, context=self)
        targets = self.graph.nodes_of(inp["docno"].tolist())
        neighbors = self._neighbors(targets)
        nodes = np.unique(np.concatenate([targets, neighbors.indices]))
        texts = dict(zip(nodes.tolist(), self.graph.texts(nodes), strict=True))
        qids = inp["qid"].tolist()
        shown = {qid: {*targets[rows].tolist()} for qid, rows in inp.groupby("qid").indices.items()}
        priority = inp["rank"] if "rank" in inp else -inp["score"] if "score" in inp else inp.index
        expanded: list[list[int]] = [[] for _ in qids]
        for row in np.argsort(priority, kind="stable").tolist():
            own, related = int(targets[row]), neighbors[row].tolist()
            expanded[row] = self._fitting(own, related, texts, shown[qids[row]])
            shown[qids[row]].update(expanded[row])
        lines = ["\n".join(texts[node] for node in chosen) for chosen in expanded]
        ids = [self.graph.ids_of(np.array(chosen)) for chosen in expanded]
        return inp.assign(
            text=pd.Series(lines, inp.index, dtype="str"), nodes=pd.Series(ids, inp.index, object)
        )

    def _fitting(
        self, own: int, neighbors: list[int], texts: dict[int, str], shown: set[int]
    ) -> list[int]:
        """A result and the neighbors that fit, in document order; neighbors in ``shown`` are left out."""
        chosen, tried = [own], {texts[own]}
        budget = self.max_words - len(texts[own].split())
        for node in neighbors:
            text, words = texts[node], len(texts[node].split())
            if node not in shown and text not in tried and 0 < words <= budget:
                chosen.append(node)
                budget -= words
            tried.add(text)
        document = self.graph.document
        return sorted(chosen, key=lambda node: (document[node] != document[own], node))

    def _neighbors(self, targets: np.ndarray) -> CSR:
        """The neighbors of each target in the order of trial."""
        frames = [pd.DataFrame({"row": [], "node": []}, dtype=np.int64)]
        for relation in self.relations:
            row, node = self.graph.neighbors(targets, relation)
            nearest = np.lexsort((node, abs(node - targets[row]), row))
            frame = pd.DataFrame({"row": row[nearest], "node": node[nearest]})
            frames.append(frame.groupby("row").head(MOST))
        rows = pd.concat(frames)
        return CSR.group(rows["row"].to_numpy(), rows["node"].to_numpy(), len(targets))


class Fold(Step):
    """Ranks sections, documents or other nodes by their best passages.

    ::

        sections = bm25 >> graph.fold("structural") >> pt.text.get_text(graph)

    A passage gives its score to each node that it leads to along a relation, and a node keeps the best score. Ties keep
    the order of the ranks, or of the rows without ranks. A passage that leads nowhere stays in the run, for example
    with ``'title'`` a passage under no title; so does a section. With ``'document'``, sections lead to their documents,
    and documents stay in the run.

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
            warn_of_missing_edges(graph, check_relations(graph, [relation]))
        self.graph = graph
        self.relation = relation

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Replaces passages with the nodes that they lead to."""
        inp = check_frame(inp, self, numbers=("score", "rank"))
        pt.validate.result_frame(inp, extra_columns=["score"], context=self)
        before = inp["rank"].to_numpy() if "rank" in inp.columns else np.arange(len(inp))
        run = inp.iloc[np.lexsort((before, -inp["score"].to_numpy(), pd.factorize(inp["qid"])[0]))]
        rows, names = fold(self.graph, run["docno"].tolist(), self.relation, strict=True)
        out = run.drop(columns=["rank", "docid"], errors="ignore").iloc[rows]
        out = out.assign(passage=out["docno"], docno=pd.Series(names, dtype="str", index=out.index))
        return pt.model.add_ranks(out.drop_duplicates(["qid", "docno"]).reset_index(drop=True))
