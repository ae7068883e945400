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
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from itertools import islice, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import regex
from numpy.lib.format import open_memmap
from scipy.sparse import csc_matrix, csr_matrix, load_npz, save_npz
from Stemmer import Stemmer

from pyterrier_graph.graphs.csr import offsets
from pyterrier_graph.storage.arrays import blocks

K1 = 1.2
B = 0.75
TERMS = "terms.json"
COUNTS = "counts.npy"
MAX_COUNT = 65_535  # of a term in a passage
COUNTS_AT_ONCE = 1 << 22
PASSAGES_AT_ONCE = 1 << 17
WORD = regex.compile(r"[\p{L}\p{M}\p{N}]+")
INVISIBLE = regex.compile(r"\p{Default_Ignorable_Code_Point}+")  # such as soft hyphens
UNSPACED = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\u30fc]+"
)
# ASCII characters that are neither letters nor digits
SEPARATORS = {code: " " for code in range(128) if not chr(code).isalnum()}


def words(text: str) -> list[str]:
    """The words of a text in lower case, in their order.

    Words that look the same are the same: normal forms and invisible characters make no difference. Scripts without
    spaces, such as Chinese, Japanese and Thai, become overlapping pairs of characters.
    """
    if text.isascii():
        return text.lower().translate(SEPARATORS).split()
    text = INVISIBLE.sub("", text)
    text = unicodedata.normalize("NFKC", text).casefold()
    text = unicodedata.normalize("NFKC", text)  # folding may change the form
    text = text.replace("i\u0307", "i")  # of a Turkish capital
    text = UNSPACED.sub(_pairs, text)
    return WORD.findall(text)


def _pairs(match: Any) -> str:
    """The overlapping pairs of a match's characters, between spaces; a single character stays."""
    characters = match[0]
    pairs = [first + second for first, second in pairwise(characters)]
    separated = " ".join(pairs) or characters
    return f" {separated} "


stem = lru_cache(maxsize=1 << 18)(Stemmer("english").stemWord)


def term_counts(text: str) -> Counter[str]:
    """How often a text has each term, which is the stem of a word."""
    return Counter(map(stem, words(text)))


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
        ``texts`` has the passages that follow them.
        """
        path.mkdir(parents=True)
        vocabulary = {} if previous is None else dict(previous.vocabulary)
        with TemporaryDirectory(dir=path) as scratch:
            joined = JoinedCounts(Path(scratch))
            if previous is not None:
                joined.append(previous.counts()[reused])
            for counts in _count(texts, vocabulary):
                joined.append(counts)
            joined.save(path)
        terms = json.dumps([*vocabulary], ensure_ascii=False)
        (path / TERMS).write_text(terms, encoding="utf-8")
        return cls(path)

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """The number of each term."""
        file = self.path / TERMS
        terms = json.loads(file.read_text(encoding="utf-8"))
        return {term: number for number, term in enumerate(terms)}

    def counts(self) -> csr_matrix:
        """How often each passage has each term, shape (passages, terms)."""
        scores = self._bm25.scores
        passages = scores["indices"]
        starts = scores["indptr"]
        shape = scores["num_docs"], len(starts) - 1
        counts = np.load(self.path / COUNTS)
        by_term = csc_matrix((counts, passages, starts), shape=shape)
        return by_term.tocsr()

    @cached_property
    def _bm25(self) -> Any:
        from bm25s import BM25

        return BM25.load(self.path, mmap=True, load_vocab=False)

    def search(self, query: str, num_results: int) -> tuple[np.ndarray, np.ndarray]:
        """Scores and numbers of the best passages that have a word of the query; equal scores keep their order."""
        vocabulary = self.vocabulary
        terms = [vocabulary[term] for term in query_terms(query) if term in vocabulary]
        all_scores = self._bm25.get_scores_from_ids(terms)  # (passages,)
        numbers = np.flatnonzero(all_scores)
        scores = all_scores[numbers]
        if len(numbers) > num_results:
            # sorting only candidates is faster; ties with the last result are among them
            lowest = np.partition(scores, -num_results)[-num_results]
            numbers = numbers[scores >= lowest]
            scores = all_scores[numbers]
        best = np.argsort(-scores, kind="stable")[:num_results]
        return scores[best], numbers[best]


def _count(texts: Iterable[str], vocabulary: dict[str, int]) -> Iterator[csr_matrix]:
    """Yields the counts of terms in blocks of texts, shape (texts, terms); adds new terms to ``vocabulary``."""
    remaining = iter(texts)
    rows = PASSAGES_AT_ONCE
    # a smaller block is the last one
    while rows == PASSAGES_AT_ONCE:
        terms = array("i")
        counts = array("i")
        starts = array("q", [0])  # of the rows, and the end of the last one
        for text in islice(remaining, PASSAGES_AT_ONCE):
            text_counts = term_counts(text)
            numbers = [vocabulary.setdefault(term, len(vocabulary)) for term in text_counts]
            terms.extend(numbers)
            counts.extend(text_counts.values())
            starts.append(len(terms))
        rows = len(starts) - 1
        shape = rows, max(1, len(vocabulary))
        data = np.minimum(counts, MAX_COUNT).astype(np.uint16)
        indices = np.array(terms)
        indptr = np.array(starts)
        yield csr_matrix((data, indices, indptr), shape=shape)


class JoinedCounts:
    """The counts of terms in blocks of passages, joined in files, so that memory grows by a few bytes a passage.

    Attributes:
        frequency: Number of passages with each term.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: list[Path] = []
        self.lengths: list[np.ndarray] = []  # words of each passage
        self.frequency = np.zeros(0, np.int64)

    def append(self, counts: csr_matrix) -> None:
        """Adds a block of passages, shape (passages, terms)."""
        lengths = counts.sum(axis=1, dtype=np.int64)  # (passages, 1)
        self.lengths.append(np.asarray(lengths).ravel())
        by_term = counts.tocsc()
        file = self.folder / f"{len(self.files)}.npz"
        save_npz(file, by_term, compressed=False)
        self.files.append(file)
        frequency = np.diff(by_term.indptr).astype(np.int64)
        frequency[: len(self.frequency)] += self.frequency  # earlier blocks have no other terms
        self.frequency = frequency

    def save(self, path: Path) -> None:
        """Writes the index of bm25s, ten times as fast as bm25s builds it in its loop over passages, and the counts."""
        from bm25s import BM25

        starts = offsets(self.frequency)  # (terms + 1,): position of each term's first count
        counts, passages = self._joined(starts)
        index = BM25(k1=K1, b=B)
        index.scores = {
            "data": self._weights(counts, passages, starts),
            "indices": passages,
            "indptr": starts,
            "num_docs": sum(map(len, self.lengths)),
        }
        index.vocab_dict = {}
        index.nonoccurrence_array = None
        index.save(path, show_progress=False)
        np.save(path / COUNTS, counts)

    def _joined(self, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Each count, by term, then by passage, and the number of its passage; both of shape (counts,)."""
        counts = self._array("counts", np.uint16, starts[-1])
        passages = self._array("passages", np.int32, starts[-1])
        ends = starts[:-1].copy()  # (terms,): where the next count of each term goes
        first_passage = 0
        for file in self.files:
            block = load_npz(file)  # (passages, terms)
            in_block = np.diff(block.indptr)  # passages with each term
            terms = len(in_block)
            shift = ends[:terms] - block.indptr[:-1]
            position = np.repeat(shift, in_block)  # (counts of the block,)
            position += np.arange(block.nnz)
            counts[position] = block.data
            passages[position] = block.indices + first_passage
            ends[:terms] += in_block
            first_passage += block.shape[0]
        return counts, passages

    def _weights(self, counts: np.ndarray, passages: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """The BM25 weight of each count, shape (counts,)."""
        length = np.concatenate(self.lengths)  # (passages,)
        num_passages = len(length)
        mean_length = length.sum() / max(num_passages, 1)
        norm = K1 * (1 - B + B * length / max(mean_length, 1))  # (passages,)
        frequency = self.frequency
        idf = np.log1p((num_passages - frequency + 0.5) / (frequency + 0.5))  # (terms,)
        weights = self._array("weights", np.float32, len(passages))
        for block in blocks(len(weights), COUNTS_AT_ONCE):
            term = np.searchsorted(starts, block, side="right") - 1
            tf = counts[block]
            block_norm = norm[passages[block]]
            weights[block] = idf[term] * tf / (tf + block_norm)
        return weights

    def _array(self, name: str, dtype: Any, length: int) -> np.ndarray:
        """Creates an array in a file."""
        file = self.folder / f"{name}.npy"
        return open_memmap(file, "w+", dtype, shape=(int(length),))
