"""The graph of a corpus, on disk."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import pyterrier as pt
from npids.lookup import Lookup

from pyterrier_graph.checks import WithSignature
from pyterrier_graph.documents.document import StructuredDocument
from pyterrier_graph.documents.records import DocumentOf, structured_documents
from pyterrier_graph.graphs.builder import CODES, PASSAGES, build
from pyterrier_graph.graphs.context import Kind, records
from pyterrier_graph.graphs.corpus_graph import corpus_graph
from pyterrier_graph.graphs.hetero_graph import HeteroGraph, check_relations
from pyterrier_graph.graphs.passages import Fold, GraphTextLoader, Passages
from pyterrier_graph.html import HtmlCard
from pyterrier_graph.storage.arrays import StoredGraph
from pyterrier_graph.storage.artifact import atomic_folder, content_sha256, kind_of

if TYPE_CHECKING:
    from pyterrier_adaptive import NpTopKCorpusGraph

    from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph


class DocumentGraph(WithSignature, StoredGraph, HeteroGraph):
    """The graph of a corpus on disk, memory-mapped: the sections and passages of its documents, and their relations.

    ::

        graph = DocumentGraph("corpus.graph").index(dataset.get_corpus_iter())
        pipeline = bm25 % 100 >> graph.passages() >> reranker

    :class:`~pyterrier_graph.graphs.hetero_graph.HeteroGraph` lists the relations and their directions.

    Args:
        path: Folder of the graph. It need not exist before :meth:`index`; nothing is read before it is needed.
        verbose: Whether to show progress.
    """

    ARTIFACT_TYPE = "passage_graph"
    ARTIFACT_FORMAT = "csr"
    FORMAT_VERSION = 4

    def __init__(self, path: str | os.PathLike[str], *, verbose: bool = True) -> None:
        super().__init__(path, verbose=verbose)
        self.vectors_folder = Path(f"{self.path}.vectors")

    def __reduce__(self) -> tuple[Any, ...]:
        state = {"verbose": self.verbose, "vectors_folder": self.vectors_folder}
        return type(self), (self.path,), state

    def _view(self) -> HtmlCard:
        if not self.built():
            return HtmlCard({"documents": "not built yet"})
        return super()._view()

    def index(
        self,
        corpus_iter: Iterable[Mapping[str, Any] | StructuredDocument],
        *,
        document: str | DocumentOf | None = None,
        passage_words: int = 120,
    ) -> Self:
        """Builds the graph.

        Documents are read once; memory holds their docnos, codes and edges. References may lead to later documents.
        References out of the corpus are left out and counted in ``unresolved``. The graph appears under its path when
        it is complete.

        Args:
            corpus_iter: Structured documents, or records (or a DataFrame of them) as
                :func:`~pyterrier_graph.read_record` reads them: with ``docno`` and ``nodes`` (``links``,
                ``references``, ``codes``), or with ``docno`` and ``text`` (``title``), which is split into passages, or
                with ``sections``. For documents in another format, pass ``map(read, documents)`` with a function that
                returns such records.
            document: For a corpus of passages: the field that names the document of a row, or a function of the row.
                Passages keep their docnos, and the rows of a document must follow one another. See
                :func:`~pyterrier_graph.documents.records.documents_of_rows`.
            passage_words: Maximum number of words per passage where texts are split.

        Raises:
            FileExistsError: If something exists at the path.
            TypeError: If ``corpus_iter`` is not an iterable.
            ValueError: If a document is malformed, a docno is repeated, or there are no documents.
        """
        documents = structured_documents(corpus_iter, document, passage_words)
        meta = kind_of(self)
        with atomic_folder(self.path, meta) as folder:
            structured = (document for document, _ in documents)
            meta |= build(folder, structured, verbose=self.verbose)
            report = getattr(corpus_iter, "report", None)
            if report:
                meta["source"] = report
        return self

    def fingerprint(self) -> str:
        """A digest of all files, which is stored with them."""
        return content_sha256(self.meta)

    @cached_property
    def relations(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of all relations, see :attr:`HeteroGraph.relations`."""
        return tuple(self.meta["relations"])

    @property
    def unresolved(self) -> dict[str, int]:  # type: ignore[override]
        """Number of references per relation whose target is not in the graph."""
        return self.meta["unresolved"]

    @cached_property
    def code_names(self) -> list[str]:  # type: ignore[override]
        """Names of the documents' codes, by number."""
        return json.loads((self.folder / CODES).read_text(encoding="utf-8"))

    @cached_property
    def passage_ids(self) -> Lookup:
        """Ids of passages by position in ``passage_nodes``, and back."""
        return Lookup(self.folder / PASSAGES)

    def write_passage_ids(self, file: Path) -> None:
        """Copies the file with the ids of passages."""
        shutil.copyfile(self.folder / PASSAGES, file)

    def passages(self) -> Passages:
        """A transformer from documents to their passages: :class:`~pyterrier_graph.graphs.passages.Passages`."""
        return Passages(self)

    def fold(self, relation: str = "structural") -> Fold:
        """A transformer from passages to sections or documents: :class:`~pyterrier_graph.graphs.passages.Fold`."""
        return Fold(self, relation)

    def corpus_graph(
        self, relations: str | Sequence[str], k: int, path: str | os.PathLike[str]
    ) -> NpTopKCorpusGraph:
        """Writes relations as a corpus graph, for adaptive retrieval by ``pyterrier_adaptive``.

        Every edge has weight 1. If a passage has fewer than k neighbors, it fills the row itself, with weight 0. If it
        has more, the first relations win, then the order of the graph.

        Args:
            relations: Relations or paths, such as ``['order', 'order_i']`` for the next and previous passage.
            k: Number of neighbors per passage.
            path: Folder of the corpus graph, which must not exist yet.

        Raises:
            ImportError: If ``pyterrier_adaptive`` is not installed.
            ValueError: If the graph has no such relation.
        """
        relations = check_relations(self, relations)
        return corpus_graph(self, self.get_corpus_iter(), relations, k, path)

    def text_loader(
        self, fields: Sequence[str] | str | Literal["*"] = "*", *, verbose: bool = False
    ) -> GraphTextLoader:
        """The transformer of ``pt.text.get_text(graph)``: a :class:`~pyterrier_graph.graphs.passages.GraphTextLoader`.

        ``verbose``, which PyTerrier passes, has no effect: reading texts is too fast for a progress bar.
        """
        return GraphTextLoader(self, fields)

    def get_corpus_iter(
        self,
        kind: Kind = "passages",
        *,
        context: Sequence[str] | str = (),
        query_graph: QueryPassageGraph | None = None,
    ) -> Iterator[dict[str, str]]:
        """Yields records for any indexer, with the texts of neighbors on request.

        ::

            bm25.index(graph.get_corpus_iter(context=("title", "relevant"), query_graph=query_graph))

        Without ``context``, records have ``docno``, ``title`` and ``text``. The title of a passage joins the titles of
        all sections around it; the text of a document joins all titles and passages except the document's title.

        With ``context``, records have ``docno`` and ``text``: the texts of the neighbors, then the text of the passage,
        each distinct text once and on its own line.

        Args:
            kind: ``'passages'`` or ``'documents'``: one record for each. Documents have no context.
            context: Relations of this graph, or paths of them (``'title'``, ``'order'``, ``'title/title'``), and
                relations of the query graph (``'relevant'``, ``'retrieved'``), whose queries are a passage's context.
                The relation ``'title'`` leads to the nearest title.
            query_graph: The graph of training queries, for 'relevant' and 'retrieved'. Masked queries are left out.

        Raises:
            ValueError: If a relation is not in the graphs, or needs a query graph.
        """
        rows = records(self, kind, context, query_graph)
        total = len(self.passage_nodes) if kind == "passages" else len(self)
        unit = kind.removesuffix("s")
        bar = pt.tqdm(rows, total=total, desc=kind, unit=unit, delay=1, disable=not self.verbose)
        return iter(bar)
