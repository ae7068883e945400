"""Where the files of CLEF-IP have to be: in the folder ``clef-ip`` of ir_datasets' home."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from ir_datasets.util import home_path

from pyterrier_graph.datasets.clef_ip.layout import Archive

DATASET_ID = "clef-ip"
DOCUMENTS = "documents"


class TaskFiles(NamedTuple):
    """Where the files of a set of topics are. The names are those of the published archives, with their misprints.

    Attributes:
        topics: The topics.
        applications: The folder of the applications that the claims are taken from.
        qrels: The judgments; ``{}`` stands for a language.
    """

    topics: str
    applications: str
    qrels: str


def _training(year: int, misprint: int) -> TaskFiles:
    name = f"clef-ip-{year}-clms-psg-training"
    qrels = f"{name}/clef-ip-{misprint}-clms-psg-training-qrels.txt"
    return TaskFiles(f"{name}/{name}-topics.txt", f"{name}/{name}-tfile", qrels)


def _test(year: int) -> TaskFiles:
    name = f"clef-ip-{year}-clms-psg-TEST"
    qrels = f"{year}-clef-ip-clsm-to-psg-qrels/{year}-clef-ip-QRELS-{{}}-claims-to-passages.txt"
    return TaskFiles(f"{name}/{name}.txt", f"{name}/tfiles", qrels)


TASK_FILES = {
    "2012/train": _training(2012, 2012),
    "2012/test": _test(2012),
    "2013/train": _training(2013, 2103),  # its topics are those of 2012
    "2013/test": _test(2013),
}

INSTRUCTIONS = f"""\
CLEF-IP is published by TU Wien under the license CC BY-NC-SA 3.0:
  https://doi.org/10.48436/nw2xc-41j75 (2013), https://doi.org/10.48436/khw86-rnf37 (2012)
Unpack 01_document_collection.tgz and the .7z archives in it so that the folder {DOCUMENTS}/ holds EP/ and WO/, as in
  {DOCUMENTS}/EP/000000/96/81/18/EP-0968118-A1.xml, or, with one folder per patent,
  {DOCUMENTS}/EP-0968118/EP-0968118-A1.xml
Unpack 02_topics.tgz and the archives in it so that there are, beside {DOCUMENTS}/,
""" + "\n".join(f"  {path}" for files in TASK_FILES.values() for path in files)


def home() -> Path:
    """The folder of the collection."""
    return home_path() / DATASET_ID


def archive() -> Archive:
    """The patents under ir_datasets' home.

    Raises:
        FileNotFoundError: If they are not there; the message says where to get them.
    """
    folder = home() / DOCUMENTS
    if not folder.is_dir() or not any(entry.is_dir() for entry in os.scandir(folder)):
        raise missing(folder)
    return Archive(folder)


def missing(path: Path) -> FileNotFoundError:
    """The error for a file or folder that is not there, with instructions."""
    return FileNotFoundError(f"{path} is not there. {INSTRUCTIONS}")
