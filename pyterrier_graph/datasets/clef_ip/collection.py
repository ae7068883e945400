"""CLEF-IP as ir_datasets datasets: patents, and the task of 2012 and 2013 to find passages for claims.

The ids are ``clef-ip``, which has the patents alone, and ``clef-ip/2012/claims-to-passages/{train,test}/{en,de,fr}``
and ``clef-ip/2013/claims-to-passages/{train,test}/{en,de,fr}``, which also have queries and judgments of passages.

The files are licensed and have to be fetched by hand: the error for a missing file says where to get it and where to
put it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ir_datasets.datasets.base import Dataset
from ir_datasets.formats import BaseDocs, BaseQrels, BaseQueries, GenericQrel
from ir_datasets.indices.base import DEFAULT_DOCSTORE_OPTIONS

from pyterrier_graph.datasets.clef_ip.home import DATASET_ID, TASK_FILES, archive, home
from pyterrier_graph.datasets.clef_ip.patents import Patent
from pyterrier_graph.datasets.clef_ip.records import ClefIpDoc, ClefIpQrel, ClefIpQuery
from pyterrier_graph.datasets.clef_ip.task import LANGUAGES, TopicSet
from pyterrier_graph.datasets.clef_ip.text_files import Judgment
from pyterrier_graph.datasets.irds import DocsIter, LookedUpDocs

TASK = "claims-to-passages"

__all__ = ["ClefIpDoc", "ClefIpQrel", "ClefIpQuery", "archive", "dataset", "dataset_names"]


def dataset_names() -> list[str]:
    """The ir_datasets ids."""
    tasks = (split.split("/") for split in TASK_FILES)
    ids = [f"{DATASET_ID}/{year}/{TASK}/{split}/{language}" for year, split in tasks for language in LANGUAGES]
    return [DATASET_ID, *ids]


def dataset(name: str) -> Dataset:
    """An ir_datasets dataset. Its files are read when they are first needed.

    Args:
        name: One of :func:`dataset_names`.

    Raises:
        KeyError: If there is no dataset of that name.
    """
    if name not in dataset_names():
        raise KeyError(f"there is no dataset {name}; there are {', '.join(dataset_names())}")
    if name == DATASET_ID:
        return Dataset(_DOCS)
    _, year, _, split, language = name.split("/")
    return Dataset(_DOCS, _Queries(f"{year}/{split}", language), _Qrels(f"{year}/{split}", language))


class _Docs(BaseDocs):
    def docs_iter(self, *, workers: int = 1, strict: bool = False, verbose: bool = False) -> DocsIter:
        read = functools.partial(archive().patents, workers=workers, strict=strict, verbose=verbose)
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


@functools.cache
def _topic_set(folder: Path, name: str) -> TopicSet:
    return TopicSet(folder, name)


class _InLanguage:
    def __init__(self, name: str, language: str) -> None:
        self._name = name
        self._language = language

    def _topics(self) -> TopicSet:
        return _topic_set(home(), self._name)


class _Queries(_InLanguage, BaseQueries):
    def queries_iter(self) -> Iterator[ClefIpQuery]:
        return self._topics().queries(self._language)

    def queries_cls(self) -> type[ClefIpQuery]:
        return ClefIpQuery

    def queries_namespace(self) -> str:
        return f"{DATASET_ID}/{self._name}"

    def queries_lang(self) -> str:
        return self._language


class _Qrels(_InLanguage, BaseQrels):
    def qrels_iter(self) -> Iterator[ClefIpQrel]:
        return iter(self._topics().resolved(self._language)[0])

    def qrels_unresolved(self) -> list[Judgment]:
        """The judgments of passages that are not in the collection."""
        return self._topics().resolved(self._language)[1]

    def qrels_documents_iter(self) -> Iterator[GenericQrel]:
        """Judgments of documents: the grade of the best judged passage, whether or not the collection contains it."""
        best: dict[tuple[str, str], int] = {}
        for query_id, docno, _, relevance in self._topics().judgments(self._language):
            best[query_id, docno] = max(relevance, best.get((query_id, docno), relevance))
        return (GenericQrel(query_id, docno, relevance) for (query_id, docno), relevance in best.items())

    def qrels_cls(self) -> type[ClefIpQrel]:
        return ClefIpQrel

    def qrels_defs(self) -> dict[int, str]:
        return {1: "relevant"}
