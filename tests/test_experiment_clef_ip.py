"""HGAT's experiment on CLEF-IP 2013, on the miniature collection."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import tiny
from clef_ip_miniature import Miniature

from experiments import clef_ip_2013
from pyterrier_graph.datasets import provider
from pyterrier_graph.datasets.clef_ip import Archive, read_run
from pyterrier_graph.datasets.clef_ip.layout import archive
from pyterrier_graph.graphs import DocumentGraph
from pyterrier_graph.patents import NotOwnFamily, SharedCodes, read_official_run

pytestmark = pytest.mark.slow  # whole experiments, on tiny data


@pytest.fixture
def patents(home: Path) -> Archive:
    return archive()


def words_of(miniature: Miniature) -> tuple[str, ...]:
    texts = (text for document in miniature.documents.values() for _, text in document.passages)
    return tuple(sorted({word for text in texts for word in re.findall(r"[^\W\d_]+", text.lower())}))


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("experiment")


@pytest.fixture(scope="module")
def arguments(output: Path, miniature: Miniature) -> list[str]:
    pytest.importorskip("pyterrier_pisa", reason="the first stage is PISA, for x86-64 Linux")
    small = {
        "depth": 4,
        "passages": 3,
        "repeats": 1,
        "runs": 2,
        "passage-tokens": 12,
        "query-tokens": 12,
        "frozen-layers": 0,
    }
    named = [part for name, value in small.items() for part in (f"--{name}", str(value))]
    encoder = tiny.checkpoint(words_of(miniature))
    return [*named, "--encoder", encoder, "--variants", "NO_LB", "NO_LB_NS", "--output", str(output)]


@pytest.fixture(scope="module")
def table(arguments: list[str], miniature: Miniature) -> pd.DataFrame:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IR_DATASETS_HOME", str(miniature.home.parent))
        provider.register()
        return clef_ip_2013.main(arguments)


def test_experiment(table: pd.DataFrame, output: Path, miniature: Miniature, patents: Archive) -> None:
    assert table["model"].tolist() == ["BM25", "MaxSim", "std_NO_LB", "late_NO_LB_NS"]
    assert [*table.columns[2:]] == ["PRES@100", "Recall@100", "MAP@100", "MAP(D)", "PREC(D)"]
    cell = re.compile(r"\d+\.\d( [ij]+)? ± \d+\.\d")
    assert table[table[""] != ""].iloc[:, 2:].map(lambda text: bool(cell.fullmatch(text))).all(axis=None)
    values = pd.read_csv(output / "values.csv").set_index(["model", "seed"])
    assert len(values) == 6 and values.iloc[1:].apply(lambda column: column.between(0, 1)).all(axis=None)
    assert values.loc["BM25", ["MAP(D)", "PREC(D)"]].isna().all(axis=None)  # it ranks no passages
    assert table.loc[0, ["MAP(D)", "PREC(D)"]].tolist() == ["-", "-"]
    assert (values["Recall@100"] > 0.3).all()  # the first stage is a real one
    assert values.loc["std_NO_LB"].nunique().max() == 2  # seeds differ
    tested = {topic.tid for topic in miniature.split_topics("2013/test") if topic.language == "EN"}
    files = [*(output / "runs").iterdir()]
    assert len(files) == 6
    for file in files:
        run = pd.DataFrame(read_run(file))
        assert {*run["query_id"]} == tested
        assert run.groupby("query_id")["docno"].nunique().max() <= 4
        assert run.groupby(["query_id", "docno"]).size().max() == 3
        assert len(read_official_run(file, patents)) == len(run)


@pytest.mark.usefixtures("table", "home")
def test_experiment_goes_on_where_it_stopped(
    arguments: list[str], output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[int] = []
    train = clef_ip_2013.train
    monkeypatch.setattr(clef_ip_2013, "train", lambda *made_with: trained.append(made_with[3]) or train(*made_with))
    values, file = (output / "values.csv").read_text("utf-8"), output / "runs" / "std_NO_LB-1.txt"
    run = file.read_bytes()
    file.unlink()
    clef_ip_2013.main(arguments)
    assert trained == [1] and file.read_bytes() == run
    assert (output / "values.csv").read_text("utf-8") == values
    with pytest.raises(SystemExit, match="made with other options"):
        clef_ip_2013.main([*arguments, "--level", "group"])
    assert json.loads((output / "options.json").read_text("utf-8"))["level"] == "subclass"


def test_filter_keeps_what_is_relevant(home: Path, patents: Archive, tmp_path: Path) -> None:
    """It might discard relevant documents (Sect. 5.2.2); in the miniature it does not."""
    graph = DocumentGraph(tmp_path / "graph").index((p.to_record() for p in patents.patents()), verbose=False)
    dataset = pt.get_dataset(clef_ip_2013.DATASET.format("train", "en"))
    qrels = dataset.get_qrels()
    every = dataset.get_topics().merge(pd.DataFrame({"docno": graph.docnos_of(np.arange(len(graph)))}), how="cross")
    kept = (NotOwnFamily() >> SharedCodes(graph))(every)
    assert len(kept) < len(every) / 2
    relevant = {*zip(qrels["qid"], qrels["docno"].str.partition("%")[0], strict=True)}
    assert relevant <= {*zip(kept["qid"], kept["docno"], strict=True)}


def test_without_the_collection_it_says_where_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path))
    with pytest.raises(SystemExit, match=r"(?s)is not there.*CC BY-NC-SA.*doi\.org.*Unpack"):
        clef_ip_2013.main(["--output", str(tmp_path / "output")])
    assert not (tmp_path / "output").exists()


def test_table_has_the_paper_s_letters() -> None:
    starts = {"low": 0.4, "high": 0.5, "same": 0.501}
    frames = [
        pd.DataFrame({"model": model, "seed": range(10), "measure": start + 0.002 * np.arange(10)})
        for model, start in starts.items()
    ]
    table = clef_ip_2013.table_of(pd.concat([pd.DataFrame({"model": "BM25", "seed": [0], "measure": [0.9]}), *frames]))
    assert table[""].tolist() == ["", "i", "j", "k"]
    assert table["measure"].tolist() == ["90.0", "40.9 ± 0.6", "50.9 i ± 0.6", "51.0 i ± 0.6"]


def test_the_defaults_are_the_paper_s() -> None:
    options = clef_ip_2013.command_line().parse_args(["--output", "x"])
    assert (options.runs, options.depth, options.repeats, options.encoder_learning_rate) == (10, 1000, 1000, 3e-6)
    assert len(options.variants) == 8 and options.negatives == ["mixed"] and options.language == "en"
    names = [clef_ip_2013.model_name(variant, "mixed") for variant in options.variants]
    assert {"std_BASE", "std_NO_LB", "late_NO_NS", "late_NO_LB_NS"} < {*names}
    assert clef_ip_2013.model_name("BASE", "same_doc") == "std_BASE same_doc"
