"""GraphIndex: documents, their graph, BM25 and vectors with context, in one folder that can be searched and changed."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import pandas as pd
import pyterrier as pt

from pyterrier_graph.checks import Shown, View, check_count, check_number, check_type
from pyterrier_graph.documents.document import StructuredDocument
from pyterrier_graph.encoders.stored_vectors import TITLED, WINDOWS
from pyterrier_graph.graphs.builder import DocumentOf
from pyterrier_graph.html import schematic
from pyterrier_graph.search.changes import Answered, Change, commit
from pyterrier_graph.search.fitting import RESULTS, best_settings, measured_parts
from pyterrier_graph.search.fitting import SETTINGS as SETTINGS
from pyterrier_graph.search.layout import ENCODED as ENCODED
from pyterrier_graph.search.results import Per, folded, results
from pyterrier_graph.search.stored_index import StoredIndex
from pyterrier_graph.storage.artifact import META, SIZES, kind_of, read_meta
from pyterrier_graph.storage.writer import Workers
from pyterrier_graph.training.validation import checked_qrels, checked_topics


class GraphIndex(Shown, StoredIndex):
    """Finds passages by their own text and by what they are related to: BM25 and vectors, both with context.

    ::

        index = ptg.GraphIndex("corpus").index(docs)
        index.search("how are ties broken")
        pt.Experiment([bm25, index.hybrid()], topics, qrels, [nDCG @ 10], baseline=0)
        index.update(new_docs).delete(["d7"])

    The context of a passage is its titles, and the queries that it has answered. The lexical side is BM25 over passages
    with their context. The dense side is a :class:`~pyterrier_graph.GraphMean`, in which each query decides how much
    the context counts. A :class:`~pyterrier_graph.Hybrid` combines both. No judgments are needed. Where there are some,
    a :class:`~pyterrier_graph.DocumentEvidence` may follow, which adds scores of other results of the same document.

    A change is complete or has no effect, also if the process is killed. An index that is open stays at its version,
    whose files are there until the second change after it; ``GraphIndex(path)`` opens the last one. One process at a
    time changes an index: methods that do so raise BlockingIOError if another one does, and all but :meth:`index` raise
    FileNotFoundError if there is none.

    Args:
        path: Folder of the index; it may not exist yet, see :meth:`index`. Or its place in an object store, such as
            ``s3://bucket/corpus``: this machine then has a copy, which is that of the last version when it is opened.
        encoder: Encodes passages and queries: the name of a checkpoint, a bi-encoder such as a
            :class:`~pyterrier_graph.DualEncoder`, or a GraphMean or GNNEncoder, whose weights are used with the graph
            of this index. By default the encoder of the index at the path, or all-MiniLM-L6-v2 for a new one.
        lexical: The engine of BM25: ``'lance'``, ``'pisa'``, ``'terrier'``, or a pipeline of your own that finds
            passages, ``qid, query`` to ``qid, docno, score``. By default that of the index at the path, or ``'lance'``.
        training: The options of :meth:`fit`.
        verbose: Whether to show progress.

    Raises:
        TypeError: If an argument has another type.
        ValueError: If the index at the path has another encoder.
    """

    ARTIFACT_TYPE = "graph_index"
    ARTIFACT_FORMAT = "lance"

    def index(
        self,
        docs: Iterable[Mapping[str, Any] | StructuredDocument] | pd.DataFrame,
        *,
        document: str | DocumentOf | None = None,
        passage_words: int = 120,
        windows: int = WINDOWS,
        titled: float = TITLED,
        answered: tuple[pd.DataFrame, pd.DataFrame] | None = None,
        overwrite: bool = False,
        workers: Workers = 1,
    ) -> Self:
        """Builds the index. The call of a process that was killed continues when it is repeated.

        Args:
            docs: Documents, as :meth:`DocumentGraph.index <pyterrier_graph.DocumentGraph.index>` reads them.
            document: For a corpus of passages, the document of a row: the name of a field, or a function of the row.
            passage_words: Words per passage where texts are split.
            windows: Windows of a long passage, at most; the best one counts: see :meth:`GraphMean.index`.
            titled: The share of a passage's vector that comes from its text with titles in front; the rest is that of
                the text alone. With 1 or 0, a passage is encoded once, in half of the time. An ``encoder`` that is a
                GraphMean or GNNEncoder has its own share.
            answered: Topics (``qid, query``) and judgments (``qid, docno, label``, of passages, or of documents for all
                their passages) of queries whose answers are known. They are context of the passages, and set the
                numbers of :meth:`fit` unless it has been called: some of them at a time are left out of the context and
                ranked. Do not evaluate with them.
            overwrite: Whether to replace an index that exists at this path, with all files that changes have left.
            workers: Number of processes that encode, or ``'ray'``, a cluster: see :meth:`GraphMean.index`.

        Raises:
            FileExistsError: If there is an index at the path and ``overwrite`` is False, or other files.
            ValueError: If a document is malformed, a docno comes twice, or there are no documents.
        """
        check_count("passage_words", passage_words)
        check_count("windows", windows)
        check_number("titled", titled, 0, 1)
        check_type("overwrite", overwrite, bool, "True or False")
        if self.built() and not overwrite:
            advice = f"{self!r} opens it, update(docs) changes documents, index(..., overwrite=True) replaces all"
            raise FileExistsError(f"{str(self.path)!r} exists already: {advice}")
        about = {"passage_words": passage_words, "windows": windows, "titled": titled}
        answered = _checked(answered)
        Change(
            self, docs, document, about, keep_others=False, answered=answered, workers=workers
        ).write()
        return self

    def update(
        self,
        docs: Iterable[Mapping[str, Any] | StructuredDocument] | pd.DataFrame,
        *,
        document: str | DocumentOf | None = None,
        answered: tuple[pd.DataFrame, pd.DataFrame] | None = None,
        workers: Workers = 1,
    ) -> Self:
        """Adds documents, and replaces those with the same docnos. Only texts that have changed are encoded.

        Args:
            docs: Documents, as for :meth:`index`.
            document: As for :meth:`index`; all passages of a document are replaced.
            answered: As for :meth:`index`; in place of the former ones. By default they stay.
            workers: As for :meth:`index`.

        Raises:
            ValueError: If a document is malformed, or a docno comes twice.
        """
        Change(self, docs, document, answered=_checked(answered), workers=workers).write()
        return self

    def delete(self, docnos: Iterable[str]) -> Self:
        """Removes documents. Their texts stay in files of former versions until ``index(docs, overwrite=True)``.

        Args:
            docnos: Ids of documents.

        Raises:
            KeyError: If a document is not in the index.
            ValueError: If no document would be left.
        """
        check_type("docnos", docnos, Iterable, "ids of documents")
        Change(self, deleted=[docnos] if isinstance(docnos, str) else [*docnos]).write()
        return self

    def fit(self, topics: pd.DataFrame, qrels: pd.DataFrame) -> Self:
        """Chooses the largest weight of each relation, the share of vectors, and the weights of evidence.

        A number moves only as far as the queries support it, so that few queries do no harm. They must not be among
        the ``answered`` ones.

        Args:
            topics: ``qid, query``.
            qrels: ``qid, docno, label``, of passages, or of documents for all their passages.

        Raises:
            ValueError: If none of the queries is judged.
        """
        qrels = self.graph.passage_qrels(qrels) if self.graph._own_ids else qrels
        settings: dict[str, Any] = {"judged": True}
        model: Any = self._model(self.graph, self._queries, self.meta, verbose=self.verbose)
        if getattr(model, "weights", None) == "auto":
            model.training = self.training
            settings["largest_weights"] = model.fit(topics, qrels).largest_weights
        with self._locked():
            meta = self.meta | {"settings": self.meta["settings"] | settings}
            tuned = copy.copy(self)
            tuned.meta = meta
            parts = measured_parts(tuned._fusion(RESULTS), checked_topics(topics, self), qrels)
            meta["settings"] |= best_settings(
                [parts], self.graph, qrels, meta["settings"], self.training, verbose=self.verbose
            )
            if read_meta(self.path, kind_of(self))["number"] != meta["number"]:
                raise ValueError(
                    f"{self!r} was changed by another process: open it again and repeat the call"
                )
            commit(self, meta)
        return self._reopened()

    def _with_texts(self, found: pt.Transformer, per: Per) -> pt.Transformer:
        """Adds the columns of texts to found passages, and folds them."""
        return folded(self, found >> self.graph.text_loader(), per)

    def bm25(self, num_results: int = 1000, *, per: Per = "passage") -> pt.Transformer:
        """Finds passages by BM25 over their text and context.

        Columns in: ``qid, query``. Columns out: ``qid, query, docno, score, rank, text, title``; of files also
        ``file, line``.

        Args:
            num_results: Passages per query.
            per: Whether each ``'passage'`` is a result, or the best of each ``'section'`` or ``'document'``. Its id is
                then the ``docno``, and the passage is in the column ``passage``.
        """
        return self._with_texts(self._parts(num_results)[0], per)

    def dense(
        self, num_results: int = 1000, *, per: Per = "passage", exact: bool = False
    ) -> pt.Transformer:
        """Finds passages by their vectors with context. Columns and other arguments are those of :meth:`bm25`.

        With ``exact=True`` all vectors are compared, also in an index of a million passages or more: see
        :meth:`ContextualIndex.retriever <pyterrier_graph.ContextualIndex.retriever>`.
        """
        return self._with_texts(self._parts(num_results, exact)[1], per)

    def hybrid(
        self, num_results: int = 1000, *, per: Per = "passage", exact: bool = False
    ) -> pt.Transformer:
        """Finds passages by both BM25 and vectors. Columns and arguments are those of :meth:`dense`."""
        evidence = self._evidence
        found = self._fusion(num_results, exact)
        return self._with_texts(found if evidence is None else found >> evidence, per)

    def search(
        self, question: str, num_results: int = 10, *, per: Per | None = None
    ) -> pd.DataFrame:
        """Finds the best passages for a question.

        Args:
            question: The question.
            num_results: Number of results.
            per: As for :meth:`bm25`: whether a section or a document may have one result only. By default
                ``'section'`` where the documents are files, else ``'passage'``.

        Returns:
            A row per passage, the best first: ``title``, ``snippet`` (the part of the passage with the most words of
            the question), ``why``, ``score``, ``docno``, ``text``; of files also ``file`` and ``line``, and no copies
            of a text. ``why`` lists what the words (BM25) and the meaning (vectors) add to the score, and what the
            passage and its context add to the similarity of vectors. Warns if files do not answer the question: no
            result has all of its words, and no passage is as similar to it as to random words. ``attrs["weak"]`` then
            has both similarities.

        Raises:
            ValueError: If the question has no word.
        """
        return results(self, question, num_results, per)

    def explain(self, query: str, docno: str) -> pd.DataFrame:
        """Explains the score of a passage in :meth:`hybrid` by BM25, vectors, and the evidence of other results.

        Arguments and columns are those of :meth:`Hybrid.explain <pyterrier_graph.Hybrid.explain>`. ``index.dense()`` is
        explained by ``ptg.explain(index.dense(), query, docno)``, by the passage and its context.
        """
        fusion, evidence = self._fusion(RESULTS), self._evidence
        explained = fusion.explain(query, docno)
        if evidence is None:
            return explained
        ranking = fusion.transform(pd.DataFrame({"qid": ["1"], "query": [query]}))
        values = evidence.evidence(ranking)[ranking["docno"] == docno].sum()
        added = pd.DataFrame(
            {
                "relation": values.index,
                "source": docno,
                "text": "",
                "weight": evidence.weights.values(),
            }
        )
        added = added.assign(
            score=added["weight"] * values.to_numpy(), normalized=values.to_numpy()
        )
        return pd.concat([explained, added[added["weight"] > 0]], ignore_index=True)

    def _view(self) -> View:
        if not self.built():
            return View({"documents": "not built yet"})
        broken = self.meta["source"].get("broken", ())
        sizes = {
            "documents": len(self.graph),
            "passages": len(self),
            "encoder": self.meta["encoder"]["name"],
            "BM25": self.meta["lexical"] or str(self.lexical),
        } | ({"files not read": len(broken)} if broken else {})
        return View(sizes, schematic(self.hybrid()))

    def _package_files(self) -> Iterator[tuple[str, str]]:
        """The files of the present version, for ``to_hf`` and others."""
        for name in [
            *read_meta(self.path, kind_of(self))[SIZES],
            META,
        ]:  # with a card that was written since
            yield name, str(self.path / name)


def _checked(answered: Any) -> Answered | None:
    """Topics and judgments with ids as texts."""
    if answered is None:
        return None
    check_type("answered", answered, tuple, "a pair of topics and qrels")
    topics, qrels = answered
    return checked_topics(topics, "answered"), checked_qrels(qrels, "answered")[
        ["qid", "docno", "label"]
    ]
