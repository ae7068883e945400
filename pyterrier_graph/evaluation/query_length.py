"""Groups of queries by length."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized

import numpy as np
import pandas as pd
import pyterrier as pt


def by_query_length(
    topics: pd.DataFrame, bounds: Sequence[int] = (3,), *, tokenize: Callable[[str], Sized] = str.split
) -> dict[str, pd.DataFrame]:
    """Divides queries into groups by their number of tokens.

    ``{name: pt.Experiment(runs, group, qrels, measures) for name, group in groups.items()}`` compares runs per group.

    Dong et al. (LGRe, Table 5) compare two groups of Robust04's titles: 144 titles have up to 3 tokens, 106 have more.
    These counts are of BERT's word pieces (``AutoTokenizer.from_pretrained("bert-base-uncased").tokenize``); 233 titles
    have up to 3 words. The authors draw 100 queries of a group, train on 80 of them and test on 10: one fold of
    ``cross_validate(make_pipeline, group.sample(100, random_state=0), qrels, folds=10)``.

    Args:
        topics: ``qid, query``; other columns are kept.
        bounds: The largest length in each group but the last, ascending.
        tokenize: Splits a query into tokens; by default, at white space.

    Returns:
        The topics of each group, shortest first. ``bounds=(2, 4)`` makes the groups ``'length <= 2'``,
        ``'2 < length <= 4'`` and ``'length > 4'``. A group may be empty.

    Raises:
        pt.validate.InputValidationError: If a column is missing.
        ValueError: If there are no bounds, or the bounds do not ascend.
    """
    pt.validate.columns(topics, includes=["qid", "query"])
    if not len(bounds) or any(low >= high for low, high in zip(bounds, bounds[1:], strict=False)):
        raise ValueError(f"bounds must be one or more ascending lengths, not {list(bounds)}")
    between = [f"{low} < length <= {high}" for low, high in zip(bounds, bounds[1:], strict=False)]
    names = [f"length <= {bounds[0]}", *between, f"length > {bounds[-1]}"]
    group = np.searchsorted(bounds, [len(tokenize(query)) for query in topics["query"]])
    return {name: topics[group == number].reset_index(drop=True) for number, name in enumerate(names)}
