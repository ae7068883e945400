"""The Vaswani (NPL) collection: abstracts on physics and electronics, in PyTerrier's form of it."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pandas as pd

from experiments.harness.collection import ALL, Collection, Queries

DOCUMENT = re.compile(r"<DOC>\s*<DOCNO>\s*(\d+)\s*</DOCNO>((?:(?!<DOC>).)*?)</DOC>", re.DOTALL)
TOPIC = re.compile(
    r"<top>\s*<num>\s*(\d+)\s*</num>\s*<title>((?:(?!<top>).)*?)</title>\s*</top>", re.DOTALL
)
JUDGMENT = re.compile(r"^(\d+) +0 +(\d+) +(\d+)$", re.MULTILINE)


def read_vaswani(path: str | Path) -> Collection:
    """Reads the collection from the folder that holds ``doc-text.trec``, ``query-text.trec`` and ``qrels``."""
    folder, read = Path(path), partial(Path.read_text, encoding="utf-8")
    documents = [
        {"docno": docno, "title": "", "text": text.strip()}
        for docno, text in DOCUMENT.findall(read(folder / "doc-text.trec"))
    ]
    topics = [
        (qid, " ".join(text.split()))
        for qid, text in TOPIC.findall(read(folder / "query-text.trec"))
    ]
    qrels = pd.DataFrame(
        JUDGMENT.findall(read(folder / "qrels")), columns=["qid", "docno", "label"]
    )
    queries = Queries(pd.DataFrame(topics, columns=["qid", "query"]), qrels.astype({"label": int}))
    return Collection.in_memory("Vaswani", documents, {ALL: queries})
