r"""Leave one collection out: what holds on collections that nobody tuned on.

    python -m experiments.collections_left_out qasper=PATH cacm=PATH cranfield=PATH vaswani=PATH trec-car=PATH \
        medquad=PATH numpydoc numpydoc-see-also --seeds 0 1 2 --output OUTPUT
    python -m experiments.fine_tuning medquad PATH --systems hard-negatives --output OTHER
    python -m experiments.collections_left_out cacm=PATH medquad=PATH numpydoc --encoder OTHER/hard-negatives-0 \
        --trained-on medquad --output OUTPUT2

Each collection is named, with the folder that it is in. All systems are measured on the test queries of each:

- what users try first: BM25; BM25 with context (titles, and the training queries that a passage answers) in the text;
  the dual-encoder; the same with titles in the text;
- hybrids that anyone can build: of BM25 and the dual-encoder, and of both with context or titles in the text;
- GraphMean, the hybrid of BM25 and GraphMean, and GraphIndex, by default: nothing is tuned;
- "from elsewhere": numbers that are best on the validation queries of all other collections on average, and a
  GNN-encoder trained on the other collection with the most training queries. The two sets of queries for numpydoc are
  never elsewhere for one another;
- "at home": fitted on the collection's own training and validation queries;
- the best fixed weights of GraphMean, chosen on the test queries: nobody could choose them, they are a bound.

Queries without splits are divided into five folds, each of which is tested with three others in the query graph.
Where judgments are pooled and have grades, a measure over judged documents is added to the usual ones.

``OUTPUT/table.csv`` has all systems and collections, ``OUTPUT/goals.csv`` what is expected of them, and a folder for
each collection its own table with all measures. Runs are stored: a second call makes only those that are missing, and
those of the systems that ``--remake`` names.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pandas as pd
import pyterrier as pt
from ir_measures import parse_measure

from experiments.collections import COLLECTIONS, open_collection
from experiments.harness.collection import ALL, Collection
from experiments.harness.command import Named, add_options, show_progress
from experiments.harness.judgments import judged_ranking
from experiments.harness.results import Results, claim, slug, tabulate
from experiments.left_out import fixed_weights, names, tables
from experiments.left_out.corpus import Corpus
from experiments.left_out.fold import Fold
from pyterrier_graph.encoders.names import DEFAULT

MEASURES = ["nDCG@10", "RR@10", "R@100"]
JUDGED_ONLY = "nDCG(judged_only=True)@10"
KEPT, KEPT_POOLED = (
    100,
    1000,
)  # results of a query that are stored; measures over judged documents look further down
FOLDS = 5
EVERY = slice(None)  # all folds
Make = Callable[[Fold], pt.Transformer]

logger = logging.getLogger(__name__)


def command_line() -> argparse.ArgumentParser:
    """The command line."""
    command = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument("collections", nargs="+", type=Named.parse, help="NAME or NAME=FOLDER")
    command.add_argument(
        "--output", type=Path, required=True, help="folder for indexes, graphs, runs and tables"
    )
    command.add_argument(
        "--systems", nargs="+", choices=[*names.CHOICES], default=[*names.CHOICES], metavar="SYSTEM"
    )
    command.add_argument(
        "--remake", nargs="+", choices=[*names.CHOICES], default=[], metavar="SYSTEM"
    )
    add_options(
        command,
        "collections",
        passages=(17_500, "size of the sample of MedQuAD"),
        train_queries=(int, "training queries, drawn at random (all)"),
        dev_queries=(300, "validation queries, drawn at random"),
        queries=(int, "test queries, drawn at random (all)"),
        folds=(FOLDS, "of the divisions of a collection's own queries, so many are tested"),
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
    free = ("collections", "systems", "remake", "seeds", "measures", "cross_encoder", "trained_on")
    claim(options.output, options, free)
    benches = {name: Bench(name, collection, options) for name, collection in collections.items()}
    for bench in benches.values():
        bench.add_local()
    for bench in benches.values():
        bench.add_from_elsewhere(
            [other for other in benches.values() if other.corpus.family != bench.corpus.family]
        )
    parts = []
    for name, bench in benches.items():
        per_query = pd.concat([result.per_query for result in bench.results], ignore_index=True)
        baseline = names.DUAL if names.DUAL in set(per_query["name"]) else None
        print(f"\n{name}")
        tabulate(per_query, bench.corpus.output, bench.results[0].measures, baseline)
        mark = "*" if name == options.trained_on else ""
        parts.append(per_query.assign(collection=f"{name}{mark}"))
    return report(pd.concat(parts, ignore_index=True), options)


def report(per_query: pd.DataFrame, options: argparse.Namespace) -> pd.DataFrame:
    """Writes and prints the table of all collections, and what is expected of the systems."""
    measure = str(parse_measure(options.measures[0]))
    baseline = names.DUAL if names.DUAL in set(per_query["name"]) else per_query["name"].iloc[0]
    table, goals = tables.overview(per_query, measure, baseline), tables.goals(per_query, measure)
    for name, frame in (("per_query", per_query), ("table", table.reset_index()), ("goals", goals)):
        frame.to_csv(options.output / f"{name}.csv", index=False)
    print(f"\n{measure}; + and -: significantly better and worse than {baseline}")
    if options.trained_on:
        print("*: the encoder was trained on this collection")
    print(table.to_string())
    print(goals.round(4).to_string(index=False))
    return table


class Bench:
    """The runs of all systems on one collection.

    Args:
        name: Name of the collection.
        collection: The collection.
        options: See :func:`command_line`.
    """

    def __init__(self, name: str, collection: Collection, options: argparse.Namespace) -> None:
        self.options, output = options, options.output / name
        self.corpus = Corpus(name, collection, output, options)
        sizes = {split: getattr(options, split) for split in ("train_queries", "dev_queries")}
        numbers = range(options.folds) if ALL in collection.queries else [None]
        self.folds = [
            Fold(self.corpus, number, test_queries=options.queries, **sizes) for number in numbers
        ]
        measures = [*options.measures, *([JUDGED_ONLY] if self.corpus.pooled else [])]
        parsed = [parse_measure(measure) for measure in measures]
        self.results = [Results(fold.output, fold.test, parsed) for fold in self.folds]
        self.systems = [names.CHOICES[chosen] for chosen in options.systems]
        self._forget([names.CHOICES[chosen] for chosen in options.remake])

    @property
    def training_queries(self) -> int:
        """How many queries a network can learn from."""
        return len(self.folds[0].train.topics)

    def model(self, seed: int) -> Path:
        """The folder of the GNN-encoder that was trained on this collection."""
        if not (path := self.folds[0].model_path(seed)).exists():
            self.folds[0].gnn(seed)
        return path

    def add_local(self) -> None:
        """Adds the runs of the systems that need no other collection: all of a fold, whose queries change the index."""
        local = [
            system
            for system in self.systems
            if system not in (names.MEAN_ELSEWHERE, names.GNN_ELSEWHERE)
        ]
        for number, system in itertools.product(range(len(self.folds)), local):
            part = slice(number, number + 1)
            if system == names.MEAN_BEST:
                self._add_fixed(
                    system, fixed_weights.best_weights([self.measured_weights()], "test"), part
                )
                continue
            for seed in self.options.seeds if system in names.TRAINED else self.options.seeds[:1]:
                self._add(system, partial(Fold.pipeline, system=system, seed=seed), seed, part=part)

    def add_from_elsewhere(self, others: Sequence[Bench]) -> None:
        """Adds the runs of the systems that are tuned or trained on other collections."""
        if not others:
            return
        if names.MEAN_ELSEWHERE in self.systems:
            weights = fixed_weights.best_weights(
                [other.measured_weights() for other in others], "dev"
            )
            self._add_fixed(names.MEAN_ELSEWHERE, weights)
        if names.GNN_ELSEWHERE in self.systems:
            source = max(others, key=lambda other: other.training_queries)
            for seed in self.options.seeds:

                def transferred(fold: Fold, seed: int = seed) -> pt.Transformer:
                    return fold.transferred(source.model(seed))

                self._add(
                    names.GNN_ELSEWHERE,
                    transferred,
                    seed,
                    f"{names.GNN_ELSEWHERE}, {source.corpus.name}",
                )

    def measured_weights(self) -> pd.DataFrame:
        """The measure of each query with each fixed weights."""
        return pd.concat([fixed_weights.measured(fold) for fold in self.folds], ignore_index=True)

    def _add_fixed(self, system: str, weights: dict[str, float], part: slice = EVERY) -> None:
        file = "GraphMean, " + ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
        logger.info("%s, %s: %s", self.corpus.name, system, weights)
        self._add(system, lambda fold: fold.fixed(weights), file=file, part=part)

    def _add(
        self, system: str, make: Make, seed: int = 0, file: str | None = None, part: slice = EVERY
    ) -> None:
        kept = KEPT_POOLED if self.corpus.pooled else KEPT
        for fold, results in zip(self.folds[part], self.results[part], strict=True):

            def ranking(fold: Fold = fold) -> pd.DataFrame:
                return judged_ranking(make(fold)(fold.test.topics), fold.test.qrels, kept)

            results.add(system, ranking, seed, file=file, fold=fold.number)

    def _forget(self, systems: Sequence[str]) -> None:
        """Deletes the runs and models of systems."""
        for fold in self.folds:
            for system in systems:
                for file in (fold.output / "runs").glob(f"{slug(system)}-[0-9]*.csv.gz"):
                    file.unlink()
                if system == names.GNN_HOME:
                    shutil.rmtree(fold.output / "models", ignore_errors=True)


if __name__ == "__main__":
    main()
