"""The parts that the command lines of all comparisons have in common."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Collection as Names
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.collections import COLLECTIONS, open_collection
from experiments.harness.collection import Collection


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
        train=(str, "dataset of ir_datasets with the training queries (three fifths of all)"),
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
    presets: Mapping[str, Mapping[str, Any]],
    arguments: Sequence[str] | None = None,
) -> tuple[Collection, argparse.Namespace]:
    """The collection and the options; what cannot work ends with a message before anything is read.

    Args:
        command: The command line.
        presets: Defaults by name of the collection.
        arguments: Arguments; by default the program's.
    """
    show_progress()
    name = command.parse_args(arguments).collection
    command.set_defaults(**presets.get(name, {}))
    options = command.parse_args(arguments)
    if (options.train or options.test) and not name.startswith("irds:"):
        command.error(f"--train and --test are for collections of ir_datasets, {name} has its own")
    options.output.mkdir(parents=True, exist_ok=True)
    try:
        return open_collection(options), options
    except (ValueError, FileNotFoundError) as error:
        command.error(str(error))


def show_progress() -> None:
    """Shows what the experiments log, and not a bar for every few texts that are encoded."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("sentence_transformers").setLevel(logging.WARNING)
