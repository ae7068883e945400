"""The demo's comparison on real collections, over several seeds.

``python -m experiments.compare medquad PATH --passages 2000``, ``python -m experiments.compare trec-car PATH``, or
``python -m experiments.compare numpydoc``, which needs no data.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import pandas as pd
import pyterrier as pt
import torch
from ir_measures import RR

from experiments.collection import Collection
from experiments.medquad import read_medquad
from experiments.trec_car import read_trec_car
from pyterrier_graph import demo
from pyterrier_graph.demo import (
    AROUND,
    DEFAULT_VARIANTS,
    MEASURES,
    Bench,
    build_systems,
)
from pyterrier_graph.evaluation.measures import on_documents
from pyterrier_graph.evaluation.significance import summarize

BASELINE = "BM25 >> MaxSim"


def main() -> None:
    """Runs the comparison and writes ``per_query.csv`` and ``results.csv``."""
    command = argparse.ArgumentParser(prog="python -m experiments.compare", description=main.__doc__)
    command.add_argument("collection", choices=["medquad", "trec-car", "numpydoc"])
    command.add_argument("path", type=Path, nargs="?", help="folder of the collection; numpydoc has none")
    command.add_argument("--passages", type=int, default=2000, help="size of the sample of MedQuAD")
    command.add_argument("--documents", type=int, default=20, help="documents whose passages are reranked")
    command.add_argument("--triples", type=int, default=1000, help="training triples per HGAT")
    command.add_argument("--variants", nargs="*", default=list(DEFAULT_VARIANTS), help="of HGAT; none leaves it out")
    command.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    command.add_argument("--queries", type=int, default=None, help="so many test queries at most")
    command.add_argument("--output", type=Path, required=True, help="folder for index, vectors and results")
    options = command.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if (options.path is None) != (options.collection == "numpydoc"):
        command.error("medquad and trec-car need the folder they are in, numpydoc is in the package")
    options.output.mkdir(parents=True, exist_ok=True)
    around: tuple[str, ...] = AROUND
    if options.collection == "numpydoc":
        bench = demo.prepare(options.output, "numpy", "pisa", options.documents)
    elif options.collection == "medquad":
        collection = read_medquad(options.path, passages=options.passages)
        bench = prepare(collection, options.output, options.documents, options.queries)
    else:
        around = (*AROUND, "structural/structural/structural", "same_entity", "same_entity_i")
        bench = prepare(read_trec_car(options.path), options.output, options.documents, options.queries)
    torch.set_num_threads(1)  # as in the demo
    runs: list[pd.DataFrame] = []
    for seed in options.seeds:
        systems, *_ = build_systems(bench, options.output, options.variants, seed, options.triples, around)
        if runs:  # only what is trained depends on the seed
            systems = {name: system for name, system in systems.items() if "std_" in name or "late_" in name}
        found = pt.Experiment(
            list(systems.values()),
            bench.test.topics,
            bench.test.qrels,
            [*MEASURES, on_documents(RR @ 10)],
            names=list(systems),
            perquery=True,
            verbose=True,
        )
        runs.append(found.assign(seed=seed))
        pd.concat(runs).to_csv(options.output / "per_query.csv", index=False)
    table = summarize(pd.concat(runs), BASELINE)
    table.to_csv(options.output / "results.csv")
    print(table.to_string())


def prepare(collection: Collection, output: Path, documents: int, queries: int | None) -> Bench:
    """Makes, or finds in ``output``, the index, the graph and the token vectors."""
    splits = []
    for name in ("train", "dev", "test"):
        topics = collection.get_topics(name)[: queries if name == "test" else None]
        qrels = collection.get_qrels(name)
        splits.append((topics, qrels[qrels["qid"].isin(topics["qid"])]))
    return demo.make_bench(collection, splits, output, "pisa", documents)


if __name__ == "__main__":
    main()
