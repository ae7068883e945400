r"""The tables of the papers: one command for each, with the published values beside ours.

    python -m experiments.papers
    python -m experiments.papers pair table3 --needs
    python -m experiments.papers pair --page
    python -m experiments.papers pair table3 --output OUTPUT
    python -m experiments.papers pair table3 --collection medquad PATH --output OUTPUT

Without arguments, this lists the tables; ``--needs`` prints what a table needs and the program that computes it, and
``--page`` the part of ``docs/papers`` with all tables of a paper. With
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

# names of data sets and models, and sizes of training, of the publication, which other collections do not need
OF_THE_PAPER = (
    *("--train", "--test", "--unlabeled", "--adapt", "--encoder", "--cross-encoder"),
    *("--teacher", "--negatives"),
    *("--epochs", "--batch", "--passage-batch", "--learning-rate", "--retraining-learning-rate"),
)
KEYS = ("group", "system", "model", "scalar", "layer")  # columns that name a row
ON_ONE_GPU = "hours on one A100 (an estimate)"


def read() -> dict[str, Any]:
    """``data``: what is downloaded, by name. ``papers``: the tables of each paper."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


def tables() -> dict[str, dict[str, dict[str, Any]]]:
    """The tables of each paper: ``title, command, collection, data, models, hours, published``."""
    return read()["papers"]


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame | None:
    """Computes a table; returns our values with the published ones, or None if nothing is computed."""
    papers = tables()
    command = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument("paper", nargs="?", choices=papers)
    command.add_argument("table", nargs="?", help="its name in the list of tables")
    command.add_argument("--needs", action="store_true", help="print what the table needs")
    command.add_argument("--page", action="store_true", help="print the tables as Markdown")
    command.add_argument("--collection", nargs="+", metavar=("NAME", "PATH"))
    command.add_argument("--output", type=Path, help="folder for indexes, models and tables")
    options, more = command.parse_known_args(arguments)
    if options.page:
        print(page(options.paper))
        return None
    if options.table is None:
        for paper, table in ((p, t) for p in papers for t in papers[p]):
            print(f"{paper} {table}: {papers[paper][table]['title']}")
        return None
    about = papers[options.paper].get(options.table)
    if about is None:
        command.error(f"{options.paper} has the tables {', '.join(papers[options.paper])}")
    program, *given = arguments_of(about, options.collection)
    if options.needs:
        print(needs(about))
        print(f"command: python -m experiments.{program} {shlex.join(given)} --output OUTPUT")
        return None
    if options.output is None:
        command.error("--output is missing")
    module: Any = importlib.import_module(f"experiments.{program}")
    ours = module.main([*given, *more, "--output", str(options.output)])
    return beside(about, ours, options.output)


def page(paper: str) -> str:
    """The tables of a paper as Markdown: what they need, their commands, and the published values."""
    about, data = tables()[paper], read()["data"]
    used = dict.fromkeys(name for table in about.values() for name in table["data"])
    lines = ["| files | license | disk |", "|---|---|---|"]
    lines += [f"| {data[n]['files']} | {data[n]['license']} | {data[n]['disk']} |" for n in used]
    for name, table in about.items():
        published = pd.read_csv(io.StringIO(table["published"]), dtype=str, keep_default_na=False)
        command = f"python -m experiments.papers {paper} {name} --output OUTPUT"
        lines += ["", f"**{table['title']}**", "", "```sh", command, "```", ""]
        lines += [f"Models: {table['models']}. GPU: {table['hours']} {ON_ONE_GPU}.", ""]
        rows = [[*published.columns], ["---"] * published.shape[1], *published.to_numpy().tolist()]
        lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)


def needs(about: dict[str, Any]) -> str:
    """What the publication's table needs: files, licenses, disk, models and hours."""
    data = read()["data"]
    lines = [about["title"]]
    for name in about["data"]:
        lines += [f"{field}: {data[name][field]}" for field in ("files", "license", "disk")]
    return "\n".join([*lines, f"models: {about['models']}", f"GPU: {about['hours']} {ON_ONE_GPU}"])


def arguments_of(about: dict[str, Any], collection: Sequence[str] | None) -> list[str]:
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
            kept += collection if word == "COLLECTION" else [judged(word)]
    return kept


def judged(measure: str) -> str:
    """A measure for collections with judgments, where the publication's has answers."""
    return measure.replace("AnswerRecall@", "Success@")


def beside(about: dict[str, Any], ours: pd.DataFrame, output: Path) -> pd.DataFrame:
    """Prints, writes and returns the rows and columns of the publication, each with our value before it."""
    published = pd.read_csv(io.StringIO(about["published"]), dtype=str)
    if "result" in about:
        ours = scalars(output / about["result"])
    if "queries" in ours:  # a table per group of queries, such as "length <= 3 (144)"
        ours = ours.assign(group=ours["queries"].str.rpartition(" (")[0])
    published.columns = [name if name in ours else judged(name) for name in published.columns]
    keys = [name for name in published if name in KEYS]
    values = [name for name in published if name not in KEYS]
    ours = ours.reindex(columns=[*keys, *values]).astype(dict.fromkeys(keys, str))
    table = published.merge(ours, on=keys, how="left", suffixes=(" (published)", ""))
    table = table[[*keys, *(column for name in values for column in (name, f"{name} (published)"))]]
    table.to_csv(output / "published.csv", index=False)
    print(f"\n{about['title']}", table.to_string(index=False, na_rep="-"), sep="\n")
    return table


def scalars(file: Path) -> pd.DataFrame:
    """A table in a file; of one of ``clef_ip_2013`` with a row per scalar and layer, the means."""
    if file.name == "times.csv":
        return pd.read_csv(file)
    return pd.read_csv(file, header=[0, 1], index_col=[0, 1])["mean"].reset_index()


if __name__ == "__main__":
    main()
