"""GraphIndex: documents, their graph, BM25 and vectors with context, in one folder that can be searched and changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Self

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.documents.document import StructuredDocument
from pyterrier_graph.documents.records import DocumentOf
from pyterrier_graph.graph_mean.contextual_index import ContextualIndex, ContextualRetriever
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.graphs.judgments import passage_qrels
from pyterrier_graph.html import HtmlCard, HtmlDisplay
from pyterrier_graph.search.builder import build_version
from pyterrier_graph.search.fitting import best_settings, measured_results
from pyterrier_graph.search.hybrid import DEPTH, Hybrid
from pyterrier_graph.search.index_hybrid import IndexHybrid
from pyterrier_graph.search.lexical import lexical_retriever
from pyterrier_graph.search.results import CANDIDATES, Lines, distinct_results, with_reasons
from pyterrier_graph.search.retrievers import QueriesWithWords
from pyterrier_graph.search.versions import (
    ROWS_AT_ONCE,
    VECTORS,
    Answered,
    VersionedIndex,
    contexts,
)
from pyterrier_graph.storage.arrays import blocks
from pyterrier_graph.storage.artifact import LOCK, locked
from pyterrier_graph.storage.shards import Workers
from pyterrier_graph.training.validation import checked_topics


class GraphIndex(HtmlDisplay, VersionedIndex):
    """Ranks passages using their own text and related text: titles, and queries that they have answered.

    ::

        index = ptg.GraphIndex("corpus").index(docs)
        index.search("how are ties broken")
        pt.Experiment([bm25, index.hybrid()], topics, qrels, [nDCG @ 10], baseline=0)
        index.update(new_docs).delete(["d7"])

    The lexical side is BM25 over passages with their context. The dense side is a :class:`~pyterrier_graph.GraphMean`.
    A :class:`~pyterrier_graph.Hybrid` combines both. No judgments are needed. With judgments, :meth:`fit` chooses the
    share of vectors, and may add a :class:`~pyterrier_graph.DocumentEvidence`. Queries without a word, such as
    ``"?!"``, have no results.

    An encoder that was not trained on the language of the texts produces nearly equal vectors. In that case there is a
    QualityWarning, and BM25 gets more weight unless queries are judged.

    A change is complete or has no effect, even if the process is killed. An open index stays at its version, whose
    files exist until the second change after it; ``GraphIndex(path)`` opens the current version. One process at a time
    changes an index: a second one raises BlockingIOError. All changes but :meth:`index` raise FileNotFoundError if
    there is no index.

    Args:
        path: Folder of the index; it may not exist yet, see :meth:`index`.
        encoder: Encodes passages and queries: the name of a checkpoint, a bi-encoder such as a
            :class:`~pyterrier_graph.DualEncoder`, or a GraphMean or GNNEncoder, whose weights are used with the graph
            of this index. All but names have to be given again when the index is opened. By default the checkpoint of
            the index at the path, or all-MiniLM-L6-v2 for a new index.
        lexical: What BM25 runs on: ``'bm25s'``, ``'pisa'``, ``'terrier'``, or a pipeline of your own that finds
            passages, ``qid, query`` to ``qid, docno, score``. By default that of the index at the path, or ``'bm25s'``.
        training: The options of :meth:`fit`.
        verbose: Whether to show progress.

    Raises:
        TypeError: If an argument has another type.
        ValueError: If the index at the path has another encoder or another engine of BM25.
    """

    def __len__(self) -> int:
        """Number of passages."""
        return len(self.graph.passage_nodes)

    @property
    def graph(self) -> DocumentGraph:
        """The graph of the documents, for models: ``ptg.GraphMaxSim(index.graph)``."""
        return self.version.graph

    # --- changes

    def index(
        self,
        docs: Iterable[Mapping[str, Any] | StructuredDocument],
        *,
        document: str | DocumentOf | None = None,
        passage_words: int = 120,
        answered: Answered | None = None,
        overwrite: bool = False,
        workers: Workers = 1,
    ) -> Self:
        """Builds the index. If the process is killed, the same call continues.

        Args:
            docs: Documents, as :meth:`DocumentGraph.index <pyterrier_graph.DocumentGraph.index>` reads them.
            document: For a corpus of passages, the document of a row: the name of a field, or a function of the row.
            passage_words: Words per passage where texts are split.
            answered: Topics (``qid, query``) and judgments (``qid, docno, label``, of passages, or of documents for all
                their passages) of queries whose answers are known. They become context of the passages. Unless
                :meth:`fit` has been called, they also choose its settings: each query is ranked by an index whose
                context lacks it. Do not evaluate with them.
            overwrite: Whether to replace an index that exists at this path.
            workers: Number of processes that encode, or ``'ray'``, a cluster: see :meth:`GraphMean.index`.

        Raises:
            FileExistsError: If there is an index at the path and ``overwrite`` is False, or other files.
            ValueError: If a document is malformed, a docno comes twice, or there are no documents.
        """
        if self.built() and not overwrite:
            advice = f"{self!r} opens it, update(docs) changes documents, index(..., overwrite=True) replaces all"
            raise FileExistsError(f"{str(self.path)!r} exists already: {advice}")
        build_version(
            self,
            docs,
            document,
            answered=answered,
            passage_words=passage_words,
            workers=workers,
        )
        return self

    def update(
        self,
        docs: Iterable[Mapping[str, Any] | StructuredDocument],
        *,
        document: str | DocumentOf | None = None,
        answered: Answered | None = None,
        workers: Workers = 1,
    ) -> Self:
        """Adds documents, and replaces documents with the same docnos. Only texts that have changed are encoded.

        Args:
            docs: Documents, as for :meth:`index`.
            document: As for :meth:`index`; all passages of a document are replaced.
            answered: As for :meth:`index`; they replace the former ones. By default those stay.
            workers: As for :meth:`index`.

        Raises:
            ValueError: If a document is malformed, or a docno comes twice.
        """
        build_version(self, docs, document, answered=answered, workers=workers)
        return self

    def delete(self, docnos: Iterable[str]) -> Self:
        """Removes documents. Their texts stay in the previous version until the next change.

        Args:
            docnos: Ids of documents.

        Raises:
            KeyError: If a document is not in the index.
            ValueError: If no document would be left.
        """
        deleted = [docnos] if isinstance(docnos, str) else list(docnos)
        build_version(self, deleted=deleted)
        return self

    def fit(self, topics: pd.DataFrame, qrels: pd.DataFrame) -> Self:
        """Chooses the share of vectors, and the weights of evidence of documents and neighboring passages.

        Uses the one-standard-error rule, so small query sets are safe. The queries must not be among the ``answered``
        ones.

        Args:
            topics: ``qid, query``.
            qrels: ``qid, docno, label``, of passages, or of documents for all their passages.

        Raises:
            ValueError: If none of the queries is judged.
        """
        qrels = passage_qrels(qrels, self.graph)
        topics = checked_topics(topics, self)
        hybrid = Hybrid(self._lexical(DEPTH), self._dense(DEPTH))
        results = measured_results(hybrid, topics, qrels)
        present = self.meta["settings"]
        fitted = best_settings(
            results, self.graph, qrels, present, self.training, verbose=self.verbose
        )
        settings = {**present, **fitted, "judged": True}
        with locked(self.path / LOCK):
            self.reopen()
            self.publish(self.meta["version"], settings)
        return self.reopen()

    # --- search

    @cached_property
    def contextual(self) -> ContextualIndex:
        """The index of the vectors."""
        vectors = self.version.folder / VECTORS
        return ContextualIndex(vectors, self.graph, self.bi_encoder)

    def _lexical(self, num_results: int) -> pt.Transformer:
        """Finds passages by their words, using the engine of the index."""
        engine = self.lexical or self.meta["lexical"]
        if engine is None:
            raise ValueError(f"{self!r} was made with a pipeline as lexical=: give it again")
        docnos, _ = self.version.flex.payload(return_dvecs=False)
        return lexical_retriever(engine, self.version.bm25, docnos, num_results)

    def _dense(self, num_results: int, exact: bool = False) -> ContextualRetriever:
        return ContextualRetriever(self.contextual, num_results, exact=exact, texts=False)

    def _hybrid(self, num_results: int) -> IndexHybrid:
        """The hybrid of BM25 and vectors, with evidence of documents and neighbors."""
        lexical = self._lexical(DEPTH)
        dense = self._dense(DEPTH)
        settings = self.meta["settings"]
        return IndexHybrid(lexical, dense, self.graph, settings, num_results)

    def _with_texts(self, retriever: pt.Transformer) -> pt.Transformer:
        """Adds texts and titles, and files and lines if the documents are files."""
        pipeline = retriever >> self.graph.text_loader()
        lines = self.version.lines
        if lines is not None:
            pipeline = pipeline >> Lines(self.graph, lines)
        return pipeline

    def bm25(self, num_results: int = 1000) -> pt.Transformer:
        """Finds passages by BM25 over their text and context.

        Columns in: ``qid, query``. Columns out: ``qid, query, docno, score, rank, text, title``; of files also
        ``file, line``. Documents are ranked by ``index.bm25() >> pt.text.max_passage()``.

        Args:
            num_results: Passages per query.
        """
        retriever = QueriesWithWords() >> self._lexical(num_results)
        return self._with_texts(retriever)

    def dense(self, num_results: int = 1000, *, exact: bool = False) -> pt.Transformer:
        """Finds passages by their vectors with context. Columns are those of :meth:`bm25`.

        Args:
            num_results: Passages per query.
            exact: Whether to compare all vectors, even in an index of a million passages or more: see
                :meth:`ContextualIndex.retriever <pyterrier_graph.ContextualIndex.retriever>`.
        """
        retriever = QueriesWithWords() >> self._dense(num_results, exact)
        return self._with_texts(retriever)

    def hybrid(self, num_results: int = 1000) -> pt.Transformer:
        """Finds passages by both BM25 and vectors. Columns are those of :meth:`bm25`.

        The first results do not depend on ``num_results``. In a pipeline that is trained, the hybrid stays as it is.

        Args:
            num_results: Passages per query.
        """
        return self._with_texts(self._hybrid(num_results))

    def search(self, question: str, num_results: int = 10) -> pd.DataFrame:
        """Finds the best passages for a question.

        Args:
            question: The question. Without a word, there are no results.
            num_results: Number of results.

        Returns:
            A row per passage, the best first: ``title``, ``snippet`` (the part of the passage with the most words of
            the question; the beginning after the first 100 results), ``why``, ``score``, ``docno``, ``text``; of files
            also ``file`` and ``line``. ``why`` lists what the words (BM25), the meaning (vectors) and other results
            add to the score. If the documents are files, each section and each text is shown only once.
        """
        has_files = self.version.lines is not None
        candidates = max(num_results, CANDIDATES) if has_files else num_results
        hybrid = self._hybrid(candidates)
        topics = pd.DataFrame({"qid": ["1"], "query": [question]})
        run = hybrid.with_components(topics)
        text_loader = self._with_texts(pt.Transformer.identity())
        run = text_loader.transform(run)
        if has_files:
            run = distinct_results(run, num_results)
        return with_reasons(run, hybrid.components, question)

    # --- other engines

    def rows(self, since: int | None = None) -> Iterator[dict[str, Any]]:
        """Yields what another engine needs to serve this index: each passage's ``docno, text, context, vector``.

        ``context`` is what BM25 searches: the text with its titles and answered queries. Vectors are compared by the
        inner product with those of :meth:`query_vectors`.

        Args:
            since: Yields only rows that have changed after this version (``index.meta["version"]`` at the time of the
                last upload). Every change of an index with answered queries changes all vectors.
                :meth:`deleted_since` lists removed passages.
        """
        version = self.version
        graph = version.graph
        vectors, _ = version.flex.payload(return_docnos=False)  # (passages, d)
        numbers = np.arange(len(self))
        if since is not None:
            numbers = np.flatnonzero(version.changed > since)
        for block in blocks(len(numbers), ROWS_AT_ONCE):
            batch = numbers[block]
            nodes = graph.passage_nodes[batch]
            docnos = graph.ids_of(nodes)
            texts = graph.texts(nodes)
            texts_with_context = contexts(graph, version.queries, batch)
            batch_vectors = np.asarray(vectors[batch])
            rows = zip(docnos, texts, texts_with_context, batch_vectors, strict=True)
            for docno, text, context, vector in rows:
                yield {"docno": docno, "text": text, "context": context, "vector": vector}

    def deleted_since(self, version: int) -> list[str]:
        """Ids of passages that changes after a version have removed."""
        deleted = self.version.deleted
        return [docno for docno, number in deleted.items() if number > version]

    def query_vectors(self, topics: pd.DataFrame) -> np.ndarray:
        """Encodes queries for search in the vectors of :meth:`rows`; float32, shape (queries, d)."""
        encoded = self.contextual.query_encoder().transform(topics)
        vectors = np.stack(encoded["query_vec"].tolist())
        return vectors.astype(np.float32)

    # --- display and sharing

    def _view(self) -> HtmlCard:
        if not self.built():
            return HtmlCard({"documents": "not built yet"})
        facts = {
            "documents": len(self.graph),
            "passages": len(self),
            "encoder": self.meta["encoder"]["name"],
            "BM25": self.meta["lexical"] or str(self.lexical),
        }
        return HtmlCard(facts)
