"""Evidence of documents and neighbors, and the numbers of a GraphIndex that answered queries support."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st
from test_graph_index import document

import pyterrier_graph as ptg
from pyterrier_graph.search.fitting import SETTINGS

RELATIONS = ("order", "internal", "structural/structural_i")
TestRelations = pt.testing.transformer_test_class(
    lambda: ptg.DocumentEvidence(0.5, relations={"order": 0.2}, graph=tiny.graph())
)


def literal(run: pd.DataFrame, weight: float, relations: dict[str, float]) -> list[float]:
    """The equation, row by row."""
    scores = []
    for _, row in run.iterrows():
        query = run[run["qid"] == row["qid"]].set_index("docno")["score"]
        name, number = row["docno"].split("%p")
        score = row["score"] + weight * query[query.index.str.startswith(f"{name}%")].max()
        others = {"order": [int(number) + 1, int(number) - 1]}
        others["internal"] = {0: [2], 1: [], 2: [0]}[int(number)]
        others["structural/structural_i"] = {0: [], 1: [2], 2: [1]}[int(number)]
        for relation, share in relations.items():
            neighbors = [f"{name}%p{n}" for n in others[relation] if 0 <= n < 3]
            above = [query.get(docno, query.min()) - query.min() for docno in neighbors]
            score += share * sum(above) / max(len(above), 1)
        scores.append(score)
    return scores


@given(
    kept=st.lists(st.integers(0, 107), min_size=1, max_size=40, unique=True),
    scores=st.integers(0, 2**32 - 1),
    weights=st.dictionaries(st.sampled_from(RELATIONS), st.floats(0, 3)),
)
def test_evidence_is_the_equation(kept: list[int], scores: int, weights: dict[str, float]) -> None:
    run = tiny.run().iloc[kept].reset_index(drop=True)
    run["score"] = np.random.default_rng(scores).normal(size=len(run))
    found = ptg.DocumentEvidence(0.5, relations=weights, graph=tiny.graph())(run)
    pairs = found.set_index(["qid", "docno"])["score"].reindex(
        pd.MultiIndex.from_frame(run[["qid", "docno"]])
    )
    np.testing.assert_allclose(pairs, literal(run, 0.5, weights), atol=1e-9)


def test_fit_finds_that_neighbors_are_relevant_together() -> None:
    """The first and the second passage are relevant, and the third one has a higher score than the second one."""
    topics = tiny.topics(5)
    rows = topics.merge(
        pd.DataFrame({"docno": ["%p0", "%p1", "%p2"], "score": [3.0, 1.0, 1.2]}), how="cross"
    )
    rows["docno"] = "d" + rows["qid"].str[1:] + rows["docno"]
    far = topics.assign(docno=lambda frame: "d5%p" + (frame.index % 3).astype(str), score=0.0)
    run = pd.concat([rows, far], ignore_index=True)
    qrels = rows[rows["score"] != 1.2].assign(label=1)[["qid", "docno", "label"]]
    evidence = ptg.DocumentEvidence(0.0, relations={"order": 0.0}, graph=tiny.graph()).fit(
        run, qrels
    )
    assert evidence.weight == 0 and evidence.relations["order"] > 0
    assert evidence(run).groupby("qid").head(2)["docno"].str.contains("p[01]").all()


def test_wrong_relations() -> None:
    with pytest.raises(ValueError, match="give graph="):
        ptg.DocumentEvidence(relations={"order": 1})
    with pytest.raises(ValueError, match="no relation 'cites'"):
        ptg.DocumentEvidence(relations={"cites": 1}, graph=tiny.graph())
    with pytest.raises(ValueError, match="(?s)order.*greater than or equal to 0"):
        ptg.DocumentEvidence(relations={"order": -1}, graph=tiny.graph())
    with pytest.raises(KeyError, match="other"):
        ptg.DocumentEvidence(relations={"order": 1}, graph=tiny.graph())(
            tiny.run(1).assign(docno="other")
        )


# --- GraphIndex


WORDS = tiny.WORDS[:10]
DOCUMENTS = [
    document(f"d{number}", f"{word} mu {word}", "lambda") for number, word in enumerate(WORDS)
]
TOPICS = pd.DataFrame({"qid": [f"q{number}" for number in range(10)], "query": WORDS})
QRELS = pd.DataFrame(
    {"qid": TOPICS["qid"], "docno": [f"d{number}" for number in range(10)], "label": 1}
)


def test_answered_queries_set_the_numbers(tmp_path: Path) -> None:
    """The lexical pipeline ranks another passage far above all others: so the share of vectors becomes larger."""
    rows = TOPICS.merge(
        pd.DataFrame({"docno": [f"d{number}%p0" for number in range(10)]}), how="cross"
    )
    other = (rows["qid"].str[1:].astype(int) + 1) % 10 == rows["docno"].str[1].astype(int)
    lexical = pt.Transformer.from_df(pt.model.add_ranks(rows.assign(score=other * 99.0)))
    options = {"encoder": tiny.checkpoint(), "lexical": lexical, "verbose": False}
    index = ptg.GraphIndex(tmp_path / "index", **options)
    index.index(DOCUMENTS, answered=(TOPICS, QRELS))
    numbers = index.meta["settings"]
    assert (
        numbers["alpha"] > SETTINGS["alpha"]
        and numbers["evidence"].keys() == SETTINGS["evidence"].keys()
    )
    assert ptg.GraphIndex(index.path, **options).verify().meta["settings"] == numbers
    few = ptg.GraphIndex(tmp_path / "few", **options)
    assert few.index(DOCUMENTS, answered=(TOPICS[:4], QRELS)).meta["settings"] == SETTINGS
    few.fit(TOPICS[4:], QRELS)
    fitted = few.meta["settings"]
    assert fitted["alpha"] > SETTINGS["alpha"]
    assert (
        few.update([], answered=(TOPICS[1:], QRELS)).meta["settings"] == fitted
    )  # judged queries decide
