"""The measures' equations: from judgments and a ranking to one value per topic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from ir_measures import Measure
from numpy.typing import NDArray

from pyterrier_graph.evaluation.measures.rankings import Judgments, Ranking, documents_of


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
    """The passages in a run of the relevant documents of each topic.

    Attributes:
        topic: Position of each document's topic.
        passages: Number of each document's relevant passages.
        found: Passages in the run, best first: position of the ``document``, and whether the passage is a ``hit``.
    """

    topic: NDArray[np.intp]
    passages: NDArray[np.intp]
    found: pd.DataFrame

    @classmethod
    def read(cls, judgments: Judgments, ranking: Ranking, measure: Measure) -> RelevantDocuments:
        """Groups judgments and a ranking of passages by document, with the parameters of MAPD or PRECD.

        Raises:
            ValueError: If an id has no separator.
        """
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
