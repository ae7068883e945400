"""Transformers that make queries of patent applications and filter their results."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.clef_ip.document_frequencies import DocumentFrequencies
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.graphs.judgments import documents_of
from pyterrier_graph.graphs.passages import Step

Level = Literal["subclass", "group"]


class ClaimsQuery(Step):
    """The query of the reranker: the claims.

    Columns in: ``qid``, ``text`` (the claims, as the topics have them), and any others. Columns out: ``query`` instead
    of ``text``, so that ``text`` can later be the text of passages.

    Args:
        words: Number of words to keep. An encoder with this maximum length loses nothing, because each word has at
            least one token.
    """

    def __init__(self, words: int = 120) -> None:
        self.words = words

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Makes the claims the query."""
        pt.validate.query_frame(inp, extra_columns=["text"], context=self)
        words = inp["text"].astype("str").str.split()
        query = words.str[: self.words].str.join(" ")
        return inp.drop(columns="text").assign(query=query)


class AbstractTerms(Step):
    """The query of the first stage: the words of the application's abstract with the highest tf-idf.

    If the application has no abstract, the words come from its claims. Words that are in no document of the
    application's language are left out.

    Columns in: ``qid``, ``query`` (the claims), ``abstract``, ``language``, and any others. Columns out: the words as
    ``query``, best first, and the claims as ``query_0``; ``pt.rewrite.reset()`` makes the claims the query again.

    Args:
        frequencies: The document frequencies of the collection.
        terms: Number of words.
    """

    def __init__(self, frequencies: DocumentFrequencies, terms: int = 10) -> None:
        self.frequencies = frequencies
        self.terms = terms

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Makes the words the query."""
        columns = ["query", "abstract", "language"]
        pt.validate.query_frame(inp, extra_columns=columns, context=self)
        has_abstract = inp["abstract"] != ""
        texts = inp["abstract"].where(has_abstract, inp["query"])
        topics = zip(texts, inp["language"], strict=True)
        queries = [self._best_words(text, language) for text, language in topics]
        out = pt.model.push_queries(inp)
        return out.assign(query=queries)

    def _best_words(self, text: str, language: str) -> str:
        counts = Counter(self.frequencies.words(text))
        idf = self.frequencies.idf(list(counts), language)  # (words,)
        weights = pd.Series(counts, dtype=float) * idf
        is_known = np.isfinite(weights)
        best = weights[is_known].nlargest(self.terms)
        return " ".join(best.index)


class SharedCodes(Step):
    """Keeps the documents that share a classification code with the application (Albarede et al. 2023, Sect. 5.2.2).

    If the application has no code of the level, all documents are kept.

    Columns in: ``qid``, ``docno`` (of documents), ``rank``, ``codes`` (of the topic's application), and any others.
    Columns out: the same; ranks are counted again.

    Args:
        graph: The graph of the documents, which has their codes.
        level: ``'subclass'`` (``C07C``) or ``'group'`` (``C07C45/50``); the paper does not state which.

    Raises:
        KeyError: In ``transform``, if a document is not in the graph.
    """

    def __init__(self, graph: HeteroGraph, level: Level = "subclass") -> None:
        self.graph = graph
        self.level = level

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Removes the documents that share no code."""
        pt.validate.result_frame(inp, extra_columns=["rank", "codes"], context=self)
        topic_codes = {}  # of each application, by qid
        for topic in inp.drop_duplicates("qid").itertuples():
            codes = [code for code in topic.codes if _level(code) == self.level]
            topic_codes[topic.qid] = set(codes)
        wanted = [topic_codes[qid] for qid in inp["qid"]]  # of each row
        documents = self.graph.document_of(inp["docno"].tolist())
        rows, numbers = self.graph.document_codes.select(documents)
        names = self.graph.code_names
        mask = [not codes for codes in wanted]
        for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
            if names[number] in wanted[row]:
                mask[row] = True
        return _select(inp, mask)


class NotOwnFamily(Step):
    """Removes the application and its family: they are not prior art. The paper does not mention this.

    All publications of a patent with any kind code are removed. The training topics have no family.

    Columns in: ``qid``, ``docno`` (of documents or passages), ``rank``, ``document`` and ``family`` (of the topic's
    application), and any others. Columns out: the same; ranks are counted again.
    """

    def __init__(self) -> None:
        super().__init__()

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Removes the documents of the family."""
        columns = ["rank", "document", "family"]
        pt.validate.result_frame(inp, extra_columns=columns, context=self)
        families = {}  # patents of each application's family, by qid
        for topic in inp.drop_duplicates("qid").itertuples():
            publications = [topic.document, *topic.family]
            families[topic.qid] = {_patent(docno) for docno in publications}
        rows = zip(inp["qid"], inp["docno"], strict=True)
        mask = [_patent(docno) not in families[qid] for qid, docno in rows]
        return _select(inp, mask)


class DocumentCutoff(Step):
    """Keeps the passages of the best documents. A document has the rank of its best passage.

    Runs of CLEF-IP have at most 100 documents per topic, with any number of passages each.

    Columns in: ``qid``, ``docno`` (of passages), ``rank``, and any others. Columns out: the same, sorted by ``qid`` and
    ``rank``; ranks are counted again.

    Args:
        documents: Number of documents to keep per topic.
        passages: Number of passages to keep per document; None keeps all.
    """

    def __init__(self, documents: int = 100, passages: int | None = None) -> None:
        self.documents = documents
        self.passages = passages

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Removes the other passages."""
        pt.validate.result_frame(inp, extra_columns=["rank"], context=self)
        ranked = inp.sort_values(["qid", "rank"], ignore_index=True)
        documents = documents_of(ranked["docno"])
        by_document = ranked.groupby(["qid", documents])
        best = by_document["rank"].transform("min")  # of each passage's document
        document_rank = best.groupby(ranked["qid"]).rank(method="dense")  # from 1
        mask = document_rank <= self.documents
        if self.passages is not None:
            position = by_document.cumcount()
            mask &= position < self.passages
        return _select(ranked, mask)


def _level(code: str) -> Level:
    return "group" if "/" in code else "subclass"


def _patent(docno: str) -> str:
    """The docno without the kind code."""
    return docno.rpartition("-")[0]


def _select(results: pd.DataFrame, mask: Sequence[bool] | pd.Series) -> pd.DataFrame:
    """Rows of ``mask``, with new ranks."""
    out = results[np.array(mask, dtype=bool)]
    rank = out.groupby("qid")["rank"].rank(method="first")  # from 1
    return out.assign(rank=rank.astype("int64") - 1)
