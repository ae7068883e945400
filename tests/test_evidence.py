"""Evidence of documents and neighbors, and the numbers of a GraphIndex that answered queries support."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyterrier as pt
import tiny
from hypothesis import given
from hypothesis import strategies as st
from test_graph_index import document

import pyterrier_graph as ptg
from pyterrier_graph.search.document_evidence import node_evidence
from pyterrier_graph.search.fitting import SETTINGS


def literal(run: pd.DataFrame, weight: float, order: float) -> list[float]:
    """The equation, row by row."""
    scores = []
    for _, row in run.iterrows():
        query = run[run["qid"] == row["qid"]].set_index("docno")["score"]
        name, number = row["docno"].split("%p")
        score = row["score"] + weight * query[query.index.str.startswith(f"{name}%")].max()
        neighbors = [f"{name}%p{n}" for n in (int(number) + 1, int(number) - 1) if 0 <= n < 3]
        above = [query.get(docno, query.min()) - query.min() for docno in neighbors]
        score += order * sum(above) / max(len(above), 1)
        scores.append(score)
    return scores


@given(
    kept=st.lists(st.integers(0, 107), min_size=1, max_size=40, unique=True),
    scores=st.integers(0, 2**32 - 1),
    order=st.floats(0, 3),
)
def test_evidence_is_the_equation(kept: list[int], scores: int, order: float) -> None:
    run, graph = tiny.run().iloc[kept].reset_index(drop=True), tiny.graph()
    run["score"] = np.random.default_rng(scores).normal(size=len(run))
    query = run["qid"].factorize()[0]
    nodes = graph.nodes_of(run["docno"].tolist())
    evidence = node_evidence(graph, query, nodes, run["score"].to_numpy())
    found = run["score"] + 0.5 * evidence["document"] + order * evidence["order"]
    np.testing.assert_allclose(found, literal(run, 0.5, order), atol=1e-9)


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
