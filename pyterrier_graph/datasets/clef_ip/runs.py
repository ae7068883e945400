"""Reads and writes runs as the task has them: ``topic Q0 document xpath rank score``."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from pyterrier_graph.datasets.clef_ip.text_files import read_lines
from pyterrier_graph.datasets.clef_ip.xpaths import is_docno, parse_xpath

MAX_DOCUMENTS = 100


class RetrievedPassage(NamedTuple):
    """A line of a run."""

    query_id: str
    docno: str
    xpath: str
    score: float


def write_run(path: str | os.PathLike[str], passages: Iterable[RetrievedPassage]) -> None:
    """Writes a run.

    A topic's passages are sorted by score, best first; of equal scores the first stays first. They are ranked from 1,
    and those of other than the 100 best documents are left out.

    Args:
        path: The file; it appears when it is complete.
        passages: In any order.

    Raises:
        ValueError: If a passage cannot be written so: a topic with spaces, no docno, no XPath, a score that is not
            finite.
    """
    from ir_datasets.util import finialized_file

    ordered = sorted((_checked(passage) for passage in passages), key=lambda found: (found.query_id, -found.score))
    with finialized_file(os.fspath(path), "wb") as file:
        for query_id, found in groupby(ordered, key=lambda passage: passage.query_id):
            for rank, (_, docno, xpath, score) in enumerate(_best(found), 1):
                file.write(f"{query_id} Q0 {docno} {xpath} {rank} {score!r}\n".encode())


def read_run(path: str | os.PathLike[str]) -> Iterator[RetrievedPassage]:
    """Reads a run, in the order of its lines.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a line is not ``topic Q0 document xpath rank score``; the message names file and line.
    """
    for place, line in read_lines(path):
        fields = line.split()
        try:
            query_id, _, docno, xpath, rank, score = fields
            int(rank)
            yield _checked(RetrievedPassage(query_id, docno, xpath, float(score)))
        except ValueError as error:
            raise ValueError(f"{place}: {line!r} is not 'topic Q0 document xpath rank score': {error}") from error


def _checked(passage: RetrievedPassage) -> RetrievedPassage:
    query_id, docno, xpath, score = passage
    if query_id.split() != [query_id] or not is_docno(docno) or not math.isfinite(score):
        raise ValueError(f"{passage} needs a topic without spaces, a docno and a finite score")
    parse_xpath(xpath)
    return passage._replace(score=float(score))


def _best(passages: Iterable[RetrievedPassage]) -> Iterator[RetrievedPassage]:
    documents: set[str] = set()
    for passage in passages:
        if passage.docno in documents or len(documents) < MAX_DOCUMENTS:
            documents.add(passage.docno)
            yield passage
