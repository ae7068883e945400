"""Passage scores with the evidence of their documents: the cheapest context of a passage."""

from typing import Self

import pandas as pd
import pyterrier as pt

from pyterrier_graph.checks import WithSignature, check_frame, check_number, check_training
from pyterrier_graph.graphs.hetero_graph import HeteroGraph, documents_of
from pyterrier_graph.training.grid_search import Tuning, coordinate_search
from pyterrier_graph.training.validation import Validation, tuning_set

GRID = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)


class DocumentEvidence(WithSignature, pt.Estimator):
    """Adds the score of a document's best passage to all its passages: ``score + weight * max over the document``.

    This interpolation of passage and document evidence is a standard baseline of passage retrieval (Callan 1994;
    Bendersky and Kurland 2008). It needs no graph, and a graph model has to beat it.

    Args:
        weight: Weight of the document's best score; 0 changes nothing. :meth:`fit` chooses it.
        graph: The graph of the passages; only needed where passages have ids of their own (not ``docno%pN``).
        training: The options of :meth:`fit`.

    Columns: ``qid, docno, score`` in, with passage ids; the same out, with new ``score`` and ``rank``.

    Raises:
        ValueError: If the weight is negative, or a score is missing.
    """

    schematic = {"label": "DocumentEvidence", "help_url": "https://pypi.org/project/pyterrier-graph/"}

    def __init__(
        self, weight: float = 1.0, *, graph: HeteroGraph | None = None, training: Tuning | None = None
    ) -> None:
        check_number("weight", weight, 0)
        self.weight = weight
        self.graph = graph
        self.training = Tuning() if training is None else training
        check_training(self.training, Tuning)

    def __repr__(self) -> str:
        return f"DocumentEvidence({self.weight:g})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Adds the evidence of the documents to the scores."""
        inp = check_frame(inp, self, numbers=("score",))
        pt.validate.result_frame(inp, extra_columns=["score"], context=self)
        scores = self._scores(inp, self.weight)
        return pt.model.add_ranks(inp.drop(columns=["score", "rank"], errors="ignore").assign(score=scores))

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
        run = check_frame(run, self, numbers=("score",))
        pt.validate.result_frame(run, extra_columns=["score"], context=self)
        validation = Validation(run[["qid", "docno", "score"]], qrels, self.training.measure, self)
        measure = lambda numbers: validation.per_query(self._scores(validation.run, **numbers))  # noqa: E731
        grid = [{"weight": weight} for weight in GRID]
        self.weight = coordinate_search({"weight": self.weight}, grid, measure, verbose=False)["weight"]
        return self

    def _scores(self, run: pd.DataFrame, weight: float) -> pd.Series:
        best = run["score"].groupby([run["qid"], documents_of(run["docno"], self.graph)]).transform("max")
        return run["score"] + weight * best
