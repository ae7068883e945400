"""The cross-encoder that is trained here, in miniature."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tiny
from experiment_tools import Matches, pages, texts

import pyterrier_graph as ptg
from experiments import base_models
from experiments.base_models import Place, collection_name
from experiments.harness.collection import Collection

SMALL = (
    "--per-query 2 --dev-queries 2 --dev-candidates 4 --pairs 8 --random-pairs 4 --random-tokens 12 --against 2 "
    "--batch 2 --evaluations 2 --max-tokens 16 --depth 4 --queries 5"
).split()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(options: Namespace) -> Collection:
        return pages() if options.collection == "numpydoc" else texts(2)

    monkeypatch.setattr(base_models, "open_collection", opened)
    monkeypatch.setattr(base_models, "bm25", Matches)


def arguments(output: Path, *more: str) -> list[str]:
    encoder = tiny.checkpoint(positions=256)
    return ["cross-encoder", "numpydoc", *SMALL, "--encoder", encoder, "--output", str(output), *more]


def options(output: Path, *more: str) -> Any:
    return base_models.command_line().parse_args(arguments(output, *more))


@pytest.mark.slow
def test_training_and_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = arguments(tmp_path, "--away", "numpydoc-numpy")
    table = base_models.main(given)
    systems = [*base_models.SYSTEMS]
    assert table["system"].tolist() == 2 * systems
    assert table["collection"].tolist() == 5 * ["numpydoc"] + 5 * ["numpydoc-numpy"]
    assert table["queries"].unique().tolist() == [4, 5]
    log = pd.read_csv(tmp_path / "cross-encoder.csv")
    assert log["nDCG@10"].notna().sum() == 3  # before training, and two
    differences = pd.read_csv(tmp_path / "tests" / "numpydoc" / "differences.csv")
    assert len(differences) == 3 * 20
    monkeypatch.setattr(ptg.CrossEncoderReranker, "fit", lambda *_: pytest.fail("trained again"))
    more = base_models.main([*given, "--test-tokens", "0", "8", "--tests", "numpydoc"])["system"].tolist()
    assert [name for name in more if name not in systems] == [f"{name}, 8 tokens" for name in systems[2::2]]
    monkeypatch.setattr(ptg.CrossEncoderReranker, "transform", lambda *_: pytest.fail("all runs are stored"))
    pd.testing.assert_frame_equal(base_models.main(given), table)
    few = base_models.main([*given, "--tests", "numpydoc-numpy", "--systems", "bm25", "bm25-cross-encoder"])
    assert (tmp_path / "tests" / "numpydoc" / "options.json").exists()
    assert few["collection"].tolist() == 2 * ["numpydoc-numpy"] and few["system"].tolist() == systems[::2][:2]
    with pytest.raises(SystemExit, match=r"other options \(pairs\)"):
        base_models.main([*given, "--pairs", "9"])


@pytest.mark.slow
def test_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = options(tmp_path / "first", "--negatives", "bm25", "random")
    base_models.cross_encoder(first)
    # after a kill, what had begun is there
    started: list[str] = []
    train = base_models.train
    monkeypatch.setattr(base_models, "train", lambda start, *rest: (started.append(start), train(start, *rest)))
    (tmp_path / "first" / "cross-encoder").rename(tmp_path / "elsewhere")
    again = base_models.cross_encoder(first)
    assert started == [str(tmp_path / "first" / "begun" / "cross-encoder")]
    trained = ptg.CrossEncoderReranker.load(tmp_path / "elsewhere")
    for one, other in zip(again.network.parameters(), trained.network.parameters(), strict=True):
        np.testing.assert_array_equal(one.detach(), other.detach())
    longer = options(tmp_path / "longer", "--checkpoint", str(tmp_path / "elsewhere"), "--max-tokens", "24")
    assert base_models.cross_encoder(longer).max_tokens == 24
    assert started[1:] == [str(tmp_path / "elsewhere" / "cross-encoder")]


def test_negatives(tmp_path: Path) -> None:
    chosen = options(tmp_path, "--negatives", "bm25", "document", "random")
    place = Place("numpydoc", chosen)
    train = place.collection.split()["train"]
    found = base_models.mined(place, train, chosen)
    relevant = {*zip(train.qrels["qid"], train.qrels["docno"], strict=True)}
    assert relevant <= {*zip(found["qid"], found["docno"], strict=True)}
    assert not found.duplicated(["qid", "docno"]).any()
    others = found[[pair not in relevant for pair in zip(found["qid"], found["docno"], strict=True)]]
    # all first passages of pages have the same text, so only second ones are negatives
    assert others["docno"].str.endswith("%p1").all() and others.groupby("qid").size().min() >= 1
    own = others["docno"].str.removesuffix("%p1") == others["qid"].str.partition("-")[0]
    assert own.sum() <= len(train.topics)
    alone = base_models.mined(place, train, options(tmp_path, "--negatives", "document"))
    assert len(alone) == 2 * len(train.topics)


def test_no_test_query_is_learned_from(tmp_path: Path) -> None:
    chosen = options(tmp_path, "--negatives", "bm25", "random")
    place = Place("numpydoc", chosen)
    train, dev = base_models.examples(place, chosen)
    splits = {
        name: {f"numpydoc:{qid}" for qid in part.topics["qid"]} for name, part in place.collection.split().items()
    }
    assert {*train.run["qid"]} <= splits["train"] and {*dev.run["qid"]} <= splits["dev"]
    assert train.qrels["docno"].str.startswith("numpydoc:").all() and train.run["text"].notna().all()
    both = base_models.together([train, dev])
    assert len(both.run) == len(train.run) + len(dev.run)


def test_no_question_of_unseen_pages_is_learned_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collection = pages()
    records = list(collection.documents())

    def opened(options: Namespace) -> Collection:
        return replace(collection, documents=lambda: records[: options.passages])

    monkeypatch.setattr(base_models, "open_collection", opened)
    splits = collection.split(dev_queries=2)
    learned = {qid for name in ("train", "dev") for qid in splits[name].topics["qid"]}
    count = len(records) // 2
    hidden = {record["docno"] for record in records[:count]}
    about = collection.all_queries.qrels
    unseen = set(about["qid"][about["docno"].map(lambda docno: docno.partition("%")[0]).isin(hidden)])
    assert learned & unseen and learned - unseen

    def used(name: str, *more: str) -> set[str]:
        chosen = options(tmp_path / str(len(more)), "--negatives", "bm25", "random", *more)
        parts = base_models.examples(Place(name, chosen), chosen)
        return {qid.partition(":")[2] for part in parts for qid in part.qrels["qid"]}

    assert used("medquad=folder") == learned
    assert used("medquad=folder", "--unseen", str(count)) == learned - unseen
    assert used("numpydoc", "--unseen", str(count)) == learned  # the sample is one of MedQuAD


def test_what_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, problem in (("other", "unknown"), ("medquad", "medquad=FOLDER")):
        with pytest.raises(ArgumentTypeError, match=problem):
            collection_name(name)
    for away, problem in (("numpydoc", "cannot be in --away"), ("cacm=nowhere", "cacm: 'nowhere' does not exist")):
        with pytest.raises(SystemExit):
            base_models.main(arguments(tmp_path, "--away", away))
        assert problem in capsys.readouterr().err
    with pytest.raises(SystemExit, match="no such checkpoint"):
        base_models.main(arguments(tmp_path, "--checkpoint", str(tmp_path / "nothing")))


def test_an_abstract_is_one_passage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judgments of CACM are of whole records, although these have parts: passages of them would never be relevant."""
    monkeypatch.setattr(base_models, "open_collection", lambda _: pages())
    judged = set(pages().all_queries.qrels["docno"])
    whole, parts = (set(Place(name, options(tmp_path)).texts) for name in ("cacm=folder", "numpydoc"))
    assert whole == {record["docno"] for record in pages().whole().passages().documents()} != parts
    assert judged <= parts
