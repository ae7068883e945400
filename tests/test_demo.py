"""The demo's parts on a tiny corpus, and the examples."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyterrier as pt
import pytest
import tiny

import pyterrier_graph as ptg
from pyterrier_graph import demo


class FirstStage(pt.Transformer):
    """Finds every document for every query."""

    def transform(self, topics: pd.DataFrame) -> pd.DataFrame:
        found = pd.DataFrame({"docno": [document.docno for document in tiny.documents()]})
        found["score"] = -found.index.to_numpy(dtype=float)
        return pt.model.add_ranks(topics.merge(found, how="cross"))


class Corpus:
    """The tiny documents, as a dataset hands them out."""

    def get_corpus_iter(self) -> list[dict]:
        return [
            {"docno": d.docno, "nodes": d.nodes, "links": d.links, "references": d.references} for d in tiny.documents()
        ]


@pytest.fixture
def graph(tmp_path: Path) -> ptg.DocumentGraph:
    return ptg.DocumentGraph(tmp_path / "graph").index(Corpus().get_corpus_iter(), verbose=False)


def test_demo_parts(tmp_path: Path, graph: ptg.DocumentGraph) -> None:
    encoder = tiny.encoder()
    stores = [
        ptg.TokenStore(tmp_path / f"tokens{titles}").build(graph, encoder, titles=titles, verbose=False)
        for titles in (False, True)
    ]
    first = FirstStage() >> graph.passages()
    split = demo.Split(tiny.topics(), tiny.qrels(), first(tiny.topics()))
    bench = demo.Bench(graph, first, encoder, stores[0], stores[1], split, split, split)
    systems, graph_maxsim, trained = demo.build_systems(bench, tmp_path, ["NO_LB", "NO_LB_NS"], seed=0, triples=10)
    table = demo.compare(split, systems)
    assert list(table.columns[:1]) == ["name"]
    assert list(table["name"]) == list(systems)
    assert {"BM25", "BM25 >> MaxSim", "BM25 >> GraphMaxSim", "BM25 >> std_NO_LB", "BM25 >> late_NO_LB_NS"} <= set(
        systems
    )
    assert table["nDCG@10"].between(0, 1).all() and (table["mrt"] > 0).all()
    for reranker in trained:
        demo.check_saved(reranker, tmp_path / reranker.config.name, bench)
    demo.draw(tmp_path, bench, graph_maxsim, trained)
    pictures = {path.name for path in tmp_path.glob("*.png")}
    assert {"document_graph.png", "graph_maxsim_score.png", "std_NO_LB_score.png"} <= pictures


def test_demo_command_line() -> None:
    options = demo.parser().parse_args([])
    assert (options.size, options.first_stage, options.variants) == ("numpy", "pisa", ["NO_LB", "NO_LB_NS"])
    with pytest.raises(SystemExit):
        demo.parser().parse_args(["--size", "huge"])


@pytest.mark.slow
def test_quickstart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyterrier_pisa", reason="the quick start's first stage is PISA, for x86-64 Linux")
    import quickstart

    quickstart.main(str(tmp_path), queries=2)
    assert "GraphMaxSim" in capsys.readouterr().out
