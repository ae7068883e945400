"""Reads the topics of the task: which claims of which application prior art is sought for."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from pyterrier_graph.datasets.clef_ip.text_files import read_text
from pyterrier_graph.datasets.clef_ip.xpaths import is_docno, parse_xpath

_TAG = re.compile(r"<t?(id|file|fam-docs|claims)\s*>([^<]*)", re.IGNORECASE)


@dataclass(frozen=True)
class Topic:
    """A topic.

    Attributes:
        query_id: Its id.
        document: Docno of the application that the claims are of; it need not be in the collection.
        claims: XPaths of the claims in its file.
        family: Docnos of the documents of its family published before it; none in the topics of 2012.
    """

    query_id: str
    document: str
    claims: tuple[str, ...]
    family: tuple[str, ...] = ()


def read_topics(path: str | os.PathLike[str]) -> list[Topic]:
    """Reads a file of topics.

    What counts are the opening tags ``tid`` (or ``id``), ``tfile``, ``tfam-docs`` and ``tclaims``, in any order after
    the first, whatever the lines are and however the tags are closed.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If there is no topic in it, a topic lacks something, names a file that no patent can have, or comes
            twice; the message names file and topic.
    """
    topics: dict[str, Topic] = {}
    for topic in _topics(read_text(path), str(path)):
        if topic.query_id in topics:
            raise ValueError(f"{path}: topic {topic.query_id} comes twice")
        topics[topic.query_id] = topic
    if not topics:
        raise ValueError(f"{path}: no topic, these begin with <tid>")
    return [*topics.values()]


def _topics(text: str, path: str) -> Iterator[Topic]:
    fields: dict[str, list[str]] = {}
    for name, content in [(name.lower(), content.split()) for name, content in _TAG.findall(text)] + [("id", [])]:
        if name == "id" and fields:
            yield _topic(fields, path)
            fields = {}
        fields.setdefault(name, []).extend(content)


def _topic(fields: dict[str, list[str]], path: str) -> Topic:
    match fields.get("id"):
        case [query_id]:
            place = f"{path}, topic {query_id}"
        case found:
            raise ValueError(f"{path}: a topic has one word as its <tid>, got {found}")
    match fields.get("file"):
        case [file]:
            document = _docno(file, place)
        case found:
            raise ValueError(f"{place}: <tfile> names one file, got {found}")
    claims = tuple(dict.fromkeys(claim for word in fields.get("claims", ()) for claim in word.split(",") if claim))
    if not claims:
        raise ValueError(f"{place}: no <tclaims>")
    for claim in claims:
        try:
            parse_xpath(claim)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error
    family = tuple(dict.fromkeys(_docno(file, place) for file in fields.get("fam-docs", ())))
    return Topic(query_id, document, claims, family)


def _docno(file: str, place: str) -> str:
    docno = file.removesuffix(".xml")
    if not is_docno(docno):
        raise ValueError(f"{place}: {file!r} is no patent's file, these are called like EP-1480263-A1.xml")
    return docno
