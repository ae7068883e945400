"""Grid search for a few numbers of a model that are not learned by gradients, such as the weights of relations."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pydantic
import pyterrier as pt

from pyterrier_graph.configuration import STRICT
from pyterrier_graph.training.validation import as_good

WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0)
SWEEPS = 2  # how often the whole grid is tried, if there are several numbers

Numbers = dict[str, float]


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=STRICT)
class Tuning:
    """Options of a ``fit`` that tunes a few numbers by grid search, such as ``Tuning(measure="AP")``.

    Attributes:
        measure: Name of the ir_measures measure that is maximized on the validation queries.
    """

    measure: str = "nDCG@10"


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

    Args:
        start: The numbers by name.
        grid: The changes to try, such as ``[{"title": w} for w in (0, 0.5, 1)]``. A change may set several numbers.
        measure: Returns the measure of each query with some numbers, shape (queries,); higher is better.
        desc: Label of the progress bar.
        verbose: Whether to show progress.
    """
    present = dict(start)
    changes_by_names: dict[frozenset[str], list[Mapping[str, float]]] = {}
    for change in grid:
        names = frozenset(change)
        changes_by_names.setdefault(names, []).append(change)
    groups = list(changes_by_names.values())
    sweeps = SWEEPS if len(groups) > 1 else 1
    measured: dict[tuple[float, ...], np.ndarray] = {}
    total = (len(grid) + len(groups)) * sweeps
    with pt.tqdm(total=total, desc=desc, unit="trial", delay=1, disable=not verbose) as bar:
        for changes in groups * sweeps:
            trials = [present]
            for change in changes:
                trials.append(present | dict(change))
            values = []
            for trial in trials:
                key = tuple(trial.values())
                if key not in measured:
                    measured[key] = measure(trial)
                values.append(measured[key])
                bar.update()
            best = max(values, key=np.mean)
            pairs = zip(trials, values, strict=True)
            supported = [trial for trial, value in pairs if as_good(value, best)]
            present = min(supported, key=lambda trial: _distance(trial, start))
    return present


def _distance(trial: Mapping[str, float], start: Mapping[str, float]) -> float:
    """The sum of the changes of all numbers."""
    return sum(abs(trial[name] - start[name]) for name in trial)
