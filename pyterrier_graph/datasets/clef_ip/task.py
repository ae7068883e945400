"""Topics and judgments of the task to find passages for claims, joined with the patents that they name."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from pathlib import Path

from pyterrier_graph.datasets.clef_ip.home import DOCUMENTS, TASK_FILES, TaskFiles, archive, missing
from pyterrier_graph.datasets.clef_ip.layout import Archive
from pyterrier_graph.datasets.clef_ip.patents import Patent, read_patent
from pyterrier_graph.datasets.clef_ip.records import ClefIpQrel, ClefIpQuery
from pyterrier_graph.datasets.clef_ip.text_files import Judgment, read_qrels
from pyterrier_graph.datasets.clef_ip.topics import Topic, read_topics
from pyterrier_graph.documents import split_passage_id

LANGUAGES = ("en", "de", "fr")

_logger = logging.getLogger(__name__)


class TopicSet:
    """The topics of a year and split in all languages, with their applications and judgments. Files are read lazily.

    Args:
        folder: The folder of the collection.
        name: The year and split, such as ``2013/test``.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._files = TaskFiles(*(str(folder / file) for file in TASK_FILES[name]))
        self._resolved: dict[str, tuple[list[ClefIpQrel], list[Judgment]]] = {}

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

    def judgments(self, language: str) -> Iterator[Judgment]:
        """The judgments of the topics in a language, as their file has them."""
        wanted = {topic.query_id for topic in self._in_language(language)}
        path = self._existing(self._files.qrels.format(language.upper()))
        return (judgment for judgment in read_qrels(path) if judgment.query_id in wanted)

    def resolved(self, language: str) -> tuple[list[ClefIpQrel], list[Judgment]]:
        """Judgments of passages in the collection, and the judgments whose passages are not in the collection."""
        if language not in self._resolved:
            self._resolved[language] = self._resolve(language)
        return self._resolved[language]

    def _resolve(self, language: str) -> tuple[list[ClefIpQrel], list[Judgment]]:
        judgments = [*self.judgments(language)]
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
                unresolved.append(judgment)
        if unresolved:
            message = "%s/%s: %d of %d judgments are left out: the collection has no such passages, for example %s"
            examples = ", ".join(f"{found.docno}{found.xpath}" for found in unresolved[:3])
            _logger.warning(message, self._name, language, len(unresolved), len(judgments), examples)
        order = {topic.query_id: place for place, topic in enumerate(self._topics)}
        return sorted(qrels.values(), key=lambda qrel: order[qrel.query_id]), unresolved

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
