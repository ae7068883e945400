"""What a reranker learns from: triples of the queries of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pyterrier_graph.encoders.queries import query_texts
from pyterrier_graph.rerank.base import graph_of
from pyterrier_graph.training.negatives import NegativeSampler
from pyterrier_graph.training.options import HGATTraining

if TYPE_CHECKING:
    from pyterrier_graph.graphs import HeteroGraph


def draw_triples(
    run: pd.DataFrame, qrels: pd.DataFrame, graph: HeteroGraph | None, options: HGATTraining
) -> tuple[list[str], list[HeteroGraph], np.ndarray]:
    """Draws negatives as the options say.

    Args:
        run: ``qid, query, docno``, and ``graph`` where there is no document graph; ``codes`` where queries have some.
        qrels: ``qid, docno, label``; ids are text, as in the run.
        graph: The document graph, or None.
        options: How to train.

    Returns:
        The queries' texts, the graphs, and the triples, shape (triples, 4), with the fields of ``training.Example``.

    Raises:
        ValueError: If there is nothing to learn from, or the strategy needs a document graph.
    """
    texts = query_texts(run)
    qrels = qrels[qrels["qid"].isin(texts.index)]
    if graph is not None:
        sources = [(graph, qrels, run)]
    elif options.negatives == "candidates":
        sources = list(_learnable(run, qrels))
    else:
        raise ValueError(
            "without a document graph, negatives can only come from each query's own passages: "
            "use HGATTraining(negatives='candidates')"
        )
    if not sources:
        raise ValueError("no training query has both a relevant passage among its own and one that is judged lower")
    codes = run.drop_duplicates("qid").set_index("qid")["codes"].to_dict() if "codes" in run.columns else None
    drawn = []
    for place, (source, labels, candidates) in enumerate(sources):
        given = candidates if options.negatives == "candidates" else None
        sampler = NegativeSampler(
            source, labels, options.negatives, candidates=given, codes=codes, seed=options.seed + place
        )
        query = texts.index.get_indexer(sampler.qids)
        for _ in range(options.repeats):
            new = sampler.sample()
            here = np.full(len(new), place)
            drawn.append(np.column_stack([here, query[new.query], new.positive, new.negative]))
    triples = np.concatenate(drawn)
    if options.max_triples is not None and options.max_triples < len(triples):
        triples = np.random.default_rng(options.seed).choice(triples, options.max_triples, replace=False)
    return texts.tolist(), [source for source, *_ in sources], triples


def _learnable(run: pd.DataFrame, qrels: pd.DataFrame) -> Iterator[tuple[HeteroGraph, pd.DataFrame, pd.DataFrame]]:
    """Graph, judgments and passages of each query whose own passages are not all equally relevant."""
    labels = qrels.drop_duplicates(["qid", "docno"]).set_index(["qid", "docno"])["label"]
    pairs = pd.MultiIndex.from_frame(run[["qid", "docno"]])
    run = run.assign(label=labels.reindex(pairs, fill_value=0).to_numpy())
    for rows in run.groupby("qid", sort=False).indices.values():
        passages = run.iloc[rows].drop_duplicates("docno")
        if passages["label"].max() > max(passages["label"].min(), 0):
            yield graph_of(passages), passages, passages
