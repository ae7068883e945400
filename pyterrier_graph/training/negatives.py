"""Negative sampling: which passage a relevant one is compared with (Albarede et al. 2023, Sect. 5.2.3)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from pyterrier_graph.graphs import HeteroGraph

logger = logging.getLogger(__name__)

Strategy = Literal["random", "same_doc", "relevant_docs", "shared_codes", "mixed", "candidates"]
ATTEMPTS = 20
MIXED_RELEVANT_DOCS = 0.4  # and 0.6 of shared_codes


def check_strategy(strategy: str) -> None:
    """Raises ValueError unless this is the name of a strategy."""
    if strategy not in get_args(Strategy):
        raise ValueError(f"negatives must be one of {', '.join(get_args(Strategy))}, got {strategy!r}")


@dataclass(frozen=True)
class Triples:
    """Training triples <q, p+, p->.

    Attributes:
        query: Position of the query in the sampler's topics, shape (triples,).
        positive: Node of p+, shape (triples,).
        negative: Node of p-, shape (triples,).
    """

    query: np.ndarray
    positive: np.ndarray
    negative: np.ndarray

    def __len__(self) -> int:
        return len(self.query)


class NegativeSampler:
    """Draws a negative for each pair of a query and a relevant passage.

    A negative is a passage that is judged lower than p+ for the query; an unjudged one counts as 0.
    With binary judgments that is the paper's "non-relevant".

    * ``random``: from the corpus.
    * ``same_doc``: from the document of p+.
    * ``relevant_docs``: from the documents that have a passage relevant to the query.
    * ``shared_codes``: from the documents that share a code with the patent that the query was made from (``codes``),
      as in the paper; where queries have no codes, with one of the query's relevant documents.
      A code, then a document, then a passage are drawn evenly, so that no list of all passages under a code is made.
    * ``mixed``: ``relevant_docs`` with probability 0.4, ``shared_codes`` with 0.6.
    * ``candidates``: from the passages that the first stage ranked for the query. Not in the paper.

    Args:
        graph: The graph that the passages are in.
        qrels: ``qid, docno, label``; docno is a passage id. Judgments of passages that are not in the graph raise.
        strategy: One of the above.
        candidates: ``qid, docno`` of the first stage's passages, needed by ``candidates``.
        codes: Codes by qid. A query without any, or whose codes no document has, gets no negative by ``shared_codes``.
        seed: Seed of the random generator.

    Raises:
        ValueError: If the strategy is unknown, or nothing relevant is judged.
        KeyError: If a judged passage is not in the graph.
    """

    def __init__(
        self,
        graph: HeteroGraph,
        qrels: pd.DataFrame,
        strategy: Strategy,
        *,
        candidates: pd.DataFrame | None = None,
        codes: Mapping[str, Collection[str]] | None = None,
        seed: int = 0,
    ) -> None:
        check_strategy(strategy)
        if strategy == "candidates" and candidates is None:
            raise ValueError("negatives='candidates' needs the first stage's passages")
        if not (qrels["label"] > 0).any():
            raise ValueError("no training query has a relevant passage (label > 0)")
        self.graph = graph
        self.strategy = strategy
        self.random = np.random.default_rng(seed)
        self.qids = np.unique(qrels["qid"].astype(str))
        query = np.searchsorted(self.qids, qrels["qid"].astype(str))
        node = graph.nodes_of(qrels["docno"].tolist())
        order = np.argsort(query * graph.num_nodes + node, kind="stable")
        self._judged = (query * graph.num_nodes + node)[order]
        self._label = qrels["label"].to_numpy()[order]
        relevant = self._label > 0
        self._query, self._positive = np.divmod(self._judged[relevant], graph.num_nodes)
        self._positive_label = self._label[relevant]
        if candidates is not None:
            candidates = candidates[candidates["qid"].isin(self.qids)]
            row = np.searchsorted(self.qids, candidates["qid"].astype(str))
            self._candidates = _Ragged.group(row, graph.nodes_of(candidates["docno"].tolist()), len(self.qids))
        self._codes = None if codes is None else self._numbers_of(codes)
        documents = np.unique(np.stack([self._query, graph.document[self._positive]]), axis=1)
        self._relevant_documents = _Ragged.group(documents[0], documents[1], len(self.qids))

    def sample(self) -> Triples:
        """Draws one negative for every (q, p+).

        A pair for which none was found is left out (a query whose relevant document has no passage judged lower,
        say, under ``same_doc``); how many were is logged.

        Raises:
            ValueError: If no pair has a negative.
        """
        negative = np.full(len(self._query), -1)
        open_pairs = np.arange(len(self._query))
        for _ in range(ATTEMPTS):
            drawn = self._draw(self.strategy, open_pairs)
            lower = self._label_of(self._query[open_pairs], drawn) < self._positive_label[open_pairs]
            found = (drawn >= 0) & lower
            negative[open_pairs[found]] = drawn[found]
            open_pairs = open_pairs[~found]
            if not len(open_pairs):
                break
        if len(open_pairs) == len(negative):
            raise ValueError(f"negatives={self.strategy!r} finds no passage that is judged lower than a relevant one")
        if len(open_pairs):
            logger.info("%d of %d pairs have no negative by %r", len(open_pairs), len(negative), self.strategy)
        found = negative >= 0
        return Triples(self._query[found], self._positive[found], negative[found])

    def _draw(self, strategy: str, pairs: np.ndarray) -> np.ndarray:
        """A passage per pair by one strategy, -1 where there is none."""
        query, graph = self._query[pairs], self.graph
        if strategy == "random":
            return self.random.choice(graph.passage_nodes, len(pairs))
        if strategy == "same_doc":
            return self._passage_of(graph.document[self._positive[pairs]])
        if strategy == "relevant_docs":
            return self._passage_of(self._relevant_documents.draw(query, self.random))
        if strategy == "shared_codes":
            if self._codes is not None:
                code = self._codes.draw(query, self.random)
            else:
                document = self._relevant_documents.draw(query, self.random)
                code = graph.document_codes.draw(document, self.random)
            return self._passage_of(graph.code_documents.draw(code, self.random))
        if strategy == "candidates":
            return self._candidates.draw(query, self.random)
        mixed = self._draw("shared_codes", pairs)
        by_document = self.random.random(len(pairs)) < MIXED_RELEVANT_DOCS
        return np.where(by_document, self._draw("relevant_docs", pairs), mixed)

    def _passage_of(self, documents: np.ndarray) -> np.ndarray:
        return _Ragged(self.graph.passage_offsets, self.graph.passage_nodes).draw(documents, self.random)

    def _numbers_of(self, codes: Mapping[str, Collection[str]]) -> _Ragged:
        """Per query the numbers of its codes, as far as the graph has them."""
        pairs = [(row, code) for row, qid in enumerate(self.qids) for code in codes.get(qid, ())]
        number = pd.Index(self.graph.code_names, dtype=object).get_indexer([code for _, code in pairs])
        row = np.array([row for row, _ in pairs], dtype=np.int64)
        return _Ragged.group(row[number >= 0], number[number >= 0], len(self.qids))

    def _label_of(self, query: np.ndarray, node: np.ndarray) -> np.ndarray:
        key = query * self.graph.num_nodes + node
        position = np.minimum(np.searchsorted(self._judged, key), len(self._judged) - 1)
        return np.where(self._judged[position] == key, self._label[position], 0)


@dataclass(frozen=True)
class _Ragged:
    """Lists of unequal length: row i is ``values[offsets[i]:offsets[i + 1]]``."""

    offsets: np.ndarray
    values: np.ndarray

    @classmethod
    def group(cls, rows: np.ndarray, values: np.ndarray, count: int) -> _Ragged:
        offsets = np.zeros(count + 1, dtype=np.int64)
        np.cumsum(np.bincount(rows, minlength=count), out=offsets[1:])
        return cls(offsets, values[np.argsort(rows, kind="stable")])

    def draw(self, rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """One value of each row asked for, evenly; -1 for an empty row, and for row -1."""
        drawn = np.full(len(rows), -1, dtype=np.int64)
        place = np.flatnonzero(rows >= 0)
        place = place[self.offsets[rows[place]] < self.offsets[rows[place] + 1]]
        drawn[place] = self.values[random.integers(self.offsets[rows[place]], self.offsets[rows[place] + 1])]
        return drawn
