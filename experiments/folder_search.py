"""Search in folders of documentation: the results of a folder search, and of what users would try first.

    python -m experiments.folder_search FOLDER=PATH ... --output OUTPUT

A folder's name is that of its questions in ``folder_search.tsv``, which were written before any answer was seen. A
question is answered if one of the first three results is in a file, or a section, that the question's regular
expression finds in ``file title``. Each rival ranks the same passages, with one result per section as well.
"""

from __future__ import annotations

import argparse
import csv
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyterrier as pt

import pyterrier_graph as ptg
from pyterrier_graph.encoders.names import DEFAULT
from pyterrier_graph.encoders.stored_vectors import base_vectors
from pyterrier_graph.search.bm25 import BM25Index
from pyterrier_graph.search.results import fold_results
from pyterrier_graph.search.retrievers import BM25Retriever
from pyterrier_graph.search.versions import ENCODED

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
        columns[f"{name} ({len(every[name])})"] = answered(
            index, every[name], options.output / name
        )
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


def answered(index: ptg.GraphIndex, asked: dict[str, str], output: Path) -> dict[str, int]:
    """The number of answered questions per system."""
    ranked = {
        "folder search": pd.concat(
            [index.search(question, BEST).assign(query=question) for question in asked]
        )
    }
    topics = pd.DataFrame(
        {"qid": [f"q{number}" for number in range(len(asked))], "query": [*asked]}
    )
    for name, system in rivals(index, output).items():
        for per in ("passage", "section"):
            found = system >> index.graph.text_loader()
            found = fold_results(index.graph, index.version.lines, found, per) % BEST
            ranked[f"{name}, one per {per}"] = found.transform(topics)
    return {name: hits(found, asked) for name, found in ranked.items()}


def hits(found: pd.DataFrame, asked: dict[str, str]) -> int:
    """The number of questions with an answer among the results."""
    places = found["file"] + " " + found["title"]
    right = [
        bool(re.search(asked[query], place))
        for query, place in zip(found["query"], places, strict=True)
    ]
    return found["query"][right].nunique()


def rivals(index: ptg.GraphIndex, output: Path) -> dict[str, pt.Transformer]:
    """Systems that users would try first, over the same passages; they rank passages."""
    graph, encoder = index.graph, index.bi_encoder
    rows = [*graph.get_corpus_iter()]
    path = output / "rivals"
    shutil.rmtree(path, ignore_errors=True)
    docnos, texts = ([row[name] for row in rows] for name in ("docno", "text"))
    bm25 = BM25Retriever(BM25Index.build(path, texts), docnos)
    titled = BM25Retriever(index.version.bm25, docnos)
    flex = base_vectors(index.path / ENCODED, graph, encoder, titles=True).flex
    dense = encoder.query_encoder() >> flex.np_retriever(num_results=1000, drop_query_vec=True)
    return {
        "BM25": bm25,
        "BM25 with titles": titled,
        "dense with titles": dense,
        "hybrid with titles": ptg.Hybrid(titled, dense),
    }


if __name__ == "__main__":
    main()
