"""Validation by a ranking measure: one number for the scores of a run."""

from __future__ import annotations

import warnings

import ir_measures
import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.documents import PASSAGE_SEPARATOR

PASSAGE_NUMBER = rf"{PASSAGE_SEPARATOR}[0-9]+$"


def documents_of(docnos: pd.Series) -> pd.Series:
    """Ids of the documents that passages are of; other ids stay."""
    return docnos.str.replace(PASSAGE_NUMBER, "", regex=True)


def judged_ids(docnos: pd.Series, qrels: pd.DataFrame) -> pd.Series:
    """The ids under which judgments are found: those of documents for passages, where no passage is judged."""
    return docnos if qrels["docno"].str.contains(PASSAGE_NUMBER).any() else documents_of(docnos)


def tuning_set(
    run: pd.DataFrame, qrels: pd.DataFrame, validation_run: pd.DataFrame | None, validation_qrels: pd.DataFrame | None
) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """The validation queries and their judgments where there are any, else the training queries and theirs."""
    if validation_run is None or not len(validation_run):
        return run, qrels
    return validation_run, validation_qrels


def judged(run: pd.DataFrame, qrels: pd.DataFrame | None, context: pt.Transformer) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of a run whose queries are judged, and the judgments; ids as text.

    Raises:
        pt.validate.InputValidationError: If a column of the judgments is missing.
        ValueError: If there are no judgments, or none of the queries is judged.
    """
    if qrels is None:
        raise ValueError(f"{type(context).__name__}.fit: there are no judgments for the queries")
    pt.validate.columns(qrels, includes=["qid", "docno", "label"], context=context)
    run, qrels = (frame.astype({"qid": str, "docno": str}) for frame in (run, qrels))
    run = run[run["qid"].isin(qrels["qid"])].reset_index(drop=True)
    if not len(run):
        raise ValueError(f"{type(context).__name__}.fit: none of the queries is judged")
    return run, qrels


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


class Validation:
    """The candidates of validation queries, whose scores by a model are measured.

    Judgments of documents count for passages (``docno%pN``) where no passage is judged: a document then has its best
    passage's score.

    Args:
        run: ``qid, docno``, and what the model needs.
        qrels: ``qid, docno, label``.
        measure: Name of an ir_measures measure, such as ``'nDCG@10'``.
        context: Whose validation it is, for messages.

    Attributes:
        run: The rows of judged queries, with ids as text and numbered from 0.
        measure: As given.

    Raises:
        pt.validate.InputValidationError: If a column of the judgments is missing.
        ValueError: If there are no judgments, or none of the queries is judged.

    Warns:
        UserWarning: If no candidate is judged, so that the measure is 0 whatever the scores.
    """

    def __init__(self, run: pd.DataFrame, qrels: pd.DataFrame | None, measure: str, context: pt.Transformer) -> None:
        self.run, qrels = judged(run, qrels, context)
        self.measure = measure
        self._ids = judged_ids(self.run["docno"], qrels)
        self._evaluate = RunEvaluator(measure, qrels)
        if not self._ids.isin(qrels["docno"]).any():
            warnings.warn(
                f"{type(context).__name__}.fit: none of the candidates is judged, so {measure} is 0: the run has "
                f"{self.run['docno'].iloc[0]!r}, the judgments have {qrels['docno'].iloc[0]!r}",
                stacklevel=3,
            )

    def __call__(self, scores: np.ndarray | pd.Series) -> float:
        """The measure, with a score for each row of :attr:`run`."""
        scored = self.run[["qid"]].assign(docno=self._ids, score=np.asarray(scores))
        return self._evaluate(scored.groupby(["qid", "docno"], sort=False, as_index=False)["score"].max())
