"""Negative sampling: which passage a relevant one is compared with (Albarede et al. 2023, Sect. 5.2.3)."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import pandas as pd

from pyterrier_graph.checks import check_choice
from pyterrier_graph.graphs.csr import CSR, offsets
from pyterrier_graph.warning_categories import DataWarning

if TYPE_CHECKING:
    from pyterrier_graph.graphs import HeteroGraph

logger = logging.getLogger(__name__)

Strategy = Literal["random", "same_doc", "relevant_docs", "shared_codes", "mixed", "candidates"]
ATTEMPTS = 20
MIXED_ATTEMPTS = 200
MIXED_RELEVANT_DOCS = 0.4  # and 0.6 of shared_codes


class NegativeSampler:
    """Draws a negative for each pair of a query and a relevant passage.

    A negative is a passage that is judged lower than p+ for the query; a passage without a judgment has label 0.
    With binary judgments this is the paper's "non-relevant".

    * ``random``: from the corpus.
    * ``same_doc``: from the document of p+.
    * ``relevant_docs``: from the documents that have a passage relevant to the query.
    * ``shared_codes``: from the documents that share a code with the patent that the query was made from (``codes``),
      as in the paper; where queries have no codes, with one of the query's relevant documents. Each of these documents
      is drawn with the same probability, then one of its passages.
    * ``mixed``: ``relevant_docs`` with probability 0.4, ``shared_codes`` with 0.6 (never, with a warning, if there are
      no codes). A pair for which one of them finds nothing gets a negative by the other.
    * ``candidates``: from the passages that the first stage ranked for the query. Not in the paper.

    Args:
        graph: The graph that the passages are in.
        qrels: ``qid, docno, label``; docno is a passage id.
        strategy: One of the above.
        candidates: ``qid, docno`` of the first stage's passages, for ``candidates``.
        codes: Codes by qid. A query whose codes no document has gets no negative by ``shared_codes``.
        seed: Seed of the random generator.

    Raises:
        ValueError: If the strategy is unknown, or no passage is judged as relevant.
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
        check_choice("negatives", strategy, get_args(Strategy))
        if not (qrels["label"] > 0).any():
            raise ValueError("no training query has a relevant passage (label > 0)")
        self.graph, self.strategy = graph, strategy
        self.random = np.random.default_rng(seed)
        self.qids = np.unique(qrels["qid"].astype(str))
        query = np.searchsorted(self.qids, qrels["qid"].astype(str))
        pair = query * graph.num_nodes + graph.nodes_of(qrels["docno"].tolist())
        order = np.argsort(pair, kind="stable")
        self._judged, self._label = pair[order], qrels["label"].to_numpy()[order]
        relevant = self._label > 0
        self._query, self._positive = np.divmod(self._judged[relevant], graph.num_nodes)
        self._positive_label = self._label[relevant]
        if strategy == "candidates":
            if candidates is None:
                raise ValueError("negatives='candidates' needs the first stage's passages")
            candidates = candidates[candidates["qid"].isin(self.qids)]
            row = np.searchsorted(self.qids, candidates["qid"].astype(str))
            self._candidates = CSR.group(row, graph.nodes_of(candidates["docno"].tolist()), len(self.qids))
        self._passages = CSR(graph.passage_offsets, graph.passage_nodes)
        self._relevant_documents = CSR.distinct(self._query, graph.document[self._positive], len(self.qids))
        if strategy in ("shared_codes", "mixed"):
            self._codes = self._numbers_of(codes)
            # in front of each pair of a query and a code: the number of documents of all codes before
            self._before = offsets(graph.code_documents.lengths[self._codes.indices])
            if strategy == "mixed" and not self._before[-1]:
                warnings.warn(
                    "negatives='mixed' draws from documents that share a code, but no training query or relevant "
                    "document has a code: all negatives are drawn by 'relevant_docs'",
                    DataWarning,
                    stacklevel=2,
                )

    def sample(self) -> np.ndarray:
        """Draws one negative for every pair of a query and a relevant passage.

        Pairs without a negative are left out and counted in the log. If no pair has one, there is a ValueError.

        Returns:
            Position of the query in ``qids``, node of p+, and node of p-; shape (triples, 3), int64.
        """
        negative = np.full(len(self._query), -1)
        if self.strategy == "mixed":
            # Each pair keeps its strategy when a draw is rejected; else the pairs would drift to the larger pool.
            by_document = self.random.random(len(negative)) < MIXED_RELEVANT_DOCS
            for chosen in (by_document, ~by_document):  # the second round is for pairs that the first found nothing for
                for strategy, pairs in (("relevant_docs", chosen), ("shared_codes", ~chosen & bool(self._before[-1]))):
                    self._fill(negative, np.flatnonzero(pairs & (negative < 0)), strategy, MIXED_ATTEMPTS)
        else:
            self._fill(negative, np.arange(len(negative)), self.strategy, ATTEMPTS)
        found = negative >= 0
        if not found.any():
            advice = "" if self.strategy == "candidates" else "; negatives='candidates' draws from the run's passages"
            raise ValueError(
                f"negatives={self.strategy!r} finds no passage that is judged lower than a relevant one{advice}"
            )
        if not found.all():
            logger.info("%d of %d pairs have no negative by %r", (~found).sum(), len(found), self.strategy)
        return np.column_stack([self._query, self._positive, negative])[found]

    def _fill(self, negative: np.ndarray, pairs: np.ndarray, strategy: str, attempts: int) -> None:
        """Writes a negative for each of these pairs into an array, where some attempt finds one."""
        for _ in range(attempts):
            if not len(pairs):
                break
            drawn = self._draw(strategy, pairs)
            found = (drawn >= 0) & (self._label_of(self._query[pairs], drawn) < self._positive_label[pairs])
            negative[pairs[found]] = drawn[found]
            pairs = pairs[~found]

    def _draw(self, strategy: str, pairs: np.ndarray) -> np.ndarray:
        """A passage per pair by one strategy, -1 where there is none."""
        query, graph, random = self._query[pairs], self.graph, self.random
        if strategy == "random":
            return random.choice(graph.passage_nodes, len(pairs))
        if strategy == "candidates":
            return self._candidates.draw(query, random)
        if strategy == "same_doc":
            document = graph.document[self._positive[pairs]]
        elif strategy == "relevant_docs":
            document = self._relevant_documents.draw(query, random)
        else:
            document = self._sharing_code(query)
        return self._passages.draw(document, random)

    def _sharing_code(self, query: np.ndarray) -> np.ndarray:
        """Per query a document that has one of its codes, -1 where there is none.

        A document is drawn from the lists of all the query's codes, and accepted if the list is that of its first code.
        Documents with several of the codes are thus as likely as others, and no union of the lists is made.
        """
        codes, listed = self._codes, self.graph.code_documents
        start, end = self._before[codes.indptr[query]], self._before[codes.indptr[query + 1]]
        drawn = np.full(len(query), -1)
        rows = np.flatnonzero(start < end)
        while len(rows):
            place = self.random.integers(start[rows], end[rows])
            pair = np.searchsorted(self._before, place, side="right") - 1
            code = codes.indices[pair]
            document = listed.indices[listed.indptr[code] + place - self._before[pair]].astype(np.int64)
            position, other = self.graph.codes_of(document)
            before = (other < code[position]) & np.isin(self._key(query[rows][position], other), self._code_keys)
            accepted = np.bincount(position[before], minlength=len(rows)) == 0
            drawn[rows[accepted]] = document[accepted]
            rows = rows[~accepted]
        return drawn

    def _key(self, query: np.ndarray, code: np.ndarray) -> np.ndarray:
        return query * len(self.graph.code_names) + code

    def _numbers_of(self, codes: Mapping[str, Collection[str]] | None) -> CSR:
        """Per query the numbers of its codes in the graph, or of the codes of its relevant documents."""
        if codes is None:
            position, number = self.graph.codes_of(self._relevant_documents.indices)
            row = self._relevant_documents.row_index[position]
        else:
            number_of = {code: number for number, code in enumerate(self.graph.code_names)}
            given = [(row, code) for row, qid in enumerate(self.qids) for code in codes.get(qid, ())]
            pairs = [(row, number_of[code]) for row, code in given if code in number_of]
            row, number = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        found = CSR.distinct(row, number, len(self.qids))
        self._code_keys = self._key(found.row_index, found.indices)
        return found

    def _label_of(self, query: np.ndarray, node: np.ndarray) -> np.ndarray:
        key = query * self.graph.num_nodes + node
        position = np.minimum(np.searchsorted(self._judged, key), len(self._judged) - 1)
        return np.where(self._judged[position] == key, self._label[position], 0)
