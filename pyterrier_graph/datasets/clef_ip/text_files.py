"""Reads the text files of the task: topics, judgments and runs.

What violates a format is a ValueError that names the file, and the topic or line.
"""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pyterrier_graph.datasets.clef_ip.patents import is_docno, parse_xpath

_TAG = re.compile(r"<t?(id|file|fam-docs|claims)\s*>([^<]*)", re.IGNORECASE)
_SEPARATOR = re.compile(r"[,\s]+")
_GRADE = re.compile(r"-?\d{1,9}")


class Topic(NamedTuple):
    """A topic: claims of an application, for which prior art is searched."""

    query_id: str
    document: str  # docno of the application; the collection need not contain it
    claims: tuple[str, ...]  # XPaths of the claims in the application
    family: tuple[str, ...] = ()  # docnos of its family that were published before it; empty in the topics of 2012


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


def read_topics(path: str | os.PathLike[str]) -> list[Topic]:
    """Reads a file of topics.

    A topic begins with the tag ``tid`` (or ``id``). The tags ``tfile``, ``tfam-docs`` and ``tclaims`` follow in any
    order. Line breaks and closing tags are ignored.
    """
    blocks: list[dict[str, list[str]]] = []
    for name, content in _TAG.findall(_read_text(path)):
        if name.lower() == "id" or not blocks:
            blocks.append(defaultdict(list))
        blocks[-1][name.lower()] += content.split()
    topics: dict[str, Topic] = {}
    for fields in blocks:
        topic = _topic(fields, str(path))
        if topic.query_id in topics:
            raise ValueError(f"{path}: topic {topic.query_id} is there twice")
        topics[topic.query_id] = topic
    if not topics:
        raise ValueError(f"{path}: there is no topic, which would begin with <tid>")
    return [*topics.values()]


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


def _topic(fields: dict[str, list[str]], path: str) -> Topic:
    if len(fields["id"]) != 1:
        raise ValueError(f"{path}: <tid> must have one word, got {fields['id']}")
    place = f"{path}, topic {fields['id'][0]}"
    if len(fields["file"]) != 1:
        raise ValueError(f"{place}: <tfile> must name one file, got {fields['file']}")
    claims = tuple(dict.fromkeys(claim for word in fields["claims"] for claim in word.split(",") if claim))
    if not claims:
        raise ValueError(f"{place}: there is no <tclaims> with XPaths of claims")
    try:
        for claim in claims:
            parse_xpath(claim)
        document, *family = map(_docno, fields["file"] + fields["fam-docs"])
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error
    return Topic(fields["id"][0], document, claims, tuple(dict.fromkeys(family)))


def _docno(file: str) -> str:
    docno = file.removesuffix(".xml")
    if not is_docno(docno):
        raise ValueError(f"{file!r} is not the file of a patent, which has a name like EP-1480263-A1.xml")
    return docno


def _read_text(path: str | os.PathLike[str]) -> str:
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text in UTF-8: {error}") from error


def _lines(path: str | os.PathLike[str]) -> Iterator[tuple[str, str]]:
    """The lines that are not blank, each with its place for messages."""
    for number, line in enumerate(_read_text(path).split("\n"), 1):
        if line.strip():
            yield f"{path}, line {number}", line
