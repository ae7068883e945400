"""One number for a run."""

from __future__ import annotations

import ir_measures
import pandas as pd
import pyterrier as pt


class RunEvaluator:
    """Evaluates runs by one measure against one set of judgments.

    Args:
        measure: Name of an ir_measures measure, such as ``'nDCG@10'``.
        qrels: ``qid, docno, label``.
    """

    def __init__(self, measure: str, qrels: pd.DataFrame) -> None:
        self.measure = ir_measures.parse_measure(measure)
        judged = pt.model.to_ir_measures(qrels.astype({"qid": str, "docno": str}))
        self._evaluator = ir_measures.evaluator([self.measure], judged)

    def __call__(self, run: pd.DataFrame) -> float:
        """Mean of the measure over the judged queries of a ``qid, docno, score`` frame."""
        return float(self._evaluator.calc_aggregate(pt.model.to_ir_measures(run))[self.measure])
