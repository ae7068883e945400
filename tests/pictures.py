"""What the tests of pictures draw: small frames, and a call of each function that draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import tiny

from pyterrier_graph import plots
from pyterrier_graph.rerank.lgre import LearnedWordGraph

RELATIONS = pd.DataFrame({"layer 1": [0.5, 0.2, 0.3], "layer 2": [0.1, 0.6, 0.3]}, index=["order", "order_i", "SELF"])
MATCHES = pd.DataFrame(
    {
        "token": ["alpha", "beta", "$x$"],
        "relation": ["SELF", "structural", "SELF"],
        "node": ["d0%p0", "d0%s0", f"d{'0' * 90}%p0"],
        "match": ["alpha", "gamma", "$\\broken{"],
        "similarity": [0.9, 0.8, -0.1],
        "score": [0.9, 0.4, -0.1],
    }
)
PARTS = pd.DataFrame(
    {
        "node": ["d0%p0", "d0%p1", "d0%p0", "d0%s0"],
        "relation": ["SELF", "order", "SELF", ""],
        "position": [0, 0, 1, 0],
        "token": ["alpha", "beta", "gamma", "delta"],
        "contribution": [0.2, 0.5, 0.1, -0.4],
    }
)
QUERIES = pd.DataFrame(
    {
        "qid": ["q1", "q2", "q3"],
        "query": ["short", "long " * 40, "$a$ and $\\b$"],
        "weight": [0.1, 0.7, 0.2],
        "relation": ["retrieved", "relevant", "retrieved"],
    }
)
EXPERIMENT = pd.DataFrame(
    {
        "name": ["BM25", "slow", "best", "beaten", "fast"],
        "nDCG@10": [0.4, 0.3, 0.6, 0.55, 0.5],
        "mrt": [1.0, 200.0, 100.0, 120.0, 5.0],
    }
)
BEFORE = pd.DataFrame({"positive_query": [0.5, 0.6, 0.7, 0.4], "positive_negative": [0.6, 0.5, 0.8, 0.6]})
AFTER = pd.DataFrame({"positive_query": [0.8, 0.9, 0.7], "positive_negative": [0.3, 0.5, 0.4]})
SWEPT = pd.DataFrame(
    [
        {"system": system, "k": k, "seed": seed, "qid": qid, "measure": "nDCG@10", "value": value + 0.2 * (qid == "b")}
        for system, k, seed, value in [
            ("dual", None, 0, 0.3),
            ("$gnn$", 10, 0, 0.5),
            ("$gnn$", 10, 1, 0.6),
            ("$gnn$", 5, 0, 0.4),
            ("$gnn$", 5, 1, 0.4),
        ]
        for qid in "ab"
    ]
)
MEASURE = "RR@10"
LOG: list[dict[str, float]] = [
    {MEASURE: 0.3, "epoch": 0.0, "step": 0},
    {"loss": 0.7, "learning_rate": 0.1, "epoch": 1.0, "step": 5},
    {MEASURE: 0.5, "epoch": 1.0, "step": 5},
    {"loss": 0.6, "learning_rate": 0.1, "epoch": 2.0, "step": 10},
    {MEASURE: 0.4, "epoch": 2.0, "step": 10},
    {"train_runtime": 1.0, "train_loss": 0.65, "epoch": 2.0, "step": 10},
]
VECTORS = np.random.default_rng(0).normal(size=(30, 5))
STATES = pd.DataFrame({"qid": "1", "docno": [f"d{n}" for n in range(5)] * 2, "side": ["query"] * 5 + ["document"] * 5})
STATES["state"] = list(VECTORS[:10])
QRELS = pd.DataFrame({"qid": ["1", "1"], "docno": ["d0", "d1"], "label": [1, 0]})
WORDS = LearnedWordGraph(
    ["[CLS]", "alpha", "[SEP]", "alpha", "$b$", "[SEP]"],
    np.array([-1, 0, -1, 1, 1, -1]),
    (2,),
    np.pad(np.eye(6)[None] * 0.5, 0) + np.eye(6)[None, :, ::-1] * 0.5,
    np.ones(1),
    1.5,
)

SCORES = np.random.default_rng(1).uniform(0, 1, 40)
RESULTS = pd.DataFrame(
    [
        {"name": name, "qid": str(n), "measure": "nDCG@10", "value": min(1.0, score + gain * (1 + n % 3))}
        for name, gain in [("BM25", 0.0), ("$hybrid$", 0.05), ("the same", 0.0)]
        for n, score in enumerate(SCORES * 0.6)
    ]
)

PICTURES: dict[str, Callable[..., Any]] = {
    "document_graph": lambda **to: plots.document_graph(tiny.graph(), "d0", **to),
    "relation_weights": lambda **to: plots.relation_weights(RELATIONS, **to),
    "token_matches": lambda **to: plots.token_matches(MATCHES, title="$q$ " * 60, **to),
    "contributions": lambda **to: plots.contributions(PARTS, title="$\\q{$", **to),
    "word_graph": lambda **to: plots.word_graph(WORDS, **to),
    "state_map": lambda **to: plots.state_map(STATES, QRELS, method="pca", **to),
    "embedding_map": lambda **to: plots.embedding_map(VECTORS, ["$a$", "$\\b{$", "c"] * 10, method="pca", **to),
    "passage_queries": lambda **to: plots.passage_queries(QUERIES, title="d0%p0", **to),
    "measure_curve": lambda **to: plots.measure_curve(SWEPT, "nDCG@10", x="k", title="$a$", **to),
    "results": lambda **to: plots.results(RESULTS, title="$a$", **to)[0],
    "effectiveness_latency": lambda **to: plots.effectiveness_latency(EXPERIMENT, "nDCG@10", **to),
}
