"""The demo on a tiny corpus, with a tiny encoder: every system is built, compared, and explained."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import tiny

import pyterrier_graph as ptg
from pyterrier_graph import demo

SYSTEMS = [
    "BM25",
    "BM25, answered queries in the text",
    "all-MiniLM, titles in the text",
    "all-MiniLM",
    "GraphMean",
]
SYSTEMS += [
    "Hybrid: BM25, GraphMean",
    "Hybrid: BM25 with answered queries, titles in the text",
    "GraphIndex",
]
SYSTEMS += [
    "GNNEncoder without edges",
    "GNNEncoder",
    "BM25 >> MaxSim",
    "BM25 >> GraphMaxSim",
    "BM25 >> HGAT",
]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> demo.Data:
    monkeypatch.setattr(demo, "reduced_encoder", lambda graph: tiny.encoder())
    monkeypatch.setattr(demo, "PASSAGE_TOKENS", 24)
    known = demo.Queries(
        *(frame.assign(qid="k" + frame["qid"]) for frame in (tiny.topics(), tiny.qrels()))
    )
    encoder = ptg.DualEncoder(tiny.checkpoint(), max_passage_tokens=24)
    docs = [vars(d) | {"title": d.title, "text": " ".join(d.passages())} for d in tiny.documents()]
    index = ptg.GraphIndex(tmp_path / "index", encoder=encoder).index(
        docs, answered=(known.topics, known.qrels)
    )
    queries = ptg.QueryPassageGraph(tmp_path / "queries").build(
        known.topics, index.graph, qrels=known.qrels
    )
    asked = demo.Queries(
        tiny.topics().assign(query=lambda topics: topics["query"] + " iota"), tiny.qrels()
    )
    return demo.Data(docs, index, queries, known, asked, asked)


@pytest.mark.slow
def test_systems_and_table(data: demo.Data, tmp_path: Path) -> None:
    systems = demo.build_systems(data, tmp_path)
    assert [*systems] == SYSTEMS
    table = demo.compare(systems, data.test)
    assert [*table.columns] == ["system", "nDCG@10", "RR@10", "ms per query"]
    assert table["nDCG@10"].str.fullmatch(r"[01]\.\d{3}[ +-]").all()
    assert max(map(len, table.to_string(index=False).splitlines())) <= 100


def test_judgments_of_documents_have_the_highest_label() -> None:
    qrels = pd.DataFrame(
        {"qid": ["1", "1", "1"], "docno": ["d%p0", "d%p4", "e%p0"], "label": [1, 2, 0]}
    )
    documents = demo.Queries(pd.DataFrame(), qrels).document_qrels
    assert documents.to_dict("list") == {"qid": ["1", "1"], "docno": ["d", "e"], "label": [2, 0]}
