"""Search for prior art: query forms and filters."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyterrier_graph.clef_ip import (
    AbstractTerms,
    ClaimsQuery,
    DocumentCutoff,
    DocumentFrequencies,
    NotOwnFamily,
    SharedCodes,
)
from pyterrier_graph.documents.document import Node, StructuredDocument
from pyterrier_graph.graphs.memory_graph import MemoryGraph

CORPUS = [
    {"docno": "1", "language": "EN", "text": "The laser of the cutter, 20 mm wide"},
    {"docno": "2", "language": "EN", "text": "The cutter cuts the paper the printer feeds"},
    {"docno": "3", "language": "EN", "text": "The printer"},
    {
        "docno": "4",
        "language": "DE",
        "text": "Der Laser der Schneidmaschine, größer als der Drucker",
    },
]
CODES = ("A01B", "A01B1/00", "A01B2/10", "B22C", "B22C3/04")


@pytest.fixture(scope="module")
def frequencies(tmp_path_factory: pytest.TempPathFactory) -> DocumentFrequencies:
    return DocumentFrequencies(tmp_path_factory.mktemp("frequencies"), verbose=False).index(CORPUS)


def topics(**columns: Any) -> pd.DataFrame:
    topic = {
        "qid": "t1",
        "text": "A cutter with the laser.",
        "abstract": "The cutter has the laser. The cutter cuts; the cutter prints.",
        "language": "EN",
        "document": "EP-1000001-A1",
        "family": ("WO-2000000001-A1",),
        "codes": CODES[:2],
    }
    return pd.DataFrame([topic | columns])


def graph_of(codes: dict[str, tuple[str, ...]]) -> MemoryGraph:
    nodes = (Node("section", "", -1), Node("passage", "text", 0))
    return MemoryGraph(
        [StructuredDocument(docno, nodes, codes=own) for docno, own in codes.items()]
    )


def results(*docnos: str, **columns: Any) -> pd.DataFrame:
    run = pd.DataFrame(
        {"docno": docnos, "score": [-float(number) for number in range(len(docnos))]}
    )
    return pt.model.add_ranks(topics(**columns).merge(run, how="cross"))


GRAPH = graph_of({"EP-1-A1": CODES[:1], "EP-2-A1": CODES[3:], "EP-3-A1": ()})
TestClaimsQuery = pt.testing.transformer_test_class(ClaimsQuery)
TestAbstractTerms = pt.testing.transformer_test_class(
    lambda: AbstractTerms(DocumentFrequencies("none"))
)
TestSharedCodes = pt.testing.transformer_test_class(lambda: SharedCodes(GRAPH))
TestNotOwnFamily = pt.testing.transformer_test_class(NotOwnFamily)
TestDocumentCutoff = pt.testing.transformer_test_class(DocumentCutoff)


# --- query forms


def test_document_frequencies(frequencies: DocumentFrequencies) -> None:
    assert frequencies.documents == {"EN": 3, "DE": 1} and frequencies.built()
    assert frequencies.words("Größer, CO2-Sensor 20 mm: a printer") == [
        "größer",
        "sensor",
        "mm",
        "printer",
    ]
    for language in ("EN", "DE"):
        texts = [
            {*frequencies.words(record["text"])}
            for record in CORPUS
            if record["language"] == language
        ]
        counts = Counter(word for words in texts for word in words)
        expected = [math.log(len(texts) / count) for count in counts.values()]
        np.testing.assert_allclose(
            DocumentFrequencies(frequencies.path).idf([*counts], language), expected
        )
    assert frequencies.idf(["absent"], "EN") == np.inf and not len(frequencies.idf([], "EN"))
    with pytest.raises(KeyError):
        frequencies.idf(["word"], "FR")


def test_abstract_terms(frequencies: DocumentFrequencies) -> None:
    form = ClaimsQuery() >> AbstractTerms(frequencies, 3)
    out = form(topics())
    # cutter: 3 ln 3/2, cuts: ln 3, laser: ln 3; the: 4 ln 1; has, prints: in no document
    assert out["query"].tolist() == ["cutter laser cuts"]
    assert out["query_0"].tolist() == ["A cutter with the laser."]
    assert pt.rewrite.reset()(out)["query"].tolist() == ["A cutter with the laser."]
    assert form(topics(abstract=""))["query"].tolist() == ["laser cutter the"]
    assert form(topics(language="DE", abstract="Der Laser"))["query"].tolist() == ["der laser"]


# --- filters


@given(
    st.lists(st.frozensets(st.sampled_from(CODES)), min_size=1, max_size=6),
    st.dictionaries(
        st.sampled_from("abc"),
        st.frozensets(st.sampled_from((*CODES, "X01Y", "X01Y1/00"))),
        min_size=1,
    ),
    st.sampled_from(["subclass", "group"]),
    st.data(),
)
def test_shared_codes(documents: Any, wanted: Any, level: Any, data: st.DataObject) -> None:
    codes = {f"d{number}": tuple(own) for number, own in enumerate(documents)}
    pairs = st.sampled_from([(qid, docno) for qid in wanted for docno in codes])
    run = data.draw(st.lists(pairs, unique=True, min_size=1))
    frame = pd.DataFrame(run, columns=["qid", "docno"])
    frame["codes"] = [tuple(wanted[qid]) for qid in frame["qid"]]
    frame["rank"] = frame.groupby("qid").cumcount()
    out = SharedCodes(graph_of(codes), level)(frame)
    of_level = {
        qid: {code for code in own if ("/" in code) == (level == "group")}
        for qid, own in wanted.items()
    }
    expected = [
        (qid, docno) for qid, docno in run if not of_level[qid] or of_level[qid] & {*codes[docno]}
    ]
    assert [*zip(out["qid"], out["docno"], strict=True)] == expected
    assert out["rank"].tolist() == out.groupby("qid").cumcount().tolist()


def test_not_own_family() -> None:
    run = results(
        "EP-1000001-B1", "EP-10000-A1", "WO-2000000001-A1%p3", "EP-1000002-A1", "EP-1000001-A1"
    )
    other = run.assign(qid="t2", document="EP-7-A1", family=[()] * len(run))
    out = NotOwnFamily()(pd.concat([run, other]))
    assert out[out["qid"] == "t1"]["docno"].tolist() == ["EP-10000-A1", "EP-1000002-A1"]
    assert out["rank"].tolist() == [0, 1, *range(5)]
    assert out[out["qid"] == "t2"]["docno"].tolist() == run["docno"].tolist()


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 3)),
        unique=True,
        min_size=1,
    ),
    st.integers(1, 4),
    st.one_of(st.none(), st.integers(1, 3)),
    st.randoms(use_true_random=False),
)
def test_document_cutoff(run: Any, documents: int, passages: int | None, random: Any) -> None:
    frame = pd.DataFrame([(qid, f"EP-{document}-A1%p{passage}") for qid, document, passage in run])
    frame = frame.set_axis(["qid", "docno"], axis=1).assign(
        rank=lambda frame: frame.groupby("qid").cumcount()
    )
    expected: dict[str, list[str]] = {}
    per_document: dict[tuple[str, str], int] = {}
    for qid, docno in zip(frame["qid"], frame["docno"], strict=True):
        pair = qid, docno.partition("%")[0]
        earlier = {other for topic, other in per_document if topic == qid} - {pair[1]}
        if len(earlier) < documents or pair in per_document:
            per_document[pair] = per_document.get(pair, 0) + 1
            if passages is None or per_document[pair] <= passages:
                expected.setdefault(qid, []).append(docno)
    shuffled = frame.sample(frac=1, random_state=random.randrange(100))
    out = DocumentCutoff(documents, passages)(shuffled).sort_values(["qid", "rank"])
    assert {qid: rows["docno"].tolist() for qid, rows in out.groupby("qid")} == expected
    assert out["rank"].tolist() == out.groupby("qid").cumcount().tolist()
