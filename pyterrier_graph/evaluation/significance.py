"""One table for several seeds."""

from __future__ import annotations

import numpy as np
import pandas as pd


def summarize(per_query: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Means over queries and seeds, deviation over seeds, and Holm-corrected paired t-tests against the baseline.

    The tests are on each query's mean over seeds: seeds are no further queries.

    Args:
        per_query: ``name, qid, measure, value, seed``: what ``pt.Experiment(..., perquery=True)`` returns, and the
            seed. A system without a seed has one of them only.
        baseline: Name of the system that the others are compared with.

    Returns:
        A row per system and a column per measure, such as ``0.412 ± 0.003+``, where ``+`` or ``-`` says that the system
        is better or worse than the baseline, p < 0.05.
    """
    from scipy.stats import ttest_rel
    from statsmodels.stats.multitest import multipletests

    # rounded, since a mean of equal values differs from them by as much for all queries, which no test takes for chance
    by_query = per_query.groupby(["name", "measure", "qid"], sort=False)["value"].mean().round(12)
    by_seed = per_query.groupby(["name", "measure", "seed"], sort=False)["value"].mean()
    deviation = by_seed.groupby(level=[0, 1], sort=False).std()
    table: dict[str, dict[str, str]] = {}
    for measure in per_query["measure"].unique():
        values = by_query.xs(measure, level="measure").unstack("qid")
        values = values.loc[per_query["name"].unique()]
        others = [name for name in values.index if name != baseline]
        tests = [ttest_rel(values.loc[name], values.loc[baseline]).pvalue for name in others]
        decided = multipletests(np.nan_to_num(tests, nan=1.0), method="holm")[0] if tests else []  # nan: no difference
        significant = dict(zip(others, decided, strict=True))
        for name, mean in values.mean(axis=1).items():
            spread = deviation.get((name, measure))
            cell = f"{mean:.3f}" + ("" if spread is None or pd.isna(spread) else f" ± {spread:.3f}")
            better = mean > values.loc[baseline].mean()
            mark = ("+" if better else "-") if significant.get(name) else ""
            table.setdefault(str(name), {})[str(measure)] = cell + mark
    return pd.DataFrame(table).T.rename_axis("system")
