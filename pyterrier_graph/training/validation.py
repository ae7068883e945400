"""Judgments as labels of the rows of a run, and validation by a ranking measure."""

import warnings
from functools import cached_property
from typing import Any

import ir_measures
import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.checks import DataWarning, check_frame, query_texts
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.graphs.judgments import documents_of, passage_qrels, passages_are_judged


def tuning_set(
    run: pd.DataFrame,
    qrels: pd.DataFrame,
    run_va: pd.DataFrame | None,
    qrels_va: pd.DataFrame | None,
) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """The validation queries and their judgments if there are any, else the training queries and judgments."""
    if run_va is None:
        return run, qrels
    return run_va, qrels_va


def checked_topics(topics: pd.DataFrame, context: Any) -> pd.DataFrame:
    """The queries of topics, one row each: ``qid, query`` with ids as strings; other columns are left out."""
    topics = check_frame(topics, context)
    pt.validate.columns(topics, includes=["qid", "query"], context=context)
    texts = query_texts(topics.astype({"qid": str}))  # by qid
    return texts.rename_axis("qid").reset_index()


def checked_qrels(qrels: pd.DataFrame, context: Any) -> pd.DataFrame:
    """Judgments ``qid, docno, label`` with ids as strings and labels as integers."""
    qrels = check_frame(qrels, context, numbers=("label",))
    pt.validate.columns(qrels, includes=["qid", "docno", "label"], context=context)
    return qrels.astype({"qid": str, "docno": str, "label": "int64"})


def as_good(value: np.ndarray, best: np.ndarray) -> bool:
    """Whether ``value`` is within one standard error of ``best``, averaged over queries; both (queries,)."""
    worse = best - value
    if len(worse) < 2:
        return True
    # if a single query differs, it is exactly one standard error away
    error = np.std(worse, ddof=1) / len(worse) ** 0.5
    limit = error * (1 + 1e-9)
    return bool(np.mean(worse) <= limit)


class JudgedRun:
    """The rows of a run whose queries are judged, and their labels: the one place where a ``fit`` reads judgments.

    If only documents are judged, a passage (``docno%pN``, or a passage of the model's graph) has the label of its
    document.

    Attributes:
        rows: The rows, numbered from 0, with ids as strings.
        qrels: The judgments: ``qid, docno, label``.
        graph: The graph of the model, if it has one.
        of_passages: Whether passages are judged, instead of documents.

    Raises:
        TypeError: If there are no judgments.
        ValueError: If there are none for the queries of the run.
    """

    def __init__(
        self, run: pd.DataFrame, qrels: pd.DataFrame | None, context: pt.Transformer
    ) -> None:
        self.caller = f"{type(context).__name__}.fit"
        self.qrels = checked_qrels(qrels, context)
        run = check_frame(run, context)
        ids = run.columns.intersection(["qid", "docno"])
        run = run.astype(dict.fromkeys(ids, str))
        is_judged = run["qid"].isin(self.qrels["qid"])
        self.rows = run[is_judged].reset_index(drop=True)
        if not len(self.rows):
            raise ValueError(f"{self.caller}: none of the queries is judged")
        self.graph: HeteroGraph | None = getattr(context, "graph", None)
        self.of_passages = passages_are_judged(self.qrels, self.graph)

    def judged_ids(self, docnos: pd.Series) -> pd.Series:
        """The id that judgments have for each passage: its own, or its document's."""
        if self.of_passages:
            return docnos
        return documents_of(docnos, self.graph)

    @cached_property
    def labels(self) -> np.ndarray:
        """Label of each row, 0 if unjudged; shape (rows,)."""
        pair = ["qid", "docno"]
        judgments = self.qrels.drop_duplicates(pair).set_index(pair)
        docnos = self.judged_ids(self.rows["docno"])
        rows = pd.MultiIndex.from_arrays([self.rows["qid"], docnos])
        labels = judgments["label"].reindex(rows, fill_value=0)
        return labels.to_numpy()

    def passage_qrels(self) -> pd.DataFrame:
        """Judgments of the graph's passages for the queries of the run, also of passages that it does not contain."""
        assert self.graph is not None
        in_run = self.qrels["qid"].isin(self.rows["qid"])
        return passage_qrels(self.qrels[in_run], self.graph)


class Validation:
    """A measure of a model on validation queries: of scores for the rows of ``run``, or of another run.

    If only documents are judged, the score of a document is the score of its best passage. Warns that the measure is 0
    for all scores if no candidate is judged.

    Args:
        judged: The candidates of each query, with ``docno`` if they are always the same.
        measure: Name of the measure, or several joined by ``+``, which are averaged.
        candidates: Number of documents per query that are measured, the first by ``rank`` (or in the order of the
            rows); None measures all.

    Attributes:
        run: The rows that are measured.
    """

    def __init__(self, judged: JudgedRun, measure: str, *, candidates: int | None = None) -> None:
        self.judged = judged
        self.run = judged.rows
        names = measure.split("+")
        self.measures = [ir_measures.parse_measure(name) for name in names]
        qrels = pt.model.to_ir_measures(judged.qrels)
        self._evaluator = ir_measures.evaluator(self.measures, qrels)
        if "docno" not in self.run.columns:
            return
        if candidates is not None:
            self.run = first_documents(judged, candidates)
        docnos = judged.judged_ids(self.run["docno"])
        self._pairs = self.run[["qid"]].assign(docno=docnos)
        judged_docnos = judged.qrels["docno"]
        is_judged = docnos.isin(judged_docnos)
        if not is_judged.any():
            candidate = self.run["docno"].iloc[0]
            ids = f"the run has {candidate!r}, the judgments have {judged_docnos.iloc[0]!r}"
            problem = f"none of the candidates is judged, so {measure} is 0: {ids}"
            warnings.warn(f"{judged.caller}: {problem}", DataWarning, stacklevel=3)

    def per_query(self, scores: np.ndarray | pd.Series) -> np.ndarray:
        """The measure of each judged query, sorted by qid; there is a score for each row of :attr:`run`."""
        return self._per_query(self._pairs.assign(score=np.asarray(scores)))

    def per_query_of(self, run: pd.DataFrame) -> np.ndarray:
        """The measure of each judged query of another run for the same queries: ``qid, docno, score``, string ids."""
        docnos = self.judged.judged_ids(run["docno"])
        return self._per_query(run.assign(docno=docnos))

    def _per_query(self, run: pd.DataFrame) -> np.ndarray:
        """The measure of each judged query of a run, with ids as in the judgments; the best score of an id counts."""
        by_pair = run.groupby(["qid", "docno"], sort=False, as_index=False)
        run = by_pair["score"].max()
        cutoffs = [measure.params.get("cutoff") for measure in self.measures]
        if all(cutoffs):  # further results only take time
            scores32 = run["score"].astype("float32")  # as trec_eval compares them
            by_query = scores32.groupby(run["qid"], sort=False)
            rank = by_query.rank("min", ascending=False)
            run = run[rank <= max(cutoffs)]
        run = pt.model.to_ir_measures(run)
        results = pd.DataFrame(self._evaluator.iter_calc(run))
        by_query = results.groupby("query_id")["value"]
        return by_query.mean().to_numpy()


def first_documents(judged: JudgedRun, count: int) -> pd.DataFrame:
    """The rows of the first documents of each query, with all their passages."""
    document = judged.judged_ids(judged.rows["docno"])
    run = judged.rows.assign(document=document)
    ordered = run
    if "rank" in run.columns:
        ordered = run.sort_values("rank", kind="stable")
    documents = ordered[["qid", "document"]].drop_duplicates()
    first = documents.groupby("qid").head(count)
    run = run.merge(first, on=["qid", "document"])
    return run.drop(columns="document")
