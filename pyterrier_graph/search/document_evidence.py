r"""Passage scores with the evidence of their documents and neighbors, at query time: the cheapest context of a passage.

.. math::
    s'(q, p) = s(q, p) + w \max_{p' \in D(p)} s(q, p')
        + v \frac{1}{|N(p)|} \sum_{p' \in N(p)} \left(s(q, p') - \min_{p''} s(q, p'')\right)

with the passages :math:`D(p)` of the document of p, and the passages :math:`N(p)` before and after it. The sum and the
maximum are over results of the query only: a neighbor that was not retrieved counts as the last result. Both neighbors
are one mean, so that the first and the last passage of a document lose nothing.
"""

from typing import Self

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.checks import WithSignature, check_frame
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.graphs.judgments import documents_of
from pyterrier_graph.graphs.relations import DOCUMENT, ORDER, inverse
from pyterrier_graph.search.scores import above_lowest, query_numbers, ranked
from pyterrier_graph.training.grid_search import Numbers, Tuning, coordinate_search
from pyterrier_graph.training.validation import JudgedRun, Validation, tuning_set

GRID = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)


class DocumentEvidence(WithSignature, pt.Estimator):
    """Adds the score of a document's best passage to all its passages.

    The interpolation of passage and document evidence is a standard baseline of passage retrieval (Callan 1994;
    Bendersky and Kurland 2008). It needs no graph, and a graph model has to beat it.

    Args:
        weight: Weight of the document's best score; 0 changes nothing. :meth:`fit` chooses it.
        graph: The graph of the passages, where passages have ids of their own (not ``docno%pN``).
        training: The options of :meth:`fit`.

    Columns: ``qid, docno, score`` in, with passage ids; the same out, with new ``score`` and ``rank``.

    Raises:
        ValueError: If a score is missing.
    """

    schematic = {
        "label": "DocumentEvidence",
        "help_url": "https://pypi.org/project/pyterrier-graph/",
    }

    def __init__(
        self,
        weight: float = 1.0,
        *,
        graph: HeteroGraph | None = None,
        training: Tuning | None = None,
    ) -> None:
        self.weight = weight
        self.graph = graph
        self.training = training or Tuning()

    def __repr__(self) -> str:
        return f"DocumentEvidence({self.weight:g})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Adds the evidence of documents to the scores."""
        run = self._checked(inp)
        evidence = self._evidence(run)
        scores = run["score"].to_numpy() + self.weight * evidence
        return ranked(run, scores)

    def _checked(self, run: pd.DataFrame) -> pd.DataFrame:
        run = check_frame(run, self, numbers=("score",))
        pt.validate.result_frame(run, extra_columns=["score"], context=self)
        return run

    def _evidence(self, run: pd.DataFrame) -> np.ndarray:
        """The best score of each row's document."""
        scores = run["score"].to_numpy(float)
        documents = documents_of(run["docno"], self.graph)
        document, _ = documents.factorize()
        return _best(scores, query_numbers(run), document)

    def fit(
        self,
        topics_or_res_tr: pd.DataFrame,
        qrels_tr: pd.DataFrame,
        topics_or_res_va: pd.DataFrame | None = None,
        qrels_va: pd.DataFrame | None = None,
    ) -> Self:
        """Chooses the weight from a grid, on the validation queries where there are any, else on the training queries.

        The weight moves from its present value only as far as the queries support it: see
        :func:`~pyterrier_graph.training.grid_search.coordinate_search`.
        Runs have the columns of :meth:`transform`, judgments ``qid, docno, label``, of passages or documents.
        """
        run, qrels = tuning_set(topics_or_res_tr, qrels_tr, topics_or_res_va, qrels_va)
        run = self._checked(run)[["qid", "docno", "score"]]
        judged = JudgedRun(run, qrels, self)
        validation = Validation(judged, self.training.measure)
        run = validation.run
        evidence = self._evidence(run)

        def measure(numbers: Numbers) -> np.ndarray:
            scores = run["score"] + numbers[DOCUMENT] * evidence
            return validation.per_query(scores)

        start = {DOCUMENT: self.weight}
        grid = [{DOCUMENT: weight} for weight in GRID]
        best = coordinate_search(start, grid, measure, verbose=False)
        self.weight = best[DOCUMENT]
        return self


def node_evidence(
    graph: HeteroGraph, query: np.ndarray, nodes: np.ndarray, scores: np.ndarray
) -> dict[str, np.ndarray]:
    """The evidence of each result before weights: of its ``document``, and of its neighbors in ``order``.

    ``query``, ``nodes`` and ``scores`` have the query, the passage and the score of each result, shape (results,).
    """
    above = above_lowest(scores, query)
    return {
        DOCUMENT: _best(scores, query, graph.document[nodes]),
        ORDER: _mean_of_neighbors(graph, query, nodes, above),
    }


def _best(scores: np.ndarray, query: np.ndarray, document: np.ndarray) -> np.ndarray:
    """The best score of each result's document, shape (results,)."""
    documents = document.max(initial=0) + 1
    # a query and a document as one number, shape (results,)
    keys = query * documents + document
    _, pair = np.unique(keys, return_inverse=True)
    best = np.full(len(scores), -np.inf)
    np.maximum.at(best, pair, scores)
    return best[pair]


def _mean_of_neighbors(
    graph: HeteroGraph, query: np.ndarray, nodes: np.ndarray, scores: np.ndarray
) -> np.ndarray:
    """Per result the mean score of the passages before and after it; a passage that was not retrieved has 0."""
    before = graph.neighbors(nodes, ORDER)  # (2, pairs): results and their neighbors
    after = graph.neighbors(nodes, inverse(ORDER))
    result, neighbor = np.concatenate([before, after], axis=1)
    # a query and a passage as one number
    result_keys = query * graph.num_nodes + nodes  # (results,)
    neighbor_keys = query[result] * graph.num_nodes + neighbor  # (pairs,)
    keys, row = np.unique(result_keys, return_index=True)
    position = np.searchsorted(keys, neighbor_keys)
    position = position.clip(max=len(keys) - 1)  # keys above all others
    retrieved = keys[position] == neighbor_keys  # (pairs,)
    neighbor_row = row[position[retrieved]]
    neighbor_scores = scores[neighbor_row]
    total = np.bincount(result[retrieved], neighbor_scores, len(nodes))  # (results,)
    neighbors = np.bincount(result, minlength=len(nodes))  # (results,)
    return total / np.maximum(neighbors, 1)
