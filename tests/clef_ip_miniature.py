"""A miniature CLEF-IP collection in the formats of the real one; its patents are made up, and make sense.

An *invention* is a field of technology and three of its parts. A topic's claims are about one invention, and relevant
are the passages of patents of the same invention that are about these three parts; patents of the field that differ in
their parts are next to them. Some patents have an odd form, such as all claims in one element.

The archive has the files of the collection and, in ``expected.json``, what readers must find in them. A program that
does not know the package's readers wrote both, so that each checks the other: this module as of commit 0701867.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

ARCHIVE = Path(__file__).with_name("clef_ip_miniature.tar.xz")


class Judgment(NamedTuple):
    """A relevant passage, with its XPath as in the documents and as in the files of judgments."""

    topic: str
    ucid: str
    xpath: str
    written: str


class Miniature(NamedTuple):
    """The files that :func:`write_miniature` wrote to a folder, and what readers must find in them.

    Documents, by ucid and in the order of their paths, have the contents of a file in its own language: passages are
    pairs of an XPath and a text, headings pairs of a text and the number of paragraphs before, references pairs of the
    claim or XPath that refers and the number of a claim. Topics have the document that they are from, which is not
    among the documents.
    """

    home: Path
    documents: dict[str, Any]
    topics: list[Any]
    judgments: list[Judgment]

    def split_topics(self, split: str) -> list[Any]:
        """The topics of a split, in the order of its file; those of 2012 are the training topics of 2013, too."""
        of_both = ["2012/train", "2012/test"] if split == "2013/train" else []
        return [topic for topic in self.topics if topic.split in (split, *of_both)]

    def split_judgments(self, split: str, language: str) -> list[Judgment]:
        """The judgments of a split, of topics in a language."""
        topics = {topic.tid for topic in self.split_topics(split) if topic.language == language}
        return [judgment for judgment in self.judgments if judgment.topic in topics]


def write_miniature(home: Path) -> Miniature:
    """Writes the collection to a folder, which is made where it does not exist."""
    home.mkdir(parents=True, exist_ok=True)
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(home)  # a file of this repository
    expected = _read(json.loads((home / "expected.json").read_text("utf-8")))
    (home / "expected.json").unlink()
    documents = {document.ucid: document for document in expected.documents}
    for topic in expected.topics:
        topic.language = topic.document.language
    return Miniature(
        home, documents, [*expected.topics], [Judgment(*row) for row in expected.judgments]
    )


def _read(value: Any) -> Any:
    """A value of JSON with objects for dictionaries, and tuples for lists."""
    if isinstance(value, dict):
        return SimpleNamespace(**{name: _read(inner) for name, inner in value.items()})
    return tuple(map(_read, value)) if isinstance(value, list) else value
