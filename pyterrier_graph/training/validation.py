"""Validation by a ranking measure: one number for the scores of a run."""

import warnings
from typing import Any

import ir_measures
import numpy as np
import pandas as pd
import pyterrier as pt
from ir_measures.measures import Measure

from pyterrier_graph.checks import DataWarning, check_frame, check_type, query_texts
from pyterrier_graph.graphs.hetero_graph import HeteroGraph, judged_ids


def tuning_set(
    run: pd.DataFrame,
    qrels: pd.DataFrame,
    run_va: pd.DataFrame | None,
    qrels_va: pd.DataFrame | None,
) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """The validation queries and their judgments if given, else the training queries and theirs."""
    return (run, qrels) if run_va is None or not len(run_va) else (run_va, qrels_va)


def checked_topics(topics: pd.DataFrame, context: Any) -> pd.DataFrame:
    """The queries of topics, one row each: ``qid, query`` with ids as text; other columns are left out."""
    topics = check_frame(topics, context)
    pt.validate.columns(topics, includes=["qid", "query"], context=context)
    return query_texts(topics.astype({"qid": str})).rename_axis("qid").reset_index()


def checked_qrels(qrels: pd.DataFrame, context: Any) -> pd.DataFrame:
    """Judgments ``qid, docno, label`` with ids as text, and numbers as labels."""
    qrels = check_frame(qrels, context, numbers=("label",))
    pt.validate.columns(qrels, includes=["qid", "docno", "label"], context=context)
    if not np.isfinite(qrels["label"]).all() or (qrels["label"] % 1 != 0).any():
        wrong = qrels["label"][~np.isfinite(qrels["label"]) | (qrels["label"] % 1 != 0)].iloc[0]
        raise ValueError(f"{context!r}: a label must be a whole number, got {wrong:g}")
    return qrels.astype({"qid": str, "docno": str, "label": "int64"})


def judged(
    run: pd.DataFrame, qrels: pd.DataFrame | None, context: pt.Transformer
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of a run whose queries are judged, numbered from 0, and the judgments; raises ValueError if none is."""
    if qrels is None:
        raise ValueError(f"{type(context).__name__}.fit: there are no judgments for the queries")
    qrels = checked_qrels(qrels, context)
    run = check_frame(run, context)
    run = run.astype({name: str for name in ("qid", "docno") if name in run.columns})
    run = run[run["qid"].isin(qrels["qid"])].reset_index(drop=True)
    if not len(run):
        raise ValueError(f"{type(context).__name__}.fit: none of the queries is judged")
    return run, qrels


def measures_of(names: str) -> list[Measure]:
    """The measures of ir_measures in a string such as ``'nDCG@10'`` or ``'P@20+nDCG@20'``."""
    return [ir_measures.parse_measure(name) for name in names.split("+")]


def check_measure(measure: str) -> None:
    """Raises an error unless this is the name of a measure that ir_measures knows, or several joined by ``+``."""
    check_type("measure", measure, str, "the name of a measure, such as 'nDCG@10'")
    try:
        measures_of(measure)
    except (MemoryError, NameError, SyntaxError, ValueError) as error:
        raise ValueError(
            f"{measure!r:.60} is not a measure of ir_measures, such as 'nDCG@10': {error}"
        ) from error


def as_good(value: np.ndarray, best: np.ndarray) -> bool:
    """Whether the measure of each query is, on average, at most one standard error of the difference below the best."""
    worse, count = best - value, len(best)
    error = float(np.std(worse, ddof=1)) / count**0.5 if count > 1 else np.inf
    # a single query that differs is exactly one standard error away
    return float(np.mean(worse)) <= error * (1 + 1e-9)


class Validation:
    """Measures a model on validation queries: ``per_query(scores)``, of the rows of ``run``, or ``per_query_of(run)``.

    Several measures, joined by ``+``, are averaged.

    If only documents are judged, passages (``docno%pN``, or those of the model's graph) count for their document: the
    score of a document is the score of its best passage. If no candidate is judged, it warns that the measure is 0 for
    all scores. The run has ``docno`` if the candidates are always the same: the first ``candidates`` documents of each
    query by ``rank`` (or in the order of the rows), or all.
    """

    def __init__(
        self,
        run: pd.DataFrame,
        qrels: pd.DataFrame | None,
        measure: str,
        context: pt.Transformer,
        *,
        candidates: int | None = None,
    ) -> None:
        self.run, self.qrels = judged(run, qrels, context)
        self.graph: HeteroGraph | None = getattr(context, "graph", None)
        self.measures = measures_of(measure)
        self._evaluator = ir_measures.evaluator(self.measures, pt.model.to_ir_measures(self.qrels))
        if "docno" not in self.run.columns:
            return
        self._pairs = self.run[["qid"]].assign(
            docno=judged_ids(self.run["docno"], self.qrels, self.graph)
        )
        if candidates is not None:
            order = (
                self.run["rank"].argsort(kind="stable")
                if "rank" in self.run.columns
                else self.run.index
            )
            distinct = self._pairs.iloc[order].drop_duplicates()
            first = distinct[distinct.groupby("qid").cumcount() < candidates]
            among_first = pd.MultiIndex.from_frame(self._pairs).isin(
                pd.MultiIndex.from_frame(first)
            )
            self.run, self._pairs = (
                rows[among_first].reset_index(drop=True) for rows in (self.run, self._pairs)
            )
        if not self._pairs["docno"].isin(self.qrels["docno"]).any():
            ids = f"the run has {self.run['docno'].iloc[0]!r}, the judgments have {self.qrels['docno'].iloc[0]!r}"
            problem = f"none of the candidates is judged, so {measure} is 0: {ids}"
            warnings.warn(f"{type(context).__name__}.fit: {problem}", DataWarning, stacklevel=3)

    def per_query(self, scores: np.ndarray | pd.Series) -> np.ndarray:
        """The measure of each judged query, sorted by qid, given a score for each row of :attr:`run`."""
        return self._per_query(self._pairs, scores)

    def per_query_of(self, run: pd.DataFrame) -> np.ndarray:
        """The measure of each judged query, of another run for the same queries: ``qid, docno, score``, ids as text."""
        return self._per_query(
            run.assign(docno=judged_ids(run["docno"], self.qrels, self.graph)), run["score"]
        )

    def _per_query(self, pairs: pd.DataFrame, scores: np.ndarray | pd.Series) -> np.ndarray:
        scored = pairs.assign(score=np.asarray(scores)).groupby(
            ["qid", "docno"], sort=False, as_index=False
        )
        best = scored["score"].max()
        cutoffs = [measure.params.get("cutoff") for measure in self.measures]
        if all(cutoffs):  # results below all of them take time; trec_eval's scores are float32
            place = (
                best["score"]
                .astype("float32")
                .groupby(best["qid"], sort=False)
                .rank("min", ascending=False)
            )
            best = best[place <= max(cutoffs)]
        results = pd.DataFrame(self._evaluator.iter_calc(pt.model.to_ir_measures(best)))
        return results.groupby("query_id")["value"].mean().to_numpy()
