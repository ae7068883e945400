"""The two queries that are made from a patent application (Albarede et al. 2023, Sect. 5.1.2)."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import pyterrier as pt
import pyterrier_alpha as pta

from pyterrier_graph.checks import WithSignature, check_count, check_type
from pyterrier_graph.patents.document_frequencies import DocumentFrequencies


class ClaimsQuery(WithSignature, pt.Transformer):
    """The query of the reranker: the claims.

    Columns in: ``qid``, ``text`` (the claims, as the topics have them), and any others. Columns out: ``query`` instead
    of ``text``, so that ``text`` can later be the text of passages.

    Args:
        words: The number of words that are kept. An encoder with this maximum length loses nothing, because each word
            has at least one token.

    Raises:
        ValueError: If ``words`` is less than 1.
    """

    schematic = {"label": "ClaimsQuery", "help_url": None}

    def __init__(self, words: int = 120) -> None:
        check_count("words", words)
        self.words = words

    __repr__ = pta.transformer_repr

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Makes the claims the query."""
        pt.validate.query_frame(inp, extra_columns=["text"], context=self)
        out = inp.drop(columns=["text", "query"], errors="ignore")
        return out.assign(query=inp["text"].astype("str").str.split().str[: self.words].str.join(" "))


class AbstractTerms(WithSignature, pt.Transformer):
    """The query of the first stage: the words of the application's abstract with the highest tf-idf.

    If the application has no abstract, the words are those of its claims. Words that are in no document of the
    application's language are left out.

    Columns in: ``qid``, ``query`` (the claims), ``abstract``, ``language``, and any others. Columns out: the words as
    ``query``, best first, and the claims as ``query_0``; ``pt.rewrite.reset()`` makes the claims the query again.

    Args:
        frequencies: The document frequencies of the collection.
        terms: The number of words.

    Raises:
        TypeError: If ``frequencies`` are no :class:`DocumentFrequencies`.
        ValueError: If ``terms`` is less than 1; in ``transform``, if no word of a topic is in the collection.
        KeyError: In ``transform``, if there are no documents in the language of a topic.
    """

    schematic = {"label": "AbstractTerms", "help_url": None}

    def __init__(self, frequencies: DocumentFrequencies, terms: int = 10) -> None:
        expected = "DocumentFrequencies: DocumentFrequencies(path).index(documents)"
        check_type("frequencies", frequencies, DocumentFrequencies, expected)
        check_count("terms", terms)
        self.frequencies = frequencies
        self.terms = terms

    __repr__ = pta.transformer_repr

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Makes the words the query."""
        pt.validate.query_frame(inp, extra_columns=["query", "abstract", "language"], context=self)
        topics = zip(inp["qid"], inp["abstract"], inp["query"], inp["language"], strict=True)
        queries = [self._best(qid, abstract or claims, language) for qid, abstract, claims, language in topics]
        out = pt.model.push_queries(inp)
        out["query"] = pd.Series(queries, index=out.index, dtype="str")
        return out

    def _best(self, qid: str, text: str, language: str) -> str:
        counts = Counter(self.frequencies.words(text))
        words = [*counts]
        idf = self.frequencies.idf(words, language)
        weights = np.fromiter(counts.values(), float, len(words)) * np.where(np.isfinite(idf), idf, -1.0)
        order = np.argsort(-weights, kind="stable")[: self.terms]
        if best := [words[place] for place in order if weights[place] >= 0]:
            return " ".join(best)
        raise ValueError(f"topic {qid!r}: no document in the language {language!r} has a word of {text!r:.80}")
