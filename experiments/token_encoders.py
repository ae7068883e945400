"""MaxSim over bare passages: token vectors off the shelf, cut to their principal directions, and trained.

    python -m experiments.token_encoders medquad=PATH numpydoc-numpy trec-car=PATH cranfield=PATH --output OUTPUT

All systems rerank the first 100 passages of BM25. For ``home`` and ``away`` the encoder stays frozen, so that each
passage is encoded once: what is trained is a projection of token vectors from 384 to 128 dimensions, which starts at
their principal directions. ``home`` is trained on the training queries of all collections that have any, ``away``
without those of the collection that is tested. For ``encoder`` the whole encoder is trained on all of them, from there
on. Collections without training queries are only tested, with all of their queries. ``IDF`` weights the tokens of the
query by their inverse document frequency.

``OUTPUT/table.csv`` has all collections, and a folder for each of them its own table. All that is made is stored: a
second call makes only what is missing, and a training that was interrupted continues.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import pandas as pd
import pyterrier as pt
import torch
from ir_measures import AP, RR, nDCG
from ir_measures.measures import Measure
from safetensors.torch import load_file, save_file
from torch import Tensor

import pyterrier_graph as ptg
from experiments.collections import open_collection
from experiments.harness.command import Named, add_options, show_progress
from experiments.harness.encoder_training import train_encoder
from experiments.harness.passage_corpus import PassageCorpus
from experiments.harness.projections import Projected, train_projection
from experiments.harness.results import Results, claim, tabulate
from pyterrier_graph.encoders.checkpoints import DEFAULT
from pyterrier_graph.encoders.principal_directions import principal_directions, vocabulary_sample

MEASURES: tuple[Measure, ...] = (nDCG @ 10, RR @ 10, AP @ 100)
BARE, DIRECTIONS, HOME, AWAY = "off the shelf", "principal directions", "projection, home", "projection, away"
ENCODER = "encoder, home"
SYSTEMS = {"bare": BARE, "directions": DIRECTIONS, "home": HOME, "away": AWAY, "encoder": ENCODER}
TRAINED = (HOME, AWAY, ENCODER)
TESTED = ("cranfield", "cacm", "vaswani", "qasper")  # collections without training queries
WEIGHTS = "projection.safetensors"

logger = logging.getLogger(__name__)


def command_line() -> argparse.ArgumentParser:
    """The command line."""
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("collections", nargs="+", type=Named.parse, help="NAME or NAME=FOLDER")
    command.add_argument("--output", type=Path, required=True, help="folder for indexes, vectors, runs and tables")
    command.add_argument("--systems", nargs="+", choices=[*SYSTEMS], default=[*SYSTEMS], metavar="SYSTEM")
    add_options(
        command,
        "collections",
        passages=(4000, "size of the sample of MedQuAD"),
        queries=(int, "test queries, drawn at random (all)"),
        dev_queries=(60, "validation queries of each collection, drawn at random"),
        first_stage=("pisa", "what BM25 runs on", ["pisa", "terrier"]),
        seeds=([0], "of what is trained"),
    )
    command.add_argument("--tested", nargs="+", metavar="NAME", help="those of the collections that are tested (all)")
    add_options(
        command,
        "training",
        dimension=(128, "of projected token vectors"),
        max_tokens=(96, "tokens of a passage"),
        epochs=(3, "of a projection at most; it stops when the validation queries are not better after two"),
        learning_rate=(3e-4, "of a projection"),
        scale=(4.0, "factor of MaxSim in the loss"),
        encoder_epochs=(1, "of the whole encoder"),
        encoder_learning_rate=(5e-5, "of the whole encoder, but its projection"),
    )
    return command


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Runs the comparison, and returns the table of all collections."""
    show_progress()
    command = command_line()
    options = command.parse_args(arguments)
    names = [name for name, _ in options.collections]
    if unknown := set(options.tested or ()) - set(names):
        command.error(f"--tested {min(unknown)} is not among the collections: {', '.join(names)}")
    paths = dict(options.collections)

    def opened(name: str) -> PassageCorpus:
        about = argparse.Namespace(collection=name, path=paths[name], passages=options.passages)
        sizes = {"queries": options.queries, "dev_queries": options.dev_queries, "engine": options.first_stage}
        try:
            return PassageCorpus(name, open_collection(about), options.output / "corpora" / name, **sizes)
        except ValueError as error:
            command.error(str(error))

    return run(names, cache(opened), options)


def run(names: Sequence[str], opened: Callable[[str], PassageCorpus], options: argparse.Namespace) -> pd.DataFrame:
    """Compares the systems on all collections.

    Args:
        names: Names of the collections.
        opened: Opens a collection by its name.
        options: See :func:`command_line`.

    Returns:
        The table: a row per system, a column per collection.
    """
    claim(options.output, options, ("collections", "systems", "seeds", "tested"))
    torch.set_num_threads(1)
    bench = Bench(names, opened, options)
    parts = [bench.results(name).assign(collection=name) for name in options.tested or names]
    per_query = pd.concat(parts, ignore_index=True)
    per_query.to_csv(options.output / "per_query.csv", index=False)
    means = per_query[per_query["measure"] == str(MEASURES[0])].groupby(["name", "collection"], sort=False)["value"]
    table = means.mean().unstack().reindex(columns=[*(options.tested or names)])
    table.to_csv(options.output / "table.csv")
    print(f"\n{MEASURES[0]}\n{table.round(4).to_string()}")
    return table


class Bench:
    """What all systems share: the frozen encoder, its token vectors, and the projections.

    Args:
        names: Names of the collections.
        opened: Opens a collection by its name.
        options: See :func:`command_line`.

    Attributes:
        trained: Names of the collections whose training queries are learned from.
    """

    def __init__(
        self, names: Sequence[str], opened: Callable[[str], PassageCorpus], options: argparse.Namespace
    ) -> None:
        self.opened, self.options = opened, options
        self.trained = [name for name in names if name not in TESTED]
        self.encoder = frozen_encoder(options)
        self.start = self._start()

    def _start(self) -> Tensor:
        """The principal directions of the encoder's token vectors, shape (dimension, d)."""
        file = self.options.output / "directions" / WEIGHTS
        if not file.exists():
            sample = self.encoder.encode_passages(vocabulary_sample(self.encoder)).values
            save(principal_directions(sample, self.options.dimension), file)
        return load_file(file)["weight"]

    def projection(self, among: tuple[str, ...], seed: int) -> Tensor:
        """The projection that is trained on some collections; shape (dimension, d)."""
        file = self.options.output / "projections" / f"{'+'.join(among)}-{seed}" / WEIGHTS
        if not file.exists():
            logger.info("training on %s, seed %d", ", ".join(among), seed)
            parts = [Projected(self.opened(part), self.encoder) for part in among]
            save(train_projection(parts, self.start, self.options, seed, file.parent / "checkpoints"), file)
        return load_file(file)["weight"]

    def whole_encoder(self, seed: int) -> ptg.TokenEncoder:
        """The encoder that is trained as a whole on all collections; it starts with their projection."""
        folder = self.options.output / "encoders" / f"{'+'.join(self.trained)}-{seed}"
        if not folder.exists():
            corpora = [self.opened(name) for name in self.trained]
            start = frozen_encoder(self.options).projected(self.projection(tuple(self.trained), seed))
            folder.parent.mkdir(exist_ok=True)
            train_encoder(corpora, start, self.options, seed, folder)
        return frozen_encoder(self.options, str(folder))

    def results(self, name: str) -> pd.DataFrame:
        """Measures of all systems, per query, on one collection."""
        corpus = self.opened(name)
        results = Results(corpus.folder, corpus.queries["test"], MEASURES)
        results.add("BM25", lambda: corpus.candidates["test"])
        for system in (SYSTEMS[chosen] for chosen in self.options.systems):
            if system == HOME and name in TESTED:
                continue
            for seed in self.options.seeds if system in TRAINED else [0]:
                make = cache(partial(self._reranked, corpus, system, seed))
                results.add(f"MaxSim, {system}", make, seed)
                results.add(f"MaxSim, {system}, IDF", lambda make=make: by_idf(make()), seed)  # type: ignore[misc]
        print(f"\n{name}: {len(corpus.queries['test'].topics)} queries")
        tabulate(results.per_query, corpus.folder, MEASURES, "BM25")
        return results.per_query

    def _reranked(self, corpus: PassageCorpus, system: str, seed: int) -> pd.DataFrame:
        if system == ENCODER:
            return Projected(corpus, self.whole_encoder(seed), f"tokens-{seed}").rerank("test", None, idf=True)
        away = tuple(other for other in self.trained if other != corpus.name)
        projections: dict[str, Callable[[], Tensor | None]] = {
            BARE: lambda: None,
            DIRECTIONS: lambda: self.start,
            HOME: lambda: self.projection(tuple(self.trained), seed),
            AWAY: lambda: self.projection(away, seed),
        }
        return Projected(corpus, self.encoder).rerank("test", projections[system](), idf=True)


def frozen_encoder(options: argparse.Namespace, checkpoint: str = DEFAULT) -> ptg.TokenEncoder:
    """An encoder of passages of the chosen length; the default one unless there is another checkpoint."""
    return ptg.TokenEncoder(checkpoint, max_passage_tokens=options.max_tokens)


def by_idf(run: pd.DataFrame) -> pd.DataFrame:
    """The run with the scores that weight query tokens."""
    return pt.model.add_ranks(run.drop(columns="rank").assign(score=run["idf"]))


def save(weight: Tensor, file: Path) -> None:
    """Writes a projection."""
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({"weight": weight.contiguous()}, file)


if __name__ == "__main__":
    main()
