"""HardNegativeMiner: which documents become examples, what is kept on disk, and what is refused."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from pyterrier_graph.pair.mining import (
    HardNegativeMiner,
    MiningConfig,
    example_columns,
)

# --- a world of rankings, texts and scores


class Ranking(pt.Transformer):
    """Finds for each query what a list says, best first."""

    def __init__(self, rankings: dict[str, list[str]]) -> None:
        self.rankings = rankings
        self.sizes: list[int] = []

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        self.sizes.append(len(inp))
        rows = [
            (qid, d, -float(n))
            for qid in inp["qid"]
            for n, d in enumerate(self.rankings.get(qid, []))
        ]
        found = pd.DataFrame(rows, columns=["qid", "docno", "score"]).astype(
            {"qid": str, "docno": str}
        )
        return pt.model.add_ranks(found).sample(
            frac=1, random_state=0
        )  # the order of rows says nothing


class Texts(pt.Transformer):
    """Texts by docno."""

    def __init__(self, texts: dict[str, Any]) -> None:
        self.texts = texts

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        return inp.assign(
            text=pd.Series([self.texts[docno] for docno in inp["docno"]], inp.index, dtype=object)
        )


class Teacher(pt.Transformer):
    """Scores by query and text, and counts; returns rows in another order and no more columns than it has to."""

    def __init__(self, scores: dict[tuple[str, str], float], patience: float = math.inf) -> None:
        self.scores = scores
        self.asked: list[tuple[str, str]] = []
        self.patience = patience

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        self.patience -= 1
        if self.patience < 0:
            raise KeyboardInterrupt
        pairs = list(zip(inp["query"], inp["text"], strict=True))
        self.asked += pairs
        return inp[["qid", "docno"]].assign(score=[self.scores[pair] for pair in pairs])[::-1]


def world(seed: int = 0, queries: int = 40, documents: int = 30) -> dict[str, Any]:
    """Queries, of which two have the same text; a few documents have the same text, and one has none."""
    random = np.random.default_rng(seed)
    texts = {f"d{n}": f"text {n - n % 10 // 9}" for n in range(documents)} | {"d5": " "}
    topics = pd.DataFrame(
        [(f"q{n}", f"query {n or 1}") for n in range(queries)], columns=["qid", "query"]
    )
    rankings = {qid: random.permutation(list(texts)).tolist() for qid in topics["qid"]}
    scores = {
        (query, text): random.choice([0.0, 0.05, 0.1, 0.5, 0.9, 0.95, 1.0])
        for query in topics["query"].unique()
        for text in dict.fromkeys(texts.values())
    }
    rows = [
        (qid, d, random.integers(-1, 3))
        for qid in topics["qid"][::2]
        for d in random.choice(list(texts), 3)
    ]
    qrels = pd.DataFrame(
        [*rows, ("q1", "d5", 1), ("q1", "d8", 1), ("q1", "d9", 2)],
        columns=["qid", "docno", "label"],
    )
    return {
        "texts": texts,
        "topics": topics,
        "rankings": rankings,
        "scores": scores,
        "qrels": qrels,
    }


WORLD = world()
NUMBERS = {field.name for field in fields(MiningConfig)}
TOPICS, JUDGMENTS = WORLD["topics"], WORLD["qrels"]


def miner(of: dict[str, Any] = WORLD, teacher: Any = "scores", **options: Any) -> HardNegativeMiner:
    teacher = Teacher(of["scores"]) if teacher == "scores" else teacher
    config = MiningConfig(
        **{"hard_negatives": 2} | {name: options.pop(name) for name in NUMBERS & options.keys()}
    )
    options = {"teacher": teacher, "config": config, "verbose": False} | options
    return HardNegativeMiner(Ranking(of["rankings"]), Texts(of["texts"]), **options)


def rows(examples: Dataset) -> list[list[str]]:
    ids = [name for name in examples.column_names if name == "qid" or name.endswith("_docno")]
    return examples.select_columns(ids).to_pandas().to_numpy().tolist()


# --- which documents become examples


def literal_examples(
    of: dict[str, Any], pseudo: bool, n: int, s_pos: float, s_neg: float
) -> list[list[str]]:
    """The rows, one query and document at a time."""
    expected, relevant = [], defaultdict(list)
    for qid, docno, label in of["qrels"].itertuples(index=False):
        if label > 0 and docno not in relevant[qid]:
            relevant[qid].append(docno)
    for qid, query in of["topics"].itertuples(index=False):
        if not pseudo and not relevant[qid]:
            continue
        seen = [of["texts"][docno] for docno in relevant[qid]]
        positives, negatives = [], []
        if not pseudo:
            for place, docno in enumerate(relevant[qid]):
                if seen[place].strip() and seen[place] not in seen[:place]:
                    positives.append(docno)
        for docno in of["rankings"][qid]:
            text = of["texts"][docno]
            if docno in relevant[qid] or not text.strip() or text in seen:
                continue
            seen.append(text)
            score = of["scores"][query, text]
            if score < s_neg:
                negatives.append(docno)
            elif score > s_pos and pseudo:
                positives.append(docno)
        if positives and len(negatives) >= n:
            expected += [[qid, docno, *negatives[:n]] for docno in positives]
    return expected


@given(
    seed=st.integers(0, 1000),
    pseudo=st.booleans(),
    n=st.integers(0, 6),
    thresholds=st.sampled_from([(0.9, 0.1), (0.5, 0.1), (0.95, 0.05), (0.5, 0.4), (0.9, 0.06)]),
    batch_size=st.sampled_from([2, 5, 64]),
)
def test_examples_against_a_literal_loop(
    seed: int, pseudo: bool, n: int, thresholds: tuple[float, float], batch_size: int
) -> None:
    of = world(seed, queries=6, documents=20)
    expected = literal_examples(of, pseudo, n, *thresholds)
    options = {"positive_threshold": thresholds[0], "negative_threshold": thresholds[1]}
    made = miner(of, hard_negatives=n, batch_size=batch_size, **options)
    mine = made.pseudo_labeled if pseudo else made.labeled
    examples = mine(of["topics"], of["qrels"])
    assert rows(examples) == expected
    queries = of["topics"].set_index("qid")["query"]
    texts = examples.select_columns(example_columns(n)).to_pandas().to_numpy().tolist()
    for row, (qid, *docnos) in zip(texts, expected, strict=True):
        assert row == [queries[qid], *(of["texts"][docno] for docno in docnos)]


# --- on disk


def interrupted(folder: Path, after: int) -> Teacher:
    teacher = Teacher(WORLD["scores"], patience=after)
    with pytest.raises(KeyboardInterrupt):
        miner(teacher=teacher, folder=folder, batch_size=8).pseudo_labeled(TOPICS)
    return teacher


def test_a_run_that_was_killed_goes_on(tmp_path: Path) -> None:
    whole = Teacher(WORLD["scores"])
    expected = miner(teacher=whole, batch_size=8).pseudo_labeled(TOPICS)
    first = interrupted(tmp_path / "some" / "where", after=3)
    second = Teacher(WORLD["scores"])
    examples = miner(
        teacher=second, folder=tmp_path / "some" / "where", batch_size=8
    ).pseudo_labeled(TOPICS)
    assert rows(examples) == rows(expected)
    assert sorted(first.asked + second.asked) == sorted(whole.asked)
    assert not any((tmp_path / "some" / "where").iterdir())


# --- what is refused


def test_judgments_without_relevant_documents() -> None:
    with pytest.raises(ValueError, match="none of the topics has a relevant document"):
        miner().labeled(TOPICS, JUDGMENTS.assign(label=0))
    with pytest.raises(ValueError, match="query 'q39' has no text: ' '"):
        miner().labeled(TOPICS.assign(query=[*TOPICS["query"][:-1], " "]), JUDGMENTS)


def test_judgments_of_documents_where_passages_are_retrieved() -> None:
    """Retrieved passages of relevant documents are positives, and the others of them are not negatives."""
    passages = {
        "d1%p0": "alpha",
        "d3%p0": "delta",
        "d1%p1": "beta",
        "d1%p2": "eta",
        "d2%p0": "gamma",
    }
    config = MiningConfig(depth=3)
    made = HardNegativeMiner(
        Ranking({"q": [*passages], "r": ["d1%p0"]}), Texts(passages), config=config, verbose=False
    )
    topics = pd.DataFrame({"qid": ["q", "r"], "query": ["alpha", "beta"]})
    qrels = pd.DataFrame({"qid": ["q", "r"], "docno": ["d1", "d2"], "label": 1})
    examples = made.labeled(topics, qrels)
    assert rows(examples) == [["q", "d1%p0", "d3%p0"], ["q", "d1%p1", "d3%p0"]]
    assert rows(made.labeled(topics, qrels.assign(docno="d1%p0")))


@pytest.mark.parametrize(
    ("teacher", "problem"),
    [
        (
            Teacher(WORLD["scores"]) >> pt.apply.generic(lambda f: f[1:]),
            "the teacher returned the score nan",
        ),
        (
            Teacher(dict.fromkeys(WORLD["scores"], -0.01)),
            "score -0.01, which is not a probability",
        ),
    ],
)
def test_scores_that_are_not_probabilities(
    teacher: pt.Transformer, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=problem):
        miner(teacher=teacher, folder=tmp_path).pseudo_labeled(TOPICS)
    assert not any(tmp_path.iterdir())
