"""Contextual vectors and judged queries: the relevant passages, validation, and the grid search for weights."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from pyterrier_graph.encoders.queries import query_texts
from pyterrier_graph.encoders.vector_files import VectorsOf, blocks
from pyterrier_graph.graphs.query_passage_builder import unwrapped
from pyterrier_graph.graphs.relations import RELEVANT
from pyterrier_graph.models.gnn_encoder import GNNEncoderNetwork, Paths
from pyterrier_graph.retrieve.neighbor_sampler import IDS_AT_ONCE, NeighborSampler
from pyterrier_graph.retrieve.query_weights import QueryWeights
from pyterrier_graph.training.grid_search import WEIGHTS, Numbers, coordinate_search
from pyterrier_graph.training.validation import Validation, checked_topics, documents_of, judged
from pyterrier_graph.warning_categories import DataWarning, QualityWarning

if TYPE_CHECKING:
    from pyterrier_graph.retrieve.contextual_encoder import ContextualEncoder
    from pyterrier_graph.retrieve.graph_mean import GraphMean

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

    ``compute`` makes the function that computes passages (by default by the network as it then is); ``encode`` encodes
    queries, if the query encoder changes between calls. Judgments are of passages, or of documents for all of theirs.
    """
    sampler = model._sampler()
    topics, qrels = judged(checked_topics(topics, model)[["qid", "query"]], qrels, model)
    qrels = qrels[qrels["qid"].isin(topics["qid"])]
    evaluate = Validation(topics, qrels, measure, model)
    queries = query_texts(topics)
    _warn_of_leaks(sampler, queries)
    vectors = np.asarray(model.encoder.encode_queries(queries.tolist()), dtype=np.float32)
    frame = pd.DataFrame({"qid": queries.index, "query": queries.tolist(), "query_vec": [*vectors]})
    found = unwrapped(sampler.index.np_retriever(num_results=model.num_candidates)(frame))
    docnos = pd.concat([found["docno"], passages_of(sampler, qrels)[0]["docno"]]).unique()
    numbers = np.sort(sampler.numbers_of([*docnos]))
    ids = np.asarray(sampler.docnos_of(numbers), dtype=object)
    count = min(model.num_candidates, len(numbers))
    qids = np.repeat(queries.index.to_numpy(), count)

    def measured() -> np.ndarray:
        vectors_of = compute() if compute is not None else model._vectors_of(sampler)
        states = [vectors_of(numbers[part]) for part in blocks(len(numbers), PASSAGES_AT_ONCE)]
        current = vectors if encode is None else np.asarray(encode(queries.tolist()), dtype=np.float32)
        everything = torch.from_numpy(np.concatenate(states))
        best = [(part @ everything.T).topk(count) for part in torch.from_numpy(current).split(QUERIES_AT_ONCE)]
        scores, places = (torch.cat(parts).flatten().numpy() for parts in zip(*best, strict=True))
        return evaluate.per_query_of(pd.DataFrame({"qid": qids, "docno": ids[places], "score": scores}))

    return measured


def _warn_of_leaks(sampler: NeighborSampler, queries: pd.Series) -> None:
    """Warns if passages aggregate from validation queries, which are then found too easily."""
    if not sampler.query_relations:
        return
    numbers, twins = sampler.in_query_graph([*queries.index], queries.tolist())
    if inside := int((numbers >= 0).sum() + twins.sum()):
        warnings.warn(
            f"{inside} of {len(queries)} validation queries are in the graph ({int(twins.sum())} by their text, under "
            "another qid): passages aggregate from them, so that they are too easy",
            QualityWarning,
            stacklevel=4,
        )


def passages_of(sampler: NeighborSampler, qrels: pd.DataFrame) -> tuple[pd.DataFrame, bool]:
    """The relevant passages of queries: judgments of documents are those of all their passages.

    Returns ``qid, docno`` of passages in the index, and whether it was documents that were judged. Others are left out
    with a warning; KeyError if no relevant passage is in the index.
    """
    relevant = qrels.loc[qrels["label"] > 0, ["qid", "docno"]].drop_duplicates()
    known = sampler.numbers_of(relevant["docno"].tolist()) >= 0
    if known.any():
        passages, missing = relevant[known].reset_index(drop=True), relevant["docno"][~known]
    else:
        parts = []
        for part in blocks(len(sampler), IDS_AT_ONCE):
            docnos = pd.Series(sampler.docnos_of(part), dtype=object)
            passages = pd.DataFrame({"passage": docnos, "docno": documents_of(docnos, sampler.graph)})
            parts.append(relevant.merge(passages, on="docno"))
        joined = pd.concat(parts, ignore_index=True)
        passages = joined[["qid", "passage"]].rename(columns={"passage": "docno"})
        missing = relevant["docno"][~relevant["docno"].isin(joined["docno"])]
    if not len(passages):
        raise KeyError("no relevant passage is in the index: are the judgments of another corpus?")
    if len(missing):
        warnings.warn(
            f"{len(missing)} relevant docnos of the qrels are not in the index, and left out: {missing.iloc[0]!r}, ...",
            DataWarning,
            stacklevel=4,
        )
    return passages, not known.any()


def tune_largest_weights(model: GraphMean, topics: pd.DataFrame, qrels: pd.DataFrame | None, measure: str) -> None:
    """Moves the largest weights of relations, of vectors side by side, as far as the validation queries support it."""
    start, vectors_of = model.largest_weights, model._vectors_of(model._sampler())
    kept: dict[int, np.ndarray] = {}
    queries: list[pd.DataFrame] = []

    def kept_vectors_of(passages: np.ndarray) -> np.ndarray:
        first = int(passages[0])
        if first not in kept:
            kept[first] = vectors_of(passages)
        return kept[first]

    def wide(texts: list[str]) -> np.ndarray:
        if not queries:
            vectors = np.asarray(model.encoder.encode_queries(texts), dtype=np.float32)
            queries.append(pd.DataFrame({"query_vec": [*vectors]}))
        weights = QueryWeights(model._sample, model.largest_weights)
        return np.stack(weights.transform(queries[0])["query_vec"].to_numpy())

    measured = validation(model, topics, qrels, measure, lambda: kept_vectors_of, wide)

    def trial(values: Numbers) -> np.ndarray:
        model.largest_weights = values
        return measured()

    grid = [{name: factor * (weight or 1.0)} for name, weight in start.items() for factor in FACTORS]
    model.largest_weights = coordinate_search(start, grid, trial, desc="GraphMean.fit", verbose=model.verbose)


def tune_weights(model: ContextualEncoder, topics: pd.DataFrame, qrels: pd.DataFrame | None, measure: str) -> None:
    """Moves the weights of relations, and ``isolated_norm``, as far as the validation queries support it.

    See :func:`~pyterrier_graph.training.grid_search.coordinate_search`; the weight of relevant queries and
    ``isolated_norm`` move as a pair, since the one changes what is best for the other. Nothing else changes.
    """
    network = model.network
    if not isinstance(network, GNNEncoderNetwork):
        raise ValueError(f"{model!r} has no weights of relations: the papers' network cannot be tuned")
    paths_of = model._computed(
        model._sampler(), lambda batch: network.paths(batch.passages, batch.sources, batch.edges)
    )
    kept: dict[int, Paths] = {}

    @torch.inference_mode()
    def vectors_of(passages: np.ndarray) -> np.ndarray:
        first = int(passages[0])
        if first not in kept:
            kept[first] = paths_of(passages)
        return network.joined(kept[first]).float().cpu().numpy()

    numbers = dict(zip(network.relations, network.scalars(), strict=True)) | {ISOLATED_NORM: network.isolated_norm}
    measured = validation(model, topics, qrels, measure, lambda: vectors_of)

    def assign(values: Numbers) -> None:
        with torch.no_grad():
            for name, value in values.items():
                numbers[name].fill_(value)

    def trial(values: Numbers) -> np.ndarray:
        assign(values)
        return measured()

    grid: list[Numbers] = []
    for name in network.relations:
        if name == RELEVANT:
            grid += [{name: w, ISOLATED_NORM: n} for w in WEIGHTS for n in ISOLATED_NORMS if w or n == 1]
        else:
            grid += [{name: w} for w in WEIGHTS]
    start = {name: float(number.detach()) for name, number in numbers.items()}
    assign(coordinate_search(start, grid, trial, verbose=model.verbose))
