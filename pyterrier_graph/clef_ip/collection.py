"""CLEF-IP as ir_datasets datasets: patents, and the task of 2013 to find passages for claims.

The ids are ``clef-ip``, which has the patents alone, and ``clef-ip/2013/claims-to-passages/SPLIT/LANGUAGE``
(train or test; en, de or fr), which also have queries and judgments of passages. The files are licensed
and have to be fetched by hand: the error for a missing file has instructions.
"""

# No "from __future__ import annotations": PyTerrier's text loader wants fields that are annotated with str, not "str".

import functools
import itertools
import warnings
from collections.abc import Iterator
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
    find,
    read_qrels,
    read_topics,
)
from pyterrier_graph.clef_ip.patents import Patent, normalize_xpath, read_patent
from pyterrier_graph.documents.irds import Docs, Qrels, Queries

TASK = f"{DATASET_ID}/2013/claims-to-passages"
LANGUAGES = ("en", "de", "fr")


class ClefIpQuery(NamedTuple):
    """A topic: claims of a patent application, for which prior art is searched.

    Attributes:
        text: The claims.
        abstract: The application's abstract, or ``''``. Title, language, document and codes are also the application's.
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


@functools.cache
def datasets() -> dict[str, Dataset]:
    """The datasets by their ir_datasets ids. Files are read when they are needed."""
    # one object for all: so ir_datasets knows that they share their documents
    docs = Docs(Patent, lambda: archive().patents(), lambda: archive().patent)
    by_id = {DATASET_ID: Dataset(docs)}
    for split, language in itertools.product(TASK_FILES, LANGUAGES):
        read_queries = functools.partial(_queries, split, language)
        read_judgments = functools.partial(_qrels, split, language)
        queries = Queries(read_queries, language, ClefIpQuery)
        qrels = Qrels(read_judgments, {1: "relevant"}, TrecQrel)
        by_id[f"{TASK}/{split}/{language}"] = Dataset(docs, queries, qrels)
    return by_id


def _queries(split: str, language: str) -> Iterator[ClefIpQuery]:
    """The topics, each with the texts and codes of its application."""
    for topic in _topics(split, language):
        application = _application(split, topic)
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


def _qrels(split: str, language: str) -> Iterator[TrecQrel]:
    """The judged passages, with the XPath in the file of judgments as ``iteration``.

    Judgments of passages that are not in the collection are left out with a warning.
    """
    patent = functools.cache(archive().patent)
    topics = {topic.query_id for topic in _topics(split, language)}
    qrels: dict[tuple[str, str], TrecQrel] = {}
    unresolved = []
    for query_id, docno, xpath in _judgments(split, language):
        if query_id not in topics:
            continue
        try:
            passage = patent(docno).passage_id(xpath)
        except KeyError:
            unresolved.append(f"{docno}{xpath}")
            continue
        judgment = TrecQrel(query_id, passage, 1, xpath)
        qrels.setdefault((query_id, passage), judgment)
    if unresolved:
        warnings.warn(
            f"{split}/{language}: {len(unresolved)} judgments are left out: the collection has no such passages, "
            f"for example {unresolved[0]}; is it complete?",
            DataWarning,
            stacklevel=2,
        )
    return iter(qrels.values())


def _topics(split: str, language: str) -> list[Topic]:
    """The topics in the language's file of judgments; without such a file, the topics whose applications are in it."""
    files = TASK_FILES[split]
    topics = read_topics(find(files.topics))
    if "{}" in files.qrels:  # a file per language
        judged = {judgment.query_id for judgment in _judgments(split, language)}
        return [topic for topic in topics if topic.query_id in judged]
    in_language = []
    for topic in topics:
        application = _application(split, topic)
        if application.language == language.upper():
            in_language.append(topic)
    return in_language


def _judgments(split: str, language: str) -> Iterator[Judgment]:
    file = TASK_FILES[split].qrels.format(language.upper())
    return read_qrels(find(file))


def _application(split: str, topic: Topic) -> Patent:
    folder = TASK_FILES[split].applications
    return read_patent(find(f"{folder}/{topic.document}.xml"))


def _claims_text(topic: Topic, application: Patent) -> str:
    """The claims of a topic, or the title of its application if it has none of them."""
    passages = dict(zip(application.xpaths, application.passages, strict=True))
    xpaths = [normalize_xpath(claim) for claim in topic.claims]
    distinct = dict.fromkeys(xpaths)
    texts = [passages[xpath] for xpath in distinct if xpath in passages]
    return " ".join(texts) or application.title
