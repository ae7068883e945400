"""What graphs and rerankers show in a notebook."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import tiny
from html_reader import HOSTILE, Reader

from pyterrier_graph.documents import Link, Node, Reference, StructuredDocument
from pyterrier_graph.graphs import CandidateGraph, DocumentGraph, MemoryGraph
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.models.hgat import HGATConfig
from pyterrier_graph.models.lgre import LGReConfig
from pyterrier_graph.plots import graph_html
from pyterrier_graph.plots.html import value
from pyterrier_graph.rerank.cross_encoder import CrossEncoderReranker
from pyterrier_graph.rerank.graph_maxsim import GraphMaxSim
from pyterrier_graph.rerank.hgat import HGATReranker
from pyterrier_graph.rerank.lgre import LGReReranker
from pyterrier_graph.training.options import HGATTraining


def own(html: str) -> Reader:
    """Our part of what a transformer shows, without PyTerrier's schematic."""
    return Reader(html[html.rindex('<div class="ptg">') :])


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> DocumentGraph:
    return DocumentGraph(tmp_path_factory.mktemp("graphs") / "corpus").index(tiny.documents(), verbose=False)


def test_a_value_is_escaped_and_complete() -> None:
    read = Reader(
        value(
            HOSTILE,
            {HOSTILE: HOSTILE, "many": 1234567, "weights": {"order": 0.5, "title": 1.0}},
            calls=[HOSTILE],
            picture="<svg></svg>",
        )
    )
    assert read.table == {HOSTILE: HOSTILE, "many": "1,234,567", "weights": "next passage: 0.5, section title: 1"}
    assert "script" not in read.seen and read.seen.count("svg") == 1
    assert read.text.count(HOSTILE) == 4
    assert Reader(value("a", {"weights": {}})).table == {"weights": "none"}
    assert "next:" not in Reader(value("a", {})).text


def test_a_graph_shows_its_sizes_and_a_document(stored: DocumentGraph) -> None:
    html = stored._repr_html_()
    read = Reader(html)
    assert read.table == {
        "documents": "6",
        "sections": "12",
        "passages": "18",
        "codes": "1",
        "order edges": "12, to the next passage",
        "structural edges": "24, to the section around it",
        "internal edges": "6, to the linked passage",
        "external edges": "6, to the cited document (6 unresolved)",
        "title edges": "24, to the section title",
    }
    assert repr(stored) in read.text and "graph.passages()" in read.text
    assert "plots.document_graph(graph, 'd0')" in read.text
    outline = "alpha → d1, alpha alpha mu, lambda, kappa lambda, kappa beta iota → alpha alpha mu"
    assert all(part in read.text for part in outline.split(", ")) and read.seen.count("b") == 2
    assert read.text.count("linked passage") == 2 and "next passagelinked" not in read.text
    assert "http" not in html  # nothing is loaded
    assert len(html.encode()) < 40_000


def test_names_and_texts_of_documents_are_escaped(tmp_path: Path) -> None:
    nodes = (Node("section", HOSTILE, -1), Node("passage", HOSTILE * 20, 0), Node("passage", "a\n\tb", 0))
    documents = [
        StructuredDocument(HOSTILE, nodes, (), (Reference("external", 0, f"{HOSTILE}2"),)),
        StructuredDocument(f"{HOSTILE}2", nodes),
    ]
    for graph in (MemoryGraph.from_documents(documents), DocumentGraph(tmp_path / "g").index(documents, verbose=False)):
        read = Reader(graph._repr_html_())
        assert "script" not in read.seen and not any(name.startswith("on") for name, _ in read.attributes)
        assert HOSTILE[:30] in read.text and "a b" in read.text
        assert f"plots.document_graph(graph, {HOSTILE!r})" in read.text


def test_the_document_is_one_of_the_first_that_fit() -> None:
    def document(name: str, passages: int, links: int) -> StructuredDocument:
        nodes = (Node("section", name, -1), *(Node("passage", f"{n}", 0) for n in range(passages)))
        return StructuredDocument(name, nodes, tuple(Link("internal", n + 2, 1) for n in range(links)))

    first = [document("short", 1, 0), document("linked", 4, 2), document("long", 40, 30)]
    many = [document(f"d{n}", 3, 0) for n in range(graph_html.SEARCHED)]
    graph = MemoryGraph.from_documents([*first, *many, document("late", 8, 6)])
    assert graph_html.small_document(graph) == 1
    only_long = MemoryGraph.from_documents([document("longer", 60, 3), document("long", 40, 3)])
    assert graph_html.small_document(only_long) == 1
    assert "first 14 nodes" in only_long._repr_html_()
    chain = tuple(Node("section", "x" * 100, n - 1) for n in range(20))
    assert len(MemoryGraph.from_documents([StructuredDocument("deep", chain)])._repr_html_()) < 40_000


def test_a_graph_that_is_not_there_or_cannot_be_drawn(
    stored: DocumentGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = Reader(DocumentGraph(tmp_path / "nowhere")._repr_html_())
    assert nowhere.table == {"documents": "not built yet"} and "graph.index(" in nowhere.text
    shutil.copytree(stored.path, tmp_path / "cut")
    file = max((tmp_path / "cut").iterdir(), key=lambda path: path.stat().st_size)
    file.write_bytes(file.read_bytes()[:-1])
    assert "is damaged" in Reader(DocumentGraph(tmp_path / "cut")._repr_html_()).table["not readable"]
    empty = Reader(MemoryGraph.from_documents([])._repr_html_())
    assert empty.table["documents"] == "0" and "b" not in empty.seen

    def fail(*_: Any) -> str:
        raise RuntimeError("no outline")

    monkeypatch.setattr(graph_html, "document_outline", fail)
    without = Reader(stored._repr_html_())
    assert without.table["documents"] == "6" and "b" not in without.seen


def test_graphs_of_candidates() -> None:
    run = tiny.run(2).assign(text="alpha beta")
    maker = CandidateGraph()
    graph = maker(run)["graph"].iloc[0]
    read = Reader(graph._repr_html_())
    assert read.table["passages"] == "6" and "b" in read.seen
    assert "CandidateGraph" in maker._repr_html_()


def test_a_graph_of_queries_and_passages_shows_the_queries_of_one(tmp_path: Path) -> None:
    passages = [HOSTILE, *(f"d{n}%p0" for n in range(30))]
    rows = [("q0", "alpha", "d1%p0", 1.25), ("q0", "alpha", HOSTILE, 2.5), ("q1", HOSTILE, HOSTILE, 1.5)]
    qrels = pd.DataFrame({"qid": ["q1", "q1"], "docno": [HOSTILE, "d7%p0"], "label": [2, 1]})
    run = pd.DataFrame(rows, columns=["qid", "query", "docno", "score"])
    graph = QueryPassageGraph(tmp_path / "graph").from_results(run, passages, qrels=qrels, verbose=False)
    read = Reader(graph_html.query_passage_html(graph, "mine", ["graph.without(queries)"]))
    sizes = {"queries": "2", "passages": "31", "retrieved edges": "3", "relevant edges": "2"}
    assert read.table == sizes and "graph.without(queries)" in read.text
    assert read.text.count("← ") == 3 and "script" not in read.seen
    assert read.text.count(HOSTILE[:20]) == 3 and "alpha  2.5" in read.text and "d1%p0" not in read.text
    without = Reader(graph_html.query_passage_html(graph.without(np.arange(2)), "mine", []))
    assert without.table == sizes and "b" not in without.seen
    crowded = pd.concat([run.assign(qid=f"r{n}", docno="d2%p0")[:1] for n in range(20)] + [run])
    crowd = QueryPassageGraph(tmp_path / "crowd").from_results(crowded, passages, verbose=False)
    assert graph.docnos_of(np.array([graph_html.small_passage(crowd)])) == [HOSTILE]


def hgat(**options: Any) -> HGATReranker:
    config = HGATConfig(layers=1, heads=2, relations=("order", "structural"))
    training = HGATTraining(epochs=2, negatives="candidates", batch_size=64)
    return HGATReranker(
        tiny.graph(), tiny.encoder(), config=config, training=training, device="cpu", verbose=False, **options
    )


def test_hgat_before_and_after_training(tmp_path: Path) -> None:
    reranker, run, qrels = hgat(), tiny.run(), tiny.qrels()
    new = own(reranker._repr_html_())
    assert new.table["model"] == "std_NO_LB, layers: 1, heads: 2"
    assert new.table["relations"] == "next passage, section around it"
    weights = sum(parameter.numel() for parameter in reranker.network.parameters())
    assert new.table["parameters"] == f"{weights:,}"
    assert new.table["trained"] == "not yet" and "reranker.fit(" in new.text
    reranker.fit(run, qrels, run, qrels)
    best = max(entry["nDCG@10"] for entry in reranker.training_log if "nDCG@10" in entry)
    trained = own(reranker._repr_html_())
    assert trained.table["trained"] == f"{reranker.training_log[-1]['step']} steps"
    assert trained.table["best nDCG@10"] == f"{best:.4f} on the validation queries"
    assert "plots.training_curves(reranker)" in trained.text and "reranker.fit(" not in trained.text
    assert own(reranker.apply_attributes(batch_size=3)._repr_html_()).table["trained"] == trained.table["trained"]
    loaded = own(HGATReranker.load(reranker.save(tmp_path / "hgat").path)._repr_html_())
    assert loaded.table["best nDCG@10"] == trained.table["best nDCG@10"]
    assert loaded.table["graph"] == "of each query's candidates" and "contextualize(" not in loaded.text
    untrained = HGATReranker.load(hgat().save(tmp_path / "untrained").path)
    assert own(untrained._repr_html_()).table["trained"] == f"loaded from {str(tmp_path / 'untrained')!r}"


def test_other_rerankers() -> None:
    maxsim = own(GraphMaxSim(tiny.graph(), tiny.encoder(), {"order": 0.5, "structural": 1})._repr_html_())
    assert maxsim.table["weights"] == "next passage: 0.5, section around it: 1"
    assert own(GraphMaxSim(tiny.graph(), tiny.encoder(), {})._repr_html_()).table["weights"].startswith("none")
    config = LGReConfig(layers=(0, -1))
    lgre = own(LGReReranker(tiny.checkpoint(), config=config, max_tokens=32, device="cpu")._repr_html_())
    assert lgre.table["word graph"] == "bipartite+neighbor, of hidden states 0, 2"
    assert lgre.table["reads"] == "32 tokens of query and 'text' together"
    assert "plots.word_graph(" in lgre.text
    cross_encoder = own(CrossEncoderReranker(tiny.checkpoint(), max_tokens=32, device="cpu")._repr_html_())
    assert cross_encoder.table["checkpoint"] == tiny.checkpoint() and "plots.word_graph(" not in cross_encoder.text


def test_the_schematic_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    reranker, maxsim = hgat(), GraphMaxSim(tiny.graph(), tiny.encoder())
    titles = re.findall(r'pts-transformer-title">(\w+)<', (reranker >> maxsim)._repr_html_())
    assert titles == ["HGAT", "GraphMaxSim"]
    assert re.findall(r'pts-transformer-title">(\w+)<', reranker._repr_html_()) == ["HGAT"]
    monkeypatch.setenv("PYTERRIER_DISABLE_NOTEBOOK_SCHEMATIC", "1")
    assert "pts-" not in reranker._repr_html_() and own(reranker._repr_html_()).table
    monkeypatch.delenv("PYTERRIER_DISABLE_NOTEBOOK_SCHEMATIC")

    def fail(*_: Any, **__: Any) -> str:
        raise pt.inspect.InspectError("no schematic")

    monkeypatch.setattr(pt.schematic, "draw", fail)
    assert "pts-" not in maxsim._repr_html_() and own(maxsim._repr_html_()).table


def test_names_of_models_are_escaped() -> None:
    reranker = hgat()
    reranker.encoder = tiny.TokenEncoder(reranker.encoder.network, max_passage_tokens=24, max_query_tokens=12)
    reranker.encoder.name = HOSTILE
    read = own(reranker._repr_html_())
    assert "script" not in read.seen and read.table["encoder"].startswith(HOSTILE)
