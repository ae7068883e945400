"""CLEF-IP as ir_datasets datasets: patents, and the task of 2012 and 2013 to find passages for claims.

The ids are ``clef-ip``, which has the patents alone, and ``clef-ip/2012/claims-to-passages/{train,test}/{en,de,fr}``
and ``clef-ip/2013/claims-to-passages/{train,test}/{en,de,fr}``, which also have queries and judgments of passages. The
files are licensed and have to be fetched by hand: the error for a missing file says where to get and where to put it.
"""

# No "from __future__ import annotations": PyTerrier's text loader wants fields that are annotated with str, not "str".

import functools
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ir_datasets.datasets.base import Dataset
from ir_datasets.formats import BaseDocs, BaseQrels, BaseQueries
from ir_datasets.indices.base import DEFAULT_DOCSTORE_OPTIONS

from pyterrier_graph.datasets.clef_ip.layout import DATASET_ID, TASK_FILES, TaskFiles, archive, home, missing
from pyterrier_graph.datasets.clef_ip.patents import Patent, read_patent
from pyterrier_graph.datasets.clef_ip.text_files import read_qrels
from pyterrier_graph.datasets.clef_ip.topics import Topic, read_topics
from pyterrier_graph.datasets.irds import DocsIter, LookedUpDocs, check_name
from pyterrier_graph.documents import Link, Node, Reference, split_passage_id
from pyterrier_graph.warning_categories import DataWarning

TASK = "claims-to-passages"
LANGUAGES = ("en", "de", "fr")

_logger = logging.getLogger(__name__)

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


class ClefIpQuery(NamedTuple):
    """A topic: claims of a patent application, for which prior art is searched.

    Attributes:
        text: The claims.
        abstract: The application's abstract, or ``''``; title, language, document and codes are the application's too.
        claims: XPaths of the claims in the application.
        family: Docnos of the application's family that were published before it; empty in the topics of 2012.
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
    """A judged passage; ``iteration`` is the XPath in the file of judgments."""

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


class TopicSet:
    """The topics of a year and split, such as ``2013/test``, in all languages, with their applications and judgments.

    Files in the folder of the collection are read when they are needed.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._name = name
        self._files = TaskFiles(*(str(folder / file) for file in TASK_FILES[name]))

    def queries(self, language: str) -> Iterator[ClefIpQuery]:
        """The topics in a language, each with what its application says."""
        for topic in self._in_language(language):
            application = self._application(topic.document)
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

    def qrels(self, language: str) -> list[ClefIpQrel]:
        """The judged passages. Judgments of passages that are not in the collection are left out with a warning."""
        wanted = {topic.query_id for topic in self._in_language(language)}
        path = self._existing(self._files.qrels.format(language.upper()))
        judgments = [judgment for judgment in read_qrels(path) if judgment.query_id in wanted]
        passages = archive().passage_ids((judgment.docno, judgment.xpath) for judgment in judgments)
        documents = {docno: place for place, docno in enumerate(dict.fromkeys(found.docno for found in judgments))}
        judgments.sort(key=lambda judgment: documents[judgment.docno])
        qrels: dict[tuple[str, str], ClefIpQrel] = {}
        unresolved = []
        for judgment in judgments:
            if passage := passages.get((judgment.docno, judgment.xpath)):
                qrel = ClefIpQrel(judgment.query_id, passage, judgment.relevance, judgment.xpath)
                qrels.setdefault((judgment.query_id, passage), qrel)
            else:
                unresolved.append(f"{judgment.docno}{judgment.xpath}")
        if unresolved:
            counts = f"{self._name}/{language}: {len(unresolved)} of {len(judgments)} judgments are left out"
            reason = f"the collection has no such passages, for example {', '.join(unresolved[:3])}"
            warnings.warn(f"{counts}: {reason}; is it complete?", DataWarning, stacklevel=3)
        order = {topic.query_id: place for place, topic in enumerate(self._topics)}
        return sorted(qrels.values(), key=lambda qrel: order[qrel.query_id])

    @functools.cached_property
    def _topics(self) -> list[Topic]:
        return read_topics(self._existing(self._files.topics))

    def _in_language(self, language: str) -> Iterator[Topic]:
        """The topics in a language: that of the file that judges the topic, or else that of its application."""
        for topic in self._topics:
            judged_in = self._judged_in.get(topic.query_id)
            if language == (judged_in or self._application(topic.document).language.lower()):
                yield topic

    @functools.cached_property
    def _judged_in(self) -> dict[str, str]:
        """The language of each topic, where each language has its own file of judgments."""
        files = {language: Path(self._files.qrels.format(language.upper())) for language in LANGUAGES}
        if len({*files.values()}) == 1:
            return {}
        return {
            judgment.query_id: language
            for language, path in files.items()
            if path.exists()
            for judgment in read_qrels(path)
        }

    def _application(self, docno: str) -> Patent:
        path = Path(self._files.applications, f"{docno}.xml")
        if not path.is_file():
            try:
                path = archive().path(docno)
            except KeyError:
                raise missing(path) from None
        return read_patent(path)

    def _existing(self, path: str) -> str:
        if not Path(path).exists():
            raise missing(Path(path))
        return path


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


_topic_set = functools.cache(TopicSet)


@functools.cache
def _qrels(folder: Path, name: str, language: str) -> list[ClefIpQrel]:
    return _topic_set(folder, name).qrels(language)


class _InLanguage:
    def __init__(self, name: str, language: str) -> None:
        self._name = name
        self._language = language


class _Queries(_InLanguage, BaseQueries):
    def queries_iter(self) -> Iterator[ClefIpQuery]:
        return _topic_set(home(), self._name).queries(self._language)

    def queries_cls(self) -> type[ClefIpQuery]:
        return ClefIpQuery

    def queries_namespace(self) -> str:
        return f"{DATASET_ID}/{self._name}"

    def queries_lang(self) -> str:
        return self._language


class _Qrels(_InLanguage, BaseQrels):
    def qrels_iter(self) -> Iterator[ClefIpQrel]:
        return iter(_qrels(home(), self._name, self._language))

    def qrels_cls(self) -> type[ClefIpQrel]:
        return ClefIpQrel

    def qrels_defs(self) -> dict[int, str]:
        return {1: "relevant"}
