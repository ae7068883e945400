"""Topics and judgments of the task to find passages for claims, joined with the patents that they name."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pyterrier_graph.datasets.clef_ip.layout import DOCUMENTS, TASK_FILES, Archive, TaskFiles, archive, missing
from pyterrier_graph.datasets.clef_ip.patents import Patent, read_patent
from pyterrier_graph.datasets.clef_ip.text_files import Topic, read_qrels, read_topics
from pyterrier_graph.documents import split_passage_id

LANGUAGES = ("en", "de", "fr")

_logger = logging.getLogger(__name__)


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


class TopicSet:
    """The topics of a year and split, such as ``2013/test``, in all languages, with their applications and judgments.

    Files in the folder of the collection are read when they are needed.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
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
            message = "%s/%s: %d of %d judgments are left out: the collection has no such passages, for example %s"
            examples = ", ".join(unresolved[:3])
            _logger.warning(message, self._name, language, len(unresolved), len(judgments), examples)
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
                path = Archive(self._folder / DOCUMENTS).path(docno)
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
