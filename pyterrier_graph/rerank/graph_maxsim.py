"""GraphMaxSim: late interaction through the graph, without a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyterrier as pt
import torch

from pyterrier_graph.graphs.relations import check_paths, follow
from pyterrier_graph.models.maxsim import best_of_neighbors, graph_maxsim, token_maxima
from pyterrier_graph.models.propagation import SELF
from pyterrier_graph.plots.model_html import FIT, reranker_html
from pyterrier_graph.encoders.token_encoder import open_encoder
from pyterrier_graph.rerank.base import GraphReranker, QueryPassages, check_tokens
from pyterrier_graph.training.validation import RunEvaluator, judged, tuning_set

if TYPE_CHECKING:
    from pyterrier_graph.encoders.token_store import TokenStore
    from pyterrier_graph.graphs import HeteroGraph

TITLES_AND_NEIGHBOURS = {"structural": 1.0, "structural/structural": 1.0, "order": 0.5, "order_i": 0.5}
GRID = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
SWEEPS = 2


class GraphMaxSim(GraphReranker):
    """Reranks passages by the best match of each query token in the passage or, weighted by relation, around it.

    ``sum over query tokens of max(own, weight_r * best match among the r-neighbors, ...)``

    There is no neural layer and nothing is encoded again: the token vectors of bare passages and titles serve.
    The weights, one per relation, are all that is learned.

    Args:
        graph: The document graph; None to use the graph in the ``graph`` column (see ``CandidateGraph``).
        encoder: A :class:`~pyterrier_graph.encoders.token_encoder.TokenEncoder`, or the name of a checkpoint for one.
        weights: Weight per relation, or per path of relations (``'structural/structural'``: the section's section).
            ``{}`` is plain MaxSim. By default titles count fully and the passages before and after by half.
        tokens: Stored token vectors of the graph's nodes; without them texts are encoded as they come.
        measure: What :meth:`fit` maximizes.
        device: As torch names it; by default a GPU where there is one.
        verbose: Whether to show progress.

    Columns: see :meth:`transform`.

    Raises:
        ValueError: If a path names a relation that the graph does not have, or a weight is negative.
    """

    schematic = {"label": "GraphMaxSim", "help_url": "https://pypi.org/project/pyterrier-graph/"}

    def __init__(
        self,
        graph: HeteroGraph | None = None,
        encoder: Any = "sentence-transformers/all-MiniLM-L6-v2",
        weights: Mapping[str, float] | None = None,
        *,
        tokens: TokenStore | None = None,
        measure: str = "nDCG@10",
        device: str | None = None,
        verbose: bool = False,
    ) -> None:
        self.graph = graph
        self.encoder = open_encoder(encoder, device)
        self.weights = dict(TITLES_AND_NEIGHBOURS if weights is None else weights)
        self.tokens = tokens
        self.measure = measure
        self.device = device
        self.verbose = verbose
        check_tokens(tokens, self.encoder, graph)
        if any(weight < 0 for weight in self.weights.values()):
            raise ValueError(f"weights must not be negative: {self.weights}")
        if graph is not None:
            check_paths(graph, self.weights)

    def __repr__(self) -> str:
        weights = ", ".join(f"{path!r}: {weight:g}" for path, weight in self.weights.items())
        return f"GraphMaxSim({self.graph!r}, {self.encoder!r}, {{{weights}}})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        sizes = {
            "weights": ", ".join(f"{path}: {weight:g}" for path, weight in self.weights.items())
            or "none: plain MaxSim",
            "encoder": f"{self.encoder.name}, {self.encoder.dimension} dimensions",
            "graph": "of each query's candidates" if self.graph is None else repr(self.graph),
            "tokens": "encoded as they come" if self.tokens is None else repr(self.tokens),
        }
        return reranker_html(self, sizes, [FIT, "plots.token_matches(reranker.explain(query, docno))"])

    def _score(self, work: QueryPassages) -> np.ndarray:
        weights = torch.tensor(list(self.weights.values()), device=work.queries.values.device)
        scores = np.zeros(len(work.rows))
        for rows, own, context in self._matches(work):
            scores[rows] = graph_maxsim(own, context, weights).cpu().numpy()
        return scores

    def _matches(self, work: QueryPassages) -> Any:
        """Per query its rows, best matches in the passages (rows, tokens) and per path (rows, paths, tokens)."""
        by_query = pd.Series(work.query).groupby(work.query).indices
        for query, rows in pt.tqdm(by_query.items(), desc="GraphMaxSim", unit="q", disable=not self.verbose):
            passages = work.node[rows]
            around = [follow(work.graph, passages, path) for path in self.weights]
            nodes, index = np.unique(np.concatenate([passages, *(n for _, n in around)]), return_inverse=True)
            own_index, *around_index = np.split(index, np.cumsum([len(passages), *(len(n) for _, n in around)])[:-1])
            vectors = work.queries[query]
            states = work.tokens.states(nodes, vectors.device)
            maxima = token_maxima(vectors, states)
            # a neighbor that says nothing, such as a section without a title, is no match, not one of 0
            heard = maxima.masked_fill(states.lengths[:, None] == 0, -torch.inf)
            context = [
                best_of_neighbors(heard, torch.from_numpy(row).to(heard.device), torch.from_numpy(neighbor), len(rows))
                for (row, _), neighbor in zip(around, around_index, strict=True)
            ]
            own = maxima[torch.from_numpy(own_index)]
            yield rows, own, torch.stack([own.new_zeros(own.shape), *context], 1)[:, 1:]

    def fit(
        self,
        topics_or_res_tr: pd.DataFrame,
        qrels_tr: pd.DataFrame,
        topics_or_res_va: pd.DataFrame | None = None,
        qrels_va: pd.DataFrame | None = None,
    ) -> GraphMaxSim:
        """Learns the weights: each in turn takes the value in 0, 0.2, ... 1 that is best by ``measure``, in two sweeps.

        So few weights need few queries: the validation set is used where there is one, else the training set.

        Args:
            topics_or_res_tr: Training queries with their passages, as for :meth:`transform`.
            qrels_tr: Judgments for them: ``qid, docno, label``.
            topics_or_res_va: Validation queries with their passages.
            qrels_va: Judgments for them.

        Raises:
            ValueError: If none of the queries is judged.
        """
        run, qrels = tuning_set(topics_or_res_tr, qrels_tr, topics_or_res_va, qrels_va)
        columns = ["query"] if self.graph is not None else ["query", "graph"]
        pt.validate.result_frame(run, extra_columns=columns, context=self)
        run, qrels = judged(run, qrels, self)
        evaluate = RunEvaluator(self.measure, qrels)
        matches = [
            (work.rows[rows], own, context) for work in self._work(run) for rows, own, context in self._matches(work)
        ]

        def quality(weights: list[float]) -> float:
            scores = np.zeros(len(run))
            for rows, own, context in matches:
                scores[rows] = graph_maxsim(own, context, torch.tensor(weights, device=own.device)).cpu().numpy()
            return evaluate(run[["qid", "docno"]].assign(score=scores))

        weights = list(self.weights.values())
        best = quality(weights)
        trials = [(place, value) for _ in range(SWEEPS) for place in range(len(weights)) for value in GRID]
        for place, value in pt.tqdm(trials, desc="GraphMaxSim.fit", disable=not self.verbose):
            trial = [*weights[:place], value, *weights[place + 1 :]]
            if trial != weights and (reached := quality(trial)) > best:
                best, weights = reached, trial
        self.weights = dict(zip(self.weights, weights, strict=True))
        return self

    def explain(self, query: str, docno: str, graph: HeteroGraph | None = None) -> pd.DataFrame:
        """Says where each query token found its match.

        Args:
            query: The query.
            docno: A passage id.
            graph: The graph, where the reranker has none of its own.

        Returns:
            A row per query token, with ``token``, ``relation`` (``'SELF'`` for the passage itself), ``node`` (its id),
            ``match`` (the token matched), ``similarity`` (cosine), ``score`` (weighted: the part of the score).
        """
        graph = graph if graph is not None else self.graph
        if graph is None:
            raise ValueError("explain needs the graph that the passage is in")
        passage = graph.nodes_of([docno])
        vectors = self.encoder.encode_queries([query])[0]
        tokens = self._fresh_tokens(graph)
        places = [(SELF, 1.0, passage)]
        places += [(path, weight, follow(graph, passage, path)[1]) for path, weight in self.weights.items() if weight]
        candidates = []
        for relation, weight, nodes in places:
            for node in np.unique(nodes):
                found = tokens.states(np.array([node]), vectors.device).values
                pieces = self.encoder.tokens(tokens.texts(np.array([node]))[0])
                if not len(found) and relation != SELF:
                    continue
                if not len(found):  # a passage without text matches with 0
                    found, pieces = torch.zeros_like(vectors[:1]), [""]
                similarity, position = (vectors @ found.T).max(1)
                candidates.append(
                    pd.DataFrame(
                        {
                            "place": np.arange(len(vectors)),
                            "token": self.encoder.tokens(query, query=True),
                            "relation": relation,
                            "node": graph.ids_of(np.array([node]))[0],
                            "match": [pieces[p] for p in position.tolist()],
                            "similarity": similarity.cpu().numpy(),
                            "score": weight * similarity.cpu().numpy(),
                        }
                    )
                )
        best = pd.concat(candidates).sort_values("score", ascending=False, kind="stable").drop_duplicates("place")
        return best.sort_values("place").drop(columns="place").reset_index(drop=True)
