"""QASPER (Dasigi et al., NAACL 2021): questions on research papers, with the paragraphs that answer them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.harness.collection import ALL, Collection, Query, Record, joined, queries_by_split
from pyterrier_graph.documents.document import NO_PARENT, PASSAGE, SECTION, Node, passage_id

LEVEL = ":::"


def read_qasper(path: str | Path) -> Collection:
    """Reads papers from a file with one JSON object a line, as the data set's table at Hugging Face has them.

    A paper is a document: the root section has its title, the abstract and the named sections are nested below, and
    paragraphs are passages. The questions are the queries, and relevant to one are the paragraphs that any annotator
    gave as evidence (grade 1); questions without evidence in the text are left out. Each question was asked of its own
    paper, so paragraphs of other papers are not judged: this is known-item search.

    Args:
        path: The file, or a folder with one file ``*.jsonl``.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a line is not a paper; the message names it.
    """
    path = Path(path)
    files = [path] if path.is_file() else sorted(path.glob("*.jsonl"))
    if len(files) != 1:
        raise FileNotFoundError(f"{path} holds {len(files)} files *.jsonl, not one")
    records: list[Record] = []
    queries: list[Query] = []
    for paper in _papers(files[0]):
        record, places = _record(paper)
        records.append(record)
        queries += _queries(paper, places)
    return Collection.in_memory(
        "QASPER", records, {ALL: joined(queries_by_split(queries).values())}
    )


def _papers(file: Path) -> Iterator[dict[str, Any]]:
    for place, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            paper = json.loads(line)
            _ = (
                paper["id"],
                paper["title"],
                paper["abstract"],
                paper["full_text"]["paragraphs"],
                paper["qas"]["answers"],
            )
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"{file}, line {place}: this is not a paper: {error!r}") from error
        yield paper


def _record(paper: dict[str, Any]) -> tuple[Record, dict[str, list[str]]]:
    """The document, and the passage ids of each paragraph."""
    nodes = [Node(SECTION, paper["title"].strip(), NO_PARENT)]
    sections: dict[tuple[str, ...], int] = {(): 0}
    places: defaultdict[str, list[str]] = defaultdict(list)
    text = paper["full_text"]
    passages = 0
    for name, paragraphs in zip(
        ["Abstract", *text["section_name"]], [[paper["abstract"]], *text["paragraphs"]], strict=True
    ):
        levels = tuple(level.strip() for level in (name or "").split(LEVEL))
        for depth in range(1, len(levels) + 1):
            if levels[:depth] not in sections:
                sections[levels[:depth]] = len(nodes)
                nodes.append(Node(SECTION, levels[depth - 1], sections[levels[: depth - 1]]))
        for paragraph in filter(None, map(str.strip, paragraphs)):
            nodes.append(Node(PASSAGE, paragraph, sections[levels]))
            places[paragraph].append(passage_id(paper["id"], passages))
            passages += 1
    whole = "\n\n".join(node.text for node in nodes if node.kind == PASSAGE)
    return {"docno": paper["id"], "title": paper["title"], "text": whole, "nodes": nodes}, places


def _queries(paper: dict[str, Any], places: dict[str, list[str]]) -> Iterator[Query]:
    asked = paper["qas"]
    for qid, question, answers in zip(
        asked["question_id"], asked["question"], asked["answers"], strict=True
    ):
        evidence = [
            paragraph.strip() for answer in answers["answer"] for paragraph in answer["evidence"]
        ]
        relevant = dict.fromkeys(
            docno for paragraph in evidence for docno in places.get(paragraph, ())
        )
        if relevant:
            yield Query(qid, question.strip(), "test", tuple(relevant))
