"""CLEF-IP as ir_datasets datasets: patents, and the task of 2013 to find passages for claims.

The ids are ``clef-ip``, which has the patents alone, and ``clef-ip/2013/claims-to-passages/SPLIT/LANGUAGE``
(train or test; en, de or fr), which also have queries and judgments of passages. The files are licensed
and have to be fetched by hand: the error for a missing file has instructions.
"""

# No "from __future__ import annotations": PyTerrier's text loader wants fields that are annotated with str, not "str".

import functools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ir_datasets.datasets.base import Dataset
from ir_datasets.formats import TrecQrel

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
from pyterrier_graph.documents.irds import Docs, Qrels, Queries

TASK = f"{DATASET_ID}/2013/claims-to-passages"
LANGUAGES = ("en", "de", "fr")


class ClefIpQuery(NamedTuple):
    """A topic: claims of a patent application, for which prior art is searched.

    Attributes:
        text: The claims.
        abstract: The application's abstract, or ``''``; title, language, document and codes are the application's, too.
        claims: XPaths of the claims in the application.
        family: Docnos of the application's family that were published before it; empty in the topics of train.
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


def dataset_names() -> list[str]:
    """The ir_datasets ids."""
    tasks = [f"{TASK}/{split}/{language}" for split in TASK_FILES for language in LANGUAGES]
    return [DATASET_ID, *tasks]


def dataset(name: str) -> Dataset:
    """The ir_datasets dataset of one of :func:`dataset_names`. Its files are read when they are first needed."""
    if name not in dataset_names():
        raise KeyError(f"there is no dataset {name!r}; there are {', '.join(dataset_names())}")
    if name == DATASET_ID:
        return Dataset(_DOCS)
    task = _Task(*name.split("/")[-2:])
    qrels = Qrels(lambda: iter(_qrels(home(), task)), {1: "relevant"}, TrecQrel)
    return Dataset(_DOCS, Queries(task.queries, task.language, ClefIpQuery), qrels)


# one object for all: so ir_datasets knows that they share their documents; counting would list millions of files
_DOCS = Docs(Patent, lambda: archive().patents(), lambda: archive().patent)


class _Task(NamedTuple):
    """The task of a split in a language. Files are read when they are needed.

    In its judgments, ``iteration`` is the XPath in the file of judgments.
    """

    split: str
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

    def qrels(self) -> list[TrecQrel]:
        """The judged passages. Judgments of passages that are not in the collection are left out with a warning."""
        order = {topic.query_id: number for number, topic in enumerate(self._topics())}
        judgments = [judgment for judgment in self._judgments() if judgment.query_id in order]
        judgments.sort(key=lambda judgment: judgment.docno)  # so that each patent is read once
        patent = functools.lru_cache(maxsize=1)(archive().patent)
        qrels: dict[tuple[str, str], TrecQrel] = {}
        unresolved = []
        for query_id, docno, xpath in judgments:
            try:
                passage = patent(docno).passage_id(xpath)
            except (KeyError, ValueError):
                unresolved.append(f"{docno}{xpath}")
            else:
                qrels.setdefault((query_id, passage), TrecQrel(query_id, passage, 1, xpath))
        if unresolved:
            warnings.warn(
                f"{self.split}/{self.language}: {len(unresolved)} of {len(judgments)} judgments are left out: "
                f"the collection has no such passages, for example {', '.join(unresolved[:3])}; is it complete?",
                DataWarning,
                stacklevel=3,
            )
        return sorted(qrels.values(), key=lambda qrel: order[qrel.query_id])

    def _topics(self) -> list[Topic]:
        """The topics in the language: those that its file judges, or else those whose applications are in it."""
        files = TASK_FILES[self.split]
        topics = read_topics(self._file(files.topics))
        if "{}" in files.qrels:  # a file per language
            judged = {judgment.query_id for judgment in self._judgments()}
            return [topic for topic in topics if topic.query_id in judged]
        language = self.language.upper()
        return [topic for topic in topics if self._application(topic).language == language]

    def _judgments(self) -> list[Judgment]:
        qrels = TASK_FILES[self.split].qrels.format(self.language.upper())
        return [*read_qrels(self._file(qrels))]

    def _application(self, topic: Topic) -> Patent:
        folder = TASK_FILES[self.split].applications
        return read_patent(self._file(f"{folder}/{topic.document}.xml"))

    def _file(self, path: str) -> Path:
        file = home() / path
        if not file.is_file():
            raise missing(file)
        return file


def _claims_text(topic: Topic, application: Patent) -> str:
    """The claims of a topic, or the title of its application if it has none of them."""
    passages = dict(zip(application.xpaths, application.passages, strict=True))
    claims = dict.fromkeys(format_xpath(*parse_xpath(xpath)) for xpath in topic.claims)
    texts = [passages[claim] for claim in claims if claim in passages]
    return " ".join(texts) or application.title


@functools.cache
def _qrels(folder: Path, task: _Task) -> list[TrecQrel]:
    return task.qrels()
