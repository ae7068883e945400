"""Finds the files of the patents in their folders, and reads one patent or all of them."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from pathlib import Path

from pyterrier_graph.checks import check_count
from pyterrier_graph.datasets.clef_ip.patents import Patent, read_patent
from pyterrier_graph.datasets.clef_ip.xpaths import is_docno

CHUNK = 64
CHUNKS_AHEAD = 4  # per process
MAX_DEPTH = 8

_logger = logging.getLogger(__name__)


class Archive:
    """The patents of the collection: a folder with one file per patent document.

    The file of a docno is ``EP/000000/96/81/18/EP-0968118-A1.xml``, as in the published archives, or
    ``EP-0968118/EP-0968118-A1.xml``, or ``EP/EP-0968118/EP-0968118-A1.xml``.

    Args:
        folder: The folder of all patents.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def __repr__(self) -> str:
        return f"Archive({str(self.folder)!r})"

    def path(self, docno: str) -> Path:
        """The file of a patent.

        Raises:
            KeyError: If there is no such file.
        """
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
        """Reads a patent.

        Raises:
            KeyError: If there is no such file.
            ValueError: If the file is damaged; the message names it.
        """
        return read_patent(self.path(docno))

    def passage_ids(self, places: Iterable[tuple[str, str]], *, verbose: bool = False) -> dict[tuple[str, str], str]:
        """The ids of the passages at places. Places that lead to no passage are left out.

        Args:
            places: Pairs of docno and XPath.
            verbose: Whether to show progress when it takes long.
        """
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

    def patents(self, *, workers: int = 1, strict: bool = False, verbose: bool = False) -> Iterator[Patent]:
        """Reads all patents, in the order of their paths. Folders are listed while the patents are read.

        Args:
            workers: The number of processes that read. With more than one, a script needs ``if __name__ ==
                "__main__"`` where processes are not forked.
            strict: Whether a file that is damaged or no patent is an error. Otherwise it is skipped with a warning.
            verbose: Whether to show progress. What consumes the patents usually shows progress, so the default is not.

        Raises:
            FileNotFoundError: At the first patent, if the folder does not exist.
            ValueError: If there is no worker; while reading, if ``strict`` and a file is damaged or no patent.
        """
        check_count("workers", workers)
        return self._read_all(workers, strict, verbose)

    def _read_all(self, workers: int, strict: bool, verbose: bool) -> Iterator[Patent]:
        paths = _files(str(self.folder))
        found = map(_read, paths) if workers == 1 else _read_in_processes(paths, workers)
        if verbose:
            import pyterrier as pt

            found = pt.tqdm(found, desc="reading patents", unit="file")
        read = skipped = 0
        for patent in found:
            if isinstance(patent, Patent):
                read += 1
                yield patent
            elif strict:
                raise ValueError(patent)
            else:
                skipped += 1
                _logger.warning("skipped %s", patent)
        if skipped:
            _logger.warning("%s: %d patents read, %d files skipped", self.folder, read, skipped)


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


def _read_chunk(paths: list[str]) -> list[Patent | str]:
    return [*map(_read, paths)]


def _read_in_processes(paths: Iterator[str], workers: int) -> Iterator[Patent | str]:
    """Reads in the order of the paths. A few chunks per process are read ahead, so that memory does not grow."""
    executor = ProcessPoolExecutor(workers)
    waiting: deque[Future[list[Patent | str]]] = deque()
    try:
        while chunk := [*islice(paths, CHUNK)]:
            waiting.append(executor.submit(_read_chunk, chunk))
            if len(waiting) > CHUNKS_AHEAD * workers:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
