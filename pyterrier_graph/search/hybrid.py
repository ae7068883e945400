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

from pyterrier_graph.checks import (
    WithSignature,
    check_frame,
    check_training,
)
from pyterrier_graph.documents.document import split_passage_id
from pyterrier_graph.html import pipeline_name
from pyterrier_graph.training.grid_search import Numbers, Tuning, coordinate_search
from pyterrier_graph.training.validation import JudgedRun, Validation, tuning_set

ALPHA = 0.6
ALPHAS = tuple(round(0.05 * step, 2) for step in range(21))
DEPTH = 1000
SIDES = ["lexical", "dense"]
RESULT_COLUMNS = {"qid", "query", "docno", "docid", "score", "rank"}


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


class Hybrid(WithSignature, pt.Estimator):
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
        ValueError: If alpha is out of range, or a score is missing or infinite.
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
        self.lexical, self.dense = lexical, dense
        self.alpha, self.depth, self.num_results = alpha, depth, num_results
        self._check()
        self.training: Tuning = check_training(training, Tuning)
        self.verbose = verbose

    def _check(self) -> None:
        """Raises ValueError if a number, which may be set later, is out of range."""
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be from 0 to 1, got {self.alpha!r}")
        for name in ("depth", "num_results"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)!r}")

    def __repr__(self) -> str:
        options = f"alpha={self.alpha}, depth={self.depth}, num_results={self.num_results}"
        return f"Hybrid({self.lexical}, {self.dense}, {options})"

    @property
    def pipelines(self) -> tuple[pt.Transformer, ...]:
        """Both pipelines."""
        return (self.lexical, self.dense)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Finds documents."""
        run = self.contributions(inp).drop(columns=SIDES)
        return run[run["rank"] < self.num_results].reset_index(drop=True)

    def contributions(self, topics: pd.DataFrame) -> pd.DataFrame:
        """All results of both pipelines, with columns ``lexical`` and ``dense`` that add up to the score."""
        run, normalized = self.combine(topics)
        parts = weighted(normalized, self.alpha)
        run = run.assign(lexical=parts[:, 0], dense=parts[:, 1], score=parts.sum(axis=1))
        return ranked(run)

    def fuse_rank_cutoff(self, k: int) -> Self:
        """Returns no more documents than are used; the combination stays the same."""
        other = object.__new__(type(self))
        vars(other).update(vars(self), num_results=min(k, self.num_results))
        return other

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
        topics = JudgedRun(check_frame(topics, self), qrels, self).rows
        run, normalized = self.combine(topics)
        candidates = JudgedRun(run[["qid", "docno"]], qrels, self)
        validation = Validation(candidates, self.training.measure)

        def measure(numbers: Numbers) -> np.ndarray:
            return validation.per_query(weighted(normalized, numbers["alpha"]).sum(axis=1))

        grid = [{"alpha": alpha} for alpha in ALPHAS]
        start = {"alpha": self.alpha}
        best = coordinate_search(start, grid, measure, desc="Hybrid.fit", verbose=self.verbose)
        self.alpha = best["alpha"]
        return self

    def explain(self, query: str, docno: str) -> pd.DataFrame:
        """Explains the score of a result by the pipelines that retrieved it.

        Args:
            query: The query.
            docno: A passage or document, as the pipelines return it.

        Returns:
            A row per pipeline: ``relation`` (the pipeline's name, numbered where both have the same name), ``source``
            (the docno), ``text`` (empty where the pipelines add none), ``weight`` (the pipeline's share for this
            query), ``score`` (its part of the score), ``normalized`` (its normalized score).

        Raises:
            KeyError: If the docno is not among the results.
        """
        run, normalized = self.combine(pd.DataFrame({"qid": ["1"], "query": [query]}))
        rows = np.flatnonzero(run["docno"] == docno)
        if not len(rows):
            results = f"the {len(run)} results of the pipelines for {query!r}"
            raise KeyError(f"{docno!r} is not among {results}")
        row, names = rows[0], [*map(pipeline_name, self.pipelines)]
        if names[0] == names[1]:
            names = [f"{name} ({number})" for number, name in enumerate(names, start=1)]
        weights = _shares(normalized[[row]], self.alpha)[0]
        return pd.DataFrame(
            {
                "relation": names,
                "source": docno,
                "text": run["text"][row] if "text" in run else "",
                "weight": weights,
                "score": np.nan_to_num(normalized[row]) * weights,
                "normalized": normalized[row],
            }
        )

    def combine(self, topics: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
        """Each result once, and the normalized scores of the pipelines, shape (results, 2).

        A score is NaN where the pipeline retrieved nothing for the query.
        """
        self._check()
        topics = check_frame(topics, self, texts=("query",))
        pt.validate.query_frame(topics, extra_columns=["query"], context=self)
        topics = topics.assign(qid=topics["qid"].astype("str")).drop_duplicates("qid")
        runs = [self._run(pipeline, topics) for pipeline in self.pipelines]
        _check_same_units(runs)
        both = pd.concat(runs, ignore_index=True)
        side = np.repeat([0, 1], [*map(len, runs)])
        query = pd.Index(topics["qid"]).get_indexer(both["qid"])
        document, docnos = both["docno"].factorize()
        pair = query * len(docnos) + document
        result, pairs = pd.factorize(pair)  # the number of each row's result
        columns = both.drop(columns=["score", "qid"])
        first = (
            columns.groupby(result).first()  # a column may come from one pipeline only
            if columns.isna().any(axis=None)
            else columns.iloc[np.unique(result, return_index=True)[1]]
        )
        added = topics.columns.difference([*first.columns, "docid", "score", "rank"], sort=False)
        about = topics[added].iloc[pairs // max(1, len(docnos))].reset_index(drop=True)
        run = pd.concat([about, first.reset_index(drop=True)], axis=1)
        score = both["score"].to_numpy(float)
        return run, _normalized(len(topics), query, side, result, score, len(pairs))

    def _run(self, pipeline: pt.Transformer, topics: pd.DataFrame) -> pd.DataFrame:
        """The best results of a pipeline, ``docno`` first, without columns that it copies from the topics."""
        run = check_frame(pipeline.transform(topics), pipeline, numbers=("score",))
        pt.validate.result_frame(run, extra_columns=["score"], context=self)
        check_scores(run, pipeline)
        run = run.assign(qid=run["qid"].astype("str")).drop_duplicates(["qid", "docno"])
        if len(run) > self.depth:
            run = ranked(run)
            run = run[run["rank"] < self.depth]
        row = pd.Index(topics["qid"]).get_indexer(run["qid"])
        if (row < 0).any():
            qid = run["qid"][row < 0].iloc[0]
            raise ValueError(f"{pipeline} has results of query {qid!r}, which is not asked")
        names = [name for name in run.columns if name not in RESULT_COLUMNS]
        names = [name for name in names if not _is_copied(run[name], name, topics, row)]
        return run[["docno", *names, "score", "qid"]]


def check_scores(run: pd.DataFrame, context: Any) -> None:
    """Raises ValueError if a score is infinite; ``check_frame`` finds missing scores."""
    if np.isinf(scores := run["score"].to_numpy(float)).any():
        row = run.iloc[int(np.isinf(scores).argmax())]
        raise ValueError(
            f"{context}: query {row['qid']!r}, {row['docno']!r} has an infinite score: {row['score']}"
        )


def ranked(run: pd.DataFrame) -> pd.DataFrame:
    """A run sorted by score within each query, with new ranks; equal scores and queries keep their order."""
    query = run["qid"].factorize()[0]
    order = np.lexsort((-run["score"].to_numpy(float), query))
    query = query[order]
    rank = np.arange(len(run)) - np.searchsorted(query, query)
    return run.iloc[order].assign(rank=rank).reset_index(drop=True)


def weighted(normalized: np.ndarray, alpha: float) -> np.ndarray:
    """Normalized scores times the shares of their pipelines, shape (results, 2)."""
    return np.nan_to_num(normalized) * _shares(normalized, alpha)


def _shares(normalized: np.ndarray, alpha: float) -> np.ndarray:
    """The weight of each pipeline in each score; a pipeline without results leaves its weight to the other."""
    retrieved = ~np.isnan(normalized)
    shares = retrieved * np.array([1 - alpha, alpha])
    shares = np.where(shares.any(1, keepdims=True), shares, retrieved)
    return shares / shares.sum(1, keepdims=True)


def _normalized(
    queries: int,
    query: np.ndarray,
    side: np.ndarray,
    result: np.ndarray,
    score: np.ndarray,
    results: int,
) -> np.ndarray:
    """Z-scores above the lowest score of each ranking, shape (results, 2).

    ``query``, ``side``, ``result`` and ``score`` have a value per retrieved row. A ranking is a query and a side. All
    scores of a ranking whose scores are equal become 1.
    """
    ranking = query * 2 + side
    low = np.full(queries * 2, np.inf)
    np.minimum.at(low, ranking, score)
    above = score - low[ranking]
    count = np.bincount(ranking, minlength=len(low))
    mean, squares = (
        np.bincount(ranking, values, len(low)) / np.maximum(count, 1)
        for values in (above, above**2)
    )
    spread = np.sqrt(np.maximum(squares - mean**2, 0))[ranking]
    retrieved = np.zeros(results, dtype=np.int64)
    retrieved[result] = query  # of each result
    normalized = np.where(count.reshape(-1, 2)[retrieved], 0.0, np.nan)
    normalized[result, side] = np.where(spread == 0, 1, above / np.where(spread == 0, 1, spread))
    return normalized


def _check_same_units(runs: list[pd.DataFrame]) -> None:
    """Raises ValueError if one pipeline ranks passages, and the other one documents."""
    examples = {
        split_passage_id(run["docno"].iloc[0])[1] is not None: run["docno"].iloc[0]
        for run in runs
        if len(run)
    }
    if len(examples) > 1:
        advice = "put graph.passages() behind one or pt.text.max_passage() behind the other"
        raise ValueError(
            f"one pipeline ranks passages ({examples[True]!r}) and another documents "
            f"({examples[False]!r}): {advice}"
        )


def _is_copied(column: pd.Series, name: str, topics: pd.DataFrame, row: np.ndarray) -> bool:
    """Whether a column of results only repeats the column of the topics."""
    if name not in topics.columns:
        return False
    values = topics[name].iloc[row].to_numpy(object)
    return all(
        one is other or np.array_equal(one, other)
        for one, other in zip(column, values, strict=True)
    )
