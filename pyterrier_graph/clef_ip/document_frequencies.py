"""Document frequencies: the number of documents that have a word."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
import pyterrier as pt

from pyterrier_graph.checks import WithSignature
from pyterrier_graph.storage.artifact import BuiltArtifact, atomic_folder, check_vacant, kind_of

COUNTS = "counts.npy"
BUCKETS = 1 << 22
WORD = r"\b[^\W\d_]{2,}\b"


class DocumentFrequencies(WithSignature, BuiltArtifact):
    """Document frequencies of words for each language, on disk and memory-mapped.

    Function words need no list: nearly all documents of their language have them, so that their idf is nearly 0. Words
    are hashed into four million counters per language, so that memory does not grow with the collection. Words with the
    same hash share a counter: a frequency can be too high, but not too low.

    Args:
        path: The folder. It need not exist before :meth:`index`; nothing is read before it is needed.
        verbose: Whether to show progress.
    """

    ARTIFACT_TYPE = "document_frequencies"
    ARTIFACT_FORMAT = "hashed"

    def index(self, corpus_iter: Iterable[Mapping[str, Any]]) -> Self:
        """Counts the documents of each word, and returns these frequencies.

        Args:
            corpus_iter: Records with ``text`` and ``language``, which are read once.

        Raises:
            FileExistsError: If there is something at the path already.
            ValueError: If there is no document.
        """
        check_vacant(self.path)
        counts: dict[str, np.ndarray] = {}
        documents: Counter[str] = Counter()
        records = pt.tqdm(
            corpus_iter, desc="counting words", unit="doc", delay=1, disable=not self.verbose
        )
        for record in records:
            language = record["language"]
            if language not in counts:
                counts[language] = np.zeros(BUCKETS, dtype=np.uint32)
            row = self._vectorizer.transform([record["text"]])  # sparse, (1, buckets)
            counts[language][row.indices] += 1
            documents[language] += 1
        if not counts:
            raise ValueError("corpus_iter has no documents, so no words can be counted")
        all_counts = np.stack(list(counts.values()))  # (languages, buckets)
        meta = kind_of(self) | {"documents": documents}
        with atomic_folder(self.path, meta) as folder:
            np.save(folder / COUNTS, all_counts)
        return self

    @property
    def documents(self) -> dict[str, int]:
        """The number of documents in each language."""
        return self.meta["documents"]

    def words(self, text: str) -> list[str]:
        """The words of a text that are counted: two letters or more, in lower case, without numbers."""
        return self._vectorizer.build_analyzer()(text)

    def idf(self, words: Sequence[str], language: str) -> np.ndarray:
        """Inverse document frequency, ``ln(documents / document frequency)``, shape (words,).

        It is 0 or more, and infinite for a word that no document has.

        Args:
            words: Words that :meth:`words` returned.
            language: The language of the documents.

        Raises:
            KeyError: If there is no document in that language.
        """
        if not words:
            return np.zeros(0)
        documents = self.documents[language]
        row = list(self.documents).index(language)
        counts = np.load(self.folder / COUNTS, mmap_mode="r")  # (languages, buckets)
        buckets = self._vectorizer.transform(words).indices  # (words,)
        frequencies = counts[row, buckets]
        with np.errstate(divide="ignore"):
            return np.log(documents / frequencies)

    @cached_property
    def _vectorizer(self) -> Any:
        from sklearn.feature_extraction.text import HashingVectorizer

        return HashingVectorizer(
            n_features=BUCKETS,
            token_pattern=WORD,
            binary=True,
            norm=None,
            alternate_sign=False,
            dtype=np.float32,
        )
