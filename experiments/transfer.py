r"""Transfer to collections that nobody tuned on: each is tested with what was learned on the others.

    python -m experiments.transfer qasper=PATH cacm=PATH cranfield=PATH vaswani=PATH trec-car=PATH medquad=PATH \
        numpydoc numpydoc-see-also --seeds 0 1 2 --output OUTPUT
    python -m experiments.dual_encoders medquad PATH --systems hard-negatives --output OTHER
    python -m experiments.transfer cacm=PATH medquad=PATH --encoder OTHER/models/hard-negatives-0 \
        --trained-on medquad --output OUTPUT2

Each collection is named, with the folder that it is in. :mod:`experiments.harness.systems` lists the systems:

- what users try first: BM25, the dual-encoder, both with context in the text, and their hybrids;
- defaults that nothing is tuned for: GraphMean, its hybrid with BM25, and GraphIndex;
- "from elsewhere": GraphMean's weights and a GNN-encoder from the other collection with the most training queries (the
  two sets of queries for numpydoc are never elsewhere for one another);
- "at home": fitted on the collection's own training and validation queries;
- rerankers behind the hybrid.

Queries without splits are divided into five folds, each of which is tested with three others in the query graph.
Where judgments are pooled and have grades, a measure over judged documents is added to the usual ones.

``OUTPUT/table.csv`` has all systems and collections, and a folder for each collection its own table with all measures.
Runs are stored: a second call makes only the missing ones, and the runs of systems that ``--remake`` names.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pandas as pd
import pyterrier as pt
from ir_measures import parse_measure

from experiments.collections import COLLECTIONS, open_collection
from experiments.harness import systems
from experiments.harness.collection import ALL, Collection
from experiments.harness.command import Named, add_options, show_progress
from experiments.harness.judgments import judged_ranking
from experiments.harness.results import Results, choice, claim, deepest, slug, tabulate
from experiments.harness.systems import Corpus, Fold
from pyterrier_graph import summarize
from pyterrier_graph.encoders.names import DEFAULT

MEASURES = ["nDCG@10", "RR@10", "R@100"]
JUDGED_ONLY = "nDCG(judged_only=True)@10"
POOLED_DEPTH = 1000  # results of a query; measures over judged documents look far down
FOLDS = 5
CHOICES = {choice(name): name for name in systems.NAMES}


def command_line() -> argparse.ArgumentParser:
    """The command line."""
    command = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument("collections", nargs="+", type=Named.parse, help="NAME or NAME=FOLDER")
    command.add_argument(
        "--output", type=Path, required=True, help="folder for indexes, graphs, runs and tables"
    )
    for name, default in (("--systems", [*CHOICES]), ("--remake", [])):
        command.add_argument(name, nargs="+", choices=[*CHOICES], default=default, metavar="SYSTEM")
    add_options(
        command,
        "collections",
        passages=(17_500, "size of the sample of MedQuAD"),
        train_queries=(int, "training queries, drawn at random (all)"),
        dev_queries=(300, "validation queries, drawn at random"),
        queries=(int, "test queries, drawn at random (all)"),
        folds=(FOLDS, "number of divisions of a collection's own queries that are tested"),
        first_stage=("pisa", "what BM25 runs on", ["pisa", "terrier"]),
        measures=(MEASURES, "the first one is that of the table of all collections"),
        seeds=([0], "of what is trained"),
    )
    add_options(
        command,
        "models",
        encoder=(DEFAULT, "a saved DualEncoder or any encoder"),
        cross_encoder=(DEFAULT, "a checkpoint that the cross-encoder and LGRe start at"),
        trained_on=(str, "the collection that the encoder was trained on", COLLECTIONS),
        max_tokens=(256, "tokens of a passage"),
        masked=(0.3, "share of the queries that give a GNNEncoder its loss in an epoch"),
    )
    return command


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Runs the comparison, and returns its table."""
    show_progress()
    command = command_line()
    options = command.parse_args(arguments)
    collections = {}
    for name, path in options.collections:
        about = argparse.Namespace(collection=name, path=path, passages=options.passages)
        try:
            collections[name] = open_collection(about)
        except ValueError as error:
            command.error(str(error))
    return run(collections, options)


def run(collections: dict[str, Collection], options: argparse.Namespace) -> pd.DataFrame:
    """Compares the systems.

    Args:
        collections: What is searched, by name.
        options: See :func:`command_line`.

    Returns:
        The table: a row per system, a column per collection.
    """
    options.results = deepest(map(parse_measure, options.measures), least=100)
    free = ("collections", "systems", "remake", "seeds", "measures", "cross_encoder", "trained_on")
    claim(options.output, options, free)
    benches = {name: Bench(name, collection, options) for name, collection in collections.items()}
    for bench in benches.values():
        bench.add_local()
    for bench in benches.values():
        others = [b for b in benches.values() if b.corpus.family != bench.corpus.family]
        if others:
            bench.add_from_elsewhere(max(others, key=lambda other: other.training_queries))
    tables = []
    for name, bench in benches.items():
        per_query = pd.concat([result.per_query for result in bench.results], ignore_index=True)
        baseline = systems.DUAL if systems.DUAL in set(per_query["name"]) else None
        print(f"\n{name}")
        tabulate(per_query, bench.corpus.output, bench.results[0].measures, baseline)
        mark = "*" if name == options.trained_on else ""
        tables.append(per_query.assign(collection=f"{name}{mark}"))
    return report(pd.concat(tables, ignore_index=True), options)


def report(per_query: pd.DataFrame, options: argparse.Namespace) -> pd.DataFrame:
    """Writes and prints the table of all collections, with the mean over collections."""
    measure = str(parse_measure(options.measures[0]))
    names = per_query["name"].drop_duplicates()
    baseline = systems.DUAL if systems.DUAL in set(names) else names.iloc[0]
    values = per_query[per_query["measure"] == measure]
    columns = {
        name: summarize(rows, baseline)[measure]
        for name, rows in values.groupby("collection", sort=False)
    }
    means = values.groupby(["name", "collection"])["value"].mean().unstack().mean(1, skipna=False)
    table = pd.DataFrame(columns).reindex([name for name in systems.NAMES if name in set(names)])
    table["mean"] = means.reindex(table.index).map("{:.3f}".format).replace("nan", "")
    table = table.fillna("").rename_axis("system")
    per_query.to_csv(options.output / "per_query.csv", index=False)
    table.reset_index().to_csv(options.output / "table.csv", index=False)
    print(f"\n{measure}; + and -: significantly better and worse than {baseline}")
    if options.trained_on:
        print("*: the encoder was trained on this collection")
    print(table.to_string())
    return table


class Bench:
    """The runs of all systems on one collection.

    Args:
        name: Name of the collection.
        collection: The collection.
        options: See :func:`command_line`.
    """

    def __init__(self, name: str, collection: Collection, options: argparse.Namespace) -> None:
        self.options = options
        self.corpus = Corpus(name, collection, options.output / name, options)
        numbers = range(options.folds) if ALL in collection.queries else [None]
        self.folds = [Fold(self.corpus, number) for number in numbers]
        measures = [*options.measures, *([JUDGED_ONLY] if self.corpus.pooled else [])]
        parsed = [parse_measure(measure) for measure in measures]
        self.results = [Results(fold.output, fold.test, parsed) for fold in self.folds]
        self.systems = [CHOICES[chosen] for chosen in options.systems]
        for fold, chosen in itertools.product(self.folds, options.remake):
            fold.forget(slug(CHOICES[chosen]))

    @property
    def training_queries(self) -> int:
        """The number of queries that a network can learn from."""
        return len(self.folds[0].train.topics)

    def add_local(self) -> None:
        """Adds the runs of the systems that need no other collection: all of a fold, whose queries change the index."""
        local = [system for system in self.systems if system in systems.SYSTEMS]
        for (fold, results), system in itertools.product(self._folds(), local):
            for seed in self.options.seeds if system in systems.TRAINED else self.options.seeds[:1]:
                make = partial(Fold.pipeline, system=system, seed=seed)
                self._add(fold, results, system, make, seed)

    def add_from_elsewhere(self, source: Bench) -> None:
        """Adds the runs of the systems that are tuned or trained on another collection."""
        for (fold, results), system in itertools.product(self._folds(), self.systems):
            if system == systems.MEAN_ELSEWHERE:
                make = partial(Fold.mean_like, source=source.folds[0])
                self._add(fold, results, system, make, 0, source.corpus.name)
            for seed in self.options.seeds if system == systems.GNN_ELSEWHERE else []:
                make = partial(Fold.gnn_like, source=source.folds[0], seed=seed)
                self._add(fold, results, system, make, seed, source.corpus.name)

    def _folds(self) -> list[tuple[Fold, Results]]:
        return [*zip(self.folds, self.results, strict=True)]

    def _add(
        self,
        fold: Fold,
        results: Results,
        system: str,
        make: Callable[[Fold], pt.Transformer],
        seed: int,
        source: str | None = None,
    ) -> None:
        depth = POOLED_DEPTH if self.corpus.pooled else self.options.results

        def ranking() -> pd.DataFrame:
            return judged_ranking(make(fold)(fold.test.topics), fold.test.qrels, depth)

        file = None if source is None else f"{system}, {source}"
        results.add(system, ranking, seed, file=file, fold=fold.number)


if __name__ == "__main__":
    main()
