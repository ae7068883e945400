"""The two forms of a query that a patent application is made into (Albarede et al. 2023, Sect. 5.1.2)."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import pyterrier as pt
import pyterrier_alpha as pta

from pyterrier_graph.patents.document_frequencies import DocumentFrequencies


class ClaimsQuery(pt.Transformer):
    """The second form: the topic's claims.

    Columns in: ``qid``, ``text`` (the claims, as the topics have them), and any others. Columns out: ``query`` instead
    of ``text``, which later is that of a passage.

    Args:
        words: So many words are kept. An encoder that reads no more tokens than that misses nothing by it, since a word
            has one or more.

    Raises:
        ValueError: If there are to be no words.
    """

    schematic = {"label": "ClaimsQuery", "help_url": None}

    def __init__(self, words: int = 120) -> None:
        if words < 1:
            raise ValueError(f"a query needs at least one word, got words={words}")
        self.words = words

    __repr__ = pta.transformer_repr

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Makes the claims the query."""
        pt.validate.query_frame(inp, extra_columns=["text"], context=self)
        out = inp.drop(columns=["text", "query"], errors="ignore")
        return out.assign(query=inp["text"].astype("str").str.split().str[: self.words].str.join(" "))


class AbstractTerms(pt.Transformer):
    """The first form: the words of the application's abstract with the highest tf-idf.

    Words that no document of the application's language has are left out, since they find nothing. An application
    without an abstract has those of its claims instead.

    Columns in: ``qid``, ``query`` (the claims), ``abstract``, ``language``, and any others. Columns out: the words as
    ``query``, best first, the claims as ``query_0``, as PyTerrier's rewriters have it: ``pt.rewrite.reset()`` brings
    them back.

    Args:
        frequencies: Document frequencies of the collection, by language.
        terms: How many words.

    Raises:
        KeyError: If there are no documents in the language of a topic.
        ValueError: If there are to be no words, or none of a topic's occurs in the collection.
    """

    schematic = {"label": "AbstractTerms", "help_url": None}

    def __init__(self, frequencies: DocumentFrequencies, terms: int = 10) -> None:
        if terms < 1:
            raise ValueError(f"a query needs at least one word, got terms={terms}")
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
