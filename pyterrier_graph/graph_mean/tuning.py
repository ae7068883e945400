"""How GraphMean and GNNEncoder are measured on validation queries, and the grid search for weights of relations."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from pyterrier_graph.checks import QualityWarning, query_texts
from pyterrier_graph.encoders.stored_vectors import VectorsOf
from pyterrier_graph.graph_mean.contextual_index import QueryWeights, nearest
from pyterrier_graph.graph_mean.neighbors import NeighborSampler
from pyterrier_graph.graphs.hetero_graph import passage_qrels
from pyterrier_graph.graphs.relations import RELEVANT
from pyterrier_graph.storage.arrays import blocks, numbers_of
from pyterrier_graph.training.grid_search import WEIGHTS, Numbers, coordinate_search
from pyterrier_graph.training.validation import JudgedRun, Validation, checked_topics

if TYPE_CHECKING:
    from pyterrier_graph.graph_mean.graph_mean import ContextualEncoder

CANDIDATES = 100  # passages per validation query; each query ranks the candidates of all
PASSAGES_AT_ONCE, QUERIES_AT_ONCE = 4096, 64
ISOLATED_NORM = "isolated_norm"
FACTORS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)  # of the largest weights
ISOLATED_NORMS = (1.0, 1.05, 1.1, 1.15, 1.2)


class PassageValidation:
    """Measures a model on validation queries, by default with its network in its present state.

    The candidates of all queries are ranked for each query: what the encoder finds for any of them, and all relevant
    passages. Among the candidates of one query alone, a passage that rises for all queries would not be noticed.

    Attributes:
        queries: The texts of the queries.
        vectors: The encoder's own vectors of the queries, shape (queries, d).
        weights: The weights of relations for each query; None if all have the same.
    """

    def __init__(
        self,
        model: ContextualEncoder,
        topics: pd.DataFrame,
        qrels: pd.DataFrame | None,
        measure: str,
    ) -> None:
        self._model, self._sampler = model, model._sampler()
        sampler = self._sampler
        judged = JudgedRun(checked_topics(topics, model), qrels, model)
        topics, qrels = judged.rows, judged.qrels
        qrels = qrels[qrels["qid"].isin(topics["qid"])]
        self._evaluate = Validation(judged, measure)
        texts = query_texts(topics)
        self.queries = texts.tolist()
        graph = sampler.query_graph if sampler.query_relations else None
        if (
            inside := 0
            if graph is None
            else int((numbers_of(graph.qids, [*texts.index]) >= 0).sum())
        ):
            message = f"{inside} of {len(texts)} validation queries are in the graph: passages aggregate from them"
            warnings.warn(message, QualityWarning, stacklevel=3)
        self.weights = model._query_weights
        self.vectors = np.asarray(model.encoder.encode_queries(self.queries), dtype=np.float32)
        found = nearest(self.vectors, sampler.index.payload()[1], CANDIDATES)[1]
        relevant = passages_of(sampler, qrels)[0]["docno"].tolist()
        self._candidates = np.union1d(found, sampler.numbers_of(relevant))
        self._ids = np.asarray(sampler.docnos_of(self._candidates), dtype=object)
        self._count = min(CANDIDATES, len(self._candidates))
        self._qids = np.repeat(texts.index.to_numpy(), self._count)

    def __call__(
        self, vectors_of: VectorsOf | None = None, queries: np.ndarray | None = None
    ) -> np.ndarray:
        """The measure of each query, with given functions of passages, and vectors of queries."""
        compute = self._model._compute(self._sampler) if vectors_of is None else vectors_of
        parts = blocks(len(self._candidates), PASSAGES_AT_ONCE)
        passages = torch.from_numpy(
            np.concatenate([compute(self._candidates[part]) for part in parts])
        )
        queries = self.vectors if queries is None else queries
        vectors = torch.from_numpy(
            queries if self.weights is None else self.weights.widened(queries)
        )
        best = [(part @ passages.T).topk(self._count) for part in vectors.split(QUERIES_AT_ONCE)]
        scores, places = (torch.cat(parts).flatten().numpy() for parts in zip(*best, strict=True))
        run = pd.DataFrame({"qid": self._qids, "docno": self._ids[places], "score": scores})
        return self._evaluate.per_query_of(run)


def passages_of(sampler: NeighborSampler, qrels: pd.DataFrame) -> tuple[pd.DataFrame, bool]:
    """The relevant passages of queries, ``qid, docno`` of passages in the index, and whether documents were judged."""
    relevant = qrels.loc[qrels["label"] > 0, ["qid", "docno"]].drop_duplicates()
    found = passage_qrels(relevant, sampler.docnos if sampler.graph is None else sampler.graph)
    found = found[sampler.numbers_of(found["docno"].tolist()) >= 0].reset_index(drop=True)
    return found, not found["docno"].isin(relevant["docno"]).any()


def tuned_largest_weights(
    model: ContextualEncoder, topics: pd.DataFrame, qrels: pd.DataFrame | None, measure: str
) -> Numbers:
    """The largest weights of relations, moved as far as the validation queries support it."""
    start = dict(model.largest_weights)
    compute = _kept(model._compute(model._sampler()))
    measured = PassageValidation(model, topics, qrels, measure)
    assert measured.weights is not None
    sample = measured.weights.sample

    def trial(values: Numbers) -> np.ndarray:
        measured.weights = QueryWeights(sample, values)
        return measured(compute)

    grid = [
        {name: factor * (weight or 1.0)} for name, weight in start.items() for factor in FACTORS
    ]
    return coordinate_search(start, grid, trial, verbose=model.verbose)


def tuned_weights(
    model: ContextualEncoder, topics: pd.DataFrame, qrels: pd.DataFrame | None, measure: str
) -> tuple[Numbers, float]:
    """The weights of relations, and ``isolated_norm``, moved as far as the validation queries support it.

    See :func:`~pyterrier_graph.training.grid_search.coordinate_search`; the weight of relevant queries and
    ``isolated_norm`` move as a pair, since the one changes what is best for the other.
    """
    network = model.network
    compute = model._compute(model._sampler())
    terms_of = _kept(
        partial(
            compute.apply, lambda batch: network.terms(batch.passages, batch.sources, batch.edges)
        )
    )
    start = {name: float(weight) for name, weight in network.weights.items()}
    start[ISOLATED_NORM] = float(network.isolated_norm)
    measured = PassageValidation(model, topics, qrels, measure)

    def trial(values: Numbers) -> np.ndarray:
        def vectors_of(passages: np.ndarray) -> np.ndarray:
            with torch.inference_mode():
                return (
                    terms_of(passages).joined(values, values[ISOLATED_NORM]).float().cpu().numpy()
                )

        return measured(vectors_of)

    grid: list[Numbers] = []
    for name in network.relations:
        if name == RELEVANT:
            grid += [
                {name: w, ISOLATED_NORM: n} for w in WEIGHTS for n in ISOLATED_NORMS if w or n == 1
            ]
        else:
            grid += [{name: w} for w in WEIGHTS]
    weights = coordinate_search(start, grid, trial, verbose=model.verbose)
    return weights, weights.pop(ISOLATED_NORM)


def _kept(compute: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray], Any]:
    """A function of passages whose results are kept by the first passage: blocks are always the same."""
    kept: dict[int, Any] = {}

    def computed(passages: np.ndarray) -> Any:
        first = int(passages[0])
        if first not in kept:
            kept[first] = compute(passages)
        return kept[first]

    return computed
