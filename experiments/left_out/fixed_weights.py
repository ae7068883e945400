"""GraphMean with fixed weights: all points of a grid, measured on validation and test queries."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import cast

import ir_measures
import numpy as np
import pandas as pd
import pyterrier as pt
from ir_measures import nDCG

from experiments.harness.collection import Queries
from experiments.harness.results import write
from experiments.left_out.fold import Fold
from pyterrier_graph.graphs.hetero_graph import judged_ids
from pyterrier_graph.graphs.relations import RELEVANT, TITLE

CANDIDATES = 100
TITLES = (0.0, 0.2, 0.5, 1.0, 2.0, 3.0)
RELEVANTS = (0.0, 0.2, 0.5, 1.0)
GRID = [
    {TITLE: title, RELEVANT: relevant} for title, relevant in itertools.product(TITLES, RELEVANTS)
]


def measured(fold: Fold) -> pd.DataFrame:
    """The measure of each query with each weights: ``title, relevant, split, qid, value``; it is stored.

    Where passages have no titles, all weights of titles measure the same.
    """
    file = fold.output / "weights.csv.gz"
    if not file.exists():
        parts = {"dev": fold.dev, "test": fold.test}
        encoder, corpus = fold.corpus.encoder, fold.corpus
        queries = {
            split: encoder.encode_queries(part.topics["query"].tolist())
            for split, part in parts.items()
        }
        mean = fold.mean(weights=GRID[0])
        ids = np.asarray([*map(str, corpus.graph.ids_of(corpus.graph.passage_nodes))], dtype=object)
        rows: list[pd.DataFrame] = []
        for weights in pt.tqdm(GRID, desc="weights", unit="point", delay=1):
            if weights[TITLE] and not corpus.titled:
                rows += [
                    part.assign(**weights)
                    for part in rows
                    if part[RELEVANT].iloc[0] == weights[RELEVANT]
                ][:2]
                continue
            mean.weights = weights
            vectors = mean.vectors_of([*ids])
            for split, part in parts.items():
                values = _per_query(part, queries[split] @ vectors.T, ids)
                rows.append(values.assign(split=split, **weights))
        write(pd.concat(rows, ignore_index=True), file)
    return pd.read_csv(file, dtype={"qid": str})


def _per_query(queries: Queries, scores: np.ndarray, ids: np.ndarray) -> pd.DataFrame:
    count = min(CANDIDATES, scores.shape[1])
    best = np.argpartition(scores, -count, axis=1)[:, -count:]
    run = pd.DataFrame(
        {
            "qid": np.repeat(queries.topics["qid"].to_numpy(), count),
            "docno": ids[best.ravel()],
            "score": np.take_along_axis(scores, best, axis=1).ravel(),
        }
    )
    run["docno"] = judged_ids(run["docno"], queries.qrels)
    run = run.groupby(["qid", "docno"], as_index=False)["score"].max()
    values = ir_measures.iter_calc([nDCG @ 10], *map(pt.model.to_ir_measures, (queries.qrels, run)))
    return pd.DataFrame(
        [(value.query_id, value.value) for value in values], columns=["qid", "value"]
    )


def best_weights(measurements: Iterable[pd.DataFrame], split: str) -> dict[str, float]:
    """The weights with the highest mean over collections of the mean over queries; the first of equals.

    Args:
        measurements: Per collection, what :func:`measured` returns of all folds.
        split: ``'dev'`` or ``'test'``.
    """
    means = [
        part[part["split"] == split].groupby([TITLE, RELEVANT])["value"].mean().rename(number)
        for number, part in enumerate(measurements)
    ]
    title, relevant = cast(
        tuple[float, float], pd.concat(means, axis=1).mean(axis=1).round(12).idxmax()
    )
    return {TITLE: float(title), RELEVANT: float(relevant)}
