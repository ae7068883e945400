"""The files of CLEF-IP: where they have to be, and readers of patents, topics and judgments.

The files are in the folder ``clef-ip`` of the home folder of ir_datasets.
"""

import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ir_datasets.util import home_path
from lxml import etree

from pyterrier_graph.checks import DataWarning
from pyterrier_graph.clef_ip.patents import Patent, is_docno, read_patent

DATASET_ID = "clef-ip"
DOCUMENTS = "documents"

_TAG = re.compile(r"<t?(id|file|fam-docs|claims)\s*>([^<]*)", re.IGNORECASE)
_SEPARATOR = re.compile(r"[,\s]+")


class TaskFiles(NamedTuple):
    """The paths of topics, of the folder of their applications, and of judgments; ``{}`` is replaced by a language."""

    topics: str
    applications: str
    qrels: str


# The names of the published archives, with their misprints. The topics of train are the topics of 2012.
TRAIN, TEST = "clef-ip-2013-clms-psg-training", "clef-ip-2013-clms-psg-TEST"
TASK_FILES = {
    "train": TaskFiles(
        f"{TRAIN}/{TRAIN}-topics.txt",
        f"{TRAIN}/{TRAIN}-tfile",
        f"{TRAIN}/clef-ip-2103-clms-psg-training-qrels.txt",
    ),
    "test": TaskFiles(
        f"{TEST}/{TEST}.txt",
        f"{TEST}/tfiles",
        "2013-clef-ip-clsm-to-psg-qrels/2013-clef-ip-QRELS-{}-claims-to-passages.txt",
    ),
}

INSTRUCTIONS = f"""\
CLEF-IP 2013 is published by TU Wien under the license CC BY-NC-SA 3.0: https://doi.org/10.48436/nw2xc-41j75
Unpack 01_document_collection.tgz and the .7z archives in it so that the folder {DOCUMENTS}/ holds EP/ and WO/, as in
  {DOCUMENTS}/EP/000000/96/81/18/EP-0968118-A1.xml
Unpack 02_topics.tgz and the archives in it so that there are, next to {DOCUMENTS}/,
""" + "\n".join(f"  {path}" for files in TASK_FILES.values() for path in files)


class Archive:
    """The patents of the collection: a folder with files such as ``EP/000000/96/81/18/EP-0968118-A1.xml``."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def path(self, docno: str) -> Path:
        """The file of a patent; raises KeyError if there is no such file."""
        if is_docno(docno):
            country, number, _ = docno.split("-")
            digits = number.zfill(12)
            folders = digits[:-6], digits[-6:-4], digits[-4:-2], digits[-2:]
            path = self.folder.joinpath(country, *folders, f"{docno}.xml")
            if path.is_file():
                return path
        raise KeyError(f"there is no patent {docno!r} in {self.folder}")

    def patent(self, docno: str) -> Patent:
        """Reads a patent; raises KeyError if there is no such file."""
        return read_patent(self.path(docno))

    def patents(self) -> Iterator[Patent]:
        """Reads all patents, in the order of their paths. Folders are listed while the patents are read.

        Warns:
            DataWarning: For each file that is skipped, since its XML is damaged.
        """
        for folder, folders, names in os.walk(self.folder, followlinks=True):
            folders.sort()
            for name in sorted(names):
                if name.endswith(".xml"):
                    path = Path(folder, name)
                    try:
                        yield read_patent(path)
                    except etree.XMLSyntaxError as error:
                        warnings.warn(f"skipped {path}: {error}", DataWarning, stacklevel=2)


def archive() -> Archive:
    """The patents under ir_datasets' home."""
    return Archive(find(DOCUMENTS))


def find(path: str) -> Path:
    """The file or folder at a path of the collection.

    Raises:
        FileNotFoundError: If it does not exist. The message says where to get the collection.
    """
    full_path = home_path() / DATASET_ID / path
    if not full_path.exists():
        raise FileNotFoundError(f"{full_path} is not there. {INSTRUCTIONS}")
    return full_path


class Topic(NamedTuple):
    """A topic: claims of an application, for which prior art is searched."""

    query_id: str
    document: str  # docno of the application; the collection need not contain it
    claims: tuple[str, ...]  # XPaths of the claims in the application
    # docnos of its family that were published before it; empty in the topics of train
    family: tuple[str, ...] = ()


def read_topics(path: Path) -> list[Topic]:
    """Reads a file of topics.

    A topic begins with the tag ``tid`` (or ``id``), and has ``tfile``, ``tfam-docs`` and ``tclaims`` in any order. Line
    breaks and closing tags are ignored.
    """
    topics = []
    text = _read_text(path)
    _, *blocks = re.split("<(?=t?id)", text, flags=re.IGNORECASE)
    for block in blocks:
        fields: dict[str, list[str]] = {}
        for name, content in _TAG.findall(f"<{block}"):
            values = content.replace(",", " ").replace(".xml", "")
            fields[name.lower()] = values.split()
        [query_id] = fields["id"]
        [document] = fields["file"]
        claims = dict.fromkeys(fields["claims"])  # each once
        family = fields.get("fam-docs", ())
        topics.append(Topic(query_id, document, tuple(claims), tuple(family)))
    return topics


class Judgment(NamedTuple):
    """A relevant passage, named by document and XPath."""

    query_id: str
    docno: str
    xpath: str


def read_qrels(path: Path) -> Iterator[Judgment]:
    """Reads a file of judgments, all of relevant passages, in any of the formats that the collection has.

    Commas, spaces or tabs separate the fields of a line: the topic, then a docno and an XPath among others (``Q0``).
    """
    lines = _read_text(path).splitlines()
    for line in filter(str.strip, lines):
        query_id, *fields = _SEPARATOR.split(line.strip(" \t,"))
        docno = next(filter(is_docno, fields), None)
        xpath = next((field for field in fields if field.startswith("/")), None)
        if docno is None or xpath is None:
            raise ValueError(f"{path}: {line!r} does not name a topic, a docno and an XPath")
        yield Judgment(query_id, docno, xpath)


def _read_text(path: Path) -> str:
    return path.read_text("utf-8-sig", errors="replace")
