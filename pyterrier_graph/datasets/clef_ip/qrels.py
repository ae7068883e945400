"""Reads relevance judgments, in each of the shapes that their files come in."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from pyterrier_graph.datasets.clef_ip.text_files import read_lines
from pyterrier_graph.datasets.clef_ip.xpaths import is_docno

_SEPARATOR = re.compile(r"[,\s]+")
_GRADE = re.compile(r"-?\d{1,9}")


class Judgment(NamedTuple):
    """A judged passage, as the file names it."""

    query_id: str
    docno: str
    xpath: str
    relevance: int


def read_qrels(path: str | os.PathLike[str]) -> Iterator[Judgment]:
    """Reads judgments.

    Fields are separated by commas, spaces or tabs. The first is the topic; then come, wherever they stand, a docno and
    an XPath, and after this perhaps a grade, which is 1 if it is missing. What stands between (``Q0``) means nothing.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a line names no document or no XPath; the message names file and line.
    """
    for place, line in read_lines(path):
        query_id, *fields = _SEPARATOR.split(line.strip(" \t\r,"))
        docno = next(filter(is_docno, (field.removesuffix(".xml") for field in fields)), None)
        position = next((position for position, field in enumerate(fields) if field.startswith("/")), None)
        if docno is None or position is None:
            raise ValueError(f"{place}: {line!r} does not name a topic, a docno and an XPath")
        grades = filter(_GRADE.fullmatch, fields[position + 1 :])
        yield Judgment(query_id, docno, fields[position], int(next(grades, 1)))
