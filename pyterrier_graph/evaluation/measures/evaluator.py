"""The evaluator of ir_measures for the measures of this package."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import ir_measures
import numpy as np
from ir_measures import Evaluator, Measure, Metric
from numpy.typing import NDArray

from pyterrier_graph.documents import level_mismatch
from pyterrier_graph.evaluation.measures.definitions import MAPDMeasure, OnDocumentsMeasure, PRECDMeasure, PRESMeasure
from pyterrier_graph.evaluation.measures.formulas import RelevantDocuments, pres
from pyterrier_graph.evaluation.measures.rankings import Judgments, Ranking

DIRECT = (PRESMeasure, MAPDMeasure, PRECDMeasure)


class PatentEvaluator(Evaluator):
    """Computes measures of this package for runs on one set of judgments.

    Args:
        measures: The measures.
        qrels: The judgments, in a form that ir_measures takes.

    Raises:
        ValueError: If a column or a value is missing in the judgments or a run; if a run has an id twice for a topic;
            or if a measure of passages gets other ids.
    """

    def __init__(self, measures: Iterable[Measure], qrels: Any) -> None:
        measures = sorted(measures, key=str)  # ir_measures gives a set, whose order would be that of tables' columns
        self._judgments = Judgments.read(qrels)
        by_separator: dict[str, list[Measure]] = defaultdict(list)
        for measure in measures:
            if isinstance(measure, OnDocumentsMeasure):
                by_separator[measure["separator"]].append(measure)
        self._on_documents = [_OnDocuments(*item, self._judgments) for item in by_separator.items()]
        self._direct = [measure for measure in measures if isinstance(measure, DIRECT)]
        # The base class adds missing values for these topics only.
        topics = _topics(self._direct, self._judgments).union(*(group.topics for group in self._on_documents))
        super().__init__(measures, topics)

    def _iter_calc(self, run: Any) -> Iterator[Metric]:
        ranking = Ranking.read(run, self._judgments)
        if self._direct and np.isnan(ranking.label).all():
            _check_level((ranking.ids[item] for item in np.unique(ranking.item)), self._judgments.ids)
        yield from _metrics(self._direct, self._judgments, ranking)
        for group in self._on_documents:
            yield from group.metrics(ranking, self._judgments.topics)


class _OnDocuments:
    """Computes measures of documents by ir_measures, for one separator."""

    def __init__(self, separator: str, measures: list[Measure], passages: Judgments) -> None:
        self.separator = separator
        self.measures = {measure["measure"]: measure for measure in measures}
        qrels = passages.on_documents(separator)
        self.documents = set(qrels["doc_id"])
        self.evaluator = ir_measures.evaluator(self.measures, qrels)
        self.topics = self.evaluator.qrel_qids

    def metrics(self, passages: Ranking, topics: list[str]) -> Iterator[Metric]:
        run = passages.on_documents(topics, self.separator)
        _check_level((document for documents in run.values() for document in documents), self.documents)
        for metric in self.evaluator.iter_calc(run):
            yield metric._replace(measure=self.measures[metric.measure])


def _check_level(found: Iterable[str], judged: Iterable[str]) -> None:
    """Warns about a run of passages and judgments of documents, and the other way round."""
    if message := level_mismatch(found, judged):
        warnings.warn(message, stacklevel=3)


def _topics(measures: Iterable[Measure], judgments: Judgments) -> set[str]:
    """The topics that have relevant documents for at least one measure."""
    relevant = (np.flatnonzero(judgments.relevant(measure["rel"])) for measure in measures)
    return {judgments.topics[topic] for topics in relevant for topic in topics}


def _metrics(measures: Iterable[Measure], judgments: Judgments, ranking: Ranking) -> Iterator[Metric]:
    for measure in measures:
        values = _values(measure, judgments, ranking)
        for topic in np.flatnonzero(~np.isnan(values)):
            yield Metric(judgments.topics[topic], measure, float(values[topic]))


def _values(measure: Measure, judgments: Judgments, ranking: Ranking) -> NDArray[np.float64]:
    if isinstance(measure, PRESMeasure):
        return pres(judgments, ranking, cutoff=measure["cutoff"], minimum=measure["rel"])
    documents = RelevantDocuments.read(judgments, ranking, measure)
    values = documents.average_precision() if isinstance(measure, MAPDMeasure) else documents.precision()
    return documents.mean(values, len(judgments.topics))
