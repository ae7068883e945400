r"""The tables of the papers: one command for each, with the published values beside ours.

    python -m experiments.papers
    python -m experiments.papers pair table3 --needs
    python -m experiments.papers pair table3 --output OUTPUT
    python -m experiments.papers pair table3 --collection medquad PATH --output OUTPUT

Without arguments, this lists the tables; ``--needs`` prints what a table needs and the program that computes it. With
``--collection``, the same systems run on another collection, for which the programs have smaller defaults. Further
arguments go to the program. ``papers.toml`` has the tables.
"""

from __future__ import annotations

import argparse
import importlib
import io
import shlex
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

# the names of the data sets, models and measures of the publication, which other collections do not need
OF_THE_PAPER = ("--train", "--test", "--adapt", "--encoder", "--measures")


def tables() -> dict[str, dict[str, dict[str, str]]]:
    """The tables of each paper: ``title, command, collection, needs, published``."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame | None:
    """Computes a table; returns our values with the published ones, or None if nothing is computed."""
    papers = tables()
    command = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument("paper", nargs="?", choices=papers)
    command.add_argument("table", nargs="?", help="its name in the list of tables")
    command.add_argument("--needs", action="store_true", help="print what the table needs")
    command.add_argument("--collection", nargs="+", metavar=("NAME", "PATH"))
    command.add_argument("--output", type=Path, help="folder for indexes, models and tables")
    options, more = command.parse_known_args(arguments)
    if options.table is None:
        for paper, table in ((p, t) for p in papers for t in papers[p]):
            print(f"{paper} {table}: {papers[paper][table]['title']}")
        return None
    about = papers[options.paper].get(options.table)
    if about is None:
        command.error(f"{options.paper} has the tables {', '.join(papers[options.paper])}")
    program, *given = arguments_of(about, options.collection)
    if options.needs:
        print(about["title"], f"Needs {about['needs']}.", sep="\n")
        print(f"python -m experiments.{program} {shlex.join(given)} --output OUTPUT")
        return None
    if options.output is None:
        command.error("--output is missing")
    module: Any = importlib.import_module(f"experiments.{program}")
    ours = module.main([*given, *more, "--output", str(options.output)])
    return beside(about, ours, options.output)


def arguments_of(about: dict[str, str], collection: Sequence[str] | None) -> list[str]:
    """The program and its arguments, for the publication's collection or another one.

    Raises:
        SystemExit: If the program has its own collection.
    """
    words = shlex.split(about["command"])
    if collection is None:
        return [about["collection"] if word == "COLLECTION" else word for word in words]
    if "COLLECTION" not in words:
        raise SystemExit(f"{words[0]} is for the publication's collection: leave out --collection")
    kept: list[str] = []
    dropping = False
    for word in words:
        dropping = word in OF_THE_PAPER or (dropping and not word.startswith("--"))
        if not dropping:
            kept += collection if word == "COLLECTION" else [word]
    return kept


def beside(about: dict[str, str], ours: pd.DataFrame, output: Path) -> pd.DataFrame:
    """Prints, writes and returns our table with columns of published values, or both tables where rows differ."""
    published = pd.read_csv(io.StringIO(about["published"]), dtype=str)
    name = published.columns[0]
    print(f"\n{about['title']}")
    if "result" in about or name not in ours:
        if "result" in about:
            print((output / about["result"]).read_text("utf-8"))
        print("published:", published.to_string(index=False, na_rep="-"), sep="\n")
        return published
    table = ours.merge(published, on=name, how="left", suffixes=("", " (published)"))
    table.to_csv(output / "published.csv", index=False)
    print(table.to_string(index=False, na_rep="-"))
    return table


if __name__ == "__main__":
    main()
