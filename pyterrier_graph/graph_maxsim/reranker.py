"""GraphMaxSim: late interaction along a graph, without a network."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyterrier_graph.checks import progress
from pyterrier_graph.configuration import checked_weights
from pyterrier_graph.encoders.checkpoints import DType
from pyterrier_graph.encoders.names import DEFAULT
from pyterrier_graph.encoders.token_store import TokenStore
from pyterrier_graph.graph_maxsim.graph_reranker import (
    GraphReranker,
    QueryMatches,
    QueryPassages,
    best_matches,
    graph_maxima,
    rows_of_each,
)
from pyterrier_graph.graphs.hetero_graph import (
    HeteroGraph,
    check_relations,
    warn_of_missing_edges,
)
from pyterrier_graph.training.grid_search import Tuning, coordinate_search
from pyterrier_graph.training.validation import JudgedRun, Validation

TITLES_AND_NEIGHBORS = {"title": 1.0, "title/title": 1.0, "order": 0.5, "order_i": 0.5}
GRID = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


class GraphMaxSim(GraphReranker):
    """Reranks passages by the best match of each query token in a passage or, with a weight, in its neighbors.

    .. cite:: khattab2020colbert
        :citation: Khattab and Zaharia. ColBERT: efficient and effective passage search via contextualized late
            interaction over BERT. SIGIR 2020.
        :link: https://doi.org/10.1145/3397271.3401075

    ``sum over query tokens of max(match in the passage, weight_r * best match in its neighbors of relation r, ...)``

    It needs a late-interaction checkpoint, such as ColBERT, whose token vectors are trained to be matched. The token
    vectors of an off-the-shelf sentence encoder, such as the default one, are not: with them GraphMaxSim was below BM25
    on a collection of research articles that it was not tuned on. Compare it with the first stage before you use it.

    There is no network, and stored token vectors of passages and titles are used as they are:
    :class:`~pyterrier_graph.HGATReranker` is its counterpart with a network. :meth:`fit` learns one weight per
    relation: each in turn moves to a value in 0, 0.2, ... 1, as far as the queries support it by ``training.measure``
    (see :func:`~pyterrier_graph.training.grid_search.coordinate_search`). So few weights need few queries: ``fit`` uses
    the validation queries if there are any, else the training queries.

    Args:
        graph: The document graph; None to use the graph in the ``graph`` column (see ``CandidateGraph``).
        encoder: A :class:`~pyterrier_graph.encoders.token_encoder.TokenEncoder`, or the name of a checkpoint for one.
        weights: Weight per relation, or per path of relations (``'title/title'``: the title above the nearest title).
            ``{}`` is plain MaxSim. By default titles have weight 1, the next and previous passage 0.5.
        tokens: Stored token vectors of the graph's nodes. Without them, texts are encoded when they are first scored,
            and their vectors stay in memory for all models with the same encoder: 2 bytes per dimension and token.
        titles: Whether passages are encoded with the titles of their sections in front. With ``tokens`` the store
            decides.
        training: Options of :meth:`fit`.
        device: A device as torch names it; by default a GPU where there is one.
        dtype: The precision of encoding; see :mod:`~pyterrier_graph.encoders.checkpoints`. A TokenEncoder has its own.
        verbose: Whether to show progress.

    Columns in: ``qid, query, docno`` (a passage id of the graph); without a graph also ``graph``, as ``CandidateGraph``
    makes it.
    Columns out: those, with new ``score`` and ``rank``.

    Raises:
        TypeError: If an argument is of another type.
        ValueError: If the graph does not have a relation, a weight is negative, or ``tokens`` are from another encoder.
    """

    schematic = {"label": "GraphMaxSim", "help_url": "https://pypi.org/project/pyterrier-graph/"}
    ARTIFACT_FORMAT = "graph_maxsim"
    TRAINING = Tuning
    WRITTEN = ("weights", "titles")
    KEEP_WEIGHTS = GraphReranker.KEEP_WEIGHTS | {"encoder", "weights", "titles"}

    def __init__(
        self,
        graph: HeteroGraph | None = None,
        encoder: Any = DEFAULT,
        weights: Mapping[str, float] | None = None,
        *,
        tokens: TokenStore | None = None,
        titles: bool = False,
        training: Tuning | None = None,
        device: str | None = None,
        dtype: DType = "auto",
        verbose: bool = True,
    ) -> None:
        super().__init__(graph, encoder, tokens, titles, device, dtype, verbose)
        self.weights = TITLES_AND_NEIGHBORS if weights is None else weights
        self.training = training or Tuning()
        self._check()
        if graph is not None and weights is not None:
            warn_of_missing_edges(graph, weights)

    def __repr__(self) -> str:
        return f"GraphMaxSim({self.graph!r}, {self.encoder!r}, {self.weights})"

    def _check(self) -> None:
        super()._check()
        self.weights = checked_weights(self.weights)
        if self.graph is not None:
            check_relations(self.graph, self.weights)

    def _matches_of(self, work: QueryPassages) -> Iterator[QueryMatches]:
        groups = rows_of_each(work.query)
        for rows in progress(groups, len(groups), "query", verbose=self.verbose):
            number = work.query[rows[0]]
            query = work.queries[number]  # (query tokens, d)
            passages = work.node[rows]
            own, context = best_matches(work, query, passages, self.weights)
            yield QueryMatches(work.rows[rows], query, own, context)

    def _match_weights(self, query: Tensor) -> tuple[Sequence[str], Tensor, Tensor]:
        tokens = len(query)
        weights = torch.tensor(list(self.weights.values()), device=query.device)
        by_token = weights[:, None].expand(-1, tokens)  # (relations, query tokens)
        importance = weights.new_ones(tokens)
        return list(self.weights), by_token, importance

    def _score(self, matches: QueryMatches) -> Tensor:
        _, weights, _ = self._match_weights(matches.query)
        maxima = graph_maxima(matches.own, matches.context, weights)  # (passages, query tokens)
        return maxima.sum(1)

    def _learn(self, training: JudgedRun, validation: JudgedRun | None) -> None:
        measure = Validation(validation or training, self.training.measure)
        matches = [*self._matches(measure.run)]  # do not depend on the weights

        trial = copy.copy(self)

        def measured(weights: dict[str, float]) -> np.ndarray:
            trial.weights = weights
            scores = trial._scores_of(matches, len(measure.run))
            return measure.per_query(scores)

        grid = [{relation: weight} for relation in self.weights for weight in GRID]
        self.weights = coordinate_search(
            self.weights, grid, measured, desc="GraphMaxSim.fit", verbose=self.verbose
        )
