"""Where the files of the patents lie, and how all of them are gone through."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from pathlib import Path

from pyterrier_graph.datasets.clef_ip.patents import Patent, read_patent
from pyterrier_graph.datasets.clef_ip.xpaths import is_docno

CHUNK = 64
CHUNKS_AHEAD = 4  # per process
MAX_DEPTH = 8

_logger = logging.getLogger(__name__)


class Archive:
    """The patents of the collection, a file each, in folders.

    A docno is looked up where the archives put it, ``EP/000000/96/81/18/EP-0968118-A1.xml``, and in one folder per
    patent, ``EP-0968118/EP-0968118-A1.xml`` or ``EP/EP-0968118/EP-0968118-A1.xml``.

    Args:
        folder: The folder that holds the countries' folders, or those of the patents.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def __repr__(self) -> str:
        return f"Archive({str(self.folder)!r})"

    def path(self, docno: str) -> Path:
        """The file of a patent.

        Raises:
            KeyError: If there is none, or it is no docno.
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
            KeyError: If there is none of that docno.
            ValueError: If its file is damaged; the message names it.
        """
        return read_patent(self.path(docno))

    def files(self) -> Iterator[str]:
        """All files, whatever they are, in the order of their paths; listed folder by folder as they are needed.

        Raises:
            FileNotFoundError: If there is no such folder.
        """
        return _files(str(self.folder))

    def patents(self, *, workers: int = 1, strict: bool = False, verbose: bool = False) -> PatentIterator:
        """Reads all patents, in the order of their paths.

        Args:
            workers: How many processes read. More than one need a script whose main part is guarded by
                ``if __name__ == "__main__"`` where processes are not forked.
            strict: Whether a file that is damaged, or no patent's, is an error. If not, it is skipped with a warning.
            verbose: Whether to show progress.
        """
        return PatentIterator(self, workers=workers, strict=strict, verbose=verbose)


class PatentIterator(Iterator[Patent]):
    """Reads patents while they are gone through; see :meth:`Archive.patents`.

    Attributes:
        read: How many patents were read.
        skipped: How many files were skipped.

    Raises:
        FileNotFoundError: When the first is asked for, if the archive's folder does not exist.
        ValueError: If ``strict`` and a file is damaged, or no patent's; the message names it.
    """

    def __init__(self, archive: Archive, *, workers: int = 1, strict: bool = False, verbose: bool = False) -> None:
        if workers < 1:
            raise ValueError(f"patents are read by one process or more, got workers={workers}")
        self.read = self.skipped = 0
        self._patents = self._iterate(archive, workers, strict, verbose)

    def __next__(self) -> Patent:
        return next(self._patents)

    def _iterate(self, archive: Archive, workers: int, strict: bool, verbose: bool) -> Iterator[Patent]:
        found = map(_read, archive.files()) if workers == 1 else _read_in_processes(archive.files(), workers)
        if verbose:
            import pyterrier as pt

            found = pt.tqdm(found, desc="reading patents", unit="file")
        for patent in found:
            if isinstance(patent, Patent):
                self.read += 1
                yield patent
            elif strict:
                raise ValueError(patent)
            else:
                self.skipped += 1
                _logger.warning("skipped %s", patent)
        if self.skipped:
            _logger.warning("%s: %d patents read, %d files skipped", archive.folder, self.read, self.skipped)


def _files(folder: str, depth: int = 0) -> Iterator[str]:
    with os.scandir(folder) as entries:  # closed before the first is handed out
        # Whole branches of the tree may be links to other disks; links further down could lead in circles.
        found = sorted((entry.name, entry.is_dir(follow_symlinks=depth < 2)) for entry in entries)
    for name, is_folder in found:
        path = os.path.join(folder, name)
        if not is_folder:
            yield path
        elif depth < MAX_DEPTH:
            yield from _files(path, depth + 1)


def _read(path: str) -> Patent | str:
    """The patent in a file, or what is wrong with it."""
    try:
        return read_patent(path)
    except (ValueError, OSError) as error:
        return str(error)


def _read_chunk(paths: list[str]) -> list[Patent | str]:
    return [*map(_read, paths)]


def _read_in_processes(paths: Iterator[str], workers: int) -> Iterator[Patent | str]:
    """Reads in the same order; only so many files are asked for ahead as keep the processes busy."""
    executor = ProcessPoolExecutor(workers)
    waiting: deque[Future[list[Patent | str]]] = deque()
    try:
        for chunk in _chunks(paths):
            waiting.append(executor.submit(_read_chunk, chunk))
            if len(waiting) > CHUNKS_AHEAD * workers:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        executor.shutdown(wait=False, cancel_futures=True)  # whoever gives up reading does not wait


def _chunks(paths: Iterable[str]) -> Iterator[list[str]]:
    paths = iter(paths)
    while chunk := [*islice(paths, CHUNK)]:
        yield chunk
