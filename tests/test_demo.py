"""The demo on a tiny corpus, with a tiny encoder: every system is built and compared, and the page shows them."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pandas as pd
import pytest
import tiny

import pyterrier_graph as ptg
from pyterrier_graph import demo
from pyterrier_graph.demo import systems
from pyterrier_graph.documents.document import PASSAGE, SECTION, Link, Node, Reference

SYSTEMS = [
    "BM25",
    "BM25 >> MaxSim",
    "BM25 >> GraphMaxSim",
    "BM25 >> HGAT",
    "BM25 >> LGRe",
    "dense",
    "PAIR",
    "GraphMean",
    "network without edges",
    "GNNEncoder",
    "BM25 + dense",
    "GraphIndex",
]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a demo that was run."""
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(systems, "reduced_encoder", lambda graph: tiny.encoder())
        patch.setattr(systems, "shallow_encoder", lambda path: tiny.checkpoint())
        patch.setattr(systems, "PAIR_TOKENS", 24)
        demo.run(data(folder), folder)
    return folder


def data(folder: Path) -> systems.Data:
    """The tiny corpus; the training queries have other ids and words than those that validate and test."""
    known = systems.Queries(
        *(frame.assign(qid="k" + frame["qid"]) for frame in (tiny.topics(), tiny.qrels()))
    )
    encoder = ptg.DualEncoder(tiny.checkpoint(), max_passage_tokens=24)
    docs = [vars(d) | {"title": d.title, "text": " ".join(d.passages())} for d in tiny.documents()]
    index = ptg.GraphIndex(folder / "index", encoder=encoder).index(
        docs, answered=(known.topics, known.qrels)
    )
    asked = systems.Queries(
        tiny.topics().assign(query=lambda topics: topics["query"] + " iota"), tiny.qrels()
    )
    return systems.Data(docs, index, known, asked, asked)


@pytest.mark.slow
def test_results_are_values_of_all_queries(output: Path) -> None:
    values = pd.read_csv(output / "results.csv")
    assert {*values["name"]} == {*SYSTEMS}
    assert {*values.groupby(["name", "measure"]).size()} == {len(tiny.topics())}
    assert values["value"].between(0, 1).all()


@pytest.mark.slow
def test_the_page_shows_papers_pictures_and_examples(output: Path) -> None:
    page = (output / "report.html").read_text("utf-8")
    for paper in ("Albarede", "Dong and Niu", "Liu et al.", "Ren et al."):
        assert paper in page
    assert all(system in unescape(page) for system in SYSTEMS)
    pictures = ("<h2>The corpus", "<h2>Results", "<h2>What training", "<h2>The words")
    assert all("<svg" in page.split(heading)[1].split("<h2>")[0] for heading in pictures)
    assert page.count("The relevant passage is at rank") == 2  # examples
    assert not re.findall(r"<(?:script|link|img)[^>]+https?://", page)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_a_browser_renders_the_page(output: Path, tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,3000"]
    subprocess.run(
        [str(CHROMIUM), *options, f"--screenshot={picture}", (output / "report.html").as_uri()],
        check=True,
        capture_output=True,
        timeout=120,
    )
    assert picture.stat().st_size > 50_000


def test_a_document_ends_with_its_second_passage() -> None:
    nodes = [
        Node(SECTION, "title", -1),
        *(Node(PASSAGE, text, 0) for text in "abc"),
        Node(SECTION, "later", 0),
        Node(PASSAGE, "d", 4),
    ]
    links = [Link("internal", 1, 2), Link("internal", 1, 5)]
    references = [Reference("external", 2, "other"), Reference("external", 5, "other")]
    doc = {"docno": "x", "nodes": nodes, "links": links, "references": references}
    cut = systems.beginning(doc)
    assert cut["nodes"] == nodes[:3]
    assert cut["text"] == "a\n\nb"
    assert cut["links"] == links[:1] and cut["references"] == references[:1]


def test_judgments_of_documents_have_the_highest_label() -> None:
    qrels = pd.DataFrame(
        {"qid": ["1", "1", "1"], "docno": ["d%p0", "d%p4", "e%p0"], "label": [1, 2, 0]}
    )
    documents = systems.Queries(pd.DataFrame(), qrels).document_qrels
    assert documents.to_dict("list") == {"qid": ["1", "1"], "docno": ["d", "e"], "label": [2, 0]}
