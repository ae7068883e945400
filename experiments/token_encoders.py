"""MaxSim over bare passages: token vectors off the shelf, cut to their principal directions, and projected by training.

    python -m experiments.token_encoders medquad=PATH numpydoc-numpy trec-car=PATH cranfield=PATH --output OUTPUT

All systems rerank the first 100 passages of BM25. The encoder stays frozen, so that each passage is encoded once: what
is trained is a projection of token vectors from 384 to 128 dimensions, which starts at their principal directions.
``home`` is trained on the training queries of all collections that have any, ``away`` without those of the collection
that is tested. Collections without training queries are only tested, with all of their queries.

``OUTPUT/table.csv`` has all collections, and a folder for each of them its own table. All that is made is stored, and a
second call makes only what is missing.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyterrier as pt
import torch
from ir_measures import AP, RR, nDCG
from ir_measures.measures import Measure
from safetensors.torch import load_file, save_file
from torch import Tensor

import pyterrier_graph as ptg
from experiments.collections import open_collection
from experiments.collections_left_out import Named
from experiments.harness.command import add_options, show_progress
from experiments.harness.passage_corpus import PassageCorpus
from experiments.harness.projections import Projected, train_projection
from experiments.harness.results import Results, claim, stored, tabulate
from pyterrier_graph.encoders.principal_directions import principal_directions, vocabulary_sample
from pyterrier_graph.encoders.token_weights import passage_frequencies
from pyterrier_graph.models.maxsim import token_maxima

MEASURES: tuple[Measure, ...] = (nDCG @ 10, RR @ 10, AP @ 100)
BARE, DIRECTIONS, HOME, AWAY = "off the shelf", "principal directions", "projection, home", "projection, away"
SYSTEMS = {"bare": BARE, "directions": DIRECTIONS, "home": HOME, "away": AWAY}
EVERYTHING = "all"
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
    add_options(
        command,
        "training",
        dimension=(128, "of projected token vectors"),
        max_tokens=(96, "tokens of a passage"),
        epochs=(6, "at most; training stops when the validation queries are not better after two"),
        learning_rate=(3e-4, "of Adam"),
        scale=(4.0, "factor of MaxSim in the loss"),
    )
    return command


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Runs the comparison, and returns the table of all collections."""
    show_progress()
    command = command_line()
    options = command.parse_args(arguments)
    corpora = {}
    for name, path in options.collections:
        about = argparse.Namespace(collection=name, path=path, passages=options.passages)
        sizes = {"queries": options.queries, "dev_queries": options.dev_queries, "engine": options.first_stage}
        try:
            corpora[name] = PassageCorpus(name, open_collection(about), options.output / "corpora" / name, **sizes)
        except ValueError as error:
            command.error(str(error))
    return run(corpora, options)


def run(corpora: dict[str, PassageCorpus], options: argparse.Namespace) -> pd.DataFrame:
    """Compares the systems on all collections."""
    claim(options.output, options, ("collections", "systems", "seeds"))
    torch.set_num_threads(1)
    bench = Bench(corpora, options)
    parts = [bench.results(name).assign(collection=name) for name in corpora]
    per_query = pd.concat(parts, ignore_index=True)
    per_query.to_csv(options.output / "per_query.csv", index=False)
    means = per_query[per_query["measure"] == str(MEASURES[0])].groupby(["name", "collection"], sort=False)["value"]
    table = means.mean().unstack().reindex(columns=[*corpora])
    table.to_csv(options.output / "table.csv")
    print(f"\n{MEASURES[0]}\n{table.round(4).to_string()}")
    return table


class Bench:
    """What all systems share: the frozen encoder, its token vectors, and the projections.

    Args:
        corpora: What is searched, by name.
        options: See :func:`command_line`.
    """

    def __init__(self, corpora: dict[str, PassageCorpus], options: argparse.Namespace) -> None:
        self.corpora, self.options = corpora, options
        self.encoder = ptg.TokenEncoder(max_passage_tokens=options.max_tokens)
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
        name = EVERYTHING if set(among) == set(self.trained) else "+".join(among)
        file = self.options.output / "projections" / f"{name}-{seed}" / WEIGHTS
        if not file.exists():
            logger.info("training on %s, seed %d", ", ".join(among), seed)
            parts = [Projected(self.corpora[part], self.encoder) for part in among]
            save(train_projection(parts, self.start, self.options, seed, file.parent / "checkpoints"), file)
        return load_file(file)["weight"]

    @property
    def trained(self) -> list[str]:
        """Names of the collections that have training queries."""
        return [name for name, corpus in self.corpora.items() if corpus.trains]

    def results(self, name: str) -> pd.DataFrame:
        """Measures of all systems, per query, on one collection."""
        corpus = self.corpora[name]
        projected = Projected(corpus, self.encoder)
        results = Results(corpus.folder, corpus.queries["test"], MEASURES)
        results.add("BM25", lambda: corpus.candidates["test"])
        away = tuple(other for other in self.trained if other != name)
        for system in (SYSTEMS[chosen] for chosen in self.options.systems):
            for seed in self.options.seeds if system in (HOME, AWAY) else [0]:
                if system == HOME and not corpus.trains:
                    continue
                among = tuple(self.trained) if system == HOME else away

                def matrix(system: str = system, among: tuple[str, ...] = among, seed: int = seed) -> Tensor | None:
                    if system in (HOME, AWAY):
                        return self.projection(among, seed)
                    return self.start if system == DIRECTIONS else None

                for suffix, idf in (("", False), (", IDF", True)):
                    make = partial(self._reranked, projected, matrix, idf)
                    results.add(f"MaxSim, {system}{suffix}", make, seed)
        print(f"\n{name}: {len(corpus.queries['test'].topics)} queries")
        tabulate(results.per_query, corpus.folder, MEASURES, "BM25")
        return results.per_query

    def _reranked(self, projected: Projected, matrix: object, idf: bool) -> pd.DataFrame:
        return projected.rerank("test", matrix(), idf=idf)  # type: ignore[operator]


def save(weight: Tensor, file: Path) -> None:
    """Writes a projection."""
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({"weight": weight.contiguous()}, file)


if __name__ == "__main__":
    main()
