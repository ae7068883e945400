"""The cheapest context of a passage: how good its document is."""

from __future__ import annotations

import pandas as pd
import pyterrier as pt

from pyterrier_graph.training.validation import RunEvaluator, documents_of, judged, tuning_set

GRID = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)


class DocumentEvidence(pt.Estimator):
    """Adds to a passage's score that of the best passage of its document: ``score + beta * max over the document``.

    The interpolation of passage and document evidence that passage retrieval has long used (Callan 1994;
    Bendersky and Kurland 2008). It needs no graph, and a graph model has to beat it.

    Args:
        beta: Weight of the document's best score; 0 changes nothing. :meth:`fit` chooses it.
        measure: What :meth:`fit` maximizes.

    Columns: ``qid, docno, score`` in, with passage ids; the same out, with new ``score`` and ``rank``.

    Raises:
        ValueError: If a score is missing, or no query is judged.
    """

    schematic = {"label": "DocumentEvidence", "help_url": "https://pypi.org/project/pyterrier-graph/"}

    def __init__(self, beta: float = 1.0, *, measure: str = "nDCG@10") -> None:
        self.beta = beta
        self.measure = measure

    def __repr__(self) -> str:
        return f"DocumentEvidence({self.beta:g})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Adds the document's part to the scores."""
        pt.validate.result_frame(inp, extra_columns=["score"], context=self)
        scores = self._scores(inp, self.beta)
        return pt.model.add_ranks(inp.drop(columns=["score", "rank"], errors="ignore").assign(score=scores))

    def fit(
        self,
        topics_or_res_tr: pd.DataFrame,
        qrels_tr: pd.DataFrame,
        topics_or_res_va: pd.DataFrame | None = None,
        qrels_va: pd.DataFrame | None = None,
    ) -> DocumentEvidence:
        """Chooses beta from a grid, on the validation queries where there are any."""
        run, qrels = tuning_set(topics_or_res_tr, qrels_tr, topics_or_res_va, qrels_va)
        pt.validate.result_frame(run, extra_columns=["score"], context=self)
        run, qrels = judged(run[["qid", "docno", "score"]], qrels, self)
        evaluate = RunEvaluator(self.measure, qrels)
        self.beta = max(GRID, key=lambda beta: evaluate(run.assign(score=self._scores(run, beta))))
        return self

    @staticmethod
    def _scores(run: pd.DataFrame, beta: float) -> pd.Series:
        if run["score"].isna().any():
            raise ValueError(f"passage {run['docno'][run['score'].isna()].iloc[0]!r} has no score")
        best = run["score"].groupby([run["qid"], documents_of(run["docno"])]).transform("max")
        return run["score"] + beta * best
