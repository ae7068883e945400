"""BM25 over passages, with bm25s: how text becomes terms, and the index of their weights.

bm25s adds up a few columns of a sparse matrix for a query: the BM25 weight of each term in each passage, in
memory-mapped files. The counts of terms are kept beside it, so that an update only reads passages that have changed.
"""

from __future__ import annotations

import json
import os
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import regex

from pyterrier_graph.graphs.csr import ranges

K1, B = 1.2, 0.75
TERMS = "terms.json"
MOST = 65_535  # occurrences of a term that are counted
WORD = regex.compile(r"[\p{L}\p{M}\p{N}]+")
INVISIBLE = regex.compile(r"\p{Default_Ignorable_Code_Point}+")  # such as soft hyphens
UNSPACED = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\u30fc]+"
)
SEPARATORS = {code: " " for code in range(128) if not chr(code).isalnum()}


def words(text: str) -> list[str]:
    """The words of a text in lower case, in their order.

    Words that look the same are the same: normal forms and invisible characters make no difference. Scripts without
    spaces, such as Chinese, Japanese and Thai, become overlapping pairs of characters.
    """
    if text.isascii():
        return text.lower().translate(SEPARATORS).split()
    text = unicodedata.normalize("NFKC", INVISIBLE.sub("", text)).casefold()
    text = unicodedata.normalize("NFKC", text).replace("i\u0307", "i")  # of a Turkish capital
    return WORD.findall(UNSPACED.sub(_pairs, text))


def _pairs(match: Any) -> str:
    characters = match[0]
    return f" {' '.join(map(''.join, pairwise(characters))) or characters} "


class Stems(dict[str, str]):
    """The stem of each English word, computed when it is needed first."""

    def __init__(self) -> None:
        from Stemmer import Stemmer

        self._stem = Stemmer("english").stemWord

    def __missing__(self, word: str) -> str:
        self[word] = stem = self._stem(word)
        return stem


def query_terms(query: str) -> list[str]:
    """The stems of a query's words, without words such as "the" unless there are no others."""
    from bm25s.stopwords import STOPWORDS_EN_PLUS

    stems, query_words = Stems(), words(query)
    return [stems[word] for word in query_words if word not in STOPWORDS_EN_PLUS] or [
        stems[word] for word in query_words
    ]


class TermCounts(NamedTuple):
    """How often each term occurs in each passage; the terms of passage p are ``terms[offsets[p]:offsets[p + 1]]``."""

    terms: np.ndarray
    counts: np.ndarray
    offsets: np.ndarray

    def merge(self, new: TermCounts, copied: np.ndarray) -> TermCounts:
        """The counts of passages that are ``copied`` from here, by number, or, where it is -1, the next new one."""
        rows = copied.copy()
        rows[copied < 0] = len(self.offsets) - 1 + np.arange((copied < 0).sum())
        both = (np.concatenate(pair) for pair in zip(self[:2], new[:2], strict=True))
        lengths = np.concatenate([np.diff(self.offsets), np.diff(new.offsets)])
        starts = np.cumsum(lengths) - lengths
        _, places = ranges(starts[rows], lengths[rows])
        terms, counts = (values[places] for values in both)
        return TermCounts(terms, counts, np.cumsum([0, *lengths[rows]]))


class BM25Index:
    """BM25 of passages, which are numbered in their order.

    Args:
        path: Folder of an index that :meth:`build` has written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}  # worker processes map the files again

    @classmethod
    def build(
        cls,
        path: Path,
        texts: Iterable[str],
        *,
        previous: BM25Index | None = None,
        copied: np.ndarray | None = None,
    ) -> BM25Index:
        """Writes the index of some passages.

        In an update, ``copied`` has per passage its number in a previous index whose counts are copied, or -1;
        ``texts`` are those of the passages with -1 only.
        """
        path.mkdir(parents=True)
        vocabulary = {} if previous is None else dict(previous.vocabulary)
        counts = _count(texts, vocabulary)
        if previous is not None and copied is not None:
            counts = previous.counts.merge(counts, copied)
        for name, values in counts._asdict().items():
            np.save(path / f"{name}.npy", values)
        (path / TERMS).write_text(json.dumps([*vocabulary], ensure_ascii=False), encoding="utf-8")
        _weights(counts, len(vocabulary)).save(path, show_progress=False)
        return cls(path)

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """The number of each term."""
        if not (file := self.path / TERMS).is_file():
            raise FileNotFoundError(f"{str(file)!r} was removed after it had been opened")
        terms = json.loads(file.read_text(encoding="utf-8"))
        return {term: number for number, term in enumerate(terms)}

    @cached_property
    def counts(self) -> TermCounts:
        """The counts of all passages."""
        return TermCounts(*(np.load(self.path / f"{name}.npy") for name in TermCounts._fields))

    @cached_property
    def _bm25(self) -> Any:
        from bm25s import BM25

        return BM25.load(self.path, mmap=True, load_vocab=False)

    def search(
        self, query: str, num_results: int, allowed: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Numbers and scores of the best passages that have a word of the query; equal scores keep their order.

        ``allowed``, shape (passages,), is False for passages that are left out.
        """
        terms = [self.vocabulary[term] for term in query_terms(query) if term in self.vocabulary]
        scores = self._bm25.get_scores_from_ids(terms)  # (passages,)
        numbers = np.flatnonzero(scores if allowed is None else scores * allowed)
        if len(numbers) > num_results:
            least = np.partition(scores[numbers], -num_results)[-num_results]
            numbers = numbers[scores[numbers] >= least]
        numbers = numbers[np.argsort(-scores[numbers], kind="stable")[:num_results]]
        return numbers, scores[numbers]


def _count(texts: Iterable[str], vocabulary: dict[str, int]) -> TermCounts:
    """Counts the terms of each text; new terms are added to the vocabulary."""
    stems, terms, counts = Stems(), list[np.ndarray](), list[np.ndarray]()
    for text in texts:
        count = Counter(stems[word] for word in words(text))
        numbers = [vocabulary.setdefault(term, len(vocabulary)) for term in count]
        terms.append(np.array(numbers, np.int32))
        counts.append(np.minimum([*count.values()], MOST).astype(np.uint16))
    return TermCounts(
        np.concatenate([np.empty(0, np.int32), *terms]),
        np.concatenate([np.empty(0, np.uint16), *counts]),
        np.cumsum([0, *map(len, terms)]),
    )


def _weights(counts: TermCounts, num_terms: int) -> Any:
    """The index of bm25s for some counts: its own loop over passages takes ten times as long."""
    from bm25s import BM25
    from scipy.sparse import csr_matrix

    shape = len(counts.offsets) - 1, max(1, num_terms)
    table = csr_matrix((counts.counts, counts.terms, counts.offsets), shape=shape).tocsc()
    lengths = np.bincount(
        np.repeat(np.arange(shape[0]), np.diff(counts.offsets)), counts.counts, shape[0]
    )
    passages = np.diff(table.indptr)  # of each term
    idf = np.log1p((shape[0] - passages + 0.5) / (passages + 0.5))
    norm = K1 * (1 - B + B * lengths / max(lengths.sum() / max(shape[0], 1), 1))
    weights = np.repeat(idf, passages) * table.data / (table.data + norm[table.indices])
    index = BM25(k1=K1, b=B)
    index.scores = {
        "data": weights.astype(np.float32),
        "indices": table.indices.astype(np.int32),
        "indptr": table.indptr.astype(np.int32),
        "num_docs": shape[0],
    }
    index.vocab_dict, index.nonoccurrence_array = {}, None
    return index
