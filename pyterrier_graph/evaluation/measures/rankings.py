"""Judgments and runs as arrays, in the order of trec_eval."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
from ir_measures.util import QrelsConverter, RunConverter
from numpy.typing import NDArray


@dataclass(frozen=True)
class Judgments:
    """Labels of documents, or of passages, for topics.

    Attributes:
        topics: The ids of the topics.
        topic: Of each judgment, the position of its topic in ``topics``.
        ids: Of each judgment, the id of what is judged.
        labels: Of each judgment, the label.
    """

    topics: list[str]
    topic: NDArray[np.intp]
    ids: pd.Series
    labels: NDArray[Any]

    @classmethod
    def read(cls, qrels: Any) -> Judgments:
        """Reads what ir_measures takes as judgments: a frame, tuples with names, or a dictionary of dictionaries.

        Raises:
            ValueError: If a column or a value is missing.
        """
        frame = _checked(QrelsConverter(qrels).as_pd_dataframe(), "relevance", "judgments")
        frame = frame.groupby(["query_id", "doc_id"], sort=False)["relevance"].max().reset_index()
        topic, topics = pd.factorize(frame["query_id"])
        return cls(topics.tolist(), topic, frame["doc_id"], frame["relevance"].to_numpy())

    def relevant(self, minimum: int) -> NDArray[np.intp]:
        """Of each topic, how many of its labels are ``minimum`` or higher."""
        return np.bincount(self.topic[self.labels >= minimum], minlength=len(self.topics))

    def on_documents(self, separator: str) -> pd.DataFrame:
        """The documents, each with the highest label of its passages: ``query_id, doc_id, relevance``."""
        columns = {
            "query_id": np.array(self.topics, dtype=object)[self.topic],
            "doc_id": documents_of(self.ids, separator),
            "relevance": self.labels,
        }
        return pd.DataFrame(columns).groupby(["query_id", "doc_id"], sort=False)["relevance"].max().reset_index()


@dataclass(frozen=True)
class Ranking:
    """What a run has for the judged topics, by topic, best first.

    Attributes:
        topic: Of each result, the position of its topic in :attr:`Judgments.topics`.
        rank: Its rank, from 1.
        label: Its label; not a number if it is not judged.
        item: The position of its id in ``ids``.
        ids: The ids of all that is found or judged, each once.
    """

    topic: NDArray[np.intp]
    rank: NDArray[np.intp]
    label: NDArray[np.float64]
    item: NDArray[np.intp]
    ids: list[str]

    @classmethod
    def read(cls, run: Any, judgments: Judgments) -> Ranking:
        """Reads what ir_measures takes as a run: a frame, tuples with names, or a dictionary of dictionaries.

        Raises:
            ValueError: If a column or a value is missing, or something is found twice for a topic.
        """
        frame = _checked(_frame(run), "score", "run")
        query, queries = pd.factorize(frame["query_id"])
        topic = pd.Index(judgments.topics, dtype=object).get_indexer(queries)[query]
        frame, topic = frame[topic >= 0], topic[topic >= 0]
        with np.errstate(over="ignore"):
            score = frame["score"].to_numpy(np.float32)  # as trec_eval keeps it, and so with its ties
        item, ids = pd.factorize(pd.concat([judgments.ids, frame["doc_id"]], ignore_index=True))
        judged, item = np.split(item, [len(judgments.ids)])
        twice = pd.Series(topic * len(ids) + item).duplicated().to_numpy()
        if twice.any():
            raise ValueError(f"the run has something twice for a query: {frame[twice].iloc[0].to_dict()}")
        names = ids.tolist()
        order = _order(topic, score, item, names)
        return cls._ranked(topic[order], item[order], names, judgments, judged)

    @classmethod
    def _ranked(
        cls,
        topic: NDArray[np.intp],
        item: NDArray[np.intp],
        ids: list[str],
        judgments: Judgments,
        judged: NDArray[np.intp],
    ) -> Ranking:
        """The results in order, with their labels; ``judged`` has the items of the judgments."""
        rank = np.arange(1, len(topic) + 1) - np.searchsorted(topic, topic)
        label = pd.Series(judgments.labels, index=judgments.topic * len(ids) + judged, dtype=float)
        return cls(topic, rank, label.reindex(topic * len(ids) + item).to_numpy(), item, ids)

    def on_documents(self, judgments: Judgments, separator: str) -> Ranking:
        """The ranking of the documents, each where its first passage is; ``judgments`` are of documents."""
        names = [*judgments.ids, *documents_of(self.ids, separator)]
        number, documents = pd.factorize(np.array(names, dtype=object))
        judged, number = np.split(number, [len(judgments.ids)])
        document = number[self.item]
        first = ~pd.Series(self.topic * len(documents) + document).duplicated().to_numpy()
        return self._ranked(self.topic[first], document[first], documents.tolist(), judgments, judged)

    def as_run(self, topics: list[str]) -> dict[str, dict[str, float]]:
        """The ranking as ir_measures takes a run, without ties."""
        found, scores = np.array(self.ids, dtype=object)[self.item].tolist(), (-self.rank).astype(float).tolist()
        ends = np.searchsorted(self.topic, range(len(topics) + 1)).tolist()
        return {
            topic: dict(zip(found[start:end], scores[start:end], strict=True))
            for topic, start, end in zip(topics, ends[:-1], ends[1:], strict=True)
            if start < end
        }


def documents_of(ids: Iterable[str], separator: str) -> list[str]:
    """The documents of passages: what stands before the last separator, or the whole id where there is none."""
    return [identifier.rpartition(separator)[0] or identifier for identifier in ids]


def _order(
    topic: NDArray[np.intp], score: NDArray[np.float32], item: NDArray[np.intp], ids: list[str]
) -> NDArray[np.intp]:
    """Positions by topic, then by score, then by id, both descending."""
    order = np.lexsort((-score, topic))
    same = (topic[order][1:] == topic[order][:-1]) & (score[order][1:] == score[order][:-1])
    # Sorting ids takes longer than all the rest, so only those of ties are.
    tied = np.zeros(len(order), bool)
    tied[1:] |= same
    tied[:-1] |= same
    rows = order[tied]
    items, inverse = np.unique(item[rows], return_inverse=True)
    names = [ids[number] for number in items]
    place = np.argsort(sorted(range(len(names)), key=names.__getitem__))
    order[tied] = rows[np.lexsort((-place[inverse], -score[rows], topic[rows]))]
    return order


def _frame(run: Any) -> pd.DataFrame:
    """A run as a frame; ir_measures' own way from dictionaries makes a tuple of each result."""
    if not isinstance(run, dict):
        return RunConverter(run).as_pd_dataframe()
    columns = {
        "query_id": np.repeat(np.array([*run], dtype=object), [len(scores) for scores in run.values()]),
        "doc_id": [*chain.from_iterable(run.values())],
        "score": [*chain.from_iterable(scores.values() for scores in run.values())],
    }
    return pd.DataFrame(columns)


def _checked(frame: pd.DataFrame, number: str, name: str) -> pd.DataFrame:
    """Ids as text and a number, with a value in each row."""
    frame = frame[["query_id", "doc_id", number]]
    missing = frame.isna().any(axis=1)
    if missing.any():
        raise ValueError(f"a value is missing in the {name}: {frame[missing].iloc[0].to_dict()}")
    return frame.astype({"query_id": str, "doc_id": str}).assign(**{number: pd.to_numeric(frame[number])})
