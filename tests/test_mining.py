"""HardNegativeMiner: which documents become examples, what is kept on disk, and what is refused."""

from __future__ import annotations

import gc
import inspect
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import ir_datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyterrier as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_lgre_reranker import QRELS, RUN, cross_encoder

from pyterrier_graph.documents import Node, StructuredDocument
from pyterrier_graph.graphs import MemoryGraph
from pyterrier_graph.rerank.cross_encoder import CrossEncoderReranker
from pyterrier_graph.training.mining import HardNegativeMiner, TrainingExamples

# --- a world of rankings, texts and scores


class Ranking(pt.Transformer):
    """Finds for each query what a list says, best first."""

    def __init__(self, rankings: dict[str, list[str]]) -> None:
        self.rankings = rankings
        self.sizes: list[int] = []

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        self.sizes.append(len(inp))
        rows = [(qid, d, -float(n)) for qid in inp["qid"] for n, d in enumerate(self.rankings.get(qid, []))]
        found = pd.DataFrame(rows, columns=["qid", "docno", "score"]).astype({"qid": str, "docno": str})
        return pt.model.add_ranks(found).sample(frac=1, random_state=0)  # the order of rows says nothing


class Texts(pt.Transformer):
    """Texts by docno."""

    def __init__(self, texts: dict[str, Any]) -> None:
        self.texts = texts

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        return inp.assign(text=pd.Series([self.texts[docno] for docno in inp["docno"]], inp.index, dtype=object))


class Teacher(pt.Transformer):
    """Scores by query and text, and counts; returns rows in another order and no more columns than it has to."""

    def __init__(self, scores: dict[tuple[str, str], float], patience: float = math.inf) -> None:
        self.scores = scores
        self.asked: list[tuple[str, str]] = []
        self.patience = patience

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        self.patience -= 1
        if self.patience < 0:
            raise KeyboardInterrupt
        pairs = list(zip(inp["query"], inp["text"], strict=True))
        self.asked += pairs
        return inp[["qid", "docno"]].assign(score=[self.scores[pair] for pair in pairs])[::-1]


def world(seed: int = 0, queries: int = 40, documents: int = 30) -> dict[str, Any]:
    """Queries, of which two have the same text; a few documents have the same text, and one has none."""
    random = np.random.default_rng(seed)
    texts = {f"d{n}": f"text {n - n % 10 // 9}" for n in range(documents)} | {"d5": " "}
    topics = pd.DataFrame([(f"q{n}", f"query {n or 1}") for n in range(queries)], columns=["qid", "query"])
    rankings = {qid: random.permutation(list(texts)).tolist() for qid in topics["qid"]}
    scores = {
        (query, text): random.choice([0.0, 0.05, 0.1, 0.5, 0.9, 0.95, 1.0])
        for query in topics["query"].unique()
        for text in dict.fromkeys(texts.values())
    }
    rows = [(qid, d, random.integers(-1, 3)) for qid in topics["qid"][::2] for d in random.choice(list(texts), 3)]
    qrels = pd.DataFrame([*rows, ("q1", "d5", 1), ("q1", "d8", 1), ("q1", "d9", 2)], columns=["qid", "docno", "label"])
    return {"texts": texts, "topics": topics, "rankings": rankings, "scores": scores, "qrels": qrels}


WORLD = world()
TOPICS, JUDGMENTS = WORLD["topics"], WORLD["qrels"]


def miner(of: dict[str, Any] = WORLD, teacher: Any = "scores", **options: Any) -> HardNegativeMiner:
    teacher = Teacher(of["scores"]) if teacher == "scores" else teacher
    return HardNegativeMiner(
        Ranking(of["rankings"]),
        Texts(of["texts"]),
        teacher=teacher,
        **{"hard_negatives": 2, "verbose": False} | options,
    )


def rows(examples: TrainingExamples) -> list[list[str]]:
    return examples.ids.to_pandas().to_numpy().tolist()


def count(examples: TrainingExamples, of: str, outcome: str) -> int:
    return int(examples.report.loc[(of, outcome), "count"])


# --- which documents become examples


def literal_examples(of: dict[str, Any], pseudo: bool, n: int, s_pos: float, s_neg: float, best: int | None) -> Any:
    """The rows, one query and document at a time; and the number of candidates by what became of them."""
    expected, became = [], defaultdict(int)
    relevant = defaultdict(list)
    for qid, docno, label in of["qrels"].itertuples(index=False):
        if label > 0 and docno not in relevant[qid]:
            relevant[qid].append(docno)
    for qid, query in of["topics"].itertuples(index=False):
        if not pseudo and not relevant[qid]:
            continue
        seen = [of["texts"][docno] for docno in relevant[qid]]
        positives, negatives = [], []
        if not pseudo:
            for place, docno in enumerate(relevant[qid]):
                if seen[place].strip() and seen[place] not in seen[:place]:
                    positives.append((1.0, docno))
        for docno in of["rankings"][qid]:
            text = of["texts"][docno]
            if docno in relevant[qid]:
                became["judged relevant"] += 1
                continue
            if not text.strip():
                became["no text"] += 1
                continue
            if text in seen:
                became["same text as another"] += 1
                continue
            seen.append(text)
            score = of["scores"][query, text]
            if score < s_neg:
                negatives.append(docno)
            elif score > s_pos and pseudo:
                positives.append((score, docno))
            else:
                became["score above" if score > s_pos else "score between"] += 1
        chosen = sorted(positives, key=lambda pair: -pair[0])[:best] if pseudo else positives
        if chosen and len(negatives) >= n:
            found = [[qid, docno, *negatives[:n]] for score, docno in positives if (score, docno) in chosen]
            expected += found
            became["negative"] += n
            became["not used"] += len(negatives) - n
            became["positive"] += len(found) * pseudo
            became["score above"] += (len(positives) - len(found)) * pseudo
        else:
            became["not used"] += len(negatives)
            became["score above"] += len(positives) * pseudo
    return expected, became


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 1000),
    pseudo=st.booleans(),
    n=st.integers(0, 6),
    thresholds=st.sampled_from([(0.9, 0.1), (0.5, 0.1), (0.95, 0.05), (0.5, 0.4), (0.9, 0.06)]),
    best=st.sampled_from([None, 1, 2]),
    batch_size=st.sampled_from([2, 5, 64]),
)
def test_examples_against_a_literal_loop(
    seed: int, pseudo: bool, n: int, thresholds: tuple[float, float], best: int | None, batch_size: int
) -> None:
    of = world(seed, queries=12, documents=20)
    expected, became = literal_examples(of, pseudo, n, *thresholds, best)
    options = {"positive_threshold": thresholds[0], "negative_threshold": thresholds[1], "pseudo_positives": best}
    made = miner(of, hard_negatives=n, batch_size=batch_size, **options)
    if not expected:
        with pytest.raises(ValueError, match="there are no training examples"):
            made.pseudo_labeled(of["topics"], of["qrels"]) if pseudo else made.labeled(of["topics"], of["qrels"])
        return
    examples = made.pseudo_labeled(of["topics"], of["qrels"]) if pseudo else made.labeled(of["topics"], of["qrels"])
    assert rows(examples) == expected
    if pseudo or n:
        found = {outcome: number for outcome, number in examples.report.loc["candidates", "count"].items() if number}
        assert found == {
            f"{outcome} {thresholds[0]}" if outcome == "score above" else outcome: number
            for outcome, number in became.items()
            if number
        }
    assert examples.report.loc["queries", "count"].sum() == 12
    assert count(examples, "positives", "kept") == len(examples)
    assert count(examples, "queries", "kept") == len({row[0] for row in expected})


def test_columns_and_texts() -> None:
    examples = miner().labeled(TOPICS, JUDGMENTS)
    assert examples.dataset.column_names == ["query", "positive", "negative_1", "negative_2"]
    assert examples.ids.column_names == ["qid", "positive_docno", "negative_1_docno", "negative_2_docno"]
    queries = TOPICS.set_index("qid")["query"]
    for texts, (qid, *docnos) in zip(examples.dataset.to_pandas().to_numpy().tolist(), rows(examples), strict=True):
        assert texts == [queries[qid], *(WORLD["texts"][docno] for docno in docnos)]
    assert len(examples) == len(examples.dataset) > 10
    assert "queries    kept" in str(examples.report)
    bare = miner(hard_negatives=0).labeled(TOPICS, JUDGMENTS)
    assert (bare.dataset.column_names, bare.ids.column_names) == (["query", "positive"], ["qid", "positive_docno"])


def test_judged_positives_stay_whatever_the_teacher_thinks() -> None:
    of = WORLD | {"scores": dict.fromkeys(WORLD["scores"], 0.0)}
    teacher = Teacher(of["scores"])
    examples = miner(of, teacher).labeled(TOPICS, JUDGMENTS)
    relevant = JUDGMENTS[(JUDGMENTS["label"] > 0) & (JUDGMENTS["docno"] != "d5")]
    assert {tuple(row[:2]) for row in rows(examples)} <= set(zip(relevant["qid"], relevant["docno"], strict=True))
    assert count(examples, "queries", "too few negatives") == 0
    assert (count(examples, "positives", "no text"), count(examples, "positives", "same text as another")) == (1, 1)
    judged = {(TOPICS.set_index("qid")["query"][qid], WORLD["texts"][docno]) for qid, docno, *_ in rows(examples)}
    of_one_query = {pair for pair in judged if pair[0] != "query 1"}  # which two queries have
    assert of_one_query.isdisjoint(teacher.asked)


def test_without_a_teacher_all_that_is_not_relevant_is_negative() -> None:
    of = WORLD | {"scores": dict.fromkeys(WORLD["scores"], 0.0)}
    assert rows(miner(of, None).labeled(TOPICS, JUDGMENTS)) == rows(miner(of).labeled(TOPICS, JUDGMENTS))
    with pytest.raises(ValueError, match="pseudo-labels come from a teacher"):
        miner(teacher=None).pseudo_labeled(TOPICS)


def test_judgments_of_queries_that_are_pseudo_labeled() -> None:
    sure = WORLD | {"scores": {pair: float(pair[1] != "text 3") for pair in WORLD["scores"]}}
    qrels = pd.DataFrame({"qid": ["q7", "q8"], "docno": ["d4", "d3"], "label": [1, 1]})
    before = rows(miner(sure, hard_negatives=1).pseudo_labeled(TOPICS))
    after = rows(miner(sure, hard_negatives=1).pseudo_labeled(TOPICS, qrels))
    assert [row for row in before if row not in after] == [
        row for row in before if row[0] == "q8" or row[:2] == ["q7", "d4"]
    ]
    assert ["q7", "d4", "d3"] in before and any(row[0] == "q8" for row in before)


def test_places_that_are_left_are_drawn_from_the_rest() -> None:
    of = WORLD | {
        "scores": {pair: 0.5 * (int(pair[1].split()[1]) % 3 == 0) for pair in WORLD["scores"] if pair[1] != " "}
    }
    options = {"hard_negatives": 3, "depth": 2}
    made = miner(of, **options).labeled(TOPICS, JUDGMENTS)
    assert count(made, "candidates", "negative, drawn") > 10
    relevant = JUDGMENTS[JUDGMENTS["label"] > 0].groupby("qid")["docno"].agg(set)
    places = []
    for qid, _, *negatives in rows(made):
        found = [WORLD["rankings"][qid].index(docno) for docno in negatives]
        top = [place for place in found if place < 2]
        assert found[: len(top)] == sorted(top) and len(set(found)) == 3
        places += found[len(top) :]
        assert not relevant[qid] & {*negatives}
        assert all(int(WORLD["texts"][docno].split()[1]) % 3 for docno in negatives)  # what the teacher says of them
    assert len(set(places)) > 8  # of 28

    def mined(topics: pd.DataFrame, **more: int) -> list[list[str]]:
        return sorted(rows(miner(of, **options, **more).labeled(topics, JUDGMENTS.sort_values("docno"))))

    assert mined(TOPICS) == mined(TOPICS[::-1], batch_size=3) == sorted(rows(made))
    assert mined(TOPICS, seed=1) != mined(TOPICS)
    assert "negative, drawn" not in miner(depth=20).pseudo_labeled(TOPICS).report.loc["candidates"].index


def of_documents(seed: int, documents: int = 5, queries: int = 12) -> tuple[dict[str, Any], MemoryGraph]:
    """A world of passages, and the graph of their documents; the last document has one passage."""
    random = np.random.default_rng(seed)
    sizes = [*random.integers(2, 6, documents - 1), 1]
    texts = {f"d{d}%p{p}": f"text {d} {p}" for d, size in enumerate(sizes) for p in range(size)}
    made = [
        StructuredDocument(
            f"d{d}", (Node("section", "", -1), *(Node("passage", texts[f"d{d}%p{p}"], 0) for p in range(size)))
        )
        for d, size in enumerate(sizes)
    ]
    topics = pd.DataFrame([(f"q{n}", f"query {n}") for n in range(queries)], columns=["qid", "query"])
    rankings = {qid: random.permutation(list(texts)).tolist() for qid in topics["qid"]}
    scores = {(query, text): random.choice([0.0, 0.5]) for query in topics["query"] for text in texts.values()}
    rows = [(qid, d, 1) for qid in topics["qid"] for d in random.choice(list(texts), random.integers(1, 4))]
    qrels = pd.DataFrame(rows, columns=["qid", "docno", "label"])
    of = {"texts": texts, "topics": topics, "rankings": rankings, "scores": scores, "qrels": qrels}
    return of, MemoryGraph.from_documents(made)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), same=st.integers(0, 3), batch_size=st.sampled_from([2, 64]))
def test_negatives_of_the_same_document(seed: int, same: int, batch_size: int) -> None:
    """As many as asked for where the documents have them; the best candidates take the other places."""
    of, graph = of_documents(seed)
    options: dict[str, Any] = {"hard_negatives": 3, "same_document": same, "graph": graph, "batch_size": batch_size}
    examples = miner(of, None, **options).labeled(of["topics"], of["qrels"])
    relevant = of["qrels"].groupby("qid")["docno"].agg(set)
    used = {}
    for qid, positive, *negatives in rows(examples):
        documents = {docno.split("%")[0] for docno in relevant[qid]}
        wrong = [docno for docno in of["rankings"][qid] if docno not in relevant[qid]]
        neighbors = [docno for docno in wrong if docno.split("%")[0] in documents]
        used[qid] = min(same, len(neighbors))
        first, rest = negatives[: used[qid]], negatives[used[qid] :]
        assert positive in relevant[qid] and {*first} <= {*neighbors} and len({*negatives}) == 3
        assert rest == [docno for docno in wrong if docno not in first][: len(rest)]
    assert {*used} == {*of["topics"]["qid"]}
    report = examples.report["count"]
    assert report.get(("candidates", "negative, same document"), 0) == sum(used.values())
    assert rows(miner(of, None, **options).labeled(of["topics"], of["qrels"])) == rows(examples)


def test_a_teacher_scores_negatives_of_the_same_document() -> None:
    of, graph = of_documents(0)
    options: dict[str, Any] = {"hard_negatives": 2, "same_document": 2, "graph": graph, "verbose": False}
    made = miner(of, **options)
    examples = made.labeled(of["topics"], of["qrels"])
    assert 0 < count(examples, "candidates", "negative, same document") < 2 * count(examples, "queries", "kept")
    for qid, _, *negatives in rows(examples):
        assert all(of["scores"][f"query {qid[1:]}", of["texts"][docno]] < 0.1 for docno in negatives)
    without = miner(of, **{**options, "same_document": 0})
    pseudo = {"positive_threshold": 0.4, "negative_threshold": 0.3}
    assert rows(miner(of, **options, **pseudo).pseudo_labeled(of["topics"])) == rows(
        miner(of, **{**options, "same_document": 0}, **pseudo).pseudo_labeled(of["topics"])
    )
    assert rows(without.labeled(of["topics"], of["qrels"])) != rows(examples)


def test_negatives_of_the_same_document_need_a_graph_and_judged_passages() -> None:
    of, graph = of_documents(0)
    with pytest.raises(ValueError, match="same_document needs graph="):
        miner(of, same_document=1)
    with pytest.raises(ValueError, match="same_document=3 is more than hard_negatives=2"):
        miner(of, same_document=3, graph=graph)
    with pytest.raises(TypeError, match="a DocumentGraph"):
        miner(of, same_document=1, graph="folder")
    documents = of["qrels"].assign(docno="d0")
    of = of | {"texts": of["texts"] | {"d0": "whole"}, "rankings": {qid: ["d0", "d1"] for qid in of["rankings"]}}
    with pytest.raises(ValueError, match="needs judgments of passages .docno%pN., qrels judge 'd0'"):
        miner(of | {"texts": of["texts"] | {"d1": "other"}}, None, same_document=1, graph=graph).labeled(
            of["topics"], documents
        )


def test_too_few_negatives() -> None:
    few = WORLD | {"rankings": {qid: ranking[: int(qid[1:]) % 5] for qid, ranking in WORLD["rankings"].items()}}
    made = miner(few, None).labeled(TOPICS, JUDGMENTS)
    assert 0 < count(made, "queries", "kept") < 20
    assert count(made, "queries", "too few negatives") > 0
    assert {int(row[0][1:]) % 5 for row in rows(made)} <= {2, 3, 4}
    nothing = Ranking({})
    bare = HardNegativeMiner(nothing, Texts(WORLD["texts"]), hard_negatives=0).labeled(TOPICS, JUDGMENTS)
    assert nothing.sizes == [] and count(bare, "queries", "too few negatives") == 0


# --- on disk


def interrupted(folder: Path, after: int) -> Teacher:
    teacher = Teacher(WORLD["scores"], patience=after)
    with pytest.raises(KeyboardInterrupt):
        miner(teacher=teacher, folder=folder, batch_size=8).pseudo_labeled(TOPICS)
    return teacher


def test_a_run_that_was_killed_goes_on(tmp_path: Path) -> None:
    whole = Teacher(WORLD["scores"])
    expected = miner(teacher=whole, batch_size=8).pseudo_labeled(TOPICS)
    first = interrupted(tmp_path / "some" / "where", after=3)
    assert not list(tmp_path.rglob("*.partial")) and not list(tmp_path.rglob("*.arrow"))
    second = Teacher(WORLD["scores"])
    examples = miner(teacher=second, folder=tmp_path / "some" / "where", batch_size=8).pseudo_labeled(TOPICS)
    assert rows(examples) == rows(expected)
    pd.testing.assert_frame_equal(examples.report, expected.report)
    probes = second.asked[:8]
    assert set(probes) <= set(first.asked)
    assert sorted(first.asked + second.asked[8:]) == sorted(whole.asked)
    assert len(set(whole.asked)) == len(whole.asked)  # two queries have the same text


def test_scores_serve_other_thresholds_retrievers_and_corpora(tmp_path: Path) -> None:
    miner(folder=tmp_path).pseudo_labeled(TOPICS)
    teacher = Teacher(WORLD["scores"])
    for options in ({"positive_threshold": 0.5}, {"depth": 10, "hard_negatives": 1}, {"pseudo_positives": 1}):
        miner(teacher=teacher, folder=tmp_path, **options).pseudo_labeled(TOPICS)
    miner(teacher=teacher, folder=tmp_path, depth=10).labeled(TOPICS, JUDGMENTS)
    assert len(teacher.asked) == 4 * 8
    texts = WORLD["texts"] | {"d1": "text 20", "d20": "text 1"}
    teacher = Teacher(WORLD["scores"])
    other = miner(WORLD | {"texts": texts}, teacher, folder=tmp_path).pseudo_labeled(TOPICS)
    assert rows(other) == rows(miner(WORLD | {"texts": texts}).pseudo_labeled(TOPICS))
    assert {text for _, text in teacher.asked[8:]} == {"text 1", "text 20"}
    for file in tmp_path.glob("*.arrow"):
        assert pa.ipc.open_stream(file).read_all().num_rows


def test_another_teacher_is_refused(tmp_path: Path) -> None:
    miner(folder=tmp_path).pseudo_labeled(TOPICS)
    nearly = {pair: min(score + 0.005, 1.0) for pair, score in WORLD["scores"].items()}
    miner(teacher=Teacher(nearly), folder=tmp_path).labeled(TOPICS, JUDGMENTS)
    other = {pair: min(score + 0.02, 1.0) for pair, score in WORLD["scores"].items()}
    with pytest.raises(ValueError, match=r"another teacher: query 'query \d+' and document 'd\d+' have 0.500 there, "):
        miner(teacher=Teacher(other), folder=tmp_path).pseudo_labeled(TOPICS)


def test_killed_before_the_first_score(tmp_path: Path) -> None:
    interrupted(tmp_path, after=0)
    other = WORLD | {"scores": {pair: 1 - score for pair, score in WORLD["scores"].items()}}
    assert rows(miner(other, folder=tmp_path).pseudo_labeled(TOPICS)) == rows(miner(other).pseudo_labeled(TOPICS))


def test_examples_stay_in_a_folder_and_else_with_what_refers_to_them(tmp_path: Path) -> None:
    made = miner(folder=tmp_path)
    one, again, fewer = (made.pseudo_labeled(topics) for topics in (TOPICS, TOPICS, TOPICS[:30]))
    assert len(list(tmp_path.glob("pseudo-labeled-*.arrow"))) == 2
    assert rows(one) == rows(again) != rows(fewer)
    temporary = miner()
    examples = temporary.labeled(TOPICS, JUDGMENTS)
    file = Path(examples.dataset.cache_files[0]["filename"])
    del temporary
    gc.collect()
    assert file.exists() and file.parent != tmp_path
    assert len(examples.dataset[:]["query"]) == len(examples)
    del examples
    gc.collect()
    assert not file.exists()


def test_queries_are_taken_and_written_in_batches(tmp_path: Path) -> None:
    made = miner(folder=tmp_path, batch_size=7)
    examples = made.pseudo_labeled(TOPICS)
    assert made.candidates.sizes == [7, 7, 7, 7, 7, 5]
    assert len(examples.dataset.cache_files) == 1  # mapped, not in memory
    with pa.ipc.open_stream(examples.dataset.cache_files[0]["filename"]) as written:
        sizes = [batch.num_rows for batch in written]
    assert len(sizes) == 6 and sum(sizes) == len(examples)


# --- a teacher that is a cross-encoder


def test_a_cross_encoder_teaches(tmp_path: Path) -> None:
    teacher = CrossEncoderReranker(cross_encoder(), max_tokens=64, device="cpu", probabilities=True)
    texts = RUN.set_index("docno")["text"].to_dict()
    ranking = Ranking({qid: part["docno"].tolist() for qid, part in RUN.groupby("qid")})
    topics = RUN[["qid", "query"]].drop_duplicates()
    thresholds = {"positive_threshold": 0.5, "negative_threshold": 0.4999, "hard_negatives": 1}
    made = HardNegativeMiner(ranking, Texts(texts), teacher=teacher, folder=tmp_path, **thresholds)
    scores = teacher(RUN).set_index("docno")["score"]
    examples = made.pseudo_labeled(topics)
    for _, positive, negative in rows(examples):
        assert scores[positive] > 0.5 > scores[negative]
    assert len(made.labeled(topics, QRELS)) > 0
    teacher.probabilities = False
    with pytest.raises(ValueError, match=r"no probability in \[0, 1\]: use CrossEncoderReranker\(..., probabilities"):
        HardNegativeMiner(ranking, Texts(texts), teacher=teacher, **thresholds).pseudo_labeled(topics)


# --- what is refused


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"hard_negatives": -1}, "hard_negatives must be a whole number, 0 or more, got -1"),
        ({"depth": 0}, "depth must be a whole number, 1 or more, got 0"),
        ({"batch_size": 0}, "batch_size must be a whole number"),
        ({"pseudo_positives": 0}, "pseudo_positives must be a whole number"),
        ({"positive_threshold": 0.1}, "negative_threshold must be from 0 to below 0.1, got 0.1"),
        ({"positive_threshold": 1.5}, "positive_threshold must be from 0 to 1, got 1.5"),
        ({"negative_threshold": -0.5}, "negative_threshold must be from 0 to below 0.9, got -0.5"),
        ({"negative_threshold": math.nan}, "negative_threshold must be a finite number, got nan"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        miner(**options)


@pytest.mark.parametrize(
    ("topics", "qrels", "problem"),
    [
        (TOPICS[:0], JUDGMENTS, "there are no topics"),
        (pd.concat([TOPICS, TOPICS[3:4]]), JUDGMENTS, "topics have query 'q3' twice"),
        (TOPICS.assign(query=[*TOPICS["query"][:-1], " "]), JUDGMENTS, "query 'q39' has no text: ' '"),
        (TOPICS.assign(query=[*TOPICS["query"][:-1], None]), JUDGMENTS, "query 'q39' has no text"),
        (TOPICS, JUDGMENTS[:0], "none of the topics has a relevant document"),
        (TOPICS, JUDGMENTS.assign(label=0), "none of the topics has a relevant document"),
        (TOPICS, JUDGMENTS.assign(qid="other"), "none of the topics has a relevant document"),
    ],
)
def test_topics_and_judgments_that_cannot_be(topics: pd.DataFrame, qrels: pd.DataFrame, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        miner().labeled(topics, qrels)


def test_judgments_of_documents_where_passages_are_retrieved() -> None:
    """All passages of relevant documents would be negatives."""
    passages = {"d1%p0": "alpha", "d1%p1": "beta", "d2%p0": "gamma"}
    made = HardNegativeMiner(Ranking({"q": [*passages]}), Texts(passages | {"d1": "alpha beta"}), verbose=False)
    topics = pd.DataFrame({"qid": ["q"], "query": ["alpha"]})
    with pytest.raises(ValueError, match=r"qrels judge documents \('d1'\), but candidates are passages \('d1%p0'\)"):
        made.labeled(topics, pd.DataFrame({"qid": ["q"], "docno": ["d1"], "label": [1]}))
    assert rows(made.labeled(topics, pd.DataFrame({"qid": ["q"], "docno": ["d1%p0"], "label": [1]})))


@pytest.mark.parametrize("name", ["candidates", "texts", "teacher"])
def test_pipelines_that_are_none(name: str) -> None:
    given = {"candidates": Ranking({}), "texts": Texts({}), "teacher": None} | {name: "index.flex"}
    with pytest.raises(TypeError, match=f"{name} must be a .* got 'index.flex'"):
        HardNegativeMiner(given.pop("candidates"), given.pop("texts"), **given)


@pytest.mark.parametrize("column", ["qid", "query", "docno", "label"])
def test_a_missing_column(column: str) -> None:
    topics, qrels = (frame.drop(columns=column, errors="ignore") for frame in (TOPICS, JUDGMENTS))
    with pytest.raises(pt.validate.InputValidationError, match=column):
        miner().labeled(topics, qrels)
    if column in TOPICS:
        with pytest.raises(pt.validate.InputValidationError, match=column):
            miner().pseudo_labeled(topics)


def test_ids_that_are_numbers() -> None:
    topics, qrels = (f.assign(qid=f["qid"].str[1:].astype(int)) for f in (TOPICS, JUDGMENTS))
    of = WORLD | {"rankings": {qid[1:]: ranking for qid, ranking in WORLD["rankings"].items()}}
    found = [["q" + row[0], *row[1:]] for row in rows(miner(of).labeled(topics, qrels))]
    assert found == rows(miner().labeled(TOPICS, JUDGMENTS))


def without(column: str) -> pt.Transformer:
    return pt.apply.generic(lambda frame: frame.drop(columns=column))


@pytest.mark.parametrize(
    ("stage", "transformer", "problem"),
    [
        ("candidates", Ranking(WORLD["rankings"]) >> without("docno"), "candidates should return .*docno is missing"),
        (
            "candidates",
            Ranking(WORLD["rankings"]) >> pt.apply.score(lambda row: math.nan, drop=False),
            "candidates should return scores that are numbers",
        ),
        ("candidates", Ranking({}), "(?s)there are no training examples:.*no score above 0.9 +40"),
        ("texts", Texts(WORLD["texts"]) >> without("text"), "texts should return docno, text, but text is missing"),
        ("teacher", Teacher(WORLD["scores"]) >> without("score"), "the teacher should return .* score is missing"),
        ("teacher", Teacher(WORLD["scores"]) >> pt.apply.generic(lambda f: f[1:]), "the teacher scores .* as nan"),
        ("teacher", Teacher(dict.fromkeys(WORLD["scores"], math.nan)), r"as nan, which is no probability in \[0, 1\]"),
        ("teacher", Teacher(dict.fromkeys(WORLD["scores"], 1.01)), "query 'query 1', document 'd.*' as 1.01, which"),
        ("teacher", Teacher(dict.fromkeys(WORLD["scores"], -0.01)), "as -0.01, which is no probability"),
        (
            "teacher",
            Teacher(dict.fromkeys(WORLD["scores"], 0.5)),
            r"(?s)there are no training examples:.*queries +kept +0",
        ),
    ],
)
def test_pipelines_that_do_not_return_what_they_should(
    stage: str, transformer: pt.Transformer, problem: str, tmp_path: Path
) -> None:
    made = miner(folder=tmp_path)
    setattr(made, stage, transformer)
    with pytest.raises(ValueError, match=problem):
        made.pseudo_labeled(TOPICS)
    assert not list(tmp_path.glob("*.partial")) and not list(tmp_path.glob("*.arrow"))
    if "probability" in problem:  # nothing of it was kept
        assert len(miner(folder=tmp_path).pseudo_labeled(TOPICS)) > 0


def test_documents_that_texts_does_not_know() -> None:
    loaded = {docno: text for docno, text in WORLD["texts"].items() if docno != "d7"}
    with pytest.raises(KeyError, match="texts does not know a document of candidates or qrels: 'd7'"):
        miner(WORLD | {"texts": loaded}).pseudo_labeled(TOPICS)
    for text in (None, math.nan, 3):
        with pytest.raises(KeyError, match="texts does not know document 'd7'"):
            miner(WORLD | {"texts": loaded | {"d7": text}}).labeled(TOPICS, JUDGMENTS)
    lost = Texts(WORLD["texts"]) >> pt.apply.generic(lambda frame: frame[frame["docno"] != "d7"])
    with pytest.raises(KeyError, match="texts does not know document 'd7'"):
        HardNegativeMiner(Ranking(WORLD["rankings"]), lost, hard_negatives=4).labeled(TOPICS, JUDGMENTS)


def test_queries_from_a_file_and_texts_from_a_dataset(tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("1 alpha beta\n2 gamma\n")
    topics = pt.io.read_topics(str(tmp_path / "more.txt"), "singleline", tokenise=False)
    (tmp_path / "docs.tsv").write_text("".join(f"{docno}\t{text}\n" for docno, text in WORLD["texts"].items()))
    ir_datasets.registry.register("mined", ir_datasets.create_dataset(docs_tsv=str(tmp_path / "docs.tsv")))
    texts = pt.text.get_text(pt.get_dataset("irds:mined"))
    ranking = Ranking({"1": ["d1", "d2"], "2": ["d3", "d4", "d1"]})
    teacher = Teacher({(query, f"text {n}"): float(n == 1) for query in topics["query"] for n in range(5)})
    made = HardNegativeMiner(ranking, texts, teacher=teacher, hard_negatives=1)
    assert rows(made.pseudo_labeled(topics)) == [["1", "d1", "d2"], ["2", "d1", "d3"]]
    assert {query for query, _ in teacher.asked} == {"alpha beta", "gamma"}
    ranking.rankings["1"].append("unlisted")
    with pytest.raises(KeyError, match="texts does not know a document .*unlisted"):
        made.pseudo_labeled(topics)


def test_the_signature_of_examples() -> None:
    assert [*inspect.signature(TrainingExamples).parameters] == ["dataset", "ids", "report"]
