"""The evaluator of ir_measures for the measures of this package, and the measures' equations."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import ir_measures
import numpy as np
import pandas as pd
from ir_measures import Evaluator, Measure, Metric
from numpy.typing import NDArray

from pyterrier_graph.documents import level_mismatch
from pyterrier_graph.evaluation.measures.definitions import MAPDMeasure, OnDocumentsMeasure, PRECDMeasure, PRESMeasure
from pyterrier_graph.evaluation.measures.rankings import Judgments, Ranking, documents_of

DIRECT = (PRESMeasure, MAPDMeasure, PRECDMeasure)


class PatentEvaluator(Evaluator):
    """Computes measures of this package for runs on one set of judgments."""

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
        for measure in self._direct:
            values = _values(measure, self._judgments, ranking)
            for topic in np.flatnonzero(~np.isnan(values)):
                yield Metric(self._judgments.topics[topic], measure, float(values[topic]))
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


def _values(measure: Measure, judgments: Judgments, ranking: Ranking) -> NDArray[np.float64]:
    if isinstance(measure, PRESMeasure):
        return pres(judgments, ranking, cutoff=measure["cutoff"], minimum=measure["rel"])
    documents = RelevantDocuments.read(judgments, ranking, measure)
    values = documents.average_precision() if isinstance(measure, MAPDMeasure) else documents.precision()
    return documents.mean(values, len(judgments.topics))


def pres(judgments: Judgments, ranking: Ranking, *, cutoff: int, minimum: int) -> NDArray[np.float64]:
    """PRES of each topic; NaN for topics without relevant documents.

    The i-th of n relevant documents has rank i at best. At worst, and if it is not among the first N results, it has
    rank N + i. Magdy and Jones' equation is the sum of the differences to the worst ranks, divided by the maximum N n.
    """
    relevant = judgments.relevant(minimum)
    found = (ranking.label >= minimum) & (ranking.rank <= cutoff)
    topic, rank = ranking.topic[found], ranking.rank[found]
    worst = cutoff + np.arange(1, len(topic) + 1) - np.searchsorted(topic, topic)
    with np.errstate(invalid="ignore"):
        return np.bincount(topic, worst - rank, len(relevant)) / (cutoff * relevant)


@dataclass(frozen=True)
class RelevantDocuments:
    """The relevant documents of each topic, and their passages in a run."""

    topic: NDArray[np.intp]  # position of each document's topic
    passages: NDArray[np.intp]  # number of each document's relevant passages
    found: pd.DataFrame  # passages in the run, best first: position of the document, and whether the passage is a hit

    @classmethod
    def read(cls, judgments: Judgments, ranking: Ranking, measure: Measure) -> RelevantDocuments:
        """Groups passages by document, with the parameters of MAPD or PRECD; raises ValueError without a separator."""
        separator, minimum = measure["separator"], measure["rel"]
        if wrong := next((identifier for identifier in ranking.ids if separator not in identifier), None):
            raise ValueError(
                f"{wrong!r} is no passage: there is no {separator!r} in it. MAPD(separator='#') has another separator"
            )
        names = documents_of([*judgments.ids, *ranking.ids], separator)
        number, documents = pd.factorize(np.array(names, dtype=object))
        judged, number = np.split(number, [len(judgments.ids)])
        pair = judgments.topic * len(documents) + judged
        pairs, passages = np.unique(pair[judgments.labels >= minimum], return_counts=True)
        pair = ranking.topic * len(documents) + number[ranking.item]
        document = pd.Index(pairs).get_indexer(pair)
        found = pd.DataFrame({"document": document, "hit": ranking.label >= minimum})
        found = found[(document >= 0) & (ranking.rank <= measure["cutoff"])]
        found = found[found.groupby("document").cumcount() < measure["per_document"]]
        return cls(pairs // max(len(documents), 1), passages, found)

    def average_precision(self) -> NDArray[np.float64]:
        """Average precision of each document."""
        hits = self.found.groupby("document")["hit"]
        precision = (hits.cumsum() / (hits.cumcount() + 1))[self.found["hit"]]
        return self._each(precision.groupby(self.found["document"]).sum()) / self.passages

    def precision(self) -> NDArray[np.float64]:
        """Precision of each document; 0 for a document without passages in the run."""
        return self._each(self.found.groupby("document")["hit"].mean())

    def mean(self, values: NDArray[np.float64], topics: int) -> NDArray[np.float64]:
        """Mean of the documents' values per topic; NaN for a topic without documents."""
        with np.errstate(invalid="ignore"):
            return np.bincount(self.topic, values, topics) / np.bincount(self.topic, minlength=topics)

    def _each(self, values: pd.Series) -> NDArray[np.float64]:
        return values.reindex(range(len(self.topic)), fill_value=0.0).to_numpy(float)
