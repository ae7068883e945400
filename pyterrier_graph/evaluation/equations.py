r"""Equations of the measures, over frames of judgments and runs.

PRES of a topic with n relevant documents, of which the i-th is found at rank :math:`r_i` among the first N results, or
else has rank :math:`N + i`:

.. math:: PRES = 1 - \frac{\frac{1}{n} \sum_i r_i - \frac{n + 1}{2}}{N}

MAP(D) and PREC(D) of a topic are means over its relevant documents D:

.. math::

    MAP(D) = \frac{1}{|\mathcal{D}|} \sum_{D \in \mathcal{D}} \frac{1}{n_D} \sum_{k : rel_k} Prec_D(k)
    \qquad
    PREC(D) = \frac{1}{|\mathcal{D}|} \sum_{D \in \mathcal{D}} \frac{r_D}{f_D}

with the :math:`n_D` relevant passages of D, the :math:`f_D` passages of D in the run, of which :math:`r_D` are
relevant, and the precision :math:`Prec_D(k)` of the first k of them.
"""

from __future__ import annotations

import warnings

import ir_measures
import numpy as np
import pandas as pd
from ir_measures import Measure

from pyterrier_graph.checks import DataWarning
from pyterrier_graph.graphs.judgments import documents_of

IDS = ["query_id", "doc_id"]


def compute(measure: Measure, qrels: pd.DataFrame, run: pd.DataFrame) -> pd.Series:
    """Computes a measure of :mod:`~pyterrier_graph.evaluation.measures` for each topic with relevant documents."""
    qrels = _judgments(qrels)
    ranking = _ranking(run)
    if measure.NAME == "on_documents":
        return _on_documents(measure["measure"], qrels, ranking)
    _check_level(ranking, qrels)
    ranking = ranking.merge(qrels, on=IDS, how="left")  # relevance is NaN if unjudged
    cutoff = measure["cutoff"]
    minimum = measure["rel"]
    if measure.NAME == "PRES":
        return pres(qrels, ranking, cutoff, minimum)
    ranking = ranking[ranking["rank"] <= cutoff]
    return within_documents(str(measure.NAME), qrels, ranking, minimum)


def pres(qrels: pd.DataFrame, ranking: pd.DataFrame, cutoff: int, minimum: int) -> pd.Series:
    """PRES of each topic with relevant documents.

    The i-th of n relevant documents has rank i at best. It has rank N + i at worst, if it is not among the first N
    results. The equation above is the sum of the differences to the worst ranks, divided by its maximum N n.
    """
    relevant = qrels[qrels["relevance"] >= minimum]
    n = relevant.groupby("query_id").size()
    is_relevant = ranking["relevance"] >= minimum
    is_counted = ranking["rank"] <= cutoff
    hits = ranking[is_relevant & is_counted]
    i = hits.groupby("query_id").cumcount() + 1
    difference = cutoff + i - hits["rank"]  # to the worst rank
    total = difference.groupby(hits["query_id"]).sum()
    return total.reindex(n.index, fill_value=0) / (cutoff * n)


def within_documents(
    name: str, qrels: pd.DataFrame, ranking: pd.DataFrame, minimum: int
) -> pd.Series:
    """MAPD or PRECD of each topic with relevant documents. Relevant documents without results have the value 0."""
    pair = ["query_id", "document"]
    relevant = qrels[qrels["relevance"] >= minimum]
    relevant = relevant.assign(document=documents_of(relevant["doc_id"]))
    num_relevant = relevant.groupby(pair).size()  # n_D of each topic and D
    ranking = ranking.assign(document=documents_of(ranking["doc_id"]))
    ranking = ranking.set_index(pair)
    is_relevant = ranking["relevance"] >= minimum  # of each result, by topic and D
    by_document = is_relevant.groupby(level=pair)
    if name == "PRECD":
        values = by_document.mean()
    else:
        k = by_document.cumcount() + 1
        precision = by_document.cumsum() / k  # Prec_D(k)
        at_relevant = precision[is_relevant].groupby(level=pair)
        values = at_relevant.sum() / num_relevant
    values = values.reindex(num_relevant.index).fillna(0.0)
    return values.groupby(level="query_id").mean()


def _on_documents(measure: Measure, qrels: pd.DataFrame, ranking: pd.DataFrame) -> pd.Series:
    """The measure of documents, each of which has the rank of its first result, without ties."""
    qrels = qrels.assign(doc_id=documents_of(qrels["doc_id"]))
    qrels = _judgments(qrels)
    ranking = ranking.assign(doc_id=documents_of(ranking["doc_id"]))
    ranking = ranking.drop_duplicates(IDS)  # the first result of each document
    _check_level(ranking, qrels)
    run = ranking.assign(score=-ranking["rank"].astype(float))
    metrics = ir_measures.iter_calc([measure], qrels, run)
    values = {metric.query_id: metric.value for metric in metrics}
    return pd.Series(values, dtype=float)


def _check_level(run: pd.DataFrame, qrels: pd.DataFrame) -> None:
    """Warns about a run of passages and judgments of documents, and the other way round."""
    retrieved = run["doc_id"]
    judged = qrels["doc_id"]
    if run.empty or qrels.empty or retrieved.isin(judged).any():
        return
    run_level = _level(retrieved)
    qrels_level = _level(judged)
    if run_level != qrels_level:
        warnings.warn(
            f"no judged docno is in the run, so every measure is 0: the run has {run_level}, such as "
            f"{retrieved.min()!r}, the judgments have {qrels_level}, such as {judged.min()!r}. Add "
            "pt.text.max_passage() or graph.fold(relation) to the pipeline, or use "
            "pyterrier_graph.measures.on_documents(nDCG @ 10)",
            DataWarning,
            stacklevel=2,
        )


def _level(ids: pd.Series) -> str:
    is_passage = documents_of(ids) != ids
    return "passages" if is_passage.any() else "documents"


def _judgments(qrels: pd.DataFrame) -> pd.DataFrame:
    """Judgments with the highest label of each document."""
    labels = qrels.groupby(IDS, sort=False)["relevance"]
    return labels.max().reset_index()


def _ranking(run: pd.DataFrame) -> pd.DataFrame:
    """The results, best first as in trec_eval, with ``rank`` from 1."""
    run = run[[*IDS, "score"]]
    with np.errstate(over="ignore"):
        run = run.astype({"score": np.float32})  # as in trec_eval, with the same ties
    run = run.sort_values(["score", "doc_id"], ascending=False)
    rank = run.groupby("query_id").cumcount() + 1
    return run.assign(rank=rank)
