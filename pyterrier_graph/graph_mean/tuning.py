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
from pyterrier_graph.training.validation import Validation, checked_topics, judged

if TYPE_CHECKING:
    from pyterrier_graph.graph_mean.graph_mean import ContextualEncoder

CANDIDATES = 100  # passages per validation query; each query ranks the candidates of all
PASSAGES_AT_ONCE, QUERIES_AT_ONCE = 4096, 64
ISOLATED_NORM = "isolated_norm"
FACTORS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)  # of the largest weights
ISOLATED_NORMS = (1.0, 1.05, 1.1, 1.15, 1.2)


def validation(
    model: ContextualEncoder,
    topics: pd.DataFrame,
    qrels: pd.DataFrame | None,
    measure: str,
    compute: Callable[[], VectorsOf] | None = None,
    encode: Callable[[list[str]], Any] | None = None,
) -> Callable[[], np.ndarray]:
    """Makes a function that measures the model in its present state on each validation query.

    The candidates of all queries are ranked for each query: what the encoder finds for any of them, and all relevant
    passages. Among the candidates of one query alone, a passage that rises for all queries would not be noticed.
    ``compute`` makes the function that computes passages, by default the model's network in its present state;
    ``encode`` encodes queries, if the query encoder changes between calls.
    """
    sampler = model._sampler()
    topics, qrels = judged(checked_topics(topics, model), qrels, model)
    qrels = qrels[qrels["qid"].isin(topics["qid"])]
    evaluate = Validation(topics, qrels, measure, model)
    queries = query_texts(topics)
    graph = sampler.query_graph if sampler.query_relations else None
    if inside := 0 if graph is None else int((numbers_of(graph.qids, [*queries.index]) >= 0).sum()):
        message = f"{inside} of {len(queries)} validation queries are in the graph: passages aggregate from them"
        warnings.warn(message, QualityWarning, stacklevel=3)
    vectors = np.asarray(model.encoder.encode_queries(queries.tolist()), dtype=np.float32)
    found = nearest(vectors, sampler.index.payload()[1], CANDIDATES)[1]
    numbers = np.union1d(found, sampler.numbers_of(passages_of(sampler, qrels)[0]["docno"].tolist()))
    ids = np.asarray(sampler.docnos_of(numbers), dtype=object)
    count = min(CANDIDATES, len(numbers))
    qids = np.repeat(queries.index.to_numpy(), count)

    def measured() -> np.ndarray:
        vectors_of = compute() if compute is not None else model._compute(sampler)
        states = [vectors_of(numbers[part]) for part in blocks(len(numbers), PASSAGES_AT_ONCE)]
        current = vectors if encode is None else np.asarray(encode(queries.tolist()), dtype=np.float32)
        everything = torch.from_numpy(np.concatenate(states))
        best = [(part @ everything.T).topk(count) for part in torch.from_numpy(current).split(QUERIES_AT_ONCE)]
        scores, places = (torch.cat(parts).flatten().numpy() for parts in zip(*best, strict=True))
        return evaluate.per_query_of(pd.DataFrame({"qid": qids, "docno": ids[places], "score": scores}))

    return measured


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
    start, weights = dict(model.largest_weights), model._query_weights
    assert weights is not None
    compute = _kept(model._compute(model._sampler()))
    queries: list[np.ndarray] = []
    present = start

    def wide(texts: list[str]) -> np.ndarray:
        if not queries:
            queries.append(np.asarray(model.encoder.encode_queries(texts), dtype=np.float32))
        return QueryWeights(weights.sample, present).widened(queries[0])

    measured = validation(model, topics, qrels, measure, lambda: compute, wide)

    def trial(values: Numbers) -> np.ndarray:
        nonlocal present
        present = values
        return measured()

    grid = [{name: factor * (weight or 1.0)} for name, weight in start.items() for factor in FACTORS]
    return coordinate_search(start, grid, trial, desc="GraphMean.fit", verbose=model.verbose)


def tuned_weights(
    model: ContextualEncoder, topics: pd.DataFrame, qrels: pd.DataFrame | None, measure: str
) -> tuple[Numbers, float]:
    """The weights of relations, and ``isolated_norm``, moved as far as the validation queries support it.

    See :func:`~pyterrier_graph.training.grid_search.coordinate_search`; the weight of relevant queries and
    ``isolated_norm`` move as a pair, since the one changes what is best for the other.
    """
    network = model.network
    compute = model._compute(model._sampler())
    terms_of = _kept(partial(compute.apply, lambda batch: network.terms(batch.passages, batch.sources, batch.edges)))
    start = {name: float(weight) for name, weight in network.weights.items()}
    start[ISOLATED_NORM] = float(network.isolated_norm)
    present = start

    def vectors_of(passages: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return terms_of(passages).joined(present, present[ISOLATED_NORM]).float().cpu().numpy()

    measured = validation(model, topics, qrels, measure, lambda: vectors_of)

    def trial(values: Numbers) -> np.ndarray:
        nonlocal present
        present = values
        return measured()

    grid: list[Numbers] = []
    for name in network.relations:
        if name == RELEVANT:
            grid += [{name: w, ISOLATED_NORM: n} for w in WEIGHTS for n in ISOLATED_NORMS if w or n == 1]
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
