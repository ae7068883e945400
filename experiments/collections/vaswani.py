"""The Vaswani (NPL) collection: abstracts on physics and electronics, in PyTerrier's form of it."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from experiments.harness.collection import ALL, Collection, Queries

DOCUMENT = re.compile(r"<DOC>\s*<DOCNO>\s*(\d+)\s*</DOCNO>((?:(?!<DOC>).)*?)</DOC>", re.DOTALL)
TOPIC = re.compile(
    r"<top>\s*<num>\s*(\d+)\s*</num>\s*<title>((?:(?!<top>).)*?)</title>\s*</top>", re.DOTALL
)
JUDGMENT = re.compile(r"^(\d+) +0 +(\d+) +(\d+)$", re.MULTILINE)


def read_vaswani(path: str | Path) -> Collection:
    """Reads the collection from the folder that holds ``doc-text.trec``, ``query-text.trec`` and ``qrels``.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If one holds something else than it should; the message names file and line.
    """
    folder = Path(path)
    documents = [
        {"docno": docno, "title": "", "text": text.strip()}
        for docno, text in _read(folder / "doc-text.trec", DOCUMENT)
    ]
    topics = [
        (qid, " ".join(text.split())) for qid, text in _read(folder / "query-text.trec", TOPIC)
    ]
    qrels = pd.DataFrame(_read(folder / "qrels", JUDGMENT), columns=["qid", "docno", "label"])
    queries = Queries(pd.DataFrame(topics, columns=["qid", "query"]), qrels.astype({"label": int}))
    return Collection.in_memory("Vaswani", documents, {ALL: queries})


def _read(file: Path, record: re.Pattern[str]) -> list[tuple[str, ...]]:
    """The groups of all records in a file.

    Raises:
        ValueError: If there is other text between two records.
    """
    content = file.read_text(encoding="utf-8")
    records, end = [], 0
    for match in record.finditer(content):
        _refuse(file, content, end, match.start())
        records.append(match.groups())
        end = match.end()
    _refuse(file, content, end, len(content))
    if not records:
        raise ValueError(f"{file} is empty")
    return records


def _refuse(file: Path, content: str, start: int, end: int) -> None:
    between = content[start:end]
    if between.strip():
        line = content.count("\n", 0, start + len(between) - len(between.lstrip())) + 1
        raise ValueError(
            f"{file}, line {line}: this is not a complete record: {between.strip()[:50]!r}"
        )
