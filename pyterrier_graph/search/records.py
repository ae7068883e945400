"""The records of an index's documents: JSON lines in the order of the graph.

An update compares digests of lines, copies the lines of unchanged documents, and appends new ones.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
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

DOCUMENTS = "documents"
Documents = Iterable[tuple[StructuredDocument, list[int] | None]]  # with the lines of their nodes


@dataclass
class RecordChanges:
    """The difference between the records of two versions.

    Attributes:
        lines: A file with the lines of new and changed documents.
        count: Number of these documents.
        unchanged: Whether each document of the previous version is unchanged, shape (documents,).
    """

    lines: IO[bytes]
    count: int
    unchanged: np.ndarray

    def write(self, folder: Path, previous: Path | None) -> None:
        """Writes the records of the next version: unchanged documents, then new ones."""
        with open(folder / DOCUMENTS, "wb") as out:
            if previous is not None:
                with open(previous / DOCUMENTS, "rb") as lines:
                    out.writelines(compress(lines, self.unchanged))
            self.lines.seek(0)
            shutil.copyfileobj(self.lines, out)


def compare_records(
    documents: Documents,
    lines: IO[bytes],
    previous: Path | None = None,
    docnos: Collection[str] = (),
    removed: Collection[str] = (),
) -> RecordChanges:
    """Compares documents with the records of the previous version.

    Args:
        documents: New documents, and documents that may have changed.
        lines: An empty file for the lines of those that have changed.
        previous: Folder of the previous version.
        docnos: The docnos of its documents.
        removed: Docnos of documents that are removed unless they are among ``documents``.

    Raises:
        ValueError: If a docno comes twice.
    """
    numbers = {docno: number for number, docno in enumerate(docnos)}
    digests = [] if previous is None else _digests(previous)
    unchanged = np.ones(len(numbers), dtype=bool)
    unchanged[[numbers[docno] for docno in removed]] = False
    seen, count = set[str](), 0
    for document, node_lines in documents:
        docno, line = document.docno, _line(document, node_lines)
        if docno in seen:
            raise ValueError(f"docno {docno!r} comes twice")
        seen.add(docno)
        same = docno in numbers and digests[numbers[docno]] == _digest(line)
        if docno in numbers:
            unchanged[numbers[docno]] = same
        if not same:
            lines.write(line)
            count += 1
    return RecordChanges(lines, count, unchanged)


def _digests(folder: Path) -> list[bytes]:
    with open(folder / DOCUMENTS, "rb") as lines:
        return [*map(_digest, lines)]


def _digest(line: bytes) -> bytes:
    return blake2b(line, digest_size=16).digest()


def read_documents(folder: Path, passage_lines: list[int]) -> Iterator[StructuredDocument]:
    """The documents of a version; adds the lines of their passages to a list."""
    with open(folder / DOCUMENTS, "rb") as file:
        for line in file:
            record: dict[str, Any] = json.loads(line)
            lines = record.pop("lines", ())
            document = _document(record)
            for node, number in zip(document.nodes, lines, strict=False):
                if node.kind == PASSAGE:
                    passage_lines.append(number)
            yield document


def _document(record: dict[str, Any]) -> StructuredDocument:
    """The document of a line, without the checks that it has passed before it was written."""
    document = object.__new__(StructuredDocument)
    vars(document).update({"codes": (), "passage_ids": ()} | record)
    kinds: dict[str, Any] = {"nodes": Node, "links": Link, "references": Reference}
    for name, kind in kinds.items():
        vars(document)[name] = [*map(kind._make, record.get(name, ()))]
    return document


def _line(document: StructuredDocument, lines: list[int] | None) -> bytes:
    record = {name: value for name, value in vars(document).items() if value}
    return json.dumps(record | ({"lines": lines} if lines else {})).encode() + b"\n"
