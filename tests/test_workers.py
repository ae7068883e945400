"""Everything that takes long, by one process and by two: the same files, to the byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyterrier as pt
import pytest
import tiny

import pyterrier_graph as ptg
from pyterrier_graph.encoders import stored_vectors, token_store
from pyterrier_graph.graphs import query_passage_graph


def contents(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


# Other processes do not know what the tests take dtype="auto" for.
EXACT: dict[str, Any] = {"device": "cpu", "dtype": "float32"}


@pytest.mark.slow
def test_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_store, "NODES_AT_ONCE", 16)
    monkeypatch.setattr(stored_vectors, "PASSAGES_AT_ONCE", 16)
    monkeypatch.setattr(query_passage_graph, "BATCH", 12)
    graph = ptg.DocumentGraph(tmp_path / "graph").index(tiny.documents(12))
    topics = tiny.topics(12)
    ranking = pt.Transformer.from_df(  # a query's own document is first
        tiny.run(12)
        .drop(columns="query")
        .assign(score=lambda run: -run["docno"].str[1:2].astype(float))
    )
    teacher = pt.apply.doc_score(lambda row: 0.95 if row["query"] in row["text"] else 0.05)
    dual = ptg.DualEncoder(
        tiny.checkpoint(), max_query_tokens=8, max_passage_tokens=16, verbose=False, **EXACT
    )
    texts = pt.apply.generic(
        lambda run: run.assign(text=graph.texts(graph.nodes_of(run["docno"].tolist())))
    )
    made = []
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        options: dict[str, Any] = {"workers": workers}
        tokens = ptg.TokenEncoder(
            tiny.checkpoint(), max_passage_tokens=24, max_query_tokens=12, **EXACT
        )
        store = ptg.TokenStore(folder / "tokens", verbose=False).build(graph, tokens, **options)
        hgat = ptg.HGATReranker(
            graph, tokens, config=ptg.HGATConfig(seed=1), tokens=store, verbose=False, **EXACT
        )
        hgat.contextualize(folder / "in_context", **options)
        queries = ptg.QueryPassageGraph(folder / "queries")
        queries.build(topics, graph, ranking, **options)
        gnn = ptg.GNNEncoder(
            graph, dual, query_graph=queries, folder=folder / "vectors", verbose=False, **EXACT
        )
        gnn.index(folder / "gnn.flex", **options)
        miner = ptg.HardNegativeMiner(
            ranking, texts, teacher=teacher, folder=folder / "mined", batch_size=4, verbose=False
        )
        assert len(miner.pseudo_labeled(topics, **options)) > 0
        made.append(contents(folder))
    assert [*made[0]] == [*made[1]]
    for name, content in made[0].items():
        assert made[1][name] == content, name
    assert not [*tmp_path.rglob(".*.new")]


def test_a_killed_build_of_tokens_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text is read once, for vectors and word pieces."""
    monkeypatch.setattr(token_store, "NODES_AT_ONCE", 7)
    graph, read = tiny.graph(), []
    whole = ptg.TokenStore(tmp_path / "whole", verbose=False).build(graph, tiny.encoder())
    texts = type(graph).texts

    def counted(self: Any, nodes: np.ndarray, **options: Any) -> list[str]:
        if len(read) == 14:
            raise KeyboardInterrupt
        read.extend(nodes.tolist())
        return texts(self, nodes, **options)

    with pytest.raises(KeyboardInterrupt), monkeypatch.context() as patch:
        patch.setattr(type(graph), "texts", counted)
        ptg.TokenStore(tmp_path / "store", verbose=False).build(graph, tiny.encoder())
    assert read == [*range(14)]
    with pytest.raises(ValueError, match="titles was False, is True.: delete"):
        ptg.TokenStore(tmp_path / "store", verbose=False).build(graph, tiny.encoder(), titles=True)
    store = ptg.TokenStore(tmp_path / "store", verbose=False).build(graph, tiny.encoder())
    assert contents(store.path) == contents(whole.path)
