"""The table of all systems on all collections, and whether the systems keep what their defaults promise."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd

from experiments.left_out import names
from pyterrier_graph import summarize

MEAN = "mean"
CLOSE = 0.01  # how far GraphMean's default may be below the best fixed weights
SMALL = 0.005  # how far a hybrid may be below its better part
GAIN = 0.03  # how far the best system should be above what users would try first
BETTER, WORSE = "+", "-"


def overview(per_query: pd.DataFrame, measure: str, baseline: str) -> pd.DataFrame:
    """A row per system, a column per collection, and the mean over collections.

    Args:
        per_query: ``collection, name, qid, measure, value, seed``.
        measure: Name of the measure.
        baseline: What ``+`` and ``-`` compare with.
    """
    values = per_query[per_query["measure"] == measure]
    columns = {
        name: summarize(part, baseline)[measure]
        for name, part in values.groupby("collection", sort=False)
    }
    table = pd.DataFrame(columns)
    table = table.reindex([name for name in names.SYSTEMS if name in table.index])
    table[MEAN] = means(per_query, measure).mean(axis=1, skipna=False).map("{:.3f}".format)
    return table.fillna("").replace({MEAN: {"nan": ""}}).rename_axis("system")


def means(per_query: pd.DataFrame, measure: str) -> pd.DataFrame:
    """The mean over queries and seeds, of each system (row) on each collection (column)."""
    values = per_query[per_query["measure"] == measure]
    return values.groupby(["name", "collection"], sort=False)["value"].mean().unstack()


def goals(per_query: pd.DataFrame, measure: str) -> pd.DataFrame:
    """The expectations of the systems, and whether they hold.

    Returns:
        ``goal, collection, compared`` (with which system), ``difference``, ``significant`` (``+`` or ``-``, by a paired
        t-test of the two systems) and ``reached``.
    """
    table, values = means(per_query, measure), per_query[per_query["measure"] == measure]
    rows = []

    def compare(goal: str, system: str, others: Collection[str], least: float | None) -> None:
        """A row per collection: the difference to the best of others is at least so much, or not significant."""
        for name in table.columns:
            present = table.loc[table.index.isin([*others]), name].dropna()
            if system not in table.index or present.empty or np.isnan(table.at[system, name]):
                continue
            best = str(present.idxmax())
            difference = float(table.at[system, name] - present[best])
            mark = _mark(values[values["collection"] == name], system, best)
            reached = mark != WORSE if least is None else round(difference, 6) >= least
            rows.append((goal, name, best, difference, mark, reached))

    compare("Hybrid at or above its best part", names.HYBRID, (names.BM25, names.MEAN), 0.0)
    for system, lexical in (
        (names.HYBRID_CONTEXT, names.BM25_CONTEXT),
        (names.INDEX, names.INDEX_BM25),
    ):
        compare(f"{system}, within {SMALL} of its best part", system, (lexical, names.MEAN), -SMALL)
    for system, rival in names.FUSED_ALIKE.items():
        compare(
            f"{system}, not significantly below the rival that is fused alike",
            system,
            [rival],
            None,
        )
    for system, untrained in names.UNTRAINED.items():
        compare(
            f"{system}, not significantly below its untrained counterpart",
            system,
            [untrained],
            None,
        )
    own = names.DUAL, names.TITLE_IN_TEXT
    compare(
        "GraphMean not significantly below the dual-encoder, with or without titles",
        names.MEAN,
        own,
        None,
    )
    compare(
        f"GraphMean within {CLOSE} of the best fixed weights", names.MEAN, [names.MEAN_BEST], -CLOSE
    )
    compare(
        "GNNEncoder from elsewhere not significantly below its start",
        names.GNN_ELSEWHERE,
        [names.MEAN],
        None,
    )
    frame = pd.DataFrame(
        rows, columns=["goal", "collection", "compared", "difference", "significant", "reached"]
    )
    return pd.concat([frame, _best(table)], ignore_index=True)


def _mark(values: pd.DataFrame, system: str, other: str) -> str:
    """``+`` or ``-`` where a system is significantly better or worse than another one."""
    if system == other:
        return ""
    cell = summarize(values[values["name"].isin([system, other])], other).loc[system].iloc[0]
    return next((mark for mark in (BETTER, WORSE) if cell.endswith(mark)), "")


def _best(table: pd.DataFrame) -> pd.DataFrame:
    """The best system on average against the best rival on average, and against the best rival of each collection."""
    complete = table.dropna()
    rivals: Sequence[str] = [name for name in names.RIVALS if name in complete.index]
    ours = complete.drop(index=[*rivals, names.MEAN_BEST], errors="ignore").mean(axis=1)
    rows = []
    if rivals and len(ours):
        average = complete.loc[rivals].mean(axis=1)
        each = complete.loc[rivals].max().mean()
        goal = f"{ours.idxmax()}, the best system, at least {GAIN} above"
        for rival, value in (
            (str(average.idxmax()), average.max()),
            ("the best rival of each collection", each),
        ):
            difference = float(ours.max() - value)
            rows.append(
                (f"{goal} {rival}", MEAN, rival, difference, "", round(difference, 6) >= GAIN)
            )
    return pd.DataFrame(
        rows, columns=["goal", "collection", "compared", "difference", "significant", "reached"]
    )
