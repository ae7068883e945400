"""The documents of a folder's files, as they were read before."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from pyterrier_graph.documents import PASSAGE, Node
from pyterrier_graph.folders.file_store import FileStore
from pyterrier_graph.folders.reading import OPTIONS, PARSERS
from pyterrier_graph.readers import plain_text
from pyterrier_graph.readers.reading import Result
from pyterrier_graph.readers.source import DocumentFiles
from pyterrier_graph.readers.walking import Found

NAMED = 3  # broken files in a message


class StoredFiles(DocumentFiles):
    """The documents of a :class:`FileStore`, with their references resolved. A document without title has its file's.

    Attributes:
        lines: Per passage the line of its file; complete after an iteration.
    """

    def __init__(self, found: Found, store: FileStore) -> None:
        super().__init__(found.root, plain_text.parse, (*PARSERS,), OPTIONS, verbose=False)
        self.found, self.store = found, store
        self.lines = array("i")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.lines = array("i")
        for record in super().__iter__():
            nodes = [Node(*node) for node in record["nodes"]]
            if not nodes[0].text.strip():
                nodes[0] = nodes[0]._replace(text=title_of(record["docno"]))
            lines = (line for node, line in zip(nodes, record["lines"], strict=True) if node.kind == PASSAGE)
            self.lines.extend(lines)
            yield record | {"nodes": nodes, "title": nodes[0].text}
        if not self.lines:
            broken = self.report["broken"]
            message = (
                f"{str(self.found.root)!r} has no text: of {self.report['files']} files, {len(broken)} cannot be read"
            )
            raise ValueError(message + named(broken))

    def _find(self) -> Found:
        return self.found

    def _results(self, found: Found) -> Iterator[Result]:
        return self.store.results()


def named(broken: Mapping[str, str]) -> str:
    """The first broken files with their reasons, for the end of a message."""
    parts = [f"{name}: {reason}" for name, reason in [*broken.items()][:NAMED]]
    more = [f"{len(broken) - NAMED} more"] if len(broken) > NAMED else []
    return f" ({'; '.join(parts + more)})" if parts else ""


def title_of(path: str) -> str:
    """A title made of the name of a file: ``"user guide"`` of ``"docs/user_guide.txt"``."""
    stem = PurePosixPath(path).stem
    return " ".join(stem.replace("_", " ").replace("-", " ").split()) or stem
