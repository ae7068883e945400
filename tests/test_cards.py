"""What a card suggests to call next can be called, on the object that the card shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import tiny
from html_reader import Reader

import pyterrier_graph as ptg
from pyterrier_graph import plots
from pyterrier_graph.documents import Node, StructuredDocument
from pyterrier_graph.plots import html as html_module
from pyterrier_graph.plots.style import COLORS, DARKEST, LIGHTEST, TEXT, marked_color

HGAT = ptg.HGATConfig(layers=1, heads=2, relations=("order", "title"))
TEXT_RERANKER: dict[str, Any] = {"max_tokens": 32, "device": "cpu", "verbose": False}
QUIET: dict[str, Any] = {"device": "cpu", "verbose": False}
QUERIES = pd.DataFrame({"qid": ["k0", "k1"], "query": ["mu iota", "lambda beta"]})
ANSWERS = pd.DataFrame({"qid": ["k0", "k1"], "docno": ["d0%p0", "d1%p0"], "label": [1, 1]})


@pytest.fixture(autouse=True)
def closed_figures() -> Iterator[None]:
    yield
    plt.close("all")


def dual(**options: Any) -> ptg.DualEncoder:
    training = ptg.DualEncoderTraining(epochs=1, batch_size=2, patience=None)
    options = {"max_passage_tokens": 24, "training": training, "pretraining": training} | QUIET | options
    return ptg.DualEncoder(tiny.checkpoint(), **options)


def hgat(graph: Any) -> ptg.HGATReranker:
    training = ptg.HGATTraining(epochs=1, negatives="candidates", batch_size=64)
    return ptg.HGATReranker(graph, tiny.encoder(), config=HGAT, training=training, **QUIET)


def trained(reranker: Any) -> Any:
    run = tiny.run().assign(text="alpha beta")
    return reranker.fit(run, tiny.qrels(), run, tiny.qrels())


def query_graph(path: Path) -> ptg.QueryPassageGraph:
    return ptg.QueryPassageGraph(path / "queries").build(QUERIES, tiny.graph(), qrels=ANSWERS, verbose=False)


def stored(path: Path, documents: list[StructuredDocument]) -> ptg.DocumentGraph:
    return ptg.DocumentGraph(path / "graph").index(documents, verbose=False)


def plain(links: bool) -> list[StructuredDocument]:
    """Documents without references, and with one passage or two."""
    nodes = (Node("section", "alpha", -1), Node("passage", "beta", 0), Node("passage", "gamma", 0))[: 3 if links else 2]
    return [StructuredDocument(f"d{number}", nodes) for number in range(2)]


def gnn(path: Path, **options: Any) -> ptg.GNNEncoder:
    training = ptg.GNNEncoderTraining(epochs=1)
    return ptg.GNNEncoder(tiny.graph(), dual(), query_graph=query_graph(path), training=training, **QUIET, **options)


def mined(path: Path) -> ptg.DualEncoder:
    bm25 = pt.Transformer.from_df(tiny.run().assign(score=range(len(tiny.run()))))
    miner = ptg.HardNegativeMiner(bm25, pt.apply.text(lambda row: row["docno"]), hard_negatives=1)
    return dual(miner=miner)


# how each card's object is made, and the name that it has in the calls
CARDS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "document graph": ("graph", lambda path: stored(path, tiny.documents())),
    "document graph without references": ("graph", lambda path: stored(path, plain(True))),
    "document graph of single passages": ("graph", lambda path: stored(path, plain(False))),
    "graph in memory": ("graph", lambda path: tiny.graph()),
    "no graph yet": ("graph", lambda path: ptg.DocumentGraph(path / "new")),
    "query graph": ("graph", query_graph),
    "no query graph yet": ("graph", lambda path: ptg.QueryPassageGraph(path / "new")),
    "GraphMaxSim": ("reranker", lambda path: ptg.GraphMaxSim(tiny.graph(), tiny.encoder(), **QUIET)),
    "GraphMaxSim without a graph": ("reranker", lambda path: ptg.GraphMaxSim(None, tiny.encoder(), **QUIET)),
    "HGAT": ("reranker", lambda path: hgat(tiny.graph())),
    "HGAT without a graph": ("reranker", lambda path: hgat(None)),
    "trained HGAT": ("reranker", lambda path: trained(hgat(tiny.graph()))),
    "LGRe": (
        "reranker",
        lambda path: ptg.LGReReranker(
            tiny.checkpoint(),
            config=ptg.LGReConfig(layers=(0, -1)),
            training=ptg.LGReTraining(epochs=1),
            **TEXT_RERANKER,
        ),
    ),
    "cross-encoder": (
        "reranker",
        lambda path: ptg.CrossEncoderReranker(
            tiny.checkpoint(), training=ptg.CrossEncoderTraining(epochs=1), **TEXT_RERANKER
        ),
    ),
    "GraphMean": ("mean", lambda path: ptg.GraphMean(tiny.graph(), dual(), query_graph=query_graph(path), **QUIET)),
    "GraphMean with fixed weights": ("mean", lambda path: ptg.GraphMean(tiny.graph(), dual(), {"order": 0.5}, **QUIET)),
    "GraphMean for queries": ("mean", lambda path: ptg.GraphMean(None, dual(), **QUIET)),
    "GNNEncoder": ("gnn", gnn),
    "index": ("index", lambda path: ptg.GraphMean(tiny.graph(), dual(), **QUIET).index(path / "flex")),
    "dual encoder": ("encoder", lambda path: dual()),
    "dual encoder with a miner": ("encoder", mined),
}


@pytest.mark.parametrize("name", CARDS)
def test_all_calls_of_a_card_can_be_made(name: str, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    variable, make = CARDS[name]
    shown = make(tmp_path)
    run = tiny.run().assign(text="alpha beta mu", graph=[tiny.graph()] * len(tiny.run()), score=1.0)
    bm25 = pt.Transformer.from_df(tiny.topics().assign(docno="d0", score=1.0, rank=0))
    examples = pd.DataFrame({"query": ["alpha", "beta"], "positive": ["mu", "iota"], "negative_1": ["eta", "mu"]})
    values: dict[str, Any] = {
        "pt": pt,
        "ptg": ptg,
        "plots": plots,
        "graph": tiny.graph(),
        "bm25": bm25,
        "reranker": ptg.GraphMaxSim(tiny.graph(), tiny.encoder(), **QUIET),
        "encoder": dual(),
        "dataset": type("Dataset", (), {"get_corpus_iter": staticmethod(tiny.documents)}),
        "query": "alpha",
        "docno": "d0%p1",
        "text": "alpha beta",
        "queries": np.arange(1),
        "run": run,
        "index": ["d0%p0", "d0%p1"],
        "retriever": pt.Transformer.from_df(QUERIES.assign(docno="d0%p0", score=1.0, rank=0)),
        "topics": tiny.topics() if "query graph" not in name else QUERIES,
        "qrels": tiny.qrels() if "query graph" not in name else ANSWERS[:1],
        "dev_topics": tiny.topics(),
        "dev_qrels": tiny.qrels(),
        "train_run": run,
        "dev_run": run,
        "train_qrels": tiny.qrels(),
        "examples": __import__("datasets").Dataset.from_pandas(examples),
    } | {variable: shown}
    calls = Reader(shown._repr_html_()).code
    assert calls or name == "GraphMean for queries"
    for number, call in enumerate(calls):
        exec(call, values | {"path": tmp_path / f"new{number}"})  # noqa: S102
    if name == "document graph":
        assert any("['external', 'external_i']" in call for call in calls)
    if name == "document graph without references":
        assert any("['order', 'order_i']" in call for call in calls)
    if name == "document graph of single passages":
        assert not any("corpus_graph" in call for call in calls)


def test_the_card_of_a_mean_has_its_weights(tmp_path: Path) -> None:
    fixed = ptg.GraphMean(tiny.graph(), dual(), {"title": 1.0, "order/order": 0.25}, **QUIET)
    html = fixed._repr_html_()
    assert "section title</span>: 1" in html and 'title="order/order">next passage of next passage</span>: 0.25' in html
    auto = Reader(ptg.GraphMean(tiny.graph(), dual(), query_graph=query_graph(tmp_path), **QUIET)._repr_html_())
    assert "largest weightstitles above: 1, query that it answers: 1" in auto.text


def test_pipelines_are_text_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = []

    def fail(*_: Any, **__: Any) -> str:
        attempts.append(1)
        raise URLError("no network")

    monkeypatch.setattr(pt.schematic, "draw", fail)
    monkeypatch.setattr(html_module, "_failed", [])
    pipeline = pt.text.max_passage() % 3
    with pytest.warns(UserWarning, match="shown as text: PyTerrier could not load its documentation's index"):
        first = plots.pipeline(pipeline)._repr_html_()
    again = plots.pipeline(pipeline)
    assert Reader(again._repr_html_()).code == [repr(pipeline)] == Reader(first).code
    assert repr(again) == repr(pipeline) and len(attempts) == 1  # the reason is named once, and nothing is tried again


def test_wide_schematics_scroll() -> None:
    shown = plots.pipeline(pt.text.max_passage() % 3)._repr_html_()
    assert shown.startswith('<div style="overflow-x: auto"><div style="min-width: max-content">') and "pts-" in shown


def luminance(color: tuple[float, ...]) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in color]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("page", "text"), [((1, 1, 1), (0, 0, 0)), ((0.07, 0.07, 0.07), (1, 1, 1))])
def test_contrast_of_words_and_marks(page: tuple[float, ...], text: tuple[float, ...]) -> None:
    for share in (-1.0, -0.5, 0.0, 0.5, 1.0):
        *rgb, opacity = map(float, re.findall(r"[\d.]+", marked_color(share)))
        assert LIGHTEST <= opacity <= DARKEST + 1e-9
        behind = tuple(part / 255 * opacity + under * (1 - opacity) for part, under in zip(rgb, page, strict=True))
        assert contrast(behind, text) >= 4.5
    quiet = tuple(0.85 * over + 0.15 * under for over, under in zip(text, page, strict=True))
    assert contrast(quiet, page) >= 4.5
    assert TEXT >= 8
    for color in COLORS:  # swatches, bars and lines, which are no text
        rgb = tuple(int(color[start : start + 2], 16) / 255 for start in (1, 3, 5))
        assert contrast(rgb, page) >= 2
