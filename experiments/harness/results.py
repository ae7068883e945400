"""Stored runs of systems, and the table of them."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyterrier as pt
from ir_measures.measures import Measure

from experiments.harness.collection import Queries
from pyterrier_graph import summarize
from pyterrier_graph.evaluation.measures import AnswerRecall

PER_QUERY, RESULTS, OPTIONS = "per_query.csv", "results.csv", "options.json"


class Results:
    """Evaluates systems on test queries.

    Args:
        output: Folder; runs are in ``runs/``.
        queries: The test queries.
        measures: What is measured.
        with_texts: Adds ``text`` to a run, for ``AnswerRecall``, which also needs a column ``answers`` of the topics.

    Attributes:
        per_query: ``name, qid, measure, value, seed`` of all systems so far, and further columns.
    """

    def __init__(
        self,
        output: Path,
        queries: Queries,
        measures: Sequence[Measure],
        with_texts: Callable[[pd.DataFrame], pd.DataFrame] = lambda run: run,
    ) -> None:
        self.output, self.queries, self.measures = output, queries, [*measures]
        self.with_texts = with_texts
        self.per_query = pd.DataFrame()

    def add(
        self,
        name: str,
        make_run: Callable[[], pd.DataFrame],
        seed: int = 0,
        *,
        file: str | None = None,
        **columns: Any,
    ) -> None:
        """Evaluates the run of a system, which is made unless it is stored.

        Args:
            name: The system's name.
            make_run: Makes the run.
            seed: Seed of the system.
            file: Name of the stored run, without the seed; by default the system's name.
            columns: Further columns of :attr:`per_query`.
        """
        run = stored(self.output / "runs" / f"{slug(file or name)}-{seed}.csv.gz", make_run)
        values = self._measured(name, run).assign(seed=seed, **columns)
        self.per_query = pd.concat([self.per_query, values], ignore_index=True)
        self.per_query.to_csv(self.output / PER_QUERY, index=False)

    def _measured(self, name: str, run: pd.DataFrame) -> pd.DataFrame:
        """The measures of each query, by judgments or by answers."""
        experiment = partial(pt.Experiment, names=[name], perquery=True)
        topics, qrels = self.queries
        of_answers = [measure for measure in self.measures if measure.NAME == AnswerRecall.NAME]
        if not of_answers:
            return experiment([run], topics, qrels, self.measures)
        answers = (
            topics[["qid", "answers"]].explode("answers").rename(columns={"answers": "answer"})
        )
        values = experiment([self.with_texts(run)], topics[["qid", "query"]], answers, of_answers)
        judged = [measure for measure in self.measures if measure not in of_answers]
        return pd.concat([values, experiment([run], topics, qrels, judged)]) if judged else values

    def table(
        self, baseline: str | None = None, groups: Mapping[str, Collection[str]] | None = None
    ) -> pd.DataFrame:
        """See :func:`tabulate`."""
        return tabulate(self.per_query, self.output, self.measures, baseline, groups)


def tabulate(
    per_query: pd.DataFrame,
    output: Path,
    measures: Sequence[Measure],
    baseline: str | None = None,
    groups: Mapping[str, Collection[str]] | None = None,
) -> pd.DataFrame:
    """Writes ``per_query.csv`` and ``results.csv``, and prints the latter.

    Args:
        per_query: See :attr:`Results.per_query`.
        output: Where to write.
        measures: The columns.
        baseline: Name of the system that the others are tested against; by default the first one.
        groups: qids by name of the group; there is a part of the table for each, named in the column ``queries``.

    Returns:
        See :func:`pyterrier_graph.summarize`.
    """
    baseline = baseline or per_query["name"].iloc[0]
    tables = []
    for group, qids in (
        {"": per_query["qid"].unique()}.items() if groups is None else groups.items()
    ):
        values = per_query[per_query["qid"].isin(set(qids))]
        if len(values):
            table = summarize(values, baseline)[[*map(str, measures)]].reset_index()
            if groups is not None:
                table.insert(0, "queries", f"{group} ({values['qid'].nunique()})")
            tables.append(table)
    results = pd.concat(tables, ignore_index=True)
    per_query.to_csv(output / PER_QUERY, index=False)
    results.to_csv(output / RESULTS, index=False)
    print(f"+ and -: significantly better and worse than {baseline}")
    print(results.to_string(index=False))
    return results


def deepest(measures: Iterable[Measure], least: int) -> int:
    """The number of results per query that all measures need, at least ``least``."""
    return max([least, *(measure.params.get("cutoff") or 0 for measure in measures)])


def stored(file: Path, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    """A run from its file, which is written, completely or not at all, where it is missing."""
    if not file.exists():
        write(make()[["qid", "docno", "score", "rank"]], file)
    return pd.read_csv(file, dtype={"qid": str, "docno": str})


def write(frame: pd.DataFrame, file: Path) -> None:
    """Writes a frame completely or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with pt.io.finalized_autoopen(str(file), "b") as out:
        out.write(frame.to_csv(index=False).encode())


def claim(output: Path, options: argparse.Namespace, free: Collection[str]) -> None:
    """Notes which options the runs in a folder were made with.

    Args:
        output: The folder.
        options: The options.
        free: Names of options that may differ from one call to the next, since names of runs tell them.

    Raises:
        SystemExit: If the folder has runs that were made with other options.
    """
    made_with = {
        name: str(value)
        for name, value in sorted(vars(options).items())
        if name not in {*free, "output"}
    }
    note = output / OPTIONS
    if note.exists():
        before = json.loads(note.read_text("utf-8"))
        if other := sorted(
            name for name in {*before, *made_with} if before.get(name) != made_with.get(name)
        ):
            raise SystemExit(
                f"{str(output)!r} has runs made with other options ({', '.join(other)}): change --output"
            )
    output.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps(made_with, indent=1), encoding="utf-8")


def slug(name: str) -> str:
    """A name for a file."""
    return re.sub(r"[^\w+.]+", "-", name.replace("<=", "to").replace(">", "over")).strip("-")


def choice(name: str) -> str:
    """How a system is named on the command line."""
    spelled = name.lower().replace("w/o", "without").replace("w/", "with")
    return re.sub("[^a-z0-9]+", "-", spelled).strip("-")
