"""Reads judgments and runs. What violates a format is a ValueError that names the file and the line."""

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pyterrier_graph.datasets.clef_ip.patents import is_docno, parse_xpath

_SEPARATOR = re.compile(r"[,\s]+")
_GRADE = re.compile(r"-?\d{1,9}")


class Judgment(NamedTuple):
    """A judged passage, named by document and XPath."""

    query_id: str
    docno: str
    xpath: str
    relevance: int


class RetrievedPassage(NamedTuple):
    """A line of a run."""

    query_id: str
    docno: str
    xpath: str
    score: float


def read_qrels(path: str | os.PathLike[str]) -> Iterator[Judgment]:
    """Reads a file of judgments, in any of the formats that the collection has.

    Commas, spaces or tabs separate the fields of a line. The first field is the topic. A docno and an XPath follow at
    any position; a whole number after the XPath is the grade, which is 1 without it. Other fields (``Q0``) are ignored.
    """
    for place, line in _lines(path):
        query_id, *fields = _SEPARATOR.split(line.strip(" \t\r,"))
        docno = next(filter(is_docno, (field.removesuffix(".xml") for field in fields)), None)
        position = next((position for position, field in enumerate(fields) if field.startswith("/")), None)
        if docno is None or position is None:
            raise ValueError(f"{place}: {line!r} does not name a topic, a docno and an XPath")
        grades = filter(_GRADE.fullmatch, fields[position + 1 :])
        yield Judgment(query_id, docno, fields[position], int(next(grades, 1)))


def read_run(path: str | os.PathLike[str]) -> Iterator[RetrievedPassage]:
    """Reads a run, whose lines are ``topic Q0 document xpath rank score``, in the order of the lines."""
    for place, line in _lines(path):
        try:
            query_id, _, docno, xpath, rank, number = line.split()
            int(rank)
            score = float(number)
            parse_xpath(xpath)
            if not is_docno(docno) or not math.isfinite(score):
                raise ValueError("the document must look like EP-1480263-A1 and the score must be finite")
        except ValueError as error:
            raise ValueError(f"{place}: {line!r} is not 'topic Q0 document xpath rank score': {error}") from error
        yield RetrievedPassage(query_id, docno, xpath, score)


def read_text(path: str | os.PathLike[str]) -> str:
    """The content of a file in UTF-8; else a ValueError."""
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text in UTF-8: {error}") from error


def _lines(path: str | os.PathLike[str]) -> Iterator[tuple[str, str]]:
    """The lines that are not blank, each with its place for messages."""
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            yield f"{path}, line {number}", line
