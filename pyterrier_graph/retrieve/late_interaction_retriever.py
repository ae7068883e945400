"""The retriever of a late-interaction index: nearest token vectors, their neighbors in the graph, exact scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyterrier as pt
import torch
from torch import Tensor

from pyterrier_graph.checks import WithSignature, check_count, check_frame, check_type
from pyterrier_graph.encoders.queries import query_texts
from pyterrier_graph.graphs import PASSAGE_TYPE
from pyterrier_graph.graphs.csr import CSR
from pyterrier_graph.graphs.relations import follow
from pyterrier_graph.rerank.base import GraphReranker, QueryPassages

if TYPE_CHECKING:
    from pyterrier_graph.graphs import HeteroGraph
    from pyterrier_graph.retrieve.late_interaction_index import LateInteractionIndex


class LateInteractionRetriever(WithSignature, pt.Transformer):
    """What :meth:`LateInteractionIndex.retriever` returns."""

    schematic = {"label": "LateInteraction", "help_url": "https://pypi.org/project/pyterrier-graph/"}

    def __init__(
        self,
        index: LateInteractionIndex,
        reranker: GraphReranker,
        num_results: int = 1000,
        *,
        nearest: int = 1000,
        probes: int = 32,
        candidates: int | None = None,
    ) -> None:
        check_type("reranker", reranker, GraphReranker, "a GraphMaxSim or an HGATReranker")
        for name, value in (("num_results", num_results), ("nearest", nearest), ("probes", probes)):
            check_count(name, value)
        if candidates is not None:
            check_count("candidates", candidates, num_results)
        self.index, self.reranker, self.num_results = index, reranker, num_results
        self.nearest, self.probes, self.candidates = nearest, probes, candidates
        self._sources: dict[str, CSR] = {}
        index.check(reranker._searched_tokens())

    def __repr__(self) -> str:
        options = {"nearest": 1000, "probes": 32, "candidates": None}
        given = "".join(f", {k}={getattr(self, k)!r}" for k, default in options.items() if getattr(self, k) != default)
        return f"{self.index!r}.retriever({self.reranker!r}, {self.num_results}{given})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Finds passages.

        Args:
            inp: ``qid, query``.

        Raises:
            pt.validate.InputValidationError: If a column is missing.
            ValueError: If a query is empty or not a text.
        """
        inp = check_frame(inp, self, texts=("query",))
        pt.validate.query_frame(inp, extra_columns=["query"], context=self)
        inp = inp.drop(columns=["docno", "docid", "score", "rank"], errors="ignore")
        inp = inp.drop_duplicates("qid").reset_index(drop=True)
        texts = query_texts(inp).tolist() if len(inp) else []
        queries = self.reranker.encoder.encode_queries(texts)
        found = [self._candidates(queries[number], text) for number, text in enumerate(texts)]
        query = np.repeat(np.arange(len(inp)), [len(nodes) for nodes in found]).astype(np.int64)
        node, rows = np.concatenate([np.zeros(0, dtype=np.int64), *found]), np.arange(len(query))
        tokens, graph = self.reranker._tokens_of(self._graph), self._graph
        work = QueryPassages(graph, tokens, queries, texts, query, node, rows)
        scores = self.reranker._score(work) if len(node) else np.zeros(0)
        out = inp.iloc[query].assign(docno=np.array(graph.ids_of(node), dtype=object), score=scores)
        # the query of each row is in the order of the input; passages of equal scores are in that of the graph
        out = out.iloc[np.lexsort((node, -scores, query))].reset_index(drop=True)
        out = pt.model.add_ranks(out)
        return out[out["rank"] < self.num_results].reset_index(drop=True)

    @property
    def _graph(self) -> HeteroGraph:
        assert self.reranker.graph is not None  # its stored tokens are of a graph
        return self.reranker.graph

    def _candidates(self, query: Tensor, text: str) -> np.ndarray:
        """The nodes of the passages that a query's nearest token vectors lead to."""
        terms, graph = self.reranker._search_terms(query, text), self._graph
        similarity, token = self.index.search(terms.vectors.cpu().numpy(), self.nearest, self.probes)
        row, place = np.nonzero(token >= 0)
        if not len(row):
            return np.zeros(0, dtype=np.int64)
        nodes, hit = np.unique(terms.tokens.nodes_of_tokens(token[row, place]), return_inverse=True)
        found = torch.full((len(nodes), len(token)), -torch.inf)
        values = torch.from_numpy(similarity[row, place])
        found.view(-1).scatter_reduce_(0, torch.from_numpy(hit * len(token) + row), values, "amax")
        passages, matches = [nodes[own := graph.node_type[nodes] == PASSAGE_TYPE]], [found[torch.from_numpy(own)]]
        for relation, weight in terms.weights.items():
            if weight:
                position, passage = self._sources_of(relation).select(nodes)
                passages.append(passage)
                matches.append(weight * found[torch.from_numpy(position)])
        distinct, target = np.unique(np.concatenate(passages), return_inverse=True)
        # what was not found is at most as similar as the last that was
        lowest = torch.from_numpy(np.where(token >= 0, similarity, np.inf).min(1)).float()
        best = lowest.repeat(len(distinct), 1)
        best.scatter_reduce_(0, torch.from_numpy(target)[:, None].expand(-1, len(token)), torch.cat(matches), "amax")
        total = (best if terms.token_weights is None else best * terms.token_weights.cpu()).sum(1).numpy()
        order = np.argsort(-total, kind="stable")[: self.candidates or self.num_results]
        return distinct[order]

    def _sources_of(self, relation: str) -> CSR:
        """For each node the passages that have it for a neighbor along a relation."""
        if relation not in self._sources:
            passages = self._graph.passage_nodes
            row, neighbor = follow(self._graph, passages, relation)
            self._sources[relation] = CSR.group(neighbor, passages[row], self._graph.num_nodes)
        return self._sources[relation]

    def fuse_rank_cutoff(self, k: int) -> pt.Transformer | None:
        """Returns no more passages than are kept; as many as before are scored."""
        if k >= self.num_results:
            return None
        options = {"nearest": self.nearest, "probes": self.probes, "candidates": self.candidates or self.num_results}
        return LateInteractionRetriever(self.index, self.reranker, k, **options)
