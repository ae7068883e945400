"""A teacher of late interaction, for machines without a good cross-encoder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyterrier as pt
from scipy.special import logsumexp
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import pyterrier_graph as ptg
from experiments.harness.calibration import Probability
from experiments.harness.collection import Collection, Queries


def late_interaction(
    collection: Collection,
    encoder: ptg.TokenEncoder,
    first: pt.Transformer,
    texts: pt.Transformer,
    train: Queries,
    folder: Path,
) -> pt.Transformer:
    """A teacher that knows a passage's page, and of which only three numbers are trained.

    There are two features: the softmax of the scores of GraphMaxSim over the query's candidates, which aggregates
    titles and neighbors, and the MaxSim score of the passage alone, per word of the query. Logistic regression learns
    their weights from the candidates that BM25 finds for the labeled training queries. Relevant passages that BM25 does
    not find are left out: the regression would recognize them by being hard to find.

    Args:
        collection: What is searched; its documents are structured.
        encoder: Makes vectors of tokens.
        first: ``qid, query`` to candidates.
        texts: Adds texts to candidates.
        train: The labeled training queries.
        folder: For the graph and the vectors.
    """
    graph, tokens = collection.graph(folder / "graph", verbose=False), ptg.TokenStore(folder / "tokens")
    if not tokens.built():
        tokens.build(graph, encoder)
    found = (first >> texts)(train.topics)
    weights = {"structural": 1.0, "structural/structural": 1.0, "order": 0.5, "order_i": 0.5}
    graph_maxsim = ptg.GraphMaxSim(graph, encoder, weights, tokens=tokens).fit(found, train.qrels)

    def share(run: pd.DataFrame) -> pd.DataFrame:
        every: pd.DataFrame = (first >> graph_maxsim)(run[["qid", "query"]].drop_duplicates())
        total = every.groupby("qid")["score"].agg(logsumexp)
        return run.assign(score=np.exp(run["score"] - run["qid"].map(total)))

    per_word = pt.apply.doc_score(lambda row: row["score"] / len(row["query"].split()))
    maxsim = ptg.GraphMaxSim(graph, encoder, {}, tokens=tokens)
    scores = (graph_maxsim >> pt.apply.generic(share)) ** (maxsim >> per_word)
    probability = pt.ltr.RegressionTransformer(make_pipeline(StandardScaler(), Probability()))
    probability.fit(scores(found), train.qrels)
    return scores >> probability
