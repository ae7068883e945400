"""Everything that takes long, computed by one process and by two: the same files, to the byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyterrier as pt
import pytest
import tiny

import pyterrier_graph as ptg
from pyterrier_graph.encoders import stored_vectors, token_store
from pyterrier_graph.graphs import query_passage_graph

# other processes do not know what the tests take dtype="auto" for
EXACT: dict[str, Any] = {"device": "cpu", "dtype": "float32"}
QUIET: dict[str, Any] = EXACT | {"verbose": False}
LENGTHS = {"max_query_tokens": 12, "max_passage_tokens": 24}


@pytest.mark.slow
def test_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_store, "NODES_AT_ONCE", 16)
    monkeypatch.setattr(stored_vectors, "TEXTS_PER_SHARD", 16)
    monkeypatch.setattr(query_passage_graph, "BATCH", 12)
    graph = ptg.DocumentGraph(tmp_path / "graph").index(tiny.documents(12))
    topics, run = tiny.topics(12), tiny.run(12).drop(columns="query")
    run["score"] = -run["docno"].str[1:2].astype(float)  # a query's own document is first
    ranking, texts = pt.Transformer.from_df(run), graph.text_loader()
    teacher = pt.apply.doc_score(lambda row: 0.95 if row["query"] in row["text"] else 0.05)
    dual = ptg.DualEncoder(tiny.checkpoint(), **LENGTHS, **QUIET)
    made = []
    for workers in (1, 2):
        folder, options = tmp_path / str(workers), {"workers": workers}
        tokens = ptg.TokenEncoder(tiny.checkpoint(), **LENGTHS, **EXACT)
        store = ptg.TokenStore(folder / "tokens", verbose=False).build(graph, tokens, **options)
        hgat = ptg.HGATReranker(graph, tokens, config=ptg.HGATConfig(), tokens=store, **QUIET)
        hgat.contextualize(folder / "in_context", **options)
        queries = ptg.QueryPassageGraph(folder / "queries").build(topics, graph, ranking, **options)
        gnn = ptg.GNNEncoder(graph, dual, query_graph=queries, folder=folder / "vectors", **QUIET)
        gnn.index(folder / "gnn.flex", **options)
        miner = ptg.HardNegativeMiner(
            ranking, texts, teacher=teacher, folder=folder / "mined", batch_size=4, verbose=False
        )
        assert len(miner.pseudo_labeled(topics)) > 0
        made.append(tiny.contents(folder))
    assert [*made[0]] == [*made[1]]
    assert not [name for name, content in made[0].items() if made[1][name] != content]
    assert not [*tmp_path.rglob(".*.new")]
