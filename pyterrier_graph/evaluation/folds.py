"""Groups of queries: folds for cross-validation, and groups by length."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence, Sized
from itertools import count, takewhile

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.checks import check_frame


def query_folds(topics: pd.DataFrame, folds: int = 5, *, seed: int = 0) -> list[set[str]]:
    """Divides queries at random into folds whose sizes differ by at most one, and returns the qids of each fold.

    Args:
        topics: Queries or a run: ``qid``. The order of rows does not matter.
        folds: Number of folds.
        seed: Seed of the random division.

    Raises:
        ValueError: If there are fewer than three folds, or fewer queries than folds.
    """
    from sklearn.model_selection import KFold

    topics = check_frame(topics, "query_folds")
    pt.validate.columns(topics, includes=["qid"])
    qids = sorted(set(topics["qid"].astype(str)))
    if not 3 <= folds <= len(qids):
        raise ValueError(f"{len(qids)} queries in {folds} folds: at least 3 folds are needed, and a query in each")
    splits = KFold(folds, shuffle=True, random_state=seed).split(qids)
    return [{qids[place] for place in test} for _, test in splits]


def folds_of(dataset_id: str) -> list[set[str]]:
    """Returns the qids of each fold of a dataset of ir_datasets: of its subsets ``fold1``, ``fold2``, and so on.

    ``folds_of("disks45/nocr/trec-robust-2004")`` returns the five folds of Huston and Croft (2014), which Dong et al.
    (LGRe) used. To use a part of the topics, intersect each fold with the qids of the part.

    Raises:
        KeyError: If there is no such dataset, or the dataset has no folds.
    """
    import ir_datasets

    name = dataset_id.removeprefix("irds:")
    ir_datasets.load(name)
    names = takewhile({*ir_datasets.registry}.__contains__, (f"{name}/fold{number}" for number in count(1)))
    folds = [{query.query_id for query in ir_datasets.load(fold).queries_iter()} for fold in names]
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
    wrong = {
        "in more than one fold": {qid for qid in times if times[qid] > 1},
        "in the folds, but not among the topics": times.keys() - set(qids),
        "in none of the folds": set(qids) - times.keys(),
    }
    for what, found in wrong.items():
        if found:
            shown = ", ".join(map(repr, sorted(found)[:5])) + (", ..." if len(found) > 5 else "")
            raise ValueError(f"{len(found)} queries are {what}: {shown}")


def parts_of(folds: Sequence[Collection[str]], number: int) -> list[set[str]]:
    """The qids for training, validation and test, where the test fold is fold ``number``, from 1."""
    rotated = [*folds[number - 1 :], *folds[: number - 1]]
    test, *train, validation = map(set, rotated)
    return [set().union(*train), validation, test]


def by_query_length(
    topics: pd.DataFrame, bounds: Sequence[int] = (3,), *, tokenize: Callable[[str], Sized] = str.split
) -> dict[str, pd.DataFrame]:
    """Divides queries into groups by their number of tokens.

    ``{name: pt.Experiment(runs, group, qrels, measures) for name, group in groups.items()}`` compares runs per group.

    Dong et al. (LGRe, Table 5) compare two groups of Robust04's titles: 144 titles have up to 3 of BERT's word pieces
    (``AutoTokenizer.from_pretrained("bert-base-uncased").tokenize``), 106 have more. The authors draw 100 queries of a
    group, train on 80 of them and test on 10: one fold of
    ``cross_validate(make_pipeline, group.sample(100, random_state=0), qrels, folds=10)``.

    Args:
        topics: ``qid, query``; other columns are kept.
        bounds: The largest length in each group but the last, ascending.
        tokenize: Splits a query into tokens; by default, at white space.

    Returns:
        The topics of each group, which may be empty, by name, such as ``'length <= 2'``, ``'2 < length <= 4'``,
        ``'length > 4'``.

    Raises:
        pt.validate.InputValidationError: If a column is missing.
        ValueError: If there are no bounds, or the bounds do not ascend.
    """
    topics = check_frame(topics, "by_query_length", texts=("query",))
    pt.validate.columns(topics, includes=["qid", "query"])
    if not len(bounds) or any(low >= high for low, high in zip(bounds, bounds[1:], strict=False)):
        raise ValueError(f"bounds must be one or more ascending lengths, not {list(bounds)}")
    between = [f"{low} < length <= {high}" for low, high in zip(bounds, bounds[1:], strict=False)]
    names = [f"length <= {bounds[0]}", *between, f"length > {bounds[-1]}"]
    group = np.searchsorted(bounds, [len(tokenize(query)) for query in topics["query"]])
    return {name: topics[group == number].reset_index(drop=True) for number, name in enumerate(names)}
