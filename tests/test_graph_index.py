"""GraphIndex: what it finds, what a change writes, and what is left of a change that was killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import tiny
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyterrier_dr import BiEncoder
from trainings import forks

import pyterrier_graph as ptg
from pyterrier_graph.checks import QualityWarning
from pyterrier_graph.search.bm25 import BM25Index, words
from pyterrier_graph.search.document_evidence import node_evidence
from pyterrier_graph.search.hybrid import ALPHA
from pyterrier_graph.search.scores import ranked
from pyterrier_graph.storage import artifact
from pyterrier_graph.storage.artifact import LOCK, META, locked

COLUMNS = ["qid", "docno", "query", "score", "rank", "text", "title"]
TOPICS = pd.DataFrame({"qid": ["1", "2"], "query": ["alpha mu", "kappa iota"]})


def document(docno: str, words: str, title: str = "eta") -> dict[str, str]:
    return {"docno": docno, "title": title, "text": words}


DOCUMENTS = [
    document("d1", "alpha beta gamma mu", "alpha"),
    document("d2", "kappa iota", "beta"),
    document("d3", "mu mu zeta\n\nkappa theta theta theta", "zeta"),
    document("d4", "delta epsilon", "iota"),
]


def made(path: Path, docs: Iterable[Any] = DOCUMENTS, **options: Any) -> ptg.GraphIndex:
    named = {
        name: options.pop(name) for name in ("document", "answered", "overwrite") if name in options
    }
    given = {"encoder": tiny.checkpoint(), "verbose": False} | options
    return ptg.GraphIndex(path, **given).index(docs, passage_words=4, **named)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> ptg.GraphIndex:
    """An index that no test changes."""
    return made(tmp_path_factory.mktemp("shared") / "index")


@pytest.fixture
def index(shared: ptg.GraphIndex, tmp_path: Path) -> ptg.GraphIndex:
    """A copy of it."""
    copy = shutil.copytree(shared.path, tmp_path / "index")
    return ptg.GraphIndex(copy, encoder=tiny.checkpoint(), verbose=False)


def texts_of(index: ptg.GraphIndex) -> dict[str, str]:
    return {row["docno"]: row["text"] for row in index.graph.get_corpus_iter()}


def assert_same(one: ptg.GraphIndex, other: ptg.GraphIndex) -> None:
    """Both indexes have the same passages and rank them in the same way."""
    assert texts_of(one) == texts_of(other)
    for name in ("bm25", "dense", "hybrid"):
        results = [
            getattr(index, name)()(TOPICS).set_index(["qid", "docno"]).sort_index()
            for index in (one, other)
        ]
        assert results[0].index.equals(results[1].index), name
        np.testing.assert_allclose(
            results[0]["score"], results[1]["score"], atol=1e-4, err_msg=name
        )


# --- what is found


TestHybrid = pt.testing.transformer_test_class(lambda: _shared_index().hybrid())
TestBM25 = pt.testing.transformer_test_class(lambda: _shared_index().bm25())
TestDense = pt.testing.transformer_test_class(lambda: _shared_index().dense())


def _shared_index() -> ptg.GraphIndex:
    path = Path(tiny.checkpoint()).with_name(f"index-{os.getpid()}")
    return ptg.GraphIndex(path, verbose=False) if (path / META).is_file() else made(path)


@pytest.mark.parametrize("name", ["bm25", "dense", "hybrid"])
def test_columns(shared: ptg.GraphIndex, name: str) -> None:
    pipeline = getattr(shared, name)
    found = pipeline()(TOPICS)
    assert {*found.columns} == {*COLUMNS}
    assert found["text"].tolist() == [texts_of(shared)[docno] for docno in found["docno"]]
    if name != "dense":  # the encoder is untrained
        best = found[found["rank"] == 0].set_index("qid")
        assert best["docno"].to_dict() == {"1": "d1%p0", "2": "d2%p0"}
    assert len(pipeline(1)(TOPICS)) == len((pipeline() % 1)(TOPICS)) == 2


def test_bm25_reads_titles(shared: ptg.GraphIndex) -> None:
    found = shared.bm25().search("zeta")
    assert {*found["docno"]} == {"d3%p0", "d3%p1"}  # the second has the word in its title only
    assert shared.bm25()(TOPICS[:0]).empty and shared.bm25().search("nowhere").empty


def test_hybrid_is_that_of_its_parts(shared: ptg.GraphIndex) -> None:
    run = ptg.Hybrid(shared.bm25(), shared.dense())(TOPICS)
    scores, nodes = run["score"].to_numpy(), shared.graph.nodes_of(run["docno"].tolist())
    evidence = node_evidence(shared.graph, run["qid"].factorize()[0], nodes, scores)
    expected = ranked(run, scores + 0.3 * evidence["document"] + 0.3 * evidence["order"])
    hybrid = shared.hybrid()(TOPICS)
    pd.testing.assert_frame_equal(
        hybrid[["qid", "docno", "score"]], expected[["qid", "docno", "score"]]
    )
    for count in 1, 3:  # the first results do not depend on how many are wanted
        first = hybrid[hybrid["rank"] < count].reset_index(drop=True)
        pd.testing.assert_frame_equal(shared.hybrid(count)(TOPICS), first)
        pd.testing.assert_frame_equal((shared.hybrid() % count)(TOPICS), first)
    assert "d1%p0" in str(ptg.explain(shared.hybrid(), "alpha mu", "d1%p0"))


def test_hybrid_with_a_pipeline_and_integer_qids(shared: ptg.GraphIndex) -> None:
    index = ptg.GraphIndex(shared.path, lexical=shared.bm25(), verbose=False)
    found = index.hybrid()(TOPICS.astype({"qid": int}))
    expected = shared.hybrid()(TOPICS)
    pd.testing.assert_frame_equal(found, expected)


def test_dense_is_a_graph_mean(shared: ptg.GraphIndex, tmp_path: Path) -> None:
    mean = ptg.GraphMean(shared.graph, tiny.checkpoint(), folder=tmp_path, verbose=False)
    expected = mean.index(tmp_path / "flex").retriever()(TOPICS)
    found = shared.dense()(TOPICS)
    columns = ["qid", "docno", "score"]
    pd.testing.assert_frame_equal(found[columns], expected[columns], check_dtype=False)


def test_questions_without_a_word_have_no_results(shared: ptg.GraphIndex) -> None:
    assert shared.search("?!").empty
    topics = pd.DataFrame({"qid": ["1", "2"], "query": ["?!", "alpha"]})
    for pipeline in shared.bm25(), shared.dense(), shared.hybrid():
        assert {*pipeline(topics)["qid"]} == {"2"} and pipeline(topics[:1]).empty


def test_passages_with_ids(tmp_path: Path) -> None:
    rows = [
        document("x", "alpha beta", "eta") | {"page": "p"},
        document("y", "kappa mu", "eta") | {"page": "p"},
    ]
    index = made(tmp_path / "index", rows, document="page")
    assert index.bm25().search("kappa")["docno"].tolist() == ["y"]
    index.update([document("z", "zeta", "eta") | {"page": "p"}], document="page")
    assert texts_of(index) == {"z": "zeta"}


# --- what a change writes


def test_update_and_delete(index: ptg.GraphIndex, tmp_path: Path, encoded: list[str]) -> None:
    changed = [document("d2", "kappa lambda lambda", "beta"), document("d5", "iota iota", "mu")]
    index.update(changed).delete(["d1"])
    assert index.meta["version"] == 3
    assert {"beta: kappa lambda lambda", "mu: iota iota", "mu"} <= {*encoded}
    assert not any("delta epsilon" in text for text in encoded)
    assert_same(index, made(tmp_path / "fresh", [*DOCUMENTS[2:], *changed]))
    assert_same(index, ptg.GraphIndex(index.path, verbose=False))
    assert len(index.verify()) == len(texts_of(index))


def test_equal_documents_change_nothing(index: ptg.GraphIndex) -> None:
    before = (index.path / META).read_bytes()
    assert index.update(DOCUMENTS[1:3]).meta["version"] == 1
    assert (index.path / META).read_bytes() == before


texts = st.lists(st.sampled_from(tiny.WORDS), min_size=1, max_size=6).map(" ".join)
changes = st.dictionaries(
    st.sampled_from(["d1", "d2", "d3", "d4", "d5", "d6"]), texts | st.none(), max_size=4
)


@settings(
    max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(changes, min_size=1, max_size=2))
@example([{"d1": "alpha"}, {"d1": None}])  # frequencies of words of rows that are gone
def test_any_changes_end_like_a_fresh_index(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any]
) -> None:
    folder = tmp_path_factory.mktemp("changes")
    present = {row["docno"]: row for row in DOCUMENTS}
    index = made(folder / "index")
    for step in steps:
        new = {docno: document(docno, text) for docno, text in step.items() if text is not None}
        present |= new
        index.update([*new.values()])
        if gone := [docno for docno, text in step.items() if text is None and docno in present][
            : len(present) - 1
        ]:
            index.delete(gone)
            present = {docno: row for docno, row in present.items() if docno not in gone}
    assert_same(index, made(folder / "fresh", present.values()))


def test_overwrite(index: ptg.GraphIndex, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match="exists already: GraphIndex.* opens it, update"):
        index.index(DOCUMENTS)
    reader = ptg.GraphIndex(index.path, verbose=False)
    assert reader.meta["version"] == 1
    index.index(DOCUMENTS[:2], passage_words=4, overwrite=True)
    with pytest.raises(ValueError, match="document 'd7'"):
        index.update([{"docno": "d7"}])
    assert len(reader.bm25().search("kappa")) == 2  # until the next change is complete
    assert_same(index, made(tmp_path / "fresh", DOCUMENTS[:2]))
    index.index(DOCUMENTS[:1], passage_words=4, overwrite=True)


def test_open_index_stays_at_its_version(index: ptg.GraphIndex) -> None:
    reader, late = (ptg.GraphIndex(index.path, verbose=False) for _ in range(2))
    before = reader.hybrid()
    expected, number = before(TOPICS), late.meta["version"]
    index.update([document("d9", "alpha mu")])
    pd.testing.assert_frame_equal(before(TOPICS), expected)
    pd.testing.assert_frame_equal(reader.hybrid()(TOPICS), expected)
    assert "d9%p0" in ptg.GraphIndex(index.path, verbose=False).hybrid()(TOPICS)["docno"].tolist()
    index.delete(["d9"])
    assert number == 1 and len(before(TOPICS)) == len(expected)
    with pytest.raises(
        ValueError,
        match="was changed several times, or removed, after it had been opened: open it again",
    ):
        late.search("alpha")


def test_an_index_that_changes_while_it_is_opened(
    index: ptg.GraphIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader sees the new version, not a damaged one."""
    original = artifact._problems

    def changing(path: Path, meta: Any) -> Any:
        monkeypatch.setattr(artifact, "_problems", original)
        index.update([document("d7", "mu")]).delete(["d7"])
        return original(path, meta)

    for read in (ptg.GraphIndex.verify, lambda opened: opened.search("alpha")):
        monkeypatch.setattr(artifact, "_problems", changing)
        assert read(ptg.GraphIndex(index.path, verbose=False)) is not None


def test_files_of_killed_changes_are_removed(index: ptg.GraphIndex) -> None:
    left = [".v2.new/files/graph/texts.u1", "v2/graph/texts.u1", ".removed-v0/x", ".fold-1/x"]
    for name in left:
        (index.path / name).parent.mkdir(parents=True)
        (index.path / name).touch()
    index.update([document("d7", "mu")]).verify()
    assert {path.name for path in index.path.iterdir()} == {"v1", "v2", "encoded", META}


def test_rows_for_other_engines(index: ptg.GraphIndex) -> None:
    rows = [*index.rows()]
    assert {row["docno"]: row["text"] for row in rows} == texts_of(index)
    assert rows[0]["context"] == "alpha: alpha beta gamma mu"
    scores = index.query_vectors(TOPICS) @ np.stack([row["vector"] for row in rows]).T
    expected = index.dense(exact=True)(TOPICS).pivot(index="qid", columns="docno", values="score")
    np.testing.assert_allclose(scores, expected[[row["docno"] for row in rows]], atol=1e-5)
    served = {row["docno"]: row["vector"] for row in rows}
    seen = 1
    for change in (
        lambda: index.update([document("d2", "kappa lambda", "beta"), document("d5", "iota")]),
        lambda: index.update([document("d3", "mu")]).delete(["d1", "d5"]),
        lambda: index.index(DOCUMENTS[:2], passage_words=4, overwrite=True),
    ):
        change()
        gone = index.deleted_since(seen)
        served = {docno: vector for docno, vector in served.items() if docno not in gone}
        served |= {row["docno"]: row["vector"] for row in index.rows(since=seen)}
        seen = index.meta["version"]
        present = {row["docno"]: row["vector"] for row in index.rows()}
        assert served.keys() == present.keys()
        assert all(np.array_equal(served[docno], present[docno]) for docno in present)
    assert not [*index.rows(since=seen)] and not index.deleted_since(seen)


def test_changes_by_several_objects_add_up(index: ptg.GraphIndex) -> None:
    other = ptg.GraphIndex(index.path, verbose=False)
    index.update(
        [document("d5", "mu")],
        answered=(TOPICS, pd.DataFrame({"qid": ["1"], "docno": ["d4"], "label": 1})),
    )
    other.update([document("d6", "mu")])
    assert {"d5%p0", "d6%p0"} <= texts_of(other).keys() and other.version.answered is not None
    index.delete(["d6"])
    assert "d6%p0" not in texts_of(index) and index.meta["version"] == 4


def test_a_wrong_change_has_no_effect(index: ptg.GraphIndex) -> None:
    before, expected = (index.path / META).read_bytes(), index.hybrid()(TOPICS)
    with pytest.raises(KeyError, match="'no'"):
        index.delete(["d1", "no"])
    with pytest.raises(ValueError, match="'d7' comes twice"):
        index.update([document("d7", "mu"), document("d7", "eta")])
    assert (index.path / META).read_bytes() == before
    unchanged = ptg.GraphIndex(index.path, verbose=False).verify().hybrid()
    pd.testing.assert_frame_equal(unchanged(TOPICS), expected)
    index.update([document("d8", "alpha")])
    assert "d7%p0" not in texts_of(index) and "d8%p0" in texts_of(index)


def test_wrong_places(index: ptg.GraphIndex, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="No such file"):
        ptg.GraphIndex(tmp_path / "no").update(DOCUMENTS)
    assert not [*(tmp_path / "no").iterdir()]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("text")
    with pytest.raises(
        FileExistsError, match=r"has other files, such as 'thesis.txt': choose another path"
    ):
        made(tmp_path / "other")
    with pytest.raises(ValueError, match="was made with encoder="):
        ptg.GraphIndex(index.path, encoder=tiny.checkpoint(("alpha",)))
    former = ptg.GraphIndex(tmp_path / "replaced", encoder=tiny.checkpoint(("alpha",)))
    made(tmp_path / "replaced")
    with pytest.raises(ValueError, match="was made with encoder="):
        former.update(DOCUMENTS)
    with pytest.raises(
        ValueError,
        match="lexical must be a pipeline or one of .*'bm25s', 'pisa', 'terrier'",
    ):
        ptg.GraphIndex(index.path, lexical="lucene")  # type: ignore[arg-type]
    with (
        locked(index.path / LOCK),
        pytest.raises(BlockingIOError, match="another process is at work"),
    ):
        index.update([document("d7", "mu")])


def test_documents_without_titles(tmp_path: Path) -> None:
    docs = [{"docno": "d1", "text": "alpha mu"}, {"docno": "d2", "text": "beta"}]
    queries = pd.DataFrame({"qid": [*"123456"], "query": ["alpha"] * 6})
    qrels = queries[["qid"]].assign(docno="d1", label=1)
    index = made(tmp_path / "index", docs, answered=(queries, qrels))
    assert len(index.update([{"docno": "d3", "text": "mu"}]).search("alpha")) == 3


class Far(BiEncoder):
    """An encoder: random vectors, whose mean cosine is 0 at a distance of 0, and nearly 1 far from the origin."""

    def __init__(self, distance: float) -> None:
        super().__init__()
        self.distance, self.model_name = distance, f"far {distance}"

    def encode_docs(self, texts: list[str], batch_size: int | None = None) -> np.ndarray:
        seeds = [zlib.crc32(text.encode()) for text in texts]
        vectors = [np.random.default_rng(seed).normal(size=16) for seed in seeds]
        return (np.reshape(vectors, (-1, 16)) + self.distance).astype(np.float32)

    encode_queries = encode_docs


MANY = [document(f"d{number}", f"{word} mu") for number, word in enumerate(tiny.WORDS * 2)]


def test_vectors_that_are_nearly_alike_count_less(tmp_path: Path) -> None:
    with pytest.warns(QualityWarning, match=r"alike \(mean cosine 0.9.*encoder=") as warned:
        index = made(tmp_path / "far", MANY, encoder=Far(4))
        index.update([document("d30", "mu")])
    assert [warning.filename for warning in warned] == [__file__]
    assert index.meta["settings"]["alpha"] == pytest.approx(0.3 * ALPHA)
    with warnings.catch_warnings():
        warnings.simplefilter("error", QualityWarning)
        near = made(tmp_path / "near", MANY, encoder=Far(0))
        few = made(tmp_path / "few", MANY[:5], encoder=Far(4))
    assert near.meta["settings"]["alpha"] == few.meta["settings"]["alpha"] == ALPHA
    assert abs(near.meta["mean_cosine"]) < 0.1


def test_nothing_is_left_of_a_failed_index(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="d1"):
        made(tmp_path / "index", [DOCUMENTS[0], DOCUMENTS[0]])
    assert not [*(tmp_path / "index").iterdir()]
    assert len(made(tmp_path / "index")) == 5


@forks
@pytest.mark.slow
def test_stress() -> None:
    """In a process of its own, since it forks others."""
    program = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("stress.py"))]
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([*program, "kills", "8", "readers", "30"], check=True, env=os.environ | path)


# --- encoders, engines, queries with answers


def test_answered_queries(index: ptg.GraphIndex, tmp_path: Path) -> None:
    topics = pd.DataFrame({"qid": ["q1", "q2"], "query": ["theta", "nothing"]})
    qrels = pd.DataFrame({"qid": ["q1", "q1"], "docno": ["d4", "d9"], "label": [1, 1]})
    assert "d4%p0" not in index.bm25().search("theta")["docno"].tolist()
    with pytest.warns(ptg.PyTerrierGraphWarning, match="judged docnos .'d9'. not in the graph"):
        index.update([], answered=(topics, qrels))
    assert index.meta["version"] == 2 and "d4%p0" in index.bm25().search("theta")["docno"].tolist()
    assert_same(index, made(tmp_path / "fresh", answered=(topics, qrels)))
    index.update([document("d5", "mu")])
    assert "d4%p0" in index.bm25().search("theta")["docno"].tolist()
    with pytest.raises(KeyError, match="nothing judged is in"):
        index.update([], answered=(topics, qrels.assign(docno="other")))


def test_answers_go_with_their_documents(index: ptg.GraphIndex, tmp_path: Path) -> None:
    qrels = pd.DataFrame({"qid": ["1"], "docno": ["d4"], "label": 1})
    index.update([], answered=(TOPICS, qrels))
    assert len([*index.rows(since=1)]) == len(index)
    index.delete(["d4"])
    assert index.version.answered is None
    assert_same(index, made(tmp_path / "fresh", DOCUMENTS[:3]))


def test_answered_queries_are_encoded_once(
    index: ptg.GraphIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any = type(index.bi_encoder)
    encode, encoded = kind.encode_queries, list[str]()

    def counted(self: Any, texts: list[str], *args: Any, **options: Any) -> Any:
        encoded.extend(texts)
        return encode(self, texts, *args, **options)

    monkeypatch.setattr(kind, "encode_queries", counted)
    names = [f"q{number}" for number in range(10)]
    topics = pd.DataFrame({"qid": names, "query": [f"theta {name}" for name in names]})
    qrels = pd.DataFrame({"qid": names, "docno": "d4", "label": 1})
    index.update([], answered=(topics, qrels))
    assert {*topics["query"]} <= {*encoded}
    encoded.clear()
    index.update([document("d5", "mu mu")])
    # the first one once more, for the dimension
    assert not {*topics["query"][1:]} & {*encoded}


def test_fit(index: ptg.GraphIndex) -> None:
    qrels = pd.DataFrame({"qid": ["1", "2"], "docno": ["d4%p0", "d4%p0"], "label": 1})
    before = index.hybrid()(TOPICS)
    index.fit(TOPICS, qrels)
    settings = index.meta["settings"]
    assert 0 <= settings["alpha"] <= 1 and settings["judged"]
    again = ptg.GraphIndex(index.path, verbose=False).verify()
    pd.testing.assert_frame_equal(again.hybrid()(TOPICS), index.hybrid()(TOPICS))
    assert len(before) == len(again.hybrid()(TOPICS))
    again.meta["settings"] |= {"evidence": {"document": 5.0, "order": 0.1}}
    ranked = again.hybrid().search("alpha mu")
    assert again.hybrid(2).search("alpha mu")["docno"].tolist() == ranked["docno"].tolist()[:2]
    assert again.search("alpha mu", 8)["docno"].tolist() == ranked["docno"].tolist()[:8]
    assert index.update([document("d5", "mu")]).meta["settings"] == settings


def test_graph_mean_and_gnn_encoder(tmp_path: Path) -> None:
    graph = ptg.DocumentGraph(tmp_path / "graph", verbose=False).index(DOCUMENTS, passage_words=4)
    fixed = ptg.GraphMean(graph, tiny.checkpoint(), {"title": 2.0}, verbose=False)
    config = ptg.GNNEncoderConfig(weights={"title": 1.0, "order": 0.5})
    gnn = ptg.GNNEncoder(graph, tiny.checkpoint(), config=config, verbose=False)
    for name, model in {"fixed": fixed, "gnn": gnn}.items():
        made(tmp_path / name, encoder=model)
        index = ptg.GraphIndex(tmp_path / name, encoder=model, verbose=False)
        expected = model.index(tmp_path / f"{name}.flex").retriever()(TOPICS)
        columns = ["qid", "docno", "score"]
        pd.testing.assert_frame_equal(
            index.dense()(TOPICS)[columns], expected[columns], check_dtype=False
        )
        assert len(index.update([document("d5", "mu")])) == 6
    index.encoder = model.encoder
    with pytest.raises(ValueError, match="was made with another model"):
        index.update([document("d6", "mu")])


def test_pisa(tmp_path: Path) -> None:
    pytest.importorskip("pyterrier_pisa")
    index = made(tmp_path / "index", lexical="pisa")
    assert index.bm25().search("zeta")["docno"].tolist() == ["d3%p0", "d3%p1"]
    opened = ptg.GraphIndex(index.path, verbose=False)
    assert opened.update([document("d5", "zeta")]).meta["lexical"] == "pisa"


def test_a_pipeline_instead_of_bm25(tmp_path: Path) -> None:
    run = pd.DataFrame({"qid": ["1", "2"], "docno": ["d4%p0", "d1%p0"], "score": 1.0, "rank": 0})
    index = made(tmp_path / "index", lexical=pt.Transformer.from_df(run))
    assert index.bm25()(TOPICS)["docno"].tolist() == ["d4%p0", "d1%p0"]
    with pytest.raises(ValueError, match="made with a pipeline as lexical=: give it again"):
        ptg.GraphIndex(index.path, verbose=False).bm25()


# --- terms of BM25


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("Ku\u0308hlschrank", "Kühlschrank"),
        ("Kühl\u00adschrank", "Kühlschrank"),
        ("ﬁle", "file"),
        ("東京都に行く", "東京"),
        ("ภาษาไทยง่าย", "ไทย"),
        ("to be or not to be", "to be"),
    ],
)
def test_words_that_look_the_same_are_found(tmp_path: Path, text: str, query: str) -> None:
    index = BM25Index.build(tmp_path / "bm25", ["alpha mu", text, "of the end"])
    assert index.search(query, 10)[1].tolist() == [1]


def test_words() -> None:
    assert words("Don't snake_case 12,5 naïve") == ["don", "t", "snake", "case", "12", "5", "naïve"]
    assert words("東京都") == ["東京", "京都"] and words("東") == ["東"]
    assert words("?! \u200b") == [] == words("")


@settings(max_examples=30, deadline=None)
@given(st.lists(texts, min_size=1, max_size=8), st.sets(st.integers(0, 7)), st.integers(0, 2))
def test_bm25_is_the_equation(
    tmp_path_factory: pytest.TempPathFactory, given_texts: list[str], rows: set[int], added: int
) -> None:
    folder = tmp_path_factory.mktemp("bm25")
    first = BM25Index.build(folder / "first", given_texts)
    reused = np.array(sorted(row for row in rows if row < len(given_texts)), dtype=np.int64)
    new = ["alpha new"] * added
    passages = [*(given_texts[row] for row in reused), *new]
    second = BM25Index.build(folder / "second", new, previous=first, reused=reused)
    for index, corpus in (first, given_texts), (second, passages):
        lengths = [len(text.split()) for text in corpus]
        expected = []
        for text in corpus:
            score = 0.0
            for word in ("alpha", "mu"):
                frequency = text.split().count(word)
                containing = sum(word in other.split() for other in corpus)
                idf = np.log(1 + (len(corpus) - containing + 0.5) / (containing + 0.5))
                norm = 1.2 * (0.25 + 0.75 * len(text.split()) / np.mean(lengths))
                score += idf * frequency / (frequency + norm)
            expected.append(score)
        scores, numbers = index.search("alpha mu", 100)
        assert {*numbers} == {*np.flatnonzero(expected)}
        np.testing.assert_allclose(scores, np.array(expected)[numbers], rtol=1e-5)
        _, best = index.search("alpha mu", 2)  # equal scores have the same order
        assert best.tolist() == numbers[:2].tolist()
