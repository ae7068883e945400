"""Tables of experiments with several seeds, with significance tests."""

import numpy as np
import pandas as pd


def summarize(per_query: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Summarizes an experiment with several seeds, with paired t-tests (Holm-corrected) against a baseline.

    The tests compare each query's mean over seeds, so that more seeds do not count as more queries.

    Args:
        per_query: ``name, qid, measure, value``: the result of ``pt.Experiment(..., perquery=True)``. A column ``seed``
            can be added; all rows of a system without seeds have the same seed.
        baseline: Name of the system that the other systems are compared with.

    Returns:
        A row per system and a column per measure, such as ``0.412 ± 0.003+``: the mean over queries and seeds, the
        standard deviation over seeds, and ``+`` or ``-`` where the system is better or worse than the baseline at
        p < 0.05.
    """
    per_query = per_query.astype({"measure": str})
    if "seed" not in per_query.columns:
        per_query = per_query.assign(seed=0)
    by_seed = per_query.groupby(["name", "measure", "seed"])["value"]
    by_system = by_seed.mean().groupby(["name", "measure"])
    deviation = by_system.std().unstack("measure")  # (systems, measures), NaN with one seed
    columns = {}
    for measure in per_query["measure"].unique():
        values = values_of(per_query, measure)
        mean = values.mean(axis=1)
        deviations = deviation[measure][mean.index]
        mean_texts = mean.map("{:.3f}".format)
        deviation_texts = deviations.map(" ± {:.3f}".format, na_action="ignore").fillna("")
        marks = pd.Series(significance_marks(values, baseline))
        columns[measure] = mean_texts + deviation_texts + marks
    return pd.DataFrame(columns).rename_axis("system")


def values_of(per_query: pd.DataFrame, measure: str) -> pd.DataFrame:
    """A measure of each system (row) and query (column), the mean over seeds; systems in order of appearance."""
    has_measure = per_query["measure"].astype(str) == str(measure)
    rows = per_query[has_measure]
    systems = rows["name"].unique()
    by_query = rows.groupby(["name", "qid"], sort=False)["value"]
    # Means of equal values differ by the same tiny number for all queries, which would be significant.
    means = by_query.mean().round(12)
    return means.unstack("qid").loc[systems]


def significance_marks(values: pd.DataFrame, baseline: str) -> dict[str, str]:
    """Per system ``+`` or ``-`` where it is better or worse than the baseline (paired t-tests, Holm, p < 0.05)."""
    from scipy.stats import ttest_rel
    from statsmodels.stats.multitest import multipletests

    marks = dict.fromkeys(values.index, "")
    systems = [name for name in values.index if name != baseline]
    if not systems:
        return marks
    p_values = []
    for name in systems:
        test = ttest_rel(values.loc[name], values.loc[baseline])
        p_values.append(test.pvalue)
    p_values = np.nan_to_num(p_values, nan=1.0)  # of systems that are equal
    is_significant, *_ = multipletests(p_values, method="holm")
    means = values.mean(axis=1)
    is_better = means > means[baseline]
    for name in np.array(systems)[is_significant]:
        marks[name] = "+" if is_better[name] else "-"
    return marks
