"""Rankings of sections, documents or other nodes by their best passages."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyterrier as pt
import pyterrier_alpha as pta

from pyterrier_graph.checks import WithSignature, check_frame, check_type
from pyterrier_graph.graphs.hetero_graph import PASSAGE_TYPE, HeteroGraph
from pyterrier_graph.graphs.relations import DOCUMENT, check_relations, follow


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
            ``pt.text.max_passage()``, the graph says which document a passage belongs to.

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
    """What passages lead to: per pair the position in ``identifiers``, ascending, and the id of the node or document.

    An id stays as it is where it is not that of a passage, or where the passage leads to no node. If ``strict``, an id
    that is not in the graph raises KeyError.
    """
    nodes = graph.find(identifiers)
    if strict:
        unknown = [identifiers[row] for row in np.flatnonzero(nodes < 0)]
        if relation == DOCUMENT:
            unknown = [unknown[row] for row in np.flatnonzero(graph._documents(unknown) < 0)]
        graph.nodes_of(unknown)  # raises KeyError, and says why
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
