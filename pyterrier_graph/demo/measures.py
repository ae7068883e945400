"""Measures of the demo's systems."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
from ir_measures import RR, nDCG

from pyterrier_graph.demo.systems import BM25

MEASURES = (nDCG @ 10, RR @ 10)
MEASURE = str(MEASURES[0])


@dataclass(frozen=True)
class Results:
    """The tables of the demo."""

    passages: pd.DataFrame  # a row per system, see compare()
    documents: pd.DataFrame  # likewise, of systems that rank documents
    drawn: pd.DataFrame  # name, qid, measure, value: of LGRe on passages drawn at random


def per_query(
    runs: Mapping[str, pd.DataFrame], topics: pd.DataFrame, qrels: pd.DataFrame, measure: Any
) -> pd.DataFrame:
    """``name, qid, measure, value`` of each system."""
    return pt.Experiment([*runs.values()], topics, qrels, [measure], names=[*runs], perquery=True)


def compare(
    runs: Mapping[str, pd.DataFrame], topics: pd.DataFrame, qrels: pd.DataFrame
) -> pd.DataFrame:
    """The measures of each system, and their p-values against BM25: 1 if better, -1 if worse, 0 if not significant."""
    measured = pt.Experiment(
        [*runs.values()],
        topics,
        qrels,
        [*MEASURES],
        names=[*runs],
        baseline=[*runs].index(BM25),
        correction="holm",
    ).set_index("name")
    table = measured[[*map(str, MEASURES)]].copy()
    for measure in map(str, MEASURES):
        rejected = measured[f"{measure} reject"].fillna(False).astype(bool)
        sign = np.sign(measured[measure] - measured.loc[BM25, measure])
        table[f"{measure} p"] = measured[f"{measure} p-value corrected"]
        table[f"{measure} significant"] = (rejected * sign).astype(int)
    return table.rename_axis("system")


def as_text(table: pd.DataFrame) -> str:
    """A table with the significance as a mark."""
    shown = pd.DataFrame(index=table.index)
    for measure in map(str, MEASURES):
        marks = table[f"{measure} significant"].map({1: "+", -1: "-", 0: " "})
        shown[measure] = table[measure].map("{:.3f}".format) + marks
    if "ms per query" in table:
        shown["ms per query"] = table["ms per query"].map("{:.1f}".format)
    return shown.to_string()
