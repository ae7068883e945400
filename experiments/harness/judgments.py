"""Judgments of documents where passages are ranked, and the other way round; judgments that are hidden."""

from __future__ import annotations

import pandas as pd
import pyterrier as pt
from datasets import Dataset

from experiments.harness.collection import Queries
from pyterrier_graph import DocumentGraph
from pyterrier_graph.graphs.judgments import PASSAGE_NUMBER, judged_ids


def relevant_passages(graph: DocumentGraph, qrels: pd.DataFrame) -> pd.DataFrame:
    """The judgments above 0, of passages: of a relevant document, all passages."""
    relevant = qrels[qrels["label"] > 0]
    if relevant["docno"].str.contains(PASSAGE_NUMBER).any():
        return relevant
    rows, nodes = graph.document_passages.select(graph.document_of(relevant["docno"].tolist()))
    return relevant.iloc[rows].assign(docno=graph.ids_of(nodes)).reset_index(drop=True)


def judged_ranking(found: pd.DataFrame, qrels: pd.DataFrame, kept: int) -> pd.DataFrame:
    """The best of a ranking of passages: where documents are judged, documents by their best passage.

    Args:
        found: ``qid, docno, score``.
        qrels: ``qid, docno, label``. Where nothing is judged, passages are ranked.
        kept: Results per query.
    """
    found = found[["qid", "docno", "score"]]
    if len(qrels):
        found = found.assign(docno=judged_ids(found["docno"], qrels))
    found = found.sort_values("score", ascending=False, kind="stable").drop_duplicates(
        ["qid", "docno"]
    )
    found = pt.model.add_ranks(found)
    return found[found["rank"] < kept]


def with_hidden(queries: Queries, share: float) -> tuple[Queries, pd.DataFrame]:
    """Queries some of whose relevant documents have lost their judgments, drawn at random, and these judgments.

    Every query keeps one relevant document, so fewer may be hidden than asked for.

    Args:
        queries: Queries and judgments.
        share: Share of the relevant documents.
    """
    relevant = queries.qrels[queries.qrels["label"] > 0].sample(frac=1, random_state=0)
    others = relevant[relevant.groupby("qid").cumcount() > 0]
    hidden = others.head(round(share * len(relevant)))
    return Queries(
        queries.topics, queries.qrels.drop(index=hidden.index).reset_index(drop=True)
    ), hidden


def false_negatives(examples: Dataset, hidden: pd.DataFrame) -> tuple[int, int]:
    """The number of negatives in training examples, and how many of them are relevant by hidden judgments.

    Args:
        examples: Training examples with ``qid, negative_1_docno, ...``.
        hidden: ``qid, docno``.
    """
    names = [n for n in examples.column_names if n.startswith("negative_") and n.endswith("_docno")]
    frame = examples.select_columns(["qid", *names]).to_pandas()
    pairs = frame.melt("qid", value_name="docno")[["qid", "docno"]].drop_duplicates()
    wrong = pd.MultiIndex.from_frame(pairs).isin(pd.MultiIndex.from_frame(hidden[["qid", "docno"]]))
    return len(pairs), int(wrong.sum())
