"""Where the files of CLEF-IP have to be, and how one patent or all patents are read from them.

The files lie in the folder ``clef-ip`` of the home folder of ir_datasets.
"""

import contextlib
import logging
import os
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from pyterrier_graph.checks import check_count
from pyterrier_graph.datasets.clef_ip.patents import Patent, is_docno, read_patent
from pyterrier_graph.warning_categories import DataWarning

CHUNK = 64
CHUNKS = 4  # per process and block
MAX_DEPTH = 8

DATASET_ID = "clef-ip"
DOCUMENTS = "documents"

_logger = logging.getLogger(__name__)


class TaskFiles(NamedTuple):
    """Where the topics, the folder of their applications, and the judgments are; ``{}`` stands for a language.

    The names are those of the published archives, with their misprints.
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


class Archive:
    """The patents of the collection: a folder with one file per patent document.

    The file of a docno is ``EP/000000/96/81/18/EP-0968118-A1.xml``, as in the published archives, or
    ``EP-0968118/EP-0968118-A1.xml``, or ``EP/EP-0968118/EP-0968118-A1.xml``.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def path(self, docno: str) -> Path:
        """The file of a patent. It is a KeyError if there is no such file."""
        if is_docno(docno):
            patent, _, _ = docno.rpartition("-")
            country, _, number = patent.partition("-")
            digits = number.zfill(12)
            places = (
                Path(country, digits[:-6], digits[-6:-4], digits[-4:-2], digits[-2:]),
                Path(patent),
                Path(country, patent),
            )
            for place in places:
                path = self.folder / place / f"{docno}.xml"
                if path.is_file():
                    return path
        raise KeyError(f"there is no patent {docno!r} in {self.folder}")

    def patent(self, docno: str) -> Patent:
        """Reads a patent. It is a KeyError if there is no such file, and a ValueError if the file is damaged."""
        return read_patent(self.path(docno))

    def passage_ids(self, places: Iterable[tuple[str, str]], *, verbose: bool = False) -> dict[tuple[str, str], str]:
        """The ids of passages by docno and XPath. Pairs that lead to no passage are left out."""
        import pyterrier as pt

        by_document: dict[str, dict[str, None]] = {}
        for docno, xpath in places:
            by_document.setdefault(docno, {})[xpath] = None
        found = {}
        for docno in pt.tqdm(by_document, desc="passages", unit="document", disable=not verbose, delay=1):
            try:
                patent = self.patent(docno)
            except (KeyError, ValueError) as error:
                _logger.warning("%s", error.args[0])
                continue
            for xpath in by_document[docno]:
                with contextlib.suppress(KeyError, ValueError):
                    found[docno, xpath] = patent.passage_id(xpath)
        return found

    def patents(self, *, workers: int = 1, strict: bool = False) -> Iterator[Patent]:
        """Reads all patents, in the order of their paths. Folders are listed while the patents are read.

        Args:
            workers: The number of processes that read. With more than one, a script needs ``if __name__ ==
                "__main__"`` where processes are not forked.
            strict: Whether a file that is damaged or no patent is an error. Otherwise it is skipped with a warning.

        Raises:
            FileNotFoundError: If the folder does not exist.
            ValueError: If there is no worker; if ``strict`` and a file is damaged or no patent.
        """
        check_count("workers", workers)
        paths = _files(str(self.folder))
        read = skipped = 0
        for patent in map(_read, paths) if workers == 1 else _read_in_processes(paths, workers):
            if isinstance(patent, Patent):
                read += 1
                yield patent
            elif strict:
                raise ValueError(patent)
            else:
                skipped += 1
                _logger.warning("skipped %s", patent)
        if skipped:
            advice = "strict=True makes the first one an error, and the log names all of them"
            message = f"{self.folder}: {read} patents read, {skipped} files skipped; {advice}"
            warnings.warn(message, DataWarning, stacklevel=2)


def home() -> Path:
    """The folder of the collection."""
    from ir_datasets.util import home_path

    return home_path() / DATASET_ID


def archive() -> Archive:
    """The patents under ir_datasets' home. The FileNotFoundError for missing patents says where to get them."""
    folder = home() / DOCUMENTS
    if not folder.is_dir() or not any(entry.is_dir() for entry in os.scandir(folder)):
        raise missing(folder)
    return Archive(folder)


def missing(path: Path) -> FileNotFoundError:
    """The error for a file or folder that is not there, with instructions."""
    return FileNotFoundError(f"{path} is not there. {INSTRUCTIONS}")


def _files(folder: str, depth: int = 0) -> Iterator[str]:
    """All files of any kind in a folder, in the order of their paths."""
    with os.scandir(folder) as entries:
        # Folders of countries may be links to other disks. Links further down could lead in circles.
        found = sorted((entry.name, entry.is_dir(follow_symlinks=depth < 2)) for entry in entries)
    for name, is_folder in found:
        path = os.path.join(folder, name)
        if not is_folder:
            yield path
        elif depth < MAX_DEPTH:
            yield from _files(path, depth + 1)


def _read(path: str) -> Patent | str:
    """The patent in a file, or a message that says what is wrong with the file."""
    try:
        return read_patent(path)
    except (ValueError, OSError) as error:
        return str(error)


def _read_in_processes(paths: Iterator[str], workers: int) -> Iterator[Patent | str]:
    """Reads in the order of the paths. At most two blocks of files are read ahead, so that memory does not grow."""
    with ProcessPoolExecutor(workers) as executor:
        ahead: Iterator[Patent | str] = iter(())
        while block := [*islice(paths, CHUNKS * CHUNK * workers)]:
            current, ahead = ahead, executor.map(_read, block, chunksize=CHUNK)
            yield from current
        yield from ahead
