"""What the benchmark collections have in common: structured records, and queries with judgments by split."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
import pyterrier as pt

from pyterrier_graph.documents import PASSAGE_SEPARATOR, StructuredDocument, passage_id

SPLITS = ("train", "dev", "test")


class Query(NamedTuple):
    """A query with the ids of the passages that answer it."""

    qid: str
    text: str
    split: str
    relevant: tuple[str, ...]


@dataclass(frozen=True)
class Collection:
    """A small test collection, held in memory, with the methods of a PyTerrier dataset.

    Attributes:
        name: The collection's name.
        records: Its documents, as :meth:`pyterrier_graph.documents.StructuredDocument.from_record` reads them.
        queries: Its queries, all splits in one.
    """

    name: str
    records: Sequence[dict[str, Any]]
    queries: Sequence[Query]

    def __post_init__(self) -> None:
        docnos = Counter(record["docno"] for record in self.records)
        qids = Counter(query.qid for query in self.queries)
        for identifier, times in (*docnos.items(), *qids.items()):
            if times > 1:
                raise ValueError(f"{self.name}: the id {identifier!r} occurs {times} times")
        for docno in docnos:
            if PASSAGE_SEPARATOR in docno:
                raise ValueError(f"{self.name}: docno {docno!r} contains {PASSAGE_SEPARATOR!r}, which marks passages")

    def get_corpus_iter(self, *, verbose: bool = True) -> Iterator[dict[str, Any]]:
        """Iterates over the documents: docno, title, text, nodes, links, references, codes."""
        yield from pt.tqdm(self.records, desc=f"{self.name} documents", unit="d", disable=not verbose)

    def get_topics(self, variant: str) -> pd.DataFrame:
        """The queries of a split (``'train'``, ``'dev'`` or ``'test'``): qid, query."""
        rows = [(query.qid, query.text) for query in self._split(variant)]
        return pd.DataFrame(rows, columns=["qid", "query"], dtype=str)

    def get_qrels(self, variant: str) -> pd.DataFrame:
        """The judgments of a split (``'train'``, ``'dev'`` or ``'test'``): qid, docno (a passage's id), label."""
        rows = [(query.qid, passage) for query in self._split(variant) for passage in query.relevant]
        return pd.DataFrame(rows, columns=["qid", "docno"], dtype=str).assign(label=1)

    def _split(self, name: str) -> list[Query]:
        if name not in SPLITS:
            raise ValueError(f"{self.name} has no split {name!r}, but {', '.join(SPLITS)}")
        return [query for query in self.queries if query.split == name]


@dataclass(frozen=True)
class TextCollection:
    """A small test collection of plain texts, held in memory, whose queries have no splits.

    Attributes:
        name: The collection's name.
        documents: ``docno, title, text`` of each.
        topics: ``qid, query``.
        qrels: ``qid, docno, label``.
    """

    name: str
    documents: Sequence[dict[str, str]]
    topics: pd.DataFrame
    qrels: pd.DataFrame

    def __post_init__(self) -> None:
        docnos = Counter(document["docno"] for document in self.documents)
        qids = Counter(self.topics["qid"])
        for identifier, times in (*docnos.items(), *qids.items()):
            if times > 1:
                raise ValueError(f"{self.name}: the id {identifier!r} occurs {times} times")
        for column, known in (("docno", docnos), ("qid", qids)):
            if unknown := sorted(set(self.qrels[column]) - known.keys()):
                raise ValueError(f"{self.name}: the judgments name the {column} {unknown[0]!r}, which does not exist")

    def get_corpus_iter(self, *, verbose: bool = True) -> Iterator[dict[str, str]]:
        """Iterates over the documents: docno, title, text."""
        yield from pt.tqdm(self.documents, desc=f"{self.name} documents", unit="d", disable=not verbose)

    def get_topics(self) -> pd.DataFrame:
        """The queries: qid, query."""
        return self.topics

    def get_qrels(self) -> pd.DataFrame:
        """The judgments: qid, docno, label."""
        return self.qrels

    def texts(self, docnos: Iterable[str]) -> dict[str, str]:
        """Title and text of documents, by docno."""
        wanted = set(docnos)
        return {
            document["docno"]: f"{document['title']}\n{document['text']}".strip()
            for document in self.documents
            if document["docno"] in wanted
        }


def passages_of(collection: Collection) -> TextCollection:
    """A collection's passages as texts, and its queries without their splits."""
    documents = [
        {"docno": passage_id(record["docno"], number), "title": "", "text": text}
        for record in collection.records
        for number, text in enumerate(StructuredDocument.from_record(record).passages())
    ]
    get = (collection.get_topics, collection.get_qrels)
    topics, qrels = (pd.concat(map(part, SPLITS), ignore_index=True) for part in get)
    return TextCollection(collection.name, documents, topics, qrels)


def fraction(identifier: str, purpose: str) -> float:
    """A number in [0, 1) that depends on an id alone; numbers for different purposes are independent."""
    digest = hashlib.sha256(f"{purpose}:{identifier}".encode()).digest()
    return int.from_bytes(digest[:4]) / 2**32


def split_of(identifier: str, shares: tuple[float, float, float]) -> str:
    """The split of a document, by its id: ``shares`` are those of train, dev and test, and add up to 1."""
    train, dev, _ = shares
    position = fraction(identifier, "split")
    return "train" if position < train else "dev" if position < train + dev else "test"


def successors(groups: Iterable[Sequence[str]], width: int) -> Mapping[str, list[str]]:
    """Joins what shares a group: every member to the next ``width`` members of the group.

    So a group of n members gives at most ``width * n`` pairs, not n * n. A pair that shares several groups counts once.
    """
    joined: dict[str, dict[str, None]] = {}
    for group in groups:
        for position, member in enumerate(group):
            joined.setdefault(member, {}).update(dict.fromkeys(group[position + 1 : position + 1 + width]))
    return {member: list(others) for member, others in joined.items()}
