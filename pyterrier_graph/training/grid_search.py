"""Grid search for a few numbers of a model that are not learned by gradients, such as the weights of relations."""

import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyterrier as pt

from pyterrier_graph.warning_categories import QualityWarning

WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0)
SWEEPS = 2  # how often the whole grid is tried, if there are several numbers

Numbers = dict[str, float]


def coordinate_search(
    start: Mapping[str, float],
    grid: Sequence[Mapping[str, float]],
    measure: Callable[[Numbers], np.ndarray],
    *,
    desc: str = "grid search",
    verbose: bool = True,
) -> Numbers:
    """Moves some numbers, one after the other, away from their start, only as far as the queries support it.

    Of all values of a number whose measure is within one standard error of the best, the one closest to the start is
    taken (Breiman et al. 1984, Classification and Regression Trees, Sect. 3.4.3). A value is within one standard error
    if its mean difference to the best value, over the queries, is at most the standard error of this mean. So few
    queries move a number only if they agree, and a single query moves none.

    An interruption (Ctrl-C) ends the search early: the numbers that are chosen from what is measured so far are
    returned, with a warning.

    Args:
        start: The numbers by name.
        grid: The changes that are tried; one can change several numbers together. The changes of one number are
            ``[{"title": w} for w in (0, 0.5, 1)]``, for example.
        measure: Measures the model with these numbers: the measure of each query, shape (queries,); more is better.
        desc: Title of the progress bar.
        verbose: Whether to show progress.
    """
    present, trials = dict(start), list[Numbers]()
    groups: dict[frozenset[str], list[Mapping[str, float]]] = {}
    for change in grid:
        groups.setdefault(frozenset(change), []).append(change)
    sweeps = SWEEPS if len(groups) > 1 else 1
    measured: dict[tuple[float, ...], np.ndarray] = {}
    total = (len(grid) + len(groups)) * sweeps
    with pt.tqdm(total=total, desc=desc, unit="trial", delay=1, disable=not verbose) as bar:
        try:
            for changes in [*groups.values()] * sweeps:
                trials = [present, *({**present, **change} for change in changes)]
                for trial in trials:
                    if (key := tuple(trial.values())) not in measured:
                        measured[key] = measure(trial)
                    bar.update()
                present = _supported(trials, measured, start)
        except KeyboardInterrupt:
            present = _supported(trials, measured, start)
            warnings.warn(
                f"{desc} was interrupted: the best numbers so far are kept, {present}; call it again for the others",
                QualityWarning,
                stacklevel=2,
            )
    return present


def _supported(
    trials: Sequence[Numbers], measured: Mapping[tuple[float, ...], np.ndarray], start: Mapping[str, float]
) -> Numbers:
    """Of the trials that are measured, and within one standard error of the best, the one closest to the start."""
    values = [measured.get(tuple(trial.values())) for trial in trials]
    there = [(trial, value) for trial, value in zip(trials, values, strict=True) if value is not None]
    if not there:
        return dict(start)
    best = max((value for _, value in there), key=np.mean)
    return min((trial for trial, value in there if _as_good(value, best)), key=lambda trial: _distance(trial, start))


def _as_good(value: np.ndarray, best: np.ndarray) -> bool:
    worse, count = best - value, len(best)
    error = float(np.std(worse, ddof=1)) / count**0.5 if count > 1 else np.inf
    # a single query that differs is exactly one standard error away
    return float(np.mean(worse)) <= error * (1 + 1e-9)


def _distance(numbers: Numbers, start: Mapping[str, float]) -> float:
    return sum(abs(number - start[name]) for name, number in numbers.items())
