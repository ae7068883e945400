"""Objects in notebooks: facts and pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
import tiny
from html_reader import HOSTILE, Reader

import pyterrier_graph as ptg
from pyterrier_graph.documents.document import StructuredDocument
from pyterrier_graph.html import HtmlCard, card

HGAT = ptg.HGATConfig(layers=1, heads=2, relations=("order", "title"))
QUIET: dict[str, Any] = {"device": "cpu", "verbose": False}


@pytest.fixture(autouse=True)
def closed_figures() -> Iterator[None]:
    yield
    plt.close("all")


def hgat(graph: Any) -> ptg.HGATReranker:
    training = ptg.HGATTraining(epochs=1, negatives="candidates", batch_size=64)
    return ptg.HGATReranker(graph, tiny.encoder(), config=HGAT, training=training, **QUIET)


def trained(reranker: Any) -> Any:
    run = tiny.run().assign(text="alpha beta")
    return reranker.fit(run, tiny.qrels(), run, tiny.qrels())


def stored(path: Path, documents: list[StructuredDocument]) -> ptg.DocumentGraph:
    return ptg.DocumentGraph(path / "graph").index(documents)


# a row of each card, and how its object is made
CARDS: dict[str, Callable[[Path], Any]] = {
    "queries not built yet": lambda path: ptg.QueryPassageGraph(path / "new"),
    "relevant edges 6": lambda path: tiny.query_graph(),
    "weights next passage: 0.5": lambda path: ptg.GraphMaxSim(
        None, tiny.encoder(), {"order": 0.5}, **QUIET
    ),
    "max_tokens 32": lambda path: ptg.CrossEncoderReranker(
        tiny.checkpoint(), max_tokens=32, **QUIET
    ),
    "trained not yet": lambda path: tiny.dual_encoder(),
}


@pytest.mark.parametrize("row", CARDS)
def test_a_card_has_the_facts_of_its_object(row: str, tmp_path: Path) -> None:
    table = own(CARDS[row](tmp_path)._repr_html_()).table
    assert row in {f"{name} {fact}" for name, fact in table.items()}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> ptg.DocumentGraph:
    return stored(tmp_path_factory.mktemp("graphs"), tiny.documents())


def own(html: str) -> Reader:
    """Our part of what a transformer shows, without PyTerrier's schematic."""
    return Reader(html[html.rindex('<div class="ptg">') :])


def test_a_value_is_escaped_and_complete() -> None:
    read = Reader(
        card(
            *HtmlCard(
                {HOSTILE: HOSTILE, "many": 1234567, "weights": {"order": 0.5, "title": 1.0}},
                HOSTILE,
            )
        )
    )
    assert read.table == {
        HOSTILE: HOSTILE,
        "many": "1,234,567",
        "weights": "next passage: 0.5, section title: 1",
    }
    assert "script" not in read.seen
    assert read.text.count(HOSTILE) == 3
    assert Reader(card(*HtmlCard({"weights": {}}))).table == {"weights": "none"}


def test_a_graph_shows_its_sizes(corpus: ptg.DocumentGraph) -> None:
    html = corpus._repr_html_()
    read = Reader(html)
    assert (read.table["documents"], read.table["passages"]) == ("6", "18")
    assert read.table["external edges"] == "6, to the cited document (6 unresolved)"
    assert repr(corpus) in read.text
    assert "http" not in html  # nothing is loaded


def test_hgat_before_and_after_training(tmp_path: Path) -> None:
    reranker = hgat(tiny.graph())
    table = own(reranker._repr_html_()).table
    weights = sum(weights.numel() for weights in reranker.network.parameters())
    assert table["trained"] == "not yet" and table["parameters"] == f"{weights:,}"
    trained(reranker)
    best = [entry["nDCG@10"] for entry in reranker.training_log if "kept" in entry][-1]
    loaded = ptg.HGATReranker.load(reranker.save(tmp_path / "hgat").path)
    for model in (reranker, loaded):
        table = own(model._repr_html_()).table
        assert table["trained"] == f"{reranker.training_log[-1]['step']} steps"
        assert table["validation"] == f"nDCG@10 {best:.4f}"
