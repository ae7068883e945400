r"""Hybrid retrieval: a convex combination of the normalized scores of two pipelines.

.. math::
    s(q, d) = (1 - \alpha) \, n_{lexical}(q, d) + \alpha \, n_{dense}(q, d)

:math:`n` are the z-scores of a pipeline's results for a query, less the lowest of them, so that a document that the
pipeline did not retrieve counts as the last one that it did (Bruch et al., TOIS 2023, Sect. 3 and 4):

.. math::
    n(q, d) = \frac{s(q, d) - \min_{d'} s(q, d')}{\operatorname{std}_{d'} s(q, d')}

All arrays have the shape (results, 2).
"""

from typing import Any, Self

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.checks import (
    Found,
    Retrieves,
    check_count,
    check_frame,
    check_number,
    check_training,
    check_type,
    positions,
)
from pyterrier_graph.documents.document import split_passage_id
from pyterrier_graph.html import pipeline_name
from pyterrier_graph.training.grid_search import Numbers, Tuning, coordinate_search
from pyterrier_graph.training.validation import JudgedRun, Validation, tuning_set

ALPHA = 0.6
ALPHAS = tuple(round(0.05 * step, 2) for step in range(21))


class Fusion(Retrieves, pt.Transformer):
    """The ranking of a :class:`Hybrid` whose share does not change when a pipeline that contains it is trained.

    PyTerrier trains a stage of a pipeline or runs it, but not both, so what precedes a reranker must not be trained.
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
        num_results: int = 1000,
        training: Tuning | None = None,
        verbose: bool = True,
    ) -> None:
        for name, pipeline in (("lexical", lexical), ("dense", dense)):
            check_type(
                name,
                pipeline,
                pt.Transformer,
                "a pipeline that retrieves, such as bm25 or index.retriever()",
            )
        check_number("alpha", alpha, 0, 1)
        check_count("num_results", num_results)
        self.lexical, self.dense = lexical, dense
        self.alpha = alpha
        self.training: Tuning = check_training(training, Tuning)
        self.num_results, self.verbose = num_results, verbose

    def __repr__(self) -> str:
        return f"Hybrid({self.lexical}, {self.dense}, alpha={self.alpha}, num_results={self.num_results})"

    @property
    def pipelines(self) -> tuple[pt.Transformer, ...]:
        """Both pipelines."""
        return (self.lexical, self.dense)

    def explain(self, query: str, docno: str) -> pd.DataFrame:
        """Explains the score of a result by the pipelines that it comes from.

        Args:
            query: The query.
            docno: A result: a passage or a document, as the pipelines return them.

        Returns:
            A row per pipeline: ``relation`` (the pipeline's name, with its number where two have the same name),
            ``source`` (the docno), ``text`` (empty where the pipelines add none), ``weight`` (the pipeline's share for
            this query), ``score`` (the part of the score), ``normalized`` (the pipeline's own score).

        Raises:
            KeyError: If the docno is not among the results.
        """
        merged, parts = self._parts(pd.DataFrame({"qid": ["1"], "query": [query]}))
        found = np.flatnonzero(merged.docno == docno)
        if not len(found):
            raise KeyError(
                f"{docno!r} is not among the {len(parts)} results of the pipelines for {query!r}"
            )
        row, names = found[0], [*map(pipeline_name, self.pipelines)]
        labels = [
            f"{name} ({number})" if names.count(name) > 1 else name
            for number, name in enumerate(names, 1)
        ]
        text = merged.others["text"][row] if "text" in merged.others else ""
        frame = pd.DataFrame({"relation": labels, "source": docno, "text": text})
        share = _shares(parts[[row]], self.alpha)[0]
        return frame.assign(
            weight=share, score=np.nan_to_num(parts[row]) * share, normalized=parts[row]
        )

    def _found(self, topics: pd.DataFrame) -> Found:
        return self._ranked(topics)[0]

    def _ranked(self, topics: pd.DataFrame) -> tuple[Found, np.ndarray]:
        """The ranking, and the part of each pipeline in each score, shape (results, 2)."""
        found, parts = self._parts(topics)
        shares = weighted(parts, self.alpha)
        found = found._replace(score=shares.sum(1))
        order = np.lexsort((-found.score, found.row))
        order = order[positions(found.row[order]) < self.num_results]
        return found.at(order), shares[order]

    def _run(self, pipeline: pt.Transformer, topics: pd.DataFrame) -> Found:
        """The results of a pipeline; its other columns are those that the topics do not have."""
        if isinstance(pipeline, Retrieves):
            return pipeline._with_texts(topics)
        run = check_frame(pipeline.transform(topics), pipeline, numbers=("score",))
        pt.validate.result_frame(run, extra_columns=["score"], context=self)
        row = pd.Index([*map(str, topics["qid"].tolist())]).get_indexer(run["qid"].astype(str))
        if (row < 0).any():
            raise ValueError(
                f"{pipeline} has results of query {run['qid'][row < 0].iloc[0]!r}, which is not asked"
            )
        known = {"qid", "docno", "docid", "score", "rank", *topics.columns}
        others = {str(name): column.array for name, column in run.items() if name not in known}
        return Found(row, run["docno"].to_numpy(object), run["score"].to_numpy(float), others)

    def _parts(self, topics: pd.DataFrame) -> tuple[Found, np.ndarray]:
        """The results of both pipelines, each once, and their normalized scores, shape (results, 2).

        A score is NaN where the pipeline retrieved nothing for the query.
        """
        qids = [*map(str, topics["qid"].tolist())]
        asked = np.sort(np.unique(qids, return_index=True)[1])  # the first row of each query
        topics = topics if len(asked) == len(topics) else topics.iloc[asked]
        runs = [self._run(pipeline, topics) for pipeline in self.pipelines]
        kinds = {
            split_passage_id(run.docno[0])[1] is not None: run.docno[0]
            for run in runs
            if len(run.docno)
        }
        if len(kinds) > 1:
            raise ValueError(
                f"one pipeline ranks passages ({kinds[True]!r}) and another documents ({kinds[False]!r}): put "
                "graph.passages() behind the one or pt.text.max_passage() behind the other"
            )
        query, docno, score = map(
            np.concatenate, zip(*((run.row, run.docno, run.score) for run in runs), strict=True)
        )
        docno, docnos = pd.factorize(docno)
        pair = pd.factorize(query * len(docnos) + docno)[0]  # of each row, numbered as they appear
        first = np.unique(pair, return_index=True)[1]
        others: dict[str, Any] = {}
        if any(run.others for run in runs):
            added = pd.concat(
                [pd.DataFrame(run.others, index=range(len(run.row))) for run in runs],
                ignore_index=True,
            )
            # a column that only one pipeline adds is taken from there
            added = (
                added.groupby(pair).first() if added.isna().any(axis=None) else added.iloc[first]
            )
            others = {str(name): column.array for name, column in added.items()}
        found = Found(asked[query[first]], docnos[docno[first]], np.zeros(len(first)), others)
        side = np.repeat(np.arange(len(runs)), [len(run.row) for run in runs])
        once = np.sort(
            np.unique(pair * len(runs) + side, return_index=True)[1]
        )  # without those that come twice
        pair, side, score, group = (
            pair[once],
            side[once],
            score[once],
            (query * len(runs) + side)[once],
        )
        low = np.full(len(asked) * len(runs), np.inf)
        np.minimum.at(low, group, score)
        above = score - low[group]
        count, total, squares = (
            np.bincount(group, values, len(low)) for values in (above >= 0, above, above**2)
        )
        spread = np.sqrt(
            np.maximum(squares[group] / count[group] - (total[group] / count[group]) ** 2, 0)
        )
        same = spread == 0  # then all have 1
        # a pipeline's score of what it did not retrieve is 0, for queries that it retrieved something for
        parts = np.where(count.reshape(-1, len(runs))[query[first]], 0, np.nan)
        parts[pair, side] = np.where(same, 1, above / np.where(same, 1, spread))
        return found, parts


class Hybrid(Fusion, pt.Estimator):
    """Runs a lexical and a dense pipeline and ranks by a convex combination of their normalized scores.

    .. cite:: bruch2023fusion
        :citation: Bruch et al. An analysis of fusion functions for hybrid retrieval. ACM TOIS 42(1), 2023.
        :link: https://doi.org/10.1145/3596512

    ::

        hybrid = ptg.Hybrid(bm25, index.retriever())

    ``(1 - alpha) * lexical + alpha * dense``, of scores in standard deviations above the last result of the pipeline
    for the query. A result that one pipeline did not retrieve has 0 there. Where a pipeline retrieved nothing for a
    query, the ranking is that of the other. A Hybrid may be one of the pipelines of another.

    PyTerrier's ``fit`` of a pipeline trains a Hybrid in it and does not run it. So a model behind a Hybrid is trained
    on the Hybrid's results: ``model.fit(hybrid(topics), qrels)``. The pipeline of ``GraphIndex.hybrid`` may precede a
    model that is trained in the same pipeline.

    Args:
        lexical: The first pipeline: ``qid, query`` to ``qid, docno, score``.
        dense: The second pipeline.
        alpha: The share of the dense pipeline, from 0 to 1. ``experiments/results/collections_left_out.md`` reports how
            the default was chosen.
        num_results: Results kept per query.
        training: The options of :meth:`fit`.
        verbose: Whether :meth:`fit` shows progress.

    Columns in: ``qid, query``. Columns out: ``qid, query, docno, score, rank``, and columns such as ``text`` that a
    pipeline adds.

    Raises:
        TypeError: If a pipeline is not a transformer.
        ValueError: If alpha is out of range.
    """

    def fit(
        self,
        topics_or_res_tr: pd.DataFrame,
        qrels_tr: pd.DataFrame,
        topics_or_res_va: pd.DataFrame | None = None,
        qrels_va: pd.DataFrame | None = None,
    ) -> Self:
        """Chooses alpha, on the validation queries where there are any, else on the training queries.

        Of all values whose measure is within one standard error of the best (Breiman et al. 1984), the one closest to
        the present alpha is taken: few queries move alpha only where they agree. Topics have ``qid, query``; judgments
        have ``qid, docno, label``.

        Raises:
            ValueError: If none of the queries is judged.
        """
        topics, qrels = tuning_set(topics_or_res_tr, qrels_tr, topics_or_res_va, qrels_va)
        topics = check_frame(topics, self)
        pt.validate.query_frame(topics, extra_columns=["query"], context=self)
        run = JudgedRun(topics, qrels, self).rows
        merged, parts = self._parts(run)
        candidates = JudgedRun(self._frame(run, merged)[["qid", "docno"]], qrels, self)
        validation = Validation(candidates, self.training.measure)

        def measure(numbers: Numbers) -> np.ndarray:
            return validation.per_query(weighted(parts, numbers["alpha"]).sum(1))

        grid = [{"alpha": alpha} for alpha in ALPHAS]
        found = coordinate_search(
            {"alpha": self.alpha}, grid, measure, desc="Hybrid.fit", verbose=self.verbose
        )
        self.alpha = found["alpha"]
        return self


def weighted(parts: np.ndarray, alpha: float) -> np.ndarray:
    """Scores times their pipelines' shares, shape (results, 2)."""
    return np.nan_to_num(parts) * _shares(parts, alpha)


def _shares(parts: np.ndarray, alpha: float) -> np.ndarray:
    """The weight of each pipeline in each score; one that retrieved nothing leaves its weight to the other."""
    found = ~np.isnan(parts)
    shares = found * np.array([1 - alpha, alpha])
    shares = np.where(
        shares.any(1, keepdims=True), shares, found
    )  # if only pipelines of weight 0 retrieved something
    return shares / shares.sum(1, keepdims=True)
