"""The experiment that compares LGRe with a cross-encoder, in miniature, and the readers of its collections."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import ir_datasets
import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import tiny
from test_cross_encoder import reranker
from test_lgre_reranker import QRELS, RUN, cross_encoder, lgre, scores

from experiments import text_reranking
from experiments.collection import TextCollection
from experiments.cranfield import read_cranfield
from experiments.text_reranking import DatasetTexts
from experiments.vaswani import read_vaswani
from pyterrier_graph.evaluation.significance import summarize
from pyterrier_graph.rerank.cross_encoder import CrossEncoderReranker
from pyterrier_graph.rerank.lgre import LGReReranker
from pyterrier_graph.training.pairs import CrossEncoderTraining, LGReTraining, PairCollator

# --- collections

VASWANI = {
    "doc-text.trec": "<DOC>\n<DOCNO>1</DOCNO>\nalpha beta\ngamma\n</DOC>\n<DOC>\n<DOCNO>2</DOCNO>\ndelta\n</DOC>\n",
    "query-text.trec": "<top>\n<num>1</num><title>\nALPHA\nBETA\n</title>\n</top>\n",
    "qrels": "1 0 2 1\n1 0 1 1\n",
}


def vaswani(folder: Path, **changed: str) -> Path:
    for name, content in VASWANI.items():
        (folder / name).write_text(changed.get(name, content))
    return folder


def test_vaswani(tmp_path: Path) -> None:
    found = read_vaswani(vaswani(tmp_path))
    assert found.documents == [
        {"docno": "1", "title": "", "text": "alpha beta\ngamma"},
        {"docno": "2", "title": "", "text": "delta"},
    ]
    assert list(found.get_corpus_iter(verbose=False)) == found.documents
    assert found.get_topics().to_dict("records") == [{"qid": "1", "query": "ALPHA BETA"}]
    assert found.get_qrels().to_numpy().tolist() == [["1", "2", 1], ["1", "1", 1]]
    assert found.texts(["2"]) == {"2": "delta"}


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("doc-text.trec", VASWANI["doc-text.trec"][:-8], "doc-text.trec, line 6: this is no complete record: '<DOC>"),
        ("doc-text.trec", VASWANI["doc-text.trec"].replace("</DOC>\n<DOC>", "<DOC>"), "doc-text.trec, line 1"),
        ("doc-text.trec", VASWANI["doc-text.trec"].replace("2", "1"), "the id '1' occurs 2 times"),
        ("doc-text.trec", "", "doc-text.trec is empty"),
        ("query-text.trec", VASWANI["query-text.trec"] + "stray", "query-text.trec, line 7: .*'stray'"),
        ("qrels", "1 0 2 1\n1 0 1\n", "qrels, line 2: .*'1 0 1'"),
        ("qrels", "1 0 3 1\n", "the docno '3', which does not exist"),
        ("qrels", "2 0 1 1\n", "the qid '2', which does not exist"),
    ],
)
def test_vaswani_damaged(tmp_path: Path, file: str, content: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_vaswani(vaswani(tmp_path, **{file: content}))


def test_vaswani_missing_file(tmp_path: Path) -> None:
    (vaswani(tmp_path) / "qrels").unlink()
    with pytest.raises(FileNotFoundError, match="qrels"):
        read_vaswani(tmp_path)


CRANFIELD = {
    "cran.all.1400": ".I 1\n.T\na wing in a\nslipstream .\n.A\nbrenckman,m.\n.B\nj. 1958\n"
    ".W\na wing in a\nslipstream .\n"
    "  an experimental study .\n.I 2\n.T\n.A\n.B\n.W\n.I 3\n.T\nshear\n.A\n.B\n.W\nanother beginning\n",
    "cran.qry": ".I 001\r\n.W\r\nwhat laws ?\r\n.I 004\r\n.W\r\nwhat\r\nproblems ?\r\n",
    "cranqrel": "1 1 1 \n1 3       4\n2 3 -1\n",
}


def cranfield(folder: Path, **changed: str | None) -> Path:
    with tarfile.open(folder / "cran.tar.gz", "w:gz") as archive:
        for name, content in (CRANFIELD | changed).items():
            if content is not None:
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content.encode()))
    return folder


def test_cranfield(tmp_path: Path) -> None:
    found = read_cranfield(cranfield(tmp_path))
    assert found.documents == [
        {"docno": "1", "title": "a wing in a slipstream .", "text": "an experimental study ."},
        {"docno": "2", "title": "", "text": ""},
        {"docno": "3", "title": "shear", "text": "another beginning"},
    ]
    assert found.get_topics().to_numpy().tolist() == [["1", "what laws ?"], ["2", "what problems ?"]]  # by place
    assert found.get_qrels().to_numpy().tolist() == [["1", "1", 4], ["1", "3", 1], ["2", "3", 0]]
    assert found.texts(["1", "2"]) == {"1": "a wing in a slipstream .\nan experimental study .", "2": ""}
    assert read_cranfield(tmp_path / "cran.tar.gz").documents == found.documents


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("cran.qry", None, "no complete archive of the Cranfield collection.*cran.qry"),
        ("cran.qry", "", "cran.qry is empty"),
        ("cran.qry", "stray\n.I 1\n.W\nwhat\n", "cran.qry, line 1: .*'stray'"),
        ("cran.all.1400", ".I 1\nstray\n", "cran.all.1400, line 2: .*'stray'"),
        ("cranqrel", "1 1 1\n1 1 5\n", "cranqrel, line 2: .*'1 1 5'"),
        ("cranqrel", "1 1\n", "cranqrel, line 1: .*'1 1'"),
        ("cranqrel", "3 1 1\n", "the qid '3', which does not exist"),
    ],
)
def test_cranfield_damaged(tmp_path: Path, file: str, content: str | None, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_cranfield(cranfield(tmp_path, **{file: content}))


def test_cranfield_cut_short(tmp_path: Path) -> None:
    archive = cranfield(tmp_path) / "cran.tar.gz"
    archive.write_bytes(archive.read_bytes()[:-60])
    with pytest.raises(ValueError, match="no complete archive of the Cranfield collection"):
        read_cranfield(archive)
    archive.unlink()
    with pytest.raises(FileNotFoundError):
        read_cranfield(tmp_path)


def test_cranfield_of_ir_datasets_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ir_datasets.datasets.cranfield import CranfieldQrels

    class Judgments:
        qrels_iter = CranfieldQrels.qrels_iter

        class _qrels_dlc:  # noqa: N801
            @staticmethod
            def stream() -> io.BytesIO:
                return io.BytesIO(CRANFIELD["cranqrel"].encode())

    dataset = type(
        "Dataset", (), {"docs_cls": lambda: ir_datasets.formats.GenericDoc, "qrels_iter": Judgments().qrels_iter}
    )
    monkeypatch.setattr(ir_datasets, "load", lambda _: dataset)
    found = DatasetTexts("irds:cranfield").get_qrels()
    assert found["label"].tolist() == read_cranfield(cranfield(tmp_path)).get_qrels()["label"].tolist()
    assert DatasetTexts("irds:other").get_qrels()["label"].tolist() == [1, 4, -1]


def test_passages_of_a_dataset() -> None:
    texts = DatasetTexts("irds:pyterrier-graph/numpydoc/numpy/test")
    corpus = {document["docno"]: document["text"] for document in texts.get_corpus_iter(verbose=False)}
    assert set(texts.get_qrels()["docno"]) <= corpus.keys() and all("%p" in docno for docno in corpus)
    some = list(corpus)[5:500:40]
    assert texts.texts(some) == {docno: corpus[docno] for docno in some}


# --- the experiment


class Matches(pt.Transformer):
    """Finds documents in the order of the collection, those first that have a word of the query."""

    def __init__(self, corpus: Any) -> None:
        self.corpus = corpus

    def transform(self, topics: pd.DataFrame) -> pd.DataFrame:
        documents = pd.DataFrame(self.corpus.get_corpus_iter(verbose=False))
        found = topics.merge(documents, how="cross")
        shared = [len(set(q.split()) & set(t.split())) for q, t in zip(found["query"], found["text"], strict=True)]
        return pt.model.add_ranks(found.assign(score=shared)).drop(columns=["title", "text"])


@pytest.fixture(autouse=True)
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_reranking, "index_bm25", lambda corpus, *_: Matches(corpus))


@pytest.fixture
def toy() -> TextCollection:
    documents = [{"docno": f"{row.docno}", "title": "", "text": row.text} for row in RUN.itertuples()]
    return TextCollection("toy", documents, RUN[["qid", "query"]].drop_duplicates().reset_index(drop=True), QRELS)


def options(folder: Path, *more: str) -> Any:
    words = (
        f"--checkpoint {cross_encoder()} --candidates 12 --folds 3 --max-length 32 --epochs 1 --pairs 4 --batch 4 "
        f"--learning-rate 0.01 --encoder-learning-rate 0.01 --init identity --output {folder}"
    )
    return text_reranking.parser().parse_args([*words.split(), *more])


def test_the_table(toy: TextCollection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = ["--systems", *text_reranking.SYSTEMS, "--layers", "1", "all", "--seeds", "0", "3", "--query-length", "1"]
    table = text_reranking.run(toy, options(tmp_path, *more))
    trained = ["cross-encoder", "cross-encoder, max passage", "LGRe, layers 1", "LGRe, layers all"]
    assert table["system"].tolist() == ["BM25", "start", *trained] * 2
    assert table["queries"].unique().tolist() == ["all (6)", "length <= 1 (6)"]
    measures = [str(measure) for measure in text_reranking.MEASURES]
    assert table.columns.tolist() == ["queries", "system", *measures]
    assert table["P@20"].str.contains("±").tolist() == [False, False, True, True, True, True] * 2
    assert table.iloc[:6, 2:].to_numpy().tolist() == table.iloc[6:, 2:].to_numpy().tolist()
    written = pd.read_csv(tmp_path / "results.csv", dtype=str)
    pd.testing.assert_frame_equal(written, table.astype(str), check_dtype=False)
    per_query = pd.read_csv(tmp_path / "per_query.csv")
    assert len(per_query) == len(measures) * 6 * (2 + 2 * 4)
    short = per_query[per_query["measure"] == "nDCG@10"].groupby(["name", "seed"])["value"].mean()
    assert short["cross-encoder", 0] == pytest.approx(short["cross-encoder, max passage", 0])  # nothing to cut
    assert short["cross-encoder", 0] != short["cross-encoder", 3]

    # what is there is not made again: a fold that is missing is
    made: list[int] = []
    fit = CrossEncoderReranker.fit
    monkeypatch.setattr(CrossEncoderReranker, "fit", lambda self, *data: made.append(self.seed) or fit(self, *data))
    monkeypatch.setattr(LGReReranker, "fit", lambda *_: pytest.fail("trained again"))
    (tmp_path / "runs" / "cross-encoder-3" / "fold2.csv.gz").unlink()
    again = text_reranking.run(toy, options(tmp_path, *more))
    pd.testing.assert_frame_equal(again, table)
    assert made == [3]
    with pytest.raises(ValueError, match="holds runs of another cross-validation"):
        text_reranking.run(toy, options(tmp_path, *more, "--pairs", "5"))


def test_choices_of_tables_3_and_4(tmp_path: Path) -> None:
    chosen = options(tmp_path, "--systems", "lgre", "--words", "full", "bipartite", "--distances", "none", "pair")
    made = text_reranking.systems(chosen, cross_encoder())
    assert list(made) == [f"LGRe, words {w}, distance {d}" for w in ("full", "bipartite") for d in ("none", "pair")]
    found: Any = made["LGRe, words bipartite, distance pair"](7)
    assert (found.words, found.training.loss.distance, found.seed, found.training.seed) == ("bipartite", "pair", 7, 7)
    assert (found.init, found.training.pairs_per_epoch, found.max_length) == ("identity", 4, 32)
    assert found.network.layers == (0, 1, 2)
    assert text_reranking.slug("2 < length <= 4") != text_reranking.slug("length > 4")


def test_all_see_the_same_pairs(toy: TextCollection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[Any]] = {}
    call = PairCollator.__call__

    def noted(self: PairCollator, pairs: Any) -> Any:
        seen[current].append([(self.queries[row], self.documents[row]) for pair in pairs for row in pair])
        return call(self, pairs)

    monkeypatch.setattr(PairCollator, "__call__", noted)
    chosen = options(tmp_path, "--systems", "cross-encoder", "lgre", "--epochs", "2")
    task = text_reranking.prepare(toy, chosen, None)
    for current, make in text_reranking.systems(chosen, cross_encoder()).items():  # noqa: B007
        seen[current] = []
        make(5).fit(task.candidates, task.qrels)  # type: ignore[attr-defined]
    assert len(seen["LGRe"]) == 2
    assert seen["LGRe"] == seen["cross-encoder"]


def test_training_within_groups(tmp_path: Path) -> None:
    queries = [(f"q{n}", " ".join(tiny.WORDS[n : n + 1 + n % 2 * 2])) for n in range(10)]
    documents = [{"docno": word, "title": word, "text": "mu"} for word in tiny.WORDS]
    qrels = pd.DataFrame([(qid, query.split()[0], 1) for qid, query in queries], columns=["qid", "docno", "label"])
    toy = TextCollection("toy", documents, pd.DataFrame(queries, columns=["qid", "query"]), qrels)
    more = ["--systems", "cross-encoder", "--within-groups", "--query-length", "2"]
    table = text_reranking.run(toy, options(tmp_path, *more))
    assert table["queries"].tolist() == ["length <= 2 (5)"] * 2 + ["length > 2 (5)"] * 2
    for group in ("length-to-2", "length-over-2"):
        folder = tmp_path / "runs" / group / "cross-encoder-0"
        assert len(list(folder.glob("fold*"))) == 5  # of five queries, one each


def test_adaptation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = "irds:pyterrier-graph/numpydoc/numpy/dev"
    more = [
        "--adapt",
        dataset,
        "--adapt-queries",
        "3",
        "--adapt-candidates",
        "4",
        "--adapt-pairs",
        "6",
        "--max-length",
        "16",
    ]
    chosen = options(tmp_path, *more)
    start = text_reranking.adapted(chosen, tmp_path)
    monkeypatch.setattr(CrossEncoderReranker, "fit", lambda *_: pytest.fail("trained again"))
    assert text_reranking.adapted(chosen, tmp_path) == start
    adapted = scores(reranker(start))
    assert not np.allclose(adapted, scores(reranker()), atol=1e-3)
    np.testing.assert_allclose(scores(lgre(model=start, init="identity")), adapted, atol=1e-5)
    with pytest.raises(pytest.fail.Exception):
        text_reranking.adapted(options(tmp_path, *more, "--adapt-pairs", "7"), tmp_path)


def test_a_run_instead_of_an_index(toy: TextCollection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_reranking, "index_bm25", lambda *_: pytest.fail("indexed"))
    run = RUN.assign(score=-RUN.index.to_numpy(dtype=float))
    pt.io.write_results(pt.model.add_ranks(run)[["qid", "docno", "rank", "score"]], str(tmp_path / "run.txt"))
    chosen = options(tmp_path, "--run", str(tmp_path / "run.txt"), "--candidates", "2", "--queries", "4")
    folds = [{"t0", "t1"}, {"t2", "t3"}, {"t4", "t5"}]
    task = text_reranking.prepare(toy, chosen, folds)
    assert task.candidates["docno"].tolist() == [
        f"d{qid[1:]}-{place}" for qid in task.topics["qid"] for place in range(2)
    ]
    assert task.topics["qid"].nunique() == 4 == sum(map(len, task.folds))
    assert task.candidates["text"].tolist() == [toy.texts([docno])[docno] for docno in task.candidates["docno"]]
    lacking = TextCollection("lacking", toy.documents[:5], toy.topics, QRELS.iloc[:0])
    with pytest.raises(KeyError, match="31 candidates are not in the collection: d0-5, d1-0"):
        text_reranking.with_texts(run, lacking)


def test_passages_are_not_cut(tmp_path: Path) -> None:
    task = text_reranking.Task(RUN, QRELS.assign(docno="d%p0"), [])
    with pytest.raises(SystemExit, match="leave out max-passage"):
        text_reranking.passages_of(task)


@pytest.mark.parametrize(("script", "ids"), [("robust04", 1), ("webtrack", 4)])
def test_examples(script: str, ids: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip(script)
    seen = []
    monkeypatch.setattr(
        text_reranking, "run", lambda collection, options, folds: seen.append((collection, options, folds))
    )
    folds_of = text_reranking.folds_of
    monkeypatch.setattr(text_reranking, "folds_of", lambda dataset: [dataset])  # these would be downloaded
    text_reranking.main(module.DEFAULTS, [])
    monkeypatch.setattr(text_reranking, "folds_of", folds_of)
    collection, found, folds = seen[0]
    assert len(collection.datasets) == ids
    assert found.candidates in (100, 150)
    assert folds == (["irds:disks45/nocr/trec-robust-2004"] if ids == 1 else None)
    text_reranking.main(module.DEFAULTS, ["--dataset", "irds:pyterrier-graph/numpydoc/numpy/test"])
    assert (seen[1][0].ids, seen[1][2]) == (["pyterrier-graph/numpydoc/numpy/test"], None)
    with pytest.raises(SystemExit, match="name a dataset"):
        text_reranking.main([], [])


# --- one table for several seeds


def test_a_mean_over_seeds_of_equal_values_is_no_difference() -> None:
    values = {f"q{n}": (0.05, 0.1, 0.2)[n % 3] for n in range(9)}  # a mean of three of each is a little larger
    rows = [("one", qid, "P@20", value, 0) for qid, value in values.items()]
    rows += [("same", qid, "P@20", value, seed) for qid, value in values.items() for seed in range(3)]
    table = summarize(pd.DataFrame(rows, columns=["name", "qid", "measure", "value", "seed"]), "one")
    assert table["P@20"].tolist() == ["0.117", "0.117 ± 0.000"]


def test_summary() -> None:
    base = np.random.default_rng(0).random(30) * 0.5
    rows = [
        {"name": name, "qid": f"q{n}", "measure": "AP", "value": base[n] + gain + 0.02 * seed, "seed": seed}
        for name, gain, seeds in (("one", 0.0, 1), ("same", 0.0, 1), ("better", 0.2, 3), ("worse", -0.1, 1))
        for seed in range(seeds)
        for n in range(30)
    ]
    for row in rows:
        row["value"] += 0.01 * (row["qid"][-1] in "02468") * (row["name"] not in ("one", "same"))
    table = summarize(pd.DataFrame(rows), "one")["AP"]
    assert table["one"] == table["same"] == f"{base.mean():.3f}"
    assert table["better"] == f"{base.mean() + 0.225:.3f} ± 0.020+"
    assert table["worse"].endswith("-")


def test_options_are_shared() -> None:
    assert LGReTraining().pairs_per_epoch == CrossEncoderTraining().pairs_per_epoch
    assert LGReTraining().encoder_learning_rate == CrossEncoderTraining().encoder_learning_rate
