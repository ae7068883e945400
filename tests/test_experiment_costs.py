"""The measurements of cost run, and say what they are to say, on tiny data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
from experiment_tools import cross_encoder
from hypothesis import given, settings
from hypothesis import strategies as st
from pyterrier_dr import FlexIndex

from experiments import (
    contextual_index_cost,
    document_graph_cost,
    gnn_encoder_cost,
    hgat_cost,
    lgre_cost,
    query_passage_graph_cost,
    scale,
)
from pyterrier_graph import DocumentGraph, QueryPassageGraph, TokenStore

pytestmark = pytest.mark.slow  # whole experiments, on tiny data


def test_hgat() -> None:
    small = ["--sections", "10", "--flat", "4", "--words", "5", "--plain-words", "5", "--repeats", "1"]
    small += ["--candidates", "30", "--variants", "BASE", "NO_LB", "--encoder", tiny.checkpoint(positions=256)]
    table = hgat_cost.main([*small, "--dtypes", "float32"])
    assert table.shape == (2, 4) and (table > 0).all(axis=None)
    assert hgat_cost.main([*small, "--paper", "--tolerance", "0.1"]).shape == (2, 8)
    assert [len(hgat_cost.document(20, 5, flat=flat).passages()) for flat in (False, True)] == [20, 20]


def test_lgre(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lgre_cost, "LAYERS", {lgre_cost.CROSS_ENCODER: None, "LGRe, last layer": (-1,)})
    monkeypatch.setattr(lgre_cost, "in_process", lambda *arguments: [100.0 + len(arguments)])
    small = ["--encoder", cross_encoder(), "--pairs", "2", "--tokens", "16", "--repeats", "1", "--device", "cpu"]
    table = lgre_cost.main(small)
    assert table.loc[lgre_cost.CROSS_ENCODER, ["score", "train"]].tolist() == [1, 1]
    assert table["peak MiB, training"].eq(100 + 1 + len(small) + 2).all()
    assert lgre_cost.main([*small, "--only", "LGRe, last layer"]).empty


@given(st.integers(1, 60), st.integers(1, 30), st.integers(1, 5))
@settings(max_examples=10, deadline=None)
def test_graph_attention_graph(passages: int, queries: int, degree: int) -> None:
    graph = gnn_encoder_cost.random_graph(passages, queries, degree, 4)
    pairs = zip(graph.to_queries.row_index.tolist(), graph.to_queries.indices.tolist(), strict=True)
    back = zip(graph.to_passages.indices.tolist(), graph.to_passages.row_index.tolist(), strict=True)
    assert sorted(pairs) == sorted(back)


def test_graph_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch_geometric", reason="the comparison is with PyG")
    small = ["--edges", "3", "--dimension", "8", "--heads", "2", "--repeats", "1"]

    def in_process(module: str, *arguments: str) -> list[float]:
        printed: list[float] = []
        monkeypatch.setattr("builtins.print", lambda *numbers, **_: printed.extend(numbers))
        gnn_encoder_cost.main(arguments)
        monkeypatch.undo()
        monkeypatch.setattr(gnn_encoder_cost, "in_process", in_process)
        return printed

    monkeypatch.setattr(gnn_encoder_cost, "in_process", in_process)
    tables = gnn_encoder_cost.main([*small, "--sizes", "20:10", "--training", "20:10"])
    assert [[*table.index] for table in tables] == [
        [gnn_encoder_cost.GATCONV, gnn_encoder_cost.OURS, gnn_encoder_cost.STREAMED],
        [gnn_encoder_cost.GATCONV, gnn_encoder_cost.OURS],
    ]
    monkeypatch.setattr(gnn_encoder_cost, "in_process", lambda *a: [1.0, 1.0, float(gnn_encoder_cost.OURS in a)])
    with pytest.raises(RuntimeError, match="they compute different things"):
        gnn_encoder_cost.main([*small, "--sizes", "20:10", "--training"])


def test_contextual_index() -> None:
    small = ["--passages", "60", "--queries", "20", "--encoded", "4", "--repeats", "2"]
    offline, online = contextual_index_cost.main([*small, "--encoder", tiny.checkpoint(positions=256)])
    means = ["GraphMean, a fixed weight", "GraphMean, a weight per query"]
    assert [*offline.index] == ["encoding", *means, "papers' network", "our network"] and (offline > 0).all(axis=None)
    assert online.loc["dual-encoder", "ratio"] == 1 and len(online) == 5


def test_query_passage_graph(tmp_path: Path) -> None:
    for step in query_passage_graph_cost.STEPS:
        query_passage_graph_cost.run(step, tmp_path, 30, 40, 5)
    graph = QueryPassageGraph(tmp_path / "graph")
    assert (graph.num_queries, graph.num_passages, graph.num_edges["retrieved"]) == (30, 40, 150)
    frames = [*query_passage_graph_cost.results(30, 40, 5)]
    assert np.concatenate([frame["docno"] for frame in frames]).shape == (150,)


def test_document_graph(tmp_path: Path) -> None:
    for step in document_graph_cost.STEPS:
        (tmp_path / step).mkdir()
        row = document_graph_cost.run(step, 3, tmp_path / step)
        assert len(row) == len(document_graph_cost.COLUMNS)
        assert (row[-1] > 0) == (step != "generate")


def test_scale(tmp_path: Path) -> None:
    rows = {step: scale.run(step, 60, tmp_path) for step in (*scale.STEPS, *scale.TOKENS)}
    assert all(len(row) == len(scale.COLUMNS) and row[1] > 0 for row in rows.values())
    assert [step for step, row in rows.items() if not row[-1]] == ["documents"]
    graph = DocumentGraph(tmp_path / "documents.graph")
    assert graph.summary()["passages"] == 60 and graph.summary()["sections"] == 18
    assert QueryPassageGraph(tmp_path / "queries.graph").num_edges == {"retrieved": 150, "relevant": 6}
    widths = {path.name: FlexIndex(str(path)).payload()[1].shape for path in tmp_path.glob("*.flex")}
    assert widths == {
        "base.flex": (60, 384),
        "title-relevant.flex": (60, 384),
        "title-retrieved.flex": (60, 384),
        "auto.flex": (60, 3 * 384),
    }
    sizes = {bits: TokenStore(tmp_path / f"{bits}.tokens").meta["tokens"] for bits in (16, 4, 2)}
    assert sizes == dict.fromkeys((16, 4, 2), 60 * scale.TOKENS_OF_A_PASSAGE)
