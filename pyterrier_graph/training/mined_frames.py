"""Frames of topics, judgments and documents, from which training examples are mined."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd

from pyterrier_graph.encoders.queries import query_texts
from pyterrier_graph.training import validation
from pyterrier_graph.training.teacher_scores import PAIR

DOCUMENT_COLUMNS = ["qid", "query", "docno", "source"]  # indexed by the position of the query
RELEVANT, SAME, TOP, DRAWN = "relevant", "same document", "top", "drawn"  # sources of documents


def without(documents: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Pairs of query and document that ``others`` lacks."""
    pairs, lacked = (pd.MultiIndex.from_frame(frame[["qid", "docno"]]) for frame in (documents, others))
    return documents[~pairs.isin(lacked)]


def count_outcomes(
    outcomes: Counter[tuple[str, str]], of: str, reasons: dict[str, np.ndarray], of_these: np.ndarray | bool = True
) -> None:
    """Counts rows by the first reason that holds for each."""
    for reason, rows in reasons.items():
        outcomes[of, reason] += int((rows & of_these).sum())
        of_these = of_these & ~rows


def checked_topics(topics: pd.DataFrame) -> pd.DataFrame:
    """Topics with ids as text, numbered; each needs a text and may be there once."""
    topics = validation.checked_topics(topics, "HardNegativeMiner")
    if not len(topics):
        raise ValueError("there are no topics")
    topics = topics.reset_index(drop=True)
    if (twice := topics["qid"].duplicated()).any():
        raise ValueError(f"topics have query {topics['qid'][twice].iloc[0]!r} twice")
    query_texts(topics)
    return topics


def relevant_documents(topics: pd.DataFrame, qrels: pd.DataFrame | None) -> pd.DataFrame:
    """The relevant documents of the topics, by the number of their query."""
    if qrels is None:
        qrels = pd.DataFrame({"qid": [], "docno": [], "label": []})
    qrels = validation.checked_qrels(qrels, "HardNegativeMiner")
    relevant = qrels.loc[qrels["label"] > 0, ["qid", "docno"]].drop_duplicates()
    relevant = relevant.merge(topics[["qid", "query"]].reset_index(names="number"), on="qid")
    return relevant.set_index("number").sort_index(kind="stable").assign(source=RELEVANT)[DOCUMENT_COLUMNS]


def columns_of(documents: pd.DataFrame, positives: np.ndarray, negatives: np.ndarray) -> list[np.ndarray]:
    """The columns of the examples with these documents, given by position: texts, then ids."""
    qid, query, docno, text = (documents[name].to_numpy(dtype=object) for name in PAIR)
    chosen = [positives, *negatives.T]
    return [query[positives], *(text[rows] for rows in chosen), qid[positives], *(docno[rows] for rows in chosen)]
