"""Reads the topics of the task: claims of applications, for which prior art is searched."""

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
        document: Docno of the application; the collection need not contain it.
        claims: XPaths of the claims in the application.
        family: Docnos of the application's family that were published before it; empty in the topics of 2012.
    """

    query_id: str
    document: str
    claims: tuple[str, ...]
    family: tuple[str, ...] = ()


def read_topics(path: str | os.PathLike[str]) -> list[Topic]:
    """Reads a file of topics.

    A topic begins with the tag ``tid`` (or ``id``). The tags ``tfile``, ``tfam-docs`` and ``tclaims`` follow in any
    order. Line breaks and closing tags are ignored.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file has no topic, or a topic is incomplete, repeated, or names what is no file of a patent;
            the message names file and topic.
    """
    topics: dict[str, Topic] = {}
    for topic in _topics(read_text(path), str(path)):
        if topic.query_id in topics:
            raise ValueError(f"{path}: topic {topic.query_id} is there twice")
        topics[topic.query_id] = topic
    if not topics:
        raise ValueError(f"{path}: there is no topic, which would begin with <tid>")
    return [*topics.values()]


def _topics(text: str, path: str) -> Iterator[Topic]:
    fields: dict[str, list[str]] = {}
    for name, content in [(name.lower(), content.split()) for name, content in _TAG.findall(text)] + [("id", [])]:
        if name == "id" and fields:
            yield _topic(fields, path)
            fields = {}
        fields.setdefault(name, []).extend(content)


def _topic(fields: dict[str, list[str]], path: str) -> Topic:
    ids, files = fields.get("id", ()), fields.get("file", ())
    if len(ids) != 1:
        raise ValueError(f"{path}: <tid> must have one word, got {ids}")
    place = f"{path}, topic {ids[0]}"
    if len(files) != 1:
        raise ValueError(f"{place}: <tfile> must name one file, got {files}")
    claims = tuple(dict.fromkeys(claim for word in fields.get("claims", ()) for claim in word.split(",") if claim))
    if not claims:
        raise ValueError(f"{place}: there is no <tclaims> with XPaths of claims")
    for claim in claims:
        try:
            parse_xpath(claim)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error
    family = tuple(dict.fromkeys(_docno(file, place) for file in fields.get("fam-docs", ())))
    return Topic(ids[0], _docno(files[0], place), claims, family)


def _docno(file: str, place: str) -> str:
    docno = file.removesuffix(".xml")
    if not is_docno(docno):
        raise ValueError(f"{place}: {file!r} is not the file of a patent, which has a name like EP-1480263-A1.xml")
    return docno
