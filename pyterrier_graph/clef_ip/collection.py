"""CLEF-IP as ir_datasets datasets: patents, and the task of 2012 and 2013 to find passages for claims.

The ids are ``clef-ip``, which has the patents alone, and ``clef-ip/YEAR/claims-to-passages/SPLIT/LANGUAGE``
(2012 or 2013; train or test; en, de or fr), which also have queries and judgments of passages. The files are licensed
and have to be fetched by hand: the error for a missing file has instructions.
"""

# No "from __future__ import annotations": PyTerrier's text loader wants fields that are annotated with str, not "str".

import functools
import logging
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ir_datasets.datasets.base import Dataset

from pyterrier_graph.checks import DataWarning
from pyterrier_graph.clef_ip.files import (
    DATASET_ID,
    TASK_FILES,
    Judgment,
    Topic,
    archive,
    home,
    missing,
    read_qrels,
    read_topics,
)
from pyterrier_graph.clef_ip.patents import Patent, format_xpath, parse_xpath, read_patent
from pyterrier_graph.documents.document import Link, Node, Reference
from pyterrier_graph.documents.irds import Docs, Lookup, Qrels, Queries

TASK = "claims-to-passages"
LANGUAGES = ("en", "de", "fr")

_logger = logging.getLogger(__name__)


class ClefIpDoc(NamedTuple):
    """A patent as a document of ir_datasets.

    Attributes:
        doc_id: Its docno, such as ``EP-1480263-A1``.
        text: The passages, separated by blank lines.
        nodes: Sections and passages. This field and the three after it are those of
            :class:`~pyterrier_graph.StructuredDocument`, the others those of ``Patent``.
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
        abstract: The application's abstract, or ``''``; title, language, document and codes are the application's, too.
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
    ids = [
        f"{DATASET_ID}/{year}/{TASK}/{split}/{language}"
        for year, split in tasks
        for language in LANGUAGES
    ]
    return [DATASET_ID, *ids]


def dataset(name: str) -> Dataset:
    """The ir_datasets dataset of one of :func:`dataset_names`. Its files are read when they are first needed."""
    if name not in dataset_names():
        raise KeyError(f"there is no dataset {name!r}; there are {', '.join(dataset_names())}")
    if name == DATASET_ID:
        return Dataset(_DOCS)
    _, year, _, split, language = name.split("/")
    task = _Task(f"{year}/{split}", language)
    qrels = Qrels(lambda: iter(_qrels(home(), task)), {1: "relevant"}, ClefIpQrel)
    return Dataset(_DOCS, Queries(task.queries, language, ClefIpQuery), qrels)


def _lookup() -> Lookup:
    patents = archive()
    return lambda docno: _document(patents.patent(docno))


def _document(patent: Patent) -> ClefIpDoc:
    record = patent.to_record()
    return ClefIpDoc(record.pop("docno"), **record)


# one object for all: so ir_datasets knows that they share their documents; counting would list millions of files
_DOCS = Docs(ClefIpDoc, lambda: map(_document, archive().patents()), _lookup)


class _Task(NamedTuple):
    """The task of a year and split, such as ``2013/test``, in a language. Files are read when they are needed."""

    name: str
    language: str

    def queries(self) -> Iterator[ClefIpQuery]:
        """The topics, each with the texts and codes of its application."""
        for topic in self._topics():
            application = self._application(topic)
            yield ClefIpQuery(
                topic.query_id,
                _claims_text(topic, application),
                application.abstract,
                application.title,
                self.language.upper(),
                topic.document,
                topic.claims,
                application.codes,
                topic.family,
            )

    def qrels(self) -> list[ClefIpQrel]:
        """The judged passages. Judgments of passages that are not in the collection are left out with a warning."""
        order = {topic.query_id: number for number, topic in enumerate(self._topics())}
        judgments = [judgment for judgment in self._judgments() if judgment.query_id in order]
        by_document: dict[str, list[Judgment]] = defaultdict(list)
        for judgment in judgments:
            by_document[judgment.docno].append(judgment)
        patents = archive()
        qrels: dict[tuple[str, str], ClefIpQrel] = {}
        unresolved = []
        for docno, judged in by_document.items():
            try:
                patent = patents.patent(docno)
            except (KeyError, ValueError) as error:
                _logger.warning("%s", error.args[0])
                unresolved += [f"{docno}{judgment.xpath}" for judgment in judged]
                continue
            for query_id, _, xpath in judged:
                try:
                    passage = patent.passage_id(xpath)
                    qrels.setdefault((query_id, passage), ClefIpQrel(query_id, passage, 1, xpath))
                except (KeyError, ValueError):
                    unresolved.append(f"{docno}{xpath}")
        if unresolved:
            counts = f"{self.name}/{self.language}: {len(unresolved)} of {len(judgments)} judgments are left out"
            reason = f"the collection has no such passages, for example {', '.join(unresolved[:3])}"
            warnings.warn(f"{counts}: {reason}; is it complete?", DataWarning, stacklevel=3)
        return sorted(qrels.values(), key=lambda qrel: order[qrel.query_id])

    def _topics(self) -> list[Topic]:
        """The topics in the language: those that its file judges, or else those whose applications are in it."""
        topics = read_topics(self._file(TASK_FILES[self.name].topics))
        if "{}" in TASK_FILES[self.name].qrels:
            judged = {judgment.query_id for judgment in self._judgments()}
            return [topic for topic in topics if topic.query_id in judged]
        return [
            topic for topic in topics if self._application(topic).language.lower() == self.language
        ]

    def _judgments(self) -> list[Judgment]:
        return [*read_qrels(self._file(TASK_FILES[self.name].qrels.format(self.language.upper())))]

    def _application(self, topic: Topic) -> Patent:
        return read_patent(self._file(f"{TASK_FILES[self.name].applications}/{topic.document}.xml"))

    def _file(self, path: str) -> Path:
        if not (file := home() / path).is_file():
            raise missing(file)
        return file


def _claims_text(topic: Topic, application: Patent) -> str:
    """The claims of a topic, or the title of its application if it has none of them."""
    passages = dict(zip(application.xpaths, application.passages, strict=True))
    texts = {}
    for xpath in topic.claims:
        claim = format_xpath(*parse_xpath(xpath))
        if claim in passages:
            texts[claim] = passages[claim]
        else:
            _logger.warning(
                "topic %s: %s has no passage at %s", topic.query_id, topic.document, xpath
            )
    return " ".join(texts.values()) or application.title


@functools.cache
def _qrels(folder: Path, task: _Task) -> list[ClefIpQrel]:
    return task.qrels()
