"""Negative sampling against pools that are listed literally."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pandas as pd
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

from pyterrier_graph.documents.document import Node, StructuredDocument, split_passage_id
from pyterrier_graph.graphs.memory_graph import MemoryGraph
from pyterrier_graph.hgat.negatives import NegativeSampler, Strategy
from pyterrier_graph.hgat.training import HGATTraining

STRATEGIES = get_args(Strategy)


def documents_of(sizes: list[int], codes: list[set[str]]) -> list[StructuredDocument]:
    return [
        StructuredDocument(
            f"d{number}",
            (Node("section", "", -1), *(Node("passage", "alpha", 0) for _ in range(size))),
            codes=tuple(sorted(held)),
        )
        for number, (size, held) in enumerate(zip(sizes, codes, strict=True))
    ]


def judgments(rows: list[tuple[str, str, int]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["qid", "docno", "label"])


def pool(
    documents: list[StructuredDocument],
    qrels: pd.DataFrame,
    candidates: pd.DataFrame,
    strategy: str,
    qid: str,
    docno: str,
) -> set[str]:
    """All passages that a strategy may draw from for a query and a relevant passage, before looking at labels."""

    def passages_of(chosen: list[StructuredDocument]) -> set[str]:
        return {
            f"{document.docno}%p{n}" for document in chosen for n in range(len(document.passages()))
        }

    relevant = qrels[(qrels["qid"] == qid) & (qrels["label"] > 0)]["docno"]
    relevant_docnos = {split_passage_id(relevant_docno)[0] for relevant_docno in relevant}
    relevant_documents = [document for document in documents if document.docno in relevant_docnos]
    if strategy == "random":
        return passages_of(documents)
    if strategy == "same_doc":
        return passages_of(
            [document for document in documents if document.docno == split_passage_id(docno)[0]]
        )
    if strategy == "relevant_docs":
        return passages_of(relevant_documents)
    if strategy == "shared_codes":
        codes = {code for document in relevant_documents for code in document.codes}
        return passages_of([document for document in documents if codes & set(document.codes)])
    if strategy == "candidates":
        return set(candidates[candidates["qid"] == qid]["docno"])
    return pool(documents, qrels, candidates, "relevant_docs", qid, docno) | pool(
        documents, qrels, candidates, "shared_codes", qid, docno
    )


def named(
    graph: MemoryGraph, sampler: NegativeSampler, triples: np.ndarray
) -> list[tuple[str, str, str]]:
    positive, negative = graph.ids_of(triples[:, 1]), graph.ids_of(triples[:, 2])
    return list(zip(sampler.qids[triples[:, 0]].tolist(), positive, negative, strict=True))


def check(
    documents: list[StructuredDocument],
    qrels: pd.DataFrame,
    candidates: pd.DataFrame,
    strategy: str,
) -> int:
    """Draws many times, and compares with the literal pools; returns the number of different triples."""
    graph = MemoryGraph(documents)
    label = {(row.qid, row.docno): row.label for row in qrels.itertuples()}
    allowed = {
        (qid, docno): {
            other
            for other in pool(documents, qrels, candidates, strategy, qid, docno)
            if label.get((qid, other), 0) < grade
        }
        for (qid, docno), grade in label.items()
        if grade > 0
    }
    sampler = NegativeSampler(graph, qrels, strategy, candidates=candidates, seed=1)
    if not any(allowed.values()):
        with pytest.raises(
            ValueError, match=f"negatives='{strategy}' finds no passage that is judged lower"
        ):
            sampler.sample()
        return 0
    drawn: set[tuple[str, str, str]] = set()
    for _ in range(10):
        try:
            triples = named(graph, sampler, sampler.sample())
        except ValueError:  # twenty attempts may all miss a small pool
            continue
        assert len({pair[:2] for pair in triples}) == len(triples)  # one negative per pair
        drawn.update(triples)
    for qid, positive, negative in drawn:
        assert negative in allowed[qid, positive]
    return len(drawn)


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(st.data())
def test_negatives_come_from_the_pool_and_are_judged_lower(
    strategy: str, data: st.DataObject
) -> None:
    sizes = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=5))
    some_codes = st.sets(st.sampled_from("abc"), max_size=2)
    documents = documents_of(sizes, [data.draw(some_codes) for _ in sizes])
    passages = [f"d{d}%p{n}" for d, size in enumerate(sizes) for n in range(size)]
    pairs = st.tuples(st.sampled_from(["q1", "q2"]), st.sampled_from(passages or ["none"]))
    judged = data.draw(st.dictionaries(pairs, st.integers(-1, 2), max_size=8)) if passages else {}
    qrels = judgments([(qid, docno, label) for (qid, docno), label in judged.items()])
    candidates = pd.DataFrame(
        data.draw(st.lists(pairs, max_size=8)) if passages else [], columns=["qid", "docno"]
    )
    if (qrels["label"] > 0).any():
        check(documents, qrels, candidates, strategy)


def test_codes_of_the_query_go_before_those_of_its_relevant_documents() -> None:
    documents = documents_of([1, 2, 2, 2], [{"a"}, {"a"}, {"b"}, {"c"}])
    graph = MemoryGraph(documents)
    qrels = judgments([("q", "d0%p0", 1), ("none", "d0%p0", 1)])
    codes = {"q": ("b", "c", "of no document"), "none": ("of no document",)}
    sampler = NegativeSampler(graph, qrels, "shared_codes", codes=codes, seed=0)
    drawn = {triple for _ in range(100) for triple in named(graph, sampler, sampler.sample())}
    assert drawn == {("q", "d0%p0", other) for other in ("d2%p0", "d2%p1", "d3%p0", "d3%p1")}


def test_mixed_without_codes_has_the_relevant_documents() -> None:
    documents = documents_of([3, 3], [set(), set()])
    assert (
        check(
            documents,
            judgments([("q", "d0%p0", 1)]),
            pd.DataFrame(columns=["qid", "docno"]),
            "mixed",
        )
        == 2
    )


def test_pairs_without_negatives_are_left_out() -> None:
    """In its own document a passage of grade 1 has none, since the others are relevant, too."""
    sampler = NegativeSampler(tiny.graph(), tiny.qrels(), "same_doc")
    triples = sampler.sample()
    assert sorted(tiny.graph().ids_of(triples[:, 1])) == [f"d{d}%p0" for d in range(6)]


def test_what_cannot_be_sampled() -> None:
    graph, qrels = tiny.graph(), tiny.qrels()
    with pytest.raises(ValueError, match="(?s)negatives.*'random', 'same_doc'.*input_value='hard'"):
        HGATTraining(negatives="hard")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no training query has a relevant passage"):
        NegativeSampler(graph, qrels.assign(label=0), "random")
    with pytest.raises(ValueError, match="finds no passage that is judged lower"):
        everything = judgments([("t0", docno, 1) for docno in graph.ids_of(graph.passage_nodes)])
        NegativeSampler(graph, everything, "random").sample()
