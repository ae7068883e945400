"""CLEF-IP as ir_datasets datasets: patents, and the task of 2012 and 2013 to find passages for claims.

The ids are ``clef-ip``, which has the patents alone, and ``clef-ip/2012/claims-to-passages/{train,test}/{en,de,fr}``
and ``clef-ip/2013/claims-to-passages/{train,test}/{en,de,fr}``, which also have queries and judgments of passages.

The files are licensed and have to be fetched by hand: the error for a missing file says where to get it and where to
put it.
"""

# No "from __future__ import annotations": PyTerrier's text loader wants fields that are annotated with str, not "str".

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ir_datasets.datasets.base import Dataset
from ir_datasets.formats import BaseDocs, BaseQrels, BaseQueries
from ir_datasets.indices.base import DEFAULT_DOCSTORE_OPTIONS

from pyterrier_graph.datasets.clef_ip.layout import DATASET_ID, TASK_FILES, archive, home
from pyterrier_graph.datasets.clef_ip.patents import Patent
from pyterrier_graph.datasets.clef_ip.task import LANGUAGES, ClefIpQrel, ClefIpQuery, TopicSet
from pyterrier_graph.datasets.irds import DocsIter, LookedUpDocs, check_name
from pyterrier_graph.documents import Link, Node, Reference

TASK = "claims-to-passages"

__all__ = ["ClefIpDoc", "ClefIpQrel", "ClefIpQuery", "archive", "dataset", "dataset_names"]


class ClefIpDoc(NamedTuple):
    """A patent as a document of ir_datasets.

    Attributes:
        doc_id: Its docno, such as ``EP-1480263-A1``.
        title: Its title, in its language.
        text: The passages, separated by blank lines.
        language: ``'EN'``, ``'DE'``, ``'FR'``.
        nodes: Sections and passages. This field and the three after it are those of
            :class:`pyterrier_graph.documents.StructuredDocument`.
        codes: IPC codes, as subclass and as group.
        xpaths: The XPath of each passage.
    """

    doc_id: str
    title: str
    text: str
    language: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    references: tuple[Reference, ...]
    codes: tuple[str, ...]
    xpaths: tuple[str, ...]

    def default_text(self) -> str:
        """Title and text."""
        return f"{self.title} {self.text}"


def dataset_names() -> list[str]:
    """The ir_datasets ids."""
    tasks = (split.split("/") for split in TASK_FILES)
    ids = [f"{DATASET_ID}/{year}/{TASK}/{split}/{language}" for year, split in tasks for language in LANGUAGES]
    return [DATASET_ID, *ids]


def dataset(name: str) -> Dataset:
    """The ir_datasets dataset of one of :func:`dataset_names`. Its files are read when they are first needed."""
    check_name(name, dataset_names())
    if name == DATASET_ID:
        return Dataset(_DOCS)
    _, year, _, split, language = name.split("/")
    return Dataset(_DOCS, _Queries(f"{year}/{split}", language), _Qrels(f"{year}/{split}", language))


class _Docs(BaseDocs):
    def docs_iter(self, *, workers: int = 1, strict: bool = False) -> DocsIter:
        read = functools.partial(archive().patents, workers=workers, strict=strict)
        return DocsIter(lambda: map(_document, read()))

    def docs_store(self, options: Any = DEFAULT_DOCSTORE_OPTIONS) -> LookedUpDocs:
        patents = archive()
        return LookedUpDocs(lambda docno: _document(patents.patent(docno)), ClefIpDoc, options)

    def docs_count(self) -> None:
        return None  # counting would list millions of files

    def docs_cls(self) -> type[ClefIpDoc]:
        return ClefIpDoc

    def docs_namespace(self) -> str:
        return DATASET_ID


_DOCS = _Docs()  # one object for all: so ir_datasets knows that they share their documents


def _document(patent: Patent) -> ClefIpDoc:
    record = patent.to_record()
    return ClefIpDoc(record.pop("docno"), **record)


_topic_set = functools.cache(TopicSet)


@functools.cache
def _qrels(folder: Path, name: str, language: str) -> list[ClefIpQrel]:
    return _topic_set(folder, name).qrels(language)


class _Queries(BaseQueries):
    def __init__(self, name: str, language: str) -> None:
        self._name = name
        self._language = language

    def queries_iter(self) -> Iterator[ClefIpQuery]:
        return _topic_set(home(), self._name).queries(self._language)

    def queries_cls(self) -> type[ClefIpQuery]:
        return ClefIpQuery

    def queries_namespace(self) -> str:
        return f"{DATASET_ID}/{self._name}"

    def queries_lang(self) -> str:
        return self._language


class _Qrels(BaseQrels):
    def __init__(self, name: str, language: str) -> None:
        self._name = name
        self._language = language

    def qrels_iter(self) -> Iterator[ClefIpQrel]:
        return iter(_qrels(home(), self._name, self._language))

    def qrels_cls(self) -> type[ClefIpQrel]:
        return ClefIpQrel

    def qrels_defs(self) -> dict[int, str]:
        return {1: "relevant"}
