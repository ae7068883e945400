"""GraphMaxSim: late interaction along a graph, without a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyterrier as pt
import torch

from pyterrier_graph.checks import check_weights
from pyterrier_graph.encoders.checkpoints import DEFAULT
from pyterrier_graph.encoders.devices import DType, precision
from pyterrier_graph.graphs.relations import check_relations, follow
from pyterrier_graph.models.maxsim import best_of_neighbors, graph_maxsim, token_maxima
from pyterrier_graph.models.propagation import SELF
from pyterrier_graph.rerank.base import GraphReranker, Judged, QueryPassages
from pyterrier_graph.training.grid_search import coordinate_search
from pyterrier_graph.training.validation import Validation

if TYPE_CHECKING:
    from pyterrier_graph.encoders.token_store import TokenStore
    from pyterrier_graph.graphs import HeteroGraph

TITLES_AND_NEIGHBORS = {"title": 1.0, "title/title": 1.0, "order": 0.5, "order_i": 0.5}
GRID = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


class GraphMaxSim(GraphReranker):
    """Reranks passages by the best match of each query token in a passage or, with a weight, in its neighbors.

    ``sum over query tokens of max(match in the passage, weight_r * best match in its neighbors of relation r, ...)``

    There is no network, and stored token vectors of passages and titles are used as they are. :meth:`fit` learns one
    weight per relation: each in turn takes the value in 0, 0.2, ... 1 that is best by ``measure``, in two sweeps. So
    few weights need few queries: the validation queries are used where there are any, else the training queries.

    Args:
        graph: The document graph; None to use the graph in the ``graph`` column (see ``CandidateGraph``).
        encoder: A :class:`~pyterrier_graph.encoders.token_encoder.TokenEncoder`, or the name of a checkpoint for one.
        weights: Weight per relation, or per path of relations (``'title/title'``: the title above the nearest title).
            ``{}`` is plain MaxSim. By default titles have weight 1, the passages before and after 0.5.
        tokens: Stored token vectors of the graph's nodes; without them texts are encoded when they are scored.
        titles: Whether passages are encoded with the titles of their sections in front. With ``tokens`` the store
            decides.
        measure: What :meth:`fit` maximizes.
        device: A device as torch names it; by default a GPU where there is one.
        dtype: The precision of encoding and scoring; see :mod:`~pyterrier_graph.encoders.devices`.
        verbose: Whether to show progress.

    Raises:
        TypeError: If an argument is of another type.
        ValueError: If the graph does not have a relation, a weight is negative, or ``tokens`` are of another encoder.
    """

    schematic = {"label": "GraphMaxSim", "help_url": "https://pypi.org/project/pyterrier-graph/"}
    ARTIFACT_FORMAT = "graph_maxsim"
    WRITTEN = ("weights", "titles", "measure")
    KEEP_WEIGHTS = GraphReranker.KEEP_WEIGHTS | {"encoder", "weights", "measure"}

    weights: Mapping[str, float]

    def __init__(
        self,
        graph: HeteroGraph | None = None,
        encoder: Any = DEFAULT,
        weights: Mapping[str, float] | None = None,
        *,
        tokens: TokenStore | None = None,
        titles: bool = False,
        measure: str = "nDCG@10",
        device: str | None = None,
        dtype: DType = "float32",
        verbose: bool = True,
    ) -> None:
        super().__init__(graph, encoder, tokens=tokens, titles=titles, device=device, dtype=dtype, verbose=verbose)
        self.weights = TITLES_AND_NEIGHBORS if weights is None else weights
        self.measure = measure

    def __repr__(self) -> str:
        weights = ", ".join(f"{relation!r}: {weight:g}" for relation, weight in self.weights.items())
        return f"GraphMaxSim({self.graph!r}, {self.encoder!r}, {{{weights}}})"

    def _shown(self) -> tuple[dict[str, Any], list[str]]:
        weights = ", ".join(f"{relation}: {weight:g}" for relation, weight in self.weights.items())
        calls = ["reranker.save(path)", "plots.token_matches(reranker.explain(query, docno))"]
        return {"weights": weights or "none: plain MaxSim"}, calls

    def __setattr__(self, name: str, value: Any) -> None:
        """Checks weights, also when they are set later, as by ``pt.GridSearch``."""
        if name == "weights":
            value = check_weights(value)
            if self.graph is not None:
                check_relations(self.graph, value)
        super().__setattr__(name, value)

    def _check_attributes(self) -> None:
        super()._check_attributes()
        self.weights = self.weights  # checks them

    def _score(self, work: QueryPassages) -> np.ndarray:
        scores = np.zeros(len(work.rows))
        for rows, own, context in self._matches(work):
            scores[rows] = _weighted(own, context, self.weights)
        return scores

    def _matches(self, work: QueryPassages) -> Iterator[tuple[np.ndarray, torch.Tensor, torch.Tensor]]:
        """Per query its rows, best matches in passages (rows, tokens) and by relation (rows, relations, tokens)."""
        by_query = pd.Series(work.query).groupby(work.query).indices
        bar = pt.tqdm(by_query.items(), desc="GraphMaxSim", unit="q", delay=1, leave=None, disable=not self.verbose)
        for query, rows in bar:
            passages = work.node[rows]
            edges = [follow(work.graph, passages, relation) for relation in self.weights]
            nodes, index = np.unique(np.concatenate([passages, *(n for _, n in edges)]), return_inverse=True)
            own_index, *neighbors = np.split(index, np.cumsum([len(passages), *(len(n) for _, n in edges)])[:-1])
            vectors = work.queries[query]
            states = work.tokens.states(nodes, vectors.device)
            with precision(self.dtype, vectors.device):
                maxima = token_maxima(vectors, states).float()
            # a neighbor without tokens, such as a section without a title, is no match, not a match of 0
            found = maxima.masked_fill(states.lengths[:, None] == 0, -torch.inf)
            context = [
                best_of_neighbors(found, torch.from_numpy(row).to(found.device), torch.from_numpy(neighbor), len(rows))
                for (row, _), neighbor in zip(edges, neighbors, strict=True)
            ]
            own = maxima[torch.from_numpy(own_index)]
            yield rows, own, torch.stack([own.new_zeros(own.shape), *context], 1)[:, 1:]

    def _learn(self, training: Judged, validation: Judged | None) -> None:
        measure = Validation(*(validation or training), self.measure, self)
        matches = [
            (work.rows[rows], own, context)
            for work in self._work(measure.run)
            for rows, own, context in self._matches(work)
        ]

        def measured(weights: dict[str, float]) -> np.ndarray:
            scores = np.zeros(len(measure.run))
            for rows, own, context in matches:
                scores[rows] = _weighted(own, context, weights)
            return measure.per_query(scores)

        grid = [{relation: weight} for relation in self.weights for weight in GRID]
        self.weights = coordinate_search(self.weights, grid, measured, desc="GraphMaxSim.fit", verbose=self.verbose)

    def explain(self, query: str, docno: str, graph: HeteroGraph | None = None) -> pd.DataFrame:
        """Says where each query token found its match.

        Args:
            query: The query.
            docno: A passage id.
            graph: The graph; by default the graph of the reranker.

        Returns:
            A row per query token, with ``token``, ``relation`` (``'SELF'`` for the passage), ``node`` (its id),
            ``match`` (the token matched), ``similarity`` (cosine), ``score`` (weighted: the part of the score).
        """
        graph, passage, tokens = self._explained(docno, graph)
        vectors = self.encoder.encode_queries([query])[0]
        sources = [(name, weight, follow(graph, passage, name)[1]) for name, weight in self.weights.items() if weight]
        candidates = []
        for relation, weight, nodes in [(SELF, 1.0, passage), *sources]:
            for node in np.unique(nodes)[:, None]:
                found, pieces = tokens.states(node, vectors.device).values, self.encoder.tokens(tokens.texts(node)[0])
                if not len(found) and relation != SELF:
                    continue
                if not len(found):  # a passage without text matches with 0
                    found, pieces = torch.zeros_like(vectors[:1]), [""]
                similarity, position = (array.cpu().numpy() for array in (vectors @ found.T).max(1))
                matches = {
                    "place": np.arange(len(vectors)),
                    "token": self.encoder.tokens(query, query=True),
                    "relation": relation,
                    "node": graph.ids_of(node)[0],
                    "match": [pieces[p] for p in position],
                    "similarity": similarity,
                    "score": weight * similarity,
                }
                candidates.append(pd.DataFrame(matches))
        best = pd.concat(candidates).sort_values("score", ascending=False, kind="stable").drop_duplicates("place")
        return best.sort_values("place").drop(columns="place").reset_index(drop=True)


def _weighted(own: torch.Tensor, context: torch.Tensor, weights: Mapping[str, float]) -> np.ndarray:
    return graph_maxsim(own, context, torch.tensor([*weights.values()], device=own.device)).cpu().numpy()
