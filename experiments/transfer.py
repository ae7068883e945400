r"""Networks away from home: trained on one collection, used on another, against the untrained network there.

    python -m experiments.transfer numpydoc-numpy medquad=PATH trec-car=PATH cranfield=PATH --seeds 0 1 2 \
        --l2-sp 0.1 0 --output OUTPUT

The networks are the one without edges, which starts at the dual-encoder, and the GNN-encoder with titles and
neighboring passages, which starts at GraphMean. Each is trained on each collection, and used on all.
"""

from __future__ import annotations

import argparse
import itertools
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from ir_measures import parse_measure

import pyterrier_graph as ptg
from experiments.collections import COLLECTIONS, open_collection
from experiments.collections.numpydoc import read_see_also
from experiments.harness.collection import Collection
from experiments.harness.command import add_options
from experiments.harness.results import Results, choice, claim, slug
from experiments.harness.transfer import Place, place_of, ranking, untrained, used_at
from pyterrier_graph.encoders.names import DEFAULT

WITHOUT_EDGES, GNN = "network without edges", "GNNEncoder"
# the network's arguments, and those of its training
NETWORKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    WITHOUT_EDGES: ({"weights": {"title": 0.0}, "edges": False}, {"learning_rate": 1e-3}),
    GNN: ({"weights": {"title": 1.0, "order": 0.0, "order_i": 0.0}}, {"learning_rate": 3e-4}),
}
CHOICES = {choice(name): name for name in NETWORKS}
UNTRAINED = "untrained"

logger = logging.getLogger(__name__)


def command_line() -> argparse.ArgumentParser:
    """The command line."""
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("collections", nargs="+", help=f"{', '.join(COLLECTIONS)}; those in a folder as NAME=FOLDER")
    command.add_argument("--networks", nargs="+", choices=[*CHOICES], default=[*CHOICES], metavar="NETWORK")
    command.add_argument("--output", type=Path, required=True, help="folder for vectors, runs and tables")
    add_options(
        command,
        "options",
        passages=(4000, "size of the sample of MedQuAD"),
        dev_queries=(300, "validation queries, drawn at random"),
        seeds=([0], "of training"),
        l2_sp=([0.1, 0.0], "strength of the penalty for leaving the first weights"),
        epochs=(10, "epochs"),
        encoder=(DEFAULT, "any dual-encoder"),
        max_tokens=(160, "tokens of a passage"),
        measure=("nDCG@10", "what is measured"),
    )
    return command


def opened(name: str, passages: int) -> Collection:
    """The collection that is named on the command line."""
    name, _, path = name.partition("=")
    if name.startswith("numpydoc"):
        return read_see_also("numpy" if name.endswith("numpy") else "all")
    found = argparse.Namespace(collection=name, path=Path(path) if path else None, passages=passages)
    return open_collection(found)


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Runs the comparison; returns and writes a row per network, collection of the training, and strength."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options = command_line().parse_args(arguments)
    claim(options.output, options, ("collections", "networks", "seeds", "l2_sp"))
    places = {}
    for name in options.collections:
        short = name.partition("=")[0]
        collection = opened(name, options.passages)
        places[short] = place_of(collection, options.output / short, dev_queries=options.dev_queries)
    return run(places, options)


def run(places: dict[str, Place], options: argparse.Namespace) -> pd.DataFrame:
    """The comparison between collections that are open; see :func:`main`."""
    encoder = ptg.DualEncoder(
        options.encoder, max_query_tokens=32, max_passage_tokens=options.max_tokens, dtype="auto", verbose=False
    )
    measures = [parse_measure(options.measure)]
    tables = []
    for network in (CHOICES[name] for name in options.networks):
        results = {name: Results(options.output / name / slug(network), place.queries["test"], measures)
                   for name, place in places.items()}  # fmt: skip
        for name, place in places.items():
            start = untrained(place, encoder, **NETWORKS[network][0])
            results[name].add(UNTRAINED, partial(ranking, start, place, place.folder / "index.flex"))
        for home, seed, strength in itertools.product(places, options.seeds, options.l2_sp):
            logger.info("%s of %s, seed %d, L2-SP %g", network, home, seed, strength)
            trained = Trained(places[home], network, encoder, options, seed, strength)
            for name, place in places.items():
                results[name].add(f"{home}, L2-SP {strength:g}", partial(trained.ranking, place), seed)
        table = {name: found.table(UNTRAINED).set_index("system")[options.measure] for name, found in results.items()}
        tables.append(pd.DataFrame(table).rename_axis("trained on").reset_index().assign(network=network))
    everything = pd.concat(tables, ignore_index=True)
    everything.to_csv(options.output / "transfer.csv", index=False)
    print(everything.to_string(index=False))
    return everything


class Trained:
    """A network of a collection, which is trained when its first run is made."""

    def __init__(
        self, home: Place, network: str, encoder: ptg.DualEncoder, options: argparse.Namespace, seed: int, l2_sp: float
    ) -> None:
        self.home, self.encoder, self.seed = home, encoder, seed
        self.shape, rates = NETWORKS[network]
        training = {"epochs": options.epochs, "batch_size": 64, "negatives": 8, "masked": None, "patience": 5}
        self.training = ptg.GNNEncoderTraining(**training, **rates, seed=seed, l2_sp=l2_sp)
        self.model: ptg.GNNEncoder | None = None

    def ranking(self, place: Place) -> pd.DataFrame:
        """Its ranking of the test queries of a collection."""
        if self.model is None:
            model = untrained(self.home, self.encoder, self.seed, training=self.training, **self.shape)
            self.model = model.fit(*self.home.queries["train"], *self.home.queries["dev"])
        return ranking(used_at(self.model, place), place, place.folder / "index.flex")


if __name__ == "__main__":
    main()
