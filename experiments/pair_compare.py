"""Dual-encoders trained step by step on MedQuAD.

``python -m experiments.pair_compare PATH --seeds 0 1 2 --output FOLDER``. The questions are divided by page; most of
the training questions lose their labels. The defaults are such that a seed takes about twenty minutes on one core.

``--teacher late-interaction`` is for machines without a good cross-encoder, which one that starts at MiniLM does not
become from so few labels: see :func:`late_interaction`. ``--teacher`` and ``--teacher-model`` name better ones.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from experiments.collection import SPLITS, Collection, passages_of
from experiments.dense_retrieval import QUERY_LENGTH, Bench, Queries, parser, run, task
from experiments.medquad import read_medquad
from pyterrier_graph.encoders.checkpoints import DEFAULT, resolve
from pyterrier_graph.encoders.token_encoder import TokenEncoder
from pyterrier_graph.encoders.token_store import TokenStore
from pyterrier_graph.graphs import DocumentGraph
from pyterrier_graph.rerank.graph_maxsim import GraphMaxSim

LATE_INTERACTION = "late-interaction"
DEFAULTS: dict[str, Any] = {
    "train_queries": 500,
    "unlabeled_share": 0.7,
    "dev_queries": 30,
    "max_length": 96,
    "negatives": 1,
    "depth": 20,
    "epochs": 2,
    "batch": 32,
    "learning_rate": 1e-4,
    "teacher_epochs": 2,
    "teacher_pairs": 512,
}


class Probability(LogisticRegression):
    """Predicts how probable it is that a document is relevant, not whether it is."""

    def predict(self, X: np.ndarray) -> np.ndarray:  # noqa: N803  # as scikit-learn calls it
        """Probabilities, shape (documents,)."""
        return self.predict_proba(X)[:, 1]


def main(arguments: list[str] | None = None) -> pd.DataFrame:
    """Runs the comparison; see :func:`experiments.dense_retrieval.run` for what it writes."""
    command = parser()
    command.prog, command.description = "python -m experiments.pair_compare", __doc__
    command.add_argument("path", type=Path, help="folder of the collection")
    command.add_argument("--passages", type=int, default=2000, help="size of the sample (%(default)s)")
    command.set_defaults(model=resolve(DEFAULT), **DEFAULTS)
    options = command.parse_args(arguments)
    medquad = read_medquad(options.path, passages=options.passages)
    splits = [Queries(medquad.get_topics(name), medquad.get_qrels(name)) for name in SPLITS]
    chosen = task(passages_of(medquad), splits, options)
    if options.teacher == LATE_INTERACTION:
        return run(chosen, options, lambda bench: late_interaction(bench, medquad))
    return run(chosen, options)


def late_interaction(bench: Bench, medquad: Collection) -> pt.Transformer:
    """A teacher that is not trained, but for three numbers, and knows a passage's page.

    What makes a document probable is its share of the query: the softmax, over the query's candidates, of the scores
    of GraphMaxSim, which hears titles and neighbors; and how well its own words match (MaxSim). The three numbers are
    learned by logistic regression from the labeled training queries, and from no other documents than those that are
    found: what is relevant, but was added to them, would be recognized by being hard to find.

    Args:
        bench: What all systems share.
        medquad: Its pages.
    """
    graph, tokens = DocumentGraph(bench.output / "graph"), TokenStore(bench.output / "tokens")
    if not graph.built():
        graph.index(medquad.get_corpus_iter(verbose=False))
    length = bench.options.max_length
    encoder = TokenEncoder(bench.options.model, max_passage_tokens=length, max_query_tokens=QUERY_LENGTH)
    if not tokens.built():
        tokens.build(graph, encoder)
    train, first = bench.task.train, bench.bm25 % bench.options.depth
    found = (first >> bench.texts)(train.topics)
    graph_maxsim = GraphMaxSim(graph, encoder, tokens=tokens).fit(found, train.qrels)

    def share(run: pd.DataFrame) -> pd.DataFrame:
        every = (first >> graph_maxsim)(run[["qid", "query"]].drop_duplicates())
        total = every.groupby("qid")["score"].agg(logsumexp)
        return run.assign(score=np.exp(run["score"] - run["qid"].map(total)))

    per_word = pt.apply.doc_score(lambda row: row["score"] / len(row["query"].split()))
    maxsim = GraphMaxSim(graph, encoder, {}, tokens=tokens)
    scores = (graph_maxsim >> pt.apply.generic(share)) ** (maxsim >> per_word)
    probability = pt.ltr.RegressionTransformer(make_pipeline(StandardScaler(), Probability()))
    probability.fit(scores(found), train.qrels)
    return scores >> probability


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
