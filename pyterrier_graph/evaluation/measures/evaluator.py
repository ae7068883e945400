"""The evaluator of ir_measures for the measures of this package, and the measures' equations."""

import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import ir_measures
import numpy as np
import pandas as pd
from ir_measures import Evaluator, Measure, Metric
from numpy.typing import NDArray

from pyterrier_graph.documents import level_mismatch
from pyterrier_graph.evaluation.measures.definitions import FoldedMeasure, MAPDMeasure, PRESMeasure
from pyterrier_graph.evaluation.measures.rankings import Fold, Judgments, Ranking, documents_of
from pyterrier_graph.warning_categories import DataWarning


class PatentEvaluator(Evaluator):
    """Computes measures of this package for runs on one set of judgments."""

    def __init__(self, measures: Iterable[Measure], qrels: Any) -> None:
        measures = sorted(measures, key=str)  # ir_measures gives a set, whose order would be that of tables' columns
        self._judgments = Judgments.read(qrels)
        by_fold: dict[tuple[str, ...], list[Measure]] = defaultdict(list)
        for measure in measures:
            if isinstance(measure, FoldedMeasure):
                by_fold[measure.fold].append(measure)
        self._folded = [_Folded(_fold(*item), group, self._judgments) for item, group in by_fold.items()]
        self._direct = [measure for measure in measures if not isinstance(measure, FoldedMeasure)]
        # The base class adds missing values for topics with relevant documents only.
        topics = set().union(*(group.topics for group in self._folded))
        for measure in self._direct:
            relevant = np.flatnonzero(self._judgments.relevant(measure["rel"]))
            topics.update(self._judgments.topics[topic] for topic in relevant)
        super().__init__(measures, topics)

    def _iter_calc(self, run: Any) -> Iterator[Metric]:
        ranking = Ranking.read(run, self._judgments)
        if self._direct and np.isnan(ranking.label).all():
            _check_level((ranking.ids[item] for item in np.unique(ranking.item)), self._judgments.ids)
        for measure in self._direct:
            compute = pres if isinstance(measure, PRESMeasure) else within_documents
            values = compute(self._judgments, ranking, measure)
            for topic in np.flatnonzero(~np.isnan(values)):
                yield Metric(self._judgments.topics[topic], measure, float(values[topic]))
        for group in self._folded:
            yield from group.metrics(ranking, self._judgments.topics)


class _Folded:
    """Computes measures of documents or nodes by ir_measures, for one way to fold ids."""

    def __init__(self, fold: Fold, measures: list[Measure], passages: Judgments) -> None:
        self.fold = fold
        self.measures = {measure["measure"]: measure for measure in measures}
        qrels = passages.folded(fold)
        self.judged = set(qrels["doc_id"])
        self.evaluator = ir_measures.evaluator(self.measures, qrels)
        self.topics = self.evaluator.qrel_qids

    def metrics(self, passages: Ranking, topics: list[str]) -> Iterator[Metric]:
        run = passages.folded(topics, self.fold)
        _check_level((name for found in run.values() for name in found), self.judged)
        for metric in self.evaluator.iter_calc(run):
            yield metric._replace(measure=self.measures[metric.measure])


def _fold(first: str, relation: str = "") -> Fold:
    """Folds ids by a separator, or by a graph's path and a relation."""
    if not relation:
        return lambda ids: (np.arange(len(ids)), documents_of(ids, first))
    from pyterrier_graph.graphs import DocumentGraph
    from pyterrier_graph.graphs.fold import check_fold, fold

    graph = DocumentGraph(first)
    check_fold(graph, relation)
    return lambda ids: fold(graph, ids, relation)


def _check_level(found: Iterable[str], judged: Iterable[str]) -> None:
    """Warns about a run of passages and judgments of documents, and the other way round."""
    if message := level_mismatch(found, judged):
        warnings.warn(message, DataWarning, stacklevel=3)


def pres(judgments: Judgments, ranking: Ranking, measure: Measure) -> NDArray[np.float64]:
    """PRES of each topic; NaN for topics without relevant documents.

    The i-th of n relevant documents has rank i at best. At worst, and if it is not among the first N results, it has
    rank N + i. Magdy and Jones' equation is the sum of the differences to the worst ranks, divided by the maximum N n.
    """
    cutoff, minimum = measure["cutoff"], measure["rel"]
    relevant = judgments.relevant(minimum)
    found = (ranking.label >= minimum) & (ranking.rank <= cutoff)
    topic, rank = ranking.topic[found], ranking.rank[found]
    worst = cutoff + np.arange(1, len(topic) + 1) - np.searchsorted(topic, topic)
    with np.errstate(invalid="ignore"):
        return np.bincount(topic, worst - rank, len(relevant)) / (cutoff * relevant)


def within_documents(judgments: Judgments, ranking: Ranking, measure: Measure) -> NDArray[np.float64]:
    """MAPD or PRECD of each topic; NaN for topics without relevant documents.

    Raises ValueError if an id has no separator. A relevant document without passages in the run has the value 0.
    """
    separator, minimum = measure["separator"], measure["rel"]
    if wrong := next((identifier for identifier in ranking.ids if separator not in identifier), None):
        advice = "MAPD(separator='#') has another separator"
        raise ValueError(f"{wrong!r} is no passage: there is no {separator!r} in it. {advice}")
    names = documents_of([*judgments.ids, *ranking.ids], separator)
    number, documents = pd.factorize(np.array(names, dtype=object))
    judged, number = np.split(number, [len(judgments.ids)])
    # A pair of a topic and a relevant document is one number; passages counts the relevant passages of each pair.
    pair = judgments.topic * len(documents) + judged
    pairs, passages = np.unique(pair[judgments.labels >= minimum], return_counts=True)
    document = pd.Index(pairs).get_indexer(ranking.topic * len(documents) + number[ranking.item])
    found = pd.DataFrame({"document": document, "hit": ranking.label >= minimum})
    found = found[(document >= 0) & (ranking.rank <= measure["cutoff"])]
    found = found[found.groupby("document").cumcount() < measure["per_document"]]
    hits = found.groupby("document")["hit"]
    if isinstance(measure, MAPDMeasure):
        precision = (hits.cumsum() / (hits.cumcount() + 1))[found["hit"]]
        values = precision.groupby(found["document"]).sum().reindex(range(len(pairs)), fill_value=0.0) / passages
    else:
        values = hits.mean().reindex(range(len(pairs)), fill_value=0.0)
    topic, topics = pairs // max(len(documents), 1), len(judgments.topics)
    with np.errstate(invalid="ignore"):
        return np.bincount(topic, values, topics) / np.bincount(topic, minlength=topics)
