"""The measures' equations: judgments and a ranking in, one value per topic out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pyterrier_graph.evaluation.measures.rankings import Judgments, Ranking, documents_of


def pres(judgments: Judgments, ranking: Ranking, *, cutoff: int, minimum: int) -> NDArray[np.float64]:
    """PRES of each topic; not a number where nothing is relevant.

    The i-th of n relevant documents is at rank i at best and at N + i at worst, which is where those are taken to be
    that are not found. Magdy and Jones' equation is what is gained on the worst case, as a part of what could be: N n.
    """
    relevant = judgments.relevant(minimum)
    found = (ranking.label >= minimum) & (ranking.rank <= cutoff)
    topic, rank = ranking.topic[found], ranking.rank[found]
    worst = cutoff + np.arange(1, len(topic) + 1) - np.searchsorted(topic, topic)
    with np.errstate(invalid="ignore"):
        return np.bincount(topic, worst - rank, len(relevant)) / (cutoff * relevant)


@dataclass(frozen=True)
class RelevantDocuments:
    """What a run has of each document that is relevant to a topic.

    Attributes:
        topic: Of each document, the position of its topic.
        passages: Of each, how many of its passages are relevant.
        found: The passages in the run, best first: the position of the ``document``, and whether it is a ``hit``.
    """

    topic: NDArray[np.intp]
    passages: NDArray[np.intp]
    found: pd.DataFrame

    @classmethod
    def read(
        cls,
        judgments: Judgments,
        ranking: Ranking,
        *,
        cutoff: float,
        per_document: float,
        minimum: int,
        separator: str,
    ) -> RelevantDocuments:
        """Puts judgments and a ranking of passages together by document.

        Args:
            judgments: Of passages.
            ranking: Of passages.
            cutoff: So many passages of a topic count.
            per_document: So many of each document, of those.
            minimum: Label of a relevant passage, or higher.
            separator: What stands between a document and its passage.

        Raises:
            ValueError: If an id has no separator.
        """
        if wrong := next((identifier for identifier in ranking.ids if separator not in identifier), None):
            raise ValueError(
                f"{wrong!r} is no passage: there is no {separator!r} in it. Another separator is a parameter of the"
                " measure, such as MAPD(separator='#')"
            )
        names = documents_of([*judgments.ids, *ranking.ids], separator)
        number, documents = pd.factorize(np.array(names, dtype=object))
        judged, number = np.split(number, [len(judgments.ids)])
        pair = judgments.topic * len(documents) + judged
        pairs, passages = np.unique(pair[judgments.labels >= minimum], return_counts=True)
        pair = ranking.topic * len(documents) + number[ranking.item]
        document = pd.Index(pairs).get_indexer(pair)
        found = pd.DataFrame({"document": document, "hit": ranking.label >= minimum})
        found = found[(document >= 0) & (ranking.rank <= cutoff)]
        found = found[found.groupby("document").cumcount() < per_document]
        return cls(pairs // max(len(documents), 1), passages, found)

    def average_precision(self) -> NDArray[np.float64]:
        """Average precision of each document's passages."""
        hits = self.found.groupby("document")["hit"]
        precision = (hits.cumsum() / (hits.cumcount() + 1))[self.found["hit"]]
        return self._each(precision.groupby(self.found["document"]).sum()) / self.passages

    def precision(self) -> NDArray[np.float64]:
        """Precision of each document's passages; 0 where there are none."""
        return self._each(self.found.groupby("document")["hit"].mean())

    def mean(self, values: NDArray[np.float64], topics: int) -> NDArray[np.float64]:
        """Mean of the documents' values for each of so many topics; not a number for one that has no document."""
        with np.errstate(invalid="ignore"):
            return np.bincount(self.topic, values, topics) / np.bincount(self.topic, minlength=topics)

    def _each(self, values: pd.Series) -> NDArray[np.float64]:
        return values.reindex(range(len(self.topic)), fill_value=0.0).to_numpy(float)
