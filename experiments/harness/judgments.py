"""Judgments of documents where passages are ranked, and the other way round."""

from __future__ import annotations

import pandas as pd
import pyterrier as pt

from pyterrier_graph import DocumentGraph
from pyterrier_graph.graphs.hetero_graph import PASSAGE_NUMBER, judged_ids


def relevant_passages(graph: DocumentGraph, qrels: pd.DataFrame) -> pd.DataFrame:
    """The judgments above 0, of passages: of a relevant document, all passages."""
    relevant = qrels[qrels["label"] > 0]
    if relevant["docno"].str.contains(PASSAGE_NUMBER).any():
        return relevant
    rows, nodes = graph.passages_of_documents(graph.document_of(relevant["docno"].tolist()))
    return relevant.iloc[rows].assign(docno=graph.ids_of(nodes)).reset_index(drop=True)


def judged_ranking(found: pd.DataFrame, qrels: pd.DataFrame, kept: int) -> pd.DataFrame:
    """The best of a ranking of passages: where documents are judged, documents by their best passage.

    Args:
        found: ``qid, docno, score``.
        qrels: ``qid, docno, label``.
        kept: Results per query.
    """
    found = found[["qid", "docno", "score"]].assign(docno=judged_ids(found["docno"], qrels))
    found = found.sort_values("score", ascending=False, kind="stable").drop_duplicates(
        ["qid", "docno"]
    )
    found = pt.model.add_ranks(found)
    return found[found["rank"] < kept]
