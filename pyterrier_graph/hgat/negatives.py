"""Negatives for the triples that train an HGAT (Albarede et al. 2023, Sect. 5.2.3)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

import numpy as np
import pandas as pd

from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.hetero_graph import HeteroGraph

Strategy = Literal["random", "same_doc", "relevant_docs", "shared_codes", "mixed", "candidates"]
ATTEMPTS = 20
MIXED_ATTEMPTS = 200
MIXED_RELEVANT_DOCS = 0.4  # and 0.6 of shared_codes


class NegativeSampler:
    """Draws a negative for each pair of a query and a relevant passage.

    A negative has a lower label than p+ for the query; unjudged passages have label 0. With binary judgments, these are
    the paper's "non-relevant" passages.

    * ``random``: from the corpus.
    * ``same_doc``: from the document of p+.
    * ``relevant_docs``: from the documents that have a passage relevant to the query.
    * ``shared_codes``: from the documents that share a code with the patent that the query was made from (``codes``, by
      qid), as in the paper. Queries without codes take their relevant documents' codes. Each document is drawn with
      the same probability, then one of its passages.
    * ``mixed``: ``relevant_docs`` with probability 0.4, ``shared_codes`` with 0.6. If one strategy finds nothing for a
      pair, as ``shared_codes`` without codes, the other one draws.
    * ``candidates``: from the passages that the first stage ranked for the query. Not in the paper.

    Raises ValueError if no passage is relevant, and KeyError if a judged passage is not in the graph.
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
        is_relevant = qrels["label"] > 0
        if not is_relevant.any():
            raise ValueError("no training query has a relevant passage (label > 0)")
        self.graph = graph
        self.strategy = strategy
        self.random = np.random.default_rng(seed)
        self._read_judgments(qrels)
        if strategy == "candidates":
            assert candidates is not None
            self._candidates = self._candidates_by_query(candidates)
        if strategy in ("shared_codes", "mixed"):
            self._sharing = self._documents_sharing_codes(codes)

    def _read_judgments(self, qrels: pd.DataFrame) -> None:
        """Numbers the queries, and indexes labels by pair: the number of the query times the nodes, plus the node."""
        num_nodes = self.graph.num_nodes
        qrels = qrels.drop_duplicates(["qid", "docno"])
        qid = qrels["qid"].astype(str)
        self.qids = np.unique(qid)
        query = np.searchsorted(self.qids, qid)
        passage = self.graph.nodes_of(qrels["docno"].tolist())
        pair = query * num_nodes + passage
        labels = qrels["label"].to_numpy()
        self._labels = pd.Series(labels, index=pair).sort_index()
        relevant = self._labels[self._labels > 0]
        relevant_pair = relevant.index.to_numpy()
        self._query, self._positive = np.divmod(relevant_pair, num_nodes)  # (pairs,) each
        self._positive_label = relevant.to_numpy()
        documents = self.graph.document[self._positive]
        self._relevant_documents = CSR.distinct(self._query, documents, len(self.qids))

    def sample(self) -> np.ndarray:
        """Draws one negative for every pair of a query and a relevant passage.

        Pairs without a negative are left out. Raises ValueError if no pair has one.

        Returns:
            Position of the query in ``qids``, node of p+, and node of p-; shape (triples, 3), int64.
        """
        negative = np.full(len(self._query), -1)
        if self.strategy == "mixed":
            self._fill_mixed(negative)
        else:
            self._fill(negative, np.arange(len(negative)), self.strategy, ATTEMPTS)
        drawn = negative >= 0
        if not drawn.any():
            raise ValueError(
                f"negatives={self.strategy!r} finds no passage that is judged lower than a relevant one"
            )
        triples = np.column_stack([self._query, self._positive, negative])
        return triples[drawn]

    def _fill_mixed(self, negative: np.ndarray) -> None:
        # Each pair keeps its strategy when a draw is rejected. Otherwise, pairs would drift to the larger pool.
        by_relevant_docs = self.random.random(len(negative)) < MIXED_RELEVANT_DOCS
        has_codes = len(self._sharing.indices) > 0
        # In the second round, pairs without a negative try the other strategy.
        for relevant_docs in (by_relevant_docs, ~by_relevant_docs):
            missing = negative < 0
            pairs = np.flatnonzero(missing & relevant_docs)
            self._fill(negative, pairs, "relevant_docs", MIXED_ATTEMPTS)
            if has_codes:
                pairs = np.flatnonzero(missing & ~relevant_docs)
                self._fill(negative, pairs, "shared_codes", MIXED_ATTEMPTS)

    def _fill(self, negative: np.ndarray, pairs: np.ndarray, strategy: str, attempts: int) -> None:
        """Draws up to ``attempts`` times for each pair, and writes accepted passages into ``negative``."""
        for _ in range(attempts):
            if not len(pairs):
                break
            passages = self._draw(strategy, pairs)  # (pairs,)
            judged = self._query[pairs] * self.graph.num_nodes + passages
            labels = self._labels.reindex(judged, fill_value=0).to_numpy()
            is_drawn = passages >= 0
            is_lower = labels < self._positive_label[pairs]
            accepted = is_drawn & is_lower
            filled = pairs[accepted]
            negative[filled] = passages[accepted]
            pairs = pairs[~accepted]

    def _draw(self, strategy: str, pairs: np.ndarray) -> np.ndarray:
        """Draws a passage for each pair with one strategy; -1 if there is none."""
        query = self._query[pairs]
        if strategy == "random":
            return self.random.choice(self.graph.passage_nodes, len(pairs))
        if strategy == "candidates":
            return self._candidates.draw(query, self.random)
        if strategy == "same_doc":
            document = self.graph.document[self._positive[pairs]]
        elif strategy == "relevant_docs":
            document = self._relevant_documents.draw(query, self.random)
        else:
            document = self._sharing.draw(query, self.random)
        return self.graph.document_passages.draw(document, self.random)

    def _candidates_by_query(self, run: pd.DataFrame) -> CSR:
        """The passages that a run has for each query."""
        run = run[run["qid"].isin(self.qids)]
        query = np.searchsorted(self.qids, run["qid"].astype(str))
        passage = self.graph.nodes_of(run["docno"].tolist())
        return CSR.group(query, passage, len(self.qids))

    def _documents_sharing_codes(self, codes: Mapping[str, Collection[str]] | None) -> CSR:
        """The documents that share a code with each query or, without ``codes``, with its relevant documents."""
        if codes is None:
            relevant = self._relevant_documents
            position, code = self.graph.document_codes.select(relevant.indices)
            query = relevant.row_index[position]
        else:
            query, code = self._codes_of_queries(codes)
        position, documents = self.graph.code_documents.select(code)
        return CSR.distinct(query[position], documents, len(self.qids))

    def _codes_of_queries(self, codes: Mapping[str, Collection[str]]) -> np.ndarray:
        """Numbers of queries and of their codes, shape (2, pairs), without codes that the graph lacks."""
        numbers = {name: number for number, name in enumerate(self.graph.code_names)}
        pairs = []
        for query, qid in enumerate(self.qids):
            for name in codes.get(qid, ()):
                if name in numbers:
                    pairs.append((query, numbers[name]))
        return np.array(pairs, dtype=np.int64).reshape(-1, 2).T
