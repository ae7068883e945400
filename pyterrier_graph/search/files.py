"""The files of a folder in all readable formats, as documents."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from pyterrier_graph import __version__
from pyterrier_graph.documents.readers.files import FORMATS, DocumentFiles

NAMED = 3  # broken files in a message


class FolderFiles(DocumentFiles):
    """The documents of the files of a folder. The title of an untitled document is made of the name of its file.

    The report also has the :meth:`state` of the files before they were read.

    Raises:
        FileNotFoundError: If the folder does not exist.
        ValueError: If it has no readable file.
    """

    def __init__(self, folder: Path, *, verbose: bool = True) -> None:
        formats = list(FORMATS)
        if not find_spec("markitdown"):
            formats.remove("office")
        super().__init__(folder, formats, verbose=verbose)
        if not self.paths:
            endings = [ending for name in formats for ending in FORMATS[name]]
            raise ValueError(
                f"{str(folder)!r} has no files whose names end in {', '.join(endings)}"
            )

    def state(self) -> str:
        """Returns a digest of the names, sizes and times of the files, and of the options of the reader."""
        digest = hashlib.sha256(f"{__version__} {self.options}".encode())
        for path in self.paths:
            digest.update(f"{ascii(path)} ".encode())
            with suppress(OSError):
                stat = (self.root / path).stat()
                numbers = f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}\n"
                digest.update(numbers.encode())
        return digest.hexdigest()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        state = self.state()  # a file that changes from here on is read again by the next call
        for record in super().__iter__():
            nodes = record["nodes"]
            title = nodes[0].text
            if not title.strip():
                title = title_of(record["docno"])
                nodes[0] = nodes[0]._replace(text=title)
            yield {**record, "title": title}
        self.report["state"] = state
        if not self.report["documents"]:
            broken = self.report["broken"]
            reasons = reasons_of(broken)
            counts = f"of {self.report['files']} files, {len(broken)} cannot be read{reasons}"
            raise ValueError(f"{str(self.root)!r} has no text: {counts}")


def reasons_of(broken: Mapping[str, str]) -> str:
    """Returns the first broken files and their reasons, for the end of a message."""
    if not broken:
        return ""
    named = islice(broken.items(), NAMED)
    reasons = [f"{name}: {reason}" for name, reason in named]
    if len(broken) > NAMED:
        reasons.append(f"{len(broken) - NAMED} more")
    return f" ({'; '.join(reasons)})"


def title_of(path: str) -> str:
    """Returns a title made of the name of a file: ``"user guide"`` of ``"docs/user_guide.txt"``."""
    stem = PurePosixPath(path).stem
    return re.sub(r"[\s_-]+", " ", stem).strip() or stem
