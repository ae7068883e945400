r"""Hybrid retrieval: a convex combination of the normalized scores of two pipelines.

.. math::
    s(q, d) = (1 - \alpha) \, n_{lexical}(q, d) + \alpha \, n_{dense}(q, d)

:math:`n` are the z-scores of a pipeline's results for a query, minus the lowest of them. A document that the pipeline
did not retrieve counts as its last result (Bruch et al., TOIS 2023, Sect. 3 and 4):

.. math::
    n(q, d) = \frac{s(q, d) - \min_{d'} s(q, d')}{\operatorname{std}_{d'} s(q, d')}
"""

from typing import Any, Self

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.checks import check_frame
from pyterrier_graph.documents.document import split_passage_id
from pyterrier_graph.graph_mean.contextual_index import Retriever
from pyterrier_graph.search.scores import normalized_scores, query_numbers, ranked, weighted
from pyterrier_graph.training.grid_search import Numbers, Tuning, coordinate_search
from pyterrier_graph.training.validation import JudgedRun, Validation, tuning_set

ALPHA = 0.6
ALPHAS = tuple(round(0.05 * step, 2) for step in range(21))
DEPTH = 1000
SIDES = ["lexical", "dense"]
REPLACED = ["docid", "score", "rank"]  # columns of the pipelines' results that are dropped


class Frozen(pt.Transformer):
    """Runs a pipeline as one stage that is never trained.

    PyTerrier's ``fit`` of a pipeline either trains a stage or runs it, so what precedes a reranker must be frozen:
    ``Frozen(hybrid) >> reranker``.
    """

    def __init__(self, pipeline: pt.Transformer) -> None:
        self.pipeline = pipeline

    def __repr__(self) -> str:
        return repr(self.pipeline)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Runs the pipeline."""
        return self.pipeline.transform(inp)


class Hybrid(Retriever, pt.Estimator):
    """Runs a lexical and a dense pipeline and ranks by a convex combination of their normalized scores.

    .. cite:: bruch2023fusion
        :citation: Bruch et al. An analysis of fusion functions for hybrid retrieval. ACM TOIS 42(1), 2023.
        :link: https://doi.org/10.1145/3596512

    ::

        hybrid = ptg.Hybrid(bm25, index.retriever())

    The score is ``(1 - alpha) * lexical + alpha * dense``. Scores of a pipeline are standard deviations above its last
    result for the query; a result that only the other pipeline retrieved has 0. Where a pipeline retrieves nothing for
    a query, the ranking is that of the other one. A Hybrid may be one of the pipelines of another Hybrid.

    PyTerrier's ``fit`` of a pipeline trains a Hybrid in it and does not run it. To train a model behind a Hybrid, use
    ``Frozen``, or ``model.fit(hybrid(topics), qrels)``.

    Args:
        lexical: The first pipeline: ``qid, query`` to ``qid, docno, score``.
        dense: The second pipeline.
        alpha: Share of the dense pipeline, from 0 to 1. ``experiments/results/collections_left_out.md`` reports how
            the default was chosen.
        depth: Results of each pipeline that are combined. They do not depend on ``num_results``.
        num_results: Results per query, after the combination.
        training: The options of :meth:`fit`.
        verbose: Whether :meth:`fit` shows progress.

    Columns in: ``qid, query``. Columns out: ``qid, query, docno, score, rank``, and columns such as ``text`` that a
    pipeline adds. Where topics have a column of the same name, the documents' column replaces it.

    Raises:
        ValueError: If alpha is out of range, or a score is missing.
    """

    schematic = {
        "label": "Hybrid",
        "inner_pipelines_mode": "combine",
        "help_url": "https://pypi.org/project/pyterrier-graph/",
    }

    def __init__(
        self,
        lexical: pt.Transformer,
        dense: pt.Transformer,
        *,
        alpha: float = ALPHA,
        depth: int = DEPTH,
        num_results: int = 1000,
        training: Tuning | None = None,
        verbose: bool = True,
    ) -> None:
        self.lexical = lexical
        self.dense = dense
        self.alpha = alpha
        self.depth = depth
        self.num_results = num_results
        self.training = training or Tuning()
        self.verbose = verbose
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha must be from 0 to 1, got {alpha!r}")

    def __repr__(self) -> str:
        options = f"alpha={self.alpha}, depth={self.depth}, num_results={self.num_results}"
        return f"Hybrid({self.lexical}, {self.dense}, {options})"

    @property
    def pipelines(self) -> tuple[pt.Transformer, ...]:
        """Both pipelines."""
        return (self.lexical, self.dense)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Finds documents."""
        run = self.combine(inp)
        run = ranked(run, combined(run, self.alpha))
        columns = [name for name in run if name not in SIDES]
        is_best = run["rank"] < self.num_results
        return run.loc[is_best, columns].reset_index(drop=True)

    def combine(self, topics: pd.DataFrame) -> pd.DataFrame:
        """Each result of the pipelines once, with its normalized scores in columns ``lexical`` and ``dense``.

        The score is NaN where the pipeline has not retrieved the result.
        """
        topics = check_frame(topics, self, texts=("query",))
        pt.validate.query_frame(topics, extra_columns=["query"], context=self)
        topics = distinct_queries(topics)
        runs = [self._run(pipeline, topics) for pipeline in self.pipelines]
        _check_same_units(runs)
        rows = pd.concat(runs, ignore_index=True)
        rows["qid"] = rows["qid"].astype("str")
        result = _result_numbers(rows)  # (rows,)
        _, first_row = np.unique(result, return_index=True)  # (results,)
        lengths = [len(run) for run in runs]
        side = np.repeat([0, 1], lengths)  # (rows,)
        scores = np.full((len(SIDES), len(first_row)), np.nan)
        scores[side, result] = rows["score"]
        # columns of results replace columns of topics that have the same name
        qids = rows["qid"].array.take(first_row)
        docnos = rows["docno"].array.take(first_row)
        columns: dict[Any, Any] = {"qid": qids, "docno": docnos}
        columns.update(_document_columns(rows, result, topics))
        columns.update(zip(SIDES, scores, strict=True))
        topic = pd.Index(topics["qid"]).get_indexer(qids)  # (results,)
        for name in topics:
            if name not in columns and name not in REPLACED:
                columns[name] = topics[name].array.take(topic, allow_fill=True)
        return pd.DataFrame(columns)

    def _run(self, pipeline: pt.Transformer, topics: pd.DataFrame) -> pd.DataFrame:
        """The best results of a pipeline, with normalized scores."""
        run = pipeline.transform(topics)
        run = check_frame(run, pipeline, numbers=("score",))
        pt.validate.result_frame(run, extra_columns=["score"], context=self)
        if len(run) > self.depth:
            run = ranked(run, run["score"].to_numpy(float))
            run = run[run["rank"] < self.depth]
        scores = run["score"].to_numpy(float)
        normalized = normalized_scores(scores, query_numbers(run))
        return run.assign(score=normalized)

    def fit(
        self,
        topics_or_res_tr: pd.DataFrame,
        qrels_tr: pd.DataFrame,
        topics_or_res_va: pd.DataFrame | None = None,
        qrels_va: pd.DataFrame | None = None,
    ) -> Self:
        """Chooses alpha on the validation queries, or on the training queries if there are no others.

        Uses the one-standard-error rule (Breiman et al. 1984): of all values whose measure is within one standard error
        of the best, the value closest to the present alpha is taken, so small query sets are safe. Topics have ``qid,
        query``; judgments have ``qid, docno, label``.

        Raises:
            ValueError: If none of the queries is judged.
        """
        topics, qrels = tuning_set(topics_or_res_tr, qrels_tr, topics_or_res_va, qrels_va)
        topics = JudgedRun(topics, qrels, self).rows
        run = self.combine(topics)
        judged = JudgedRun(run, qrels, self)
        validation = Validation(judged, self.training.measure)

        def measure(numbers: Numbers) -> np.ndarray:
            scores = combined(run, numbers["alpha"])
            return validation.per_query(scores)

        start = {"alpha": self.alpha}
        grid = [{"alpha": alpha} for alpha in ALPHAS]
        best = coordinate_search(start, grid, measure, desc="Hybrid.fit", verbose=self.verbose)
        self.alpha = best["alpha"]
        return self


def distinct_queries(topics: pd.DataFrame) -> pd.DataFrame:
    """Topics with string qids, one row per qid."""
    qids = topics["qid"].astype("str")
    return topics.assign(qid=qids).drop_duplicates("qid")


def _result_numbers(rows: pd.DataFrame) -> np.ndarray:
    """Numbers the results of two pipelines: rows with the same query and document are one result; shape (rows,)."""
    docno, _ = rows["docno"].factorize()
    # a query and a document as one number
    keys = query_numbers(rows) * len(rows) + docno
    numbers, _ = pd.factorize(keys)
    return numbers


def _document_columns(
    rows: pd.DataFrame, result: np.ndarray, topics: pd.DataFrame
) -> dict[Any, pd.Series]:
    """Columns such as ``text`` that pipelines have added to their results: the first value for each result."""
    queries = [name for name in topics if name.startswith("query")]
    known = {"qid", "docno", *REPLACED, *queries}
    names = [name for name in rows if name not in known]
    if not names:
        return {}
    documents = rows[names].groupby(result).first()
    return dict(documents)


def combined(run: pd.DataFrame, alpha: float) -> np.ndarray:
    """The scores of a run that :meth:`Hybrid.combine` has returned, shape (results,)."""
    # ten times as fast as run[SIDES]
    normalized = np.stack([run[side] for side in SIDES], axis=1)  # (results, 2)
    scores = weighted(normalized, query_numbers(run), alpha)  # (results, 2)
    return scores.sum(axis=1)


def _check_same_units(runs: list[pd.DataFrame]) -> None:
    """Raises ValueError if one pipeline ranks passages, and the other one documents."""
    docnos = [run["docno"].iloc[0] for run in runs if len(run)]
    passage_numbers = [split_passage_id(docno)[1] for docno in docnos]
    ranks_documents = {number is None for number in passage_numbers}
    if len(ranks_documents) > 1:
        examples = f"{docnos[0]!r} and {docnos[1]!r}"
        advice = "put graph.passages() behind one or pt.text.max_passage() behind the other"
        raise ValueError(
            f"one pipeline ranks passages, and another documents (such as {examples}): {advice}"
        )
