"""Differences between all pairs of systems, with paired tests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from ir_measures.measures import Measure
from scipy.stats import ttest_rel


def differences(per_query: pd.DataFrame, output: Path, measures: Sequence[Measure]) -> pd.DataFrame:
    """Compares each system with each other one: the difference of the means, and the p-value of a paired t-test.

    The tests compare the means over seeds of each query; p is not corrected for the number of tests.

    Args:
        per_query: ``name, qid, measure, value``.
        output: Folder, to which ``differences.csv`` is written.
        measures: What was measured.
    """
    rows = []
    for measure in map(str, measures):
        values = per_query[per_query["measure"].astype(str) == measure]
        table = values.groupby(["qid", "name"], sort=False)["value"].mean().unstack()
        for one, other in itertools.permutations(values["name"].unique(), 2):
            test = ttest_rel(table[one], table[other], nan_policy="omit")
            rows.append((measure, one, other, (table[one] - table[other]).mean(), float(test.pvalue)))
    found = pd.DataFrame(rows, columns=["measure", "system", "other", "difference", "p"])
    found.to_csv(output / "differences.csv", index=False)
    return found
