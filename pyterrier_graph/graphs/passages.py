"""Transformers of a graph: documents to passages, and passages to texts, sections or documents."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyterrier as pt
import pyterrier_alpha as pta

from pyterrier_graph.checks import Retrieves, WithSignature, check_count, check_frame, check_type
from pyterrier_graph.graphs.context import MOST
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.hetero_graph import PASSAGE_TYPE, HeteroGraph, check_relations, fold
from pyterrier_graph.graphs.relations import DOCUMENT

FIELDS = ("text", "title")


class Step(WithSignature, pt.Transformer):
    """Base of transformers that learn nothing: they are shown by their names and arguments."""

    __repr__ = pta.transformer_repr

    @property
    def schematic(self) -> dict[str, Any]:
        """How PyTerrier draws the transformer."""
        return {"label": type(self).__name__, "help_url": None}


class Passages(Step):
    """Replaces each document by all its passages, in document order.

    A passage has the score of its document. Ranks keep the order of the documents, and of the passages in a document.
    A run of passages keeps its rows and gets their texts.

    Columns in: ``docno`` (of documents), and any others. Columns out: ``docno`` (of passages, ``docno%pN`` or their own
    ids), ``text``, ``rank`` where there are ``qid`` and ``score``, and the other columns as they were. The column
    ``docid`` is left out, since it belongs to the document.

    Args:
        graph: The graph that the documents are in.
        titles: Whether texts begin with the titles of a passage's sections: ``"title - section: passage"``. Rerankers
            that take token vectors from a store or the graph ignore texts.

    """

    def __init__(self, graph: HeteroGraph, *, titles: bool = False) -> None:
        self.graph = graph
        self.titles = titles

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
        if (
            len(nodes)
            and (nodes >= 0).all()
            and (self.graph.node_type[nodes] == PASSAGE_TYPE).all()
        ):
            return np.arange(len(nodes)), nodes
        return self.graph.passages_of_documents(self.graph.document_of(docnos))


class GraphTextLoader(Step):
    """Adds the texts of passages, or the titles of their sections.

    Columns in: ``docno`` (of passages), and any others. Columns out: those, and ``text``, ``title`` as asked for.

    Args:
        graph: The graph that the passages are in.
        fields: ``'text'``, ``'title'``, both in a list, or ``'*'`` for both. No other field is allowed.
    """

    def __init__(
        self, graph: HeteroGraph, fields: Sequence[str] | str | Literal["*"] = "*"
    ) -> None:
        self.graph = graph
        self.fields = (
            [*FIELDS] if fields == "*" else [fields] if isinstance(fields, str) else [*fields]
        )
        if unknown := [field for field in self.fields if field not in FIELDS]:
            raise ValueError(
                f"a graph has no field {unknown[0]!r}, only {', '.join(map(repr, FIELDS))}"
            )

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Adds the fields."""
        inp = check_frame(inp, self).reset_index(drop=True)
        pt.validate.columns(inp, includes=["docno"], context=self)
        return inp.assign(**self.graph._columns(self.fields, inp["docno"].tolist()))

    def _behind(self, found: pt.Transformer) -> pt.Transformer:
        """The loader behind a pipeline; a retriever of this package adds the fields itself."""
        if isinstance(found, Retrieves):
            return found._with(_texts_of=self.graph, _fields=self.fields)
        return found >> self

    def fuse_rank_cutoff(self, k: int) -> pt.Transformer:
        """Loads texts of no more passages than are kept."""
        return pt.RankCutoff(k) >> self


class Widen(Step):
    """Adds texts of neighbors to those of results: ``index.hybrid() % 10 >> graph.widen(["titles", "order"], 300)``.

    Texts are in document order, one per line: a title precedes its passages. Texts of other documents come last. A
    result's own text is always complete, even if it is longer than ``max_words``. Neighbors along the first relation
    are tried first, and along one relation the nearest first, at most 100. A text that does not fit is left out.

    Nothing is repeated. In a result, equal texts count once; for a query, a neighbor that is a result itself, or was
    added to a better one (by ``rank``, else ``score``, else row), is left out. So cut a ranking before it is widened.

    Columns in: ``qid, docno`` (of passages or sections), and any others. Columns out: those, ``text``, and ``nodes``, a
    list of the ids of the passages and sections that the text consists of.

    Args:
        graph: The graph that the results are in.
        relations: Relations or paths of the graph, the most important first. ``'structural/structural_i'`` leads to the
            rest of a passage's section, ``'structural_i'`` from a section to its passages.
        max_words: Largest number of words per result.
    """

    def __init__(self, graph: HeteroGraph, relations: Sequence[str] | str, max_words: int) -> None:
        self.graph, self.relations, self.max_words = (
            graph,
            check_relations(graph, relations),
            max_words,
        )
        check_count("max_words", max_words)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Widens the texts of results."""
        inp = check_frame(inp, self, numbers=("score", "rank"))
        pt.validate.result_frame(inp, context=self)
        query = pd.factorize(inp["qid"])[0]
        order = np.lexsort(
            (inp["rank"] if "rank" in inp else -inp["score"] if "score" in inp else query, query)
        )
        targets, row = np.unique(self.graph.nodes_of(inp["docno"].tolist()), return_inverse=True)
        nodes, texts, near = self._neighbors(targets)
        ids, document = np.array(self.graph.ids_of(nodes), dtype=object), self.graph.document[nodes]
        words = np.array([len(text.split()) for text in texts], dtype=np.int64)
        own, out = near.indices[near.indptr[row]], np.empty((len(inp), 2), dtype=object)
        taken = np.full(len(nodes), -1)  # per node the last query with its text
        for results in np.split(order, np.flatnonzero(np.diff(query[order])) + 1):
            taken[own[results]] = query[results]
            for result in results:
                part, others = own[[result]], near[row[result]]
                others = others[(taken[others] != query[result]) & (words[others] > 0)]
                while len(others := others[words[others] <= self.max_words - words[part].sum()]):
                    fits = np.cumsum(words[others]) <= self.max_words - words[part].sum()
                    part, others = np.append(part, others[fits]), others[~fits]
                taken[part] = query[result]
                part = part[np.lexsort((part, document[part] != document[own[result]]))]
                out[result] = "\n".join(texts[part]), ids[part].tolist()
        return inp.assign(text=pd.Series(out[:, 0], inp.index, dtype="str"), nodes=out[:, 1])

    def _neighbors(self, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray, CSR]:
        """Nodes, their texts, and per target the places of itself and its neighbors, in the order of their trial."""
        found = [
            (np.arange(len(targets)), targets),
            *(self.graph.neighbors(targets, name) for name in self.relations),
        ]
        relation = np.repeat(
            np.arange(len(found)), [len(row) for row, _ in found]
        )  # 0: the target itself
        row, node = map(np.concatenate, zip(*found, strict=True))
        pairs = pd.DataFrame(
            {"row": row, "relation": relation, "far": abs(node - targets[row]), "node": node}
        )
        pairs = pairs.sort_values([*pairs.columns]).groupby(["row", "relation"]).head(MOST)
        nodes, place = np.unique(pairs["node"], return_inverse=True)
        texts = np.array(self.graph.texts(nodes), dtype=object)
        pairs = pairs.assign(text=texts[place], place=place).drop_duplicates(["row", "text"])
        return (
            nodes,
            texts,
            CSR.group(pairs["row"].to_numpy(), pairs["place"].to_numpy(), len(targets)),
        )


class Fold(Step):
    """Ranks sections, documents, or other nodes by the best passages that lead to them along a relation.

    ::

        sections = bm25 >> graph.fold("structural") >> pt.text.get_text(graph)

    A node has the score of its best passage. Ties keep the order of the passages' ranks, or of the rows if there are no
    ranks. A passage that leads to several nodes gives its score to each of them. A passage that leads to no node stays
    as it is, for example with ``'title'`` a passage under no title; so does a section. With ``'document'``, sections
    lead to their documents, and a document stays as it is.

    Columns in: ``qid, docno, score``, of passages, and any others. Columns out: ``docno`` (the id of the node, such as
    ``docno%sN`` for a section), ``score``, ``rank``, ``passage`` (the ``docno`` of the best passage), and all other
    columns with the values of the best passage; ``docid`` is left out, since it belongs to the passage.

    Args:
        graph: The graph that the passages are in.
        relation: What passages are folded into: a relation of the graph, a path of relations
            (``'structural/structural'``), or ``'document'`` for their documents, whose ids are docnos. In contrast to
            ``pt.text.max_passage()``, the graph determines the document of a passage.
    """

    def __init__(self, graph: HeteroGraph, relation: str = "structural") -> None:
        check_type(
            "relation", relation, str, "the name of a relation, such as 'structural', or 'document'"
        )
        if relation != DOCUMENT:
            check_relations(graph, [relation])
        self.graph = graph
        self.relation = relation

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
