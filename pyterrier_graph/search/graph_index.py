"""GraphIndex: documents, their graph, BM25 and vectors with context, in one folder that can be searched and changed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, get_args

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.checks import (
    QualityWarning,
    WithSignature,
    check_training,
)
from pyterrier_graph.documents.document import StructuredDocument
from pyterrier_graph.encoders.flex import Flex
from pyterrier_graph.encoders.names import checkpoint_name
from pyterrier_graph.encoders.stored_vectors import encoder_name
from pyterrier_graph.graph_mean.contextual_index import ContextualIndex, encoder_of
from pyterrier_graph.graphs.builder import DocumentOf
from pyterrier_graph.graphs.document_graph import DocumentGraph
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.html import HtmlCard, HtmlDisplay, schematic
from pyterrier_graph.search import versions
from pyterrier_graph.search.bm25 import BM25Index
from pyterrier_graph.search.builder import IndexBuilder, contexts, is_contextual, publish
from pyterrier_graph.search.document_evidence import DocumentEvidence
from pyterrier_graph.search.fitting import (
    best_settings,
    default_settings,
    evidence_of,
    measured_parts,
)
from pyterrier_graph.search.hybrid import DEPTH, Frozen, Hybrid
from pyterrier_graph.search.lexical import bm25
from pyterrier_graph.search.results import Per, fold_results, search_results
from pyterrier_graph.search.retrievers import (
    BM25Retriever,
    DenseRetriever,
    FilteredRetriever,
    allowed_passages,
)
from pyterrier_graph.search.snippets import random_questions
from pyterrier_graph.search.versions import Answered, Version
from pyterrier_graph.storage.artifact import (
    META,
    BuiltArtifact,
    kind_of,
    locked,
    read_meta,
)
from pyterrier_graph.storage.shards import Workers
from pyterrier_graph.training.grid_search import Tuning
from pyterrier_graph.training.validation import checked_qrels, checked_topics

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder

    from pyterrier_graph.graph_mean.contextual_encoder import ContextualEncoder

Lexical = Literal["bm25s", "pisa", "terrier"]
T = TypeVar("T")
Within = Iterable[str] | str | None
ROWS_AT_ONCE = 4096
LABEL = "BM25 with context"


class GraphIndex(HtmlDisplay, WithSignature, BuiltArtifact):
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

    An encoder that does not know the language of the texts makes nearly equal vectors. A QualityWarning says so, and
    BM25 counts more unless queries are judged.

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

    ARTIFACT_TYPE = "graph_index"
    ARTIFACT_FORMAT = "versions"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        encoder: str | os.PathLike[str] | BiEncoder | ContextualEncoder | None = None,
        lexical: Lexical | pt.Transformer | None = None,
        training: Tuning | None = None,
        verbose: bool = True,
    ) -> None:
        super().__init__(path, verbose=verbose)
        self.training: Tuning = check_training(training, Tuning)
        if isinstance(lexical, str) and lexical not in get_args(Lexical):
            raise ValueError(
                f"lexical must be a pipeline or one of {get_args(Lexical)}, got {lexical!r}"
            )
        self.lexical = lexical
        self.encoder: Any = encoder
        if isinstance(encoder, (str, os.PathLike)):
            self.encoder = os.fspath(encoder)
        elif encoder is not None and not is_contextual(encoder):
            self.encoder = encoder_of(encoder)
        if self.built():
            self._check_options()

    def _check_options(self) -> None:
        """Raises ValueError if the index at the path was made with other options."""
        made = self.meta["lexical"]
        if isinstance(self.lexical, str) and self.lexical != made:
            raise ValueError(f"{self!r} was made with lexical={made!r}, got {self.lexical!r}")
        about = self.meta["encoder"]
        if self.encoder is None or (
            isinstance(self.encoder, str) and checkpoint_name(self.encoder) == about["checkpoint"]
        ):
            return
        if about["name"] != (name := encoder_name(self.bi_encoder)):
            raise ValueError(f"{self!r} was made with encoder={about['name']}, got {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        options = {"encoder": self.encoder, "lexical": self.lexical, "training": self.training}
        return partial(type(self), self.path, **options, verbose=self.verbose), ()

    def __len__(self) -> int:
        """Number of passages."""
        return len(self.graph.passage_nodes)

    # --- versions

    @cached_property
    def meta(self) -> dict[str, Any]:
        """How the index was made: ``version``, ``settings``, ``encoder``, ``lexical``, ``source`` (a report)."""

        def read() -> dict[str, Any]:
            root = read_meta(self.path, kind_of(self))
            made = Version(self.path, root["version"]).meta
            settings = default_settings(made.get("mean_cosine", 0.0)) | root["settings"]
            return made | {"version": root["version"], "settings": settings}

        return self._while_unchanged(read)

    def _while_unchanged(self, read: Callable[[], T]) -> T:
        """What a function reads; it is called again if it fails because the index is changed meanwhile."""
        while True:
            before = _content(self.path / META)
            try:
                return read()
            except (OSError, ValueError):
                if _content(self.path / META) == before:
                    raise

    @cached_property
    def version(self) -> Version | None:
        """The version that is open; None if the index is not built."""
        if not self.built():
            return None
        return Version(self.path, self.meta["version"], verbose=self.verbose)

    @property
    def _opened(self) -> Version:
        """The version that is open. Raises as :func:`read_meta` does if there is none."""
        assert self.meta
        assert self.version is not None
        self.version.opened()
        return self.version

    def reopen(self) -> Self:
        """Opens the current version; an encoder that was loaded stays."""
        for name in ("meta", "version", "contextual", "random_similarity"):
            vars(self).pop(name, None)
        return self

    def verify(self) -> Self:
        """Compares all files with their digests; ValueError names damaged files."""
        return self._while_unchanged(super().verify)

    @property
    def graph(self) -> DocumentGraph:
        """The graph of the documents, for models: ``ptg.GraphMaxSim(index.graph)``."""
        return self._opened.graph

    # --- the encoder and the engine of BM25

    @cached_property
    def loaded_encoder(self) -> BiEncoder | ContextualEncoder:
        """The encoder that was given, or the encoder of the index; it is loaded once."""
        if self.encoder is not None and not isinstance(self.encoder, str):
            return self.encoder
        about: Any = self.meta["encoder"] if self.built() else {"checkpoint": None}
        if checkpoint := self.encoder or about["checkpoint"]:
            return encoder_of(checkpoint)
        if "folder" not in about:
            raise ValueError(f"{about['name']} is not part of {self!r}: give encoder=")
        return pt.Artifact.load(str(self.path / about["folder"]))

    @property
    def bi_encoder(self) -> BiEncoder:
        """Encodes passages and queries; of a GraphMean or GNNEncoder its bi-encoder."""
        encoder = self.loaded_encoder
        return encoder.encoder if is_contextual(encoder) else encoder

    def model(
        self, graph: DocumentGraph, queries: QueryPassageGraph | None, about: Mapping[str, Any]
    ) -> ContextualEncoder:
        """The model that computes the vectors of a graph, for a version with this ``pt_meta.json``."""
        from pyterrier_graph.graph_mean.graph_mean import GraphMean

        encoder = self.loaded_encoder
        options: dict[str, Any] = {
            "query_graph": queries,
            "folder": self.path / versions.ENCODED,
            "verbose": self.verbose,
        }
        if not is_contextual(encoder):
            with warnings.catch_warnings():  # the builder warns of missing titles
                warnings.simplefilter("ignore", QualityWarning)
                return GraphMean(graph, encoder, **options)
        saved = self.path / about["encoder"]["folder"]
        return type(encoder).load(saved, graph=graph, encoder=encoder.encoder, **options)

    def engine(self, about: Mapping[str, Any]) -> str | None:
        """The engine of BM25 for a version with this ``pt_meta.json``; None for a pipeline."""
        if isinstance(self.lexical, pt.Transformer):
            return None
        return self.lexical or about.get("lexical") or "bm25s"

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
            publish(self, self.meta["version"], settings)
        return self.reopen()

    # --- search

    @cached_property
    def contextual(self) -> ContextualIndex:
        """The index of the vectors."""
        version = self._opened
        return ContextualIndex(
            version.folder / versions.VECTORS, version.graph, self.loaded_encoder
        )

    def lexical_retriever(
        self,
        engine: str | None,
        files: BM25Index,
        graph: DocumentGraph,
        flex: Flex,
        num_results: int,
        allowed: np.ndarray | None = None,
    ) -> pt.Transformer:
        """BM25 over the passages of an index of vectors; other engines than bm25s read the same folder."""
        if isinstance(self.lexical, pt.Transformer):
            pipeline = self.lexical if allowed is not None else self.lexical % num_results
            return FilteredRetriever(pipeline, graph, num_results, allowed)
        if engine is None:
            raise ValueError(f"{self!r} was made with a pipeline as lexical=: give it again")
        if engine == "bm25s":
            docnos, _ = flex.payload(return_dvecs=False)
            return BM25Retriever(files, docnos, num_results, allowed, label=LABEL)
        depth = num_results if allowed is None else max(DEPTH, num_results)
        retriever = bm25([], engine, files.path, depth)
        return FilteredRetriever(retriever, graph, num_results, allowed)

    def _lexical(self, num_results: int, within: Within) -> pt.Transformer:
        allowed = allowed_passages(self.graph, within)
        version = self._opened
        return self.lexical_retriever(
            self.meta["lexical"], version.bm25, version.graph, version.flex, num_results, allowed
        )

    def _dense(self, num_results: int, within: Within, exact: bool) -> pt.Transformer:
        allowed = allowed_passages(self.graph, within)
        return DenseRetriever(self.contextual, num_results, allowed, exact=exact)

    def _fusion(self, within: Within = None, exact: bool = False) -> Hybrid:
        """The hybrid of both sides; all its results."""
        sides = self._lexical(DEPTH, within), self._dense(DEPTH, within, exact)
        return Hybrid(*sides, alpha=self.meta["settings"]["alpha"], num_results=2 * DEPTH)

    @property
    def _evidence(self) -> DocumentEvidence | None:
        """Adds evidence of documents and neighbors to the scores, if its weights are not 0."""
        weights = self.meta["settings"]["evidence"]
        return evidence_of(self.graph, weights) if any(weights.values()) else None

    def _with_texts(self, retriever: pt.Transformer, per: Per) -> pt.Transformer:
        return fold_results(
            self.graph, self._opened.lines, retriever >> self.graph.text_loader(), per
        )

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
            within: Searches these documents only: docnos, or what docnos begin with.
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
        exact: bool = False,
    ) -> pt.Transformer:
        """Finds passages by both BM25 and vectors. Columns and arguments are those of :meth:`dense`.

        The first results do not depend on ``num_results``. In a pipeline that is trained, the hybrid stays as it is.
        """
        fusion, evidence = self._fusion(within, exact), self._evidence
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
        lines = self._opened.lines
        per = per or ("passage" if lines is None else "section")
        ranking = self._fusion(within).contributions(
            pd.DataFrame({"qid": ["1"], "query": [question]})
        )
        return search_results(self, question, ranking, self._evidence, num_results, per)

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
        version = self._opened
        numbers = np.arange(len(self)) if since is None else np.flatnonzero(version.changed > since)
        vectors, _ = version.flex.payload(return_docnos=False)
        for start in range(0, len(numbers), ROWS_AT_ONCE):
            batch = numbers[start : start + ROWS_AT_ONCE]
            nodes = version.graph.passage_nodes[batch]
            texts = version.graph.texts(nodes), contexts(version.graph, version.queries, batch)
            for docno, text, context, vector in zip(
                version.graph.ids_of(nodes), *texts, np.asarray(vectors[batch]), strict=True
            ):
                yield {"docno": docno, "text": text, "context": context, "vector": vector}

    def deleted_since(self, version: int) -> list[str]:
        """Ids of passages that changes after a version have removed."""
        return [docno for docno, number in self._opened.deleted.items() if number > version]

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

    def _package_files(self) -> Iterator[tuple[str, str]]:
        """The files of the current version, for ``to_hf`` and others."""
        folders = [self._opened.folder, self.path / versions.ENCODED]
        if saved := self.meta["encoder"].get("folder"):
            folders.append(self.path / saved)
        files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
        for file in [self.path / META, *files]:
            if file.is_file():
                yield file.relative_to(self.path).as_posix(), str(file)


def _content(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None


def _checked(answered: Any) -> Answered | None:
    """Topics and judgments with ids as strings."""
    if answered is None:
        return None
    topics, qrels = answered
    qrels = checked_qrels(qrels, "answered")
    return checked_topics(topics, "answered"), qrels[["qid", "docno", "label"]]
