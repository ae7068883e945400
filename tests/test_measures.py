from __future__ import annotations

import math
import pickle
import subprocess
import sys
import unicodedata

import ir_measures
import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st
from ir_measures import AP, nDCG

from pyterrier_graph.evaluation.answers import has_answer
from pyterrier_graph.evaluation.measures import MAPD, PRECD, PRES, AnswerRecall, on_documents
from pyterrier_graph.evaluation.significance import summarize

ALL = [PRES @ 100, MAPD, PRECD, on_documents(PRES @ 100), on_documents(AP @ 100)]


def qrels_of(labels: dict[str, dict[str, int]]) -> pd.DataFrame:
    rows = [
        (query, doc, label) for query, judged in labels.items() for doc, label in judged.items()
    ]
    return pd.DataFrame(rows, columns=["query_id", "doc_id", "relevance"])


def run_of(rankings: dict[str, list[str]]) -> pd.DataFrame:
    rows = [
        (query, doc, -float(rank))
        for query, docs in rankings.items()
        for rank, doc in enumerate(docs)
    ]
    return pd.DataFrame(rows, columns=["query_id", "doc_id", "score"])


def per_topic(measure: ir_measures.Measure, qrels, run) -> dict[str, float]:
    return {
        metric.query_id: metric.value for metric in ir_measures.iter_calc([measure], qrels, run)
    }


def aggregate(measure: ir_measures.Measure, qrels, run) -> float:
    return ir_measures.calc_aggregate([measure], qrels, run)[measure]


# --- equations -------------------------------------------------------------------------------------------------------


def ranked_at(ranks: list[int], relevant: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A topic with so many relevant documents, of which those that are found are at these ranks."""
    docs = [
        f"r{ranks.index(rank)}" if rank in ranks else f"n{rank}"
        for rank in range(1, max(ranks, default=3) + 1)
    ]
    return qrels_of({"q": {f"r{number}": 1 for number in range(relevant)}}), run_of({"q": docs})


@pytest.mark.parametrize(
    ("ranks", "relevant", "cutoff", "pres"),
    [
        ([1], 4, 100, 0.2500),
        ([50, 51, 53, 54], 4, 100, 0.5050),
        ([2, 4], 4, 100, 0.4925),
        ([], 4, 100, 0),
        ([10], 1, 10, 0.1000),
        ([*range(1, 11)], 20, 10, 0.5000),
    ],
)
def test_pres_of_known_rankings(ranks, relevant, cutoff, pres):
    assert aggregate(PRES @ cutoff, *ranked_at(ranks, relevant)) == pytest.approx(pres, abs=5e-5)


def pres_in_words(ranking: list[str], labels: dict[str, int], cutoff: int, minimum: int) -> float:
    """As Magdy and Jones have it: where the missing documents are, then the sum of all ranks."""
    relevant = {doc for doc, label in labels.items() if label >= minimum}
    if not relevant:
        return 0.0  # as trec_eval reports AP
    ranks = [rank for rank, doc in enumerate(ranking[:cutoff], 1) if doc in relevant]
    while len(ranks) < len(relevant):
        ranks.append(cutoff + len(ranks) + 1)
    count = len(relevant)
    return 1 - (sum(ranks) / count - (count + 1) / 2) / cutoff


QUERIES, DOCS = [f"q{number}" for number in range(4)], [f"d{number}" for number in range(12)]
LABELS = st.dictionaries(
    st.sampled_from(QUERIES),
    st.dictionaries(st.sampled_from(DOCS), st.integers(-1, 2), min_size=1),
    min_size=1,
)
SCORES = st.sampled_from(
    [-1.0, 0.0, 0.5, 0.5 + 1e-9, 2.0, math.inf, -math.inf]
)  # few, so that there are ties
RUNS = st.dictionaries(
    st.sampled_from(QUERIES), st.dictionaries(st.sampled_from(DOCS), SCORES, min_size=1)
)
CUTOFFS = st.integers(1, 15)


def in_order(scores: dict[str, float]) -> list[str]:
    """As trec_eval ranks: scores in single precision, then ids, both descending."""
    return sorted(scores, key=lambda doc: (np.float32(scores[doc]), doc), reverse=True)


@given(LABELS, RUNS, CUTOFFS, st.integers(1, 2))
def test_pres_is_the_definition(labels, run, cutoff, minimum):
    expected = {
        query: pres_in_words(in_order(run.get(query, {})), judged, cutoff, minimum)
        for query, judged in labels.items()
    }
    assert per_topic(PRES(rel=minimum) @ cutoff, labels, run) == pytest.approx(expected)


def within_in_words(ranking, labels, minimum, cutoff) -> tuple[float, float]:
    relevant = {doc for doc, label in labels.items() if label >= minimum}
    documents = sorted({doc.split("%p")[0] for doc in relevant})
    if not documents:
        return 0.0, 0.0
    precisions, averages = [], []
    for document in documents:
        passages = [doc for doc in ranking[:cutoff] if doc.split("%p")[0] == document]
        hits, total = 0, 0.0
        for rank, doc in enumerate(passages, 1):
            if doc in relevant:
                hits += 1
                total += hits / rank
        precisions.append(hits / len(passages) if passages else 0)
        averages.append(total / sum(doc.split("%p")[0] == document for doc in relevant))
    return sum(averages) / len(documents), sum(precisions) / len(documents)


PASSAGES = [f"{document}%p{number}" for document in ("A", "A1", "B") for number in range(5)]
PASSAGE_LABELS = st.dictionaries(
    st.sampled_from(QUERIES),
    st.dictionaries(st.sampled_from(PASSAGES), st.integers(-1, 2), min_size=1),
    min_size=1,
)
PASSAGE_RUNS = st.dictionaries(
    st.sampled_from(QUERIES), st.dictionaries(st.sampled_from(PASSAGES), SCORES, min_size=1)
)
LIMITS = st.none() | st.integers(1, 6)
# all passages are retrieved, and two of three are relevant
DENSE_LABELS = {"1": {passage: number % 3 for number, passage in enumerate(PASSAGES)}}
DENSE_RUN = {"1": {passage: float(number) for number, passage in enumerate(PASSAGES)}}


@given(PASSAGE_LABELS, PASSAGE_RUNS, st.integers(1, 2), LIMITS)
@example(DENSE_LABELS, DENSE_RUN, 1, None)
@example(DENSE_LABELS, DENSE_RUN, 2, 9)
def test_within_documents_is_the_definition(labels, run, minimum, cutoff):
    parameters = {"rel": minimum, "cutoff": cutoff}
    parameters = {name: value for name, value in parameters.items() if value is not None}
    expected = {
        query: within_in_words(in_order(run.get(query, {})), judged, minimum, cutoff)
        for query, judged in labels.items()
    }
    mapd, precd = (per_topic(measure(**parameters), labels, run) for measure in (MAPD, PRECD))
    assert {query: (mapd[query], precd[query]) for query in mapd} == {
        query: pytest.approx(values) for query, values in expected.items()
    }


# --- documents of passages -------------------------------------------------------------------------------------------


@given(PASSAGE_LABELS, PASSAGE_RUNS, CUTOFFS)
def test_on_documents_is_the_measure_of_the_documents(labels, run, cutoff):
    best = {
        query: {
            document: max(
                label for passage, label in judged.items() if passage.startswith(f"{document}%")
            )
            for document in {passage.split("%p")[0] for passage in judged}
        }
        for query, judged in labels.items()
    }
    rankings = {
        query: [passage.split("%p")[0] for passage in in_order(scores)]
        for query, scores in run.items()
    }
    documents = run_of({query: [*dict.fromkeys(ranking)] for query, ranking in rankings.items()})
    measures = [
        AP(rel=2) @ cutoff,
        nDCG @ cutoff,
        PRES @ cutoff,
    ]
    values = ir_measures.iter_calc([on_documents(measure) for measure in measures], labels, run)
    expected = ir_measures.iter_calc(measures, best, documents)
    assert {
        (metric.query_id, str(metric.measure)): metric.value for metric in values
    } == pytest.approx(
        {(metric.query_id, str(on_documents(metric.measure))): metric.value for metric in expected}
    )


# --- passages and documents ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "judged", "message"),
    [
        ("A%p1", "A", "the run has passages, such as 'A%p1', .*documents.*graph.fold"),
        ("A", "A%p1", "the run has documents, such as 'A', .*passages.*on_documents"),
    ],
)
def test_another_level_than_that_of_the_judgments_is_warned_about(run, judged, message):
    with pytest.warns(UserWarning, match=message):
        assert aggregate(PRES, qrels_of({"q": {judged: 1}}), run_of({"q": [run]})) == 0


def test_a_summary_with_and_without_seeds():
    rows = [
        (name, qid, "AP", value) for name, value in (("a", 0.5), ("b", 0.25)) for qid in QUERIES
    ]
    per_query = pd.DataFrame(rows, columns=["name", "qid", "measure", "value"])
    assert summarize(per_query, "a")["AP"].to_dict() == {"a": "0.500", "b": "0.250-"}
    seeds = pd.concat(
        [per_query.assign(seed=0), per_query.assign(seed=1, value=per_query["value"] + 0.1)]
    )
    assert summarize(seeds, "a")["AP"].to_dict() == {"a": "0.550 ± 0.071", "b": "0.300 ± 0.071-"}


# --- ir_measures -----------------------------------------------------------------------------------------------------

NAMES = [
    "PRES(rel=2)@50",
    "MAPD",
    "PRECD(rel=2)@100",
    "on_documents(measure='PRES(rel=2)@100')",
    "AnswerRecall@20",
]


@pytest.mark.parametrize("name", NAMES)
def test_name_can_be_parsed(name):
    measure = ir_measures.parse_measure(name)
    assert str(measure) == name
    assert pickle.loads(pickle.dumps(measure)) == measure
    assert isinstance(measure, ir_measures.Measure)


TOPIC_LABELS = {
    "1": {"A%p1": 1},
    "2": {"A%p1": 1, "B%p1": 2},
    "3": {"A%p1": 0},
    "4": {"C%p1": 1},
}
# 4 is missing, 5 is not judged
TOPIC_RUN = {"1": ["A%p1"], "2": ["B%p1", "X%p1"], "3": ["A%p1"], "5": ["A%p1"]}
TOPIC_VALUES = {"1": 1, "2": 0.5, "3": 0, "4": 0}


def test_topics_are_those_of_trec_eval():
    """Topics without relevant documents and topics without results have the value 0."""
    qrels, run = qrels_of(TOPIC_LABELS), run_of(TOPIC_RUN)
    for measure in [*ALL, AP]:
        assert per_topic(measure, qrels, run) == pytest.approx(TOPIC_VALUES), measure
    values = ir_measures.calc_aggregate([*ALL, PRES(rel=2), AP, nDCG @ 10], qrels, run)
    assert {values[measure] for measure in [*ALL, AP]} == {1.5 / 4}
    assert values[PRES(rel=2)] == 1 / 4


# --- answers


def dpr_has_answer(answers: list[str], text: str) -> bool:
    """``has_answer`` and ``SimpleTokenizer`` of DPR's repository (dpr/data/qa_validation.py), literally."""
    regexp = regex.compile(
        r"([\p{L}\p{N}\p{M}]+)|([^\p{Z}\p{C}])",
        flags=regex.IGNORECASE + regex.UNICODE + regex.MULTILINE,
    )

    def uncased_words(text: str) -> list[str]:
        return [match.group().lower() for match in regexp.finditer(text)]

    tokens = uncased_words(unicodedata.normalize("NFD", text))
    for single_answer in answers:
        answer = uncased_words(unicodedata.normalize("NFD", single_answer))
        for i in range(0, len(tokens) - len(answer) + 1):
            if answer == tokens[i : i + len(answer)]:
                return True
    return False


PIECES = st.text(st.sampled_from("aAb1é\u0301.-' \n\u200b日"), max_size=6)


@given(st.lists(PIECES, max_size=3), PIECES)
def test_answers_are_found_as_in_dpr(answers, text):
    assert has_answer(text, answers) == dpr_has_answer(answers, text)


def test_recall_of_questions_with_an_answer():
    rows = [("1", "b", 2.0, "No."), ("1", "a", 1.0, "It is Paris."), ("2", "a", 1.0, "It is Rome.")]
    run = pd.DataFrame(rows, columns=["qid", "docno", "score", "text"])
    answers = pd.DataFrame(
        [("1", "Lyon"), ("1", "paris"), ("2", "Oslo"), ("3", "Rome")], columns=["qid", "answer"]
    )
    topics = pd.DataFrame({"qid": [*"123"], "query": "where"})
    system = pt.Transformer.from_df(run.assign(query="where", rank=0))
    table = pt.Experiment([system], topics, answers, [AnswerRecall @ 1, AnswerRecall @ 2])
    assert table[["AnswerRecall@1", "AnswerRecall@2"]].values.tolist() == [
        [0, pytest.approx(1 / 3)]
    ]


# --- registration ----------------------------------------------------------------------------------------------------


def test_import_registers_measures_and_changes_nothing_else():
    """Providers, modules of other packages, pickling, and filters of loggers are the same after the import."""
    code = """
import copyreg, json, logging, sys
import ir_measures, lazy_loader

def state():
    loggers = logging.root.manager.loggerDict.items()
    return (
        [provider.NAME for provider in ir_measures.DefaultPipeline.providers],
        sorted(ir_measures.providers.registry),
        {name: id(module) for name, module in sys.modules.items() if name[:15] != "pyterrier_graph"},
        dict(copyreg.dispatch_table),
        {name: list(getattr(logger, "filters", [])) for name, logger in loggers if name[:15] != "pyterrier_graph"},
    )

before, names = state(), set(ir_measures.measures.registry)
import pyterrier_graph
after = state()
assert before[:2] + before[3:] == after[:2] + after[3:]
assert all(after[2][name] == module for name, module in before[2].items())
assert id(None) not in after[2].values()
print(*sorted(set(ir_measures.measures.registry) - names))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["AnswerRecall", "MAPD", "PRECD", "PRES", "on_documents"]


def test_on_documents_takes_another_cutoff():
    assert on_documents(PRES @ 100)(cutoff=10) == on_documents(PRES @ 10)
