r"""The evaluator of ir_measures for the measures of this package: their equations, and judgments and runs as frames.

PRES of a topic with n relevant documents, of which the i-th is found at rank :math:`r_i` among the first N results, or
else has rank :math:`N + i`:

.. math:: PRES = 1 - \frac{\frac{1}{n} \sum_i r_i - \frac{n + 1}{2}}{N}

MAP(D) and PREC(D) of a topic are means over its relevant documents D:

.. math::

    MAP(D) = \frac{1}{|\mathcal{D}|} \sum_{D \in \mathcal{D}} \frac{1}{n_D} \sum_{k : rel_k} Prec_D(k)
    \qquad
    PREC(D) = \frac{1}{|\mathcal{D}|} \sum_{D \in \mathcal{D}} \frac{r_D}{f_D}

with the :math:`n_D` relevant passages of D, the :math:`f_D` passages of D in the run, of which :math:`r_D` are
relevant, and the precision :math:`Prec_D(k)` of the first k of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import ir_measures
import numpy as np
import pandas as pd
from ir_measures import Evaluator, Measure, Metric
from ir_measures.util import QrelsConverter, RunConverter

from pyterrier_graph.checks import DataWarning
from pyterrier_graph.documents.document import PASSAGE_SEPARATOR, level_mismatch
from pyterrier_graph.evaluation.measures import MAPDMeasure, OnDocumentsMeasure, PRESMeasure

IDS = ["query_id", "doc_id"]
MAX_LABEL = 1_000_000  # trec_eval counts the documents of each label up to the largest one


class PatentEvaluator(Evaluator):
    """Computes measures of this package for runs on one set of judgments; ir_measures computes those of documents."""

    def __init__(self, measures: Iterable[Measure], qrels: Any) -> None:
        measures = sorted(
            measures, key=str
        )  # ir_measures gives a set, whose order would be that of tables' columns
        self._qrels, topics = _judgments(qrels), set[str]()
        self._direct = [
            measure for measure in measures if not isinstance(measure, OnDocumentsMeasure)
        ]
        self._outer = {
            measure["measure"]: measure
            for measure in measures
            if isinstance(measure, OnDocumentsMeasure)
        }
        # The base class adds missing values for topics with relevant documents only.
        for measure in self._direct:
            topics.update(self._qrels["query_id"][self._qrels["relevance"] >= measure["rel"]])
        if self._outer:
            self._documents = _highest(_folded(self._qrels))
            self._inner = ir_measures.evaluator(self._outer, self._documents)
            topics.update(self._inner.qrel_qids)
        super().__init__(measures, topics)

    def _iter_calc(self, run: Any) -> Iterator[Metric]:
        ranking = _ranking(run, self._qrels)
        if self._direct:
            _check_level(ranking, self._qrels)
        for measure in self._direct:
            compute = pres if isinstance(measure, PRESMeasure) else within_documents
            for topic, value in compute(self._qrels, ranking, measure).items():
                yield Metric(topic, measure, value)
        if self._outer:
            yield from self._of_documents(_folded(ranking).drop_duplicates(IDS))

    def _of_documents(self, run: pd.DataFrame) -> Iterator[Metric]:
        """The measures of documents, each of which has the place of its first result, without ties."""
        _check_level(run, self._documents)
        found = run.groupby("query_id", sort=False)["doc_id"]
        scores = {
            topic: {name: -float(rank) for rank, name in enumerate(names.tolist())}
            for topic, names in found
        }
        for metric in self._inner.iter_calc(scores):  # a dictionary is read faster than a frame
            yield metric._replace(measure=self._outer[metric.measure])


def _folded(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with the ids of their documents."""
    return rows.assign(doc_id=documents_of(rows["doc_id"]))


def _check_level(run: pd.DataFrame, qrels: pd.DataFrame) -> None:
    """Warns about a run of passages and judgments of documents, and the other way round."""
    if message := level_mismatch(run["doc_id"].unique(), qrels["doc_id"]):
        warnings.warn(message, DataWarning, stacklevel=3)


def pres(qrels: pd.DataFrame, ranking: pd.DataFrame, measure: Measure) -> pd.Series:
    """PRES of each topic with relevant documents.

    The i-th of n relevant documents has rank i at best. It has rank N + i at worst, if it is not among the first N
    results. The equation above is the sum of the differences to the worst ranks, divided by its maximum N n.
    """
    cutoff, minimum = measure["cutoff"], measure["rel"]
    relevant = qrels[qrels["relevance"] >= minimum].groupby("query_id").size()  # n
    found = ranking[(ranking["relevance"] >= minimum) & (ranking["rank"] <= cutoff)]
    topic = found.groupby("query_id")
    gained = (cutoff + topic.cumcount() + 1 - found["rank"]).groupby(found["query_id"]).sum()
    return gained.reindex(relevant.index, fill_value=0) / (cutoff * relevant)


def within_documents(qrels: pd.DataFrame, ranking: pd.DataFrame, measure: Measure) -> pd.Series:
    """MAPD or PRECD of each topic with relevant documents.

    A relevant document without passages in the run has the value 0, and so has what is not a passage, with a warning.
    """
    minimum = measure["rel"]
    other = next(
        (
            name
            for rows in (qrels, ranking)
            for name in rows["doc_id"]
            if PASSAGE_SEPARATOR not in name
        ),
        None,
    )
    if other is not None:
        message = f"{other!r} is not a passage: it does not contain {PASSAGE_SEPARATOR!r}, so its {measure} is 0"
        warnings.warn(
            f"{message}; {measure} needs runs and judgments of passages", DataWarning, stacklevel=4
        )
        ranking = ranking[ranking["doc_id"].str.contains(PASSAGE_SEPARATOR, regex=False)]
    qrels, ranking = (
        rows.assign(document=documents_of(rows["doc_id"].tolist())) for rows in (qrels, ranking)
    )
    pair = ["query_id", "document"]
    passages = (
        qrels[qrels["relevance"] >= minimum].groupby(pair).size()
    )  # n_D of each topic and relevant document D
    found = ranking[ranking["rank"] <= measure["cutoff"]].set_index(pair)
    hit = found["relevance"] >= minimum
    hits = hit.groupby(level=pair)
    if isinstance(measure, MAPDMeasure):
        precision = (hits.cumsum() / (hits.cumcount() + 1))[hit]  # Prec_D(k)
        values = (
            precision.groupby(level=pair).sum().reindex(passages.index, fill_value=0.0) / passages
        )
    else:
        values = hits.mean().reindex(passages.index, fill_value=0.0)
    return values.groupby(level="query_id").mean()


def _judgments(qrels: Any) -> pd.DataFrame:
    """Judgments by the highest label; raises ValueError if a value is missing, or a label is not a whole number."""
    frame = _checked(QrelsConverter(qrels).as_pd_dataframe(), "relevance", "judgments")
    wrong = (frame["relevance"] % 1 != 0) | (
        frame["relevance"].abs() > MAX_LABEL
    )  # NaN for infinity
    if wrong.any():
        raise ValueError(
            f"the judgments: relevance must be whole numbers, got {frame[wrong].iloc[0].to_dict()}"
        )
    return _highest(frame.astype({"relevance": "int64"}))


def _ranking(run: Any, qrels: pd.DataFrame) -> pd.DataFrame:
    """The results of judged topics, best first as in trec_eval, with ``rank`` from 1, and ``relevance`` or NaN.

    Raises ValueError if a value is missing, or an id is found twice for a topic.
    """
    frame = _checked(RunConverter(run).as_pd_dataframe(), "score", "run")
    frame = frame[frame["query_id"].isin(qrels["query_id"])]
    if (twice := frame.duplicated(IDS)).any():
        raise ValueError(
            f"the run has something twice for a query: {frame[twice].iloc[0].to_dict()}"
        )
    with np.errstate(over="ignore"):
        frame = frame.astype({"score": np.float32})  # as in trec_eval, with the same ties
    frame = frame.sort_values(["score", "doc_id"], ascending=False)
    return frame.assign(rank=frame.groupby("query_id").cumcount() + 1).merge(
        qrels, on=IDS, how="left"
    )


def documents_of(ids: Iterable[str]) -> list[str]:
    """The documents of passages: the part of an id before the last ``%p``, or the id if it has none."""
    return [identifier.rpartition(PASSAGE_SEPARATOR)[0] or identifier for identifier in ids]


def _highest(qrels: pd.DataFrame) -> pd.DataFrame:
    return qrels.groupby(IDS, sort=False)["relevance"].max().reset_index()


def _checked(frame: pd.DataFrame, number: str, name: str) -> pd.DataFrame:
    """The frame with ids as text; raises ValueError if a value is missing or not a number."""
    columns = [*IDS, number]
    frame = (
        frame[columns] if len(frame) else pd.DataFrame(columns=columns)
    )  # ir_measures 0.4.1: [] has no columns
    missing = frame.isna().any(axis=1)
    if missing.any():
        raise ValueError(f"a value is missing in the {name}: {frame[missing].iloc[0].to_dict()}")
    try:
        numbers = pd.to_numeric(frame[number])
    except (TypeError, ValueError) as error:
        raise ValueError(f"the {name}: {number} must be numbers: {error}") from error
    return frame.astype(dict.fromkeys(IDS, str)).assign(**{number: numbers})
