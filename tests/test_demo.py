"""The demo on a tiny corpus, with a tiny encoder: every system is built, compared, and shown in the report."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import tiny

import pyterrier_graph as ptg
from pyterrier_graph import demo

SYSTEMS = ["BM25", "BM25, answered queries in the text", "all-MiniLM, titles in the text", "all-MiniLM", "GraphMean"]
SYSTEMS += ["Hybrid: BM25, GraphMean", "Hybrid: BM25 with answered queries, GraphMean"]
SYSTEMS += ["GNNEncoder without edges", "GNNEncoder", "BM25 >> MaxSim"]
SYSTEMS += ["BM25 >> MaxSim, titles in the text", "BM25 >> GraphMaxSim", "BM25 >> HGAT"]


class Corpus:
    """The tiny documents, as a dataset has them."""

    def get_corpus_iter(self, *, verbose: bool = False) -> list[dict[str, Any]]:
        return [vars(d) | {"title": d.title, "text": " ".join(d.passages())} for d in tiny.documents()]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> demo.Data:
    pytest.importorskip("pyterrier_pisa", reason="PISA is for x86-64 Linux")
    monkeypatch.setattr(demo, "reduced_encoder", lambda graph: tiny.encoder())
    monkeypatch.setattr(demo, "DualEncoder", partial(ptg.DualEncoder, tiny.checkpoint()))
    monkeypatch.setattr(demo, "PASSAGE_TOKENS", 24)
    graph = ptg.DocumentGraph(tmp_path / "graph").index(Corpus().get_corpus_iter(), verbose=False)
    known = demo.Queries(tiny.topics().assign(qid=lambda topics: "k" + topics["qid"]), tiny.qrels())
    known = demo.Queries(known.topics, known.qrels.assign(qid=lambda qrels: "k" + qrels["qid"]))
    queries = ptg.QueryPassageGraph(tmp_path / "queries").build(known.topics, graph, qrels=known.qrels, verbose=False)
    asked = demo.Queries(tiny.topics().assign(query=lambda topics: topics["query"] + " iota"), tiny.qrels())
    return demo.Data(Corpus(), graph, queries, known, asked, asked)


@pytest.mark.slow
@pytest.mark.parametrize("full", [False, True], ids=["default", "full"])
def test_systems_table_and_report(data: demo.Data, tmp_path: Path, full: bool) -> None:
    systems, models = demo.build_systems(data, tmp_path, full=full)
    assert full or [*systems] == SYSTEMS
    assert {*SYSTEMS} <= {*systems} and (len(systems) > len(SYSTEMS)) == full
    table = demo.compare(systems, data.test)
    assert [*table.columns] == ["system", "nDCG@10", "RR@10", "ms per query"]
    assert table["nDCG@10"].str.fullmatch(r"[01]\.\d{3}[ +-]").all()
    assert max(map(len, table.to_string(index=False).splitlines())) <= 100
    demo.write_report(tmp_path / "report.html", data, models, table, "the command", 1.5)
    page = (tmp_path / "report.html").read_text("utf-8")
    assert all(name.replace(">", "&gt;") in page for name in table["system"])
    assert page.count("data:image/svg+xml;base64,") == page.count('alt="') == 2 and "the command" in page
    assert all(f"<div>{name}: " in page for name in ("GraphMaxSim", "HGATReranker", "GraphMean", "GNNEncoder"))
    assert not re.search(r"(src|href)=\"(?!data:)", page)  # nothing is loaded over a network


def test_judgments_of_documents_have_the_highest_label() -> None:
    qrels = pd.DataFrame({"qid": ["1", "1", "1"], "docno": ["d%p0", "d%p4", "e%p0"], "label": [1, 2, 0]})
    documents = demo.Queries(pd.DataFrame(), qrels).document_qrels
    assert documents.to_dict("list") == {"qid": ["1", "1"], "docno": ["d", "e"], "label": [2, 0]}


def test_command_line() -> None:
    options = demo.parser().parse_args([])
    assert (options.size, options.first_stage, options.full) == ("numpy", "pisa", False)
    with pytest.raises(SystemExit):
        demo.parser().parse_args(["--size", "huge"])
