"""Search in folders of documentation: the results of a folder search, and of its lexical and dense parts.

    python -m experiments.folder_search FOLDER=PATH ... --output OUTPUT

A folder's name is that of its questions in ``folder_search.tsv``, which were written before any answer was seen. A
question is answered if one of the first three results is in a file, or a section, that the question's regular
expression finds in ``file title``. The parts rank passages or sections.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

import pyterrier_graph as ptg
from pyterrier_graph.encoders.names import DEFAULT

QUESTIONS = Path(__file__).with_suffix(".tsv")
BEST = 3
UNANSWERABLE = [
    "asdf qwer zxcv",
    "colorless green ideas sleep furiously",
    "recipe for apple pie with cinnamon",
    "who won the football world cup in 1998",
    "best hotels near the beach in Spain",
    "how do I treat a sunburn",
    "symptoms of the flu in children",
    "train schedule from Paris to Lyon",
    "purple elephant umbrella",
    "what is the capital of Mongolia",
]


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Counts the questions that each system answers, and returns the table."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "folders",
        nargs="+",
        metavar="FOLDER=PATH",
        help="a name in folder_search.tsv, and its folder",
    )
    made.add_argument("--output", required=True, type=Path, help="folder of the indexes")
    made.add_argument("--encoder", default=DEFAULT, help="name or folder of a checkpoint")
    options = made.parse_args(arguments)
    every = questions()
    columns = {}
    for name, path in (folder.split("=", 1) for folder in options.folders):
        index = ptg.open_folder(path, cache=options.output / name, encoder=options.encoder)
        columns[f"{name} ({len(every[name])})"] = answered(index, every[name])
        others = [question for other, asked in every.items() if other != name for question in asked]
        weak = [
            f"{sum('weak' in index.search(question, BEST).attrs for question in part)} of {len(part)}"
            for part in (every[name], others, UNANSWERABLE)
        ]
        counts = f"no answer for {weak[0]} of its questions, {weak[1]} of others, {weak[2]} without an answer"
        print(f"{name}: {len(index.graph)} files, {len(index)} passages; {counts}", flush=True)
    table = pd.DataFrame(columns)
    print(table.to_string())
    return table


def questions() -> dict[str, dict[str, str]]:
    """Per folder the questions, each with the regular expression of what answers it."""
    found: dict[str, dict[str, str]] = {}
    with QUESTIONS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            found.setdefault(row["folder"], {})[row["question"]] = row["relevant"]
    return found


def answered(index: ptg.GraphIndex, asked: dict[str, str]) -> dict[str, int]:
    """The number of answered questions per system."""
    searched = [index.search(question, BEST).assign(query=question) for question in asked]
    rankings = {"folder search": pd.concat(searched)}
    topics = pd.DataFrame(
        {"qid": [f"q{number}" for number in range(len(asked))], "query": [*asked]}
    )
    for per in ("passage", "section"):
        systems = {"BM25": index.bm25(BEST, per=per), "dense": index.dense(BEST, per=per)}
        for name, system in systems.items():
            rankings[f"{name}, one per {per}"] = system.transform(topics)
    return {name: hits(ranking, asked) for name, ranking in rankings.items()}


def hits(ranking: pd.DataFrame, asked: dict[str, str]) -> int:
    """The number of questions with an answer among the results."""
    sections = ranking["file"] + " " + ranking["title"]
    right = [
        bool(re.search(asked[query], section))
        for query, section in zip(ranking["query"], sections, strict=True)
    ]
    return ranking["query"][right].nunique()


if __name__ == "__main__":
    main()
