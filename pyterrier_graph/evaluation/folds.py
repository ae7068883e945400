"""Folds: disjoint sets of queries for cross-validation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import count
from typing import NamedTuple

import pandas as pd


class Parts(NamedTuple):
    """The qids for training, validation and test in one round of a cross-validation."""

    train: set[str]
    validation: set[str]
    test: set[str]


def query_folds(topics: pd.DataFrame, folds: int = 5, *, seed: int = 0) -> list[set[str]]:
    """Divides queries at random into folds whose sizes differ by at most one.

    Args:
        topics: Queries or a run: ``qid``. The order of rows does not matter.
        folds: Number of folds.
        seed: Seed of the random division.

    Returns:
        The qids of each fold.

    Raises:
        ValueError: If there are fewer than three folds, or fewer queries than folds.
    """
    from sklearn.model_selection import KFold

    qids = sorted(set(topics["qid"].astype(str)))
    if not 3 <= folds <= len(qids):
        raise ValueError(f"{len(qids)} queries in {folds} folds: at least 3 folds are needed, and a query in each")
    splits = KFold(folds, shuffle=True, random_state=seed).split(qids)
    return [{qids[place] for place in test} for _, test in splits]


def folds_of(dataset_id: str) -> list[set[str]]:
    """Returns the folds of a dataset of ir_datasets: its subsets ``fold1``, ``fold2``, and so on.

    ``folds_of("disks45/nocr/trec-robust-2004")`` returns the five folds of Huston and Croft (2014), which Dong et al.
    (LGRe) used. To use a part of the topics, intersect each fold with the qids of the part.

    Args:
        dataset_id: Id of the whole dataset, with or without ``irds:``.

    Returns:
        The qids of each fold.

    Raises:
        KeyError: If there is no such dataset, or the dataset has no folds.
    """
    import ir_datasets

    name = dataset_id.removeprefix("irds:")
    ir_datasets.load(name)
    folds: list[set[str]] = []
    for number in count(1):
        try:
            fold = ir_datasets.load(f"{name}/fold{number}")
        except KeyError:
            break
        folds.append({query.query_id for query in fold.queries_iter()})
    if not folds:
        raise KeyError(f"ir_datasets has no {name}/fold1: divide the queries with query_folds")
    return folds


def check_folds(folds: Sequence[Collection[str]], qids: Collection[str]) -> None:
    """Raises ValueError unless there are three folds or more, and each query is in exactly one fold."""
    if len(folds) < 3:
        raise ValueError(f"there are {len(folds)} folds: training, validation and test need at least 3")
    for number, fold in enumerate(folds, start=1):
        if isinstance(fold, str):
            raise ValueError(f"fold {number} is the text {fold!r}, not a collection of qids")
        if not fold:
            raise ValueError(f"fold {number} is empty")
    times = Counter(qid for fold in folds for qid in set(fold))
    _refuse((qid for qid in times if times[qid] > 1), "in more than one fold")
    _refuse(times.keys() - set(qids), "in the folds, but not among the topics")
    _refuse(set(qids) - times.keys(), "in none of the folds")


def _refuse(qids: Iterable[str], what: str) -> None:
    found = sorted(qids)
    if found:
        shown = ", ".join(map(repr, found[:5])) + (", ..." if len(found) > 5 else "")
        raise ValueError(f"{len(found)} queries are {what}: {shown}")


def parts_of(folds: Sequence[Collection[str]], number: int) -> Parts:
    """The parts whose test fold is fold ``number``, from 1; the fold before it is for validation, as in LGRe."""
    rotated = [*folds[number - 1 :], *folds[: number - 1]]
    test, *train, validation = map(set, rotated)
    return Parts(set().union(*train), validation, test)
