"""The records of an index's documents: JSON lines in the order of the graph, and a digest of each line.

An update compares digests, copies the lines of unchanged documents, and appends new ones.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
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

DOCUMENTS, OFFSETS, DIGESTS = "documents", "offsets.npy", "digests.npy"
Documents = Iterable[tuple[StructuredDocument, list[int] | None]]  # with the lines of their nodes


@dataclass
class RecordChanges:
    """What a change does to the records of a version.

    Attributes:
        file: The lines of new and changed documents.
        unchanged: Numbers of the present documents that stay, ascending.
    """

    file: IO[bytes]
    unchanged: np.ndarray
    lengths: list[int] = field(default_factory=list)  # of the lines in the file
    digests: list[bytes] = field(default_factory=list)

    @classmethod
    def compare(
        cls,
        documents: Documents,
        file: IO[bytes],
        present: Path | None = None,
        docnos: Iterable[str] = (),
        *,
        deleted: Iterable[str] = (),
    ) -> RecordChanges:
        """Compares documents with the records of a version, whose folder and docnos are given.

        Raises:
            ValueError: If a docno comes twice.
        """
        numbers = {docno: number for number, docno in enumerate(docnos)}
        known = np.empty(0, "V16") if present is None else np.load(present / DIGESTS)
        stays = np.ones(len(numbers), dtype=bool)
        stays[[numbers[docno] for docno in deleted]] = False
        changes, seen = cls(file, np.empty(0, np.int64)), set[str]()
        for document, lines in documents:
            if document.docno in seen:
                raise ValueError(f"docno {document.docno!r} comes twice")
            seen.add(document.docno)
            line = _line(document, lines)
            digest = blake2b(line, digest_size=16).digest()
            number = numbers.get(document.docno)
            if number is not None:
                stays[number] = known[number].tobytes() == digest
                if stays[number]:
                    continue
            file.write(line)
            changes.lengths.append(len(line))
            changes.digests.append(digest)
        changes.unchanged = np.flatnonzero(stays)
        return changes

    def is_empty(self, documents: int) -> bool:
        """Whether all of this many present documents stay, and there are no others."""
        return len(self.unchanged) == documents and not self.lengths

    def write(self, folder: Path, present: Path | None) -> None:
        """Writes the records of the next version: the documents that stay, then new ones."""
        lengths, digests = np.empty(0, np.int64), np.empty(0, "V16")
        with open(folder / DOCUMENTS, "wb") as out:
            if present is not None and len(self.unchanged):
                offsets = np.load(present / OFFSETS)
                lengths = np.diff(offsets)[self.unchanged]
                digests = np.load(present / DIGESTS)[self.unchanged]
                with open(present / DOCUMENTS, "rb") as file:
                    for run in np.split(
                        self.unchanged, np.flatnonzero(np.diff(self.unchanged) > 1) + 1
                    ):
                        file.seek(offsets[run[0]])
                        out.write(file.read(int(offsets[run[-1] + 1] - offsets[run[0]])))
            self.file.seek(0)
            shutil.copyfileobj(self.file, out)
        new = np.frombuffer(b"".join(self.digests), "V16")
        np.save(folder / OFFSETS, np.cumsum([0, *lengths.tolist(), *self.lengths]))
        np.save(folder / DIGESTS, np.concatenate([digests, new]))


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
