"""The records of an index's documents: JSON lines in the order of the graph.

An update compares hashes of lines, copies the lines of unchanged documents, and appends new ones.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import IO, Any

import numpy as np

from pyterrier_graph.documents.document import (
    PASSAGE,
    Link,
    Node,
    Reference,
    StructuredDocument,
)
from pyterrier_graph.search.versions import Version

DOCUMENTS = "documents"
ROW_TYPES: dict[str, Any] = {"nodes": Node, "links": Link, "references": Reference}
# fields that a record lacks where they are empty
EMPTY: dict[str, Any] = dict.fromkeys(["codes", "passage_ids", *ROW_TYPES], ())
Documents = Iterable[tuple[StructuredDocument, list[int] | None]]  # with the lines of their nodes


@dataclass
class RecordChanges:
    """The difference between the records of two versions.

    Attributes:
        previous: The version whose documents stay; None for an index from scratch.
        lines: A file with the records of new and changed documents, one per line.
        count: Number of these documents.
        unchanged: Whether each document of the previous version is unchanged, shape (documents,).
    """

    previous: Version | None
    lines: IO[bytes]
    count: int
    unchanged: np.ndarray

    def empty(self) -> bool:
        """Whether no document is new, changed or removed."""
        return not self.count and bool(self.unchanged.all())

    @cached_property
    def reused_passages(self) -> np.ndarray:
        """Numbers of the previous version's passages whose documents are unchanged; they come first in the next one."""
        if self.previous is None:
            return np.empty(0, np.int64)
        documents = np.flatnonzero(self.unchanged)
        _, passages = self.previous.graph.document_passages.positions(documents)
        return passages

    def write(self, folder: Path) -> None:
        """Writes the records of the next version: unchanged documents, then new ones."""
        with open(folder / DOCUMENTS, "wb") as out:
            if self.previous is not None:
                with open(self.previous.folder / DOCUMENTS, "rb") as lines:
                    out.writelines(compress(lines, self.unchanged))
            self.lines.seek(0)
            shutil.copyfileobj(self.lines, out)


def compare_records(
    documents: Documents, lines: IO[bytes], previous: Version | None, deleted: Sequence[str]
) -> RecordChanges:
    """Compares documents with the records of the previous version.

    Args:
        documents: New documents, and documents that may have changed.
        lines: An empty file for the records of new and changed documents.
        previous: The previous version.
        deleted: Docnos of documents that are removed unless they are among ``documents``.

    Raises:
        KeyError: If a document that is removed is not in the previous version.
    """
    hashes: dict[str, int] = {}
    if previous is not None:
        previous.graph.document_of(deleted)  # raises KeyError for unknown docnos
        hashes = _line_hashes(previous)
    unchanged = dict.fromkeys(hashes, True)
    for docno in deleted:
        unchanged[docno] = False
    count = 0
    for document, node_lines in documents:
        line = _line_of(document, node_lines)
        previous_hash = hashes.get(document.docno)
        is_same = previous_hash == hash(line)
        if previous_hash is not None:
            unchanged[document.docno] = is_same
        if not is_same:
            lines.write(line)
            count += 1
    flags = np.fromiter(unchanged.values(), dtype=bool)
    return RecordChanges(previous, lines, count, flags)


def _line_hashes(version: Version) -> dict[str, int]:
    """The hash of each document's record, by docno."""
    graph = version.graph
    docnos = graph.docnos_of(np.arange(len(graph)))
    with open(version.folder / DOCUMENTS, "rb") as file:
        hashes = map(hash, file)
        return dict(zip(docnos, hashes, strict=True))


def _line_of(document: StructuredDocument, node_lines: list[int] | None) -> bytes:
    """The record of a document, without its empty fields."""
    fields = vars(document)
    record = {name: value for name, value in fields.items() if value}
    if node_lines:
        record["lines"] = node_lines
    return json.dumps(record).encode() + b"\n"


def read_documents(folder: Path, passage_lines: list[int]) -> Iterator[StructuredDocument]:
    """Yields the documents of a version, and appends the line in its file where each passage begins to a list."""
    with open(folder / DOCUMENTS, "rb") as file:
        for line in file:
            record = {**EMPTY, **json.loads(line)}
            lines = record.pop("lines", ())
            for name, row_type in ROW_TYPES.items():
                record[name] = [row_type(*row) for row in record[name]]
            # documents that are not files have no lines
            for node, number in zip(record["nodes"], lines, strict=False):
                if node.kind == PASSAGE:
                    passage_lines.append(number)
            document = object.__new__(StructuredDocument)  # was checked before it was written
            vars(document).update(record)
            yield document
