"""BM25 over passages, with bm25s: how text becomes terms, and the index of their weights.

bm25s adds up a few columns of a sparse matrix for a query: the BM25 weight of each term in each passage, in
memory-mapped files. The counts of terms are kept beside it, so that an update only reads passages that have changed.
"""

from __future__ import annotations

import json
import os
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import regex
from scipy.sparse import csc_matrix, csr_matrix, vstack
from Stemmer import Stemmer

from pyterrier_graph.storage.arrays import blocks

K1, B = 1.2, 0.75
TERMS, COUNTS = "terms.json", "counts.npy"
MAX_COUNT = 65_535  # of a term in a passage
COUNTS_AT_ONCE = 1 << 24
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


stem = lru_cache(maxsize=1 << 18)(Stemmer("english").stemWord)


def query_terms(query: str) -> list[str]:
    """Stems of the query's words. Stop words are dropped unless there are no other words."""
    from bm25s.stopwords import STOPWORDS_EN_PLUS

    query_words = words(query)
    content_words = [word for word in query_words if word not in STOPWORDS_EN_PLUS]
    return [stem(word) for word in content_words or query_words]


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
        reused: np.ndarray | None = None,
    ) -> BM25Index:
        """Writes an index of passages.

        In an update, the first passages are ``reused``: numbers of passages of the previous index, ascending.
        ``texts`` are the passages behind them.
        """
        path.mkdir(parents=True)
        vocabulary = {} if previous is None else dict(previous.vocabulary)
        counts = _count(texts, vocabulary)
        if previous is not None and reused is not None:
            before = previous.counts()[reused]
            before.resize(len(reused), counts.shape[1])
            counts = vstack([before, counts], format="csr")
        by_term = counts.tocsc()
        del counts
        np.save(path / COUNTS, by_term.data)
        (path / TERMS).write_text(json.dumps([*vocabulary], ensure_ascii=False), encoding="utf-8")
        _weights(by_term).save(path, show_progress=False)
        return cls(path)

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """The number of each term."""
        terms = json.loads((self.path / TERMS).read_text(encoding="utf-8"))
        return {term: number for number, term in enumerate(terms)}

    def counts(self) -> csr_matrix:
        """How often each passage has each term, shape (passages, terms)."""
        scores = self._bm25.scores
        by_term = np.load(self.path / COUNTS), scores["indices"], scores["indptr"]
        shape = scores["num_docs"], len(scores["indptr"]) - 1
        return csc_matrix(by_term, shape=shape).tocsr()

    @cached_property
    def _bm25(self) -> Any:
        from bm25s import BM25

        return BM25.load(self.path, mmap=True, load_vocab=False)

    def search(self, query: str, num_results: int) -> tuple[np.ndarray, np.ndarray]:
        """Scores and numbers of the best passages that have a word of the query; equal scores keep their order."""
        terms = [self.vocabulary[term] for term in query_terms(query) if term in self.vocabulary]
        scores = self._bm25.get_scores_from_ids(terms)  # (passages,)
        numbers = np.flatnonzero(scores)
        if len(numbers) > num_results:
            least = np.partition(scores[numbers], -num_results)[-num_results]
            numbers = numbers[scores[numbers] >= least]
        numbers = numbers[np.argsort(-scores[numbers], kind="stable")[:num_results]]
        return scores[numbers], numbers


def _count(texts: Iterable[str], vocabulary: dict[str, int]) -> csr_matrix:
    """Counts the terms of texts, shape (texts, terms); adds new terms to ``vocabulary``."""
    terms, counts, offsets = array("i"), array("i"), array("q", [0])
    for text in texts:
        count = Counter(map(stem, words(text)))
        terms.extend([vocabulary.setdefault(term, len(vocabulary)) for term in count])
        counts.extend(count.values())
        offsets.append(len(terms))
    rows = np.minimum(counts, MAX_COUNT).astype(np.uint16), np.array(terms), np.array(offsets)
    return csr_matrix(rows, shape=(len(offsets) - 1, max(1, len(vocabulary))))


def _weights(counts: csc_matrix) -> Any:
    """Computes a bm25s index from counts, ten times as fast as the loop over passages in bm25s."""
    from bm25s import BM25

    passages = counts.shape[0]
    lengths = np.zeros(passages)
    for block in blocks(counts.nnz, COUNTS_AT_ONCE):
        lengths += np.bincount(counts.indices[block], counts.data[block], passages)
    frequency = np.diff(counts.indptr)  # passages with each term
    idf = np.log1p((passages - frequency + 0.5) / (frequency + 0.5))
    norm = K1 * (1 - B + B * lengths / max(lengths.sum() / max(passages, 1), 1))
    term = np.repeat(np.arange(len(idf), dtype=np.int32), frequency)  # of each count
    weights = np.empty(counts.nnz, dtype=np.float32)
    for block in blocks(counts.nnz, COUNTS_AT_ONCE):
        count = counts.data[block]
        weights[block] = idf[term[block]] * count / (count + norm[counts.indices[block]])
    index = BM25(k1=K1, b=B)
    index.scores = {
        "data": weights,
        "indices": counts.indices.astype(np.int32, copy=False),
        "indptr": counts.indptr.astype(np.int64),
        "num_docs": passages,
    }
    index.vocab_dict, index.nonoccurrence_array = {}, None
    return index
