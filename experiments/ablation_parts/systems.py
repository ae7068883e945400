"""Systems of the comparison: a vector per passage, and a search with it; and the fit of three numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from experiments.ablation_parts import variants
from experiments.ablation_parts.corpus import Corpus, Division, Judge
from experiments.harness.collection import Queries

ALPHAS = tuple(round(0.1 * step, 1) for step in range(11))
DOCUMENTS = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
NEARS = (0.0, 0.1, 0.2, 0.3, 0.5)
RELATIONS = ("title", "past", "order", "document")
FOLDS, ENOUGH = 5, 300  # of past queries; how many are left out at most
KEPT = 4  # arrays of a kind that a bench keeps


@dataclass(frozen=True, kw_only=True)
class Vector:
    """How the vector of a passage is made.

    Attributes:
        text: What the encoder reads: ``'titled'``, ``'plain'``, or the ``'mixed'`` vector of both.
        title: The weight of titles.
        past: The weight of past queries.
        order: The weight of the passages before and after.
        document: The weight of all passages of the document.
        form: See :func:`~experiments.ablation_parts.variants.message`.
        shared: How titles above few passages count: ``'all'`` fully, ``'shared'`` not above a single passage,
            ``'smooth'`` as ``1 - 1 / passages``.
        isolated: The factor of a passage without a past query is ``1 + past * isolated``; ``'beta'`` estimates it, and
            with ``'added'`` the passage's own vector is added with this weight in place of a message.
        normalize: Whether the sum has length 1.
        per_query: Whether each query has weights of its own, with ``title`` and ``past`` as the largest ones.
        windows: Windows of a long passage, of which the best counts.
    """

    text: str = "titled"
    title: float = 0.0
    past: float = 0.0
    order: float = 0.0
    document: float = 0.0
    form: str = "lacking"
    shared: str = "all"
    isolated: str | float = "beta"
    normalize: bool = False
    per_query: bool = False
    windows: int = 1


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
        feedback: The weight of the mean vector of the three best passages in a second search.
        careful: Whether alpha is lower where the vectors of passages are alike.
        fit: What the other numbers are fitted by: nothing, the one-standard-error rule (``'se'``), the best mean, or
            ``'left out'``, that rule on past queries, each left out of the index once.
        fitted: The numbers that are fitted.
    """

    alpha: float = 0.6
    how: str = "z-score"
    depth: int = 1000
    document: float = 0.0
    near: float = 0.0
    spread: bool = False
    feedback: float = 0.0
    careful: bool = False
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

    def __init__(
        self, corpus: Corpus, division: Division, number: int | str, *, past: bool
    ) -> None:
        self.corpus, self.division, self.number = corpus, division, number
        self.past = past and len(division.past.topics) > 0
        self._name = f"{'past' if self.past else 'titles'}-{number}"
        self.judge = lru_cache(2)(self._judge)
        self.encoded = lru_cache(2)(self._encoded)
        self.lexical = lru_cache(2)(self._lexical)
        self.mean = lru_cache(KEPT)(self._mean)
        self.vectors = lru_cache(1)(self._vectors)
        self.dense = lru_cache(KEPT)(self._dense)
        self.parts = lru_cache(KEPT)(self._parts)

    def queries(self, split: str) -> Queries:
        """The test queries, or those that numbers are fitted on."""
        return self.division.test if split == "test" else self.division.dev

    def _judge(self, split: str) -> Judge:
        return Judge(self.corpus, self.queries(split))

    def _encoded(self, split: str) -> np.ndarray:
        """Vectors of queries, shape (k, d)."""
        return self.corpus.encode_queries(self.queries(split).topics["query"].tolist())

    def _lexical(self, split: str) -> np.ndarray:
        """Scores by BM25, shape (k, n)."""
        past = self.division.past if self.past else None
        return self.corpus.lexical(f"{self._name}-{split}", self.queries(split), past)

    @cached_property
    def answered(self) -> csr_array:
        """The past queries of each passage."""
        return self.corpus.answered(self.division.past)

    @cached_property
    def counts(self) -> np.ndarray:
        """How many past queries each passage answers, shape (n,)."""
        return np.asarray(self.answered.sum(axis=1)).ravel()

    def _mean(self, relation: str) -> np.ndarray:
        """The mean of the sources of each passage, shape (n, d)."""
        corpus = self.corpus
        if relation == "past":
            past = corpus.encode_queries(self.division.past.topics["query"].tolist())
            return variants.mean_of(self.answered, past)
        if relation == "title":
            return variants.mean_of(corpus.above, corpus.title_vectors)
        if relation == "order":
            return np.asarray(corpus.beside @ corpus.read("titled"))
        total = np.add.reduceat(corpus.read("titled"), corpus.first, axis=0)
        return variants.unit(total)[corpus.of_document]

    def _share(self, shared: str) -> np.ndarray | float:
        """The factor of the weight of titles, shape (n, 1), by the most passages that one of them is above."""
        if shared == "all":
            return 1.0
        found = self.corpus.above.tocoo()
        below = np.bincount(found.col, minlength=self.corpus.above.shape[1])
        most = np.zeros(len(self.corpus))
        np.maximum.at(most, found.row, below[found.col])
        share = most > 1 if shared == "shared" else 1 - 1 / np.maximum(most, 1)
        return share.astype(np.float32)[:, None]

    def text(self, text: str) -> np.ndarray:
        """The vectors of passages without neighbors, shape (n, d)."""
        corpus = self.corpus
        if text == "mixed":
            return corpus.read("plain") / 3 + corpus.read("titled") * (2 / 3)
        return corpus.read(text)

    def _messages(self, vector: Vector, x: np.ndarray) -> dict[str, np.ndarray]:
        """What each relation adds to vectors of passages, shape (n, d)."""
        added = {}
        for relation in RELATIONS:
            if getattr(vector, relation) and (relation != "past" or self.past):
                added[relation] = variants.message(x, self.mean(relation), vector.form)
        if "title" in added:
            added["title"] = added["title"] * self._share(vector.shared)
        if "past" in added and vector.isolated == "added":
            alone = variants.isolated_share(self.counts) * x
            added["past"] = np.where((self.counts > 0)[:, None], added["past"], alone)
        return added

    def _vectors(self, vector: Vector) -> np.ndarray:
        """The vectors of passages with their neighbors, shape (n, d)."""
        x = self.text(vector.text)
        added = self._messages(vector, x)
        total = x + sum(getattr(vector, name) * part for name, part in added.items())
        if "past" in added and vector.isolated != "added":
            share = vector.isolated
            share = variants.isolated_share(self.counts) if share == "beta" else float(share)
            total = np.where((self.counts > 0)[:, None], total, (1 + vector.past * share) * total)
        return variants.unit(total) if vector.normalize else total

    def _dense(self, vector: Vector, split: str, feedback: float = 0.0) -> np.ndarray:
        """Scores of all passages, shape (k, n)."""
        queries = self.encoded(split)
        if vector.per_query:
            return self._per_query(vector, queries)
        passages = self.vectors(vector)
        scores = queries @ passages.T
        if feedback:
            best = np.argsort(-scores, axis=1)[:, :3]
            scores = (queries + feedback * variants.unit(passages[best].mean(1))) @ passages.T
        if vector.windows > 1:
            number, further = self.corpus.windows
            added = passages[number] - self.text(vector.text)[number]
            np.maximum.at(scores.T, number, ((further + added) @ queries.T))
        return scores

    def _per_query(self, vector: Vector, queries: np.ndarray) -> np.ndarray:
        x = self.text(vector.text)
        scores = queries @ x.T
        for name, part in self._messages(vector, x).items():
            ramp = variants.RAMP if name == "title" else variants.QUERY_RAMP
            weight = variants.query_weights(queries, x, self.mean(name), ramp)
            scores += getattr(vector, name) * weight[:, None] * (queries @ part.T)
        return scores

    def _parts(
        self, vector: Vector, split: str, how: str, depth: int, feedback: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The normalized scores by BM25 and vectors, and what is found at all, shape (k, n) each."""
        dense = self.dense(vector, split, feedback)
        both = [variants.cut(part, depth) for part in (self.lexical(split), dense)]
        found = ~(np.isnan(both[0]) & np.isnan(both[1]))
        return variants.normalized(both[0], how), variants.normalized(both[1], how), found

    def scores(self, vector: Vector, search: Search, split: str = "test") -> np.ndarray:
        """The scores of all passages, shape (k, n); -inf for what is not found."""
        lexical, dense, found = self.parts(vector, split, search.how, search.depth, search.feedback)
        alpha = search.alpha
        if search.careful:
            alpha *= variants.trust(self.corpus.read("titled"))
        total = (1 - alpha) * lexical + alpha * dense
        empty = ~lexical.any(1)  # BM25 finds nothing
        total[empty] = dense[empty]
        total[~found] = -np.inf
        if not (search.document or search.near):
            return total
        corpus = self.corpus
        places = corpus.first, corpus.of_document, corpus.beside
        return variants.with_evidence(
            total, *places, search.document, search.near, spread=search.spread
        )

    def measure(self, vector: Vector, search: Search | None) -> np.ndarray:
        """nDCG@10 of each test query, shape (k,); without a search, by vectors alone."""
        if search is None:
            return self.judge("test")(self.dense(vector, "test"))
        return self.judge("test")(self.scores(vector, self.fit(vector, search)))

    @cached_property
    def left_out(self) -> list[Bench]:
        """Past queries in five parts, each as the test queries of an index that has the others."""
        past = self.division.past
        fold = np.random.default_rng(0).permutation(len(past.topics)) % FOLDS
        parts = [past.among(past.topics["qid"][fold == number]) for number in range(FOLDS)]
        found, count = [], 0
        for number, part in enumerate(parts):
            if count < ENOUGH and len(part.topics):
                division = Division(part, part, past.without(part))
                name = f"{self.number}-{number}"
                found.append(Bench(self.corpus, division, name, past=True))
                count += len(part.topics)
        return found

    def fit(self, vector: Vector, search: Search) -> Search:
        """The search, with numbers that the other queries support."""
        if not search.fit or not len(self.division.dev.topics):
            return search
        left_out = search.fit == "left out"
        split, benches = ("test", self.left_out) if left_out else ("dev", [self])
        numbers = {"alpha": ALPHAS, "document": DOCUMENTS, "near": NEARS}
        grid = {name: numbers[name] for name in search.fitted}

        @lru_cache(1000)
        def value(trial: Search) -> np.ndarray:
            scores = [(bench.judge(split), bench.scores(vector, trial, split)) for bench in benches]
            return np.concatenate([judge(part) for judge, part in scores])

        return coordinate_search(search, grid, value, best=search.fit == "best")


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
        changes: list[dict[str, Any]] = [{name: number} for number in numbers]
        trials = [present, *(replace(present, **change) for change in changes)]
        top = max((value(trial) for trial in trials), key=np.mean)

        def as_good(trial: Search, top: np.ndarray = top) -> bool:
            worse = top - value(trial)
            error = worse.std(ddof=1) / len(worse) ** 0.5 if len(worse) > 1 else np.inf
            return bool(worse.mean() <= (1e-9 if best else error * (1 + 1e-9)))

        def distance(trial: Search, name: str = name) -> float:
            return abs(getattr(trial, name) - getattr(start, name))

        present = min(filter(as_good, trials), key=distance)
    return present
