"""The CLEF-IP collection, and the task of 2012 and 2013 to find passages for claims, as ir_datasets datasets.

The ids are ``clef-ip``, with the patents alone, and ``clef-ip/2012/claims-to-passages/{train,test}/{en,de,fr}`` and
``clef-ip/2013/claims-to-passages/{train,test}/{en,de,fr}``, with queries and judgments of passages too.

The files are licensed and cannot be downloaded from here; ``INSTRUCTIONS`` says where to get them and where to put
them.
"""

# No "from __future__ import annotations": PyTerrier's text loader wants fields that are annotated with str, not "str".

import functools
import itertools
import logging
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ir_datasets.datasets.base import Dataset
from ir_datasets.formats import BaseDocs, BaseQrels, BaseQueries, GenericQrel
from ir_datasets.indices.base import DEFAULT_DOCSTORE_OPTIONS, Docstore
from ir_datasets.util import home_path

from pyterrier_graph.datasets.clef_ip.layout import Archive, PatentIterator
from pyterrier_graph.datasets.clef_ip.patents import Patent, read_patent
from pyterrier_graph.datasets.clef_ip.qrels import Judgment, read_qrels
from pyterrier_graph.datasets.clef_ip.topics import Topic, read_topics
from pyterrier_graph.documents import Link, Node, Reference, split_passage_id

DATASET_ID = "clef-ip"
TASK = "claims-to-passages"
LANGUAGES = ("en", "de", "fr")
DOCUMENTS = "documents"


class TaskFiles(NamedTuple):
    """Where the files of a set of topics lie; names as they are when unpacked, the misprints included.

    Attributes:
        topics: The topics.
        applications: Folder of the applications whose claims they are.
        qrels: The judgments; ``{}`` stands for a language.
    """

    topics: str
    applications: str
    qrels: str


TASK_FILES = {
    "2012/train": TaskFiles(
        "clef-ip-2012-clms-psg-training/clef-ip-2012-clms-psg-training-topics.txt",
        "clef-ip-2012-clms-psg-training/clef-ip-2012-clms-psg-training-tfile",
        "clef-ip-2012-clms-psg-training/clef-ip-2012-clms-psg-training-qrels.txt",
    ),
    "2012/test": TaskFiles(
        "clef-ip-2012-clms-psg-TEST/clef-ip-2012-clms-psg-TEST.txt",
        "clef-ip-2012-clms-psg-TEST/tfiles",
        "2012-clef-ip-clsm-to-psg-qrels/2012-clef-ip-QRELS-{}-claims-to-passages.txt",
    ),
    "2013/train": TaskFiles(  # its topics are those of 2012
        "clef-ip-2013-clms-psg-training/clef-ip-2013-clms-psg-training-topics.txt",
        "clef-ip-2013-clms-psg-training/clef-ip-2013-clms-psg-training-tfile",
        "clef-ip-2013-clms-psg-training/clef-ip-2103-clms-psg-training-qrels.txt",
    ),
    "2013/test": TaskFiles(
        "clef-ip-2013-clms-psg-TEST/clef-ip-2013-clms-psg-TEST.txt",
        "clef-ip-2013-clms-psg-TEST/tfiles",
        "2013-clef-ip-clsm-to-psg-qrels/2013-clef-ip-QRELS-{}-claims-to-passages.txt",
    ),
}

INSTRUCTIONS = f"""\
CLEF-IP is published by TU Wien under the license CC BY-NC-SA 3.0:
  https://doi.org/10.48436/nw2xc-41j75 (2013), https://doi.org/10.48436/khw86-rnf37 (2012)
Unpack 01_document_collection.tgz and the .7z archives in it so that the folder {DOCUMENTS}/ holds EP/ and WO/, as in
  {DOCUMENTS}/EP/000000/96/81/18/EP-0968118-A1.xml, or, with one folder per patent,
  {DOCUMENTS}/EP-0968118/EP-0968118-A1.xml
Unpack 02_topics.tgz and the archives in it so that there are, beside {DOCUMENTS}/,
""" + "\n".join(f"  {path}" for files in TASK_FILES.values() for path in files)

_logger = logging.getLogger(__name__)


class ClefIpDoc(NamedTuple):
    """A patent as ir_datasets hands it out.

    Attributes:
        doc_id: Its docno, such as ``EP-1480263-A1``.
        title: Its title, in its language.
        text: The passages, with blank lines between them.
        language: ``'EN'``, ``'DE'``, ``'FR'``.
        nodes: This field and the three after it: see :class:`pyterrier_graph.documents.StructuredDocument`.
        codes: IPC codes, as subclass and as group.
        xpaths: Of the passages, by number.
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


class ClefIpQuery(NamedTuple):
    """A topic, with what its application says.

    Attributes:
        query_id: Its id.
        text: The claims that prior art is sought for.
        abstract: The application's abstract; empty if it has none.
        title: Its title.
        language: ``'EN'``, ``'DE'``, ``'FR'``.
        document: Its docno.
        claims: XPaths of the claims in it.
        codes: Its IPC codes, as subclass and as group.
        family: Docnos of its family published before it; none in the topics of 2012.
    """

    query_id: str
    text: str
    abstract: str
    title: str
    language: str
    document: str
    claims: tuple[str, ...]
    codes: tuple[str, ...]
    family: tuple[str, ...]

    def default_text(self) -> str:
        """The claims."""
        return self.text


class ClefIpQrel(NamedTuple):
    """A judged passage; ``iteration`` is its XPath as the judgments have it."""

    query_id: str
    doc_id: str
    relevance: int
    iteration: str


def dataset_names() -> list[str]:
    """The ir_datasets ids."""
    tasks = (split.split("/") for split in TASK_FILES)
    ids = [f"{DATASET_ID}/{year}/{TASK}/{split}/{language}" for year, split in tasks for language in LANGUAGES]
    return [DATASET_ID, *ids]


def dataset(name: str) -> Dataset:
    """An ir_datasets dataset; no file is looked for before it is needed.

    Args:
        name: One of :func:`dataset_names`.

    Raises:
        KeyError: If there is no dataset of that name.
    """
    if name not in dataset_names():
        raise KeyError(f"there is no dataset {name}, the names are {', '.join(dataset_names())}")
    if name == DATASET_ID:
        return Dataset(_DOCS)
    _, year, _, split, language = name.split("/")
    return Dataset(_DOCS, _Queries(f"{year}/{split}", language), _Qrels(f"{year}/{split}", language))


def archive() -> Archive:
    """The patents under ir_datasets' home.

    Raises:
        FileNotFoundError: If they are not there; the message says where to get them.
    """
    folder = _folder() / DOCUMENTS
    if not folder.is_dir() or not any(entry.is_dir() for entry in os.scandir(folder)):
        raise _missing(folder)
    return Archive(folder)


def _folder() -> Path:
    return home_path() / DATASET_ID


def _missing(path: Path) -> FileNotFoundError:
    return FileNotFoundError(f"{path} is not there. {INSTRUCTIONS}")


def _document(patent: Patent) -> ClefIpDoc:
    record = patent.to_record()
    return ClefIpDoc(record.pop("docno"), **record)


class _DocsIter:
    """Iterates over patents; a slice of it iterates over that part of them."""

    def __init__(self, reading: functools.partial[PatentIterator], part: range = range(sys.maxsize)) -> None:
        self._reading = reading
        self._part = part
        self._documents = map(_document, itertools.islice(reading(), part.start, part.stop, part.step))

    def __iter__(self) -> Iterator[ClefIpDoc]:
        return self

    def __next__(self) -> ClefIpDoc:
        return next(self._documents)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            if min(key.start or 0, key.stop or 0, key.step or 0) < 0:
                raise ValueError("how many documents there are is not known, so they cannot be counted from the end")
            return _DocsIter(self._reading, self._part[key])
        for document in self[key : key + 1]:
            return document
        raise IndexError(f"there is no document {key}")


class _Docstore(Docstore):
    def __init__(self, patents: Archive, options: Any) -> None:
        super().__init__(ClefIpDoc, options=options)
        self._archive = patents

    def get_many_iter(self, doc_ids: Iterable[str]) -> Iterator[ClefIpDoc]:
        for doc_id in doc_ids:
            try:
                patent = self._archive.patent(doc_id)
            except KeyError:
                continue
            yield _document(patent)


class _Docs(BaseDocs):
    def docs_iter(self, *, workers: int = 1, strict: bool = False, verbose: bool = False) -> _DocsIter:
        return _DocsIter(functools.partial(archive().patents, workers=workers, strict=strict, verbose=verbose))

    def docs_store(self, options: Any = DEFAULT_DOCSTORE_OPTIONS) -> Docstore:
        return _Docstore(archive(), options)

    def docs_count(self) -> None:
        return None  # millions of files would have to be listed

    def docs_cls(self) -> type[ClefIpDoc]:
        return ClefIpDoc

    def docs_namespace(self) -> str:
        return DATASET_ID


_DOCS = _Docs()  # one for all: ir_datasets tells by it that they share their documents


class _TopicSet:
    """The topics of a year and split, in all languages, with their applications and judgments."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._files = TaskFiles(*(str(folder / file) for file in TASK_FILES[name]))
        self._resolved: dict[str, tuple[list[ClefIpQrel], list[Judgment]]] = {}

    @functools.cached_property
    def topics(self) -> list[Topic]:
        return read_topics(self._existing(self._files.topics))

    def application(self, docno: str) -> Patent:
        path = Path(self._files.applications, f"{docno}.xml")
        if not path.is_file():
            try:
                path = Archive(self._folder / DOCUMENTS).path(docno)
            except KeyError:
                raise _missing(path) from None
        return read_patent(path)

    @functools.cached_property
    def _judged_in(self) -> dict[str, str]:
        """The languages of topics that the names of the judgments' files tell."""
        files = {language: Path(self._files.qrels.format(language.upper())) for language in LANGUAGES}
        if len({*files.values()}) == 1:
            return {}
        return {
            judgment.query_id: language
            for language, path in files.items()
            if path.exists()
            for judgment in read_qrels(path)
        }

    def in_language(self, language: str) -> Iterator[Topic]:
        for topic in self.topics:
            known = self._judged_in.get(topic.query_id)
            if language == (known or self.application(topic.document).language.lower()):
                yield topic

    def queries(self, language: str) -> Iterator[ClefIpQuery]:
        for topic in self.in_language(language):
            application = self.application(topic.document)
            yield ClefIpQuery(
                topic.query_id,
                _claims_text(topic, application),
                application.abstract,
                application.title,
                language.upper(),
                topic.document,
                topic.claims,
                application.codes,
                topic.family,
            )

    def judgments(self, language: str) -> Iterator[Judgment]:
        wanted = {topic.query_id for topic in self.in_language(language)}
        path = self._existing(self._files.qrels.format(language.upper()))
        return (judgment for judgment in read_qrels(path) if judgment.query_id in wanted)

    def resolved(self, language: str) -> tuple[list[ClefIpQrel], list[Judgment]]:
        """Judgments as passages of the collection, and those that no passage is found for."""
        if language not in self._resolved:
            by_document: dict[str, list[Judgment]] = defaultdict(list)
            for judgment in self.judgments(language):
                by_document[judgment.docno].append(judgment)
            qrels: dict[tuple[str, str], ClefIpQrel] = {}
            unresolved = []
            patents = archive()
            for docno, judgments in by_document.items():
                try:
                    patent = patents.patent(docno)
                except (KeyError, ValueError) as error:
                    _logger.warning("%s: %s", self._name, error.args[0])
                    unresolved += judgments
                    continue
                for judgment in judgments:
                    try:
                        passage = patent.passage_id(judgment.xpath)
                    except (KeyError, ValueError):
                        unresolved.append(judgment)
                        continue
                    qrel = ClefIpQrel(judgment.query_id, passage, judgment.relevance, judgment.xpath)
                    qrels.setdefault((judgment.query_id, passage), qrel)
            if unresolved:
                total = sum(map(len, by_document.values()))
                message = "%s/%s: %d of %d judgments are left out, there is no such passage: %s"
                examples = ", ".join(f"{found.docno}{found.xpath}" for found in unresolved[:3])
                _logger.warning(message, self._name, language, len(unresolved), total, examples)
            order = {topic.query_id: place for place, topic in enumerate(self.topics)}
            self._resolved[language] = sorted(qrels.values(), key=lambda qrel: order[qrel.query_id]), unresolved
        return self._resolved[language]

    def _existing(self, path: str) -> str:
        if not os.path.exists(path):
            raise _missing(Path(path))
        return path


@functools.cache
def _topic_set(folder: Path, name: str) -> _TopicSet:
    return _TopicSet(folder, name)


def _claims_text(topic: Topic, application: Patent) -> str:
    texts = {}
    for xpath in topic.claims:
        try:
            passage = application.passage_id(xpath)
        except KeyError as error:
            _logger.warning("topic %s: %s", topic.query_id, error.args[0])
            continue
        texts[passage] = application.passages[split_passage_id(passage)[1] or 0]
    return " ".join(texts.values()) or application.title


class _Queries(BaseQueries):
    def __init__(self, name: str, language: str) -> None:
        self._name = name
        self._language = language

    def queries_iter(self) -> Iterator[ClefIpQuery]:
        return _topic_set(_folder(), self._name).queries(self._language)

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
        return iter(_topic_set(_folder(), self._name).resolved(self._language)[0])

    def qrels_unresolved(self) -> list[Judgment]:
        """The judgments of passages that the collection does not have."""
        return _topic_set(_folder(), self._name).resolved(self._language)[1]

    def qrels_documents_iter(self) -> Iterator[GenericQrel]:
        """Judgments of documents: one is as relevant as its best passage, whether that is in the collection or not."""
        best: dict[tuple[str, str], int] = {}
        for query_id, docno, _, relevance in _topic_set(_folder(), self._name).judgments(self._language):
            best[query_id, docno] = max(relevance, best.get((query_id, docno), relevance))
        return (GenericQrel(query_id, docno, relevance) for (query_id, docno), relevance in best.items())

    def qrels_cls(self) -> type[ClefIpQrel]:
        return ClefIpQrel

    def qrels_defs(self) -> dict[int, str]:
        return {1: "relevant"}
