"""Reads topics. What violates the format is a ValueError that names the file and the topic."""

import os
import re
from collections import defaultdict
from typing import NamedTuple

from pyterrier_graph.datasets.clef_ip.patents import is_docno, parse_xpath
from pyterrier_graph.datasets.clef_ip.text_files import read_text

_TAG = re.compile(r"<t?(id|file|fam-docs|claims)\s*>([^<]*)", re.IGNORECASE)


class Topic(NamedTuple):
    """A topic: claims of an application, for which prior art is searched."""

    query_id: str
    document: str  # docno of the application; the collection need not contain it
    claims: tuple[str, ...]  # XPaths of the claims in the application
    family: tuple[str, ...] = ()  # docnos of its family that were published before it; empty in the topics of 2012


def read_topics(path: str | os.PathLike[str]) -> list[Topic]:
    """Reads a file of topics.

    A topic begins with the tag ``tid`` (or ``id``). The tags ``tfile``, ``tfam-docs`` and ``tclaims`` follow in any
    order. Line breaks and closing tags are ignored.
    """
    blocks: list[dict[str, list[str]]] = []
    for name, content in _TAG.findall(read_text(path)):
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
