"""GraphIndex: documents, their graph, BM25 and vectors with context, in one folder that can be searched and changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Self

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.documents.document import StructuredDocument
from pyterrier_graph.graph_mean.contextual_index import ContextualIndex, ContextualRetriever
from pyterrier_graph.graphs.builder import DocumentOf
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.html import HtmlCard, HtmlDisplay, schematic
from pyterrier_graph.search.builder import IndexBuilder, contexts
from pyterrier_graph.search.document_evidence import DocumentEvidence
from pyterrier_graph.search.fitting import best_settings, evidence_of, measured_parts
from pyterrier_graph.search.hybrid import DEPTH, Frozen, Hybrid
from pyterrier_graph.search.lexical import lexical_retriever
from pyterrier_graph.search.results import Per, fold_results, has_all_words, search_results
from pyterrier_graph.search.retrievers import QueriesWithWords, allowed_passages
from pyterrier_graph.search.snippets import random_questions, warn_of_no_answer
from pyterrier_graph.search.versioned_index import VersionedIndex
from pyterrier_graph.search.versions import VECTORS, Answered
from pyterrier_graph.storage.arrays import blocks
from pyterrier_graph.storage.artifact import kind_of, locked, read_meta
from pyterrier_graph.storage.shards import Workers
from pyterrier_graph.training.validation import checked_qrels, checked_topics

Within = Iterable[str] | str | None
ROWS_AT_ONCE = 4096


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
            of this index. By default the encoder of the index at the path, or all-MiniLM-L6-v2 for a new index.
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
        docs: Iterable[Mapping[str, Any] | StructuredDocument] | pd.DataFrame,
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
        about = {"passage_words": passage_words}
        answered = _checked(answered)
        IndexBuilder(
            self, docs, document, about, keep_others=False, answered=answered, workers=workers
        ).build()
        return self

    def update(
        self,
        docs: Iterable[Mapping[str, Any] | StructuredDocument] | pd.DataFrame,
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
        IndexBuilder(self, docs, document, answered=_checked(answered), workers=workers).build()
        return self

    def delete(self, docnos: Iterable[str]) -> Self:
        """Removes documents. Their texts stay in the previous version until the next change.

        Args:
            docnos: Ids of documents.

        Raises:
            KeyError: If a document is not in the index.
            ValueError: If no document would be left.
        """
        IndexBuilder(self, deleted=[docnos] if isinstance(docnos, str) else [*docnos]).build()
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
        qrels = self.graph.passage_qrels(qrels)
        parts = measured_parts(self._fusion(), checked_topics(topics, self), qrels)
        former = self.meta["settings"]
        settings = (
            former
            | {"judged": True}
            | best_settings([parts], self.graph, qrels, former, self.training, verbose=self.verbose)
        )
        with locked(self.path):
            if read_meta(self.path, kind_of(self))["version"] != self.meta["version"]:
                raise ValueError(
                    f"{self!r} was changed by another process: open it again and repeat the call"
                )
            self.publish(self.meta["version"], settings)
        return self.reopen()

    # --- search

    @cached_property
    def contextual(self) -> ContextualIndex:
        """The index of the vectors."""
        version = self.version
        return ContextualIndex(version.opened() / VECTORS, version.graph, self.loaded_encoder)

    def _lexical(self, num_results: int, within: Within) -> pt.Transformer:
        version, engine = self.version, self.lexical or self.meta["lexical"]
        if engine is None:
            raise ValueError(f"{self!r} was made with a pipeline as lexical=: give it again")
        allowed = allowed_passages(version.graph, within)
        docnos, _ = version.flex.payload(return_dvecs=False)
        return lexical_retriever(engine, version.bm25, version.graph, docnos, num_results, allowed)

    def _dense(self, num_results: int, within: Within, exact: bool = False) -> pt.Transformer:
        allowed = allowed_passages(self.graph, within)
        options: dict[str, Any] = {"exact": exact, "allowed": allowed, "texts": False}
        return ContextualRetriever(self.contextual, num_results, **options)

    def _fusion(self, within: Within = None) -> Hybrid:
        """The hybrid of BM25 and vectors, with all of its results."""
        sides = self._lexical(DEPTH, within), self._dense(DEPTH, within)
        return Hybrid(*sides, alpha=self.meta["settings"]["alpha"], num_results=2 * DEPTH)

    @property
    def _evidence(self) -> DocumentEvidence | None:
        """Adds evidence of documents and neighbors to the scores, if its weights are not 0."""
        weights = self.meta["settings"]["evidence"]
        return evidence_of(self.graph, weights) if any(weights.values()) else None

    def _with_texts(self, retriever: pt.Transformer, per: Per) -> pt.Transformer:
        passages = QueriesWithWords() >> retriever >> self.graph.text_loader()
        return fold_results(self.graph, self.version.lines, passages, per)

    def bm25(
        self, num_results: int = 1000, *, per: Per = "passage", within: Within = None
    ) -> pt.Transformer:
        """Finds passages by BM25 over their text and context.

        Columns in: ``qid, query``. Columns out: ``qid, query, docno, score, rank, text, title``; of files also
        ``file, line``.

        Args:
            num_results: Passages per query.
            per: Whether each ``'passage'`` is a result, or the best of each ``'section'`` or ``'document'``. Its id is
                then the ``docno``, and the passage is in the column ``passage``.
            within: Docnos, or prefixes of docnos, of the documents to search. By default all.
        """
        return self._with_texts(self._lexical(num_results, within), per)

    def dense(
        self,
        num_results: int = 1000,
        *,
        per: Per = "passage",
        within: Within = None,
        exact: bool = False,
    ) -> pt.Transformer:
        """Finds passages by their vectors with context. Columns and other arguments are those of :meth:`bm25`.

        With ``exact=True`` all vectors are compared, even in an index of a million passages or more: see
        :meth:`ContextualIndex.retriever <pyterrier_graph.ContextualIndex.retriever>`.
        """
        return self._with_texts(self._dense(num_results, within, exact), per)

    def hybrid(
        self,
        num_results: int = 1000,
        *,
        per: Per = "passage",
        within: Within = None,
    ) -> pt.Transformer:
        """Finds passages by both BM25 and vectors. Columns and arguments are those of :meth:`bm25`.

        The first results do not depend on ``num_results``. In a pipeline that is trained, the hybrid stays as it is.
        """
        fusion, evidence = self._fusion(within), self._evidence
        pipeline = fusion if evidence is None else fusion >> evidence
        return self._with_texts(Frozen(pipeline) % num_results, per)

    def search(
        self,
        question: str,
        num_results: int = 10,
        *,
        per: Per | None = None,
        within: Within = None,
    ) -> pd.DataFrame:
        """Finds the best passages for a question.

        Args:
            question: The question. Without a word, there are no results.
            num_results: Number of results.
            per: As for :meth:`bm25`: whether a section or a document may have one result only. By default
                ``'section'`` where the documents are files, else ``'passage'``.
            within: As for :meth:`bm25`.

        Returns:
            A row per passage, the best first: ``title``, ``snippet`` (the part of the passage with the most words of
            the question), ``why``, ``score``, ``docno``, ``text``; of files also ``file`` and ``line``, and no copies
            of a text. ``why`` lists what the words (BM25) and the meaning (vectors) add to the score. After the first
            100 results, the snippet is the beginning, and ``why`` names no titles. Warns if files do not answer the
            question: no result has all of its words, and no passage is as similar to it as to random words.
            ``attrs["weak"]`` then has both similarities.
        """
        lines = self.version.lines
        per = per or ("passage" if lines is None else "section")
        topics = QueriesWithWords().transform(pd.DataFrame({"qid": ["1"], "query": [question]}))
        ranking = self._fusion(within).contributions(topics)
        results = search_results(
            self.graph, lines, question, ranking, self._evidence, num_results, per
        )
        if lines is not None and len(topics) and not has_all_words(results, question):
            best, unrelated = self.best_similarities([question])[0], self.random_similarity
            if best < unrelated:
                results.attrs["weak"] = warn_of_no_answer(question, best, unrelated)
        return results

    @cached_property
    def random_similarity(self) -> float:
        """The median of the best similarities of questions without meaning: words drawn from the passages."""
        return float(np.median(self.best_similarities(random_questions(self.graph))))

    def best_similarities(self, questions: list[str]) -> np.ndarray:
        """The similarity of each question's most similar passage."""
        topics = pd.DataFrame({"qid": [*map(str, range(len(questions)))], "query": questions})
        return self.contextual.retriever(1).transform(topics)["score"].to_numpy()

    def explain(self, query: str, docno: str) -> pd.DataFrame:
        """Explains the score of a passage in :meth:`hybrid` by BM25, vectors, and the evidence of other results.

        Arguments and columns are those of :meth:`Hybrid.explain <pyterrier_graph.Hybrid.explain>`. ``index.dense()`` is
        explained by ``ptg.explain(index.dense(), query, docno)``, by the passage and its context.
        """
        fusion, evidence = self._fusion(), self._evidence
        explained = fusion.explain(query, docno)
        if evidence is None:
            return explained
        ranking = fusion.transform(pd.DataFrame({"qid": ["1"], "query": [query]}))
        values = evidence.evidence(ranking)[ranking["docno"] == docno].sum().to_numpy()
        weights = np.array([*evidence.weights.values()])
        added = pd.DataFrame(
            {
                "relation": [*evidence.weights],
                "source": docno,
                "text": "",
                "weight": weights,
                "score": weights * values,
                "normalized": values,
            }
        )
        return pd.concat([explained, added[added["weight"] > 0]], ignore_index=True)

    # --- other engines

    def rows(self, since: int | None = None) -> Iterator[dict[str, Any]]:
        """What another engine needs to serve this index: ``docno``, ``text``, ``context`` and ``vector`` per passage.

        ``context`` is what BM25 searches: the text with its titles and answered queries. Vectors are compared by the
        inner product with those of :meth:`query_vectors`.

        Args:
            since: Only rows that have changed after this version (``index.meta["version"]`` when the engine was filled
                last). Passages that are gone are in :meth:`deleted_since`.
        """
        version = self.version
        numbers = np.arange(len(self)) if since is None else np.flatnonzero(version.changed > since)
        vectors, _ = version.flex.payload(return_docnos=False)
        for block in blocks(len(numbers), ROWS_AT_ONCE):
            batch = numbers[block]
            nodes = version.graph.passage_nodes[batch]
            texts = version.graph.texts(nodes), contexts(version.graph, version.queries, batch)
            for docno, text, context, vector in zip(
                version.graph.ids_of(nodes), *texts, np.asarray(vectors[batch]), strict=True
            ):
                yield {"docno": docno, "text": text, "context": context, "vector": vector}

    def deleted_since(self, version: int) -> list[str]:
        """Ids of passages that changes after a version have removed."""
        return [docno for docno, number in self.version.deleted.items() if number > version]

    def query_vectors(self, topics: pd.DataFrame) -> np.ndarray:
        """The vectors of queries for the vectors of :meth:`rows`, float32 of shape (queries, width)."""
        encoded = self.contextual.query_encoder().transform(topics)
        return np.stack(encoded["query_vec"].to_numpy()).astype(np.float32)

    # --- display and sharing

    def _view(self) -> HtmlCard:
        if not self.built():
            return HtmlCard({"documents": "not built yet"})
        broken = self.meta["source"].get("broken", ())
        sizes = {
            "documents": len(self.graph),
            "passages": len(self),
            "encoder": self.meta["encoder"]["name"],
            "BM25": self.meta["lexical"] or str(self.lexical),
        } | ({"files not read": len(broken)} if broken else {})
        return HtmlCard(sizes, schematic(self.hybrid()))


def _checked(answered: Any) -> Answered | None:
    """Topics and judgments with ids as strings."""
    if answered is None:
        return None
    topics, qrels = answered
    qrels = checked_qrels(qrels, "answered")
    return checked_topics(topics, "answered"), qrels[["qid", "docno", "label"]]
