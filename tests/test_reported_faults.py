"""The right value of faults that users of neighboring tools have reported; README.md lists all that were tried."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyterrier as pt
import pytest
import tiny

import pyterrier_graph as ptg
from pyterrier_graph.pair.mining import HardNegativeMiner, MiningConfig
from pyterrier_graph.search.bm25 import words
from pyterrier_graph.search.retrievers import BM25Retriever, allowed_passages

TOPICS = pd.DataFrame({"qid": ["1"], "query": ["alpha"]})
RUN = TOPICS.assign(docno="d0%p0", score=1.0, rank=0)


@pytest.mark.parametrize(("name", "value"), [("alpha", 2.0), ("depth", 0), ("num_results", -1)])
def test_parameters_of_a_hybrid_that_are_set_later(name: str, value: Any) -> None:
    found = pt.apply.generic(lambda _: RUN)
    hybrid = ptg.Hybrid(found, found)
    hybrid.set_parameter(name, value)
    with pytest.raises(ValueError, match=f"{name} must be"):
        hybrid(TOPICS)


def test_number_of_results_that_is_set_later() -> None:
    retriever = BM25Retriever.__new__(BM25Retriever)
    retriever.num_results = 0
    with pytest.raises(ValueError, match="num_results must be"):
        retriever.transform(TOPICS)


def test_an_empty_entry_allows_no_documents() -> None:
    graph: Any = tiny.graph()
    assert allowed_passages(graph, "d").all()
    with pytest.raises(KeyError, match="no document .* has the docno ''"):
        allowed_passages(graph, [""])


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
