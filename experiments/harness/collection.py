"""The one type of collection that all experiments read: documents, and judged queries by split."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyterrier as pt

from pyterrier_graph import DocumentGraph, query_folds
from pyterrier_graph.documents.document import (
    NO_PARENT,
    PASSAGE,
    PASSAGE_SEPARATOR,
    SECTION,
    Node,
    passage_id,
    split_passage_id,
)
from pyterrier_graph.documents.records import read_record

SPLITS = ("train", "dev", "test")
ALL = "all"
Record = dict[str, Any]


class Queries(NamedTuple):
    """Queries (``qid, query``) and judgments for them (``qid, docno, label``)."""

    topics: pd.DataFrame
    qrels: pd.DataFrame

    def among(self, qids: Iterable[str]) -> Queries:
        """Those with the given ids, in the same order."""
        chosen = set(qids)
        return Queries(*(frame[frame["qid"].isin(chosen)].reset_index(drop=True) for frame in self))

    def sample(self, size: int | None) -> Queries:
        """``size`` queries drawn at random, in the same order; all where ``size`` is None or there are no more."""
        if size is None or size >= len(self.topics):
            return self
        return self.among(self.topics["qid"].sample(size, random_state=0))

    def without(self, other: Queries) -> Queries:
        """Those that ``other`` lacks."""
        return self.among(set(self.topics["qid"]) - set(other.topics["qid"]))


def joined(parts: Iterable[Queries]) -> Queries:
    """The queries of several parts, and their judgments."""
    return Queries(*(pd.concat(frames, ignore_index=True) for frames in zip(*parts, strict=True)))


class Query(NamedTuple):
    """A query of a reader, with the ids of the passages that answer it."""

    qid: str
    text: str
    split: str
    relevant: tuple[str, ...]


def queries_by_split(queries: Iterable[Query]) -> dict[str, Queries]:
    """Queries and judgments (label 1) of each split."""
    by_split: dict[str, list[Query]] = {split: [] for split in SPLITS}
    for query in queries:
        by_split[query.split].append(query)
    return {
        split: Queries(
            pd.DataFrame(
                [(query.qid, query.text) for query in part], columns=["qid", "query"], dtype=str
            ),
            pd.DataFrame(
                [(query.qid, docno) for query in part for docno in query.relevant],
                columns=["qid", "docno"],
                dtype=str,
            ).assign(label=1),
        )
        for split, part in by_split.items()
    }


@dataclass(frozen=True)
class Collection:
    """A test collection.

    Attributes:
        name: The collection's name.
        documents: Returns an iterator over the records: ``docno, title, text``, and for documents with structure what
            :meth:`pyterrier_graph.read_record` reads.
        queries: Queries by split: ``train``, ``dev`` and ``test`` (and ``extra``: training queries that are in no
            graph); or ``train`` and ``test``; or ``all``.
        structured: Whether the records have nodes.
        lookup: Returns texts by docno; by default all documents are read for them.
    """

    name: str
    documents: Callable[[], Iterable[Record]]
    queries: Mapping[str, Queries]
    structured: bool = False
    lookup: Callable[[Iterable[str]], dict[str, str]] | None = None

    @classmethod
    def in_memory(
        cls, name: str, records: Sequence[Record], queries: Mapping[str, Queries]
    ) -> Collection:
        """A small collection, whose ids are checked.

        Raises:
            ValueError: If an id occurs twice, looks like a passage's, or is judged and does not exist.
        """
        everything = joined(queries.values())
        docnos = Counter(record["docno"] for record in records)
        qids = Counter(everything.topics["qid"])
        for identifier, times in (*docnos.items(), *qids.items()):
            if times > 1:
                raise ValueError(f"{name}: the id {identifier!r} occurs {times} times")
        for docno in docnos:
            if PASSAGE_SEPARATOR in docno:
                raise ValueError(
                    f"{name}: docno {docno!r} contains {PASSAGE_SEPARATOR!r}, which marks passages"
                )
        judged = everything.qrels["docno"].map(lambda docno: split_passage_id(docno)[0])
        for column, values, existing in (
            ("docno", judged, docnos),
            ("qid", everything.qrels["qid"], qids),
        ):
            if unknown := sorted(set(values) - existing.keys()):
                raise ValueError(
                    f"{name}: the judgments name the {column} {unknown[0]!r}, which does not exist"
                )
        return cls(
            name, lambda: records, queries, structured=bool(records) and "nodes" in records[0]
        )

    def get_corpus_iter(self, *, verbose: bool = True) -> Iterator[Record]:
        """Iterates over the documents."""
        yield from pt.tqdm(
            self.documents(), desc=f"{self.name} documents", unit="d", disable=not verbose
        )

    def graph(self, path: Path, *, passage_words: int = 120, verbose: bool = True) -> DocumentGraph:
        """The graph of the documents, which is built at a path if it is not there."""
        graph = DocumentGraph(path)
        return (
            graph
            if graph.built()
            else graph.index(self.get_corpus_iter(verbose=verbose), passage_words=passage_words)
        )

    def texts(self, docnos: Iterable[str]) -> dict[str, str]:
        """Title and text by docno; documents that the collection lacks are left out."""
        wanted = set(docnos)
        if self.lookup is not None:
            return self.lookup(wanted)
        return {
            record["docno"]: text_of(record)
            for record in self.documents()
            if record["docno"] in wanted
        }

    def with_texts(self, run: pd.DataFrame) -> pd.DataFrame:
        """A run with a column ``text``.

        Raises:
            KeyError: If the collection lacks a document.
        """
        texts = self.texts(run["docno"])
        if missing := sorted(set(run["docno"]) - texts.keys()):
            raise KeyError(
                f"{len(missing)} candidates are not in the collection: {', '.join(missing[:5])}"
            )
        return run.assign(text=run["docno"].map(texts)).reset_index(drop=True)

    @property
    def all_queries(self) -> Queries:
        """The judged queries of all splits."""
        everything = joined(self.queries.values())
        return everything.among(everything.qrels["qid"])

    def split(self, *, fold: int = 0, dev_queries: int = 500) -> dict[str, Queries]:
        """Queries for training, validation and test.

        Queries without splits are divided: three fifths for training, one for validation, one for test. Where there is
        no ``dev``, a fifth of the training queries, at most ``dev_queries``, is held out.

        Args:
            fold: Which of five divisions, where the collection has no splits.
            dev_queries: Validation queries at most.
        """
        if ALL in self.queries:
            everything = self.all_queries
            folds = query_folds(everything.topics)
            dev, test, *train = [*folds[fold:], *folds[:fold]]
            parts = (set().union(*train), dev, test)
            splits = {
                name: everything.among(part) for name, part in zip(SPLITS, parts, strict=True)
            }
        else:
            splits = dict(self.queries)
        if "dev" not in splits:
            splits["dev"] = splits["train"].sample(
                min(dev_queries, len(splits["train"].topics) // 5)
            )
            splits["train"] = splits["train"].without(splits["dev"])
        splits["dev"] = splits["dev"].sample(dev_queries)
        return splits

    def passages(self) -> Collection:
        """The same with passages as documents; a collection of plain texts stays as it is."""
        if not self.structured:
            return self

        def passages(records: Iterable[Record]) -> Iterator[Record]:
            for record in records:
                for number, text in enumerate(read_record(record).passages()):
                    yield {"docno": passage_id(record["docno"], number), "title": "", "text": text}

        return replace(self, documents=lambda: passages(self.documents()), structured=False)

    def whole(self) -> Collection:
        """The same with each plain text, its title included, as the single passage of its document."""

        def documents() -> Iterator[Record]:
            for record in self.documents():
                nodes = [Node(SECTION, "", NO_PARENT), Node(PASSAGE, text_of(record), 0)]
                yield {"docno": record["docno"], "nodes": nodes}

        queries = {
            split: Queries(
                part.topics, part.qrels.assign(docno=part.qrels["docno"] + f"{PASSAGE_SEPARATOR}0")
            )
            for split, part in self.queries.items()
        }
        return Collection(self.name, documents, queries, structured=True)


def text_of(record: Record) -> str:
    """Title and text of a record."""
    return f"{record.get('title') or ''}\n{record['text']}".strip()


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
    """Joins the members of each group: every member to the next ``width`` members of the group.

    So a group of n members gives at most ``width * n`` pairs, not n * n. A pair that shares several groups counts once.
    """
    joins: dict[str, dict[str, None]] = {}
    for group in groups:
        for position, member in enumerate(group):
            joins.setdefault(member, {}).update(
                dict.fromkeys(group[position + 1 : position + 1 + width])
            )
    return {member: list(others) for member, others in joins.items()}
