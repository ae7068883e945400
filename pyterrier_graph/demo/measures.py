"""Measures of the demo's systems."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyterrier as pt
from ir_measures import RR, nDCG

from pyterrier_graph.demo.systems import BM25
from pyterrier_graph.evaluation.significance import summarize

MEASURES = (nDCG @ 10, RR @ 10)
MEASURE = str(MEASURES[0])


@dataclass(frozen=True)
class Results:
    """The tables of the demo."""

    passages: pd.DataFrame  # a row per system, see compare()
    documents: pd.DataFrame  # likewise, of systems that rank documents
    drawn: pd.DataFrame  # name, qid, measure, value: of LGRe on passages drawn at random


def per_query(
    runs: Mapping[str, pd.DataFrame], topics: pd.DataFrame, qrels: pd.DataFrame, *measures: Any
) -> pd.DataFrame:
    """``name, qid, measure, value`` of each system."""
    return pt.Experiment([*runs.values()], topics, qrels, [*measures], names=[*runs], perquery=True)


def compare(
    runs: Mapping[str, pd.DataFrame], topics: pd.DataFrame, qrels: pd.DataFrame
) -> pd.DataFrame:
    """The means of each system, with ``+`` or ``-`` where it is better or worse than BM25."""
    values = per_query(runs, topics, qrels, *MEASURES)
    return summarize(values, BM25).loc[[*runs]].map("{:<6}".format)
