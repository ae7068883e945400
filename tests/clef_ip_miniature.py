"""A miniature CLEF-IP collection in the formats of the real one; its patents are made up, and say something.

An *invention* is a field of technology and three of its parts. A topic's claims are about one invention, and relevant
are the passages of patents of the same invention that are about these three parts; patents of the field that differ in
their parts are next to them. Some patents have an odd form, such as all claims in one element.

The archive has the files of the collection and, in ``expected.json``, what readers must find in them. A program that
does not know the package's readers wrote both, so that each checks the other: this module as of commit 0701867.
"""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

Split = Literal["2012/train", "2012/test", "2013/train", "2013/test"]

ARCHIVE = Path(__file__).with_name("clef_ip_miniature.tar.xz")


class SplitFiles(NamedTuple):
    """Where the files of a split lie under the home folder; ``{}`` in the qrels stands for the language."""

    topics: str
    topic_documents: str
    qrels: str


# The names of 2013 are the real ones with all their misprints, those of 2012 follow their pattern.
SPLITS: dict[Split, SplitFiles] = {
    "2012/train": SplitFiles(
        "clef-ip-2012-clms-psg-training/clef-ip-2012-clms-psg-training-topics.txt",
        "clef-ip-2012-clms-psg-training/clef-ip-2012-clms-psg-training-tfile",
        "clef-ip-2012-clms-psg-training/clef-ip-2012-clms-psg-training-qrels.txt",
    ),
    "2012/test": SplitFiles(
        "clef-ip-2012-clms-psg-TEST/clef-ip-2012-clms-psg-TEST.txt",
        "clef-ip-2012-clms-psg-TEST/tfiles",
        "2012-clef-ip-clsm-to-psg-qrels/2012-clef-ip-QRELS-{}-claims-to-passages.txt",
    ),
    "2013/train": SplitFiles(
        "clef-ip-2013-clms-psg-training/clef-ip-2013-clms-psg-training-topics.txt",
        "clef-ip-2013-clms-psg-training/clef-ip-2013-clms-psg-training-tfile",
        "clef-ip-2013-clms-psg-training/clef-ip-2103-clms-psg-training-qrels.txt",
    ),
    "2013/test": SplitFiles(
        "clef-ip-2013-clms-psg-TEST/clef-ip-2013-clms-psg-TEST.txt",
        "clef-ip-2013-clms-psg-TEST/tfiles",
        "2013-clef-ip-clsm-to-psg-qrels/2013-clef-ip-QRELS-{}-claims-to-passages.txt",
    ),
}


@dataclass(frozen=True)
class Document:
    """The contents of a file, as far as its own language goes.

    Attributes:
        ucid: Country, number and kind: ``EP-0968118-A1``.
        path: Its file, relative to the folder of the documents.
        language: ``EN``, ``DE`` or ``FR``.
        title: In this language.
        family: The id of its family, if it has one.
        passages: (xpath, text with white space normalized) of all paragraphs of the abstract and the description and
            of all claims that are not empty, in the order of the file; in the document's language or, for an abstract
            that there is in other languages only, in the first of these. Only the last step of an xpath has an index.
        headings: (text, number of paragraphs of the description before it).
        claim_references: (number of the claim that refers, number of the claim referred to).
        description_references: (xpath of the paragraph that refers, number of the claim referred to).
        citations: ucids of the patents cited.
        codes: IPC codes, ``F25B30/02``; the first four characters are the subclass.
    """

    ucid: str
    path: Path
    language: str
    title: str
    family: str | None
    passages: tuple[tuple[str, str], ...]
    headings: tuple[tuple[str, int], ...]
    claim_references: tuple[tuple[int, int], ...]
    description_references: tuple[tuple[str, int], ...]
    citations: tuple[str, ...]
    codes: tuple[str, ...]


@dataclass(frozen=True)
class Topic:
    """A topic.

    Attributes:
        tid: Its id.
        split: ``2012/train``, ``2012/test`` or ``2013/test``; the first two together are also ``2013/train``.
        document: The application that it is taken from, which is not among the documents.
        claims: xpaths of its claims in the application.
        text: These claims.
        family: ucids of the application's family; empty for the topics of 2012, which do not have it.
        invention: Its field and which invention of this field; relevant are patents of the same one.
    """

    tid: str
    split: Split
    document: Document
    claims: tuple[str, ...]
    text: str
    family: tuple[str, ...]
    invention: tuple[int, int]

    @property
    def language(self) -> str:
        """The language of its application."""
        return self.document.language


class Judgment(NamedTuple):
    """A relevant passage: ``xpath`` as in :attr:`Document.passages`, ``written`` as in the qrels files."""

    topic: str
    ucid: str
    xpath: str
    written: str


@dataclass(frozen=True)
class Miniature:
    """The files that :func:`write_miniature` wrote.

    Attributes:
        home: The folder.
        documents: By ucid, in the order of their paths.
        topics: By id.
        judgments: All of them.
    """

    home: Path
    documents: dict[str, Document]
    topics: dict[str, Topic]
    judgments: tuple[Judgment, ...]

    def split_topics(self, split: Split) -> list[Topic]:
        """The topics of a split, in the order of its file."""
        return [topic for topic in self.topics.values() if split in _splits(topic.split)]

    def split_judgments(self, split: Split, language: str | None = None) -> list[Judgment]:
        """The judgments of a split, of topics in one language or all."""
        topics = {topic.tid for topic in self.split_topics(split) if language in (None, topic.language)}
        return [judgment for judgment in self.judgments if judgment.topic in topics]


def write_miniature(home: Path) -> Miniature:
    """Writes the collection to a folder, which is made where it does not exist."""
    home.mkdir(parents=True, exist_ok=True)
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(home)  # a file of this repository
    expected = json.loads((home / "expected.json").read_text("utf-8"))
    (home / "expected.json").unlink()
    documents = [_document(record) for record in expected["documents"]]
    topics = [Topic(**_tuples(record) | {"document": _document(record["document"])}) for record in expected["topics"]]
    return Miniature(
        home,
        {document.ucid: document for document in documents},
        {topic.tid: topic for topic in topics},
        tuple(Judgment(*judgment) for judgment in expected["judgments"]),
    )


def _document(record: dict[str, Any]) -> Document:
    return Document(**_tuples(record) | {"path": Path(record["path"])})


def _tuples(value: Any) -> Any:
    """Lists, which JSON has, as tuples."""
    if isinstance(value, dict):
        return {name: _tuples(inner) for name, inner in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _splits(split: Split) -> tuple[Split, ...]:
    return (split,) if split.startswith("2013") else (split, "2013/train")
