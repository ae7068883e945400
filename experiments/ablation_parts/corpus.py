"""A collection as arrays: vectors of passages, titles and queries, the graph's relations, and what BM25 finds."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from scipy.sparse import csr_array

from experiments.harness.collection import ALL, Collection, Queries, Record
from experiments.harness.first_stage import bm25
from experiments.harness.judgments import relevant_passages
from pyterrier_graph import DocumentGraph
from pyterrier_graph.graphs.hetero_graph import PASSAGE_TYPE
from pyterrier_graph.graphs.judgments import judged_ids

Encode = Callable[[Sequence[str]], np.ndarray]  # texts to vectors, shape (texts, d)
FOLDS = 5
SENTENCE, SENTENCE_LENGTH = re.compile(r"(?<=[.!?])\s"), 200
WINDOW_WORDS, WINDOWS = 170, 5  # about 256 tokens; windows of a passage


@dataclass
class Division:
    """Queries that are tested, those that numbers are fitted on, and past queries: ``qid, query`` and judgments."""

    test: Queries
    dev: Queries
    past: Queries


class Corpus:
    """A collection, and what is computed of it once.

    Args:
        collection: The collection.
        graph: Its graph.
        folder: Where indexes and results of BM25 are kept.
        passages: The vectors of passages and titles.
        queries: The vectors of queries.
    """

    def __init__(
        self,
        collection: Collection,
        graph: DocumentGraph,
        folder: Path,
        passages: Encode,
        queries: Encode,
    ) -> None:
        self.collection, self.graph, self.folder = collection, graph, folder
        self._encode, self.encode_queries = passages, queries
        self.nodes = graph.passage_nodes
        self.docnos = np.array([*map(str, graph.ids_of(self.nodes))], dtype=object)
        self.number = {docno: number for number, docno in enumerate(self.docnos)}

    def __len__(self) -> int:
        return len(self.nodes)

    @cache  # noqa: B019  # a corpus lives as long as the program needs it
    def read(self, text: str) -> np.ndarray:
        """Vectors of passages, shape (passages, d), of what the encoder reads: see :meth:`texts`."""
        return self._encode(self.texts(text))

    def texts(self, text: str) -> list[str]:
        """The passages: ``'plain'``, ``'titled'``, or with a sentence ``'before'`` or ``'around'``, too."""
        if text in ("plain", "titled"):
            return self.graph.texts(self.nodes, titles=text == "titled")
        titles, texts = self.graph.titles(self.nodes), self.graph.texts(self.nodes)
        sentences = [SENTENCE.split(passage, 1)[0][:SENTENCE_LENGTH] for passage in texts]
        found = []
        for number, passage in enumerate(texts):
            beside = [
                sentences[other]
                for other in (number - 1, number + 1 if text == "around" else -1)
                if 0 <= other < len(texts) and self.of_document[other] == self.of_document[number]
            ]
            front = " ".join(beside)
            title = f"{titles[number]}: " if titles[number] else ""
            found.append(f"{title}{front} {passage}" if front else f"{title}{passage}")
        return found

    @cached_property
    def windows(self) -> tuple[np.ndarray, np.ndarray]:
        """Per further window of long passages the passage's number, and the window's vector, titles in front."""
        texts, titles = self.graph.texts(self.nodes), self.graph.titles(self.nodes)
        pairs = [
            (number, f"{titles[number]}: {part}" if titles[number] else part)
            for number, text in enumerate(texts)
            for part in further_windows(text)
        ]
        numbers = np.array([number for number, _ in pairs], np.int64)
        return numbers, self._encode([part for _, part in pairs])

    @cached_property
    def above(self) -> csr_array:
        """The sections with a title above each passage, shape (passages, titles)."""
        passage, section = self.graph.neighbors(self.nodes, "titles")
        written = np.array([bool(text.strip()) for text in self.graph.texts(section)], dtype=bool)
        passage, section = passage[written], section[written]
        self._sections, column = np.unique(section, return_inverse=True)
        shape = len(self), len(self._sections)
        return csr_array((np.ones(len(passage), np.float32), (passage, column)), shape=shape)

    @cached_property
    def title_vectors(self) -> np.ndarray:
        """Vectors of the titles, shape (titles, d)."""
        shape = self.above.shape  # it finds the sections
        if not shape[1]:
            return np.zeros((0, self.read("titled").shape[1]), np.float32)
        return self._encode(self.graph.texts(self._sections))

    @cached_property
    def beside(self) -> csr_array:
        """The passages before and after each passage, rows divided by their number, shape (passages, passages)."""
        pairs = [self.graph.neighbors(self.nodes, path) for path in ("order", "order_i")]
        passage, node = map(np.concatenate, zip(*pairs, strict=True))
        kept = self.graph.node_type[node] == PASSAGE_TYPE
        column = np.searchsorted(self.nodes, node[kept])
        ones = np.ones(kept.sum(), np.float32)
        return averaging(csr_array((ones, (passage[kept], column)), shape=(len(self), len(self))))

    @cached_property
    def first(self) -> np.ndarray:
        """The first passage of each document that has one, shape (documents,)."""
        return np.unique(self.graph.document[self.nodes], return_index=True)[1]

    @cached_property
    def of_document(self) -> np.ndarray:
        """The document of each passage, as a row of :attr:`first`, shape (passages,)."""
        return np.unique(self.graph.document[self.nodes], return_inverse=True)[1]

    def answered(self, past: Queries) -> csr_array:
        """The past queries that each passage is relevant to, shape (passages, queries)."""
        qrels = relevant_passages(self.graph, past.qrels)
        column = {qid: number for number, qid in enumerate(past.topics["qid"])}
        pairs = {
            (self.number[docno], column[qid])
            for qid, docno in zip(qrels["qid"], qrels["docno"], strict=True)
            if qid in column
        }
        rows, columns = zip(*sorted(pairs), strict=True) if pairs else ((), ())
        shape = len(self), len(past.topics)
        return csr_array((np.ones(len(pairs), np.float32), (rows, columns)), shape=shape)

    def divisions(self) -> list[Division]:
        """The divisions of the queries; where a collection has none, five."""
        folds = range(FOLDS) if ALL in self.collection.queries else [0]
        splits = [self.collection.split(fold=fold, dev_queries=300) for fold in folds]
        return [Division(split["test"], split["dev"], split["train"]) for split in splits]

    def lexical(self, name: str, queries: Queries, past: Queries | None = None) -> np.ndarray:
        """Scores by BM25 over titles, texts, and past queries, NaN for what is not retrieved, (queries, passages)."""
        file = self.folder / f"{name}.npz"
        if not file.exists():
            found = self._searched(queries, past)
            row = dict(zip(queries.topics["qid"], range(len(queries.topics)), strict=True))
            file.parent.mkdir(parents=True, exist_ok=True)
            np.savez(
                part := file.with_suffix(f".{os.getpid()}.npz"),
                query=found["qid"].map(row).to_numpy(np.int64),
                passage=found["docno"].map(self.number).to_numpy(np.int64),
                score=found["score"].to_numpy(np.float32),
            )
            os.replace(part, file)
        stored = np.load(file)
        scores = np.full((len(queries.topics), len(self)), np.nan, np.float32)
        scores[stored["query"], stored["passage"]] = stored["score"]
        return scores

    def _searched(self, queries: Queries, past: Queries | None) -> pd.DataFrame:
        titles, texts = self.graph.titles(self.nodes), self.graph.texts(self.nodes)
        asked: Mapping[int, list[str]] = {}
        if past is not None and len(past.topics):
            edges, words = self.answered(past).tocoo(), past.topics["query"].tolist()
            asked = (
                pd.Series([words[n] for n in edges.col], dtype=object).groupby(edges.row).agg(list)
            )

        def records() -> Iterator[Record]:
            for number, docno in enumerate(self.docnos):
                more = "\n".join(asked[number]) if number in asked else ""
                yield {"docno": docno, "title": titles[number], "text": f"{texts[number]}\n{more}"}

        with TemporaryDirectory() as folder:
            index = bm25(Collection("passages", records, {}), Path(folder, "pisa"))
            return index(queries.topics[["qid", "query"]])


class Judge:
    """nDCG@10 of rankings of passages, or of documents by their best passages where documents are judged."""

    def __init__(self, corpus: Corpus, queries: Queries) -> None:
        self.corpus, qrels = corpus, queries.qrels
        self.qids = queries.topics["qid"].tolist()
        judged = judged_ids(pd.Series(corpus.docnos), qrels).to_numpy(object)
        self.by_document = len(qrels) > 0 and judged[0] != corpus.docnos[0]
        items = judged[corpus.first] if self.by_document else judged
        row, column = ({name: n for n, name in enumerate(names)} for names in (self.qids, items))
        self.gains = np.zeros((len(self.qids), len(items)), np.float32)
        self._ideal = np.zeros(len(self.qids))
        for qid, judgments in qrels[qrels["label"] > 0].groupby("qid"):
            if qid not in row:
                continue
            labels = np.sort(judgments["label"].to_numpy(float))[::-1][:10]
            self._ideal[row[qid]] = labels @ DISCOUNT[: len(labels)]
            for docno, label in zip(judgments["docno"], judgments["label"], strict=True):
                if docno in column:
                    self.gains[row[qid], column[docno]] = label

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        """nDCG@10 of each query, for scores of shape (queries, passages), in which -inf is not retrieved."""
        if self.by_document:
            scores = np.maximum.reduceat(scores, self.corpus.first, axis=1)
        count = min(10, scores.shape[1])
        best = np.argpartition(-scores, count - 1, axis=1)[:, :count]
        order = np.argsort(-np.take_along_axis(scores, best, 1), axis=1, kind="stable")
        best = np.take_along_axis(best, order, 1)
        gains = np.take_along_axis(self.gains, best, 1)
        gains[~np.isfinite(np.take_along_axis(scores, best, 1))] = 0
        return gains @ DISCOUNT[:count] / np.maximum(self._ideal, 1e-9)


def further_windows(text: str) -> list[str]:
    """The windows of a text after the first one."""
    words = text.split()
    starts = range(WINDOW_WORDS, min(len(words), WINDOW_WORDS * WINDOWS), WINDOW_WORDS)
    return [" ".join(words[start : start + WINDOW_WORDS]) for start in starts]


DISCOUNT = 1 / np.log2(np.arange(2, 12))


def averaging(matrix: csr_array) -> csr_array:
    """The matrix with rows that add up to 1, or are empty."""
    total = np.asarray(matrix.sum(axis=1)).ravel()
    scale = 1 / np.maximum(total, 1e-12)
    return csr_array(matrix.multiply(scale[:, None].astype(np.float32)))
