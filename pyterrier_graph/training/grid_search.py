"""Grid search for a few numbers of a model that are not learned by gradients, such as the weights of relations."""

import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyterrier as pt

WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0)
SWEEPS = 2  # how often the whole grid is tried, if there are several numbers

Numbers = dict[str, float]


def coordinate_search(
    start: Mapping[str, float],
    grid: Sequence[Mapping[str, float]],
    measure: Callable[[Numbers], float],
    *,
    desc: str = "grid search",
    verbose: bool = True,
) -> Numbers:
    """Tries changes of some numbers one after the other, and keeps each change that is better than all before.

    An interruption (Ctrl-C) ends the search early: the best numbers found so far are returned, with a warning.

    Args:
        start: The numbers by name.
        grid: The changes, in the order in which they are tried; one can change several numbers together.
            ``[{"title": w} for w in (0, 0.5, 1)]`` are the changes of one number.
        measure: Measures the model with these numbers; more is better.
        desc: Title of the progress bar.
        verbose: Whether to show progress.
    """
    best = dict(start)
    reached = measure(best)
    trials = [*grid] * (SWEEPS if len({name for change in grid for name in change}) > 1 else 1)
    try:
        for change in pt.tqdm(trials, desc=desc, unit="trial", delay=1, disable=not verbose):
            trial = best | change
            if trial != best and (value := measure(trial)) > reached:
                best, reached = trial, value
    except KeyboardInterrupt:
        warnings.warn(f"{desc} was interrupted: the best numbers so far are kept, {best}", stacklevel=2)
    return best


def closest_within_one_standard_error(start: float, measured: Mapping[float, np.ndarray]) -> float:
    """Of the values that are about as good as the best one, the value closest to the start (Breiman et al. 1984).

    A value is about as good if the mean difference to the best value, over the queries, is at most its standard error.

    Args:
        start: The present value.
        measured: Per value the measure of each query, shape (queries,), of the same queries in the same order.
    """
    best = max(measured, key=lambda value: measured[value].mean())

    def as_good(value: float) -> bool:
        worse = measured[best] - measured[value]
        return float(worse.mean()) <= float(worse.std(ddof=min(1, len(worse) - 1))) / len(worse) ** 0.5

    return min(filter(as_good, measured), key=lambda value: abs(value - start))
