"""Collections by their ids in ir_datasets."""

from __future__ import annotations

import ast
import csv
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.collections.cranfield import GRADES
from experiments.harness.collection import ALL, Collection, Queries, Record
from pyterrier_graph.documents.document import passage_id, split_passage_id
from pyterrier_graph.documents.records import read_record


def read_ir_datasets(*ids: str, train: str | None = None, test: str | None = None) -> Collection:
    """A collection from ir_datasets. Structured documents become their passages.

    Args:
        ids: Ids of datasets over the same documents, with or without ``irds:``. The documents of the first are
            indexed. Their judged queries are taken together, unless there are splits.
        train: Id of the dataset with the training queries.
        test: Likewise for the test, or a file of DPR with questions and their answers, such as ``nq-test.qa.csv``.

    Raises:
        ValueError: If ir_datasets does not have a dataset, or only one of ``train`` and ``test`` is given.
    """
    import ir_datasets

    if (train is None) != (test is None):
        raise ValueError("--train and --test need each other")
    names = [name.removeprefix("irds:") for name in ids]
    questions = Path(test) if test is not None and test.endswith(".csv") else None
    for name in filter(None, (*names, train, None if questions else test)):
        try:
            ir_datasets.load(name.removeprefix("irds:"))
        except KeyError as error:
            raise ValueError(f"ir_datasets has no dataset {name!r}") from error
    dataset = ir_datasets.load(names[0])
    structured = "nodes" in dataset.docs_cls()._fields
    splits = {"train": train, "test": test} if train else dict.fromkeys([ALL])
    queries = {
        split: _queries([name] if name else names)
        for split, name in splits.items()
        if not (split == "test" and questions)
    }
    if questions:
        queries["test"] = read_questions(questions)

    def documents() -> Iterator[Record]:
        for document in dataset.docs_iter():
            for docno, text in _texts(document, structured).items():
                yield {"docno": docno, "title": "", "text": text}

    return Collection(names[0], documents, queries, lookup=partial(_lookup, dataset, structured))


def read_questions(file: Path) -> Queries:
    """The questions of a file of DPR: ``question``, a tab, and the answers as a list in Python's notation.

    There are no judgments; the topics have a column ``answers``.
    """
    with file.open(encoding="utf-8", newline="") as lines:
        rows = [
            (str(number), question, ast.literal_eval(answers))
            for number, (question, answers) in enumerate(csv.reader(lines, delimiter="\t"))
        ]
    topics = pd.DataFrame(rows, columns=["qid", "query", "answers"])
    qrels = {"qid": pd.Series(dtype=str), "docno": pd.Series(dtype=str)}
    return Queries(topics, pd.DataFrame(qrels | {"label": pd.Series(dtype=int)}))


def _queries(names: Iterable[str]) -> Queries:
    """The judged queries of some datasets; of TREC topics, the titles."""
    import ir_datasets

    topics, rows = [], []
    for name in names:
        dataset = ir_datasets.load(name.removeprefix("irds:"))
        grades = (
            GRADES if name.removeprefix("irds:") == "cranfield" else {}
        )  # ir_datasets returns the codes
        topics += [
            (query.query_id, query.default_text(), getattr(query, "answers", ()))
            for query in dataset.queries_iter()
        ]
        rows += [
            (q.query_id, q.doc_id, grades.get(q.relevance, q.relevance))
            for q in dataset.qrels_iter()
        ]
    qrels = pd.DataFrame(rows, columns=["qid", "docno", "label"])
    frame = pd.DataFrame(topics, columns=["qid", "query", "answers"])
    if not frame["answers"].map(len).any():
        frame = frame.drop(columns="answers")
    return Queries(frame, qrels).among(qrels["qid"])


def _lookup(dataset: Any, structured: bool, docnos: Iterable[str]) -> dict[str, str]:
    wanted = set(docnos)
    documents = {split_passage_id(docno)[0] for docno in wanted} if structured else wanted
    found = dataset.docs_store().get_many(documents).values()
    texts = {
        docno: text for document in found for docno, text in _texts(document, structured).items()
    }
    return {docno: text for docno, text in texts.items() if docno in wanted}


def _texts(document: Any, structured: bool) -> dict[str, str]:
    if not structured:
        return {document.doc_id: document.default_text()}
    passages = read_record(document._asdict() | {"docno": document.doc_id}).passages()
    return {passage_id(document.doc_id, number): text for number, text in enumerate(passages)}
