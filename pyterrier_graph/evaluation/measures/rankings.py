"""Judgments and runs as arrays, sorted as in trec_eval."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from ir_measures.util import QrelsConverter, RunConverter
from numpy.typing import NDArray

from pyterrier_graph.checks import check_frame
from pyterrier_graph.graphs.csr import CSR

IDS = {"query_id": "qid", "doc_id": "docno"}  # names of ir_measures, and of PyTerrier
Fold = Callable[[list[str]], tuple[NDArray[np.intp], list[str]]]
"""Turns ids into those of documents or nodes: per pair the position of an id, ascending, and what it becomes."""


@dataclass(frozen=True)
class Judgments:
    """Labels of documents or passages: a row per judgment, and the ids of topics."""

    topics: list[str]
    topic: NDArray[np.intp]  # positions in topics
    ids: pd.Series
    labels: NDArray[Any]

    @classmethod
    def read(cls, qrels: Any) -> Judgments:
        """Reads judgments from a frame, named tuples, or a dictionary; raises ValueError if something is missing."""
        frame = _checked(QrelsConverter(qrels).as_pd_dataframe(), "relevance", "judgments")
        if (wrong := frame["relevance"] % 1 != 0).any():  # NaN for infinity
            raise ValueError(f"the judgments: relevance must be whole numbers, got {frame[wrong].iloc[0].to_dict()}")
        frame = _highest(frame.astype({"relevance": "int64"}))
        topic, topics = pd.factorize(frame["query_id"])
        return cls(topics.tolist(), topic, frame["doc_id"], frame["relevance"].to_numpy())

    def relevant(self, minimum: int) -> NDArray[np.intp]:
        """Number of each topic's labels that are ``minimum`` or higher."""
        return np.bincount(self.topic[self.labels >= minimum], minlength=len(self.topics))

    def folded(self, fold: Fold) -> pd.DataFrame:
        """The judgments of what ids are folded into, by the highest label: ``query_id, doc_id, relevance``."""
        row, names = fold(self.ids.tolist())
        topics = np.array(self.topics, dtype=object)[self.topic[row]]
        return _highest(pd.DataFrame({"query_id": topics, "doc_id": names, "relevance": self.labels[row]}))


@dataclass(frozen=True)
class Ranking:
    """The results of judged topics, by topic, best first, and the distinct ids of results and judgments."""

    topic: NDArray[np.intp]  # positions in Judgments.topics
    rank: NDArray[np.intp]  # from 1
    label: NDArray[np.float64]  # NaN where a result is not judged
    item: NDArray[np.intp]  # positions in ids
    ids: list[str]

    @classmethod
    def read(cls, run: Any, judgments: Judgments) -> Ranking:
        """Reads a run as :meth:`Judgments.read` does; raises ValueError also if an id is found twice for a topic."""
        if isinstance(run, dict):  # faster than ir_measures, which makes a named tuple of each result
            rows = [(query, doc, score) for query, scores in run.items() for doc, score in scores.items()]
            run = pd.DataFrame(rows, columns=["query_id", "doc_id", "score"])
        frame = _checked(RunConverter(run).as_pd_dataframe(), "score", "run")
        query, queries = pd.factorize(frame["query_id"])
        topic = pd.Index(judgments.topics, dtype=object).get_indexer(queries)[query]
        frame, topic = frame[topic >= 0], topic[topic >= 0]
        with np.errstate(over="ignore"):
            score = frame["score"].to_numpy(np.float32)  # as in trec_eval, with the same ties
        item, ids = pd.factorize(pd.concat([judgments.ids, frame["doc_id"]], ignore_index=True), sort=True)
        judged, item = np.split(item, [len(judgments.ids)])
        twice = pd.Series(topic * len(ids) + item).duplicated().to_numpy()
        if twice.any():
            raise ValueError(f"the run has something twice for a query: {frame[twice].iloc[0].to_dict()}")
        order = np.lexsort((-item, -score, topic))
        topic, item = topic[order], item[order]
        rank = np.arange(1, len(topic) + 1) - np.searchsorted(topic, topic)
        label = pd.Series(judgments.labels, index=judgments.topic * len(ids) + judged, dtype=float)
        return cls(topic, rank, label.reindex(topic * len(ids) + item).to_numpy(), item, ids.tolist())

    def folded(self, topics: list[str], fold: Fold) -> dict[str, dict[str, float]]:
        """The run of what ids are folded into, ranked by the first result, without ties, for ir_measures."""
        position, folded = fold(self.ids)
        number, names = pd.factorize(np.array(folded, dtype=object))
        row, target = CSR.group(position, number, len(self.ids)).select(self.item)
        rows = pd.DataFrame({"topic": self.topic[row], "target": target}).drop_duplicates()
        rows["score"] = -np.arange(len(rows), dtype=float)
        return {
            topics[topic]: dict(zip(names[found["target"]], found["score"], strict=True))
            for topic, found in rows.groupby("topic", sort=False)
        }


def documents_of(ids: Iterable[str], separator: str) -> list[str]:
    """The documents of passages: the part of an id before the last separator, or the id if it has no separator."""
    return [identifier.rpartition(separator)[0] or identifier for identifier in ids]


def _highest(qrels: pd.DataFrame) -> pd.DataFrame:
    return qrels.groupby(["query_id", "doc_id"], sort=False)["relevance"].max().reset_index()


def _checked(frame: pd.DataFrame, number: str, name: str) -> pd.DataFrame:
    """The frame with ids as text; raises ValueError if a value is missing."""
    columns = ["query_id", "doc_id", number]
    frame = frame[columns] if len(frame) else pd.DataFrame(columns=columns)  # ir_measures 0.4.1: [] has no columns
    missing = frame.isna().any(axis=1)
    if missing.any():
        raise ValueError(f"a value is missing in the {name}: {frame[missing].iloc[0].to_dict()}")
    try:
        frame = frame.assign(**{number: pd.to_numeric(frame[number])})
    except (TypeError, ValueError) as error:
        raise ValueError(f"the {name}: {number} must be numbers: {error}") from error
    frame = check_frame(frame.rename(columns=IDS), f"the {name}", numbers=(number,))
    return frame.astype(dict.fromkeys(IDS.values(), str)).rename(columns={own: other for other, own in IDS.items()})
