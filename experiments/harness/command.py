"""The parts that the command lines of all comparisons have in common."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping, Sequence
from collections.abc import Collection as Names
from pathlib import Path
from typing import Any, NamedTuple

from experiments.collections import COLLECTIONS, open_collection
from experiments.harness.collection import Collection

COUNTS = (
    "runs",
    "repeats",
    "queries",
    "train_queries",
    "dev_queries",
    "depth",
    "epochs",
    "pairs",
    "batch",
    "max_tokens",
    "against",
)
LEAST_FOLDS = 3


class Named(NamedTuple):
    """A collection's name, and the folder that it is in."""

    collection: str
    path: Path | None

    @classmethod
    def parse(cls, text: str) -> Named:
        """``NAME`` or ``NAME=FOLDER``."""
        name, _, folder = text.partition("=")
        if name not in COLLECTIONS:
            raise argparse.ArgumentTypeError(
                f"unknown collection {name!r}: name {', '.join(COLLECTIONS)}"
            )
        return cls(name, Path(folder) if folder else None)


def parser(
    description: str | None, systems: Names[str], chosen: Sequence[str]
) -> argparse.ArgumentParser:
    """The common options.

    Args:
        description: The documentation of the program.
        systems: Names of all systems.
        chosen: Those that run by default.
    """
    command = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument(
        "collection",
        help=f"{', '.join(COLLECTIONS)}, or ids of ir_datasets: irds:..., joined by ','",
    )
    command.add_argument(
        "path", type=Path, nargs="?", help="its folder; ir_datasets and numpydoc need none"
    )
    command.add_argument(
        "--systems", nargs="+", choices=[*systems], default=[*chosen], metavar="SYSTEM"
    )
    command.add_argument(
        "--output", type=Path, required=True, help="folder for indexes, graphs, runs and tables"
    )
    add_options(
        command,
        "collection",
        train=(
            str,
            "dataset of ir_datasets with the training queries (three fifths of the collection's)",
        ),
        dev=(str, "likewise for validation (a fifth)"),
        test=(str, "likewise for the test (a fifth)"),
        passages=(17_500, "size of the sample of MedQuAD"),
        queries=(int, "test queries, drawn at random (all)"),
        train_queries=(int, "training queries, drawn at random (all)"),
        dev_queries=(500, "validation queries, drawn at random"),
        first_stage=("pisa", "what BM25 runs on", ["pisa", "terrier"]),
        seeds=([0], "of what is trained"),
    )
    return command


def add_options(command: argparse.ArgumentParser, title: str, **options: tuple[Any, ...]) -> None:
    """Adds a group of options.

    Args:
        command: The command line.
        title: Title of the group.
        options: By name: the default, the description and, where there are any, the choices. A type in place of the
            default stands for an option without one; a list takes several values; False makes a flag.
    """
    group = command.add_argument_group(title)
    for name, (default, text, *choices) in options.items():
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            group.add_argument(flag, action="store_true", help=text)
        elif isinstance(default, type):
            group.add_argument(flag, type=default, help=text)
        else:
            several = isinstance(default, list)
            kind = type(default[0] if several else default)
            shown = " ".join(map(str, default)) if several else default
            group.add_argument(
                flag,
                type=kind,
                nargs="+" if several else None,
                default=default,
                choices=choices[0] if choices else None,
                help=f"{text} ({shown})",
            )


def parse(
    command: argparse.ArgumentParser,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    arguments: Sequence[str] | None = None,
) -> tuple[Collection, argparse.Namespace]:
    """The collection and the options; what cannot work ends with a message before anything is read.

    Args:
        command: The command line.
        presets: Defaults by name of the collection; those under ``""`` are for all that have no others.
        arguments: Arguments; by default the program's.
    """
    show_progress()
    presets = presets or {}
    name = command.parse_args(arguments).collection
    command.set_defaults(**presets.get(name, presets.get("", {})))
    options = command.parse_args(arguments)
    try:
        check(options)
        options.output.mkdir(parents=True, exist_ok=True)
        return open_collection(options), options
    except (ValueError, FileNotFoundError) as error:
        command.error(str(error))


def check(options: argparse.Namespace) -> None:
    """Raises ValueError for values that no experiment can use."""
    for name in ("train", "dev", "test"):
        if (dataset := getattr(options, name)) is None:
            continue
        if not dataset.strip():
            raise ValueError(
                f"--{name} needs the id of a dataset of ir_datasets: leave it out for the collection's own"
            )
        if not options.collection.startswith("irds:"):
            raise ValueError(
                f"--{name} is for collections of ir_datasets: {options.collection} has its own queries"
            )
    check_counts(options)
    if (
        (folds := getattr(options, "folds", None)) is not None
        and isinstance(folds, int)
        and folds < LEAST_FOLDS
    ):
        raise ValueError(
            f"--folds {folds}: there are at least {LEAST_FOLDS}, for training, validation and test"
        )


def parse_counts(
    command: argparse.ArgumentParser, arguments: Sequence[str] | None = None
) -> argparse.Namespace:
    """The options of a command line without a single collection; ends with a message as :func:`check_counts` says."""
    options = command.parse_args(arguments)
    try:
        check_counts(options)
    except ValueError as error:
        command.error(str(error))
    return options


def check_counts(options: argparse.Namespace) -> None:
    """Raises ValueError for a number of things that is not at least 1."""
    for name in COUNTS:
        value = getattr(options, name, None)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}")


def show_progress() -> None:
    """Shows what the experiments log, and not a bar for every few texts that are encoded."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("sentence_transformers").setLevel(logging.WARNING)
