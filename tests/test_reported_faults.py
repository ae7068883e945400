"""The right value of faults that users of neighboring tools have reported; README.md lists all that were tried."""

from __future__ import annotations

import pandas as pd
import pyterrier as pt
import pytest

from pyterrier_graph.pair.mining import HardNegativeMiner, MiningConfig
from pyterrier_graph.search.bm25 import words

TOPICS = pd.DataFrame({"qid": ["1"], "query": ["alpha"]})
RUN = TOPICS.assign(docno="d0%p0", score=1.0, rank=0)


@pytest.mark.parametrize("copy", ["Paris", " Paris\n", "Paris\u00a0"])
def test_a_copy_of_a_relevant_text_is_no_negative(copy: str) -> None:
    texts = {"relevant": "Paris", "copy": copy, "other": "Berlin"}
    rank = pt.apply.generic(
        lambda topics: topics.merge(pd.DataFrame({"docno": ["copy", "other"]}), how="cross").assign(
            score=[2.0, 1.0]
        )
    )
    miner = HardNegativeMiner(
        rank,
        pt.apply.text(lambda row: texts[row["docno"]]),
        config=MiningConfig(hard_negatives=1),
        verbose=False,
    )
    qrels = pd.DataFrame({"qid": ["1"], "docno": ["relevant"], "label": [1]})
    assert miner.labeled(TOPICS, qrels)["negative_1"][:] == ["Berlin"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("İstanbul", "istanbul"),
        ("\u0390", "\u03aa\u0301"),  # a small letter with two marks, and its capital
        ("ẞ", "SS"),
    ],
)
def test_capitals_without_a_small_letter(one: str, other: str) -> None:
    assert words(one) == words(other) != []
