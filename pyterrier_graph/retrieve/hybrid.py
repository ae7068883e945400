"""Hybrid: several pipelines run, and their scores are normalized per query and added up."""

from collections.abc import Sequence
from typing import Self, get_args

import numpy as np
import pandas as pd
import pyterrier as pt
import pyterrier_alpha as pta

from pyterrier_graph.checks import WithSignature, check_choice, check_count, check_frame, check_number, check_type
from pyterrier_graph.documents import split_passage_id
from pyterrier_graph.models.score_normalization import Normalization, check_finite_scores, normalized
from pyterrier_graph.training.grid_search import coordinate_search
from pyterrier_graph.training.validation import Validation, judged, tuning_set

ALPHAS = tuple(round(0.05 * step, 2) for step in range(21))


class Hybrid(WithSignature, pt.Estimator):
    """Runs a lexical and a dense pipeline and ranks by a convex combination of their normalized scores.

    .. cite:: bruch2023fusion
        :citation: Bruch et al. An analysis of fusion functions for hybrid retrieval. ACM TOIS 42(1), 2023.
        :link: https://doi.org/10.1145/3596512

    ::

        hybrid = ptg.Hybrid(bm25, index.retriever())

    ``(1 - alpha) * lexical + alpha * dense``. A result that one pipeline did not retrieve has that pipeline's lowest
    normalized score for the query (0 by min-max and by rank). Where a pipeline retrieved nothing for a query, the
    ranking is that of the others.

    Args:
        lexical: The first pipeline: ``qid, query`` to ``qid, docno, score``.
        dense: The second pipeline.
        others: Further pipelines.
        alpha: The share of the dense pipeline, from 0 to 1; or one weight per pipeline, in their order.
        normalization: How scores are made comparable, per query: ``'min-max'`` to 0 to 1 (Bruch et al., Sect. 3);
            ``'z-score'`` by mean and standard deviation; ``'rank'`` to ``1 / (60 + rank)``, reciprocal rank fusion
            (Cormack et al., SIGIR 2009).
        num_results: Results kept per query.
        measure: The validation measure of :meth:`fit`.
        verbose: Whether :meth:`fit` shows progress.

    Columns in: ``qid, query``. Columns out: ``qid, query, docno, score, rank``, and columns such as ``text`` that a
    pipeline adds.

    Raises:
        TypeError: If a pipeline is no transformer.
        ValueError: If alpha is out of range, or the normalization is unknown.
    """

    schematic = {"label": "Hybrid", "inner_pipelines_mode": "combine"}

    def __init__(
        self,
        lexical: pt.Transformer,
        dense: pt.Transformer,
        *others: pt.Transformer,
        alpha: float | Sequence[float] = 0.5,
        normalization: Normalization = "min-max",
        num_results: int = 1000,
        measure: str = "nDCG@10",
        verbose: bool = True,
    ) -> None:
        for name, pipeline in [("lexical", lexical), ("dense", dense), *(("others", other) for other in others)]:
            check_type(name, pipeline, pt.Transformer, "a pipeline that retrieves, such as bm25 or index.retriever()")
        check_choice("normalization", normalization, get_args(Normalization))
        check_count("num_results", num_results)
        self.lexical, self.dense, self.others = lexical, dense, others
        self.alpha = alpha
        self.normalization: Normalization = normalization
        self.num_results, self.measure, self.verbose = num_results, measure, verbose
        _ = self.weights

    __repr__ = pta.transformer_repr

    @property
    def pipelines(self) -> tuple[pt.Transformer, ...]:
        """All pipelines."""
        return (self.lexical, self.dense, *self.others)

    @property
    def weights(self) -> np.ndarray:
        """The share of each pipeline; they add up to 1."""
        alpha = self.alpha
        if not isinstance(alpha, Sequence | np.ndarray):
            check_number("alpha", alpha, 0, 1)
            alpha = (1 - alpha, alpha)
        if len(alpha) != len(self.pipelines):
            raise ValueError(f"alpha needs one weight for each of {len(self.pipelines)} pipelines, got {self.alpha!r}")
        for weight in alpha:
            check_number("a weight in alpha", weight, 0)
        weights = np.asarray(alpha, dtype=float)
        if not weights.sum():
            raise ValueError("alpha must have a weight above 0")
        return weights / weights.sum()

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Runs all pipelines and combines their rankings."""
        inp = check_frame(inp, self)
        pt.validate.query_frame(inp, extra_columns=["query"], context=self)
        merged, parts = self._parts(inp)
        ranking = pt.model.add_ranks(merged.assign(score=_weighted(parts, self.weights).sum(1)))
        ranking = ranking[ranking["rank"] < self.num_results]
        return ranking.sort_values(["qid", "rank"], kind="stable").reset_index(drop=True)

    def explain(self, query: str) -> pd.DataFrame:
        """Says how much each pipeline adds to the score of each result of a query.

        Returns:
            A row per result: ``docno, score, rank``, and a column ``part_1``, ``part_2``, ... per pipeline; the parts
            of a row add up to its score.
        """
        merged, parts = self._parts(pd.DataFrame({"qid": ["1"], "query": [query]}))
        weighted = _weighted(parts, self.weights)
        table = pt.model.add_ranks(merged[["qid", "docno"]].assign(score=weighted.sum(1)))
        for number, part in enumerate(weighted.T, 1):
            table[f"part_{number}"] = part
        return table.drop(columns="qid").sort_values("rank").reset_index(drop=True)

    def fit(
        self,
        topics_or_res_tr: pd.DataFrame,
        qrels_tr: pd.DataFrame,
        topics_or_res_va: pd.DataFrame | None = None,
        qrels_va: pd.DataFrame | None = None,
    ) -> Self:
        """Chooses alpha of two pipelines, on the validation queries where there are any, else on the training queries.

        Of all values whose measure is within one standard error of the best (Breiman et al. 1984), the one closest to
        the present alpha is taken: few queries move alpha only where they agree. Topics have ``qid, query``; judgments
        have ``qid, docno, label``.

        Raises:
            ValueError: If there are more than two pipelines, or none of the queries is judged.
        """
        if self.others:
            raise ValueError("fit chooses the alpha of two pipelines; combine further ones in a Hybrid of their own")
        topics, qrels = tuning_set(topics_or_res_tr, qrels_tr, topics_or_res_va, qrels_va)
        topics = check_frame(topics, self)
        pt.validate.query_frame(topics, extra_columns=["query"], context=self)
        run, qrels = judged(topics, qrels, self)
        merged, parts = self._parts(run)
        validation = Validation(merged, qrels, self.measure, self)
        present = float(self.weights[1])
        measure = lambda numbers: validation.per_query(  # noqa: E731
            _weighted(parts, np.array([1 - numbers["alpha"], numbers["alpha"]])).sum(1)
        )
        grid = [{"alpha": alpha} for alpha in ALPHAS]
        self.alpha = coordinate_search({"alpha": present}, grid, measure, desc="Hybrid.fit", verbose=self.verbose)[
            "alpha"
        ]
        return self

    def _parts(self, topics: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
        """The results of all pipelines, each once, and their normalized scores, shape (results, pipelines).

        A score is NaN where the pipeline retrieved nothing for the query.
        """
        runs = []
        for pipeline in self.pipelines:
            run = pipeline.transform(topics)
            run = check_frame(run, pipeline, numbers=("score",))
            pt.validate.result_frame(run, extra_columns=["score"], context=self)
            run = run.astype({"qid": str, "docno": str}).drop_duplicates(["qid", "docno"])
            check_finite_scores(run, pipeline)
            runs.append(run.drop(columns=["rank", "docid"], errors="ignore"))
        kinds = {
            split_passage_id(run["docno"].iloc[0])[1] is not None: run["docno"].iloc[0] for run in runs if len(run)
        }
        if len(kinds) > 1:
            raise ValueError(
                f"one pipeline ranks passages ({kinds[True]!r}) and another documents ({kinds[False]!r}): put "
                "graph.passages() behind the one or pt.text.max_passage() behind the other"
            )
        merged = pd.concat([run.drop(columns="score") for run in runs], ignore_index=True)
        merged = merged.groupby(["qid", "docno"], sort=False, as_index=False).first()
        query = topics.astype({"qid": str}).drop_duplicates("qid").set_index("qid")["query"]
        merged["query"] = merged["qid"].map(query)
        pairs = pd.MultiIndex.from_frame(merged[["qid", "docno"]])
        parts = np.empty((len(merged), len(runs)))
        for number, run in enumerate(runs):
            run = run.assign(score=normalized(run["score"], run["qid"], self.normalization))
            # the score of what a pipeline did not retrieve; NaN for the queries that it retrieved nothing for
            missing = run.groupby("qid")["score"].min() * (self.normalization == "z-score")
            found = run.set_index(["qid", "docno"])["score"].reindex(pairs).to_numpy()
            parts[:, number] = np.where(np.isnan(found), merged["qid"].map(missing).to_numpy(dtype=float), found)
        return merged, parts


def _weighted(parts: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Scores times their pipelines' weights; a pipeline that retrieved nothing leaves its weight to the others."""
    found = ~np.isnan(parts)
    shares = found * weights
    shares = np.where(shares.any(1, keepdims=True), shares, found)  # if only pipelines of weight 0 retrieved something
    return np.nan_to_num(parts) * (shares / shares.sum(1, keepdims=True))
