"""Systems of the comparison: a vector per passage, and a search with it; and the fit of three numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from experiments.ablation_parts import variants
from experiments.ablation_parts.corpus import Corpus, Division, Judge
from experiments.harness.collection import Queries

ALPHAS = tuple(round(0.1 * step, 1) for step in range(11))
DOCUMENTS = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
NEARS = (0.0, 0.1, 0.2, 0.3, 0.5)


@dataclass(frozen=True, kw_only=True)
class Vector:
    """How the vector of a passage is made.

    Attributes:
        text: What the encoder reads: ``'titled'``, ``'plain'``, or the ``'mixed'`` vector of both.
        title: The weight of titles.
        past: The weight of past queries.
        form: See :func:`~experiments.ablation_parts.variants.message`.
        shared: How titles above few passages count: ``'all'`` fully, ``'shared'`` not above a single passage,
            ``'smooth'`` as ``1 - 1 / passages``.
        isolated: What passages without a past query get in place of a message: ``'beta'``, or a factor of their vector.
        normalize: Whether the sum has length 1.
        per_query: Whether each query has weights of its own, with ``title`` and ``past`` as the largest ones.
    """

    text: str = "titled"
    title: float = 0.0
    past: float = 0.0
    form: str = "lacking"
    shared: str = "all"
    isolated: str | float = "beta"
    normalize: bool = False
    per_query: bool = False


@dataclass(frozen=True, kw_only=True)
class Search:
    """How passages are ranked.

    Attributes:
        alpha: The share of vectors; 1 is vectors alone, 0 is BM25.
        how: How scores become comparable.
        depth: Results of each part.
        document: The weight of the document's best score.
        near: The weight of the mean score of the passages before and after.
        spread: Whether evidence finds passages that no part has retrieved.
        fit: What the other numbers are fitted by: nothing, the one-standard-error rule, or the best mean.
        fitted: The numbers that are fitted.
    """

    alpha: float = 0.6
    how: str = "z-score"
    depth: int = 1000
    document: float = 0.0
    near: float = 0.0
    spread: bool = False
    fit: str = ""
    fitted: tuple[str, ...] = ("alpha", "document", "near")


class Bench:
    """The queries of a division, with or without past queries in the index.

    Args:
        corpus: The collection.
        division: The queries.
        number: Which division, for the names of files.
        past: Whether the past queries are in the index.
    """

    def __init__(self, corpus: Corpus, division: Division, number: int, *, past: bool) -> None:
        self.corpus, self.division, self.past = corpus, division, past and len(division.past.topics) > 0
        self._name = f"past-{number}" if self.past else f"titles-{number}"
        self._vectors = lru_cache(1)(self._vector)
        self._dense = lru_cache(4)(self._products)
        self._parts = lru_cache(4)(self._normalized)

    @cached_property
    def _edges(self):  # type: ignore[no-untyped-def]
        return self.corpus.answered(self.division.past)

    @cached_property
    def _past_vectors(self) -> np.ndarray:
        return self.corpus.encode_queries(self.division.past.topics["query"].tolist())

    def queries(self, split: str) -> Queries:
        """The test queries, or those that numbers are fitted on."""
        return self.division.test if split == "test" else self.division.dev

    @lru_cache(2)  # noqa: B019  # a bench lives as long as the program needs it
    def judge(self, split: str) -> Judge:
        """Measures rankings of queries."""
        return self.corpus.judge(self.queries(split))

    @lru_cache(2)  # noqa: B019
    def encoded(self, split: str) -> np.ndarray:
        """Vectors of queries, shape (k, d)."""
        return self.corpus.encode_queries(self.queries(split).topics["query"].tolist())

    @lru_cache(2)  # noqa: B019
    def lexical(self, split: str) -> np.ndarray:
        """Scores by BM25, shape (k, n)."""
        past = self.division.past if self.past else None
        return self.corpus.lexical(f"{self._name}-{split}", self.queries(split), past)

    def text(self, text: str) -> np.ndarray:
        """The vectors of passages without neighbors, shape (n, d)."""
        if text == "mixed":
            return self.corpus.plain / 3 + self.corpus.titled * (2 / 3)
        return self.corpus.titled if text == "titled" else self.corpus.plain

    @lru_cache(4)  # noqa: B019
    def mean(self, relation: str, shared: str = "all") -> np.ndarray:
        """The mean of the titles or past queries of each passage, shape (n, d)."""
        if relation == "past":
            return variants.mean_of(self._edges, self._past_vectors)
        edges = self.corpus.above
        return variants.mean_of(edges, self.corpus.title_vectors)

    def share(self, shared: str) -> np.ndarray:
        """The factor of the weight of titles for each passage, shape (n, 1): by how many are below its nearest title."""
        edges = self.corpus.above
        below = np.asarray(edges.sum(axis=0)).ravel()  # of each title
        found = edges.tocoo()
        fewest = np.full(len(self.corpus), np.inf)
        np.minimum.at(fewest, found.row, below[found.col])
        if shared == "all":
            return np.ones((len(self.corpus), 1), np.float32)
        largest = np.zeros(len(self.corpus))
        np.maximum.at(largest, found.row, below[found.col])
        factor = largest > 1 if shared == "shared" else 1 - 1 / np.maximum(largest, 1)
        return factor.astype(np.float32)[:, None]

    def _messages(self, vector: Vector) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The vectors of passages, and what each relation adds, shape (n, d)."""
        x = self.text(vector.text)
        added: dict[str, np.ndarray] = {}
        if vector.title and self.corpus.above.nnz:
            part = variants.message(x, self.mean("title"), vector.form)
            added["title"] = part * self.share(vector.shared)
        if vector.past and self.past:
            counts = np.asarray(self._edges.sum(axis=1)).ravel()
            part = variants.message(x, self.mean("past"), vector.form)
            beta = vector.isolated
            if isinstance(beta, str):
                beta = variants.isolated_share(counts) if beta == "beta" else 0.0
            added["past"] = np.where((counts > 0)[:, None], part, beta * x)
        return x, added

    def _vector(self, vector: Vector) -> np.ndarray:
        x, added = self._messages(vector)
        total = x + sum(getattr(vector, name) * part for name, part in added.items())
        if vector.isolated in ("scale", "scale half") and "past" in added:
            counts = np.asarray(self._edges.sum(axis=1)).ravel()
            beta = variants.isolated_share(counts)
            factor = 1 + beta * vector.past * (0.5 if vector.isolated == "scale half" else 1)
            total = np.where((counts > 0)[:, None], total, factor * total)
        if vector.isolated == "length" and "past" in added:
            before = total - vector.past * added["past"]
            length = np.linalg.norm(before, axis=1, keepdims=True)
            total = variants.unit(total) * length
        return variants.unit(total) if vector.normalize else total

    def _products(self, vector: Vector, split: str) -> np.ndarray:
        queries = self.encoded(split)
        if not vector.per_query:
            return queries @ self._vectors(vector).T
        x, added = self._messages(vector)
        scores = queries @ x.T
        for name, part in added.items():
            ramp = variants.RAMP if name == "title" else variants.QUERY_RAMP
            weight = variants.query_weights(queries, x, self.mean(name), ramp)
            scores += getattr(vector, name) * weight[:, None] * (queries @ part.T)
        return scores

    def _normalized(
        self, vector: Vector, split: str, how: str, depth: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The parts of the hybrid, and what is found at all, shape (k, n) each."""
        both = [variants.cut(part, depth) for part in (self.lexical(split), self._dense(vector, split))]
        found = ~(np.isnan(both[0]) & np.isnan(both[1]))
        return variants.normalized(both[0], how), variants.normalized(both[1], how), found

    def scores(self, vector: Vector, search: Search, split: str = "test") -> np.ndarray:
        """The scores of all passages, shape (k, n); -inf for what is not found."""
        lexical, dense, found = self._parts(vector, split, search.how, search.depth)
        total = (1 - search.alpha) * lexical + search.alpha * dense
        empty = ~lexical.any(1)  # BM25 finds nothing
        total[empty] = dense[empty]
        total[~found] = -np.inf
        if search.document or search.near:
            corpus = self.corpus
            total = variants.with_evidence(
                total,
                corpus.first,
                corpus.of_document,
                corpus.beside,
                search.document,
                search.near,
                spread=search.spread,
            )
        return total

    def measure(self, vector: Vector, search: Search | None) -> np.ndarray:
        """nDCG@10 of each test query, shape (k,); without a search, by vectors alone."""
        if search is None:
            return self.judge("test")(self._dense(vector, "test"))
        return self.judge("test")(self.scores(vector, self.fit(vector, search)))

    def fit(self, vector: Vector, search: Search) -> Search:
        """The search, with numbers that the other queries support."""
        if not search.fit or not len(self.division.dev.topics):
            return search
        judge = self.judge("dev")
        grid = {"alpha": ALPHAS, "document": DOCUMENTS, "near": NEARS}

        @lru_cache(1000)
        def value(trial: Search) -> np.ndarray:
            return judge(self.scores(vector, trial, "dev"))

        return coordinate_search(
            search, {name: grid[name] for name in search.fitted}, value, best=search.fit == "best"
        )


def coordinate_search(
    start: Search,
    grid: dict[str, tuple[float, ...]],
    value: Callable[[Search], np.ndarray],
    *,
    best: bool,
) -> Search:
    """Moves numbers one after the other, twice, to the best, or only as far as one standard error supports it."""
    present = start
    for name, numbers in [*grid.items()] * 2:
        trials = [present, *(replace(present, **{name: number}) for number in numbers)]
        top = max((value(trial) for trial in trials), key=np.mean)

        def as_good(trial: Search, top: np.ndarray = top) -> bool:
            worse = top - value(trial)
            error = worse.std(ddof=1) / len(worse) ** 0.5 if len(worse) > 1 else np.inf
            return bool(worse.mean() <= (1e-9 if best else error * (1 + 1e-9)))

        def distance(trial: Search, name: str = name) -> float:
            return abs(getattr(trial, name) - getattr(start, name))

        present = min(filter(as_good, trials), key=distance)
    return present
