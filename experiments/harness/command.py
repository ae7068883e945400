"""What the command lines of all comparisons have in common."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Collection as Names
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.collections import COLLECTIONS, open_collection
from experiments.harness.collection import Collection


def parser(description: str | None, systems: Names[str], chosen: Sequence[str]) -> argparse.ArgumentParser:
    """The common options.

    Args:
        description: The documentation of the program.
        systems: Names of all systems.
        chosen: Those that run by default.
    """
    command = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, shown = command.add_argument, "%(default)s"
    add("collection", help=f"{', '.join(COLLECTIONS)}, or ids of ir_datasets, irds:..., joined by commas")
    add("path", type=Path, nargs="?", help="folder of the collection; ir_datasets and numpydoc need none")
    add("--train", help="dataset of ir_datasets with the training queries (three fifths of the collection's)")
    add("--dev", help="likewise for validation (a fifth)")
    add("--test", help="likewise for the test (a fifth)")
    add("--passages", type=int, default=17_500, help=f"size of the sample of MedQuAD ({shown})")
    add("--queries", type=int, help="test queries, drawn at random (all)")
    add("--train-queries", type=int, help="training queries, drawn at random (all)")
    add("--dev-queries", type=int, default=500, help=f"validation queries, drawn at random ({shown})")
    add("--first-stage", choices=["pisa", "terrier"], default="pisa", help="what BM25 runs on")
    add("--systems", nargs="+", choices=[*systems], default=[*chosen], metavar="SYSTEM", help=", ".join(systems))
    add("--seeds", nargs="+", type=int, default=[0], help=f"({shown})")
    add("--output", type=Path, required=True, help="folder for indexes, graphs, runs and tables")
    return command


def parse(
    command: argparse.ArgumentParser,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    arguments: Sequence[str] | None = None,
) -> tuple[Collection, argparse.Namespace]:
    """The collection and the options.

    Args:
        command: The command line.
        presets: Defaults by name of the collection; those under ``""`` are for all that have no others.
        arguments: Arguments; by default the program's.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    presets = presets or {}
    name = command.parse_args(arguments).collection
    command.set_defaults(**presets.get(name, presets.get("", {})))
    options = command.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    try:
        return open_collection(options), options
    except ValueError as error:
        command.error(str(error))
