r"""Passage scores with the evidence of their documents and neighbors, at query time: the cheapest context of a passage.

.. math::
    s'(q, p) = s(q, p) + w \max_{p' \in D(p)} s(q, p')
        + \sum_r w_r \frac{1}{|N_r(p)|} \sum_{p' \in N_r(p)} \left(s(q, p') - \min_{p''} s(q, p'')\right)

with the passages :math:`D(p)` of the document of p, and the passages :math:`N_r(p)` that relation r or its inverse
leads to. The sum and the maximum are over results of the query only: a neighbor that was not retrieved counts as the
last result. Both directions are one mean, so that the first and the last passage of a document lose nothing.
"""

from collections.abc import Iterable, Mapping
from typing import Self

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.checks import WithSignature, check_frame, check_training
from pyterrier_graph.configuration import checked_weights
from pyterrier_graph.graphs.hetero_graph import HeteroGraph, check_relations
from pyterrier_graph.graphs.judgments import documents_of
from pyterrier_graph.graphs.relations import DOCUMENT, inverse_path
from pyterrier_graph.search.scores import above_lowest, ranked
from pyterrier_graph.training.grid_search import Numbers, Tuning, coordinate_search
from pyterrier_graph.training.validation import JudgedRun, Validation, tuning_set

GRID = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)  # of neighbors


class DocumentEvidence(WithSignature, pt.Estimator):
    """Adds the score of a document's best passage to all its passages, and the mean score of neighbors to a passage.

    The interpolation of passage and document evidence is a standard baseline of passage retrieval (Callan 1994;
    Bendersky and Kurland 2008). It needs no graph, and a graph model has to beat it. With a graph, the scores of
    neighbors along relations are further evidence: ``DocumentEvidence(0.3, relations={"order": 0.1}, graph=graph)``
    adds the mean score of the passages before and after.

    Args:
        weight: Weight of the document's best score; 0 changes nothing. :meth:`fit` chooses it.
        relations: Weight of each relation, or path of relations, from a passage to its neighbors and back.
        graph: The graph of the passages. Only needed for relations, and where passages have ids of their own (not
            ``docno%pN``).
        training: The options of :meth:`fit`.

    Columns: ``qid, docno, score`` in, with passage ids; the same out, with new ``score`` and ``rank``.

    Raises:
        KeyError: If a passage is not in the graph.
        ValueError: If a weight is negative, the graph does not have a relation, or a score is missing.
    """

    schematic = {
        "label": "DocumentEvidence",
        "help_url": "https://pypi.org/project/pyterrier-graph/",
    }

    def __init__(
        self,
        weight: float = 1.0,
        *,
        relations: Mapping[str, float] | None = None,
        graph: HeteroGraph | None = None,
        training: Tuning | None = None,
    ) -> None:
        self.weight, self.graph = weight, graph
        self.relations: Mapping[str, float] = checked_weights(relations or {})
        self.training: Tuning = check_training(training, Tuning)
        if self.relations and graph is None:
            raise ValueError("relations need a graph: give graph=DocumentGraph(path)")
        if graph is not None:
            check_relations(graph, [*self.relations, *map(inverse_path, self.relations)])

    def __repr__(self) -> str:
        relations = f", relations={self.relations}" if self.relations else ""
        return f"DocumentEvidence({self.weight:g}{relations})"

    @property
    def weights(self) -> dict[str, float]:
        """The weights of the document and of all relations, by name."""
        return {DOCUMENT: self.weight, **self.relations}

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Adds the evidence of documents and neighbors to the scores."""
        inp = self._checked(inp)
        added = self.evidence(inp).to_numpy() @ [*self.weights.values()]
        return ranked(inp, inp["score"].to_numpy() + added)

    def _checked(self, run: pd.DataFrame) -> pd.DataFrame:
        run = check_frame(run, self, numbers=("score",))
        pt.validate.result_frame(run, extra_columns=["score"], context=self)
        return run

    def evidence(self, run: pd.DataFrame) -> pd.DataFrame:
        """The evidence of each row before weights: a column ``document``, and one per relation."""
        score = run["score"].to_numpy(float)
        query = run["qid"].factorize()[0].astype(np.int64)
        if self.graph is None:
            document = documents_of(run["docno"]).factorize()[0]
            return pd.DataFrame({DOCUMENT: _best(score, query, document)}, run.index)
        nodes = self.graph.nodes_of(run["docno"].tolist())
        evidence = node_evidence(self.graph, self.relations, query, nodes, score)
        return pd.DataFrame(evidence, run.index)

    def grid(self) -> list[dict[str, float]]:
        """The weights that :meth:`fit` tries."""
        relations = [{name: share} for name in self.relations for share in SHARES]
        return [{DOCUMENT: weight} for weight in GRID] + relations

    def fit(
        self,
        topics_or_res_tr: pd.DataFrame,
        qrels_tr: pd.DataFrame,
        topics_or_res_va: pd.DataFrame | None = None,
        qrels_va: pd.DataFrame | None = None,
    ) -> Self:
        """Chooses the weights from grids, on the validation queries where there are any, else on the training queries.

        The weights move from their present values only as far as the queries support it: see
        :func:`~pyterrier_graph.training.grid_search.coordinate_search`.
        Runs have the columns of :meth:`transform`, judgments ``qid, docno, label``, of passages or documents.
        """
        run, qrels = tuning_set(topics_or_res_tr, qrels_tr, topics_or_res_va, qrels_va)
        run = self._checked(run)
        judged = JudgedRun(run[["qid", "docno", "score"]], qrels, self)
        validation = Validation(judged, self.training.measure)
        run, evidence = validation.run, self.evidence(validation.run)

        def measure(numbers: Numbers) -> np.ndarray:
            return validation.per_query(run["score"] + evidence @ pd.Series(numbers))

        weights = coordinate_search(self.weights, self.grid(), measure, verbose=False)
        self.weight = weights.pop(DOCUMENT)
        self.relations = weights
        return self


def node_evidence(
    graph: HeteroGraph,
    relations: Iterable[str],
    query: np.ndarray,
    nodes: np.ndarray,
    scores: np.ndarray,
) -> dict[str, np.ndarray]:
    """The evidence of each result before weights: of its ``document``, and of its neighbors of each relation.

    ``query``, ``nodes`` and ``scores`` have the query, the passage and the score of each result, shape (results,).
    """
    above = above_lowest(scores, query)
    neighbors = {
        relation: _mean_of_neighbors(graph, relation, query, nodes, above) for relation in relations
    }
    return {DOCUMENT: _best(scores, query, graph.document[nodes])} | neighbors


def _best(scores: np.ndarray, query: np.ndarray, document: np.ndarray) -> np.ndarray:
    """The best score of each result's document, shape (results,)."""
    pairs = query * (document.max(initial=0) + 1) + document
    _, pair = np.unique(pairs, return_inverse=True)
    best = np.full(len(scores), -np.inf)
    np.maximum.at(best, pair, scores)
    return best[pair]


def _mean_of_neighbors(
    graph: HeteroGraph, relation: str, query: np.ndarray, nodes: np.ndarray, scores: np.ndarray
) -> np.ndarray:
    """Per result the mean score of its neighbors in both directions; a neighbor that was not retrieved has 0."""
    result, neighbor = graph.related_passages(nodes, relation)  # (pairs,) each
    # a query and a passage as one number
    keys, first = np.unique(query * graph.num_nodes + nodes, return_index=True)
    wanted = query[result] * graph.num_nodes + neighbor  # (pairs,)
    position = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    retrieved = keys[position] == wanted  # (pairs,)
    neighbor_scores = scores[first[position[retrieved]]]
    total = np.bincount(result[retrieved], neighbor_scores, len(nodes))  # (results,)
    neighbors = np.bincount(result, minlength=len(nodes))  # (results,)
    return total / np.maximum(neighbors, 1)
