"""What each choice in the demo's HGAT is worth: one is changed at a time, and the rest stays as it is.

``python -m experiments.hgat_choices --output OUTPUT``; ``OUTPUT`` may be that of the demo, whose token vectors serve.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import Any

import pandas as pd
import pyterrier as pt
import torch

from pyterrier_graph.demo import AROUND, HGAT_SHAPE, MEASURES, TRAINING, prepare
from pyterrier_graph.evaluation.significance import summarize
from pyterrier_graph.rerank.hgat import HGATReranker
from pyterrier_graph.training.options import HGATTraining

BASELINE = "as in the demo"
RELATIONS = ("order", "order_i", "structural", "structural_i", "internal", "internal_i", "external", "external_i")

# Name, changes of the model, changes of its training.
CHOICES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    BASELINE: ({}, {}),
    "gates at the rate of the matrices, 1e-3": ({}, {"scalar_learning_rate": None}),
    "gates at 5e-3": ({}, {"scalar_learning_rate": 0.005}),
    "no slots": ({"slots": 0}, {}),
    "matrices at 1e-4": ({}, {"learning_rate": 1e-4}),
    "the eight relations, 1 layer": ({"relations": RELATIONS}, {}),
    "the eight relations, 2 layers": ({"relations": RELATIONS, "layers": 2}, {}),
    "the eight relations, 3 layers": ({"relations": RELATIONS, "layers": 3}, {}),
    "the paper: eight relations, 3 layers, 8 heads, random start, dropout 0.7": (
        {"relations": RELATIONS, "layers": 3, "heads": 8, "init": "random", "dropout": 0.7, "slots": 0},
        {"scalar_learning_rate": None},
    ),
    "random start": ({"init": "random"}, {}),
    "mean over the neighbors of a relation": ({"aggregation": "mean"}, {}),
}


def main() -> None:
    """Trains std_NO_LB with each choice and each seed, and writes ``choices.csv``."""
    command = argparse.ArgumentParser(prog="python -m experiments.hgat_choices", description=main.__doc__)
    command.add_argument("--choices", nargs="+", choices=list(CHOICES), default=list(CHOICES), metavar="CHOICE")
    command.add_argument("--documents", type=int, default=20, help="documents whose passages are reranked")
    command.add_argument("--triples", type=int, default=1000, help="training triples")
    command.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    command.add_argument("--output", type=Path, required=True, help="folder for index, vectors and results")
    options = command.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options.output.mkdir(parents=True, exist_ok=True)
    bench = prepare(options.output, "numpy", "pisa", options.documents)
    torch.set_num_threads(1)  # as in the demo
    runs: list[pd.DataFrame] = []
    for name in options.choices:
        for seed in options.seeds:
            model, training = CHOICES[name]
            reranker = HGATReranker(
                bench.graph,
                bench.encoder,
                "NO_LB",
                **{**HGAT_SHAPE, "relations": AROUND, **model},
                tokens=bench.tokens,
                training=HGATTraining(**{**TRAINING, **training}, max_triples=options.triples, seed=seed),
                seed=seed,
                verbose=True,
            )
            train, dev = bench.train, bench.dev
            reranker.fit(train.candidates, train.qrels, dev.candidates, dev.qrels)
            found = pt.Experiment(
                [reranker(bench.test.candidates)],
                bench.test.topics,
                bench.test.qrels,
                list(MEASURES),
                names=[name],
                perquery=True,
            )
            runs.append(found.assign(seed=seed))
            pd.concat(runs).to_csv(options.output / "choices.csv", index=False)
    print(summarize(pd.concat(runs), options.choices[0]).to_string())


if __name__ == "__main__":
    main()
